//! Waits for changes of files: by inotify, or by looking every second where that is not possible.
//!
//! An event is only a hint. The caller compares the contents.

use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::Event;
use notify::EventKind;
use notify::RecommendedWatcher;
use notify::RecursiveMode;
use notify::Watcher;
use notify::event::AccessKind;
use notify::event::AccessMode;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::cli::serve::watched_paths::WatchedPaths;

/// Files are complete when nothing has changed for this long: long enough for a copy of a few
/// files.
const QUIET: Duration = Duration::from_millis(100);

/// The longest wait for [`QUIET`]: a change has to be in force within a second.
const MAX_SETTLE: Duration = Duration::from_millis(500);

/// How often files are looked at that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often watched files are looked at: no event comes from a network file system on which
/// another machine writes.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Watches the files of the configuration.
#[derive(Debug)]
pub(super) struct FileWatcher {
    /// `None` if the system has no watches to give.
    watcher: Option<RecommendedWatcher>,
    folders: BTreeSet<PathBuf>,
    /// Locked to replace it, and by the watcher's thread for each event.
    paths: Arc<Mutex<WatchedPaths>>,
    changed: Arc<Notify>,
    polls: bool,
}

impl FileWatcher {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        let changed = Arc::<Notify>::default();
        let paths = Arc::<Mutex<WatchedPaths>>::default();
        let (notified, relevant) = (Arc::clone(&changed), Arc::clone(&paths));
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| !is_relevant(&event, &relevant.lock())) {
                return;
            }
            notified.notify_one(); // after an error, too: events may be lost
        });
        let mut this = Self {
            watcher: None,
            folders: BTreeSet::new(),
            paths,
            changed,
            polls: false,
        };
        match watcher {
            Ok(watcher) => this.watcher = Some(watcher),
            Err(why) => this.poll_instead(&why),
        }
        this
    }

    /// Watches these files and folders, and no others.
    pub(super) fn watch<'p>(&mut self, files: impl Iterator<Item = &'p Path>) {
        let paths = WatchedPaths::of(files);
        let folders = paths.folders.clone();
        *self.paths.lock() = paths;
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for gone in self.folders.difference(&folders) {
            let _ = watcher.unwatch(gone); // it may have been removed
        }
        let mut failure = None;
        // All of them again: a folder may have been removed and made anew under the same name.
        for folder in &folders {
            if let Err(why) = watcher.watch(folder, RecursiveMode::NonRecursive) {
                failure = Some(why);
            }
        }
        self.folders = folders;
        match failure {
            Some(why) => self.poll_instead(&why),
            None => self.polls = false,
        }
    }

    /// Waits until files may have changed, and then until they are complete.
    ///
    /// # Cancel safety
    /// An event that arrives while nothing waits is kept. One that has been received is lost: the
    /// caller checks the files whenever the wait ends.
    pub(super) async fn changed(&self) {
        let interval = if self.polls {
            POLL_INTERVAL
        } else {
            RECHECK_INTERVAL
        };
        if timeout(interval, self.changed.notified()).await.is_err() {
            return;
        }
        let quiet = async { while timeout(QUIET, self.changed.notified()).await.is_ok() {} };
        let _ = timeout(MAX_SETTLE, quiet).await;
    }

    fn poll_instead(&mut self, why: &notify::Error) {
        if !self.polls {
            warn!(
                "the files of the configuration cannot be watched, and are looked at every second: {why}"
            );
        }
        self.polls = true;
    }
}

/// Whether an event may mean a change of one of the files. weir's own reading causes events, too.
fn is_relevant(event: &Event, paths: &WatchedPaths) -> bool {
    let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let is_change = !event.kind.is_access() || event.kind == written;
    is_change
        && (event.need_rescan()
            || event.paths.is_empty()
            || event.paths.iter().any(|path| paths.contains(path)))
}
