//! Waits for changes of files: by inotify, or by looking every second where that is not possible.
//!
//! An event is only a hint. The caller compares the contents.

use std::fmt::Display;
use std::future::pending;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;
use tracing::warn;

use crate::cli::serve::folder_events::FolderEvents;
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
    events: Option<FolderEvents>,
    paths: WatchedPaths,
    polls: bool,
}

impl FileWatcher {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        let mut this = Self {
            events: None,
            paths: WatchedPaths::default(),
            polls: false,
        };
        match FolderEvents::new() {
            Ok(events) => this.events = Some(events),
            Err(why) => this.poll_instead(&why),
        }
        this
    }

    /// Watches these files and folders, and no others.
    pub(super) fn watch<'p>(&mut self, files: impl Iterator<Item = &'p Path>) {
        self.paths = WatchedPaths::of(files);
        let Some(events) = &mut self.events else {
            return;
        };
        match events.watch(&self.paths.folders) {
            Err(why) => self.poll_instead(&why),
            Ok(()) => self.polls = false,
        }
    }

    /// Waits until files may have changed, and then until they are complete.
    ///
    /// # Cancel safety
    /// An event that arrives while nothing waits is kept. One that has been received is lost: the
    /// caller checks the files whenever the wait ends.
    pub(super) async fn changed(&mut self) {
        let interval = if self.polls {
            POLL_INTERVAL
        } else {
            RECHECK_INTERVAL
        };
        if timeout(interval, self.wait_for_event()).await.is_err() {
            return;
        }
        let quiet = async { while timeout(QUIET, self.wait_for_event()).await.is_ok() {} };
        let _ = timeout(MAX_SETTLE, quiet).await;
    }

    /// Waits for an event. That events can no longer be read is one, too.
    async fn wait_for_event(&mut self) {
        let Some(events) = &mut self.events else {
            return pending().await;
        };
        if let Err(why) = events.wait_for_change(&self.paths).await {
            self.events = None;
            self.poll_instead(&why);
        }
    }

    fn poll_instead(&mut self, why: &dyn Display) {
        if !self.polls {
            warn!(
                "the files of the configuration cannot be watched, and are looked at every second: {why}"
            );
        }
        self.polls = true;
    }
}
