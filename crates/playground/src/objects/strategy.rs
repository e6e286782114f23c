//! The checks of an object before it is stored, and the fields that the server sets.
//!
//! Named after `rest.RESTCreateStrategy` and `RESTUpdateStrategy`, whose steps these are: names,
//! metadata, defaults, and the separation of `spec` from `status`. Only defaults that a reader
//! would miss are set. There is no kubelet and no scheduler: a created pod gets a node and is
//! running at once.

use crate::objects::resources::{ApiResource, ObjectKind};
use crate::objects::storage::object::string_at;
use crate::status::{StatusCause, StatusError};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

/// The values that the server sets in a new object.
#[derive(Clone, Debug)]
pub(crate) struct AssignedValues {
    /// The time, in the format of `metadata.creationTimestamp`.
    pub(crate) now: String,
    pub(crate) uid: String,
    /// The suffix for `generateName`.
    pub(crate) suffix: String,
    /// The node of a pod.
    pub(crate) node: String,
    /// An address of the pod or service network, by kind.
    pub(crate) address: String,
}

/// Maximum length of the prefix of a generated name, in bytes.
const MAX_GENERATED_PREFIX: usize = 58;

/// Prepares `value` to be stored as a new object of `namespace`.
pub(crate) fn prepare_create(
    resource: &'static ApiResource,
    kind: ObjectKind,
    value: &mut Value,
    namespace: &str,
    assigned: &AssignedValues,
) -> Result<(), StatusError> {
    let object = typed_object(resource, value)?;
    let metadata = metadata_mut(object)?;
    resolve_name(resource, metadata, &assigned.suffix)?;
    set_namespace(metadata, namespace)?;
    for key in ["deletionTimestamp", "resourceVersion", "selfLink"] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), assigned.uid.clone().into());
    metadata.insert("creationTimestamp".to_owned(), assigned.now.clone().into());
    add_defaults(kind, object, assigned);
    Ok(())
}

/// Prepares `value` to replace `old`. `status` is true for a write to the status subresource: such
/// a write changes only the status, and any other write does not change it.
pub(crate) fn prepare_update(
    resource: &'static ApiResource,
    kind: ObjectKind,
    value: &mut Value,
    old: &Value,
    status: bool,
) -> Result<(), StatusError> {
    let old_name = string_at(old, &["metadata", "name"]);
    let object = typed_object(resource, value)?;
    let metadata = metadata_mut(object)?;
    let name = metadata
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if name != old_name {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({old_name})"
        )));
    }
    set_namespace(metadata, string_at(old, &["metadata", "namespace"]))?;
    check_resource_version(resource, metadata, old)?;
    let old_metadata = old.get("metadata").and_then(Value::as_object);
    for key in [
        "creationTimestamp",
        "generateName",
        "uid",
        "resourceVersion",
    ] {
        match old_metadata.and_then(|m| m.get(key)) {
            Some(preserved) => metadata.insert(key.to_owned(), preserved.clone()),
            None => metadata.remove(key),
        };
    }
    decode_string_data(kind, object);
    if status {
        let mut preserved = old.as_object().cloned().unwrap_or_default();
        if let Some(status) = object.remove("status") {
            preserved.insert("status".to_owned(), status);
        }
        *object = preserved;
    } else if kind.has_status() {
        match old.get("status") {
            Some(preserved) => object.insert("status".to_owned(), preserved.clone()),
            None => object.remove("status"),
        };
    }
    Ok(())
}

/// Sets `metadata.generation` of an object that replaces `old`: it counts the changes of the spec.
pub(crate) fn set_generation(value: &mut Value, old: &Value) {
    let generation = old.pointer("/metadata/generation").and_then(Value::as_u64);
    let generation = generation.unwrap_or(1) + u64::from(value.get("spec") != old.get("spec"));
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("generation".to_owned(), generation.into());
    }
}

/// A resource version in the written object must be the stored one: no other write came in between.
fn check_resource_version(
    resource: &'static ApiResource,
    metadata: &Map<String, Value>,
    old: &Value,
) -> Result<(), StatusError> {
    let requested = metadata.get("resourceVersion").and_then(Value::as_str);
    let current = string_at(old, &["metadata", "resourceVersion"]);
    if requested.is_some_and(|requested| !requested.is_empty() && requested != current) {
        let name = string_at(old, &["metadata", "name"]);
        return Err(StatusError::conflict(resource.resource_ref(name)));
    }
    Ok(())
}

/// The object in `value`; its type must be the resource's or absent.
fn typed_object<'v>(
    resource: &'static ApiResource,
    value: &'v mut Value,
) -> Result<&'v mut Map<String, Value>, StatusError> {
    let api_version = string_at(value, &["apiVersion"]);
    let expected = resource.group_version();
    if !api_version.is_empty() && api_version != expected {
        return Err(StatusError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version \
             ({expected})"
        )));
    }
    let kind = string_at(value, &["kind"]);
    if !kind.is_empty() && kind != resource.kind {
        return Err(StatusError::bad_request(format!(
            "{kind} in version {expected:?} cannot be handled as a {}",
            resource.kind
        )));
    }
    value
        .as_object_mut()
        .ok_or_else(|| StatusError::bad_request("the object provided is not a JSON object"))
}

fn metadata_mut(object: &mut Map<String, Value>) -> Result<&mut Map<String, Value>, StatusError> {
    let metadata = object
        .entry("metadata")
        .and_modify(|value| {
            if value.is_null() {
                *value = json!({});
            }
        })
        .or_insert_with(|| json!({}));
    metadata
        .as_object_mut()
        .ok_or_else(|| StatusError::bad_request("metadata is not a JSON object"))
}

/// Generates the name if necessary, and checks it.
fn resolve_name(
    resource: &'static ApiResource,
    metadata: &mut Map<String, Value>,
    suffix: &str,
) -> Result<(), StatusError> {
    let text = |key: &str| {
        metadata
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (name, prefix) = (text("name").to_owned(), text("generateName").to_owned());
    let name = if name.is_empty() && !prefix.is_empty() {
        let prefix: String = prefix.chars().take(MAX_GENERATED_PREFIX).collect();
        format!("{prefix}{suffix}")
    } else {
        name
    };
    if name.is_empty() {
        let cause = StatusCause::required("metadata.name", "name or generateName is required");
        return Err(StatusError::invalid(resource.resource_ref(&name), cause));
    }
    check_name(resource, &name)?;
    metadata.insert("name".to_owned(), name.into());
    Ok(())
}

/// `IsDNS1123Subdomain`, which applies to every kind here; upstream is stricter for some.
pub(crate) fn check_name(resource: &'static ApiResource, name: &str) -> Result<(), StatusError> {
    const FORMAT_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
        characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
        'example.com', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    const MAX_LENGTH: usize = 253;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(plain)
            && label.ends_with(plain)
            && label.chars().all(|c| plain(c) || c == '-')
    };
    let why = if name.len() > MAX_LENGTH {
        "must be no more than 253 characters"
    } else if name.split('.').all(label) {
        return Ok(());
    } else {
        FORMAT_RULE
    };
    let cause = StatusCause::invalid("metadata.name", name, why);
    Err(StatusError::invalid(resource.resource_ref(name), cause))
}

/// Sets the namespace of the path. The object may contain the same namespace, but no other.
fn set_namespace(metadata: &mut Map<String, Value>, namespace: &str) -> Result<(), StatusError> {
    let said = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !said.is_empty() && said != namespace {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    Ok(())
}

fn set_default(object: &mut Map<String, Value>, key: &str, value: Value) {
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), value);
    }
}

/// The object under `key`; inserted if absent.
fn object_entry<'o>(
    object: &'o mut Map<String, Value>,
    key: &str,
) -> Option<&'o mut Map<String, Value>> {
    set_default(object, key, json!({}));
    object.get_mut(key)?.as_object_mut()
}

fn add_defaults(kind: ObjectKind, object: &mut Map<String, Value>, assigned: &AssignedValues) {
    match kind {
        ObjectKind::ConfigMap
        | ObjectKind::Event
        | ObjectKind::Lease
        | ObjectKind::Node
        | ObjectKind::ServiceAccount => {}
        // Its other defaults are those of the engine: see `serving::fairness`.
        ObjectKind::FlowSchema | ObjectKind::PriorityLevelConfiguration => {
            object.insert("status".to_owned(), json!({}));
            if let Some(metadata) = object_entry(object, "metadata") {
                metadata.insert("generation".to_owned(), 1.into());
            }
        }
        ObjectKind::Namespace => default_namespace(object),
        ObjectKind::Pod => default_pod(object, assigned),
        ObjectKind::Secret => {
            decode_string_data(kind, object);
            set_default(object, "type", "Opaque".into());
        }
        ObjectKind::Service => default_service(object, assigned),
    }
}

fn default_namespace(object: &mut Map<String, Value>) {
    if let Some(metadata) = object_entry(object, "metadata") {
        let name = metadata.get("name").cloned().unwrap_or_default();
        if let Some(labels) = object_entry(metadata, "labels") {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    }
    if let Some(spec) = object_entry(object, "spec") {
        set_default(spec, "finalizers", json!(["kubernetes"]));
    }
    object.insert("status".to_owned(), json!({"phase": "Active"}));
}

/// Moves `stringData`, a Secret's write-only field, to `data`.
fn decode_string_data(kind: ObjectKind, object: &mut Map<String, Value>) {
    if kind != ObjectKind::Secret {
        return;
    }
    let Some(Value::Object(plain)) = object.remove("stringData") else {
        return;
    };
    if let Some(data) = object_entry(object, "data") {
        for (key, value) in plain {
            let encoded = BASE64_STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

fn default_pod(object: &mut Map<String, Value>, assigned: &AssignedValues) {
    let Some(spec) = object_entry(object, "spec") else {
        return;
    };
    set_default(spec, "nodeName", assigned.node.clone().into());
    set_default(spec, "restartPolicy", "Always".into());
    set_default(spec, "schedulerName", "default-scheduler".into());
    set_default(spec, "serviceAccountName", "default".into());
    set_default(spec, "terminationGracePeriodSeconds", 30.into());
    let containers = spec.get("containers").and_then(Value::as_array);
    let statuses: Vec<Value> = containers
        .into_iter()
        .flatten()
        .map(|container| {
            json!({
                "name": container.get("name"),
                "image": container.get("image"),
                "imageID": "",
                "ready": true,
                "restartCount": 0,
                "started": true,
                "state": {"running": {"startedAt": assigned.now}},
            })
        })
        .collect();
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": assigned.now})
    });
    object.insert(
        "status".to_owned(),
        json!({
            "phase": "Running",
            "podIP": assigned.address,
            "podIPs": [{"ip": assigned.address}],
            "qosClass": "BestEffort",
            "startTime": assigned.now,
            "conditions": conditions,
            "containerStatuses": statuses,
        }),
    );
}

fn default_service(object: &mut Map<String, Value>, assigned: &AssignedValues) {
    let Some(spec) = object_entry(object, "spec") else {
        return;
    };
    set_default(spec, "type", "ClusterIP".into());
    set_default(spec, "clusterIP", assigned.address.clone().into());
    set_default(spec, "sessionAffinity", "None".into());
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(port) = port.as_object_mut() {
            set_default(port, "protocol", "TCP".into());
            let number = port.get("port").cloned().unwrap_or_default();
            set_default(port, "targetPort", number);
        }
    }
    object.insert("status".to_owned(), json!({"loadBalancer": {}}));
}

#[cfg(test)]
mod tests {
    use super::{AssignedValues, prepare_create, prepare_update};
    use crate::objects::resources::{ApiResource, ObjectKind};
    use crate::status::StatusError;
    use serde_json::{Value, json};

    fn assigned_values() -> AssignedValues {
        AssignedValues {
            now: "2026-11-21T03:44:00Z".into(),
            uid: "u-1".into(),
            suffix: "x7k2p".into(),
            node: "node-0".into(),
            address: "10.0.0.1".into(),
        }
    }

    fn create(plural: &str, kind: ObjectKind, mut value: Value) -> Result<Value, StatusError> {
        let resource = ApiResource::find("", "v1", plural).unwrap();
        let namespace = if resource.namespaced { "team-a" } else { "" };
        prepare_create(resource, kind, &mut value, namespace, &assigned_values())?;
        Ok(value)
    }

    #[test]
    fn a_new_object_gets_its_metadata() {
        let value = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"generateName": "cm-", "creationTimestamp": null, "resourceVersion": "9"},
            "data": {"a": "b"},
        });
        assert_eq!(
            create("configmaps", ObjectKind::ConfigMap, value).unwrap(),
            json!({
                "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {
                    "name": "cm-x7k2p", "generateName": "cm-", "namespace": "team-a", "uid": "u-1",
                    "creationTimestamp": "2026-11-21T03:44:00Z",
                },
                "data": {"a": "b"},
            })
        );
    }

    #[test]
    fn bad_names_types_and_namespaces_are_rejected() {
        let code = |value| create("configmaps", ObjectKind::ConfigMap, value).map_err(|s| s.code);
        for name in ["Bad_Name", "", "-a", "a-", "a..b"] {
            assert_eq!(
                code(json!({"metadata": {"name": name}})),
                Err(422),
                "{name}"
            );
        }
        let metadata = json!({"name": "a", "namespace": "team-b"});
        assert_eq!(code(json!({"metadata": metadata})), Err(400));
        assert_eq!(
            code(json!({"kind": "Pod", "metadata": {"name": "a"}})),
            Err(400)
        );
        assert_eq!(
            code(json!({"apiVersion": "v2", "metadata": {"name": "a"}})),
            Err(400)
        );
        assert_eq!(code(json!([])), Err(400));
        assert!(code(json!({"metadata": {"name": "kube-root-ca.crt"}})).is_ok());
    }

    #[test]
    fn a_pod_runs_at_once_and_a_secret_is_encoded() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let pod = create("pods", ObjectKind::Pod, pod).unwrap();
        assert_eq!(pod["spec"]["nodeName"], "node-0");
        assert_eq!(pod["status"]["phase"], "Running");
        assert_eq!(pod["status"]["containerStatuses"][0]["name"], "c");
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
        let secret = create("secrets", ObjectKind::Secret, secret).unwrap();
        assert_eq!(
            (&secret["data"]["k"], &secret["type"]),
            (&json!("dg=="), &json!("Opaque"))
        );
        assert!(secret.get("stringData").is_none());
    }

    #[test]
    fn an_update_keeps_metadata_and_the_other_part() {
        let pods = ApiResource::find("", "v1", "pods").unwrap();
        let old = json!({
            "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1", "resourceVersion": "5"},
            "spec": {"a": 1}, "status": {"phase": "Running"},
        });
        let new = json!({
            "metadata": {"name": "p", "uid": "other", "labels": {"a": "b"}},
            "spec": {"a": 2}, "status": {"phase": "Failed"},
        });
        let mut plain = new.clone();
        prepare_update(pods, ObjectKind::Pod, &mut plain, &old, false).unwrap();
        assert_eq!(plain["spec"]["a"], 2);
        assert_eq!(plain["status"]["phase"], "Running");
        assert_eq!(plain["metadata"]["uid"], "u-1");
        let mut status = new.clone();
        prepare_update(pods, ObjectKind::Pod, &mut status, &old, true).unwrap();
        assert_eq!(status["spec"]["a"], 1);
        assert_eq!(status["status"]["phase"], "Failed");
        let mut late = new;
        late["metadata"]["resourceVersion"] = json!("4");
        let error = prepare_update(pods, ObjectKind::Pod, &mut late, &old, false).unwrap_err();
        assert_eq!((error.code, error.reason), (409, "Conflict"));
    }
}
