//! What is stored: every object at its newest version, and the last changes of each kind.
//!
//! One counter numbers all changes, as etcd's revision does. The changes of a kind are kept up to a
//! bound; from them a watch is fed, and a list is put back to an earlier version (so that the pages
//! of one list agree). What was forgotten is answered with [`Expired`].
//!
//! Pure, and strict about one thing only: versions grow. Whether a write may happen is
//! `strategy`'s question.

use crate::playground::objects::resources::ObjectKind;
use crate::playground::objects::storage::selector::Selection;
use crate::playground::objects::storage::selector::selectable_fields;
use bytes::Bytes;
use serde_json::Map;
use serde_json::Value;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// One object at one version, serialized once.
#[derive(Debug)]
pub(crate) struct StoredObject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: u64,
    labels: Vec<(String, String)>,
    fields: Vec<(&'static str, String)>,
    /// `{"metadata":{…},…}`: without `kind` and `apiVersion`, which the answer puts in front.
    json: Bytes,
    /// The `{…}` of the metadata within `json`.
    metadata: Bytes,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeType {
    Added,
    Deleted,
    Modified,
}

/// One change, as the log keeps it.
#[derive(Clone, Debug)]
pub(crate) struct ChangeEntry {
    pub(crate) version: u64,
    pub(crate) change: ChangeType,
    /// The object after the change; for a deletion the last state, at the deletion's version.
    pub(crate) object: Arc<StoredObject>,
    /// The object before the change.
    pub(crate) previous: Option<Arc<StoredObject>>,
}

/// The version asked for is older than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VersionExpired;

/// Objects as a list shows them: in the order of their keys.
#[derive(Debug)]
pub(crate) struct ListPage {
    pub(crate) objects: Vec<Arc<StoredObject>>,
    /// How many objects of the namespace follow the page, selected or not.
    pub(crate) remaining: usize,
    /// Whether a selected one is among them.
    pub(crate) has_more: bool,
}

/// Which objects a list or a watch is about.
#[derive(Clone, Debug)]
pub(crate) struct ListScope {
    pub(crate) kind: ObjectKind,
    /// `None` is every namespace, and cluster-scoped objects.
    pub(crate) namespace: Option<String>,
    pub(crate) selection: Selection,
}

/// All objects.
#[derive(Debug)]
pub(crate) struct Store {
    version: u64,
    /// How many changes of a kind are remembered.
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

/// `namespace/name`, or `name`: sorts as etcd's keys do.
fn object_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// The string at a path of keys, or the empty one.
pub(crate) fn string_at<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    path.iter()
        .try_fold(value, |value, key| value.get(*key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

impl StoredObject {
    /// Gives `value` a version and serializes it. `None` unless it is an object with metadata.
    pub(crate) fn new(kind: ObjectKind, mut value: Value, version: u64) -> Option<Self> {
        let object = value.as_object_mut()?;
        object.remove("apiVersion");
        object.remove("kind");
        let metadata = object.get_mut("metadata")?.as_object_mut()?;
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        let labels = label_pairs(metadata.get("labels"));
        let fields = selectable_fields(kind)
            .iter()
            .map(|path| (*path, field_value(kind, &value, path)))
            .collect();
        let (json, metadata) = serialize(value.as_object()?)?;
        Some(Self {
            namespace: string_at(&value, &["metadata", "namespace"]).to_owned(),
            name: string_at(&value, &["metadata", "name"]).to_owned(),
            version,
            labels,
            fields,
            json,
            metadata,
        })
    }

    /// The JSON without `kind` and `apiVersion`: `{"metadata":{…},…}`.
    pub(crate) const fn json(&self) -> &Bytes {
        &self.json
    }

    /// The JSON of the metadata alone: `{…}`.
    pub(crate) const fn metadata(&self) -> &Bytes {
        &self.metadata
    }

    /// The object as a tree, without `kind` and `apiVersion`.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let (_, value) = self.labels.iter().find(|(k, _)| k == key)?;
        Some(value)
    }

    /// The value of a selectable field; absent ones are empty.
    pub(crate) fn field(&self, path: &str) -> &str {
        match path {
            "metadata.name" => &self.name,
            "metadata.namespace" => &self.namespace,
            _ => self
                .fields
                .iter()
                .find(|(field, _)| *field == path)
                .map_or("", |(_, value)| value),
        }
    }

    fn key(&self) -> String {
        object_key(&self.namespace, &self.name)
    }
}

fn label_pairs(labels: Option<&Value>) -> Vec<(String, String)> {
    labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn field_value(kind: ObjectKind, value: &Value, path: &str) -> String {
    if kind == ObjectKind::Event && path == "source" {
        let source = string_at(value, &["source", "component"]);
        let reporter = string_at(value, &["reportingComponent"]);
        return if source.is_empty() { reporter } else { source }.to_owned();
    }
    let found = path.split('.').try_fold(value, |value, key| value.get(key));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Array(_) | Value::Null | Value::Number(_) | Value::Object(_)) | None => {
            // Go's zero value, printed.
            if path == "spec.unschedulable" {
                "false".to_owned()
            } else {
                String::new()
            }
        }
    }
}

/// The whole object with its metadata in front, and the metadata's part of it.
fn serialize(object: &Map<String, Value>) -> Option<(Bytes, Bytes)> {
    const HEAD: &[u8] = b"{\"metadata\":";
    let mut json = HEAD.to_vec();
    serde_json::to_writer(&mut json, object.get("metadata")?).ok()?;
    let end = json.len();
    for (key, value) in object.iter().filter(|(key, _)| *key != "metadata") {
        json.push(b',');
        serde_json::to_writer(&mut json, key).ok()?;
        json.push(b':');
        serde_json::to_writer(&mut json, value).ok()?;
    }
    json.push(b'}');
    let json = Bytes::from(json);
    let metadata = json.slice(HEAD.len()..end);
    Some((json, metadata))
}

impl ListScope {
    fn contains(&self, object: &StoredObject) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == object.namespace)
            && self.selection.matches(object)
    }

    /// How a watch with this scope sees a change, as `watchCache` filters: an object that begins to
    /// match was added, one that no longer does was deleted.
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
                // What the watcher knew, at the version at which it went out of sight.
                let last = entry.previous.as_deref()?;
                let last = StoredObject::new(self.kind, last.value(), entry.version)?;
                Some((ChangeType::Deleted, Arc::new(last)))
            }
        }
    }
}

impl Store {
    /// An empty store that remembers `history` changes of each kind.
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

    /// The length of all objects of a kind together, as they are stored.
    pub(crate) fn bytes(&self, kind: ObjectKind) -> usize {
        let objects = self.collection(kind).objects.values();
        objects.map(|object| object.json().len()).sum()
    }

    /// Stores `value` at the next version, whether or not something stood there. `None` (and no
    /// change) unless it is an object with metadata.
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

    /// Takes an object out; what is returned stands at the version of its deletion.
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

    /// Forgets all changes so far: a watch may start here, and no earlier.
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

    /// Objects in key order: those after `after`, at most `limit` (zero is no limit), as they stood
    /// at version `at` (`None`: now).
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
    /// The objects as they stood at `version`: the changes since then, undone.
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
