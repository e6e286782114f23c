//! The stored objects at their newest versions, and the last changes of each kind.
//!
//! One counter numbers all changes, as etcd's revision does. The log of a kind is bounded. It feeds
//! watches and restores a list at an earlier version, so that the pages of one list are consistent.
//! A version before the log is answered with [`VersionExpired`].
//!
//! The store is pure and guarantees only that versions grow. Whether a write is allowed is decided
//! by `strategy`.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::object::{StoredObject, object_key};
use crate::objects::storage::selector::Selection;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeType {
    Added,
    Deleted,
    Modified,
}

/// A change in the log.
#[derive(Clone, Debug)]
pub(crate) struct ChangeEntry {
    pub(crate) version: u64,
    pub(crate) change: ChangeType,
    /// The object after the change; for a deletion the last state, at the deletion's version.
    pub(crate) object: Arc<StoredObject>,
    /// The object before the change.
    pub(crate) previous: Option<Arc<StoredObject>>,
}

/// The requested version is older than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionExpired;

/// One page of a list, in the order of the keys.
#[derive(Debug)]
pub(crate) struct ListPage {
    pub(crate) objects: Vec<Arc<StoredObject>>,
    /// Number of objects of the namespace after the page, selected or not.
    pub(crate) remaining: usize,
    /// Whether a selected object is among them.
    pub(crate) has_more: bool,
}

/// The objects of a list or a watch.
#[derive(Clone, Debug)]
pub(crate) struct ListScope {
    pub(crate) kind: ObjectKind,
    /// `None` for every namespace, and for cluster-scoped objects.
    pub(crate) namespace: Option<String>,
    pub(crate) selection: Selection,
}

/// All objects.
#[derive(Debug)]
pub(crate) struct Store {
    version: u64,
    /// Maximum number of changes in the log of a kind.
    max_history: usize,
    collections: Vec<Collection>,
}

#[derive(Debug, Default)]
struct Collection {
    objects: BTreeMap<String, Arc<StoredObject>>,
    log: VecDeque<ChangeEntry>,
    /// The newest version that is no longer in the log.
    evicted_version: u64,
}

impl ListScope {
    fn contains(&self, object: &StoredObject) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == object.namespace)
            && self.selection.matches(object)
    }

    /// The change as a watch with this scope sees it, filtered as by `watchCache`: an object that
    /// begins to match is added, one that no longer matches is deleted.
    pub(crate) fn filter_change(
        &self,
        entry: &ChangeEntry,
    ) -> Option<(ChangeType, Arc<StoredObject>)> {
        let before = entry.previous.as_deref().is_some_and(|o| self.contains(o));
        let after = entry.change != ChangeType::Deleted && self.contains(&entry.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some((ChangeType::Added, Arc::clone(&entry.object))),
            (true, true) => Some((ChangeType::Modified, Arc::clone(&entry.object))),
            (true, false) if entry.change == ChangeType::Deleted => {
                Some((ChangeType::Deleted, Arc::clone(&entry.object)))
            }
            (true, false) => {
                // The state that the watch has, at the version at which the object stopped
                // matching.
                let last = entry.previous.as_deref()?;
                let last = StoredObject::new(self.kind, last.value(), entry.version)?;
                Some((ChangeType::Deleted, Arc::new(last)))
            }
        }
    }
}

impl Store {
    /// Returns an empty store that keeps `history` changes of each kind.
    pub(crate) fn new(history: usize) -> Self {
        Self {
            version: 1,
            max_history: history,
            collections: ObjectKind::ALL.map(|_| Collection::default()).into(),
        }
    }

    /// The version of the newest change of any kind.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "one collection a kind, made in `new`"
    )]
    fn collection(&self, kind: ObjectKind) -> &Collection {
        &self.collections[kind.index()]
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "one collection a kind, made in `new`"
    )]
    fn collection_mut(&mut self, kind: ObjectKind) -> &mut Collection {
        &mut self.collections[kind.index()]
    }

    pub(crate) fn get(
        &self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
    ) -> Option<&Arc<StoredObject>> {
        self.collection(kind)
            .objects
            .get(&object_key(namespace, name))
    }

    pub(crate) fn len(&self, kind: ObjectKind) -> usize {
        self.collection(kind).objects.len()
    }

    /// Total length of all stored objects of a kind, in bytes.
    pub(crate) fn bytes(&self, kind: ObjectKind) -> usize {
        let objects = self.collection(kind).objects.values();
        objects.map(|object| object.json().len()).sum()
    }

    /// The length of the first `limit` objects of a kind in a namespace, or in all if it is empty, in
    /// bytes.
    pub(crate) fn listed_bytes(
        &self,
        kind: ObjectKind,
        namespace: &str,
        limit: Option<usize>,
    ) -> usize {
        let objects = self.collection(kind).objects.values();
        let listed = objects.filter(|object| namespace.is_empty() || object.namespace == namespace);
        let listed = listed.take(limit.unwrap_or(usize::MAX));
        listed.map(|object| object.json().len()).sum()
    }

    /// Stores `value` at the next version, whether or not the object exists. Returns `None`,
    /// without a change, if `value` is not an object with metadata.
    pub(crate) fn put(&mut self, kind: ObjectKind, value: Value) -> Option<Arc<StoredObject>> {
        let version = self.version + 1;
        let object = Arc::new(StoredObject::new(kind, value, version)?);
        let collection = self.collection_mut(kind);
        let previous = collection.objects.insert(object.key(), Arc::clone(&object));
        let change = if previous.is_some() {
            ChangeType::Modified
        } else {
            ChangeType::Added
        };
        self.record(
            kind,
            ChangeEntry {
                version,
                change,
                object: Arc::clone(&object),
                previous,
            },
        );
        Some(object)
    }

    /// Removes an object. The returned object has the version of its deletion.
    pub(crate) fn remove(
        &mut self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<StoredObject>> {
        let version = self.version + 1;
        let collection = self.collection_mut(kind);
        let previous = collection.objects.remove(&object_key(namespace, name))?;
        let object = Arc::new(StoredObject::new(kind, previous.value(), version)?);
        self.record(
            kind,
            ChangeEntry {
                version,
                change: ChangeType::Deleted,
                object: Arc::clone(&object),
                previous: Some(previous),
            },
        );
        Some(object)
    }

    fn record(&mut self, kind: ObjectKind, entry: ChangeEntry) {
        self.version = entry.version;
        let history = self.max_history;
        let collection = self.collection_mut(kind);
        collection.log.push_back(entry);
        while collection.log.len() > history {
            if let Some(oldest) = collection.log.pop_front() {
                collection.evicted_version = oldest.version;
            }
        }
    }

    /// Clears the log: a watch may start at the current version, and no earlier.
    pub(crate) fn clear_history(&mut self) {
        let version = self.version;
        for collection in &mut self.collections {
            collection.log.clear();
            collection.evicted_version = version;
        }
    }

    /// The changes of a kind after `version`, oldest first, at most `max`.
    pub(crate) fn changes_since(
        &self,
        kind: ObjectKind,
        version: u64,
        max: usize,
    ) -> Result<Vec<ChangeEntry>, VersionExpired> {
        let collection = self.collection(kind);
        if version < collection.evicted_version {
            return Err(VersionExpired);
        }
        let start = collection.log.partition_point(|e| e.version <= version);
        Ok(collection
            .log
            .iter()
            .skip(start)
            .take(max)
            .cloned()
            .collect())
    }

    /// Objects in key order: those after `after`, at most `limit` (zero for no limit), at version
    /// `at` (`None` for the newest).
    pub(crate) fn list(
        &self,
        scope: &ListScope,
        at: Option<u64>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, VersionExpired> {
        let collection = self.collection(scope.kind);
        match at.filter(|at| *at < self.version) {
            None => Ok(build_page(&collection.objects, scope, after, limit)),
            Some(at) => Ok(build_page(
                &collection.snapshot_at(at)?,
                scope,
                after,
                limit,
            )),
        }
    }

    /// The key of an object in continue tokens.
    pub(crate) fn continue_key(object: &StoredObject) -> String {
        object.key()
    }
}

impl Collection {
    /// The objects at `version`: the later changes are undone.
    fn snapshot_at(
        &self,
        version: u64,
    ) -> Result<BTreeMap<String, Arc<StoredObject>>, VersionExpired> {
        if version < self.evicted_version {
            return Err(VersionExpired);
        }
        let mut objects = self.objects.clone();
        for entry in self.log.iter().rev().take_while(|e| e.version > version) {
            let key = entry.object.key();
            match &entry.previous {
                Some(previous) => objects.insert(key, Arc::clone(previous)),
                None => objects.remove(&key),
            };
        }
        Ok(objects)
    }
}

fn build_page(
    objects: &BTreeMap<String, Arc<StoredObject>>,
    scope: &ListScope,
    after: Option<&str>,
    limit: usize,
) -> ListPage {
    let prefix = scope
        .namespace
        .as_ref()
        .map(|namespace| format!("{namespace}/"));
    let start = match (after, prefix.as_deref()) {
        (Some(after), _) => Bound::Excluded(after),
        (None, Some(prefix)) => Bound::Included(prefix),
        (None, None) => Bound::Unbounded,
    };
    let mut page = ListPage {
        objects: Vec::new(),
        remaining: 0,
        has_more: false,
    };
    for (key, object) in objects.range::<str, _>((start, Bound::Unbounded)) {
        if prefix
            .as_ref()
            .is_some_and(|prefix| !key.starts_with(prefix.as_str()))
        {
            break;
        }
        let full = limit > 0 && page.objects.len() >= limit;
        if full {
            page.remaining += 1;
            page.has_more = page.has_more || scope.selection.matches(object);
        } else if scope.selection.matches(object) {
            page.objects.push(Arc::clone(object));
        }
    }
    page
}

#[cfg(test)]
mod tests;
