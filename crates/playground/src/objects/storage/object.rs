//! A stored object: serialized once per version, with its labels and selectable fields.

use crate::objects::resources::ObjectKind;
use bytes::Bytes;
use serde_json::{Map, Value};

/// One version of an object, serialized once.
#[derive(Debug)]
pub(crate) struct StoredObject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) version: u64,
    labels: Vec<(String, String)>,
    fields: Vec<(&'static str, String)>,
    /// `{"metadata":{…},…}`: without `kind` and `apiVersion`, which the response adds in front.
    json: Bytes,
    /// The bytes of the metadata within `json`.
    metadata: Bytes,
}

impl StoredObject {
    /// Sets the version of `value` and serializes it. `None` if `value` is not an object with
    /// metadata.
    pub(crate) fn new(kind: ObjectKind, mut value: Value, version: u64) -> Option<Self> {
        let object = value.as_object_mut()?;
        object.remove("apiVersion");
        object.remove("kind");
        let metadata = object.get_mut("metadata")?.as_object_mut()?;
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        let labels = label_pairs(metadata.get("labels"));
        let fields = kind
            .selectable_fields()
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

    /// The value of a selectable field; empty if the object does not have it.
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

    pub(super) fn key(&self) -> String {
        object_key(&self.namespace, &self.name)
    }
}

/// `namespace/name`, or `name`; sorts as etcd's keys do.
pub(super) fn object_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// The string at a path of keys; empty if there is none.
pub(crate) fn string_at<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    path.iter()
        .try_fold(value, |value, key| value.get(*key))
        .and_then(Value::as_str)
        .unwrap_or_default()
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
            // Go's zero value as a string.
            if path == "spec.unschedulable" {
                "false".to_owned()
            } else {
                String::new()
            }
        }
    }
}

/// The serialized object with its metadata first, and the slice that holds the metadata.
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
