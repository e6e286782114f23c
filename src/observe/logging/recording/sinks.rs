//! The destinations of a record: a file within its limits, and streams to `weir record`.
//!
//! Only the writer's thread writes to them: everything here may block, but a stream does not. Lines are
//! compressed as whole gzip members of some size. So a file that is written is complete at any time,
//! and can be continued.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{info, warn};

use crate::observe::logging::recording::line;
use crate::observe::logging::recording::line::{LineRenderer, RecordedRequest};
use crate::observe::logging::recording::pseudonyms::{KeptNames, PseudonymKey};
use weir_kubernetes::numeric::saturating_u64;

/// Only the owner may read the record: it names users and their requests.
const FILE_MODE: u32 = 0o600;

/// Room for the lines that a file ends with, in bytes.
const END_BYTES: u64 = 256;

/// The bytes of lines in a member, about. A member does not refer to the lines of others: smaller
/// ones would take more space.
pub(crate) const MEMBER_BYTES: usize = 256 << 10;

/// The lines of a compressed file are written at least this often. Those after are lost if weir is
/// killed.
const MEMBER_TIME: Duration = Duration::from_secs(5);

/// Batches that a stream may be behind. weir makes some twenty a second.
const STREAM_CAPACITY: usize = 256;

/// A record in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingConfig {
    /// `--record-path`. An existing file is continued. Compressed, if its name ends with `.gz`.
    pub path: PathBuf,
    /// `--record-max-size`, in bytes. The record ends before the file exceeds it.
    pub max_size: u64,
    /// `--record-max-duration`. Zero is no limit.
    pub max_duration: Duration,
    /// `--record-pseudonym-key-file`: names are replaced by pseudonyms.
    pub pseudonym_key: Option<PseudonymKey>,
    /// `--record-source-addresses`.
    pub source_addresses: bool,
}

/// An open file.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    path: PathBuf,
    size: u64,
    max_size: u64,
    is_gzip: bool,
}

impl RecordFile {
    /// Opens the file and continues it.
    pub(super) fn open(path: &Path, max_size: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(FILE_MODE)
            .open(path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            file,
            path: path.to_owned(),
            size,
            max_size,
            is_gzip: is_gzip_name(path),
        })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let member = self.is_gzip.then(|| gzip_member(lines));
        let bytes = member.as_deref().unwrap_or(lines);
        // During a hand-over, another process writes to the file, too.
        self.size = self.file.metadata()?.len();
        if let Err(why) = self.file.write_all(bytes) {
            if self.is_gzip {
                let _ = self.file.set_len(self.size); // a part of a member could not be read
            }
            return Err(why);
        }
        self.size = self.size.saturating_add(saturating_u64(bytes.len()));
        Ok(())
    }

    /// Whether lines of this many bytes fit, and the end after them.
    fn has_room(&self, bytes: usize) -> bool {
        let bytes = if self.is_gzip {
            max_member_bytes(bytes)
        } else {
            bytes
        };
        let size = self.size.saturating_add(saturating_u64(bytes));
        size.saturating_add(END_BYTES) <= self.max_size
    }
}

/// A record in a file.
#[derive(Debug)]
pub(super) struct FileSink {
    file: RecordFile,
    pub(super) renderer: LineRenderer,
    until: Option<Instant>,
    /// When the lines of a compressed file were last written.
    written_at: Instant,
    /// Lines that are not written yet.
    buffer: Vec<u8>,
    arrivals: u64,
    dropped: u64,
}

/// Why a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordEnd {
    MaxSize,
    MaxDuration,
    /// Another one takes its place, or weir ends.
    Stopped,
    /// The file cannot be written.
    Error,
}

impl RecordEnd {
    const fn name(self) -> &'static str {
        match self {
            Self::MaxSize => "max-size",
            Self::MaxDuration => "max-duration",
            Self::Stopped => "stopped",
            Self::Error => "error",
        }
    }
}

impl FileSink {
    /// Begins the record with its first line.
    pub(super) fn start(
        file: RecordFile,
        renderer: LineRenderer,
        config: &RecordingConfig,
    ) -> Self {
        let duration = Some(config.max_duration).filter(|longest| !longest.is_zero());
        Self {
            written_at: renderer.base.instant,
            until: duration.map(|longest| renderer.base.instant + longest),
            buffer: line::header_line(&renderer, None),
            file,
            renderer,
            arrivals: 0,
            dropped: 0,
        }
    }

    /// Adds a request. The reason if the record ends before it.
    pub(super) fn add(&mut self, request: &RecordedRequest) -> Result<(), RecordEnd> {
        let before = self.buffer.len();
        request.append_line(&self.renderer, &mut self.buffer);
        if !self.file.has_room(self.buffer.len()) {
            let line = self.buffer.split_off(before);
            if self.file.is_gzip {
                self.write_buffer()?; // it becomes shorter
            }
            if !self.file.has_room(self.buffer.len() + line.len()) {
                return Err(RecordEnd::MaxSize);
            }
            self.buffer.extend(line);
        }
        self.arrivals += 1;
        Ok(())
    }

    /// Notes that requests are missing.
    pub(super) fn note_dropped(&mut self, dropped: u64) {
        self.dropped += dropped;
        let note = line::note_line(&json!({ "dropped": dropped }));
        if self.file.has_room(self.buffer.len() + note.len()) {
            self.buffer.extend(note);
        }
    }

    /// Writes the lines, those of a compressed file once there are enough of them or the last ones
    /// were written a while ago. The reason if the record ends now.
    pub(super) fn flush(&mut self, now: Instant) -> Result<(), RecordEnd> {
        if !self.file.has_room(self.buffer.len()) {
            self.buffer.clear();
            return Err(RecordEnd::MaxSize); // a full file is continued
        }
        let age = now.saturating_duration_since(self.written_at);
        let is_due = self.buffer.len() >= MEMBER_BYTES || age >= MEMBER_TIME;
        if !self.file.is_gzip || is_due {
            self.written_at = now;
            self.write_buffer()?;
        }
        if self.until.is_some_and(|until| now >= until) {
            return Err(RecordEnd::MaxDuration);
        }
        Ok(())
    }

    fn write_buffer(&mut self) -> Result<(), RecordEnd> {
        let lines = std::mem::take(&mut self.buffer);
        self.file.write(&lines).map_err(|why| {
            warn!(%why, file = %self.file.path.display(), "the record cannot be written and ends");
            RecordEnd::Error
        })
    }

    /// How long the record goes on.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.until
            .map_or(Duration::MAX, |until| until.saturating_duration_since(now))
    }

    /// Writes what is left, and the last line.
    pub(super) fn end(mut self, end: RecordEnd) {
        let (arrivals, dropped) = (self.arrivals, self.dropped);
        let note = json!({"end": end.name(), "lines": arrivals, "dropped": dropped});
        if self.file.is_gzip && end != RecordEnd::Error {
            let _ = self.write_buffer(); // it has logged why
        }
        self.buffer.extend(line::note_line(&note));
        let fits = self
            .file
            .size
            .saturating_add(saturating_u64(self.buffer.len()))
            <= self.file.max_size;
        if fits && end != RecordEnd::Error {
            let lines = std::mem::take(&mut self.buffer);
            if let Err(why) = self.file.write(&lines) {
                warn!(%why, file = %self.file.path.display(), "the end of the record cannot be written");
            }
        }
        info!(
            file = %self.file.path.display(),
            reason = end.name(),
            arrivals,
            dropped,
            "the record ends"
        );
    }
}

/// A record that a client of the admin listener reads.
#[derive(Debug)]
pub(super) struct StreamSink {
    lines: mpsc::Sender<Bytes>,
    renderer: LineRenderer,
    buffer: Vec<u8>,
    /// Requests in `buffer`.
    pending: u64,
    dropped: u64,
}

impl StreamSink {
    /// A stream that begins with the first line of a record.
    pub(super) fn start(renderer: LineRenderer, kept: &KeptNames) -> (Self, mpsc::Receiver<Bytes>) {
        let (lines, receiver) = mpsc::channel(STREAM_CAPACITY);
        let sink = Self {
            lines,
            buffer: line::header_line(&renderer, Some(kept)),
            renderer,
            pending: 0,
            dropped: 0,
        };
        (sink, receiver)
    }

    pub(super) fn add(&mut self, request: &RecordedRequest) {
        request.append_line(&self.renderer, &mut self.buffer);
        self.pending += 1;
    }

    pub(super) fn note_dropped(&mut self, dropped: u64) {
        self.dropped += dropped;
    }

    /// Sends the lines. Those of a client that does not read are dropped, and noted once it does.
    /// Returns whether there is still a client.
    pub(super) fn flush(&mut self) -> bool {
        if self.buffer.is_empty() && self.dropped == 0 {
            return !self.lines.is_closed();
        }
        let mut lines = std::mem::take(&mut self.buffer);
        if self.dropped > 0 {
            lines.splice(..0, line::note_line(&json!({ "dropped": self.dropped })));
        }
        let pending = std::mem::take(&mut self.pending);
        match self.lines.try_send(lines.into()) {
            Ok(()) => self.dropped = 0,
            Err(TrySendError::Full(_)) => self.dropped += pending,
            Err(TrySendError::Closed(_)) => return false,
        }
        true
    }
}

/// Whether a file of this name is compressed.
#[must_use]
pub(crate) fn is_gzip_name(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// The lines as a member. Nothing of nothing.
#[must_use]
pub(crate) fn gzip_member(lines: &[u8]) -> Vec<u8> {
    if lines.is_empty() {
        return Vec::new();
    }
    let write = || -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(lines)?;
        encoder.finish()
    };
    write().unwrap_or_default() // a vector takes everything
}

/// More bytes than a member of so many bytes of lines has: what zlib's `deflateBound` says for any
/// level, and 18 for the member.
#[must_use]
pub(crate) const fn max_member_bytes(lines: usize) -> usize {
    lines + lines / 8 + lines / 64 + 64
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use fastrand::Rng;
    use flate2::read::MultiGzDecoder;

    use super::*;

    #[test]
    fn members_read_as_one_file_and_are_no_longer_than_said() {
        let mut random = Rng::with_seed(1);
        let (mut file, mut lines) = (Vec::new(), Vec::new());
        for size in [0, 1, 200, 20_000, 3 * MEMBER_BYTES] {
            let part: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
                .take(size)
                .collect();
            let member = gzip_member(&part);
            assert!(member.len() <= max_member_bytes(size), "{size}");
            file.extend(member);
            lines.extend(part);
        }
        let mut read = Vec::new();
        MultiGzDecoder::new(&*file).read_to_end(&mut read).unwrap();
        assert!(read == lines);
    }
}
