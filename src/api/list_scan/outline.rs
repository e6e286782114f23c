//! A list in JSON or CBOR: its members and those of its metadata, and where items begin and end.
//!
//! A list is an object with an array of objects, or null, as `items` or `rows`. One with more than
//! one `items`, `rows` or `metadata` is no list.

use super::Counts;
use super::is_abridged;
use crate::api::walk::Begun;
use crate::api::walk::Kind;
use crate::api::walk::Scalar;
use crate::api::walk::Step;
use crate::api::walk::Visitor;

#[derive(Debug, Default)]
pub(super) struct Outline {
    begun: bool,
    ended: bool,
    has_items: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Continue,
    Items,
    Kind,
    List,
    Metadata,
    RemainingItemCount,
}

impl Outline {
    /// What is known so far.
    pub(super) const fn so_far(&self) -> Counts {
        self.counts
    }

    /// What it told, if it is complete.
    pub(super) fn finish(&self) -> Option<Counts> {
        (self.ended && self.has_items).then_some(self.counts)
    }

    fn member(&mut self, name: Option<&[u8]>, kind: Kind) -> Step<Place> {
        match name {
            Some(b"items" | b"rows") => {
                self.counts.abridged |= name == Some(b"rows");
                let again = std::mem::replace(&mut self.has_items, true);
                enter(Place::Items, !again && kind_is(kind, Kind::List))
            }
            Some(b"metadata") => {
                let again = std::mem::replace(&mut self.counts.has_metadata, true);
                enter(Place::Metadata, !again && kind_is(kind, Kind::Map))
            }
            Some(b"kind") if kind == Kind::Text => Step::Enter(Place::Kind),
            _ => Step::Pass,
        }
    }
}

fn enter(place: Place, allowed: bool) -> Step<Place> {
    if allowed {
        Step::Enter(place)
    } else {
        Step::Stop
    }
}

/// Whether it is of that kind, or may be null.
fn kind_is(kind: Kind, wanted: Kind) -> bool {
    kind == wanted || kind == Kind::Other
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
        match (within, name) {
            (None, _) => {
                let again = std::mem::replace(&mut self.begun, true);
                enter(Place::List, !again && kind == Kind::Map)
            }
            (Some(Place::List), _) => self.member(name, kind),
            (Some(Place::Items), _) if kind == Kind::Map => {
                self.counts.item_begins(at);
                Step::Pass
            }
            (Some(Place::Items), _) => Step::Stop,
            (Some(Place::Metadata), Some(b"continue")) => {
                enter(Place::Continue, kind_is(kind, Kind::Text))
            }
            (Some(Place::Metadata), Some(b"remainingItemCount")) => {
                enter(Place::RemainingItemCount, kind == Kind::Other)
            }
            _ => Step::Pass,
        }
    }

    fn scalar(&mut self, place: Place, value: Scalar<'_>) -> bool {
        match (place, value) {
            (Place::Items | Place::Metadata, Scalar::Null) => {}
            (Place::Continue, Scalar::Null) => self.counts.continues = false,
            (Place::Continue, Scalar::Text(text)) => self.counts.continues = text != Some(b""),
            (Place::RemainingItemCount, Scalar::Null) => self.counts.remaining_items = None,
            (Place::RemainingItemCount, Scalar::Number(number)) => {
                self.counts.remaining_items = Some(number);
            }
            (Place::Kind, Scalar::Text(kind)) => {
                self.counts.abridged |= kind.is_some_and(is_abridged);
            }
            _ => return false,
        }
        true
    }

    fn ended(&mut self, within: Option<Place>, at: u64) {
        match within {
            None => self.ended = true,
            Some(Place::Items) => self.counts.item_ended(at),
            Some(_) => {}
        }
    }
}
