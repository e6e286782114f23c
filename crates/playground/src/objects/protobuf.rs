//! Request bodies in Kubernetes' protobuf, as Go clients send them by default (`kubectl create
//! configmap`, `kubectl auth whoami`). They are converted to JSON; nothing is encoded as protobuf.
//!
//! The small kinds are supported with all fields of their `generated.proto`; pods and nodes are not
//! supported. An unknown field is an error, so that no data is dropped silently. Values that Go
//! sends for unset fields (empty strings, zeros) are left out, as in its JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// The reason why a body could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProtobufBodyError {
    Malformed(&'static str),
    /// A kind without protobuf support; answered like an unsupported media type.
    UnknownKind,
}

/// The magic bytes of every body.
const MAGIC: &[u8] = b"k8s\0";
/// Maximum depth of messages, slightly more than the supported kinds have.
const MAX_DEPTH: u8 = 16;

/// A field: its number, its name in JSON and its type.
type FieldSpec = (u64, &'static str, FieldType);
type MessageSpec = &'static [FieldSpec];

#[derive(Clone, Copy)]
enum FieldType {
    Bool,
    /// `IntOrString`.
    IntOrString,
    Item(MessageSpec),
    Items(MessageSpec),
    /// `metav1.MicroTime`.
    MicroTime,
    Number,
    /// Set by the server; clients send it empty.
    Skip,
    Text,
    Texts,
    TextMap,
    /// `metav1.Time`.
    Time,
    /// Bytes by key, base64 in JSON.
    DataMap,
}

use FieldType::{
    Bool, DataMap, IntOrString, Item, Items, MicroTime, Number, Skip, Text, TextMap, Texts, Time,
};

const OBJECT_META: MessageSpec = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", Number),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Items(OWNER_REFERENCE)),
    (14, "finalizers", Texts),
    (17, "managedFields", Skip),
];

const OWNER_REFERENCE: MessageSpec = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];

const OBJECT_REFERENCE: MessageSpec = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

const META: FieldSpec = (1, "metadata", Item(OBJECT_META));

const CONFIG_MAP: MessageSpec = &[
    META,
    (2, "data", TextMap),
    (3, "binaryData", DataMap),
    (4, "immutable", Bool),
];

const SECRET: MessageSpec = &[
    META,
    (2, "data", DataMap),
    (3, "type", Text),
    (4, "stringData", TextMap),
    (5, "immutable", Bool),
];

const NAMESPACE: MessageSpec = &[
    META,
    (2, "spec", Item(&[(1, "finalizers", Texts)])),
    (3, "status", Skip),
];

const SERVICE_ACCOUNT: MessageSpec = &[
    META,
    (2, "secrets", Items(OBJECT_REFERENCE)),
    (3, "imagePullSecrets", Items(&[(1, "name", Text)])),
    (4, "automountServiceAccountToken", Bool),
];

const SERVICE: MessageSpec = &[META, (2, "spec", Item(SERVICE_SPEC)), (3, "status", Skip)];

const SERVICE_SPEC: MessageSpec = &[
    (1, "ports", Items(SERVICE_PORT)),
    (2, "selector", TextMap),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", Texts),
    (7, "sessionAffinity", Text),
    (8, "loadBalancerIP", Text),
    (9, "loadBalancerSourceRanges", Texts),
    (10, "externalName", Text),
    (11, "externalTrafficPolicy", Text),
    (12, "healthCheckNodePort", Number),
    (13, "publishNotReadyAddresses", Bool),
    (14, "sessionAffinityConfig", Item(SESSION_AFFINITY)),
    (17, "ipFamilyPolicy", Text),
    (18, "clusterIPs", Texts),
    (19, "ipFamilies", Texts),
    (20, "allocateLoadBalancerNodePorts", Bool),
    (21, "loadBalancerClass", Text),
    (22, "internalTrafficPolicy", Text),
    (23, "trafficDistribution", Text),
];

const SESSION_AFFINITY: MessageSpec = &[(1, "clientIP", Item(&[(1, "timeoutSeconds", Number)]))];

const SERVICE_PORT: MessageSpec = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Number),
    (4, "targetPort", IntOrString),
    (5, "nodePort", Number),
    (6, "appProtocol", Text),
];

const LEASE: MessageSpec = &[META, (2, "spec", Item(LEASE_SPEC))];

const LEASE_SPEC: MessageSpec = &[
    (1, "holderIdentity", Text),
    (2, "leaseDurationSeconds", Number),
    (3, "acquireTime", MicroTime),
    (4, "renewTime", MicroTime),
    (5, "leaseTransitions", Number),
    (6, "strategy", Text),
    (7, "preferredHolder", Text),
];

const EVENT_SOURCE: MessageSpec = &[(1, "component", Text), (2, "host", Text)];
const EVENT_SERIES: MessageSpec = &[(1, "count", Number), (2, "lastObservedTime", MicroTime)];

const CORE_EVENT: MessageSpec = &[
    META,
    (2, "involvedObject", Item(OBJECT_REFERENCE)),
    (3, "reason", Text),
    (4, "message", Text),
    (5, "source", Item(EVENT_SOURCE)),
    (6, "firstTimestamp", Time),
    (7, "lastTimestamp", Time),
    (8, "count", Number),
    (9, "type", Text),
    (10, "eventTime", MicroTime),
    (11, "series", Item(EVENT_SERIES)),
    (12, "action", Text),
    (13, "related", Item(OBJECT_REFERENCE)),
    (14, "reportingComponent", Text),
    (15, "reportingInstance", Text),
];

const EVENTS_EVENT: MessageSpec = &[
    META,
    (2, "eventTime", MicroTime),
    (3, "series", Item(EVENT_SERIES)),
    (4, "reportingController", Text),
    (5, "reportingInstance", Text),
    (6, "action", Text),
    (7, "reason", Text),
    (8, "regarding", Item(OBJECT_REFERENCE)),
    (9, "related", Item(OBJECT_REFERENCE)),
    (10, "note", Text),
    (11, "type", Text),
    (12, "deprecatedSource", Item(EVENT_SOURCE)),
    (13, "deprecatedFirstTimestamp", Time),
    (14, "deprecatedLastTimestamp", Time),
    (15, "deprecatedCount", Number),
];

const RESOURCE_ATTRIBUTES: MessageSpec = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
    (8, "fieldSelector", Skip),
    (9, "labelSelector", Skip),
];
const PATH_ATTRIBUTES: MessageSpec = &[(1, "path", Text), (2, "verb", Text)];

const SUBJECT_ACCESS: MessageSpec = &[
    (1, "resourceAttributes", Item(RESOURCE_ATTRIBUTES)),
    (2, "nonResourceAttributes", Item(PATH_ATTRIBUTES)),
    (3, "user", Text),
    (4, "groups", Texts),
    (5, "extra", Skip),
    (6, "uid", Text),
];
/// For both access reviews; SelfSubjectAccessReview has only the first two fields.
const ACCESS_REVIEW: MessageSpec = &[META, (2, "spec", Item(SUBJECT_ACCESS)), (3, "status", Skip)];

const TOKEN_REVIEW: MessageSpec = &[
    META,
    (
        2,
        "spec",
        Item(&[(1, "token", Text), (2, "audiences", Texts)]),
    ),
    (3, "status", Skip),
];

const SELF_REVIEW: MessageSpec = &[META, (2, "status", Skip)];

const PRECONDITIONS: MessageSpec = &[(1, "uid", Text), (2, "resourceVersion", Text)];
const DELETE_OPTIONS: MessageSpec = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", Item(PRECONDITIONS)),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
    (6, "ignoreStoreReadErrorWithClusterBreakingPotential", Bool),
];

const EVICTION: MessageSpec = &[META, (2, "deleteOptions", Item(DELETE_OPTIONS))];

fn message_spec(api_version: &str, kind: &str) -> Option<MessageSpec> {
    match (api_version, kind) {
        ("v1", "ConfigMap") => Some(CONFIG_MAP),
        ("v1", "Event") => Some(CORE_EVENT),
        ("v1", "Namespace") => Some(NAMESPACE),
        ("v1", "Secret") => Some(SECRET),
        ("v1", "Service") => Some(SERVICE),
        ("v1", "ServiceAccount") => Some(SERVICE_ACCOUNT),
        ("events.k8s.io/v1", "Event") => Some(EVENTS_EVENT),
        ("coordination.k8s.io/v1", "Lease") => Some(LEASE),
        ("authentication.k8s.io/v1", "SelfSubjectReview") => Some(SELF_REVIEW),
        ("authentication.k8s.io/v1", "TokenReview") => Some(TOKEN_REVIEW),
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview" | "SubjectAccessReview") => {
            Some(ACCESS_REVIEW)
        }
        ("policy/v1", "Eviction") => Some(EVICTION),
        // Each group has its own name for the same message.
        (_, "DeleteOptions") => Some(DELETE_OPTIONS),
        _ => None,
    }
}

/// Decodes a body: the magic, then `runtime.Unknown` around the object.
pub(crate) fn decode(body: &[u8]) -> Result<Value, ProtobufBodyError> {
    let unknown = body
        .strip_prefix(MAGIC)
        .ok_or(ProtobufBodyError::Malformed("no magic"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in FieldReader(unknown) {
        match field? {
            (1, WireValue::Bytes(meta)) => {
                for field in FieldReader(meta) {
                    match field? {
                        (1, WireValue::Bytes(bytes)) => api_version = decode_text(bytes)?,
                        (2, WireValue::Bytes(bytes)) => kind = decode_text(bytes)?,
                        _ => return Err(ProtobufBodyError::Malformed("unknown field of the type")),
                    }
                }
            }
            (2, WireValue::Bytes(bytes)) => raw = bytes,
            (3 | 4, WireValue::Bytes([])) => {}
            _ => {
                return Err(ProtobufBodyError::Malformed(
                    "unknown field of the envelope",
                ));
            }
        }
    }
    let message = message_spec(&api_version, &kind).ok_or(ProtobufBodyError::UnknownKind)?;
    let mut object = decode_message(message, raw, MAX_DEPTH)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn decode_message(
    message: MessageSpec,
    bytes: &[u8],
    depth: u8,
) -> Result<Map<String, Value>, ProtobufBodyError> {
    let depth = depth
        .checked_sub(1)
        .ok_or(ProtobufBodyError::Malformed("nested too deeply"))?;
    let mut object = Map::new();
    for field in FieldReader(bytes) {
        let (number, wire) = field?;
        let (_, name, kind) = message
            .iter()
            .find(|(known, ..)| *known == number)
            .ok_or(ProtobufBodyError::Malformed("unknown field"))?;
        match (kind, wire) {
            (Skip, _) => {}
            (Bool, WireValue::Varint(flag)) => set_field(&mut object, name, (flag != 0).into()),
            (Number, WireValue::Varint(0)) | (Text, WireValue::Bytes([])) => {}
            (Number, WireValue::Varint(number)) => {
                set_field(&mut object, name, number.cast_signed().into())
            }
            (Text, WireValue::Bytes(bytes)) => {
                set_field(&mut object, name, decode_text(bytes)?.into())
            }
            (Texts, WireValue::Bytes(bytes)) => {
                push_item(&mut object, name, decode_text(bytes)?.into())
            }
            (TextMap, WireValue::Bytes(bytes)) => {
                let (key, value) = decode_entry(bytes)?;
                put_entry(&mut object, name, key, decode_text(value)?);
            }
            (DataMap, WireValue::Bytes(bytes)) => {
                let (key, value) = decode_entry(bytes)?;
                put_entry(&mut object, name, key, BASE64_STANDARD.encode(value));
            }
            (Time, WireValue::Bytes(bytes)) => set_time(&mut object, name, bytes, 0)?,
            (MicroTime, WireValue::Bytes(bytes)) => set_time(&mut object, name, bytes, 6)?,
            (IntOrString, WireValue::Bytes(bytes)) => set_int_or_string(&mut object, name, bytes)?,
            (Item(message), WireValue::Bytes(bytes)) => {
                set_field(
                    &mut object,
                    name,
                    decode_message(message, bytes, depth)?.into(),
                );
            }
            (Items(message), WireValue::Bytes(bytes)) => {
                push_item(
                    &mut object,
                    name,
                    decode_message(message, bytes, depth)?.into(),
                );
            }
            (_, WireValue::Varint(_) | WireValue::Bytes(_)) => {
                return Err(ProtobufBodyError::Malformed("a field of the wrong type"));
            }
        }
    }
    Ok(object)
}

fn set_field(object: &mut Map<String, Value>, name: &str, value: Value) {
    object.insert(name.to_owned(), value);
}

fn push_item(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object
        .entry(name)
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn put_entry(object: &mut Map<String, Value>, name: &str, key: String, value: String) {
    let map = object
        .entry(name)
        .or_insert_with(|| Value::Object(Map::new()));
    if let Some(map) = map.as_object_mut() {
        map.insert(key, value.into());
    }
}

fn decode_text(bytes: &[u8]) -> Result<String, ProtobufBodyError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ProtobufBodyError::Malformed("not UTF-8"))?;
    Ok(text.to_owned())
}

/// A map entry: its key and the bytes of its value.
fn decode_entry(bytes: &[u8]) -> Result<(String, &[u8]), ProtobufBodyError> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for field in FieldReader(bytes) {
        match field? {
            (1, WireValue::Bytes(bytes)) => key = decode_text(bytes)?,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => return Err(ProtobufBodyError::Malformed("unknown field of a map")),
        }
    }
    Ok((key, value))
}

/// The fields of a message of two varints, such as a time's seconds and nanoseconds.
fn decode_varint_pair(bytes: &[u8]) -> Result<(i64, i64), ProtobufBodyError> {
    let (mut first, mut second) = (0, 0);
    for field in FieldReader(bytes) {
        match field? {
            (1, WireValue::Varint(number)) => first = number.cast_signed(),
            (2, WireValue::Varint(number)) => second = number.cast_signed(),
            _ => return Err(ProtobufBodyError::Malformed("unknown field of a time")),
        }
    }
    Ok((first, second))
}

/// Sets a time with the given number of digits of the second; an unset time is left out.
fn set_time(
    object: &mut Map<String, Value>,
    name: &str,
    bytes: &[u8],
    digits: usize,
) -> Result<(), ProtobufBodyError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (seconds, nanos) = decode_varint_pair(bytes)?;
    let time = i32::try_from(nanos)
        .ok()
        .and_then(|nanos| Timestamp::new(seconds, nanos).ok())
        .ok_or(ProtobufBodyError::Malformed("no such time"))?;
    set_field(object, name, format!("{time:.digits$}").into());
    Ok(())
}

fn set_int_or_string(
    object: &mut Map<String, Value>,
    name: &str,
    bytes: &[u8],
) -> Result<(), ProtobufBodyError> {
    let (mut is_text, mut number, mut words) = (false, 0, String::new());
    for field in FieldReader(bytes) {
        match field? {
            (1, WireValue::Varint(kind)) => is_text = kind == 1,
            (2, WireValue::Varint(value)) => number = value.cast_signed(),
            (3, WireValue::Bytes(bytes)) => words = decode_text(bytes)?,
            _ => {
                return Err(ProtobufBodyError::Malformed(
                    "unknown field of a number or text",
                ));
            }
        }
    }
    if is_text {
        set_field(object, name, words.into());
    } else if number != 0 {
        set_field(object, name, number.into());
    }
    Ok(())
}

/// The value of a field, in the wire types that Kubernetes uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WireValue<'b> {
    Bytes(&'b [u8]),
    Varint(u64),
}

/// The fields of a message, in order. It is empty after an error.
struct FieldReader<'b>(&'b [u8]);

impl<'b> FieldReader<'b> {
    fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn read_field(&mut self) -> Option<(u64, WireValue<'b>)> {
        const VARINT: u64 = 0;
        const LENGTH_DELIMITED: u64 = 2;
        let tag = self.read_varint()?;
        let wire = match tag & 7 {
            VARINT => WireValue::Varint(self.read_varint()?),
            LENGTH_DELIMITED => {
                let length = usize::try_from(self.read_varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                WireValue::Bytes(bytes)
            }
            _ => return None,
        };
        Some((tag >> 3, wire))
    }
}

impl<'b> Iterator for FieldReader<'b> {
    type Item = Result<(u64, WireValue<'b>), ProtobufBodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read_field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(ProtobufBodyError::Malformed("cut short")))
    }
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
