//! Incremental gzip decompression with a bounded output.
//!
//! For bodies that are inspected off the path of the response: checksums are not verified. Input
//! that is not gzip as Go and common proxies write it (a header of ten bytes, one member) aborts
//! the decompression.

use flate2::{Decompress, FlushDecompress, Status};

/// Length of a header without optional fields, in bytes.
const HEADER_LENGTH: usize = 10;
/// First bytes of every header: the format and its only compression method.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// Offset of the byte that flags optional header fields.
const FLAGS_OFFSET: usize = 3;
/// Size of the output buffer, in bytes.
const CHUNK_SIZE: usize = 8 << 10;

/// Decompresses one body.
#[derive(Debug)]
pub struct Gunzip {
    state: GunzipState,
    inflate: Decompress,
    /// Bytes that may still be produced.
    remaining_output: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GunzipState {
    /// Number of header bytes read so far.
    Header(usize),
    Body,
    Complete,
    /// The input is not readable gzip, or its output exceeds the bound.
    Aborted,
}

impl Gunzip {
    /// Returns a decompressor that produces at most `max_output` bytes.
    #[must_use]
    pub fn new(max_output: usize) -> Self {
        Self {
            state: GunzipState::Header(0),
            inflate: Decompress::new(false),
            remaining_output: max_output,
        }
    }

    /// Consumes the next chunk of the body, of any length, and passes the decompressed bytes to
    /// `sink`.
    pub fn feed(&mut self, chunk: &[u8], mut sink: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let (GunzipState::Header(at), Some((byte, after))) = (self.state, rest.split_first())
        {
            self.state = match (MAGIC.get(at), byte) {
                (Some(expected), byte) if expected != byte => GunzipState::Aborted,
                (None, flags) if at == FLAGS_OFFSET && *flags != 0 => GunzipState::Aborted,
                _ if at + 1 == HEADER_LENGTH => GunzipState::Body,
                _ => GunzipState::Header(at + 1),
            };
            rest = after;
        }
        let mut piece = [0; CHUNK_SIZE];
        while self.state == GunzipState::Body {
            let room = piece.len().min(self.remaining_output);
            let before = (self.inflate.total_in(), self.inflate.total_out());
            let Some(room) = piece.get_mut(..room) else {
                return;
            };
            let status = self.inflate.decompress(rest, room, FlushDecompress::None);
            let read = delta(before.0, self.inflate.total_in());
            let made = delta(before.1, self.inflate.total_out());
            self.remaining_output = self.remaining_output.saturating_sub(made);
            if let Some(made) = room.get(..made) {
                sink(made);
            }
            rest = rest.get(read..).unwrap_or_default();
            match status {
                Ok(Status::StreamEnd) => self.state = GunzipState::Complete,
                Err(_) => self.state = GunzipState::Aborted,
                Ok(_) if self.remaining_output == 0 => self.state = GunzipState::Aborted,
                // All input is consumed, and the buffer had room for more output.
                Ok(_) if rest.is_empty() && made < CHUNK_SIZE => return,
                Ok(_) if read == 0 && made == 0 => return,
                Ok(_) => {}
            }
        }
    }

    /// Whether the whole body was decompressed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == GunzipState::Complete
    }

    /// Whether further chunks produce no output.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, GunzipState::Complete | GunzipState::Aborted)
    }
}

fn delta(before: u64, now: u64) -> usize {
    usize::try_from(now.saturating_sub(before)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn gunzip_chunks(max_output: usize, chunks: &[&[u8]]) -> (Vec<u8>, Gunzip) {
        let (mut gunzip, mut made) = (Gunzip::new(max_output), Vec::new());
        for chunk in chunks {
            gunzip.feed(chunk, |piece| made.extend_from_slice(piece));
        }
        (made, gunzip)
    }

    #[test]
    fn the_output_does_not_depend_on_chunk_boundaries() {
        let text: Vec<u8> = (0..40_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect();
        let packed = gzip(&text);
        for at in (0..packed.len()).step_by(997).chain([1, 2, 3, 9, 10, 11]) {
            let (head, tail) = packed.split_at(at);
            let (made, gunzip) = gunzip_chunks(1 << 20, &[head, tail]);
            assert!(made == text && gunzip.is_complete(), "cut at {at}");
        }
        let one_by_one: Vec<_> = packed.chunks(1).collect();
        assert!(gunzip_chunks(1 << 20, &one_by_one).0 == text);
    }

    /// Data that the sender flushed is produced before anything follows.
    #[test]
    fn flushed_data_is_decompressed_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"{\"type\":\"ADDED\"}\n").unwrap();
        encoder.flush().unwrap();
        let (made, gunzip) = gunzip_chunks(1 << 20, &[encoder.get_ref()]);
        assert_eq!(made, b"{\"type\":\"ADDED\"}\n");
        assert!(!gunzip.is_done());
    }

    #[test]
    fn a_decompression_bomb_is_aborted() {
        let bomb = gzip(&vec![0; 64 << 20]);
        let (made, gunzip) = gunzip_chunks(100_000, &[&bomb]);
        assert_eq!(made.len(), 100_000);
        assert!(gunzip.is_done() && !gunzip.is_complete());
    }

    #[test]
    fn a_body_that_is_not_gzip_is_aborted() {
        let mut named = gzip(b"text");
        named[FLAGS_OFFSET] = 8;
        let cut = gzip(b"text")[2..].to_vec();
        let spoilt = [&gzip(b"")[..HEADER_LENGTH], &[0xff; 40]].concat();
        for body in [named, cut, spoilt, b"{\"items\":[]}".to_vec()] {
            let (made, gunzip) = gunzip_chunks(1 << 20, &[&body]);
            assert!(made.is_empty() && gunzip.is_done(), "{body:?}");
        }
    }
}
