//! The files of a log: opened, decompressed, and cut into pieces of whole lines.

use std::fmt;
use std::fs::File;
use std::io;
use std::io::BufReader;
use std::io::Cursor;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// The bytes that are read at a time, before decompression.
const BUFFER_BYTES: usize = 128 << 10;

/// The least bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;

/// The longest line in bytes. A request body is at most 3 MiB, and escapes make it longer.
const MAX_LINE_BYTES: usize = 32 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A file of a log, or the standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogSource {
    /// A file, perhaps compressed.
    File(PathBuf),
    /// A pipe, or another file that can be read only once.
    Pipe(PathBuf),
    /// The standard input.
    Stdin,
}

impl fmt::Display for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) | Self::Pipe(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("the standard input"),
        }
    }
}

/// Whole lines of a file.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) text: Vec<u8>,
    /// Whether the last line has no end: the file ends within it.
    pub(super) is_cut: bool,
    /// Lines that were too long to be read.
    pub(super) too_long: u64,
}

/// Reads a file piece by piece.
pub(super) struct PieceReader {
    input: Box<dyn Read + Send>,
    rest: Vec<u8>,
    ended: bool,
}

impl LogSource {
    /// What a path names: `-` is the standard input.
    pub(crate) fn from_path(path: &Path) -> Self {
        if path == Path::new("-") {
            return Self::Stdin;
        }
        let is_file = std::fs::metadata(path).map_or(true, |found| found.is_file());
        if is_file {
            Self::File(path.to_owned())
        } else {
            Self::Pipe(path.to_owned())
        }
    }

    /// Whether it can be read only once.
    pub(crate) const fn is_read_once(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Pipe(_) | Self::Stdin => true,
        }
    }

    /// Opens the file. What is read of it, before decompression, is added to `progress`.
    ///
    /// # Errors
    /// It cannot be opened, or not be read.
    pub(super) fn open(&self, progress: &Arc<AtomicU64>) -> io::Result<PieceReader> {
        let raw: Box<dyn Read + Send> = match self {
            Self::File(path) | Self::Pipe(path) => Box::new(File::open(path)?),
            Self::Stdin => Box::new(io::stdin()),
        };
        let mut counted = Counted {
            input: raw,
            progress: Arc::clone(progress),
        };
        let mut begin = Vec::with_capacity(ZSTD_MAGIC.len());
        counted.by_ref().take(4).read_to_end(&mut begin)?;
        let whole =
            BufReader::with_capacity(BUFFER_BYTES, Cursor::new(begin.clone()).chain(counted));
        let input: Box<dyn Read + Send> = if begin.starts_with(&GZIP_MAGIC) {
            Box::new(MultiGzDecoder::new(whole))
        } else if begin == ZSTD_MAGIC {
            Box::new(ZstdFrames::Between(Some(whole)))
        } else {
            Box::new(whole)
        };
        Ok(PieceReader {
            input,
            rest: Vec::new(),
            ended: false,
        })
    }

    /// The bytes of the file, for progress. 0 if that is not known.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::File(path) => std::fs::metadata(path).map_or(0, |file| file.len()),
            Self::Pipe(_) | Self::Stdin => 0,
        }
    }
}

/// Counts what is read.
struct Counted {
    input: Box<dyn Read + Send>,
    progress: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        let bytes = u64::try_from(read).unwrap_or_default();
        self.progress.fetch_add(bytes, Ordering::Relaxed); // shown only
        Ok(read)
    }
}

/// One zstd frame after the other, as `cat a.zst b.zst` makes them.
enum ZstdFrames<R: Read> {
    Between(Option<R>),
    Within(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
}

impl<R: io::BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self {
                Self::Between(input) => {
                    let Some(mut input) = input.take() else {
                        return Ok(0);
                    };
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let frame = StreamingDecoder::new(input).map_err(invalid_data)?;
                    *self = Self::Within(Box::new(frame));
                }
                Self::Within(frame) => {
                    let read = frame.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        return Ok(read);
                    }
                    let Self::Within(frame) = std::mem::replace(self, Self::Between(None)) else {
                        return Ok(0); // unreachable: it is within
                    };
                    *self = Self::Between(Some(frame.into_inner()));
                }
            }
        }
    }
}

fn invalid_data(why: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

impl PieceReader {
    /// The next lines. `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or not be decompressed. A compressed file that ends early ends with
    /// what it has.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        let mut piece = Piece::default();
        let mut text = std::mem::take(&mut self.rest);
        let mut searched = 0;
        while !self.ended {
            let before = text.len();
            let wanted = u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX);
            let read = self.input.by_ref().take(wanted).read_to_end(&mut text);
            match read {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    piece.is_cut = true;
                }
                Err(why) => return Err(why),
            }
            let new = text.get(searched..).unwrap_or_default();
            if let Some(end) = memchr::memrchr(b'\n', new) {
                self.rest = text.split_off(searched + end + 1);
                piece.text = text;
                return Ok(Some(piece));
            }
            searched = text.len();
            if text.len() > MAX_LINE_BYTES {
                self.skip_line(&mut text)?;
                piece.too_long += 1;
                searched = 0;
            }
            if text.len() == before && !self.ended {
                break; // unreachable: something was read
            }
        }
        let is_line = !text.trim_ascii().is_empty();
        if !is_line && piece.too_long == 0 && !piece.is_cut {
            return Ok(None);
        }
        piece.is_cut |= is_line;
        piece.text = text;
        Ok(Some(piece))
    }

    /// Drops the rest of a line, and keeps what follows.
    fn skip_line(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        loop {
            text.clear();
            let wanted = u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX);
            if self.input.by_ref().take(wanted).read_to_end(text)? == 0 {
                self.ended = true;
                return Ok(());
            }
            if let Some(end) = memchr::memchr(b'\n', text) {
                text.drain(..=end);
                return Ok(());
            }
        }
    }
}
