//! Kubernetes' protobuf encoding: four bytes of magic, then `runtime.Unknown` with the event
//! inside.
//!
//! It follows the code that gogo generates (`generated.pb.go`). A field with a known number must
//! have its wire type, also within nested messages; otherwise the body is malformed. Other fields
//! are skipped. A repeated message is merged into the first; of repeated strings the last counts.

use std::borrow::Cow;

use crate::rate::events::body::event_fields::{EventBodyFields, EventSchema, SchemaFields};
use crate::rate::events::body::event_parser::ByteText;
use weir_kubernetes::encoding::protobuf::{KUBERNETES_MAGIC, read_varint, wire_type};

/// The value of a field by its wire type.
enum EventWireValue<'b> {
    Bytes(&'b [u8]),
    /// A fixed64, a fixed32 or a group.
    Other,
    Varint,
}

/// Reads a message; the bytes are its rest.
struct EventMessageReader<'b>(&'b [u8]);

pub(super) fn parse(body: &[u8]) -> Option<EventBodyFields<'_>> {
    let unknown = body
        .strip_prefix(KUBERNETES_MAGIC)
        .filter(|rest| !rest.is_empty())?;
    let mut found = EventBodyFields::default();
    let mut raw: &[u8] = &[];
    let mut unknown = EventMessageReader(unknown);
    while let Some((number, value)) = unknown.next_field()? {
        match (number, value) {
            (1, EventWireValue::Bytes(meta)) => read_type_meta(meta, &mut found)?,
            (2, EventWireValue::Bytes(bytes)) => raw = bytes,
            (3 | 4, EventWireValue::Bytes(_)) => {}
            (1..=4, _) => return None,
            _ => {}
        }
    }
    // The `apiVersion` determines the schema, and without one the URL. In that case both schemas
    // are read, and one result is ignored.
    let declared = EventSchema::from_api_version(&found.api_version);
    for schema in [EventSchema::Core, EventSchema::Events] {
        if declared.is_none_or(|declared| declared == schema) {
            let valid = read_event(raw, schema, &mut found);
            found.schema_fields(schema).invalid = valid.is_none();
        }
    }
    Some(found)
}

fn read_type_meta<'b>(meta: &'b [u8], found: &mut EventBodyFields<'b>) -> Option<()> {
    let mut meta = EventMessageReader(meta);
    while let Some((number, value)) = meta.next_field()? {
        match (number, value) {
            (1, EventWireValue::Bytes(text)) => found.api_version = Cow::Borrowed(text),
            (2, EventWireValue::Bytes(text)) => found.kind = Cow::Borrowed(text),
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some(())
}

/// The numbers of the fields that the limits need, and the types of all fields.
struct EventFieldNumbers {
    object: u64,
    source: u64,
    event_type: u64,
    fields: EventWireFields,
}

const CORE: EventFieldNumbers = EventFieldNumbers {
    object: 2,
    source: 5,
    event_type: 9,
    fields: &[
        (1, EventWireField::Message(OBJECT_META)),
        (2, EventWireField::Message(OBJECT_REFERENCE)),
        (3, EventWireField::Bytes),
        (4, EventWireField::Bytes),
        (5, EventWireField::Message(EVENT_SOURCE)),
        (6, EventWireField::Message(TIMESTAMP)),
        (7, EventWireField::Message(TIMESTAMP)),
        (8, EventWireField::Varint),
        (9, EventWireField::Bytes),
        (10, EventWireField::Message(TIMESTAMP)),
        (11, EventWireField::Message(EVENT_SERIES)),
        (12, EventWireField::Bytes),
        (13, EventWireField::Message(OBJECT_REFERENCE)),
        (14, EventWireField::Bytes),
        (15, EventWireField::Bytes),
    ],
};

const EVENTS: EventFieldNumbers = EventFieldNumbers {
    object: 8,
    source: 12,
    event_type: 11,
    fields: &[
        (1, EventWireField::Message(OBJECT_META)),
        (2, EventWireField::Message(TIMESTAMP)),
        (3, EventWireField::Message(EVENT_SERIES)),
        (4, EventWireField::Bytes),
        (5, EventWireField::Bytes),
        (6, EventWireField::Bytes),
        (7, EventWireField::Bytes),
        (8, EventWireField::Message(OBJECT_REFERENCE)),
        (9, EventWireField::Message(OBJECT_REFERENCE)),
        (10, EventWireField::Bytes),
        (11, EventWireField::Bytes),
        (12, EventWireField::Message(EVENT_SOURCE)),
        (13, EventWireField::Message(TIMESTAMP)),
        (14, EventWireField::Message(TIMESTAMP)),
        (15, EventWireField::Varint),
    ],
};

/// The type of a field with a known number.
#[derive(Clone, Copy)]
enum EventWireField {
    /// A string or bytes.
    Bytes,
    /// An entry of a map from strings to strings.
    Entry,
    Message(EventWireFields),
    Varint,
}

type EventWireFields = &'static [(u64, EventWireField)];

/// `metav1.ObjectMeta`.
const OBJECT_META: EventWireFields = &[
    (1, EventWireField::Bytes),
    (2, EventWireField::Bytes),
    (3, EventWireField::Bytes),
    (4, EventWireField::Bytes),
    (5, EventWireField::Bytes),
    (6, EventWireField::Bytes),
    (7, EventWireField::Varint),
    (8, EventWireField::Message(TIMESTAMP)),
    (9, EventWireField::Message(TIMESTAMP)),
    (10, EventWireField::Varint),
    (11, EventWireField::Entry),
    (12, EventWireField::Entry),
    (13, EventWireField::Message(OWNER_REFERENCE)),
    (14, EventWireField::Bytes),
    (17, EventWireField::Message(MANAGED_FIELDS_ENTRY)),
];

/// `metav1.OwnerReference`.
const OWNER_REFERENCE: EventWireFields = &[
    (1, EventWireField::Bytes),
    (3, EventWireField::Bytes),
    (4, EventWireField::Bytes),
    (5, EventWireField::Bytes),
    (6, EventWireField::Varint),
    (7, EventWireField::Varint),
];

/// `metav1.ManagedFieldsEntry`.
const MANAGED_FIELDS_ENTRY: EventWireFields = &[
    (1, EventWireField::Bytes),
    (2, EventWireField::Bytes),
    (3, EventWireField::Bytes),
    (4, EventWireField::Message(TIMESTAMP)),
    (6, EventWireField::Bytes),
    (7, EventWireField::Message(&[(1, EventWireField::Bytes)])),
    (8, EventWireField::Bytes),
];

/// `core.ObjectReference`.
const OBJECT_REFERENCE: EventWireFields = &[
    (1, EventWireField::Bytes),
    (2, EventWireField::Bytes),
    (3, EventWireField::Bytes),
    (4, EventWireField::Bytes),
    (5, EventWireField::Bytes),
    (6, EventWireField::Bytes),
    (7, EventWireField::Bytes),
];

/// `core.EventSource`.
const EVENT_SOURCE: EventWireFields = &[(1, EventWireField::Bytes), (2, EventWireField::Bytes)];

/// `EventSeries` of either group.
const EVENT_SERIES: EventWireFields = &[
    (1, EventWireField::Varint),
    (2, EventWireField::Message(TIMESTAMP)),
];

/// `metav1.Timestamp`, the encoding of `Time` and `MicroTime`.
const TIMESTAMP: EventWireFields = &[(1, EventWireField::Varint), (2, EventWireField::Varint)];

/// Skips the fields of a message. `None` if it is malformed.
fn check_message(bytes: &[u8], fields: EventWireFields) -> Option<()> {
    let mut message = EventMessageReader(bytes);
    while let Some((number, value)) = message.next_field()? {
        check_field(number, &value, fields)?;
    }
    Some(())
}

/// `None` if a field with a known number has another type.
fn check_field(number: u64, value: &EventWireValue<'_>, fields: EventWireFields) -> Option<()> {
    let field = fields.iter().find(|(expected, _)| *expected == number);
    match (field.map(|(_, field)| *field), value) {
        (None, _)
        | (Some(EventWireField::Bytes), EventWireValue::Bytes(_))
        | (Some(EventWireField::Varint), EventWireValue::Varint) => Some(()),
        (Some(EventWireField::Entry), EventWireValue::Bytes(bytes)) => check_map_entry(bytes),
        (Some(EventWireField::Message(fields)), EventWireValue::Bytes(bytes)) => {
            check_message(bytes, fields)
        }
        (
            Some(
                EventWireField::Bytes
                | EventWireField::Entry
                | EventWireField::Message(_)
                | EventWireField::Varint,
            ),
            _,
        ) => None,
    }
}

/// Checks a map entry. Key and value are read as strings whatever their wire type is, and field
/// numbers are not checked.
fn check_map_entry(bytes: &[u8]) -> Option<()> {
    let mut message = EventMessageReader(bytes);
    while !message.0.is_empty() {
        let tag = read_varint(&mut message.0)?;
        match ((tag >> 3) & u64::from(u32::MAX), tag & 7) {
            (1 | 2, _) => message
                .read_value(wire_type::LENGTH_DELIMITED)
                .map(|_| ())?,
            (_, wire_type::START_GROUP) => message.skip_group().map(|_| ())?,
            (_, other) => message.read_value(other).map(|_| ())?,
        }
    }
    Some(())
}

fn read_event<'b>(
    raw: &'b [u8],
    schema: EventSchema,
    found: &mut EventBodyFields<'b>,
) -> Option<()> {
    let numbers = match schema {
        EventSchema::Core => CORE,
        EventSchema::Events => EVENTS,
    };
    let mut schema_fields = SchemaFields::default();
    let mut name = ByteText::default();
    let mut message = EventMessageReader(raw);
    while let Some((number, value)) = message.next_field()? {
        check_field(number, &value, numbers.fields)?;
        let EventWireValue::Bytes(bytes) = value else {
            continue;
        };
        if number == 1 {
            read_metadata(bytes, &mut name)?;
        } else if number == numbers.object {
            read_reference(bytes, &[2, 3, 4, 5, 6], &mut schema_fields)?;
        } else if number == numbers.source {
            read_reference(bytes, &[0, 1], &mut schema_fields)?;
        } else if number == numbers.event_type {
            schema_fields.event_type = Cow::Borrowed(bytes);
        }
    }
    *found.schema_fields(schema) = schema_fields;
    found.name = name; // the field is common to both
    Some(())
}

fn read_metadata<'b>(meta: &'b [u8], name: &mut ByteText<'b>) -> Option<()> {
    let mut meta = EventMessageReader(meta);
    while let Some((number, value)) = meta.next_field()? {
        if let (1, EventWireValue::Bytes(text)) = (number, value) {
            *name = Cow::Borrowed(text);
        }
    }
    Some(())
}

/// Reads a message whose first fields are strings. `indexes` are their positions in the key.
fn read_reference<'b>(
    bytes: &'b [u8],
    indexes: &[usize],
    schema_fields: &mut SchemaFields<'b>,
) -> Option<()> {
    let mut message = EventMessageReader(bytes);
    while let Some((number, value)) = message.next_field()? {
        let EventWireValue::Bytes(text) = value else {
            continue;
        };
        let nth = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let index = nth.and_then(|nth| indexes.get(nth));
        if let Some(into) = index.and_then(|index| schema_fields.key.get_mut(*index)) {
            *into = Cow::Borrowed(text);
        }
    }
    Some(())
}

impl<'b> EventMessageReader<'b> {
    /// The next field. `None` if it is malformed, `Some(None)` at the end.
    #[expect(clippy::option_option, reason = "malformed, or at its end")]
    fn next_field(&mut self) -> Option<Option<(u64, EventWireValue<'b>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let (number, wire) = self.read_tag()?;
        let value = match wire {
            wire_type::START_GROUP => self.skip_group()?,
            wire_type::END_GROUP => return None,
            other => self.read_value(other)?,
        };
        Some(Some((number, value)))
    }

    /// Reads the field number and the wire type. Go truncates the number to an int32 and requires
    /// it to be positive.
    fn read_tag(&mut self) -> Option<(u64, u64)> {
        let tag = read_varint(&mut self.0)?;
        let number = (tag >> 3) & u64::from(u32::MAX);
        let positive = number > 0 && i32::try_from(number).is_ok();
        positive.then_some((number, tag & 7))
    }

    fn read_value(&mut self, wire: u64) -> Option<EventWireValue<'b>> {
        match wire {
            wire_type::VARINT => {
                read_varint(&mut self.0)?;
                Some(EventWireValue::Varint)
            }
            wire_type::FIXED64 => self.take_bytes(8).map(|_| EventWireValue::Other),
            wire_type::LENGTH_DELIMITED => {
                let length = read_varint(&mut self.0)?;
                self.take_bytes(usize::try_from(length).ok()?)
                    .map(EventWireValue::Bytes)
            }
            wire_type::FIXED32 => self.take_bytes(4).map(|_| EventWireValue::Other),
            _ => None,
        }
    }

    /// Skips a group and its nested groups.
    fn skip_group(&mut self) -> Option<EventWireValue<'b>> {
        let mut depth = 1_usize;
        while depth > 0 {
            match read_varint(&mut self.0)? & 7 {
                wire_type::START_GROUP => depth = depth.checked_add(1)?,
                wire_type::END_GROUP => depth -= 1,
                other => {
                    self.read_value(other)?;
                }
            }
        }
        Some(EventWireValue::Other)
    }

    fn take_bytes(&mut self, length: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}
