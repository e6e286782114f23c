//! The store compared with a plain model, and the cases that a watch depends on.

use super::{ChangeType, ListScope, Store, VersionExpired};
use crate::objects::resources::ObjectKind;
use crate::objects::storage::object::StoredObject;
use crate::objects::storage::selector::Selection;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn config_map(namespace: &str, name: &str, app: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "data": {"app": app},
    })
}

fn scope(namespace: Option<&str>, labels: &str) -> ListScope {
    ListScope {
        kind: ObjectKind::ConfigMap,
        namespace: namespace.map(str::to_owned),
        selection: Selection::parse(ObjectKind::ConfigMap, Some(labels), None).unwrap(),
    }
}

fn names(store: &Store, scope: &ListScope, at: Option<u64>) -> Vec<String> {
    let page = store.list(scope, at, None, 0).unwrap();
    page.objects
        .iter()
        .map(|o| Store::continue_key(o))
        .collect()
}

#[test]
fn an_object_is_serialized_with_its_metadata_in_front_and_without_its_type() {
    let object = StoredObject::new(ObjectKind::ConfigMap, config_map("a", "x", "web"), 7).unwrap();
    assert_eq!(
        object.json(),
        r#"{"metadata":{"labels":{"app":"web"},"name":"x","namespace":"a","resourceVersion":"7"},"data":{"app":"web"}}"#
    );
    assert_eq!(
        object.metadata(),
        r#"{"labels":{"app":"web"},"name":"x","namespace":"a","resourceVersion":"7"}"#
    );
}

#[test]
fn pages_continue_each_other_and_count_the_remaining_objects() {
    let mut store = Store::new(100);
    for name in ["c", "a", "b", "d"] {
        store.put(ObjectKind::ConfigMap, config_map("one", name, "web"));
    }
    store.put(ObjectKind::ConfigMap, config_map("two", "a", "db"));
    let one = scope(Some("one"), "");
    let first = store.list(&one, None, None, 3).unwrap();
    assert_eq!(
        (first.objects.len(), first.remaining, first.has_more),
        (3, 1, true)
    );
    let last = Store::continue_key(first.objects.last().unwrap());
    assert_eq!(last, "one/c");
    let second = store.list(&one, None, Some(&last), 3).unwrap();
    assert_eq!(
        (second.objects.len(), second.remaining, second.has_more),
        (1, 0, false)
    );
    assert_eq!(names(&store, &scope(None, "app=db"), None), ["two/a"]);
}

#[test]
fn pages_of_one_list_are_consistent_despite_writes() {
    let mut store = Store::new(100);
    for name in ["a", "b", "c"] {
        store.put(ObjectKind::ConfigMap, config_map("one", name, "web"));
    }
    let then = store.version();
    store.remove(ObjectKind::ConfigMap, "one", "b");
    store.put(ObjectKind::ConfigMap, config_map("one", "d", "web"));
    store.put(ObjectKind::ConfigMap, config_map("one", "c", "db"));
    let web = scope(None, "app=web");
    assert_eq!(names(&store, &web, Some(then)), ["one/a", "one/b", "one/c"]);
    assert_eq!(names(&store, &web, None), ["one/a", "one/d"]);
}

#[test]
fn evicted_versions_have_expired() {
    let mut store = Store::new(2);
    let start = store.version();
    for name in ["a", "b", "c"] {
        store.put(ObjectKind::ConfigMap, config_map("one", name, "web"));
    }
    assert_eq!(
        store.changes_since(ObjectKind::ConfigMap, start, 10).err(),
        Some(VersionExpired)
    );
    assert_eq!(
        store
            .changes_since(ObjectKind::ConfigMap, start + 1, 10)
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        store.list(&scope(None, ""), Some(start), None, 0).err(),
        Some(VersionExpired)
    );
    // It does not change the log of another kind.
    assert!(
        store
            .changes_since(ObjectKind::Pod, start, 10)
            .unwrap()
            .is_empty()
    );
    store.clear_history();
    assert_eq!(
        store.changes_since(ObjectKind::Pod, start, 10).err(),
        Some(VersionExpired)
    );
    assert!(
        store
            .changes_since(ObjectKind::Pod, store.version(), 10)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn an_object_that_no_longer_matches_is_deleted_for_the_watcher() {
    let mut store = Store::new(100);
    let start = store.version();
    store.put(ObjectKind::ConfigMap, config_map("one", "a", "web"));
    store.put(ObjectKind::ConfigMap, config_map("one", "a", "db"));
    store.put(ObjectKind::ConfigMap, config_map("one", "a", "web"));
    store.put(ObjectKind::ConfigMap, config_map("one", "a", "web"));
    store.remove(ObjectKind::ConfigMap, "one", "a");
    let web = scope(None, "app=web");
    let seen: Vec<_> = store
        .changes_since(ObjectKind::ConfigMap, start, 10)
        .unwrap()
        .iter()
        .filter_map(|entry| web.filter_change(entry))
        .map(|(change, object)| {
            (
                change,
                object.version,
                object.label("app").unwrap_or_default().to_owned(),
            )
        })
        .collect();
    let web = || "web".to_owned();
    assert_eq!(
        seen,
        [
            (ChangeType::Added, 2, web()),
            (ChangeType::Deleted, 3, web()),
            (ChangeType::Added, 4, web()),
            (ChangeType::Modified, 5, web()),
            (ChangeType::Deleted, 6, web()),
        ]
    );
}

#[test]
fn a_watcher_that_applies_every_change_has_the_state_of_a_list() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut store = Store::new(1000);
        let web = scope(Some("one"), "app=web");
        let mut known: BTreeMap<String, u64> = BTreeMap::new();
        let mut seen = store.version();
        let mut past = Vec::new();
        for _ in 0..200 {
            let namespace = ["one", "two"][rng.usize(..2)];
            let name = ["a", "b", "c", "d"][rng.usize(..4)];
            let app = ["web", "db"][rng.usize(..2)];
            if rng.u8(..3) == 0 {
                store.remove(ObjectKind::ConfigMap, namespace, name);
            } else {
                store.put(ObjectKind::ConfigMap, config_map(namespace, name, app));
            }
            past.push((store.version(), names(&store, &web, None)));
            if rng.u8(..4) > 0 {
                continue;
            }
            for entry in store
                .changes_since(ObjectKind::ConfigMap, seen, 1000)
                .unwrap()
            {
                seen = entry.version;
                if let Some((change, object)) = web.filter_change(&entry) {
                    match change {
                        ChangeType::Added => {
                            assert!(
                                known
                                    .insert(Store::continue_key(&object), object.version)
                                    .is_none()
                            );
                        }
                        ChangeType::Modified => {
                            assert!(
                                known
                                    .insert(Store::continue_key(&object), object.version)
                                    .is_some()
                            );
                        }
                        ChangeType::Deleted => {
                            assert!(known.remove(&Store::continue_key(&object)).is_some())
                        }
                    }
                }
            }
            let listed: Vec<String> = known.keys().cloned().collect();
            assert_eq!(listed, names(&store, &web, None), "seed {seed}");
        }
        for (version, expected) in past {
            assert_eq!(names(&store, &web, Some(version)), expected, "seed {seed}");
        }
    }
}
