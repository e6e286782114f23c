//! The lock under which the audit log is written and rotated. During a hand-over two processes of
//! weir write to the same log.
//!
//! Without it, one could write to a file that the other has just renamed and compresses, or rename
//! two files to the same name. The lock is that of the folder (`flock(2)`), so that it adds no file of
//! its own, and it ends with its process.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use weir_base::clock::Clock;

/// How long to wait for the lock. Another process of weir holds it for one write of 64 KiB. If
/// anything else holds it for longer, events are written without it.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two attempts.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// The lock of a folder. Released on drop.
#[derive(Debug)]
pub(crate) enum FolderLock {
    /// The lock is held, as long as the file is open.
    Held { _folder: File },
    /// There is no such folder, or its file system has no locks.
    Unsupported,
    /// Another process holds the lock.
    Busy,
}

impl FolderLock {
    /// Locks the folder of the file at `path`. Blocks for `limit` at most.
    pub(crate) fn acquire_within(path: &Path, limit: Duration) -> Self {
        let Ok(folder) = File::open(folder_of(path)) else {
            return Self::Unsupported;
        };
        let end = Clock.now() + limit;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Self::Held { _folder: folder },
                Err(Errno::WOULDBLOCK | Errno::INTR) if Clock.now() < end => {
                    thread::sleep(LOCK_RETRY);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Self::Busy,
                Err(_) => return Self::Unsupported,
            }
        }
    }

    /// Whether files may be renamed: not while another process may write to them.
    pub(crate) const fn allows_rotation(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Unsupported)
    }
}

/// The folder of the file at `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_the_lock_at_a_time_and_a_missing_folder_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let acquire_within =
            |name: &str, limit| FolderLock::acquire_within(&folder.path().join(name), limit);
        let acquire = |name: &str| acquire_within(name, Duration::ZERO);
        let held = acquire("audit.log");
        assert!(matches!(held, FolderLock::Held { .. }) && held.allows_rotation());
        let second = acquire("other.log");
        assert!(matches!(second, FolderLock::Busy) && !second.allows_rotation());
        drop(held);
        // A program that another test starts at this moment has the lock until it runs.
        let again = acquire_within("audit.log", Duration::from_secs(40));
        assert!(matches!(again, FolderLock::Held { .. }));
        let missing = acquire("missing/audit.log");
        assert!(matches!(missing, FolderLock::Unsupported) && missing.allows_rotation());
    }
}
