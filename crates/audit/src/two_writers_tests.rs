//! Two writers of one audit log, as the two processes of a hand-over.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

use flate2::read::GzDecoder;

use crate::output::AuditOutput;
use crate::rotation::LogFileConfig;
use weir_base::clock::Clock;

/// Longer than any pause of the machine: without the lock a file is not rotated.
const PATIENCE: Duration = Duration::from_secs(300);

/// Lines of each writer.
const LINES: usize = 400;

fn config(folder: &Path, max_size: u64, compress: bool) -> LogFileConfig {
    LogFileConfig {
        path: folder.join("audit.log"),
        max_size,
        max_backups: 0,
        max_age: Duration::ZERO,
        compress,
    }
}

/// The files of the log in the order of their rotation.
fn files(config: &LogFileConfig) -> Vec<PathBuf> {
    let entries = fs::read_dir(config.path.parent().unwrap()).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable(); // audit-TIME.log is before audit.log
    files
}

fn read(path: &Path) -> String {
    let (mut text, mut file) = (String::new(), File::open(path).unwrap());
    if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
    } else {
        file.read_to_string(&mut text).unwrap();
    }
    text
}

/// Waits until each renamed file is compressed. Each copy is synced: a busy disk takes a while.
fn wait_for_compression(config: &LogFileConfig) {
    let end = Clock.now() + PATIENCE;
    let is_left = |path: &PathBuf| {
        *path != config.path && path.extension().is_some_and(|extension| extension == "log")
    };
    while files(config).iter().any(is_left) {
        assert!(Clock.now() < end, "{:?}", files(config));
        thread::yield_now();
    }
}

#[test]
fn two_writers_lose_and_mix_no_lines_however_often_they_rotate() {
    const MAX_SIZE: usize = 60;
    for compress in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), MAX_SIZE.try_into().unwrap(), compress);
        thread::scope(|scope| {
            for writer in ["old", "new"] {
                let mut output = AuditOutput::open(config.clone()).unwrap();
                output.set_lock_timeout(PATIENCE);
                scope.spawn(move || {
                    for n in 0..LINES {
                        output
                            .write(format!("{writer} {n:04}\n").as_bytes())
                            .unwrap();
                    }
                });
            }
        });
        if compress {
            wait_for_compression(&config);
        }
        let mut text = String::new();
        for path in files(&config) {
            let part = read(&path);
            assert!(
                part.ends_with('\n') && part.len() <= MAX_SIZE,
                "{path:?}: {part}"
            );
            text += &part;
        }
        for writer in ["old", "new"] {
            let lines: Vec<_> = text
                .lines()
                .filter(|line| line.starts_with(writer))
                .collect();
            let expected: Vec<_> = (0..LINES).map(|n| format!("{writer} {n:04}")).collect();
            assert_eq!(
                lines, expected,
                "once each, in order (compress: {compress})"
            );
        }
        assert_eq!(text.lines().count(), 2 * LINES);
    }
}

#[test]
fn a_line_that_another_writer_could_not_finish_is_ended_first() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 1000, false);
    let mut output = AuditOutput::open(config.clone()).unwrap();
    output.write(b"one\n").unwrap();
    let other = OpenOptions::new().append(true).open(&config.path);
    other.unwrap().write_all(b"two\nthr").unwrap();
    output.write(b"four\n").unwrap();
    output.write(b"five\n").unwrap();
    assert_eq!(read(&config.path), "one\ntwo\nthr\nfour\nfive\n");
}
