//! Watches: the existing objects, if requested, and then every change, until either side ends the
//! watch.
//!
//! Follows `cacher.Watch`. Without a version, or with version 0, a watch begins with an ADDED event
//! for every existing object. With `sendInitialEvents` a bookmark ends these events. With a version
//! the watch begins with the changes since that version. If the version is no longer in the log,
//! the stream contains an ERROR event.

use crate::endpoints::representation::Representation;
use crate::endpoints::resource_request::ResourceRequest;
use crate::endpoints::response;
use crate::endpoints::response::HandlerResult;
use crate::objects::storage::object::StoredObject;
use crate::objects::storage::store::{ChangeType, ListScope, VersionExpired};
use crate::state::ServerState;
use crate::status::{StatusCause, StatusError};
use crate::time;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Size at which events are sent, in bytes.
const CHUNK_SIZE: usize = 32 * 1024;
/// Maximum number of changes that are read from the log at once.
const MAX_BATCH: usize = 512;
/// The approximate interval of kube-apiserver's bookmarks; one more is sent shortly before the end.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// `--min-request-timeout`, in seconds: a watch without a timeout lasts at least this long and at
/// most twice as long.
const MIN_REQUEST_TIMEOUT: u64 = 1800;

/// One watch.
#[derive(Debug)]
struct Watcher {
    state: Arc<ServerState>,
    scope: ListScope,
    view: Representation,
    /// The objects that are sent before the changes.
    initial_objects: std::vec::IntoIter<Arc<StoredObject>>,
    /// Whether a bookmark ends the initial events.
    send_end_bookmark: bool,
    /// All changes up to this version were sent.
    sent_version: u64,
    changes: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    deadline: Instant,
    next_bookmark: Option<Instant>,
    /// Whether the next table contains the column definitions; only the first one does.
    send_columns: bool,
    ended: bool,
}

pub(crate) fn handle(resource_request: &ResourceRequest<'_>) -> HandlerResult {
    let start = WatchStart::parse(resource_request)?;
    let mut scope = resource_request.scope()?;
    if !resource_request.target.name.is_empty() {
        scope.selection = scope.selection.with_name(&resource_request.target.name);
    }
    let seconds = resource_request
        .query
        .number("timeoutSeconds")?
        .filter(|seconds| *seconds > 0)
        .unwrap_or_else(|| MIN_REQUEST_TIMEOUT + fastrand::u64(..MIN_REQUEST_TIMEOUT));
    let now = time::now();
    let end = now
        .checked_add(Duration::from_secs(seconds))
        .unwrap_or(now + Duration::from_secs(MIN_REQUEST_TIMEOUT));
    let bookmarks = resource_request.query.flag("allowWatchBookmarks");
    let bell = resource_request
        .state
        .storage
        .subscribe(resource_request.kind)
        .ok_or_else(StatusError::no_such_resource)?;
    let store = resource_request.state.storage.lock();
    let (initial, position) = match start {
        WatchStart::WithObjects => {
            let page = store.list(&scope, None, None, 0);
            let objects = page.map(|page| page.objects).unwrap_or_default();
            (objects, store.version())
        }
        WatchStart::Now => (Vec::new(), store.version()),
        WatchStart::After(version) => (Vec::new(), version),
    };
    drop(store);
    let watcher = Watcher {
        state: Arc::clone(resource_request.state),
        scope,
        view: resource_request.representation(),
        initial_objects: initial.into_iter(),
        send_end_bookmark: bookmarks && resource_request.query.flag("sendInitialEvents"),
        sent_version: position,
        changes: bell,
        stopping: resource_request.state.stopping.subscribe(),
        deadline: end,
        next_bookmark: bookmarks.then(|| next_bookmark(now, end)).flatten(),
        send_columns: true,
        ended: false,
    };
    Ok(response::watch_events(stream::unfold(
        watcher,
        |mut watcher| async {
            let chunk = watcher.next_chunk().await?;
            Some((chunk, watcher))
        },
    )))
}

/// The reason why a waiting watch continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WakeReason {
    BookmarkDue,
    Changed,
    Ended,
}

/// The beginning of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStart {
    After(u64),
    Now,
    WithObjects,
}

impl WatchStart {
    fn parse(resource_request: &ResourceRequest<'_>) -> Result<Self, StatusError> {
        let query = resource_request.query;
        let invalid = |why| {
            let cause = StatusCause::forbidden("resourceVersionMatch", why);
            resource_request.invalid_option("ListOptions", cause)
        };
        let matching = query.first("resourceVersionMatch");
        let initial = query
            .first("sendInitialEvents")
            .map(|_| query.flag("sendInitialEvents"));
        match (initial, matching) {
            (None, Some(_)) => {
                return Err(invalid(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            (Some(_), Some("NotOlderThan")) | (None, None) => {}
            (Some(_), _) => {
                return Err(invalid(
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
        }
        let version = query.number("resourceVersion")?.unwrap_or(0);
        Ok(match (initial, version) {
            (Some(true), _) | (None, 0) => Self::WithObjects,
            (Some(false), 0) => Self::Now,
            (_, version) => Self::After(version),
        })
    }
}

/// The time after `now` at which the next bookmark is due.
fn next_bookmark(now: Instant, end: Instant) -> Option<Instant> {
    let regular = now.checked_add(BOOKMARK_INTERVAL)?;
    match end.checked_sub(BOOKMARK_BEFORE_END) {
        Some(last) if last > now => Some(regular.min(last)),
        Some(_) | None => None,
    }
}

impl Watcher {
    /// The next events, as many as are ready; `None` at the end.
    ///
    /// Cancel safety: nothing is consumed before it is returned.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        loop {
            if self.ended {
                return None;
            }
            self.view.refresh_now();
            let mut chunk = Vec::new();
            self.push_initial(&mut chunk);
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            self.changes.borrow_and_update();
            let moved = self.push_changes(&mut chunk);
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            if moved {
                continue;
            }
            match self.wait().await {
                WakeReason::Changed => {}
                WakeReason::Ended => return None,
                WakeReason::BookmarkDue => {
                    let due = self.next_bookmark.take();
                    self.next_bookmark = due.and_then(|due| next_bookmark(due, self.deadline));
                    self.push_bookmark(false, &mut chunk);
                    return Some(chunk.into());
                }
            }
        }
    }

    fn push_initial(&mut self, chunk: &mut Vec<u8>) {
        while chunk.len() < CHUNK_SIZE {
            let Some(object) = self.initial_objects.next() else {
                if self.send_end_bookmark {
                    self.send_end_bookmark = false;
                    self.push_bookmark(true, chunk);
                }
                return;
            };
            self.push_event("ADDED", &object, chunk);
        }
    }

    /// Appends the next changes. Returns whether the log contained any, selected or not.
    fn push_changes(&mut self, chunk: &mut Vec<u8>) -> bool {
        let (entries, newest) = {
            let store = self.state.storage.lock();
            let entries = store.changes_since(self.scope.kind, self.sent_version, MAX_BATCH);
            (entries, store.version())
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(VersionExpired) => {
                let position = self.sent_version;
                let status = StatusError::expired(format!(
                    "too old resource version: {position} ({newest})"
                ));
                push_watch_event("ERROR", &status.to_json(), chunk);
                self.ended = true;
                return true;
            }
        };
        for entry in &entries {
            self.sent_version = entry.version;
            if let Some((change, object)) = self.scope.filter_change(entry) {
                let change = match change {
                    ChangeType::Added => "ADDED",
                    ChangeType::Deleted => "DELETED",
                    ChangeType::Modified => "MODIFIED",
                };
                self.push_event(change, &object, chunk);
            }
        }
        if entries.is_empty() {
            // There is no change of this kind up to this version, so changes of other kinds are
            // skipped.
            self.sent_version = self.sent_version.max(newest);
        }
        !entries.is_empty()
    }

    /// Waits until something changes or a bookmark is due.
    async fn wait(&mut self) -> WakeReason {
        let end = tokio::time::sleep_until(self.deadline.into());
        let due = self.next_bookmark;
        let bookmark = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.changes.changed() => changed.map_or(WakeReason::Ended, |()| WakeReason::Changed),
            _ = self.stopping.wait_for(|stopping| *stopping) => WakeReason::Ended,
            () = end => WakeReason::Ended,
            () = bookmark => WakeReason::BookmarkDue,
        }
    }

    fn push_event(&mut self, change: &str, object: &StoredObject, chunk: &mut Vec<u8>) {
        let encoded = self.view.object(object, self.send_columns);
        self.send_columns = false;
        push_watch_event(change, &encoded, chunk);
    }

    fn push_bookmark(&mut self, initial_end: bool, chunk: &mut Vec<u8>) {
        let mut value = json!({"metadata": {"creationTimestamp": null}});
        if initial_end && let Some(metadata) = value.get_mut("metadata") {
            *metadata = json!({
                "annotations": {"k8s.io/initial-events-end": "true"},
                "creationTimestamp": null,
            });
        }
        if let Some(object) = StoredObject::new(self.scope.kind, value, self.sent_version) {
            self.push_event("BOOKMARK", &object, chunk);
        }
    }
}

fn push_watch_event(change: &str, object: &[u8], chunk: &mut Vec<u8>) {
    chunk.extend_from_slice(format!(r#"{{"type":"{change}","object":"#).as_bytes());
    chunk.extend_from_slice(object);
    chunk.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::next_bookmark;
    use crate::time;
    use std::time::Duration;

    #[test]
    fn bookmarks_are_sent_every_minute_and_shortly_before_the_end() {
        let start = time::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(next_bookmark(start, at(300)), Some(at(60)));
        assert_eq!(next_bookmark(start, at(10)), Some(at(8)));
        assert_eq!(next_bookmark(at(8), at(10)), None);
        assert_eq!(next_bookmark(start, at(1)), None);
    }
}
