//! The types of an event's other fields. Upstream rejects a value of another type with 400.

use crate::rate::events::body::event_parser::{
    EventParser, EventValue, EventValueKind, ParsedKey, ParsedList, skip_map,
};
use weir_kubernetes::api::time::{is_micro_time, is_time};

/// The type of a field; null is valid for each.
pub(super) enum EventFieldType {
    Any,
    Bool,
    Int32,
    Int64,
    List(&'static Self),
    /// A map from any names to strings.
    Map,
    /// `metav1.MicroTime`.
    MicroTime,
    Object(EventFieldTypes),
    Text,
    /// `metav1.Time`.
    Time,
}

/// The fields of an object. Other fields may have any type.
pub(super) type EventFieldTypes = &'static [(&'static str, EventFieldType)];

/// `metav1.ObjectMeta` without the name.
pub(super) const OBJECT_META: EventFieldTypes = &[
    ("annotations", EventFieldType::Map),
    ("creationTimestamp", EventFieldType::Time),
    ("deletionGracePeriodSeconds", EventFieldType::Int64),
    ("deletionTimestamp", EventFieldType::Time),
    ("finalizers", EventFieldType::List(&EventFieldType::Text)),
    ("generateName", EventFieldType::Text),
    ("generation", EventFieldType::Int64),
    ("labels", EventFieldType::Map),
    (
        "managedFields",
        EventFieldType::List(&EventFieldType::Object(MANAGED_FIELDS_ENTRY)),
    ),
    ("namespace", EventFieldType::Text),
    (
        "ownerReferences",
        EventFieldType::List(&EventFieldType::Object(OWNER_REFERENCE)),
    ),
    ("resourceVersion", EventFieldType::Text),
    ("selfLink", EventFieldType::Text),
    ("uid", EventFieldType::Text),
];

/// `metav1.ManagedFieldsEntry`.
const MANAGED_FIELDS_ENTRY: EventFieldTypes = &[
    ("apiVersion", EventFieldType::Text),
    ("fieldsType", EventFieldType::Text),
    ("fieldsV1", EventFieldType::Any),
    ("manager", EventFieldType::Text),
    ("operation", EventFieldType::Text),
    ("subresource", EventFieldType::Text),
    ("time", EventFieldType::Time),
];

/// `metav1.OwnerReference`.
const OWNER_REFERENCE: EventFieldTypes = &[
    ("apiVersion", EventFieldType::Text),
    ("blockOwnerDeletion", EventFieldType::Bool),
    ("controller", EventFieldType::Bool),
    ("kind", EventFieldType::Text),
    ("name", EventFieldType::Text),
    ("uid", EventFieldType::Text),
];

/// `core.ObjectReference`.
pub(super) const OBJECT_REFERENCE: EventFieldTypes = &[
    ("apiVersion", EventFieldType::Text),
    ("fieldPath", EventFieldType::Text),
    ("kind", EventFieldType::Text),
    ("name", EventFieldType::Text),
    ("namespace", EventFieldType::Text),
    ("resourceVersion", EventFieldType::Text),
    ("uid", EventFieldType::Text),
];

/// `EventSeries` of either group.
pub(super) const EVENT_SERIES: EventFieldTypes = &[
    ("count", EventFieldType::Int32),
    ("lastObservedTime", EventFieldType::MicroTime),
];

/// The type of the field with this name.
pub(super) fn field_type(fields: EventFieldTypes, name: &[u8]) -> &'static EventFieldType {
    let found = fields.iter().find(|(key, _)| key.as_bytes() == name);
    found.map_or(&EventFieldType::Any, |(_, field_type)| field_type)
}

/// Skips a value. Whether it has this type; `None` if it is malformed.
pub(super) fn check_type<'b, F: EventParser<'b>>(
    format: &mut F,
    expected: &EventFieldType,
) -> Option<bool> {
    match expected {
        EventFieldType::Any => format.skip_value().map(|_| true),
        EventFieldType::Bool => check_kind(format, &[EventValueKind::Bool]),
        EventFieldType::Int32 => check_kind(format, &[EventValueKind::Int32]),
        EventFieldType::Int64 => {
            check_kind(format, &[EventValueKind::Int32, EventValueKind::Int64])
        }
        EventFieldType::List(item) => check_list(format, item),
        EventFieldType::Map => check_object(format, |_| &EventFieldType::Text),
        EventFieldType::MicroTime => check_text(format, is_micro_time),
        EventFieldType::Object(fields) => check_object(format, |name| field_type(fields, name)),
        EventFieldType::Text => check_kind(format, &[EventValueKind::Text]),
        EventFieldType::Time => check_text(format, is_time),
    }
}

fn check_kind<'b, F: EventParser<'b>>(format: &mut F, kinds: &[EventValueKind]) -> Option<bool> {
    let kind = format.skip_value()?;
    Some(kind == EventValueKind::Null || kinds.contains(&kind))
}

fn check_text<'b, F: EventParser<'b>>(format: &mut F, valid: fn(&[u8]) -> bool) -> Option<bool> {
    match format.read_value()? {
        EventValue::Map(map) => skip_map(format, map).map(|()| false),
        EventValue::Null => Some(true),
        EventValue::Other => Some(false),
        EventValue::Text(text) => Some(valid(&text)),
    }
}

fn check_list<'b, F: EventParser<'b>>(format: &mut F, item: &EventFieldType) -> Option<bool> {
    let mut list = match format.read_list()? {
        ParsedList::Items(list) => list,
        ParsedList::Null => return Some(true),
        ParsedList::Other => return Some(false),
    };
    let mut valid = true;
    while format.next_item(&mut list)? {
        valid &= check_type(format, item)?;
    }
    Some(valid)
}

fn check_object<'b, F: EventParser<'b>>(
    format: &mut F,
    expected: impl Fn(&[u8]) -> &'static EventFieldType,
) -> Option<bool> {
    let mut map = match format.read_value()? {
        EventValue::Map(map) => map,
        EventValue::Null => return Some(true),
        EventValue::Other | EventValue::Text(_) => return Some(false),
    };
    let mut valid = true;
    while let ParsedKey::Named(name) = format.next_key(&mut map)? {
        valid &= check_type(format, expected(&name))?;
    }
    Some(valid)
}
