//! The files of a log: opened, and cut into pieces of whole lines.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use super::compressed::{decompress, is_trailing};

/// The least bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;

/// The longest line in bytes. A request body is at most 3 MiB, and escapes make it longer.
const MAX_LINE_BYTES: usize = 32 << 20;

/// A file of a log, or the standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSource {
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
    /// Whether the compressed file ends early, with this piece.
    pub(super) ends_early: bool,
    /// Whether the compressed file has other bytes behind its end, which comes with this piece.
    pub(super) has_trailing: bool,
    /// Lines that were too long to be read.
    pub(super) too_long: u64,
}

/// Reads a file piece by piece.
pub(super) struct PieceReader {
    input: Box<dyn Read + Send>,
    rest: Vec<u8>,
    ended: bool,
    /// Whether the compressed file has ended early, and no piece says so yet.
    ends_early: bool,
    /// Whether other bytes are behind its end, and no piece says so yet.
    has_trailing: bool,
}

impl LogSource {
    /// What a path names: `-` is the standard input.
    pub fn from_path(path: &Path) -> Self {
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
    pub const fn is_read_once(&self) -> bool {
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
        let counted = Counted {
            input: raw,
            progress: Arc::clone(progress),
        };
        let input = decompress(counted)?;
        Ok(PieceReader {
            input,
            rest: Vec::new(),
            ended: false,
            ends_early: false,
            has_trailing: false,
        })
    }

    /// The bytes of the file, for progress. 0 if that is not known.
    pub fn size(&self) -> u64 {
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
            self.read_more(&mut text)?;
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
        piece.ends_early = std::mem::take(&mut self.ends_early);
        piece.has_trailing = std::mem::take(&mut self.has_trailing);
        piece.is_cut = !text.trim_ascii().is_empty();
        let says_something = piece.ends_early || piece.has_trailing || piece.too_long > 0;
        if !piece.is_cut && !says_something {
            return Ok(None);
        }
        piece.text = text;
        Ok(Some(piece))
    }

    /// Appends some bytes, or notes that there are no more.
    fn read_more(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let wanted = u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX);
        match self.input.by_ref().take(wanted).read_to_end(text) {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                self.ended = true;
                self.ends_early = true;
            }
            Err(why) if is_trailing(&why) => {
                self.ended = true;
                self.has_trailing = true;
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Drops the rest of a line, and keeps what follows.
    fn skip_line(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        while !self.ended {
            text.clear();
            self.read_more(text)?;
            if let Some(end) = memchr::memchr(b'\n', text) {
                text.drain(..=end);
                return Ok(());
            }
        }
        text.clear();
        Ok(())
    }
}
