//! What the limits must know of an event, found in its body without making the object.
//!
//! A body is read as kube-apiserver's decoders read it (1.36.2), as far as it matters: the fields that name the source and
//! the object, the event's name and type, its kind and version, and that all around them is well-formed and of the types
//! that an event's fields have.
//!
//! A format is a pull parser ([`Format`]); which fields there are, of what type, and how doubles count is told once, here.

mod cbor;
mod json;
mod protobuf;
mod shape;
#[cfg(test)]
mod tests;
mod yaml;

use std::borrow::Cow;

use self::shape::Shape;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`.
    Protobuf,
    /// `application/yaml`.
    Yaml,
}

impl Encoding {
    /// By the header `Content-Type`; JSON where there is none. `None` for what kube-apiserver answers with 415.
    #[must_use]
    pub fn of_object(content_type: Option<&[u8]>) -> Option<Self> {
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
    pub fn of_patch(content_type: Option<&[u8]>) -> Option<Self> {
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
pub enum Schema {
    /// `v1`.
    Core,
    /// `events.k8s.io/v1`.
    Events,
}

impl Schema {
    /// Of an `apiVersion`.
    fn of(api_version: &[u8]) -> Option<Self> {
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
    pub schema: Schema,
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
pub fn read<'b>(encoding: Encoding, group_version: &[u8], body: &'b [u8]) -> Option<EventBody<'b>> {
    let found = match encoding {
        Encoding::Cbor => object(&mut cbor::Cbor::new(body)),
        Encoding::Json => object(&mut json::Json::new(body)),
        Encoding::Protobuf => protobuf::read(body),
        Encoding::Yaml => yaml::read(body),
    };
    found?.decide(group_version)
}

/// Text, in a body or made from it.
type Text<'b> = Cow<'b, [u8]>;

/// What was found, whichever spelling it is in.
#[derive(Debug, Default)]
struct Found<'b> {
    api_version: Text<'b>,
    kind: Text<'b>,
    name: Text<'b>,
    core: Side<'b>,
    events: Side<'b>,
}

/// What one of the spellings says.
#[derive(Debug, Default)]
struct Side<'b> {
    key: [Text<'b>; 7],
    event_type: Text<'b>,
    /// A field has a value of another type.
    wrong: bool,
}

impl<'b> Found<'b> {
    fn decide(self, group_version: &[u8]) -> Option<EventBody<'b>> {
        if !matches!(&*self.kind, b"" | b"Event") {
            return None;
        }
        let own: &[u8] = if self.api_version.is_empty() {
            group_version
        } else {
            &self.api_version
        };
        let schema = Schema::of(own)?;
        let version_accepted = own == group_version;
        let side = match schema {
            Schema::Core => self.core,
            Schema::Events => self.events,
        };
        (!side.wrong).then_some(EventBody {
            schema,
            version_accepted,
            name: self.name,
            event_type: side.event_type,
            key: side.key,
        })
    }

    fn side(&mut self, schema: Schema) -> &mut Side<'b> {
        match schema {
            Schema::Core => &mut self.core,
            Schema::Events => &mut self.events,
        }
    }

    /// A field of this side has a value of another type; of both sides, if it is on both.
    fn wrong(&mut self, schema: Option<Schema>) {
        self.core.wrong |= schema != Some(Schema::Events);
        self.events.wrong |= schema != Some(Schema::Core);
    }
}

/// A pull parser.
trait Format<'b> {
    /// Where one is within a map.
    type Map;
    /// Likewise within a list.
    type List;
    /// Reads a value, or enters it if it is a map: the caller then asks for keys until there are no more.
    fn value(&mut self) -> Option<Value<'b, Self::Map>>;
    /// The next key of a map; its value must be read or skipped then.
    fn key(&mut self, map: &mut Self::Map) -> Option<Key<'b>>;
    /// Reads a value that should be a list, and enters it if it is one: the caller then asks for items until there are no more.
    fn list(&mut self) -> Option<Listed<Self::List>>;
    /// Whether a list has another item, which must be read or skipped then.
    fn item(&mut self, list: &mut Self::List) -> Option<bool>;
    /// Passes over a value.
    fn skip(&mut self) -> Option<Kind>;
    /// Nothing follows.
    fn end(&mut self) -> Option<()>;
}

enum Value<'b, M> {
    Map(M),
    Null,
    Text(Text<'b>),
    /// Anything else, passed over.
    Other,
}

enum Listed<L> {
    Items(L),
    Null,
    /// Anything else, passed over.
    Other,
}

enum Key<'b> {
    Named(Text<'b>),
    /// The map is at its end.
    End,
}

/// What a value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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

impl Kind {
    fn of_whole(number: i64) -> Self {
        i32::try_from(number).map_or(Self::Int64, |_| Self::Int32)
    }
}

/// What a field of an event holds.
enum Field {
    ApiVersion,
    EventType,
    Kind,
    Metadata,
    Object(Schema),
    Source(Schema),
    /// Something else, of that shape, in this spelling or both.
    Typed(Shape, Option<Schema>),
    Unknown,
}

impl Field {
    fn named(name: &[u8]) -> Self {
        use Schema::Core;
        use Schema::Events;
        match name {
            b"apiVersion" => Self::ApiVersion,
            b"kind" => Self::Kind,
            b"metadata" => Self::Metadata,
            b"type" => Self::EventType,
            b"source" => Self::Source(Core),
            b"involvedObject" => Self::Object(Core),
            b"deprecatedSource" => Self::Source(Events),
            b"regarding" => Self::Object(Events),
            b"action" | b"reason" | b"reportingInstance" => Self::Typed(Shape::Text, None),
            b"eventTime" => Self::Typed(Shape::MicroTime, None),
            b"related" => Self::Typed(Shape::Object(shape::REFERENCE), None),
            b"series" => Self::Typed(Shape::Object(shape::SERIES), None),
            b"message" | b"reportingComponent" => Self::Typed(Shape::Text, Some(Core)),
            b"firstTimestamp" | b"lastTimestamp" => Self::Typed(Shape::Time, Some(Core)),
            b"count" => Self::Typed(Shape::Int32, Some(Core)),
            b"note" | b"reportingController" => Self::Typed(Shape::Text, Some(Events)),
            b"deprecatedFirstTimestamp" | b"deprecatedLastTimestamp" => {
                Self::Typed(Shape::Time, Some(Events))
            }
            b"deprecatedCount" => Self::Typed(Shape::Int32, Some(Events)),
            _ => Self::Unknown,
        }
    }
}

/// Where in the key a field of the source or of the object stands; `None` for those that are strings, too, but not in it.
fn place_in_key(source: bool, name: &[u8]) -> Option<Option<usize>> {
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
fn object<'b, F: Format<'b>>(format: &mut F) -> Option<Found<'b>> {
    let mut found = Found::default();
    match format.value()? {
        Value::Null => {}
        Value::Map(mut map) => {
            while let Key::Named(name) = format.key(&mut map)? {
                field(format, &name, &mut found)?;
            }
        }
        Value::Other | Value::Text(_) => return None,
    }
    format.end()?;
    Some(found)
}

fn field<'b, F: Format<'b>>(format: &mut F, name: &[u8], found: &mut Found<'b>) -> Option<()> {
    match Field::named(name) {
        Field::ApiVersion => text(format, &mut found.api_version)?.then_some(()),
        Field::Kind => text(format, &mut found.kind)?.then_some(()),
        Field::EventType => {
            if !text(format, &mut found.core.event_type)? {
                found.wrong(None);
            }
            found.events.event_type = found.core.event_type.clone(); // one field for both
            Some(())
        }
        Field::Metadata => metadata(format, found),
        Field::Object(schema) => reference(format, false, found.side(schema)),
        Field::Source(schema) => reference(format, true, found.side(schema)),
        Field::Typed(expected, schema) => {
            if !shape::fits(format, &expected)? {
                found.wrong(schema);
            }
            Some(())
        }
        Field::Unknown => format.skip().map(|_| ()),
    }
}

/// Reads a string into its place; null leaves what is there. Whether it was either.
fn text<'b, F: Format<'b>>(format: &mut F, into: &mut Text<'b>) -> Option<bool> {
    match format.value()? {
        Value::Text(text) => {
            *into = text;
            Some(true)
        }
        Value::Null => Some(true),
        Value::Other => Some(false),
        Value::Map(map) => pass(format, map).map(|()| false),
    }
}

/// Passes over the rest of a map that was entered.
fn pass<'b, F: Format<'b>>(format: &mut F, mut map: F::Map) -> Option<()> {
    while let Key::Named(_) = format.key(&mut map)? {
        format.skip()?;
    }
    Some(())
}

fn metadata<'b, F: Format<'b>>(format: &mut F, found: &mut Found<'b>) -> Option<()> {
    match format.value()? {
        Value::Null => {}
        Value::Other | Value::Text(_) => found.wrong(None),
        Value::Map(mut map) => {
            while let Key::Named(name) = format.key(&mut map)? {
                let well = match &*name {
                    b"name" => text(format, &mut found.name)?,
                    other => shape::fits(format, shape::of(shape::METADATA, other))?,
                };
                if !well {
                    found.wrong(None);
                }
            }
        }
    }
    Some(())
}

/// The source or the object. A second one is laid over the first.
fn reference<'b, F: Format<'b>>(format: &mut F, source: bool, side: &mut Side<'b>) -> Option<()> {
    match format.value()? {
        Value::Null => {}
        Value::Other | Value::Text(_) => side.wrong = true,
        Value::Map(mut map) => {
            while let Key::Named(name) = format.key(&mut map)? {
                let well = match place_in_key(source, &name) {
                    Some(Some(place)) => match side.key.get_mut(place) {
                        Some(into) => text(format, into)?,
                        None => true, // never: there are seven
                    },
                    Some(None) => matches!(format.skip()?, Kind::Null | Kind::Text),
                    None => format.skip().map(|_| true)?,
                };
                side.wrong |= !well;
            }
        }
    }
    Some(())
}
