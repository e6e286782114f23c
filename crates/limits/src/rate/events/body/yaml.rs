//! YAML, which hardly any client writes events in. It is parsed by the parser of configuration
//! files, which reads it as Kubernetes does.
//!
//! That parser builds a tree, so the size of a body is limited.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::rate::events::body::event_fields::{EventBodyFields, SchemaFields, read_event};
use crate::rate::events::body::event_parser::{
    EventParser, EventValue, EventValueKind, ParsedKey, ParsedList,
};
use weir_kubernetes::document;
use weir_kubernetes::document::{Content, Diagnostics, MappingEntry, Node, ResolvedScalar};

/// The largest body that is read, in bytes. An event has one or two KiB, and a tree takes up to 250
/// times the text.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;

/// The most bytes copied for a body's anchors, aliases and `<<`, which kube-apiserver supports as
/// well: several times an event.
const MAX_COPIED_BYTES: usize = 16 << 10;

/// Reads the first document of a body. A body without a document is an event without fields.
pub(super) fn parse<'b>(body: &[u8]) -> Option<EventBodyFields<'b>> {
    let text = std::str::from_utf8(body).ok();
    let text = text.filter(|text| text.len() <= MAX_BODY_BYTES)?;
    let mut diagnostics = Diagnostics::default();
    let first = document::parse_first_bounded("body", text, MAX_COPIED_BYTES, &mut diagnostics)?;
    match first.document {
        Some(first) => read_event(&mut YamlEventParser { next: Some(&first) }).map(into_owned),
        None => Some(EventBodyFields::default()),
    }
}

/// Copies the fields, since the tree is dropped after parsing.
fn into_owned<'b>(found: EventBodyFields<'_>) -> EventBodyFields<'b> {
    let own = |text: Cow<'_, [u8]>| Cow::Owned(text.into_owned());
    let schema_fields = |schema_fields: SchemaFields<'_>| SchemaFields {
        key: schema_fields.key.map(own),
        event_type: own(schema_fields.event_type),
        invalid: schema_fields.invalid,
    };
    EventBodyFields {
        api_version: own(found.api_version),
        kind: own(found.kind),
        name: own(found.name),
        core: schema_fields(found.core),
        events: schema_fields(found.events),
    }
}

/// Walks a tree as a pull parser.
struct YamlEventParser<'n> {
    /// The next value.
    next: Option<&'n Node>,
}

/// The remaining entries, the next one last. Of equal names only the last is kept.
struct YamlEntries<'n>(Vec<&'n MappingEntry>);

impl<'n> EventParser<'n> for YamlEventParser<'n> {
    type List = std::slice::Iter<'n, Node>;
    type Map = YamlEntries<'n>;

    fn read_value(&mut self) -> Option<EventValue<'n, YamlEntries<'n>>> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Mapping(entries) => {
                let mut seen = HashSet::new();
                let mut last = entries.iter().rev().collect::<Vec<_>>();
                last.retain(|entry| seen.insert(&entry.name));
                EventValue::Map(YamlEntries(last))
            }
            Content::Sequence(_) => EventValue::Other,
            Content::Scalar(scalar) => match scalar.value {
                ResolvedScalar::Null => EventValue::Null,
                ResolvedScalar::String => EventValue::Text(Cow::Borrowed(scalar.text.as_bytes())),
                ResolvedScalar::Bool(_) | ResolvedScalar::Float(_) | ResolvedScalar::Integer(_) => {
                    EventValue::Other
                }
            },
        })
    }

    fn next_key(&mut self, map: &mut YamlEntries<'n>) -> Option<ParsedKey<'n>> {
        Some(match map.0.pop() {
            Some(entry) => {
                self.next = Some(&entry.value);
                ParsedKey::Named(Cow::Borrowed(entry.name.as_bytes()))
            }
            None => ParsedKey::End,
        })
    }

    fn read_list(&mut self) -> Option<ParsedList<Self::List>> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Sequence(items) => ParsedList::Items(items.iter()),
            Content::Mapping(_) | Content::Scalar(_) if node.is_null() => ParsedList::Null,
            Content::Mapping(_) | Content::Scalar(_) => ParsedList::Other,
        })
    }

    fn next_item(&mut self, list: &mut Self::List) -> Option<bool> {
        self.next = list.next();
        Some(self.next.is_some())
    }

    fn skip_value(&mut self) -> Option<EventValueKind> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Mapping(_) => EventValueKind::Map,
            Content::Sequence(_) => EventValueKind::Other,
            Content::Scalar(scalar) => match scalar.value {
                ResolvedScalar::Null => EventValueKind::Null,
                ResolvedScalar::String => EventValueKind::Text,
                ResolvedScalar::Bool(_) => EventValueKind::Bool,
                ResolvedScalar::Integer(value) => {
                    i64::try_from(value).map_or(EventValueKind::Other, EventValueKind::from_integer)
                }
                ResolvedScalar::Float(_) => EventValueKind::Other,
            },
        })
    }

    fn expect_end(&mut self) -> Option<()> {
        Some(())
    }
}
