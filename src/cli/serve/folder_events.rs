//! What happens in watched folders, by inotify. Other systems than Linux have none of it here.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use futures_util::StreamExt;
use inotify::EventMask;
use inotify::EventOwned;
use inotify::EventStream;
use inotify::Inotify;
use inotify::WatchDescriptor;
use inotify::WatchMask;

use crate::cli::serve::watched_paths::WatchedPaths;

/// The bytes of events that are read at once: more than a dozen of the longest names.
const BUFFER: usize = 4 << 10;

/// The events of a folder that may mean that a file has changed. `MODIFY` and `OPEN` are not among
/// them: they would wake weir for each line of a log in the same folder. A file that is written is
/// closed some time.
const CHANGES: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::MOVE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF);

/// The events of the watched folders.
#[derive(Debug)]
pub(super) struct FolderEvents {
    stream: EventStream<Vec<u8>>,
    /// Two names of a folder have one descriptor.
    folders: Vec<(WatchDescriptor, PathBuf)>,
}

impl FolderEvents {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The system has no inotify instance to give.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            stream: Inotify::init()?.into_event_stream(vec![0; BUFFER])?,
            folders: Vec::new(),
        })
    }

    /// Watches these folders and no others.
    ///
    /// # Errors
    /// The last folder's that cannot be watched. The others are.
    pub(super) fn watch(&mut self, folders: &BTreeSet<PathBuf>) -> io::Result<()> {
        let mut watches = self.stream.watches();
        let mut result = Ok(());
        let mut watched = Vec::new();
        // All of them again: a folder may have been removed and made anew under the same name.
        for folder in folders {
            match watches.add(folder, CHANGES) {
                Ok(descriptor) => watched.push((descriptor, folder.clone())),
                Err(why) => result = Err(why),
            }
        }
        for (old, _) in std::mem::replace(&mut self.folders, watched) {
            if !self.folders.iter().any(|(watched, _)| *watched == old) {
                let _ = watches.remove(old); // the folder may have been removed
            }
        }
        result
    }

    /// Waits for an event that may mean a change of one of the files.
    ///
    /// # Errors
    /// Events cannot be read any more.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub(super) async fn wait_for_change(&mut self, paths: &WatchedPaths) -> io::Result<()> {
        loop {
            let event = self.stream.next().await;
            let event = event.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
            if self.is_relevant(&event, paths) {
                return Ok(());
            }
        }
    }

    fn is_relevant(&self, event: &EventOwned, paths: &WatchedPaths) -> bool {
        let is_of = |(descriptor, folder): &(WatchDescriptor, PathBuf)| {
            let path = match &event.name {
                Some(name) => folder.join(name),
                None => folder.clone(),
            };
            *descriptor == event.wd && paths.contains(&path)
        };
        event.mask.contains(EventMask::Q_OVERFLOW) || self.folders.iter().any(is_of)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use futures_util::FutureExt;

    use super::*;

    fn watching(files: &[&Path]) -> (FolderEvents, WatchedPaths) {
        let paths = WatchedPaths::of(files.iter().copied());
        let mut events = FolderEvents::new().unwrap();
        events.watch(&paths.folders).unwrap();
        (events, paths)
    }

    #[tokio::test]
    async fn a_log_in_the_same_folder_causes_no_event_for_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let mut log = fs::File::create(folder.path().join("audit.log")).unwrap();
        let (mut events, _) = watching(&[&file]);
        for _ in 0..100 {
            log.write_all(b"a line\n").unwrap();
        }
        fs::write(&file, "").unwrap();
        let first = events.stream.next().await.unwrap().unwrap();
        assert_eq!(first.name, Some("weir.yaml".into()), "{first:?}");
    }

    #[tokio::test]
    async fn each_kind_of_change_is_an_event() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let other = folder.path().join("weir.yaml.new");
        fs::write(&file, "").unwrap();
        let (mut events, paths) = watching(&[&file]);
        let written = || fs::write(&file, "a").unwrap();
        let renamed = || {
            fs::write(&other, "b").unwrap();
            fs::rename(&other, &file).unwrap();
        };
        let removed = || fs::remove_file(&file).unwrap();
        let linked = || symlink(&other, &file).unwrap();
        let changes: [(&str, &dyn Fn()); 4] = [
            ("written", &written),
            ("renamed", &renamed),
            ("removed", &removed),
            ("linked", &linked),
        ];
        for (name, change) in changes {
            while events.wait_for_change(&paths).now_or_never().is_some() {}
            change();
            events.wait_for_change(&paths).await.expect(name);
        }
    }

    #[tokio::test]
    async fn a_folder_that_was_made_anew_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        let file = folder.join("weir.yaml");
        fs::create_dir(&folder).unwrap();
        let (mut events, paths) = watching(&[&file]);
        fs::remove_dir(&folder).unwrap();
        events.wait_for_change(&paths).await.unwrap();
        fs::create_dir(&folder).unwrap();
        events.watch(&paths.folders).unwrap();
        fs::write(&file, "").unwrap();
        events.wait_for_change(&paths).await.unwrap();
        assert_eq!(events.folders.len(), 1);
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_an_error_and_the_others_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let (mut events, paths) = watching(&[&file]);
        let missing = folder.path().join("missing");
        let both = [missing, folder.path().to_owned()].into();
        assert!(events.watch(&both).is_err());
        fs::write(&file, "").unwrap();
        events.wait_for_change(&paths).await.unwrap();
    }
}
