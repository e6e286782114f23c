//! Events in JSON or CBOR: `{"type": …, "object": …}`, one after another.
//!
//! A bookmark of a table has its object in a row.

use super::EventType;
use super::INITIAL_EVENTS_END;
use super::Seen;
use crate::api::list_scan::is_abridged;
use crate::api::walk::Begun;
use crate::api::walk::Kind;
use crate::api::walk::Scalar;
use crate::api::walk::Step;
use crate::api::walk::Visitor;

#[derive(Debug, Default)]
pub(super) struct Outline {
    seen: Seen,
    event: EventType,
    /// It has the annotation.
    marked: bool,
    /// The kind of the first object was looked for.
    has_kind: bool,
    /// Where the object began, until it has ended.
    object_at: Option<u64>,
    object_length: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Annotations,
    Event,
    Kind,
    Mark,
    Metadata,
    Object,
    /// An object within a row.
    Part,
    Row,
    Rows,
    Type,
}

impl Outline {
    pub(super) const fn seen(&self) -> Seen {
        self.seen
    }

    fn member(&mut self, name: Option<&[u8]>, kind: Kind, at: u64) -> Step<Place> {
        match name {
            Some(b"type") if kind == Kind::Text => Step::Enter(Place::Type),
            Some(b"object") => {
                self.object_at = Some(at);
                let first =
                    self.event == EventType::Added && !std::mem::replace(&mut self.has_kind, true);
                let wanted = matches!(self.event, EventType::Bookmark | EventType::Unknown);
                enter(Place::Object, kind == Kind::Map && (first || wanted))
            }
            _ => Step::Pass,
        }
    }
}

fn enter(place: Place, wanted: bool) -> Step<Place> {
    if wanted {
        Step::Enter(place)
    } else {
        Step::Pass
    }
}

impl Visitor for Outline {
    type Place = Place;

    fn visit(&mut self, value: Begun<'_, Place>) -> Step<Place> {
        let Begun {
            within,
            name,
            kind,
            at,
        } = value;
        let is_map = kind == Kind::Map;
        match (within, name) {
            (None, _) if is_map => {
                (self.event, self.marked) = (EventType::Unknown, false);
                self.object_length = 0;
                Step::Enter(Place::Event)
            }
            (None, _) => Step::Stop,
            (Some(Place::Event), _) => self.member(name, kind, at),
            (Some(Place::Object), Some(b"kind")) => enter(Place::Kind, kind == Kind::Text),
            (Some(Place::Object), Some(b"rows")) => enter(Place::Rows, kind == Kind::List),
            (Some(Place::Rows), _) => enter(Place::Row, is_map),
            (Some(Place::Row), Some(b"object")) => enter(Place::Part, is_map),
            (Some(Place::Object | Place::Part), Some(b"metadata")) => {
                enter(Place::Metadata, is_map)
            }
            (Some(Place::Metadata), Some(b"annotations")) => enter(Place::Annotations, is_map),
            (Some(Place::Annotations), Some(INITIAL_EVENTS_END)) => {
                enter(Place::Mark, kind == Kind::Text)
            }
            _ => Step::Pass,
        }
    }

    fn scalar(&mut self, place: Place, value: Scalar<'_>) -> bool {
        if let Scalar::Text(text) = value {
            match place {
                Place::Type => self.event = EventType::named(text),
                Place::Mark => self.marked |= text == Some(b"true"),
                Place::Kind => self.seen.events.abridged |= text.is_some_and(is_abridged),
                Place::Annotations
                | Place::Event
                | Place::Metadata
                | Place::Object
                | Place::Part
                | Place::Row
                | Place::Rows => {}
            }
        }
        true
    }

    fn ended(&mut self, within: Option<Place>, at: u64) {
        match within {
            None => self.seen.event(self.event, self.marked, self.object_length),
            Some(Place::Event) => {
                if let Some(began) = self.object_at.take() {
                    self.object_length = at.saturating_sub(began);
                }
            }
            Some(_) => {}
        }
    }
}
