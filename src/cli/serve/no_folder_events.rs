//! Systems without inotify: files are looked at every second.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use crate::cli::serve::watched_paths::WatchedPaths;

/// There are none.
#[derive(Debug)]
pub(super) enum FolderEvents {}

impl FolderEvents {
    /// # Errors
    /// Always.
    pub(super) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn watch(&mut self, _: &BTreeSet<PathBuf>) -> io::Result<()> {
        match *self {}
    }

    pub(super) async fn wait_for_change(&mut self, _: &WatchedPaths) -> io::Result<()> {
        match *self {}
    }
}
