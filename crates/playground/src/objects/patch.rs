//! The four types of patch.
//!
//! JSON patch and JSON merge patch are exact. Strategic merge derives the merge keys of the
//! built-in kinds from the name of the field (the Go types declare them as `patchMergeKey`), and
//! supports the directives `$patch`, `$setElementOrder`, `$deleteFromPrimitiveList` and
//! `$retainKeys`. Server-side apply merges as strategic merge does, without field ownership: a
//! field that is no longer applied stays, and there are no conflicts.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

type JsonObject = Map<String, Value>;

/// Maximum number of bytes that a JSON patch may copy, as in kube-apiserver: copies of copies grow
/// quickly.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Maximum depth of an object after a JSON patch: a stored object must be readable again, and
/// `serde_json` reads 127 levels. (Other patches are no deeper than they or the object are.)
const MAX_DEPTH: usize = 100;

/// The reason why a patch was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PatchError {
    /// The patch cannot be parsed; the message is for a 400.
    Malformed(String),
    /// The patch does not fit the object, or its test failed: a 422.
    Unprocessable,
}

/// The type of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    Apply,
    Json,
    Merge,
    Strategic,
}

impl PatchType {
    /// The content types, as the error for another type lists them.
    pub(crate) const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
         application/strategic-merge-patch+json, application/apply-patch+yaml";

    /// The patch type of a content type without its parameters.
    pub(crate) fn from_content_type(content_type: &str) -> Option<Self> {
        match content_type {
            "application/apply-patch+yaml" => Some(Self::Apply),
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }

    /// Applies `patch` to `target`. After an error `target` is unchanged.
    pub(crate) fn apply(self, target: &mut Value, patch: &Value) -> Result<(), PatchError> {
        match self {
            Self::Json => apply_json_patch(target, patch),
            Self::Merge => {
                as_object(patch)?;
                json_patch::merge(target, patch);
                Ok(())
            }
            Self::Apply | Self::Strategic => {
                let patch = as_object(patch)?;
                let target = target.as_object_mut().ok_or(PatchError::Unprocessable)?;
                merge_object(target, patch);
                Ok(())
            }
        }
    }
}

fn as_object(patch: &Value) -> Result<&JsonObject, PatchError> {
    patch
        .as_object()
        .ok_or_else(|| PatchError::Malformed("a patch of this type must be an object".to_owned()))
}

fn apply_json_patch(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let patch: json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    let mut patched = target.clone();
    let mut copied = 0_usize;
    for operation in &patch.0 {
        if let PatchOperation::Copy(copy) = operation {
            let source = patched.pointer(copy.from.as_str());
            copied = copied.saturating_add(source.map_or(0, |source| source.to_string().len()));
        }
        if copied > MAX_COPIED_BYTES {
            return Err(PatchError::Unprocessable);
        }
        json_patch::patch(&mut patched, std::slice::from_ref(operation))
            .map_err(|_| PatchError::Unprocessable)?;
        if is_deeper_than(&patched, MAX_DEPTH) {
            return Err(PatchError::Unprocessable);
        }
    }
    *target = patched;
    Ok(())
}

fn is_deeper_than(value: &Value, levels: usize) -> bool {
    match (value, levels.checked_sub(1)) {
        (Value::Array(_) | Value::Object(_), None) => true,
        (Value::Array(list), Some(levels)) => list.iter().any(|item| is_deeper_than(item, levels)),
        (Value::Object(map), Some(levels)) => map.values().any(|item| is_deeper_than(item, levels)),
        (Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_), _) => false,
    }
}

/// The keys by which a list of this name is merged, in the order in which they are tried. Without
/// keys the list is replaced.
///
/// `ports` are those of a container (`containerPort`) or a service (`port`).
fn merge_keys(field: &str) -> &'static [&'static str] {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "volumes"
        | "imagePullSecrets"
        | "secrets"
        | "resourceClaims" => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "ports" => &["containerPort", "port"],
        "conditions" | "addresses" => &["type"],
        "ownerReferences" => &["uid"],
        "hostAliases" | "podIPs" | "hostIPs" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey"],
        _ => &[],
    }
}

/// Whether lists of scalars with this name are merged as sets instead of replaced.
fn is_merged_set(field: &str) -> bool {
    field == "finalizers"
}

fn is_directive(key: &str) -> bool {
    key.starts_with('$')
}

fn merge_object(target: &mut JsonObject, patch: &JsonObject) {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = strip_object_directives(patch);
            return;
        }
        Some("delete") => {
            target.clear();
            return;
        }
        Some(_) | None => {}
    }
    if let Some(Value::Array(retained)) = patch.get("$retainKeys") {
        target.retain(|key, _| retained.iter().any(|k| k == key));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            delete_values(target.get_mut(field), value);
        } else if !is_directive(key) {
            merge_field(target, key, value);
        }
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$setElementOrder/") {
            set_order(target.get_mut(field), value, merge_keys(field));
        }
    }
}

fn merge_field(target: &mut JsonObject, key: &str, value: &Value) {
    match (value, target.get_mut(key)) {
        (Value::Null, _) => {
            target.remove(key);
        }
        (Value::Object(patch), Some(Value::Object(old))) => merge_object(old, patch),
        (Value::Array(patch), Some(Value::Array(old))) => merge_list(old, patch, key),
        (_, Some(old)) => *old = strip_directives(value),
        (_, None) => {
            target.insert(key.to_owned(), strip_directives(value));
        }
    }
}

fn merge_list(old: &mut Vec<Value>, patch: &[Value], field: &str) {
    if is_merged_set(field) {
        for value in patch {
            if !old.contains(value) {
                old.push(value.clone());
            }
        }
        return;
    }
    let replaces = patch.iter().any(|item| directive(item) == Some("replace"));
    match common_merge_key(patch, merge_keys(field)) {
        Some(key) if !replaces => {
            for item in patch {
                merge_item(old, item, key);
            }
        }
        Some(_) | None => *old = strip_list_directives(patch),
    }
}

fn merge_item(old: &mut Vec<Value>, item: &Value, key: &str) {
    let index = old.iter().position(|o| o.get(key) == item.get(key));
    match (index, directive(item)) {
        (Some(index), Some("delete")) => {
            old.remove(index);
        }
        (None, Some("delete")) => {}
        (Some(index), _) => {
            if let (Some(Value::Object(old)), Value::Object(item)) = (old.get_mut(index), item) {
                merge_object(old, item);
            }
        }
        (None, _) => old.push(strip_directives(item)),
    }
}

fn directive(item: &Value) -> Option<&str> {
    item.get("$patch")?.as_str()
}

/// The first merge key that every item has.
fn common_merge_key(items: &[Value], keys: &[&'static str]) -> Option<&'static str> {
    keys.iter()
        .copied()
        .find(|key| items.iter().all(|item| item.get(*key).is_some()))
}

fn delete_values(target: Option<&mut Value>, values: &Value) {
    if let (Some(Value::Array(old)), Value::Array(values)) = (target, values) {
        old.retain(|value| !values.contains(value));
    }
}

/// Sorts the listed elements into the listed order; the others keep their positions.
fn set_order(target: Option<&mut Value>, order: &Value, keys: &[&'static str]) {
    let (Some(Value::Array(list)), Value::Array(order)) = (target, order) else {
        return;
    };
    let key = common_merge_key(order, keys);
    let rank = |item: &Value| {
        order.iter().position(|o| match key {
            Some(key) => o.get(key) == item.get(key),
            None => o == item,
        })
    };
    let mut listed: Vec<(usize, Value)> = list
        .iter()
        .filter_map(|item| Some((rank(item)?, item.clone())))
        .collect();
    listed.sort_by_key(|(rank, _)| *rank);
    let mut listed = listed.into_iter();
    for item in list.iter_mut().filter(|item| rank(item).is_some()) {
        if let Some((_, next)) = listed.next() {
            *item = next;
        }
    }
}

/// The value that a patch adds where none exists: without directives and nulls.
fn strip_directives(value: &Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(strip_object_directives(object)),
        Value::Array(list) => Value::Array(strip_list_directives(list)),
        Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn strip_object_directives(object: &JsonObject) -> JsonObject {
    object
        .iter()
        .filter(|(key, value)| !is_directive(key) && !value.is_null())
        .map(|(key, value)| (key.clone(), strip_directives(value)))
        .collect()
}

fn strip_list_directives(list: &[Value]) -> Vec<Value> {
    list.iter()
        .filter(|item| directive(item).is_none())
        .map(strip_directives)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_DEPTH, PatchError, PatchType};
    use serde_json::{Value, json};

    fn apply_patch(kind: PatchType, mut target: Value, patch: &Value) -> Result<Value, PatchError> {
        kind.apply(&mut target, patch)?;
        Ok(target)
    }

    fn apply_strategic(target: Value, patch: &Value) -> Value {
        apply_patch(PatchType::Strategic, target, patch).unwrap()
    }

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let target = json!({"data": {"a": "b", "c": "d"}, "list": [1, 2]});
        let patch = json!({"data": {"a": null, "e": "f"}, "list": [3]});
        assert_eq!(
            apply_patch(PatchType::Merge, target, &patch),
            Ok(json!({"data": {"c": "d", "e": "f"}, "list": [3]}))
        );
    }

    #[test]
    fn a_json_patch_is_all_or_nothing() {
        let mut target = json!({"data": {"a": "b"}});
        let patch = json!([
            {"op": "add", "path": "/data/c", "value": "d"},
            {"op": "test", "path": "/data/a", "value": "x"},
        ]);
        let result = PatchType::Json.apply(&mut target, &patch);
        assert_eq!(result, Err(PatchError::Unprocessable));
        assert_eq!(target, json!({"data": {"a": "b"}}));
        let malformed = PatchType::Json.apply(&mut target, &json!({"op": "add"}));
        assert!(matches!(malformed, Err(PatchError::Malformed(_))));
    }

    #[test]
    fn a_json_patch_does_not_grow_without_bound() {
        let wide = |n: usize| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")});
        let deep = |n: usize| json!({"op": "add", "path": "/a".repeat(n + 1), "value": {}});
        let patches = [
            (0..64).map(wide).collect::<Value>(),
            (0..MAX_DEPTH).map(deep).collect(),
        ];
        for patch in patches {
            let mut target = json!({"data": {}});
            let result = PatchType::Json.apply(&mut target, &patch);
            assert_eq!(result, Err(PatchError::Unprocessable));
            assert_eq!(target, json!({"data": {}}));
        }
    }

    #[test]
    fn containers_are_merged_by_name() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}]},
            {"name": "b", "image": "b:1", "args": ["x"]},
        ]}});
        let patch = json!({"spec": {"containers": [
            {"name": "b", "image": "b:2", "args": null},
            {"name": "a", "env": [{"name": "Y", "value": "2"}]},
            {"name": "c", "image": "c:1"},
        ]}});
        assert_eq!(
            apply_strategic(pod, &patch),
            json!({"spec": {"containers": [
                {"name": "a", "image": "a:1", "env": [
                    {"name": "X", "value": "1"}, {"name": "Y", "value": "2"},
                ]},
                {"name": "b", "image": "b:2"},
                {"name": "c", "image": "c:1"},
            ]}})
        );
    }

    #[test]
    fn directives_delete_replace_retain_and_order_items() {
        let pod = json!({
            "metadata": {"finalizers": ["x", "y"]},
            "containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
            "selector": {"a": "b"},
            "args": [1, 2],
        });
        let patch = json!({
            "metadata": {"finalizers": ["z"], "$deleteFromPrimitiveList/finalizers": ["x"]},
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [{"name": "b", "$patch": "delete"}],
            "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
            "selector": {"$patch": "replace", "c": "d"},
            "args": [3],
        });
        assert_eq!(
            apply_strategic(pod, &patch),
            json!({
                "metadata": {"finalizers": ["y", "z"]},
                "containers": [{"name": "c"}, {"name": "a"}],
                "strategy": {"type": "Recreate"},
                "selector": {"c": "d"},
                "args": [3],
            })
        );
    }

    #[test]
    fn ports_of_services_and_of_containers_have_different_keys() {
        let service = json!({"ports": [{"port": 80, "name": "http"}]});
        let patch = json!({"ports": [{"port": 80, "targetPort": 8080}, {"port": 443}]});
        assert_eq!(
            apply_strategic(service, &patch),
            json!({"ports": [{"port": 80, "name": "http", "targetPort": 8080}, {"port": 443}]})
        );
        let container = json!({"ports": [{"containerPort": 80}]});
        let patch = json!({"ports": [{"containerPort": 80, "name": "http"}]});
        assert_eq!(
            apply_strategic(container, &patch),
            json!({"ports": [{"containerPort": 80, "name": "http"}]})
        );
    }

    #[test]
    fn an_applied_object_is_merged_into_the_stored_one() {
        let target = json!({"data": {"a": "b"}, "metadata": {"name": "x"}});
        let patch = json!({"data": {"c": "d"}, "kind": "ConfigMap"});
        assert_eq!(
            apply_patch(PatchType::Apply, target, &patch),
            Ok(json!({
                "data": {"a": "b", "c": "d"}, "metadata": {"name": "x"}, "kind": "ConfigMap",
            }))
        );
        let list = apply_patch(PatchType::Apply, json!({}), &json!([1]));
        assert!(matches!(list, Err(PatchError::Malformed(_))));
    }
}
