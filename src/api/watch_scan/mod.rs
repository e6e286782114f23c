//! The initial events of a watch, told from its bytes as they pass: what there was when it began,
//! as events ADDED, and in a watch list (KEP-3157) the bookmark that says that this was all.
//!
//! That mark is the annotation `k8s.io/initial-events-end` of a BOOKMARK's object. Whatever any
//! other event holds does not count: clients write the annotations of those.
//!
//! Keeps no part of the stream; how it is cut into chunks makes no difference. Reads JSON, CBOR and
//! Kubernetes' protobuf. Of a stream that is malformed no mark is found.

mod protobuf;
#[cfg(test)]
mod tests;
mod visitor;

use crate::api::list_scan::MediaType;
use crate::api::walk::CborWalker;
use crate::api::walk::JsonWalker;
use crate::api::watch_scan::visitor::WatchVisitor;

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
    pub transformed: bool,
}

/// Reads one stream, chunk by chunk.
#[derive(Debug)]
pub struct WatchScan {
    decoder: WatchDecoder,
}

#[derive(Debug)]
enum WatchDecoder {
    Cbor(CborWalker<visitor::WatchContext>, WatchVisitor),
    Json(JsonWalker<visitor::WatchContext>, WatchVisitor),
    Protobuf(protobuf::ProtobufWatchScan),
}

/// What is known of all events that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct WatchTotals {
    events: InitialEvents,
    initial_events_ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WatchEventType {
    Added,
    Bookmark,
    Other,
    #[default]
    Unknown,
}

impl WatchEventType {
    fn from_name(name: Option<&[u8]>) -> Self {
        match name {
            Some(b"ADDED") => Self::Added,
            Some(b"BOOKMARK") => Self::Bookmark,
            _ => Self::Other,
        }
    }
}

impl WatchTotals {
    /// An event has ended, whose object has so many bytes.
    fn record_event(&mut self, event: WatchEventType, marked: bool, bytes: u64) {
        match event {
            WatchEventType::Added if !self.initial_events_ended => {
                self.events.objects = self.events.objects.saturating_add(1);
                self.events.bytes = self.events.bytes.saturating_add(bytes);
            }
            WatchEventType::Bookmark => self.initial_events_ended |= marked,
            WatchEventType::Added | WatchEventType::Other | WatchEventType::Unknown => {}
        }
    }
}

impl WatchScan {
    /// Begins a stream in that coding.
    #[must_use]
    pub fn new(coding: MediaType) -> Self {
        let stream = match coding {
            MediaType::Cbor => WatchDecoder::Cbor(CborWalker::default(), WatchVisitor::default()),
            MediaType::Json => WatchDecoder::Json(JsonWalker::default(), WatchVisitor::default()),
            MediaType::Protobuf => WatchDecoder::Protobuf(protobuf::ProtobufWatchScan::default()),
        };
        Self { decoder: stream }
    }

    /// Takes in the next part of the stream, of any length. Returns whether the mark has come.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        match &mut self.decoder {
            WatchDecoder::Cbor(walk, outline) => walk.feed(chunk, outline),
            WatchDecoder::Json(walk, outline) => walk.feed(chunk, outline),
            WatchDecoder::Protobuf(scan) => scan.feed(chunk),
        }
        self.totals().initial_events_ended
    }

    /// What has come so far, or up to the mark.
    #[must_use]
    pub fn initial_events(&self) -> InitialEvents {
        self.totals().events
    }

    /// Whether the stream is malformed.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        match &self.decoder {
            WatchDecoder::Cbor(walk, _) => walk.is_stopped(),
            WatchDecoder::Json(walk, _) => walk.is_stopped(),
            WatchDecoder::Protobuf(scan) => scan.is_malformed(),
        }
    }

    const fn totals(&self) -> WatchTotals {
        match &self.decoder {
            WatchDecoder::Cbor(_, outline) | WatchDecoder::Json(_, outline) => outline.totals(),
            WatchDecoder::Protobuf(scan) => scan.totals(),
        }
    }
}
