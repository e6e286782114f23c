//! Whether the files of the configuration have changed, by a look at their metadata each second.
//!
//! The look follows links, so it sees when Kubernetes replaces the `..data` of a volume. It costs
//! one system call a file, also where the kernel could not tell of changes, as on a network file
//! system. A change is only a hint. The caller compares the contents.
//!
//! Contents are compared by digest, since a file may be written again as it was. Events of the
//! kernel cost more: they follow no links, do not come from network file systems, have their own
//! limits, and those of a folder tell of other files, too. (With events, a log in the folder of the
//! certificates caused half a context switch for each rejection.)

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between two looks. A change counts after two: it is in force within two seconds.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What shows that a file, or the list of a folder's entries, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    /// In seconds and nanoseconds.
    modified: (i64, i64),
    /// Likewise. Changes also when a copy keeps the time of the original.
    status_changed: (i64, i64),
}

impl FileState {
    /// `None` if there is no such file, or nothing can be known of it.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            status_changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// The files and folders of the configuration at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileStates(BTreeMap<PathBuf, Option<FileState>>);

impl FileStates {
    /// Looks at the files. Blocks.
    pub(super) fn of<'p>(paths: impl Iterator<Item = &'p Path>) -> Self {
        Self(
            paths
                .map(|path| (path.to_owned(), FileState::of(path)))
                .collect(),
        )
    }
}

/// Finds changes that are complete.
#[derive(Debug, Default)]
pub(super) struct FileWatcher {
    last: FileStates,
    /// The last ones that were returned as changed.
    reported: FileStates,
}

impl FileWatcher {
    /// Whether the files have changed since this was last true, and are as at the look before: a
    /// file that is being written does not count yet. A change after that has another time, however
    /// coarse the file system's clock (down to a second).
    pub(super) fn has_changed(&mut self, now: FileStates) -> bool {
        let is_complete = now == self.last;
        self.last = now;
        if !is_complete || self.last == self.reported {
            return false;
        }
        self.reported = self.last.clone();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_change_counts_once_and_when_it_has_lasted_for_a_look() {
        let states = |size| {
            let state = FileState {
                device: 1,
                inode: 2,
                size,
                modified: (3, 4),
                status_changed: (5, 6),
            };
            FileStates([(PathBuf::from("weir.yaml"), Some(state))].into())
        };
        let mut watcher = FileWatcher::default();
        let looks = [
            (7, false),
            (7, true), // before the first look, too
            (7, false),
            (8, false),
            (9, false), // is being written
            (9, true),
            (9, false),
            (8, false),
            (9, false), // as before
        ];
        for (n, (size, expected)) in looks.into_iter().enumerate() {
            assert_eq!(watcher.has_changed(states(size)), expected, "look {n}");
        }
    }

    /// Replaces the file of a folder as Kubernetes does in the volume of a Secret.
    fn set_version(mount: &Path, version: &str) {
        fs::create_dir(mount.join(version)).unwrap();
        fs::write(mount.join(version).join("tls.crt"), "same").unwrap();
        symlink(version, mount.join("..new")).unwrap();
        fs::rename(mount.join("..new"), mount.join("..data")).unwrap();
    }

    #[test]
    fn each_kind_of_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let file = root.join("weir.yaml");
        let other = root.join("other");
        let manifests = root.join("manifests");
        fs::create_dir(&manifests).unwrap();
        let mounted = manifests.join("tls.crt");
        set_version(&manifests, "..1");
        symlink("..data/tls.crt", &mounted).unwrap();
        let paths = [&*file, &manifests, &mounted];
        let created = || fs::write(&file, "a").unwrap();
        let written = || fs::write(&file, "ab").unwrap();
        let touched = || {
            let file = File::options().write(true).open(&file).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        let renamed = || {
            fs::write(&other, "cd").unwrap();
            fs::rename(&other, &file).unwrap();
        };
        let removed = || fs::remove_file(&file).unwrap();
        let linked = || symlink("manifests/tls.crt", &file).unwrap();
        let swapped = || set_version(&manifests, "..2");
        let changes: [(&str, &dyn Fn()); 7] = [
            ("created", &created),
            ("written", &written),
            ("touched", &touched),
            ("renamed", &renamed),
            ("removed", &removed),
            ("linked", &linked),
            ("swapped", &swapped),
        ];
        let look = || FileStates::of(paths.into_iter());
        let mut before = look();
        for (name, change) in changes {
            change();
            let after = look();
            assert_ne!(before, after, "{name}");
            assert_eq!(after, look(), "{name}");
            before = after;
        }
        assert_eq!(
            before.0[&file], before.0[&mounted],
            "the end of all links counts"
        );
    }

    #[test]
    fn a_new_entry_of_a_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap();
        opened.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let look = || FileStates::of([folder.path()].into_iter());
        let before = look();
        fs::write(folder.path().join("new.yaml"), "").unwrap();
        assert_ne!(look(), before);
    }
}
