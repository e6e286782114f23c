//! Compressed files: gzip and zstd, of many members or frames, as `cat a.gz b.gz` makes them.
//!
//! Zeros behind a member or a frame are padding, as of a file that was copied from a disk or a tape.
//! Any other bytes there end the file with an error of their own, [`is_trailing`], after all that was
//! compressed.

use std::io::{BufRead, Read};
use std::{fmt, io};

use flate2::bufread::GzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The bytes that are read at a time, before decompression.
const BUFFER_BYTES: usize = 128 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The text of a file, which may be compressed.
///
/// # Errors
/// The file cannot be read.
pub(super) fn decompress<R: Read + Send + 'static>(file: R) -> io::Result<Box<dyn Read + Send>> {
    let mut input = Lookahead::new(file);
    let begin = input.peek(ZSTD_MAGIC.len())?;
    Ok(if begin.starts_with(&GZIP_MAGIC) {
        Box::new(GzipMembers::Between(input))
    } else if is_zstd(begin) {
        Box::new(ZstdFrames::new(input))
    } else {
        Box::new(input)
    })
}

/// Whether an error says that the compressed file has other bytes behind its end.
pub(super) fn is_trailing(why: &io::Error) -> bool {
    why.get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<TrailingBytes>)
}

/// Whether a frame begins like this: one of zstd, or a skippable one, with which files of `pzstd`
/// begin.
fn is_zstd(begin: &[u8]) -> bool {
    begin == ZSTD_MAGIC || matches!(begin, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// The file has bytes behind its last member or frame that are no zeros.
#[derive(Debug)]
struct TrailingBytes;

impl fmt::Display for TrailingBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("other bytes follow what is compressed")
    }
}

impl std::error::Error for TrailingBytes {}

impl TrailingBytes {
    fn error() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Self)
    }
}

/// A buffered input whose next bytes can be seen before they are read.
struct Lookahead<R> {
    input: R,
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl<R: Read> Lookahead<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            buffer: vec![0; BUFFER_BYTES].into(),
            begin: 0,
            end: 0,
        }
    }

    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.begin..self.end).unwrap_or_default()
    }

    /// The next bytes: so many, or fewer at the end of the file.
    fn peek(&mut self, wanted: usize) -> io::Result<&[u8]> {
        while self.buffered().len() < wanted && self.read_more()? > 0 {}
        let available = wanted.min(self.buffered().len());
        Ok(self.buffered().get(..available).unwrap_or_default())
    }

    /// Reads behind what is buffered.
    fn read_more(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let free = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.input.read(free) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Skips zeros. Returns the bytes that follow: so many, or none at the end of the file.
    fn skip_padding(&mut self, wanted: usize) -> io::Result<&[u8]> {
        loop {
            let buffered = self.fill_buf()?;
            let zeros = buffered.iter().take_while(|byte| **byte == 0).count();
            let is_padding = zeros > 0 && zeros == buffered.len();
            self.consume(zeros);
            if !is_padding {
                return self.peek(wanted);
            }
        }
    }
}

impl<R: Read> BufRead for Lookahead<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)?;
        Ok(self.buffered())
    }

    fn consume(&mut self, amount: usize) {
        self.begin = self.end.min(self.begin + amount);
    }
}

impl<R: Read> Read for Lookahead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(buffer.len());
        let (from, to) = (available.get(..length), buffer.get_mut(..length));
        if let (Some(from), Some(to)) = (from, to) {
            to.copy_from_slice(from);
        }
        self.consume(length);
        Ok(length)
    }
}

/// One gzip member after the other.
enum GzipMembers<R> {
    /// Before a member.
    Between(Lookahead<R>),
    /// Within one.
    Within(GzDecoder<Lookahead<R>>),
    /// Behind the last one.
    Ended,
}

impl<R: Read> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Self::Ended) {
                Self::Between(mut input) => {
                    let begin = input.skip_padding(GZIP_MAGIC.len())?;
                    if begin.is_empty() {
                        return Ok(0);
                    }
                    if begin != GZIP_MAGIC {
                        return Err(TrailingBytes::error());
                    }
                    *self = Self::Within(GzDecoder::new(input));
                }
                Self::Within(mut member) => {
                    let read = member.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        *self = Self::Within(member);
                        return Ok(read);
                    }
                    *self = Self::Between(member.into_inner());
                }
                Self::Ended => return Ok(0),
            }
        }
    }
}

/// One zstd frame after the other. Skippable frames are skipped.
struct ZstdFrames<R> {
    input: Lookahead<R>,
    decoder: FrameDecoder,
    is_within: bool,
    /// Whether the input ended within the frame.
    is_cut: bool,
}

/// An empty last block and a checksum. The decoder keeps back what later blocks may refer to until it
/// has seen the last block, so a frame that is cut gets this one.
const ZSTD_END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

impl<R: Read> ZstdFrames<R> {
    fn new(input: Lookahead<R>) -> Self {
        Self {
            input,
            decoder: FrameDecoder::new(),
            is_within: false,
            is_cut: false,
        }
    }

    /// Begins the next frame. `false` if there is none.
    fn begin_frame(&mut self) -> io::Result<bool> {
        loop {
            let begin = self.input.skip_padding(ZSTD_MAGIC.len())?;
            if begin.is_empty() {
                return Ok(false);
            }
            if !is_zstd(begin) {
                return Err(TrailingBytes::error());
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.input.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(why) => return Err(self.failure(&why)),
            }
        }
    }

    /// Decodes until there is something to read, or the frame ends.
    fn decode(&mut self) -> io::Result<()> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            let one = BlockDecodingStrategy::UptoBlocks(1);
            let Err(why) = self.decoder.decode_blocks(&mut self.input, one) else {
                continue;
            };
            let failure = self.failure(&why);
            if failure.kind() != io::ErrorKind::UnexpectedEof || self.is_cut {
                return Err(failure);
            }
            self.is_cut = true;
            let one = BlockDecodingStrategy::UptoBlocks(1);
            let ended = self.decoder.decode_blocks(&mut &ZSTD_END[..], one);
            ended.map_err(|_| failure)?;
        }
        Ok(())
    }

    /// An error behind which nothing is left is that the input ends early.
    fn failure(&mut self, why: &FrameDecoderError) -> io::Error {
        match self.input.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => io::Error::new(io::ErrorKind::InvalidData, why.to_string()),
            Err(why) => why,
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_within {
                if !self.begin_frame()? {
                    return Ok(0);
                }
                self.is_within = true;
            }
            self.decode()?;
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if self.is_cut {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.is_within = false;
        }
    }
}
