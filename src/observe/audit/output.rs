//! Where lines go: a file that is rotated as kube-apiserver's is (lumberjack's rules and names), a pipe, or the standard output.
//!
//! Used by the writer's own thread: everything here may block.

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

/// Who may read the log: it names users and what they do.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// Go's `2006-01-02T15-04-05.000`.
const TIMESTAMP_FORMAT: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// How long a file that could not be renamed goes on growing until that is tried again: whoever is in the way of it is not gone
/// sooner, and each try that fails is a line in the log.
const ROTATE_RETRY_DELAY: Duration = Duration::from_secs(60);

/// A file, and what becomes of it when it has grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileConfig {
    /// `--audit-log-path`.
    pub path: PathBuf,
    /// `--audit-log-maxsize`, in bytes: before it would be larger, it is renamed and another begun.
    pub max_size: u64,
    /// `--audit-log-maxbackup`: how many of the renamed are kept; 0 is any number.
    pub max_backups: usize,
    /// `--audit-log-maxage`: how long they are kept; zero is for ever.
    pub max_age: Duration,
}

/// Where lines are written.
#[derive(Debug)]
pub(super) enum AuditOutput {
    File(RotatingFile),
    /// A pipe or a device: never rotated, and opened when there is something to write, since that may wait for a reader.
    Pipe(PathBuf, Option<File>),
    Stdout,
}

impl AuditOutput {
    /// To a file or a pipe, depending on what is there.
    ///
    /// # Errors
    /// It cannot be opened or made.
    pub(super) fn open(file: LogFileConfig) -> io::Result<Self> {
        match fs::metadata(&file.path) {
            Ok(there) if !there.is_file() && !there.is_dir() => Ok(Self::Pipe(file.path, None)),
            _ => RotatingFile::open(file).map(Self::File),
        }
    }

    /// Writes whole lines.
    ///
    /// # Errors
    /// Some of them may have been written all the same.
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

    /// How many more bytes go there before anything has to be done first.
    pub(super) fn remaining_bytes(&self) -> u64 {
        match self {
            Self::File(file) if file.rotate_retry_at.is_none() => {
                file.config.max_size.saturating_sub(file.size)
            }
            Self::File(_) | Self::Pipe(..) | Self::Stdout => u64::MAX,
        }
    }
}

/// A file that is renamed when it has grown.
#[derive(Debug)]
pub(super) struct RotatingFile {
    config: LogFileConfig,
    /// `None` after an attempt that failed.
    file: Option<File>,
    size: u64,
    /// A write broke off within a line.
    has_partial_line: bool,
    /// It could not be renamed, and is written to until then whatever its size.
    rotate_retry_at: Option<Instant>,
}

impl RotatingFile {
    fn open(rules: LogFileConfig) -> io::Result<Self> {
        let file = open_append(&rules.path)?;
        let size = file.metadata()?.len();
        let opened = Self {
            config: rules,
            file: Some(file),
            size,
            has_partial_line: false,
            rotate_retry_at: None,
        };
        opened.remove_old_backups();
        Ok(opened)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = u64::try_from(lines.len()).unwrap_or(u64::MAX);
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

    /// Renames the file; the next write opens what is at its path then. A file that is gone has been moved away by somebody
    /// else, which is as good; one that cannot be renamed is written to further on.
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
                warn!(%why, file = %self.config.path.display(), "the audit log's file cannot be renamed and goes on growing");
            }
            _ => {
                (self.size, self.has_partial_line) = (0, false);
                self.remove_old_backups();
            }
        }
    }

    /// `audit.log` as it is called once it is renamed: `audit-2026-11-21T19-04-05.123.log`, in UTC.
    fn backup_path(&self, at: SystemTime) -> PathBuf {
        let (stem, extension) = self.split_file_name();
        let at = Timestamp::try_from(at).unwrap_or_default();
        let name = format!("{stem}-{}{extension}", at.strftime(TIMESTAMP_FORMAT));
        self.config.path.with_file_name(name)
    }

    /// The file's name up to its extension, and that with its dot.
    fn split_file_name(&self) -> (String, String) {
        let name = self.config.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let dot = name.rfind('.').unwrap_or(name.len());
        let (stem, extension) = name.split_at(dot);
        (stem.to_owned(), extension.to_owned())
    }

    /// Removes what is too old or too much of the renamed. What cannot be removed is tried again after the next time.
    fn remove_old_backups(&self) {
        let mut backups = self.list_backups();
        backups.sort_unstable_by(|one, other| other.cmp(one)); // the newest first
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

    /// The renamed, and when that was.
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

/// Opens a file, or makes it and its folder.
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
    fn files(rules: &LogFileConfig) -> Vec<(String, u64)> {
        let mut files: Vec<_> = fs::read_dir(rules.path.parent().unwrap())
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
        let rules = log_file_config(folder.path());
        let mut output = AuditOutput::open(rules.clone()).unwrap();
        for _ in 0..5 {
            output.write(LINE).unwrap();
        }
        let files = files(&rules);
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
        let rules = log_file_config(folder.path());
        for _ in 0..3 {
            AuditOutput::open(rules.clone())
                .unwrap()
                .write(LINE)
                .unwrap();
        }
        let sizes: Vec<_> = files(&rules).into_iter().map(|(_, size)| size).collect();
        assert_eq!(sizes, [16, 8]);
    }

    #[test]
    fn a_line_over_the_size_limit_gets_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let rules = log_file_config(folder.path());
        let mut output = AuditOutput::open(rules.clone()).unwrap();
        for line in [LINE, &[b'x'; 100], LINE] {
            output.write(line).unwrap();
        }
        let mut sizes: Vec<_> = files(&rules).into_iter().map(|(_, size)| size).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [8, 8, 100]);
    }

    #[test]
    fn a_file_removed_by_another_process_is_created_again_at_the_next_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let rules = log_file_config(folder.path());
        let mut output = AuditOutput::open(rules.clone()).unwrap();
        output.write(LINE).unwrap();
        fs::remove_file(&rules.path).unwrap();
        for _ in 0..4 {
            output.write(LINE).unwrap();
        }
        // One went where the first did; then the file's time was over.
        assert_eq!(fs::metadata(&rules.path).unwrap().len(), 8);
        fs::remove_dir_all(rules.path.parent().unwrap()).unwrap();
        for _ in 0..3 {
            output.write(LINE).unwrap();
        }
        assert_eq!(fs::metadata(&rules.path).unwrap().len(), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_renamed_grows_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        // With a time in it, its name would be longer than names may be.
        let long = folder.path().join(format!("{:x<240}.log", ""));
        let rules = LogFileConfig {
            path: long.clone(),
            ..log_file_config(folder.path())
        };
        let AuditOutput::File(mut file) = AuditOutput::open(rules.clone()).unwrap() else {
            panic!("a file");
        };
        for _ in 0..5 {
            file.write(LINE).unwrap();
        }
        assert_eq!(files(&rules).len(), 1);
        assert_eq!(fs::metadata(&long).unwrap().len(), 5 * 8);
        let mut output = AuditOutput::File(file);
        assert_eq!(
            output.remaining_bytes(),
            u64::MAX,
            "lines are still written together"
        );

        // Now it could be; it is tried after a minute, and not before.
        let AuditOutput::File(file) = &mut output else {
            panic!("a file");
        };
        file.config.path = folder.path().join("audit.log");
        fs::rename(&long, &file.config.path).unwrap();
        tokio::time::advance(ROTATE_RETRY_DELAY - Duration::from_millis(1)).await;
        file.write(LINE).unwrap();
        assert_eq!(files(&rules).len(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        file.write(LINE).unwrap();
        let sizes: Vec<_> = files(&rules).into_iter().map(|(_, size)| size).collect();
        assert_eq!(sizes, [6 * 8, 8]);
        assert_eq!(output.remaining_bytes(), 12);
    }

    #[test]
    fn only_the_newest_backups_are_kept_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let rules = LogFileConfig {
            max_backups: 2,
            ..log_file_config(folder.path())
        };
        drop(AuditOutput::open(rules.clone()).unwrap());
        let others = [
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
        for name in others.iter().chain(&old) {
            fs::write(rules.path.with_file_name(name), "x").unwrap();
        }
        drop(AuditOutput::open(rules.clone()).unwrap());
        let mut expected: Vec<_> = others.iter().chain(&old[..2]).copied().collect();
        expected.push("audit.log");
        expected.sort_unstable();
        let left: Vec<_> = files(&rules).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn backups_over_the_maximum_age_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(24 * 3600);
        let rules = LogFileConfig {
            max_age: 7 * day,
            ..log_file_config(folder.path())
        };
        let AuditOutput::File(file) = AuditOutput::open(rules.clone()).unwrap() else {
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
        drop(AuditOutput::open(rules).unwrap());
        assert!(young.exists());
        assert!(!old.exists());
    }

    #[test]
    fn an_unwritable_path_is_an_error_at_start() {
        let folder = tempfile::tempdir().unwrap();
        let rules = LogFileConfig {
            path: folder.path().to_owned(),
            ..log_file_config(folder.path())
        };
        assert!(AuditOutput::open(rules).is_err());
    }

    #[test]
    fn the_log_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let rules = log_file_config(folder.path());
        drop(AuditOutput::open(rules.clone()).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&rules.path), 0o600);
        assert_eq!(mode(rules.path.parent().unwrap()), 0o700);
    }
}
