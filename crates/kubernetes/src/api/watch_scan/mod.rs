//! Counts the initial events of a watch while its bytes pass: the objects that existed when the
//! watch began, as events ADDED, and in a watch list (KEP-3157) the bookmark that ends them.
//!
//! That bookmark is a BOOKMARK event whose object has the annotation `k8s.io/initial-events-end`.
//! The annotation on any other event is ignored: clients write the annotations of those objects.
//!
//! The scan keeps no part of the stream, and the chunk boundaries do not matter. It reads JSON,
//! CBOR and Kubernetes' protobuf. In a malformed stream the bookmark is not found.

mod protobuf;
#[cfg(test)]
mod tests;
mod totals;
mod visitor;

use crate::api::media_type::MediaType;
use crate::api::walk::{CborWalker, JsonWalker};
use crate::api::watch_scan::totals::WatchTotals;
use crate::api::watch_scan::visitor::WatchVisitor;

pub use crate::api::watch_scan::totals::InitialEvents;

/// Scans one stream, chunk by chunk.
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

impl WatchScan {
    /// Starts a scan of a stream in this encoding.
    #[must_use]
    pub fn new(media_type: MediaType) -> Self {
        let stream = match media_type {
            MediaType::Cbor => WatchDecoder::Cbor(CborWalker::default(), WatchVisitor::default()),
            MediaType::Json => WatchDecoder::Json(JsonWalker::default(), WatchVisitor::default()),
            MediaType::Protobuf => WatchDecoder::Protobuf(protobuf::ProtobufWatchScan::default()),
        };
        Self { decoder: stream }
    }

    /// Consumes the next chunk of the stream, of any length. Returns whether the initial events
    /// have ended.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        match &mut self.decoder {
            WatchDecoder::Cbor(walker, visitor) => walker.feed(chunk, visitor),
            WatchDecoder::Json(walker, visitor) => walker.feed(chunk, visitor),
            WatchDecoder::Protobuf(scan) => scan.feed(chunk),
        }
        self.totals().initial_events_ended
    }

    /// The initial events so far, or all of them if they have ended.
    #[must_use]
    pub fn initial_events(&self) -> InitialEvents {
        self.totals().events
    }

    /// The length of the object of the last event that has ended, in bytes.
    #[must_use]
    pub fn last_object(&self) -> Option<u64> {
        self.totals().last_object
    }

    /// Whether no event is incomplete.
    #[must_use]
    pub fn is_between_events(&self) -> bool {
        match &self.decoder {
            WatchDecoder::Cbor(walker, _) => walker.is_between_documents(),
            WatchDecoder::Json(walker, _) => walker.is_between_documents(),
            WatchDecoder::Protobuf(scan) => scan.is_between_events(),
        }
    }

    /// Whether the stream is malformed.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        match &self.decoder {
            WatchDecoder::Cbor(walker, _) => walker.is_stopped(),
            WatchDecoder::Json(walker, _) => walker.is_stopped(),
            WatchDecoder::Protobuf(scan) => scan.is_malformed(),
        }
    }

    const fn totals(&self) -> WatchTotals {
        match &self.decoder {
            WatchDecoder::Cbor(_, visitor) | WatchDecoder::Json(_, visitor) => visitor.totals(),
            WatchDecoder::Protobuf(scan) => scan.totals(),
        }
    }
}
