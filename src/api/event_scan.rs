//! The initial events of a watch, told from its bytes as they pass: what there was when it began,
//! as events ADDED, and in a watch list (KEP-3157) the bookmark that says that this was all.
//!
//! That mark is the annotation `k8s.io/initial-events-end` of a BOOKMARK's object. Whatever any
//! other event holds does not count: clients write the annotations of those.
//!
//! Keeps no part of the stream; how it is cut into chunks makes no difference. Reads JSON, CBOR and
//! Kubernetes' protobuf. Of a stream that is malformed no mark is found.

mod outline;
mod protobuf;
#[cfg(test)]
mod tests;

use self::outline::Outline;
use crate::api::list_scan::Coding;
use crate::api::walk::Cbor;
use crate::api::walk::Json;

/// The annotation (`metav1.InitialEventsAnnotationKey`).
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// What came before the mark, or so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialEvents {
    /// The number of events ADDED.
    pub objects: u64,
    /// The length of their objects, in bytes.
    pub bytes: u64,
    /// Whether they are tables or metadata alone: the length is not that of the objects.
    pub abridged: bool,
}

/// Reads one stream, chunk by chunk.
#[derive(Debug)]
pub struct EventScan {
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Cbor(Cbor<outline::Place>, Outline),
    Json(Json<outline::Place>, Outline),
    Protobuf(protobuf::Scan),
}

/// What is known of all events that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    events: InitialEvents,
    marked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EventType {
    Added,
    Bookmark,
    Other,
    #[default]
    Unknown,
}

impl EventType {
    fn named(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"ADDED") => Self::Added,
            Some(b"BOOKMARK") => Self::Bookmark,
            _ => Self::Other,
        }
    }
}

impl Seen {
    /// An event has ended, whose object has so many bytes.
    fn event(&mut self, event: EventType, marked: bool, bytes: u64) {
        match event {
            EventType::Added if !self.marked => {
                self.events.objects = self.events.objects.saturating_add(1);
                self.events.bytes = self.events.bytes.saturating_add(bytes);
            }
            EventType::Bookmark => self.marked |= marked,
            EventType::Added | EventType::Other | EventType::Unknown => {}
        }
    }
}

impl EventScan {
    /// Begins a stream in that coding.
    #[must_use]
    pub fn new(coding: Coding) -> Self {
        let stream = match coding {
            Coding::Cbor => Stream::Cbor(Cbor::default(), Outline::default()),
            Coding::Json => Stream::Json(Json::default(), Outline::default()),
            Coding::Protobuf => Stream::Protobuf(protobuf::Scan::default()),
        };
        Self { stream }
    }

    /// Takes in the next part of the stream, of any length. Returns whether the mark has come.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        match &mut self.stream {
            Stream::Cbor(walk, outline) => walk.feed(chunk, outline),
            Stream::Json(walk, outline) => walk.feed(chunk, outline),
            Stream::Protobuf(scan) => scan.feed(chunk),
        }
        self.seen().marked
    }

    /// What has come so far, or up to the mark.
    #[must_use]
    pub fn initial_events(&self) -> InitialEvents {
        self.seen().events
    }

    /// Whether the stream is malformed.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        match &self.stream {
            Stream::Cbor(walk, _) => walk.stopped(),
            Stream::Json(walk, _) => walk.stopped(),
            Stream::Protobuf(scan) => scan.is_malformed(),
        }
    }

    const fn seen(&self) -> Seen {
        match &self.stream {
            Stream::Cbor(_, outline) | Stream::Json(_, outline) => outline.seen(),
            Stream::Protobuf(scan) => scan.seen(),
        }
    }
}
