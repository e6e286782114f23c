//! What the limits must know of an event, found in its body without making the object.
//!
//! A body is read as kube-apiserver's decoders read it (1.36.2), as far as it matters: the fields that name the source and
//! the object, the event's name and type, its kind and version, and that all around them is well-formed and of the types
//! that an event's fields have.
//!
//! A format is a pull parser ([`EventParser`]); which fields there are, of what type, and how doubles count is told once, here.

mod cbor;
mod field_types;
mod json;
mod protobuf;
#[cfg(test)]
mod tests;
mod yaml;

use std::borrow::Cow;

use crate::limits::rate::events::body::field_types::EventFieldType;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEncoding {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
    /// `application/yaml`.
    Yaml,
}

impl EventEncoding {
    /// By the header `Content-Type`; JSON where there is none. `None` for what kube-apiserver answers with 415.
    #[must_use]
    pub fn from_content_type(content_type: Option<&[u8]>) -> Option<Self> {
        match &*media_type(content_type) {
            b"" | b"application/json" => Some(Self::Json),
            b"application/cbor" => Some(Self::Cbor),
            b"application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            b"application/yaml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Likewise of a patch, if it is one that holds the whole object: server-side apply.
    #[must_use]
    pub fn from_patch_content_type(content_type: Option<&[u8]>) -> Option<Self> {
        match &*media_type(content_type) {
            b"application/apply-patch+cbor" => Some(Self::Cbor),
            b"application/apply-patch+yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

fn media_type(content_type: Option<&[u8]>) -> Vec<u8> {
    let media = content_type
        .unwrap_or_default()
        .split(|byte| *byte == b';')
        .next();
    media.unwrap_or_default().trim_ascii().to_ascii_lowercase()
}

/// The two spellings of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSchema {
    /// `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
}

impl EventSchema {
    /// Of an `apiVersion`.
    fn from_api_version(api_version: &[u8]) -> Option<Self> {
        match api_version {
            b"v1" => Some(Self::Core),
            b"events.k8s.io/v1" | b"events.k8s.io/v1beta1" => Some(Self::Events),
            _ => None,
        }
    }
}

/// An event, as far as the limits are concerned. Strings are bytes: protobuf's need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBody<'b> {
    /// Which spelling it has.
    pub schema: EventSchema,
    /// Its `apiVersion` is that of the URL, or it says none.
    pub version_accepted: bool,
    /// `metadata.name`.
    pub name: Cow<'b, [u8]>,
    /// `type`.
    pub event_type: Cow<'b, [u8]>,
    /// What makes the bucket's key, in upstream's order: component and host of the source; kind, namespace, name, uid and
    /// apiVersion of the object.
    pub key: [Cow<'b, [u8]>; 7],
}

/// Reads a body that was sent to an endpoint of `group_version`. `None` if it cannot be read as an event.
#[must_use]
pub fn parse<'b>(
    encoding: EventEncoding,
    group_version: &[u8],
    body: &'b [u8],
) -> Option<EventBody<'b>> {
    let found = match encoding {
        EventEncoding::Cbor => read_event(&mut cbor::CborEventParser::new(body)),
        EventEncoding::Json => read_event(&mut json::JsonEventParser::new(body)),
        EventEncoding::Protobuf => protobuf::parse(body),
        EventEncoding::Yaml => yaml::parse(body),
    };
    found?.into_event_body(group_version)
}

/// Text, in a body or made from it.
type ByteText<'b> = Cow<'b, [u8]>;

/// What was found, whichever spelling it is in.
#[derive(Debug, Default)]
struct EventBodyFields<'b> {
    api_version: ByteText<'b>,
    kind: ByteText<'b>,
    name: ByteText<'b>,
    core: SchemaFields<'b>,
    events: SchemaFields<'b>,
}

/// What one of the spellings says.
#[derive(Debug, Default)]
struct SchemaFields<'b> {
    key: [ByteText<'b>; 7],
    event_type: ByteText<'b>,
    /// A field has a value of another type.
    invalid: bool,
}

impl<'b> EventBodyFields<'b> {
    fn into_event_body(self, group_version: &[u8]) -> Option<EventBody<'b>> {
        if !matches!(&*self.kind, b"" | b"Event") {
            return None;
        }
        let own: &[u8] = if self.api_version.is_empty() {
            group_version
        } else {
            &self.api_version
        };
        let schema = EventSchema::from_api_version(own)?;
        let version_accepted = own == group_version;
        let side = match schema {
            EventSchema::Core => self.core,
            EventSchema::Events => self.events,
        };
        (!side.invalid).then_some(EventBody {
            schema,
            version_accepted,
            name: self.name,
            event_type: side.event_type,
            key: side.key,
        })
    }

    fn schema_fields(&mut self, schema: EventSchema) -> &mut SchemaFields<'b> {
        match schema {
            EventSchema::Core => &mut self.core,
            EventSchema::Events => &mut self.events,
        }
    }

    /// A field of this side has a value of another type; of both sides, if it is on both.
    fn mark_invalid(&mut self, schema: Option<EventSchema>) {
        self.core.invalid |= schema != Some(EventSchema::Events);
        self.events.invalid |= schema != Some(EventSchema::Core);
    }
}

/// A pull parser.
trait EventParser<'b> {
    /// Where one is within a map.
    type Map;
    /// Likewise within a list.
    type List;
    /// Reads a value, or enters it if it is a map: the caller then asks for keys until there are no more.
    fn read_value(&mut self) -> Option<EventValue<'b, Self::Map>>;
    /// The next key of a map; its value must be read or skipped then.
    fn next_key(&mut self, map: &mut Self::Map) -> Option<ParsedKey<'b>>;
    /// Reads a value that should be a list, and enters it if it is one: the caller then asks for items until there are no more.
    fn read_list(&mut self) -> Option<ParsedList<Self::List>>;
    /// Whether a list has another item, which must be read or skipped then.
    fn next_item(&mut self, list: &mut Self::List) -> Option<bool>;
    /// Passes over a value.
    fn skip_value(&mut self) -> Option<EventValueKind>;
    /// Nothing follows.
    fn expect_end(&mut self) -> Option<()>;
}

enum EventValue<'b, M> {
    Map(M),
    Null,
    Text(ByteText<'b>),
    /// Anything else, passed over.
    Other,
}

enum ParsedList<L> {
    Items(L),
    Null,
    /// Anything else, passed over.
    Other,
}

enum ParsedKey<'b> {
    Named(ByteText<'b>),
    /// The map is at its end.
    End,
}

/// What a value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventValueKind {
    Bool,
    /// A whole number of 32 bits.
    Int32,
    /// One of 64 bits.
    Int64,
    Map,
    Null,
    Other,
    Text,
}

impl EventValueKind {
    fn from_integer(number: i64) -> Self {
        i32::try_from(number).map_or(Self::Int64, |_| Self::Int32)
    }
}

/// What a field of an event holds.
enum EventBodyField {
    ApiVersion,
    EventType,
    Kind,
    Metadata,
    Object(EventSchema),
    Source(EventSchema),
    /// Something else, of that shape, in this spelling or both.
    Typed(EventFieldType, Option<EventSchema>),
    Unknown,
}

impl EventBodyField {
    fn from_name(name: &[u8]) -> Self {
        use EventSchema::Core;
        use EventSchema::Events;
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

/// Where in the key a field of the source or of the object stands; `None` for those that are strings, too, but not in it.
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

/// Reads a whole body as an event. `None` if it is malformed; an event whose fields are of wrong types is found out later,
/// when it is known which spelling counts.
fn read_event<'b, F: EventParser<'b>>(format: &mut F) -> Option<EventBodyFields<'b>> {
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
            found.events.event_type = found.core.event_type.clone(); // one field for both
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

/// Reads a string into its place; null leaves what is there. Whether it was either.
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

/// Passes over the rest of a map that was entered.
fn skip_map<'b, F: EventParser<'b>>(format: &mut F, mut map: F::Map) -> Option<()> {
    while let ParsedKey::Named(_) = format.next_key(&mut map)? {
        format.skip_value()?;
    }
    Some(())
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
                let well = match &*name {
                    b"name" => read_text(format, &mut found.name)?,
                    other => field_types::check_type(
                        format,
                        field_types::field_type(field_types::OBJECT_META, other),
                    )?,
                };
                if !well {
                    found.mark_invalid(None);
                }
            }
        }
    }
    Some(())
}

/// The source or the object. A second one is laid over the first.
fn read_reference<'b, F: EventParser<'b>>(
    format: &mut F,
    source: bool,
    side: &mut SchemaFields<'b>,
) -> Option<()> {
    match format.read_value()? {
        EventValue::Null => {}
        EventValue::Other | EventValue::Text(_) => side.invalid = true,
        EventValue::Map(mut map) => {
            while let ParsedKey::Named(name) = format.next_key(&mut map)? {
                let well = match key_index(source, &name) {
                    Some(Some(place)) => match side.key.get_mut(place) {
                        Some(into) => read_text(format, into)?,
                        None => true, // never: there are seven
                    },
                    Some(None) => matches!(
                        format.skip_value()?,
                        EventValueKind::Null | EventValueKind::Text
                    ),
                    None => format.skip_value().map(|_| true)?,
                };
                side.invalid |= !well;
            }
        }
    }
    Some(())
}
