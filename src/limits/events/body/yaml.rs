//! YAML, which next to nobody writes events in: through the parser of configuration files, which reads it as Kubernetes does.
//!
//! That parser makes a tree, so bodies are only read up to a bound.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Format;
use super::Found;
use super::Key;
use super::Kind;
use super::Listed;
use super::Value;
use super::object;
use crate::document;
use crate::document::Content;
use crate::document::Entry;
use crate::document::Faults;
use crate::document::Node;
use crate::document::Resolved;

/// The largest body that is read, in bytes: an event has one or two KiB, and a tree costs up to 250 times the text.
pub(super) const LARGEST: usize = 64 << 10;

/// What may be copied for a body's anchors, aliases and `<<`, which kube-apiserver takes as well: several times an event.
const MOST_COPIED: usize = 16 << 10;

/// Reads the first document of a body; one without any is an event without any field.
pub(super) fn read<'b>(body: &[u8]) -> Option<Found<'b>> {
    let text = std::str::from_utf8(body).ok();
    let text = text.filter(|text| text.len() <= LARGEST)?;
    let mut faults = Faults::default();
    let first = document::parse_first_within("body", text, MOST_COPIED, &mut faults)?;
    match first.document {
        Some(first) => object(&mut Tree { next: Some(&first) }).map(owned),
        None => Some(Found::default()),
    }
}

/// The tree does not outlive the reading.
fn owned<'b>(found: Found<'_>) -> Found<'b> {
    let own = |text: Cow<'_, [u8]>| Cow::Owned(text.into_owned());
    let side = |side: super::Side<'_>| super::Side {
        key: side.key.map(own),
        event_type: own(side.event_type),
        wrong: side.wrong,
    };
    Found {
        api_version: own(found.api_version),
        kind: own(found.kind),
        name: own(found.name),
        core: side(found.core),
        events: side(found.events),
    }
}

/// Walks a tree as if it were being parsed.
struct Tree<'n> {
    /// The value that comes next.
    next: Option<&'n Node>,
}

/// The entries that are left, the next one last; of equal names only the last written.
struct Entries<'n>(Vec<&'n Entry>);

impl<'n> Format<'n> for Tree<'n> {
    type List = std::slice::Iter<'n, Node>;
    type Map = Entries<'n>;

    fn value(&mut self) -> Option<Value<'n, Entries<'n>>> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Mapping(entries) => {
                let mut seen = HashSet::new();
                let mut last = entries.iter().rev().collect::<Vec<_>>();
                last.retain(|entry| seen.insert(&entry.name));
                Value::Map(Entries(last))
            }
            Content::Sequence(_) => Value::Other,
            Content::Scalar(scalar) => match scalar.resolved {
                Resolved::Null => Value::Null,
                Resolved::Text => Value::Text(Cow::Borrowed(scalar.text.as_bytes())),
                Resolved::Bool(_) | Resolved::Float(_) | Resolved::Integer(_) => Value::Other,
            },
        })
    }

    fn key(&mut self, map: &mut Entries<'n>) -> Option<Key<'n>> {
        Some(match map.0.pop() {
            Some(entry) => {
                self.next = Some(&entry.value);
                Key::Named(Cow::Borrowed(entry.name.as_bytes()))
            }
            None => Key::End,
        })
    }

    fn list(&mut self) -> Option<Listed<Self::List>> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Sequence(items) => Listed::Items(items.iter()),
            Content::Mapping(_) | Content::Scalar(_) if node.is_null() => Listed::Null,
            Content::Mapping(_) | Content::Scalar(_) => Listed::Other,
        })
    }

    fn item(&mut self, list: &mut Self::List) -> Option<bool> {
        self.next = list.next();
        Some(self.next.is_some())
    }

    fn skip(&mut self) -> Option<Kind> {
        let node = self.next.take()?;
        Some(match &node.content {
            Content::Mapping(_) => Kind::Map,
            Content::Sequence(_) => Kind::Other,
            Content::Scalar(scalar) => match scalar.resolved {
                Resolved::Null => Kind::Null,
                Resolved::Text => Kind::Text,
                Resolved::Bool(_) => Kind::Bool,
                Resolved::Integer(value) => {
                    i64::try_from(value).map_or(Kind::Other, Kind::of_whole)
                }
                Resolved::Float(_) => Kind::Other,
            },
        })
    }

    fn end(&mut self) -> Option<()> {
        Some(())
    }
}
