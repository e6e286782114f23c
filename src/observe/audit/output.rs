//! The destinations of audit events: a file with kube-apiserver's rotation (lumberjack's rules and
//! file names), a pipe, or the standard output.
//!
//! Only the writer's thread calls this module: everything here may block.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tracing::warn;

use crate::clock::Clock;
use crate::numeric::saturating_u64;

/// Only the owner may read the log: it names users and their requests.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// Go's `2006-01-02T15-04-05.000`.
const TIMESTAMP_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// Delay after a failed rename, during which the file grows beyond its limit. Retrying sooner would
/// not remove the cause, and each failure logs a line.
const ROTATE_RETRY_DELAY: Duration = Duration::from_secs(60);

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
}

/// An open destination.
#[derive(Debug)]
pub(super) enum AuditOutput {
    File(RotatingFile),
    /// A pipe or a device. It is never rotated. It is opened at the first write, since opening may
    /// wait for a reader.
    Pipe(PathBuf, Option<File>),
    Stdout,
}

impl AuditOutput {
    /// Opens a file or a pipe, depending on what exists at the path.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub(super) fn open(file: LogFileConfig) -> io::Result<Self> {
        match fs::metadata(&file.path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                Ok(Self::Pipe(file.path, None))
            }
            _ => RotatingFile::open(file).map(Self::File),
        }
    }

    /// Replaces the destination by one that was opened before. The last line of the same file is
    /// continued correctly, and its size is that of now.
    pub(super) fn replace(&mut self, mut new: Self) {
        if let (Self::File(before), Self::File(now)) = (&*self, &mut new)
            && before.config.path == now.config.path
        {
            now.has_partial_line = before.has_partial_line;
            now.size = fs::metadata(&now.config.path).map_or(0, |metadata| metadata.len());
            now.file = None; // it may have been renamed since
        }
        *self = new;
    }

    /// Writes whole lines.
    ///
    /// # Errors
    /// Some of the lines may be written nevertheless.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write(lines),
            Self::Pipe(_, Some(pipe)) => pipe.write_all(lines),
            Self::Pipe(path, closed) => {
                let pipe = closed.insert(OpenOptions::new().append(true).open(path)?);
                pipe.write_all(lines)
            }
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
        }
    }

    /// Returns the bytes that fit before the file must be rotated.
    pub(super) fn remaining_bytes(&self) -> u64 {
        match self {
            Self::File(file) if file.rotate_retry_at.is_none() => {
                file.config.max_size.saturating_sub(file.size)
            }
            Self::File(_) | Self::Pipe(..) | Self::Stdout => u64::MAX,
        }
    }
}

/// A file that is renamed when it has reached its size limit.
#[derive(Debug)]
pub(super) struct RotatingFile {
    config: LogFileConfig,
    /// `None` after a failed open or write.
    file: Option<File>,
    size: u64,
    /// The last write ended within a line.
    has_partial_line: bool,
    /// The file could not be renamed. Until this time it is written to whatever its size.
    rotate_retry_at: Option<Instant>,
}

impl RotatingFile {
    fn open(config: LogFileConfig) -> io::Result<Self> {
        let file = open_append(&config.path)?;
        let size = file.metadata()?.len();
        let opened = Self {
            config,
            file: Some(file),
            size,
            has_partial_line: false,
            rotate_retry_at: None,
        };
        opened.remove_old_backups();
        Ok(opened)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = saturating_u64(lines.len());
        let too_large = self.size > 0 && self.size.saturating_add(length) > self.config.max_size;
        if too_large
            && self
                .rotate_retry_at
                .is_none_or(|until| Clock.now() >= until)
        {
            self.rotate();
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => open_append(&self.config.path)?,
        };
        if self.has_partial_line {
            file.write_all(b"\n")?;
            self.has_partial_line = false;
        }
        let before = file.metadata()?.len();
        let written = file.write_all(lines);
        if written.is_err() {
            let after = file.metadata().map_or(before, |now| now.len());
            self.has_partial_line = after > before;
        }
        self.size = before.saturating_add(length);
        self.file = Some(file);
        written
    }

    /// Renames the file. The next write opens a new one at its path. A file that does not exist was
    /// moved by another process, which has the same effect. A file that cannot be renamed is
    /// written to further.
    fn rotate(&mut self) {
        self.file = None;
        self.rotate_retry_at = None;
        let mut now = Clock.wall();
        let mut old = self.backup_path(now);
        while old.exists() {
            now += Duration::from_millis(1);
            old = self.backup_path(now);
        }
        match fs::rename(&self.config.path, old) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                self.rotate_retry_at = Some(Clock.now() + ROTATE_RETRY_DELAY);
                warn!(%why, file = %self.config.path.display(), "the audit log's file cannot be renamed and keeps growing");
            }
            _ => {
                (self.size, self.has_partial_line) = (0, false);
                self.remove_old_backups();
            }
        }
    }

    /// Returns the name that `audit.log` is renamed to: `audit-2026-11-21T19-04-05.123.log`, in
    /// UTC.
    fn backup_path(&self, at: SystemTime) -> PathBuf {
        let (stem, extension) = self.split_file_name();
        let at = Timestamp::try_from(at).unwrap_or_default();
        let name = format!("{stem}-{}{extension}", at.strftime(TIMESTAMP_FORMAT));
        self.config.path.with_file_name(name)
    }

    /// Returns the file name without its extension, and the extension with its dot.
    fn split_file_name(&self) -> (String, String) {
        let name = self.config.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let dot = name.rfind('.').unwrap_or(name.len());
        let (stem, extension) = name.split_at(dot);
        (stem.to_owned(), extension.to_owned())
    }

    /// Removes renamed files that are too old or too many. Files that cannot be removed are tried
    /// again after the next rotation.
    fn remove_old_backups(&self) {
        let mut backups = self.list_backups();
        backups.sort_unstable_by(|one, other| other.cmp(one)); // newest first
        let keep = match self.config.max_backups {
            0 => usize::MAX,
            most => most,
        };
        let oldest = (!self.config.max_age.is_zero())
            .then(|| Clock.wall().checked_sub(self.config.max_age))
            .flatten();
        for (n, (at, path)) in backups.into_iter().enumerate() {
            if n >= keep || oldest.is_some_and(|oldest| SystemTime::from(at) < oldest) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Returns the renamed files, each with the time of its rotation.
    fn list_backups(&self) -> Vec<(Timestamp, PathBuf)> {
        let folder = match self.config.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (stem, extension) = self.split_file_name();
        let Ok(entries) = fs::read_dir(folder) else {
            return Vec::new();
        };
        let backup = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            let at = name
                .strip_prefix(&stem)?
                .strip_prefix('-')?
                .strip_suffix(&extension)?;
            let at = DateTime::strptime(TIMESTAMP_FORMAT, at).ok()?;
            let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp();
            Some((at, path))
        };
        entries
            .filter_map(|entry| backup(entry.ok()?.path()))
            .collect()
    }
}

/// Opens a file for appending, or creates it and its directory.
fn open_append(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(folder)?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"{\"n\":1}\n";

    fn log_file_config(folder: &Path) -> LogFileConfig {
        LogFileConfig {
            path: folder.join("new/audit.log"),
            max_size: 20,
            max_backups: 0,
            max_age: Duration::ZERO,
        }
    }

    /// Names and sizes, by name.
    fn files(config: &LogFileConfig) -> Vec<(String, u64)> {
        let mut files: Vec<_> = fs::read_dir(config.path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, entry.metadata().unwrap().len())
            })
            .collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn a_file_at_its_size_limit_is_renamed_with_a_timestamp() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let mut output = AuditOutput::open(config.clone()).unwrap();
        for _ in 0..5 {
            output.write(LINE).unwrap();
        }
        let files = files(&config);
        let sizes: Vec<_> = files.iter().map(|(_, size)| *size).collect();
        assert_eq!(sizes, [16, 16, 8], "{files:?}");
        assert_eq!(files[2].0, "audit.log");
        for (name, _) in &files[..2] {
            let shape = name.replace(|c: char| c.is_ascii_digit(), "0");
            assert_eq!(shape, "audit-0000-00-00T00-00-00.000.log");
        }
        assert_eq!(output.remaining_bytes(), 12);
    }

    #[test]
    fn an_existing_file_is_appended_to_and_its_size_counts() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        for _ in 0..3 {
            AuditOutput::open(config.clone())
                .unwrap()
                .write(LINE)
                .unwrap();
        }
        let sizes: Vec<_> = files(&config).into_iter().map(|(_, size)| size).collect();
        assert_eq!(sizes, [16, 8]);
    }

    #[test]
    fn a_line_over_the_size_limit_gets_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let mut output = AuditOutput::open(config.clone()).unwrap();
        for line in [LINE, &[b'x'; 100], LINE] {
            output.write(line).unwrap();
        }
        let mut sizes: Vec<_> = files(&config).into_iter().map(|(_, size)| size).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [8, 8, 100]);
    }

    #[test]
    fn a_file_removed_by_another_process_is_created_again_at_the_next_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let mut output = AuditOutput::open(config.clone()).unwrap();
        output.write(LINE).unwrap();
        fs::remove_file(&config.path).unwrap();
        for _ in 0..4 {
            output.write(LINE).unwrap();
        }
        // One line went into the first file; then the file's time had passed.
        assert_eq!(fs::metadata(&config.path).unwrap().len(), 8);
        fs::remove_dir_all(config.path.parent().unwrap()).unwrap();
        for _ in 0..3 {
            output.write(LINE).unwrap();
        }
        assert_eq!(fs::metadata(&config.path).unwrap().len(), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_renamed_grows_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        // With a time in it, the name would exceed the longest file name.
        let long = folder.path().join(format!("{:x<240}.log", ""));
        let config = LogFileConfig {
            path: long.clone(),
            ..log_file_config(folder.path())
        };
        let AuditOutput::File(mut file) = AuditOutput::open(config.clone()).unwrap() else {
            panic!("a file");
        };
        for _ in 0..5 {
            file.write(LINE).unwrap();
        }
        assert_eq!(files(&config).len(), 1);
        assert_eq!(fs::metadata(&long).unwrap().len(), 5 * 8);
        let mut output = AuditOutput::File(file);
        assert_eq!(
            output.remaining_bytes(),
            u64::MAX,
            "lines are still written together"
        );

        // The rename would succeed now, but it is retried only after a minute.
        let AuditOutput::File(file) = &mut output else {
            panic!("a file");
        };
        file.config.path = folder.path().join("audit.log");
        fs::rename(&long, &file.config.path).unwrap();
        tokio::time::advance(ROTATE_RETRY_DELAY - Duration::from_millis(1)).await;
        file.write(LINE).unwrap();
        assert_eq!(files(&config).len(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        file.write(LINE).unwrap();
        let sizes: Vec<_> = files(&config).into_iter().map(|(_, size)| size).collect();
        assert_eq!(sizes, [6 * 8, 8]);
        assert_eq!(output.remaining_bytes(), 12);
    }

    #[test]
    fn only_the_newest_backups_are_kept_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let config = LogFileConfig {
            max_backups: 2,
            ..log_file_config(folder.path())
        };
        drop(AuditOutput::open(config.clone()).unwrap());
        let unrelated = [
            "audit-2020-01-01T00-00-00.000.txt",
            "audit-2020-01-01.log",
            "audit-2020-13-01T00-00-00.000.log",
            "audit.log.1",
            "other-2020-01-01T00-00-00.000.log",
        ];
        let old = [
            "audit-2020-01-01T00-00-00.000.log",
            "audit-2020-01-01T00-00-00.001.log",
            "audit-2019-12-31T23-59-59.999.log",
        ];
        for name in unrelated.iter().chain(&old) {
            fs::write(config.path.with_file_name(name), "x").unwrap();
        }
        drop(AuditOutput::open(config.clone()).unwrap());
        let mut expected: Vec<_> = unrelated.iter().chain(&old[..2]).copied().collect();
        expected.push("audit.log");
        expected.sort_unstable();
        let remaining: Vec<_> = files(&config).into_iter().map(|(name, _)| name).collect();
        assert_eq!(remaining, expected);
    }

    #[test]
    fn backups_over_the_maximum_age_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(24 * 3600);
        let config = LogFileConfig {
            max_age: 7 * day,
            ..log_file_config(folder.path())
        };
        let AuditOutput::File(file) = AuditOutput::open(config.clone()).unwrap() else {
            panic!("a file");
        };
        let now = Clock.wall();
        let (young, old) = (
            file.backup_path(now - 6 * day),
            file.backup_path(now - 8 * day),
        );
        for path in [&young, &old] {
            fs::write(path, "x").unwrap();
        }
        drop(AuditOutput::open(config).unwrap());
        assert!(young.exists());
        assert!(!old.exists());
    }

    #[test]
    fn an_unwritable_path_is_an_error_at_start() {
        let folder = tempfile::tempdir().unwrap();
        let config = LogFileConfig {
            path: folder.path().to_owned(),
            ..log_file_config(folder.path())
        };
        assert!(AuditOutput::open(config).is_err());
    }

    #[test]
    fn the_log_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        drop(AuditOutput::open(config.clone()).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&config.path), 0o600);
        assert_eq!(mode(config.path.parent().unwrap()), 0o700);
    }
}
