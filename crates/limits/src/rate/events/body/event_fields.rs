//! The fields of an event that the limits need, read through any [`EventParser`].

use std::borrow::Cow;

use crate::rate::events::body::event_parser::{
    ByteText, EventParser, EventValue, EventValueKind, ParsedKey, skip_map,
};
use crate::rate::events::body::field_types;
use crate::rate::events::body::field_types::EventFieldType;

/// The two schemas of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSchema {
    /// `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
}

impl EventSchema {
    /// The schema of an `apiVersion`.
    pub(super) fn from_api_version(api_version: &[u8]) -> Option<Self> {
        match api_version {
            b"v1" => Some(Self::Core),
            b"events.k8s.io/v1" | b"events.k8s.io/v1beta1" => Some(Self::Events),
            _ => None,
        }
    }
}

/// The part of an event that the limits need. Strings are bytes, since protobuf's need not be
/// UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBody<'b> {
    /// The schema of the event.
    pub schema: EventSchema,
    /// Whether `apiVersion` is that of the URL or absent.
    pub version_accepted: bool,
    /// `metadata.name`.
    pub name: Cow<'b, [u8]>,
    /// `type`.
    pub event_type: Cow<'b, [u8]>,
    /// The parts of the bucket's key in upstream's order: component and host of the source; kind,
    /// namespace, name, uid and apiVersion of the object.
    pub key: [Cow<'b, [u8]>; 7],
}

/// The fields that were found, for both schemas.
#[derive(Debug, Default)]
pub(super) struct EventBodyFields<'b> {
    pub(super) api_version: ByteText<'b>,
    pub(super) kind: ByteText<'b>,
    pub(super) name: ByteText<'b>,
    pub(super) core: SchemaFields<'b>,
    pub(super) events: SchemaFields<'b>,
}

/// The fields of one schema.
#[derive(Debug, Default)]
pub(super) struct SchemaFields<'b> {
    pub(super) key: [ByteText<'b>; 7],
    pub(super) event_type: ByteText<'b>,
    /// Whether a field has a value of another type.
    pub(super) invalid: bool,
}

impl<'b> EventBodyFields<'b> {
    pub(super) fn into_event_body(self, group_version: &[u8]) -> Option<EventBody<'b>> {
        if !matches!(&*self.kind, b"" | b"Event") {
            return None;
        }
        let api_version: &[u8] = if self.api_version.is_empty() {
            group_version
        } else {
            &self.api_version
        };
        let schema = EventSchema::from_api_version(api_version)?;
        let version_accepted = api_version == group_version;
        let schema_fields = match schema {
            EventSchema::Core => self.core,
            EventSchema::Events => self.events,
        };
        (!schema_fields.invalid).then_some(EventBody {
            schema,
            version_accepted,
            name: self.name,
            event_type: schema_fields.event_type,
            key: schema_fields.key,
        })
    }

    pub(super) fn schema_fields(&mut self, schema: EventSchema) -> &mut SchemaFields<'b> {
        match schema {
            EventSchema::Core => &mut self.core,
            EventSchema::Events => &mut self.events,
        }
    }

    /// Marks one schema, or both, as invalid: a field has a value of another type.
    pub(super) fn mark_invalid(&mut self, schema: Option<EventSchema>) {
        self.core.invalid |= schema != Some(EventSchema::Events);
        self.events.invalid |= schema != Some(EventSchema::Core);
    }
}

/// The fields of an event.
enum EventBodyField {
    ApiVersion,
    EventType,
    Kind,
    Metadata,
    Object(EventSchema),
    Source(EventSchema),
    /// Another field with this type, in one schema or both.
    Typed(EventFieldType, Option<EventSchema>),
    Unknown,
}

impl EventBodyField {
    fn from_name(name: &[u8]) -> Self {
        use EventSchema::{Core, Events};
        match name {
            b"apiVersion" => Self::ApiVersion,
            b"kind" => Self::Kind,
            b"metadata" => Self::Metadata,
            b"type" => Self::EventType,
            b"source" => Self::Source(Core),
            b"involvedObject" => Self::Object(Core),
            b"deprecatedSource" => Self::Source(Events),
            b"regarding" => Self::Object(Events),
            b"action" | b"reason" | b"reportingInstance" => Self::Typed(EventFieldType::Text, None),
            b"eventTime" => Self::Typed(EventFieldType::MicroTime, None),
            b"related" => Self::Typed(EventFieldType::Object(field_types::OBJECT_REFERENCE), None),
            b"series" => Self::Typed(EventFieldType::Object(field_types::EVENT_SERIES), None),
            b"message" | b"reportingComponent" => Self::Typed(EventFieldType::Text, Some(Core)),
            b"firstTimestamp" | b"lastTimestamp" => Self::Typed(EventFieldType::Time, Some(Core)),
            b"count" => Self::Typed(EventFieldType::Int32, Some(Core)),
            b"note" | b"reportingController" => Self::Typed(EventFieldType::Text, Some(Events)),
            b"deprecatedFirstTimestamp" | b"deprecatedLastTimestamp" => {
                Self::Typed(EventFieldType::Time, Some(Events))
            }
            b"deprecatedCount" => Self::Typed(EventFieldType::Int32, Some(Events)),
            _ => Self::Unknown,
        }
    }
}

/// The index in the key of a field of the source or the object; `Some(None)` for a string that is
/// not part of the key, `None` for other fields.
fn key_index(source: bool, name: &[u8]) -> Option<Option<usize>> {
    Some(match (source, name) {
        (true, b"component") => Some(0),
        (true, b"host") => Some(1),
        (false, b"kind") => Some(2),
        (false, b"namespace") => Some(3),
        (false, b"name") => Some(4),
        (false, b"uid") => Some(5),
        (false, b"apiVersion") => Some(6),
        (false, b"fieldPath" | b"resourceVersion") => None,
        _ => return None,
    })
}

/// Reads a whole body as an event. `None` if it is malformed. A field of a wrong type is only
/// recorded, since the schema is known at the end.
pub(super) fn read_event<'b, F: EventParser<'b>>(format: &mut F) -> Option<EventBodyFields<'b>> {
    let mut found = EventBodyFields::default();
    match format.read_value()? {
        EventValue::Null => {}
        EventValue::Map(mut map) => {
            while let ParsedKey::Named(name) = format.next_key(&mut map)? {
                read_field(format, &name, &mut found)?;
            }
        }
        EventValue::Other | EventValue::Text(_) => return None,
    }
    format.expect_end()?;
    Some(found)
}

fn read_field<'b, F: EventParser<'b>>(
    format: &mut F,
    name: &[u8],
    found: &mut EventBodyFields<'b>,
) -> Option<()> {
    match EventBodyField::from_name(name) {
        EventBodyField::ApiVersion => read_text(format, &mut found.api_version)?.then_some(()),
        EventBodyField::Kind => read_text(format, &mut found.kind)?.then_some(()),
        EventBodyField::EventType => {
            if !read_text(format, &mut found.core.event_type)? {
                found.mark_invalid(None);
            }
            found.events.event_type = found.core.event_type.clone(); // the field is common to both
            Some(())
        }
        EventBodyField::Metadata => read_metadata(format, found),
        EventBodyField::Object(schema) => {
            read_reference(format, false, found.schema_fields(schema))
        }
        EventBodyField::Source(schema) => read_reference(format, true, found.schema_fields(schema)),
        EventBodyField::Typed(expected, schema) => {
            if !field_types::check_type(format, &expected)? {
                found.mark_invalid(schema);
            }
            Some(())
        }
        EventBodyField::Unknown => format.skip_value().map(|_| ()),
    }
}

/// Reads a string into `into`, which null leaves unchanged. Whether it was either.
fn read_text<'b, F: EventParser<'b>>(format: &mut F, into: &mut ByteText<'b>) -> Option<bool> {
    match format.read_value()? {
        EventValue::Text(text) => {
            *into = text;
            Some(true)
        }
        EventValue::Null => Some(true),
        EventValue::Other => Some(false),
        EventValue::Map(map) => skip_map(format, map).map(|()| false),
    }
}

fn read_metadata<'b, F: EventParser<'b>>(
    format: &mut F,
    found: &mut EventBodyFields<'b>,
) -> Option<()> {
    match format.read_value()? {
        EventValue::Null => {}
        EventValue::Other | EventValue::Text(_) => found.mark_invalid(None),
        EventValue::Map(mut map) => {
            while let ParsedKey::Named(name) = format.next_key(&mut map)? {
                let valid = match &*name {
                    b"name" => read_text(format, &mut found.name)?,
                    other => field_types::check_type(
                        format,
                        field_types::field_type(field_types::OBJECT_META, other),
                    )?,
                };
                if !valid {
                    found.mark_invalid(None);
                }
            }
        }
    }
    Some(())
}

/// Reads the source or the object. A second one is merged into the first.
fn read_reference<'b, F: EventParser<'b>>(
    format: &mut F,
    source: bool,
    schema_fields: &mut SchemaFields<'b>,
) -> Option<()> {
    match format.read_value()? {
        EventValue::Null => {}
        EventValue::Other | EventValue::Text(_) => schema_fields.invalid = true,
        EventValue::Map(mut map) => {
            while let ParsedKey::Named(name) = format.next_key(&mut map)? {
                let valid = match key_index(source, &name) {
                    Some(Some(index)) => match schema_fields.key.get_mut(index) {
                        Some(into) => read_text(format, into)?,
                        None => true, // unreachable: the key has seven parts
                    },
                    Some(None) => matches!(
                        format.skip_value()?,
                        EventValueKind::Null | EventValueKind::Text
                    ),
                    None => format.skip_value().map(|_| true)?,
                };
                schema_fields.invalid |= !valid;
            }
        }
    }
    Some(())
}
