//! The destinations of audit events: a file with kube-apiserver's rotation (lumberjack's rules and
//! file names), a pipe, or the standard output.
//!
//! Another process of weir may write to the same file, and rotate it, while one takes over from the
//! other. Another program may move the file (logrotate). The next write then opens a new one at its path, and
//! SIGHUP opens it at once.
//!
//! Only the writer's thread calls this module: everything here may block.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use tracing::warn;

use crate::folder_lock::{FolderLock, LOCK_TIMEOUT};
use crate::rotation::{BackupMaintenance, FILE_MODE, LogFileConfig, compressed_path};
use weir_base::clock::Clock;
use weir_kubernetes::numeric::saturating_u64;

/// Only the owner may list the folder of the log.
const DIR_MODE: u32 = 0o700;

/// Delay after a failed rename, during which the file grows beyond its limit. Retrying sooner would
/// not remove the cause, and each failure logs a line.
const ROTATE_RETRY_DELAY: Duration = Duration::from_secs(60);

/// An open destination.
#[derive(Debug)]
pub enum AuditOutput {
    /// A file.
    File(RotatingFile),
    /// A pipe or a device. It is never rotated. It is opened at the first write, since opening may
    /// wait for a reader.
    Pipe(PathBuf, Option<File>),
    /// The standard output.
    Stdout,
}

impl AuditOutput {
    /// Opens a file or a pipe, depending on what exists at the path.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn open(file: LogFileConfig) -> io::Result<Self> {
        match fs::metadata(&file.path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                Ok(Self::Pipe(file.path, None))
            }
            _ => RotatingFile::open(file).map(Self::File),
        }
    }

    /// Replaces the destination by one that was opened before. The last line of the same file is
    /// continued correctly, and its size is that of now.
    pub fn replace(&mut self, mut new: Self) {
        if let (Self::File(before), Self::File(now)) = (&*self, &mut new)
            && before.config.path == now.config.path
        {
            now.has_partial_line = before.has_partial_line;
            now.size = fs::metadata(&now.config.path).map_or(0, |metadata| metadata.len());
            now.file = None; // it may have been renamed since
            now.maintenance = before.maintenance.clone();
        }
        *self = new;
    }

    /// Opens the file at the path again. A pipe is closed and opened at the next write.
    pub fn reopen(&mut self) {
        match self {
            Self::File(file) => file.reopen(),
            Self::Pipe(_, pipe) => *pipe = None,
            Self::Stdout => {}
        }
    }

    /// Writes whole lines.
    ///
    /// # Errors
    /// Some of the lines may be written nevertheless.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
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

    /// Waits so long for the folder's lock, whatever pauses the process that has it.
    #[cfg(test)]
    pub fn set_lock_timeout(&mut self, limit: Duration) {
        if let Self::File(file) = self {
            file.lock_timeout = limit;
        }
    }

    /// Returns the bytes that fit before the file must be rotated.
    pub fn remaining_bytes(&self) -> u64 {
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
pub struct RotatingFile {
    config: LogFileConfig,
    /// `None` after a failed open or write.
    file: Option<File>,
    size: u64,
    /// The last write ended within a line.
    has_partial_line: bool,
    /// The file could not be renamed. Until this time it is written to whatever its size.
    rotate_retry_at: Option<Instant>,
    /// How long to wait for the folder's lock.
    lock_timeout: Duration,
    maintenance: BackupMaintenance,
}

impl RotatingFile {
    /// The folder must be there: one that is made may be misspelled, and no log is looked for in it.
    /// One that is removed later is made again.
    fn open(config: LogFileConfig) -> io::Result<Self> {
        let folder = config.path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let why = format!("there is no folder {}", folder.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let file = open_append(&config.path)?;
        let size = file.metadata()?.len();
        let opened = Self {
            config,
            file: Some(file),
            size,
            has_partial_line: false,
            rotate_retry_at: None,
            lock_timeout: LOCK_TIMEOUT,
            maintenance: BackupMaintenance::default(),
        };
        opened.maintenance.run(&opened.config);
        Ok(opened)
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let lock = FolderLock::acquire_within(&self.config.path, self.lock_timeout);
        if self.was_moved() {
            self.close();
        }
        let length = saturating_u64(lines.len());
        let size = fs::metadata(&self.config.path).map_or(0, |metadata| metadata.len());
        // Another process may have ended within a line, too.
        self.has_partial_line |= size != self.size && !ends_with_line(&self.config.path);
        self.size = size;
        let too_large = size > 0 && size.saturating_add(length) > self.config.max_size;
        if too_large
            && lock.allows_rotation()
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

    /// Whether the open file is not the one at its path any more.
    fn was_moved(&self) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let open = self.file.as_ref().and_then(|file| file.metadata().ok());
        let at_path = fs::metadata(&self.config.path).ok();
        open.is_some_and(|open| at_path.map(identity) != Some(identity(open)))
    }

    /// Closes the file. The next write opens the one at its path.
    fn close(&mut self) {
        self.file = None;
        self.size = fs::metadata(&self.config.path).map_or(0, |metadata| metadata.len());
        self.has_partial_line = false;
    }

    /// Opens the file at the path, which may be another one than before.
    fn reopen(&mut self) {
        if self.was_moved() {
            self.close();
        }
        match open_append(&self.config.path) {
            Ok(file) => self.file = Some(file),
            Err(why) => {
                warn!(%why, file = %self.config.path.display(), "the audit log's file cannot be opened again; the next event tries again");
                self.file = None;
            }
        }
    }

    /// Renames the file. The next write opens a new one at its path. A file that does not exist was
    /// moved by another process, which has the same effect. A file that cannot be renamed is
    /// written to further.
    fn rotate(&mut self) {
        self.file = None;
        self.rotate_retry_at = None;
        let mut now = Clock.wall();
        let mut old = self.config.backup_path(now);
        while old.exists() || compressed_path(&old).exists() {
            now += Duration::from_millis(1);
            old = self.config.backup_path(now);
        }
        match fs::rename(&self.config.path, old) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => {
                self.rotate_retry_at = Some(Clock.now() + ROTATE_RETRY_DELAY);
                warn!(%why, file = %self.config.path.display(), "the audit log's file cannot be renamed and keeps growing");
            }
            _ => {
                (self.size, self.has_partial_line) = (0, false);
                self.maintenance.run(&self.config);
            }
        }
    }
}

/// Whether the file at `path` ends with the end of a line, as far as it can be read.
fn ends_with_line(path: &Path) -> bool {
    let last_byte = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?; // an error if it is empty
        let mut last = [0];
        file.read_exact(&mut last)?;
        Ok::<_, io::Error>(last)
    };
    last_byte().map_or(true, |last| last == *b"\n")
}

/// Opens a file for appending, or creates it and its folder.
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
            path: folder.join("audit.log"),
            max_size: 20,
            max_backups: 0,
            max_age: Duration::ZERO,
            compress: false,
        }
    }

    /// Names and sizes, by name, without files that are removed meanwhile.
    fn files(config: &LogFileConfig) -> Vec<(String, u64)> {
        let mut files: Vec<_> = fs::read_dir(config.path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter_map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                Some((name, entry.metadata().ok()?.len()))
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
    fn a_file_that_another_process_has_moved_or_removed_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let mut output = AuditOutput::open(config.clone()).unwrap();
        output.write(LINE).unwrap();
        let moved = config.path.with_file_name("audit.log.1");
        fs::rename(&config.path, &moved).unwrap();
        output.write(LINE).unwrap();
        let sizes = |names: [&Path; 2]| names.map(|name| fs::metadata(name).unwrap().len());
        assert_eq!(sizes([&moved, &config.path]), [8, 8]);
        fs::remove_dir_all(config.path.parent().unwrap()).unwrap();
        for _ in 0..3 {
            output.write(LINE).unwrap();
        }
        assert_eq!(fs::metadata(&config.path).unwrap().len(), 8, "rotated once");
    }

    #[test]
    fn an_empty_file_in_the_place_of_a_moved_one_is_not_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let mut output = AuditOutput::open(config.clone()).unwrap();
        output.write(LINE).unwrap();
        output.write(LINE).unwrap();
        fs::rename(&config.path, config.path.with_file_name("audit.log.1")).unwrap();
        fs::write(&config.path, "").unwrap(); // as logrotate's `create`
        output.write(LINE).unwrap();
        let expected = [("audit.log".to_owned(), 8), ("audit.log.1".to_owned(), 16)];
        assert_eq!(files(&config), expected);
    }

    #[test]
    fn reopening_creates_the_file_and_lets_go_of_the_moved_one() {
        let folder = tempfile::tempdir().unwrap();
        let config = log_file_config(folder.path());
        let AuditOutput::File(mut file) = AuditOutput::open(config.clone()).unwrap() else {
            panic!("a file");
        };
        file.write(LINE).unwrap();
        fs::rename(&config.path, config.path.with_file_name("audit.log.1")).unwrap();
        file.reopen();
        assert_eq!(fs::metadata(&config.path).unwrap().len(), 0);
        assert!(!file.was_moved());
        file.write(LINE).unwrap();
        let expected = [("audit.log".to_owned(), 8), ("audit.log.1".to_owned(), 8)];
        assert_eq!(files(&config), expected);
    }

    #[test]
    fn rotated_files_are_compressed_and_count_as_backups() {
        let folder = tempfile::tempdir().unwrap();
        let config = LogFileConfig {
            compress: true,
            max_backups: 2,
            ..log_file_config(folder.path())
        };
        // Left by a process that was killed while it compressed: the copy is not complete.
        let killed = "audit-2020-01-01T00-00-00.000.log";
        for name in [killed.to_owned(), format!("{killed}.gz")] {
            fs::write(config.path.with_file_name(name), LINE).unwrap();
        }
        let old = "audit-2019-12-31T23-59-59.999.log.gz";
        fs::write(config.path.with_file_name(old), "x").unwrap();
        let mut output = AuditOutput::open(config.clone()).unwrap();
        wait_for(
            || names(&config),
            |names| !names.contains(&killed.to_owned()),
        );
        assert_eq!(
            read_gzip(&config.path.with_file_name(format!("{killed}.gz"))),
            LINE
        );
        for _ in 0..4 {
            output.write(LINE).unwrap();
        }
        let is_compressed = |names: &Vec<String>| {
            let rotated = names.iter().filter(|name| *name != "audit.log");
            names.len() == 3 && rotated.clone().all(|name| name.ends_with(".log.gz"))
        };
        let names = wait_for(|| names(&config), is_compressed);
        assert!(!names.contains(&old.to_owned()), "{names:?}");
        assert_eq!(
            read_gzip(&config.path.with_file_name(&names[1])),
            [LINE, LINE].concat()
        );
    }

    fn names(config: &LogFileConfig) -> Vec<String> {
        files(config).into_iter().map(|(name, _)| name).collect()
    }

    fn read_gzip(path: &Path) -> Vec<u8> {
        let mut text = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(File::open(path).unwrap());
        Read::read_to_end(&mut decoder, &mut text).unwrap();
        text
    }

    /// What `read` returns, once it is as `expected`: another thread makes it so.
    fn wait_for<T: std::fmt::Debug>(read: impl Fn() -> T, expected: impl Fn(&T) -> bool) -> T {
        let end = Clock.now() + Duration::from_secs(30);
        loop {
            let value = read();
            if expected(&value) {
                return value;
            }
            assert!(Clock.now() < end, "{value:?}");
            std::thread::yield_now();
        }
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
        drop(AuditOutput::open(config.clone()).unwrap());
        let now = Clock.wall();
        let (young, old) = (
            config.backup_path(now - 6 * day),
            config.backup_path(now - 8 * day),
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
        let folder = config.path.parent().unwrap();
        fs::remove_dir_all(folder).unwrap();
        drop(open_append(&config.path).unwrap());
        assert_eq!(mode(folder), 0o700);
    }

    #[test]
    fn a_folder_that_is_missing_at_the_start_is_an_error_and_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("misspelled");
        let config = LogFileConfig {
            path: missing.join("audit.log"),
            ..log_file_config(folder.path())
        };
        let why = AuditOutput::open(config).err().unwrap().to_string();
        assert_eq!(why, format!("there is no folder {}", missing.display()));
        assert!(!missing.exists());
    }
}
