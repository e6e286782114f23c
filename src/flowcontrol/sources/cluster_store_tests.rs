//! Lists, watches and the rules for keeping the last complete set.

use serde_json::{Value, json};

use super::*;
use weir_flowcontrol::bootstrap;

const SCHEMAS: ClusterResource = ClusterResource::FlowSchemas;
const LEVELS: ClusterResource = ClusterResource::PriorityLevels;

fn built_in(resource: ClusterResource) -> Vec<Object> {
    let objects = bootstrap::add_missing(Vec::new()).into_iter();
    objects
        .filter(|object| object.kind() == resource.kind())
        .collect()
}

/// A store with the built-in objects of both resources.
fn synced() -> ClusterStore {
    let mut store = ClusterStore::default();
    let first = store.replace(LEVELS, built_in(LEVELS));
    assert_eq!(
        first,
        StoreChange::Incomplete(vec!["the list of flowschemas".to_owned()])
    );
    assert_eq!(store.accepted(), None);
    assert_eq!(
        store.replace(SCHEMAS, built_in(SCHEMAS)),
        StoreChange::Changed
    );
    store
}

fn schema(name: &str, version: &str, precedence: i32) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {
            "name": name, "uid": "u", "resourceVersion": version, "generation": 1,
            "creationTimestamp": "2026-11-21T03:44:00Z",
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-low"},
            "matchingPrecedence": precedence,
            "somethingNew": {"x": [1, null]},
        },
        "status": {"conditions": [{"type": "Dangling", "status": "False"}]},
    })
}

fn event(kind: &str, object: &Value) -> WatchEvent {
    parse_event(&json!({"type": kind, "object": object}).to_string()).unwrap()
}

fn precedence(store: &ClusterStore, name: &str) -> Option<i32> {
    store.accepted()?.iter().find_map(|object| match object {
        Object::FlowSchema(schema) if schema.metadata.name == name => {
            Some(schema.spec.matching_precedence)
        }
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

#[test]
fn events_change_the_set_and_a_change_of_the_status_does_not() {
    let mut store = synced();
    let added = event("ADDED", &schema("mine", "7", 500));
    assert_eq!(store.apply(SCHEMAS, added), StoreChange::Changed);
    assert_eq!(precedence(&store, "mine"), Some(500));
    let status = event("MODIFIED", &schema("mine", "8", 500));
    assert_eq!(store.apply(SCHEMAS, status), StoreChange::Unchanged);
    let modified = event("MODIFIED", &schema("mine", "9", 600));
    assert_eq!(store.apply(SCHEMAS, modified), StoreChange::Changed);
    assert_eq!(precedence(&store, "mine"), Some(600));
    let deleted = event("DELETED", &schema("mine", "10", 600));
    assert_eq!(store.apply(SCHEMAS, deleted), StoreChange::Changed);
    assert_eq!(precedence(&store, "mine"), None);
}

#[test]
fn a_set_without_mandatory_objects_never_replaces_a_complete_one() {
    let mut store = synced();
    assert_eq!(
        store.replace(SCHEMAS, Vec::new()),
        StoreChange::Incomplete(vec![
            "FlowSchema exempt".to_owned(),
            "FlowSchema catch-all".to_owned()
        ])
    );
    assert_eq!(store.accepted().unwrap().len(), 19);
    let mut shrunken = built_in(SCHEMAS);
    shrunken.retain(|object| object.metadata().name != "catch-all");
    let kept = store.replace(SCHEMAS, shrunken);
    assert_eq!(
        kept,
        StoreChange::Incomplete(vec!["FlowSchema catch-all".to_owned()])
    );
    assert_eq!(store.accepted().unwrap().len(), 19);
    let mut later = schema("catch-all", "9", 10_000);
    later["spec"]["priorityLevelConfiguration"]["name"] = json!("catch-all");
    let back = store.apply(SCHEMAS, event("ADDED", &later));
    assert_eq!(back, StoreChange::Changed, "and with it all is in force");
    let level = built_in(LEVELS)
        .into_iter()
        .find(|object| object.metadata().name == "exempt");
    let deleted = WatchEvent::Deleted(Box::new(level.unwrap()));
    let missing = vec!["PriorityLevelConfiguration exempt".to_owned()];
    assert_eq!(
        store.apply(LEVELS, deleted),
        StoreChange::Incomplete(missing)
    );
    assert_eq!(store.accepted().unwrap().len(), 19);
}

#[test]
fn a_restored_set_stays_until_both_resources_are_listed_with_their_mandatory_objects() {
    let mut store = ClusterStore::default();
    let mut restored = built_in(LEVELS);
    restored.truncate(3);
    store.restore(restored.clone());
    let change = store.replace(LEVELS, built_in(LEVELS));
    assert!(matches!(change, StoreChange::Incomplete(_)), "{change:?}");
    assert_eq!(store.accepted(), Some(&*restored));
    let change = store.replace(SCHEMAS, Vec::new());
    assert!(matches!(change, StoreChange::Incomplete(_)), "{change:?}");
    assert_eq!(store.accepted(), Some(&*restored));
    assert_eq!(
        store.replace(SCHEMAS, built_in(SCHEMAS)),
        StoreChange::Changed
    );
    assert_eq!(store.accepted().unwrap().len(), 19);
}

#[test]
fn an_event_before_the_first_list_changes_nothing() {
    let mut store = ClusterStore::default();
    let added = event("ADDED", &schema("mine", "7", 500));
    assert_eq!(store.apply(SCHEMAS, added), StoreChange::Unchanged);
    assert_eq!(store.accepted(), None);
}

#[test]
fn bookmarks_and_errors_are_no_objects() {
    let bookmark = json!({"kind": "FlowSchema", "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "metadata": {"resourceVersion": "12", "creationTimestamp": null}, "spec": {}});
    assert_eq!(
        event("BOOKMARK", &bookmark),
        WatchEvent::Bookmark("12".to_owned())
    );
    let gone = json!({"kind": "Status", "code": 410, "message": "too old resource version"});
    assert_eq!(event("ERROR", &gone), WatchEvent::Expired);
    let other = json!({"kind": "Status", "code": 500, "message": "no"});
    assert_eq!(
        event("ERROR", &other),
        WatchEvent::Failed("500: no".to_owned())
    );
    for line in [
        "",
        "{",
        "[]",
        r#"{"type":"ADDED"}"#,
        r#"{"type":"X","object":{}}"#,
    ] {
        assert!(parse_event(line).is_err(), "{line}");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_skipped_and_the_rest_is_used() {
    let mut bad = schema("bad", "5", 1);
    bad["spec"]["matchingPrecedence"] = json!("high");
    let list = json!({
        "kind": "FlowSchemaList",
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1beta3",
        "metadata": {"resourceVersion": "77"},
        "items": [schema("good", "4", 500), bad.clone()],
    });
    let listed = parse_list(SCHEMAS, &list.to_string()).unwrap();
    assert_eq!(listed.resource_version, "77");
    assert_eq!(listed.objects.len(), 1);
    assert_eq!(listed.objects[0].metadata().name, "good");
    assert_eq!(listed.unreadable.len(), 1);
    assert!(
        listed.unreadable[0].contains("items[1].spec.matchingPrecedence"),
        "{listed:?}"
    );
    let WatchEvent::Unreadable(why, version) = event("ADDED", &bad) else {
        panic!("it cannot be read");
    };
    assert!(why.contains("matchingPrecedence"), "{why}");
    assert_eq!(version, "5");
    assert!(parse_list(LEVELS, &list.to_string()).is_err());
    assert!(parse_list(SCHEMAS, "<html>").is_err());
    for kind in ["MODIFIED", "DELETED"] {
        assert!(
            matches!(event(kind, &bad), WatchEvent::Expired),
            "{kind}: the objects are listed again"
        );
    }
}

#[test]
fn lists_of_older_versions_are_read_by_their_own_rules() {
    let list = |version: &str, field: &str| {
        let limited = json!({field: 0, "limitResponse": {"type": "Reject"}});
        let list = json!({
            "kind": "PriorityLevelConfigurationList",
            "apiVersion": format!("flowcontrol.apiserver.k8s.io/{version}"),
            "metadata": {"resourceVersion": "1"},
            "items": [{"metadata": {"name": "a"}, "spec": {"type": "Limited", "limited": limited}}],
        });
        let listed = parse_list(LEVELS, &list.to_string()).unwrap();
        let Some(Object::PriorityLevelConfiguration(level)) = listed.objects.first() else {
            panic!("{listed:?}");
        };
        level
            .spec
            .limited
            .as_ref()
            .unwrap()
            .nominal_concurrency_shares
    };
    assert_eq!(list("v1", "nominalConcurrencyShares"), 0);
    assert_eq!(list("v1beta3", "nominalConcurrencyShares"), 30);
    assert_eq!(list("v1beta2", "assuredConcurrencyShares"), 30);
}
