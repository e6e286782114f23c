//! Watches: what is there, if that is wanted, and then every change, until someone has enough.
//!
//! Follows `cacher.Watch`: without a version, or with version 0, first an ADDED for everything there
//! is; with `sendInitialEvents` the same, closed by a bookmark that says so; with a version every
//! change since. A version that is forgotten is answered within the stream, by an ERROR event.

use crate::playground::answers::Answer;
use crate::playground::answers::Ask;
use crate::playground::answers::reply;
use crate::playground::answers::view::View;
use crate::playground::objects::store::Change;
use crate::playground::objects::store::Expired;
use crate::playground::objects::store::Object;
use crate::playground::objects::store::Scope;
use crate::playground::state::State;
use crate::playground::status::Cause;
use crate::playground::status::Status;
use crate::playground::time;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use tokio::sync::watch;

/// How much is put together before it is sent.
const CHUNK: usize = 32 * 1024;
/// How many changes are taken from the log at once.
const BATCH: usize = 512;
/// kube-apiserver sends a bookmark about this often, and one shortly before the end.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// `--min-request-timeout`: a watch that sets no limit lasts this long, up to twice that.
const SHORTEST_UNLIMITED: u64 = 1800;

/// One watch.
#[derive(Debug)]
struct Watcher {
    state: Arc<State>,
    scope: Scope,
    view: View,
    /// What is shown before the changes.
    initial: std::vec::IntoIter<Arc<Object>>,
    /// Whether the end of `initial` is to be marked.
    mark_end: bool,
    /// Everything up to this version has been told.
    position: u64,
    bell: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    end: Instant,
    next_bookmark: Option<Instant>,
    /// A table names its columns once.
    columns: bool,
    ended: bool,
}

pub(crate) fn answer(ask: &Ask<'_>) -> Answer {
    let start = Start::parse(ask)?;
    let mut scope = ask.scope()?;
    if !ask.target.name.is_empty() {
        scope.selection = scope.selection.with_name(&ask.target.name);
    }
    let seconds = ask
        .query
        .number("timeoutSeconds")?
        .filter(|seconds| *seconds > 0)
        .unwrap_or_else(|| SHORTEST_UNLIMITED + fastrand::u64(..SHORTEST_UNLIMITED));
    let now = time::now();
    let end = now
        .checked_add(Duration::from_secs(seconds))
        .unwrap_or(now + Duration::from_secs(SHORTEST_UNLIMITED));
    let bookmarks = ask.query.flag("allowWatchBookmarks");
    let bell = ask
        .state
        .storage
        .bell(ask.kind)
        .ok_or_else(Status::no_such_resource)?;
    let store = ask.state.storage.read();
    let (initial, position) = match start {
        Start::WithObjects => {
            let page = store.list(&scope, None, None, 0);
            let objects = page.map(|page| page.objects).unwrap_or_default();
            (objects, store.version())
        }
        Start::Now => (Vec::new(), store.version()),
        Start::After(version) => (Vec::new(), version),
    };
    drop(store);
    let watcher = Watcher {
        state: Arc::clone(ask.state),
        scope,
        view: ask.view(),
        initial: initial.into_iter(),
        mark_end: bookmarks && ask.query.flag("sendInitialEvents"),
        position,
        bell,
        stopping: ask.state.stopping.subscribe(),
        end,
        next_bookmark: bookmarks.then(|| next_bookmark(now, end)).flatten(),
        columns: true,
        ended: false,
    };
    Ok(reply::events(stream::unfold(
        watcher,
        |mut watcher| async {
            let chunk = watcher.next().await?;
            Some((chunk, watcher))
        },
    )))
}

/// Why a watch that waited goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    BookmarkDue,
    Changed,
    Ended,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    After(u64),
    Now,
    WithObjects,
}

impl Start {
    fn parse(ask: &Ask<'_>) -> Result<Self, Status> {
        let query = ask.query;
        let refused = |why| {
            let cause = Cause::forbidden("resourceVersionMatch", why);
            ask.bad_option("ListOptions", cause)
        };
        let matching = query.first("resourceVersionMatch");
        let initial = query
            .first("sendInitialEvents")
            .map(|_| query.flag("sendInitialEvents"));
        match (initial, matching) {
            (None, Some(_)) => {
                return Err(refused(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            (Some(_), Some("NotOlderThan")) | (None, None) => {}
            (Some(_), _) => {
                return Err(refused(
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

/// After `now`, when the next bookmark comes.
fn next_bookmark(now: Instant, end: Instant) -> Option<Instant> {
    let regular = now.checked_add(BOOKMARK_INTERVAL)?;
    match end.checked_sub(BOOKMARK_BEFORE_END) {
        Some(last) if last > now => Some(regular.min(last)),
        Some(_) | None => None,
    }
}

impl Watcher {
    /// The next events, as much as there is at once; `None` at the end.
    ///
    /// Cancel safety: nothing is taken before it is returned.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.ended {
                return None;
            }
            self.view.at_present();
            let mut chunk = Vec::new();
            self.show_initial(&mut chunk);
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            self.bell.borrow_and_update();
            let moved = self.show_changes(&mut chunk);
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            if moved {
                continue;
            }
            match self.wait().await {
                Woken::Changed => {}
                Woken::Ended => return None,
                Woken::BookmarkDue => {
                    let due = self.next_bookmark.take();
                    self.next_bookmark = due.and_then(|due| next_bookmark(due, self.end));
                    self.bookmark(false, &mut chunk);
                    return Some(chunk.into());
                }
            }
        }
    }

    fn show_initial(&mut self, chunk: &mut Vec<u8>) {
        while chunk.len() < CHUNK {
            let Some(object) = self.initial.next() else {
                if self.mark_end {
                    self.mark_end = false;
                    self.bookmark(true, chunk);
                }
                return;
            };
            self.event("ADDED", &object, chunk);
        }
    }

    /// Whether there was anything in the log, seen or not.
    fn show_changes(&mut self, chunk: &mut Vec<u8>) -> bool {
        let (entries, newest) = {
            let store = self.state.storage.read();
            let entries = store.since(self.scope.kind, self.position, BATCH);
            (entries, store.version())
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(Expired) => {
                let position = self.position;
                let status =
                    Status::expired(format!("too old resource version: {position} ({newest})"));
                wrap("ERROR", &status.to_json(), chunk);
                self.ended = true;
                return true;
            }
        };
        for entry in &entries {
            self.position = entry.version;
            if let Some((change, object)) = self.scope.sees(entry) {
                let change = match change {
                    Change::Added => "ADDED",
                    Change::Deleted => "DELETED",
                    Change::Modified => "MODIFIED",
                };
                self.event(change, &object, chunk);
            }
        }
        if entries.is_empty() {
            // Nothing of this kind up to here: changes of other kinds need not be looked through.
            self.position = self.position.max(newest);
        }
        !entries.is_empty()
    }

    /// Until something changes or a bookmark is due.
    async fn wait(&mut self) -> Woken {
        let end = tokio::time::sleep_until(self.end.into());
        let due = self.next_bookmark;
        let bookmark = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.bell.changed() => changed.map_or(Woken::Ended, |()| Woken::Changed),
            _ = self.stopping.wait_for(|stopping| *stopping) => Woken::Ended,
            () = end => Woken::Ended,
            () = bookmark => Woken::BookmarkDue,
        }
    }

    fn event(&mut self, change: &str, object: &Object, chunk: &mut Vec<u8>) {
        let shown = self.view.object(object, self.columns);
        self.columns = false;
        wrap(change, &shown, chunk);
    }

    fn bookmark(&mut self, initial_end: bool, chunk: &mut Vec<u8>) {
        let mut value = json!({"metadata": {"creationTimestamp": null}});
        if initial_end && let Some(metadata) = value.get_mut("metadata") {
            *metadata = json!({
                "annotations": {"k8s.io/initial-events-end": "true"},
                "creationTimestamp": null,
            });
        }
        if let Some(object) = Object::new(self.scope.kind, value, self.position) {
            self.event("BOOKMARK", &object, chunk);
        }
    }
}

fn wrap(change: &str, object: &[u8], chunk: &mut Vec<u8>) {
    chunk.extend_from_slice(format!(r#"{{"type":"{change}","object":"#).as_bytes());
    chunk.extend_from_slice(object);
    chunk.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::next_bookmark;
    use crate::playground::time;
    use std::time::Duration;

    #[test]
    fn bookmarks_come_every_minute_and_shortly_before_the_end() {
        let start = time::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(next_bookmark(start, at(300)), Some(at(60)));
        assert_eq!(next_bookmark(start, at(10)), Some(at(8)));
        assert_eq!(next_bookmark(at(8), at(10)), None);
        assert_eq!(next_bookmark(start, at(1)), None);
    }
}
