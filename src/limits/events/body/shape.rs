//! What an event's fields hold beside those that the limits look at: upstream answers a value of another type with 400.

use super::Format;
use super::Key;
use super::Kind;
use super::Listed;
use super::Value;
use super::pass;
use crate::api::time::is_micro_time;
use crate::api::time::is_time;

/// What a field holds; null will do for each.
pub(super) enum Shape {
    Any,
    Bool,
    Int32,
    Int64,
    List(&'static Self),
    /// From names that are not known beforehand to strings.
    Map,
    /// `metav1.MicroTime`.
    MicroTime,
    Object(Fields),
    Text,
    /// `metav1.Time`.
    Time,
}

/// The fields of an object; what is not among them may be anything.
pub(super) type Fields = &'static [(&'static str, Shape)];

/// `metav1.ObjectMeta`, but for the name.
pub(super) const METADATA: Fields = &[
    ("annotations", Shape::Map),
    ("creationTimestamp", Shape::Time),
    ("deletionGracePeriodSeconds", Shape::Int64),
    ("deletionTimestamp", Shape::Time),
    ("finalizers", Shape::List(&Shape::Text)),
    ("generateName", Shape::Text),
    ("generation", Shape::Int64),
    ("labels", Shape::Map),
    ("managedFields", Shape::List(&Shape::Object(MANAGED))),
    ("namespace", Shape::Text),
    ("ownerReferences", Shape::List(&Shape::Object(OWNER))),
    ("resourceVersion", Shape::Text),
    ("selfLink", Shape::Text),
    ("uid", Shape::Text),
];

/// `metav1.ManagedFieldsEntry`.
const MANAGED: Fields = &[
    ("apiVersion", Shape::Text),
    ("fieldsType", Shape::Text),
    ("fieldsV1", Shape::Any),
    ("manager", Shape::Text),
    ("operation", Shape::Text),
    ("subresource", Shape::Text),
    ("time", Shape::Time),
];

/// `metav1.OwnerReference`.
const OWNER: Fields = &[
    ("apiVersion", Shape::Text),
    ("blockOwnerDeletion", Shape::Bool),
    ("controller", Shape::Bool),
    ("kind", Shape::Text),
    ("name", Shape::Text),
    ("uid", Shape::Text),
];

/// `core.ObjectReference`.
pub(super) const REFERENCE: Fields = &[
    ("apiVersion", Shape::Text),
    ("fieldPath", Shape::Text),
    ("kind", Shape::Text),
    ("name", Shape::Text),
    ("namespace", Shape::Text),
    ("resourceVersion", Shape::Text),
    ("uid", Shape::Text),
];

/// `EventSeries` of either group.
pub(super) const SERIES: Fields = &[
    ("count", Shape::Int32),
    ("lastObservedTime", Shape::MicroTime),
];

/// What a field of that name holds.
pub(super) fn of(fields: Fields, name: &[u8]) -> &'static Shape {
    let found = fields.iter().find(|(known, _)| known.as_bytes() == name);
    found.map_or(&Shape::Any, |(_, shape)| shape)
}

/// Passes over a value. Whether it is of that shape; `None` if it is malformed.
pub(super) fn fits<'b, F: Format<'b>>(format: &mut F, shape: &Shape) -> Option<bool> {
    match shape {
        Shape::Any => format.skip().map(|_| true),
        Shape::Bool => kind(format, &[Kind::Bool]),
        Shape::Int32 => kind(format, &[Kind::Int32]),
        Shape::Int64 => kind(format, &[Kind::Int32, Kind::Int64]),
        Shape::List(item) => list(format, item),
        Shape::Map => object(format, |_| &Shape::Text),
        Shape::MicroTime => text(format, is_micro_time),
        Shape::Object(fields) => object(format, |name| of(fields, name)),
        Shape::Text => kind(format, &[Kind::Text]),
        Shape::Time => text(format, is_time),
    }
}

fn kind<'b, F: Format<'b>>(format: &mut F, kinds: &[Kind]) -> Option<bool> {
    let kind = format.skip()?;
    Some(kind == Kind::Null || kinds.contains(&kind))
}

fn text<'b, F: Format<'b>>(format: &mut F, well: fn(&[u8]) -> bool) -> Option<bool> {
    match format.value()? {
        Value::Map(map) => pass(format, map).map(|()| false),
        Value::Null => Some(true),
        Value::Other => Some(false),
        Value::Text(text) => Some(well(&text)),
    }
}

fn list<'b, F: Format<'b>>(format: &mut F, item: &Shape) -> Option<bool> {
    let mut list = match format.list()? {
        Listed::Items(list) => list,
        Listed::Null => return Some(true),
        Listed::Other => return Some(false),
    };
    let mut well = true;
    while format.item(&mut list)? {
        well &= fits(format, item)?;
    }
    Some(well)
}

fn object<'b, F: Format<'b>>(
    format: &mut F,
    shape: impl Fn(&[u8]) -> &'static Shape,
) -> Option<bool> {
    let mut map = match format.value()? {
        Value::Map(map) => map,
        Value::Null => return Some(true),
        Value::Other | Value::Text(_) => return Some(false),
    };
    let mut well = true;
    while let Key::Named(name) = format.key(&mut map)? {
        well &= fits(format, shape(&name))?;
    }
    Some(well)
}
