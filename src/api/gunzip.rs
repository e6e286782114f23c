//! gzip undone piece by piece, within bounds.
//!
//! For what is looked at beside its way: checksums are not verified, and what is not as Go and
//! common proxies write it (a header of ten bytes, one member) is given up.

use flate2::Decompress;
use flate2::FlushDecompress;
use flate2::Status;

/// The length of a header without optional fields.
const HEADER: usize = 10;
/// What every header begins with: the format and its one method.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// Where the flags of optional fields stand.
const FLAGS: usize = 3;
/// What is inflated at a time.
const PIECE: usize = 8 << 10;

/// Inflates one body.
#[derive(Debug)]
pub struct Gunzip {
    state: State,
    inflate: Decompress,
    /// How many bytes may come of it yet.
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes of the header were read.
    Header(usize),
    Body,
    Ended,
    /// It is no gzip that can be read, or too much came of it.
    GivenUp,
}

impl Gunzip {
    /// One of which at most `most` bytes are made.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            state: State::Header(0),
            inflate: Decompress::new(false),
            left: most,
        }
    }

    /// Takes in the next part of the body, of any length, and hands on what comes of it.
    pub fn feed(&mut self, chunk: &[u8], mut sink: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let (State::Header(at), Some((byte, after))) = (self.state, rest.split_first()) {
            self.state = match (MAGIC.get(at), byte) {
                (Some(expected), byte) if expected != byte => State::GivenUp,
                (None, flags) if at == FLAGS && *flags != 0 => State::GivenUp,
                _ if at + 1 == HEADER => State::Body,
                _ => State::Header(at + 1),
            };
            rest = after;
        }
        let mut piece = [0; PIECE];
        while self.state == State::Body {
            let room = piece.len().min(self.left);
            let before = (self.inflate.total_in(), self.inflate.total_out());
            let Some(room) = piece.get_mut(..room) else {
                return;
            };
            let status = self.inflate.decompress(rest, room, FlushDecompress::None);
            let read = since(before.0, self.inflate.total_in());
            let made = since(before.1, self.inflate.total_out());
            self.left = self.left.saturating_sub(made);
            if let Some(made) = room.get(..made) {
                sink(made);
            }
            rest = rest.get(read..).unwrap_or_default();
            match status {
                Ok(Status::StreamEnd) => self.state = State::Ended,
                Err(_) => self.state = State::GivenUp,
                Ok(_) if self.left == 0 => self.state = State::GivenUp,
                // All was read, and there was room for more.
                Ok(_) if rest.is_empty() && made < PIECE => return,
                Ok(_) if read == 0 && made == 0 => return,
                Ok(_) => {}
            }
        }
    }

    /// Whether all of it was inflated.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether nothing will come of what follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Ended | State::GivenUp)
    }
}

fn since(before: u64, now: u64) -> usize {
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

    fn gunzip(most: usize, chunks: &[&[u8]]) -> (Vec<u8>, Gunzip) {
        let (mut gunzip, mut made) = (Gunzip::new(most), Vec::new());
        for chunk in chunks {
            gunzip.feed(chunk, |piece| made.extend_from_slice(piece));
        }
        (made, gunzip)
    }

    #[test]
    fn everything_comes_out_wherever_the_body_is_cut() {
        let text: Vec<u8> = (0..40_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect();
        let packed = gzip(&text);
        for at in (0..packed.len()).step_by(997).chain([1, 2, 3, 9, 10, 11]) {
            let (head, tail) = packed.split_at(at);
            let (made, gunzip) = gunzip(1 << 20, &[head, tail]);
            assert!(made == text && gunzip.has_ended(), "cut at {at}");
        }
        let one_by_one: Vec<_> = packed.chunks(1).collect();
        assert!(gunzip(1 << 20, &one_by_one).0 == text);
    }

    /// What was flushed by the sender comes out before anything follows.
    #[test]
    fn what_has_come_is_not_held_back() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"{\"type\":\"ADDED\"}\n").unwrap();
        encoder.flush().unwrap();
        let (made, gunzip) = gunzip(1 << 20, &[encoder.get_ref()]);
        assert_eq!(made, b"{\"type\":\"ADDED\"}\n");
        assert!(!gunzip.is_over());
    }

    #[test]
    fn a_bomb_is_given_up() {
        let bomb = gzip(&vec![0; 64 << 20]);
        let (made, gunzip) = gunzip(100_000, &[&bomb]);
        assert_eq!(made.len(), 100_000);
        assert!(gunzip.is_over() && !gunzip.has_ended());
    }

    #[test]
    fn what_is_no_gzip_is_given_up() {
        let mut named = gzip(b"text");
        named[FLAGS] = 8;
        let cut = gzip(b"text")[2..].to_vec();
        let spoilt = [&gzip(b"")[..HEADER], &[0xff; 40]].concat();
        for body in [named, cut, spoilt, b"{\"items\":[]}".to_vec()] {
            let (made, gunzip) = gunzip(1 << 20, &[&body]);
            assert!(made.is_empty() && gunzip.is_over(), "{body:?}");
        }
    }
}
