//! The rotated files of the audit log: their names, which of them are kept, and their compression.
//!
//! Names and rules are lumberjack's, with which kube-apiserver rotates its log.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io, mem, thread};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use tracing::warn;

use crate::folder_lock::folder_of;
use weir_base::clock::Clock;

/// Only the owner may read the log: it names users and their requests.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Go's `2006-01-02T15-04-05.000`.
const TIMESTAMP_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// The end of a compressed file's name (lumberjack's `compressSuffix`).
const COMPRESSED_SUFFIX: &str = ".gz";

/// A log file and its rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileConfig {
    /// `--audit-log-path`.
    pub path: PathBuf,
    /// `--audit-log-maxsize`, in bytes. A file that would exceed it is renamed, and a new one is
    /// started.
    pub max_size: u64,
    /// `--audit-log-maxbackup`: number of renamed files to keep; 0 keeps all.
    pub max_backups: usize,
    /// `--audit-log-maxage`: how long renamed files are kept; zero keeps them for ever.
    pub max_age: Duration,
    /// `--audit-log-compress`: renamed files are compressed with gzip.
    pub compress: bool,
}

/// A renamed file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Backup {
    /// The time of its rotation.
    at: Timestamp,
    path: PathBuf,
    is_compressed: bool,
}

impl LogFileConfig {
    /// The name that `audit.log` is renamed to: `audit-2026-11-21T19-04-05.123.log`, in UTC.
    pub(crate) fn backup_path(&self, at: SystemTime) -> PathBuf {
        let (stem, extension) = self.split_file_name();
        let at = Timestamp::try_from(at).unwrap_or_default();
        let name = format!("{stem}-{}{extension}", at.strftime(TIMESTAMP_FORMAT));
        self.path.with_file_name(name)
    }

    /// The file name without its extension, and the extension with its dot.
    fn split_file_name(&self) -> (String, String) {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let dot = name.rfind('.').unwrap_or(name.len());
        let (stem, extension) = name.split_at(dot);
        (stem.to_owned(), extension.to_owned())
    }

    /// Removes renamed files that are too old or too many. Files that cannot be removed are tried
    /// again after the next rotation. A file and its compressed copy, which is not complete while
    /// both exist, count as one.
    fn remove_old_backups(&self) {
        let keep = match self.max_backups {
            0 => usize::MAX,
            most => most,
        };
        let oldest = (!self.max_age.is_zero())
            .then(|| Clock.wall().checked_sub(self.max_age))
            .flatten();
        let mut newer = BTreeSet::new();
        for Backup { at, path, .. } in self.list_backups() {
            newer.insert(at);
            let is_old = oldest.is_some_and(|oldest| SystemTime::from(at) < oldest);
            if newer.len() > keep || is_old {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Compresses the renamed files that are not compressed yet, newest first.
    fn compress_backups(&self) {
        for Backup { path, .. } in self
            .list_backups()
            .into_iter()
            .filter(|backup| !backup.is_compressed)
        {
            if let Err(why) = compress_file(&path) {
                warn!(%why, file = %path.display(), "a rotated file of the audit log cannot be compressed");
            }
        }
    }

    /// The renamed files, newest first.
    fn list_backups(&self) -> Vec<Backup> {
        let (stem, extension) = self.split_file_name();
        let Ok(entries) = fs::read_dir(folder_of(&self.path)) else {
            return Vec::new();
        };
        let backup = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            let rest = name.strip_prefix(&stem)?.strip_prefix('-')?;
            let uncompressed = rest.strip_suffix(COMPRESSED_SUFFIX);
            let at = uncompressed.unwrap_or(rest).strip_suffix(&extension)?;
            let at = DateTime::strptime(TIMESTAMP_FORMAT, at).ok()?;
            let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp();
            let is_compressed = uncompressed.is_some();
            Some(Backup {
                at,
                path,
                is_compressed,
            })
        };
        let mut backups: Vec<_> = entries
            .filter_map(|entry| backup(entry.ok()?.path()))
            .collect();
        backups.sort_unstable_by(|one, other| other.cmp(one));
        backups
    }
}

/// Replaces a file by a compressed copy. A copy that exists is incomplete, and is made again: the
/// original is removed only once the copy is complete. Does nothing while another thread or process
/// does the same.
fn compress_file(path: &Path) -> io::Result<()> {
    let mut source = File::open(path)?;
    if flock(&source, FlockOperation::NonBlockingLockExclusive).is_err() || !path.exists() {
        return Ok(()); // it is being compressed, or was until now
    }
    let compressed = compressed_path(path);
    let result = write_compressed(&mut source, &compressed);
    if result.is_err() {
        let _ = fs::remove_file(&compressed);
        return result;
    }
    fs::remove_file(path)
}

/// The name of a renamed file when it is compressed.
pub(crate) fn compressed_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED_SUFFIX);
    PathBuf::from(name)
}

fn write_compressed(source: &mut File, compressed: &Path) -> io::Result<()> {
    let destination = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(compressed)?;
    let mut encoder = GzEncoder::new(destination, Compression::default());
    io::copy(source, &mut encoder)?;
    encoder.finish()?.sync_all()
}

/// Removes renamed files, and compresses the others on a thread of its own: a file of 100 MB takes a
/// second or two, in which the log must go on.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackupMaintenance(Arc<Mutex<CompressionState>>);

#[derive(Debug, Default)]
struct CompressionState {
    is_running: bool,
    /// A file was renamed since the thread has listed the files.
    again: bool,
}

impl BackupMaintenance {
    /// Removes renamed files of `config` that are too old or too many. Then starts to compress the
    /// others, if that is configured.
    pub(crate) fn run(&self, config: &LogFileConfig) {
        config.remove_old_backups();
        if !config.compress {
            return;
        }
        {
            let mut state = self.0.lock();
            state.again = true;
            if mem::replace(&mut state.is_running, true) {
                return;
            }
        }
        let (config, maintenance) = (config.clone(), self.clone());
        let started = thread::Builder::new()
            .name("audit-log-gzip".to_owned())
            .spawn(move || maintenance.compress_all(&config));
        if let Err(why) = started {
            self.0.lock().is_running = false;
            warn!(%why, "no thread to compress the audit log's rotated files; the next rotation tries again");
        }
    }

    fn compress_all(&self, config: &LogFileConfig) {
        loop {
            {
                let mut state = self.0.lock();
                if !mem::take(&mut state.again) {
                    state.is_running = false;
                    return;
                }
            }
            config.compress_backups();
        }
    }
}
