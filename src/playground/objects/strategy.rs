//! What must hold of an object before it is stored, and what the server adds to it.
//!
//! Named after `rest.RESTCreateStrategy` and `RESTUpdateStrategy`, whose steps these are: names,
//! metadata, defaults, and the separation of `spec` from `status`. Only those defaults are added
//! that a reader would miss. There is no kubelet and no scheduler: a created pod is put on a node and
//! is running at once.

use crate::playground::objects::resources::Kind;
use crate::playground::objects::resources::Resource;
use crate::playground::objects::store::text_at;
use crate::playground::status::Cause;
use crate::playground::status::Status;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

/// What the server knows and an object does not say.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The time, as `metadata.creationTimestamp` has it.
    pub(crate) now: String,
    pub(crate) uid: String,
    /// What `generateName` is completed with.
    pub(crate) suffix: String,
    /// Where a pod would be put.
    pub(crate) node: String,
    /// An address of the pod or service network, by kind.
    pub(crate) address: String,
}

/// The longest name that `generateName` may make.
const LONGEST_GENERATED_PREFIX: usize = 58;

/// Makes `value` fit to be stored as a new object of `namespace`.
pub(crate) fn prepare_create(
    resource: &'static Resource,
    kind: Kind,
    value: &mut Value,
    namespace: &str,
    facts: &Facts,
) -> Result<(), Status> {
    let object = typed_object(resource, value)?;
    let metadata = metadata_of(object)?;
    complete_name(resource, metadata, &facts.suffix)?;
    place(metadata, namespace)?;
    for key in ["deletionTimestamp", "resourceVersion", "selfLink"] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), facts.uid.clone().into());
    metadata.insert("creationTimestamp".to_owned(), facts.now.clone().into());
    add_defaults(kind, object, facts);
    Ok(())
}

/// Makes `value` fit to take the place of `old`. `status` says whether the status's path was used:
/// then nothing else changes, and otherwise the status does not.
pub(crate) fn prepare_update(
    resource: &'static Resource,
    kind: Kind,
    value: &mut Value,
    old: &Value,
    status: bool,
) -> Result<(), Status> {
    let old_name = text_at(old, &["metadata", "name"]);
    let object = typed_object(resource, value)?;
    let metadata = metadata_of(object)?;
    let name = metadata
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if name != old_name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({old_name})"
        )));
    }
    place(metadata, text_at(old, &["metadata", "namespace"]))?;
    check_version(resource, metadata, old)?;
    let old_metadata = old.get("metadata").and_then(Value::as_object);
    for key in [
        "creationTimestamp",
        "generateName",
        "uid",
        "resourceVersion",
    ] {
        match old_metadata.and_then(|m| m.get(key)) {
            Some(kept) => metadata.insert(key.to_owned(), kept.clone()),
            None => metadata.remove(key),
        };
    }
    decode_string_data(kind, object);
    if status {
        let mut kept = old.as_object().cloned().unwrap_or_default();
        if let Some(status) = object.remove("status") {
            kept.insert("status".to_owned(), status);
        }
        *object = kept;
    } else if kind.has_status() {
        match old.get("status") {
            Some(kept) => object.insert("status".to_owned(), kept.clone()),
            None => object.remove("status"),
        };
    }
    Ok(())
}

/// A version in the written object must be the stored one: nobody wrote in between.
fn check_version(
    resource: &'static Resource,
    metadata: &Map<String, Value>,
    old: &Value,
) -> Result<(), Status> {
    let asked = metadata.get("resourceVersion").and_then(Value::as_str);
    let current = text_at(old, &["metadata", "resourceVersion"]);
    if asked.is_some_and(|asked| !asked.is_empty() && asked != current) {
        let name = text_at(old, &["metadata", "name"]);
        return Err(Status::conflict(resource.subject(name)));
    }
    Ok(())
}

/// The object within `value`, whose type is the resource's, or left out.
fn typed_object<'v>(
    resource: &'static Resource,
    value: &'v mut Value,
) -> Result<&'v mut Map<String, Value>, Status> {
    let api_version = text_at(value, &["apiVersion"]);
    let expected = resource.group_version();
    if !api_version.is_empty() && api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version \
             ({expected})"
        )));
    }
    let kind = text_at(value, &["kind"]);
    if !kind.is_empty() && kind != resource.kind {
        return Err(Status::bad_request(format!(
            "{kind} in version {expected:?} cannot be handled as a {}",
            resource.kind
        )));
    }
    value
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("the object provided is not a JSON object"))
}

fn metadata_of(object: &mut Map<String, Value>) -> Result<&mut Map<String, Value>, Status> {
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
        .ok_or_else(|| Status::bad_request("metadata is not a JSON object"))
}

/// Generates the name if asked to, and checks it.
fn complete_name(
    resource: &'static Resource,
    metadata: &mut Map<String, Value>,
    suffix: &str,
) -> Result<(), Status> {
    let text = |key: &str| {
        metadata
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (name, prefix) = (text("name").to_owned(), text("generateName").to_owned());
    let name = if name.is_empty() && !prefix.is_empty() {
        let prefix: String = prefix.chars().take(LONGEST_GENERATED_PREFIX).collect();
        format!("{prefix}{suffix}")
    } else {
        name
    };
    if name.is_empty() {
        let cause = Cause::required("metadata.name", "name or generateName is required");
        return Err(Status::invalid(resource.subject(&name), cause));
    }
    check_name(resource, &name)?;
    metadata.insert("name".to_owned(), name.into());
    Ok(())
}

/// `IsDNS1123Subdomain`, which holds for every kind here; upstream asks more of some.
pub(crate) fn check_name(resource: &'static Resource, name: &str) -> Result<(), Status> {
    const WHY: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
        characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
        'example.com', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    const LONGEST: usize = 253;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(plain)
            && label.ends_with(plain)
            && label.chars().all(|c| plain(c) || c == '-')
    };
    let why = if name.len() > LONGEST {
        "must be no more than 253 characters"
    } else if name.split('.').all(label) {
        return Ok(());
    } else {
        WHY
    };
    let cause = Cause::invalid("metadata.name", name, why);
    Err(Status::invalid(resource.subject(name), cause))
}

/// The namespace of the path, which the object may repeat and not contradict.
fn place(metadata: &mut Map<String, Value>, namespace: &str) -> Result<(), Status> {
    let said = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !said.is_empty() && said != namespace {
        return Err(Status::bad_request(
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

fn default(object: &mut Map<String, Value>, key: &str, value: Value) {
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), value);
    }
}

/// The object under `key`, made if need be.
fn section<'o>(
    object: &'o mut Map<String, Value>,
    key: &str,
) -> Option<&'o mut Map<String, Value>> {
    default(object, key, json!({}));
    object.get_mut(key)?.as_object_mut()
}

fn add_defaults(kind: Kind, object: &mut Map<String, Value>, facts: &Facts) {
    match kind {
        Kind::ConfigMap | Kind::Event | Kind::Lease | Kind::Node | Kind::ServiceAccount => {}
        Kind::Namespace => namespace_defaults(object),
        Kind::Pod => pod_defaults(object, facts),
        Kind::Secret => {
            decode_string_data(kind, object);
            default(object, "type", "Opaque".into());
        }
        Kind::Service => service_defaults(object, facts),
    }
}

fn namespace_defaults(object: &mut Map<String, Value>) {
    if let Some(metadata) = section(object, "metadata") {
        let name = metadata.get("name").cloned().unwrap_or_default();
        if let Some(labels) = section(metadata, "labels") {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    }
    if let Some(spec) = section(object, "spec") {
        default(spec, "finalizers", json!(["kubernetes"]));
    }
    object.insert("status".to_owned(), json!({"phase": "Active"}));
}

/// `stringData` is a Secret's write-only convenience.
fn decode_string_data(kind: Kind, object: &mut Map<String, Value>) {
    if kind != Kind::Secret {
        return;
    }
    let Some(Value::Object(plain)) = object.remove("stringData") else {
        return;
    };
    if let Some(data) = section(object, "data") {
        for (key, value) in plain {
            let encoded = BASE64_STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

fn pod_defaults(object: &mut Map<String, Value>, facts: &Facts) {
    let Some(spec) = section(object, "spec") else {
        return;
    };
    default(spec, "nodeName", facts.node.clone().into());
    default(spec, "restartPolicy", "Always".into());
    default(spec, "schedulerName", "default-scheduler".into());
    default(spec, "serviceAccountName", "default".into());
    default(spec, "terminationGracePeriodSeconds", 30.into());
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
                "state": {"running": {"startedAt": facts.now}},
            })
        })
        .collect();
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
        json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": facts.now})
    });
    object.insert(
        "status".to_owned(),
        json!({
            "phase": "Running",
            "podIP": facts.address,
            "podIPs": [{"ip": facts.address}],
            "qosClass": "BestEffort",
            "startTime": facts.now,
            "conditions": conditions,
            "containerStatuses": statuses,
        }),
    );
}

fn service_defaults(object: &mut Map<String, Value>, facts: &Facts) {
    let Some(spec) = section(object, "spec") else {
        return;
    };
    default(spec, "type", "ClusterIP".into());
    default(spec, "clusterIP", facts.address.clone().into());
    default(spec, "sessionAffinity", "None".into());
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", "TCP".into());
            let number = port.get("port").cloned().unwrap_or_default();
            default(port, "targetPort", number);
        }
    }
    object.insert("status".to_owned(), json!({"loadBalancer": {}}));
}

#[cfg(test)]
mod tests {
    use super::Facts;
    use super::prepare_create;
    use super::prepare_update;
    use crate::playground::objects::resources::Kind;
    use crate::playground::objects::resources::Resource;
    use crate::playground::status::Status;
    use serde_json::Value;
    use serde_json::json;

    fn facts() -> Facts {
        Facts {
            now: "2026-11-21T03:44:00Z".into(),
            uid: "u-1".into(),
            suffix: "x7k2p".into(),
            node: "node-0".into(),
            address: "10.0.0.1".into(),
        }
    }

    fn created(plural: &str, kind: Kind, mut value: Value) -> Result<Value, Status> {
        let resource = Resource::find("", "v1", plural).unwrap();
        let namespace = if resource.namespaced { "team-a" } else { "" };
        prepare_create(resource, kind, &mut value, namespace, &facts())?;
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
            created("configmaps", Kind::ConfigMap, value).unwrap(),
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
    fn bad_names_types_and_namespaces_are_refused() {
        let code = |value| created("configmaps", Kind::ConfigMap, value).map_err(|s| s.code);
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
        let pod = created("pods", Kind::Pod, pod).unwrap();
        assert_eq!(pod["spec"]["nodeName"], "node-0");
        assert_eq!(pod["status"]["phase"], "Running");
        assert_eq!(pod["status"]["containerStatuses"][0]["name"], "c");
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
        let secret = created("secrets", Kind::Secret, secret).unwrap();
        assert_eq!(
            (&secret["data"]["k"], &secret["type"]),
            (&json!("dg=="), &json!("Opaque"))
        );
        assert!(secret.get("stringData").is_none());
    }

    #[test]
    fn an_update_keeps_what_is_not_its_business() {
        let pods = Resource::find("", "v1", "pods").unwrap();
        let old = json!({
            "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1", "resourceVersion": "5"},
            "spec": {"a": 1}, "status": {"phase": "Running"},
        });
        let new = json!({
            "metadata": {"name": "p", "uid": "other", "labels": {"a": "b"}},
            "spec": {"a": 2}, "status": {"phase": "Failed"},
        });
        let mut plain = new.clone();
        prepare_update(pods, Kind::Pod, &mut plain, &old, false).unwrap();
        assert_eq!(plain["spec"]["a"], 2);
        assert_eq!(plain["status"]["phase"], "Running");
        assert_eq!(plain["metadata"]["uid"], "u-1");
        let mut status = new.clone();
        prepare_update(pods, Kind::Pod, &mut status, &old, true).unwrap();
        assert_eq!(status["spec"]["a"], 1);
        assert_eq!(status["status"]["phase"], "Failed");
        let mut late = new;
        late["metadata"]["resourceVersion"] = json!("4");
        let refused = prepare_update(pods, Kind::Pod, &mut late, &old, false).unwrap_err();
        assert_eq!((refused.code, refused.reason), (409, "Conflict"));
    }
}
