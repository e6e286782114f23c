//! Counts the objects in the response to a list request while its bytes pass.
//!
//! The scan keeps no part of the body: it needs the same memory for every body, and the chunk
//! boundaries do not matter. A body that is not a list, is malformed where it matters, or is
//! truncated has no [`ListSummary`].
//!
//! The scan reads JSON and CBOR (lists of objects or of their metadata, and tables) and Kubernetes'
//! protobuf. It checks only the list around the objects. Inside the objects it follows only strings
//! and brackets, or lengths. It does not decompress and does not read the status code: the caller
//! chooses the responses to scan.

mod protobuf;
#[cfg(test)]
mod tests;
mod totals;
mod visitor;

use crate::api::list_scan::totals::ListTotals;
use crate::api::list_scan::visitor::ListVisitor;
use crate::api::media_type::MediaType;
use crate::api::walk::{CborWalker, JsonWalker};
use crate::numeric::saturating_u64;

pub use crate::api::list_scan::totals::ListSummary;

/// Scans one body, chunk by chunk.
#[derive(Debug)]
pub struct ListScan {
    decoder: ListDecoder,
    bytes: u64,
}

#[derive(Debug)]
enum ListDecoder {
    Cbor(CborWalker<visitor::ListContext>, ListVisitor),
    Json(JsonWalker<visitor::ListContext>, ListVisitor),
    Protobuf(protobuf::ProtobufListScan),
}

impl ListScan {
    /// Starts a scan of a body in this encoding.
    #[must_use]
    pub fn new(media_type: MediaType) -> Self {
        let body = match media_type {
            MediaType::Cbor => ListDecoder::Cbor(CborWalker::default(), ListVisitor::default()),
            MediaType::Json => ListDecoder::Json(JsonWalker::default(), ListVisitor::default()),
            MediaType::Protobuf => ListDecoder::Protobuf(protobuf::ProtobufListScan::default()),
        };
        Self {
            decoder: body,
            bytes: 0,
        }
    }

    /// Consumes the next chunk of the body, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let length = saturating_u64(chunk.len());
        self.bytes = self.bytes.saturating_add(length);
        match &mut self.decoder {
            ListDecoder::Cbor(walker, visitor) => walker.feed(chunk, visitor),
            ListDecoder::Json(walker, visitor) => walker.feed(chunk, visitor),
            ListDecoder::Protobuf(scan) => scan.feed(chunk),
        }
    }

    /// Ends the scan: the body is complete.
    #[must_use]
    pub fn finish(self) -> Option<ListSummary> {
        let (media_type, totals) = match self.decoder {
            ListDecoder::Cbor(walker, visitor) => (
                MediaType::Cbor,
                visitor.finish().filter(|_| walker.is_between_documents())?,
            ),
            ListDecoder::Json(walker, visitor) => (
                MediaType::Json,
                visitor.finish().filter(|_| walker.is_between_documents())?,
            ),
            ListDecoder::Protobuf(scan) => (MediaType::Protobuf, scan.finish()?),
        };
        Some(totals.into_summary(self.bytes, media_type))
    }

    /// Estimates the summary of a body of `bytes` bytes of which only the beginning was scanned.
    /// The remaining items are assumed to have the same mean length as those that were scanned.
    /// `None` if no item was scanned, or if the list's metadata may still follow.
    #[must_use]
    pub fn extrapolate(self, bytes: u64) -> Option<ListSummary> {
        let (media_type, totals) = match self.decoder {
            ListDecoder::Cbor(walker, visitor) if !walker.is_stopped() => {
                (MediaType::Cbor, visitor.totals_so_far())
            }
            ListDecoder::Json(walker, visitor) if !walker.is_stopped() => {
                (MediaType::Json, visitor.totals_so_far())
            }
            ListDecoder::Protobuf(scan) => (MediaType::Protobuf, scan.totals_so_far()?),
            ListDecoder::Cbor(..) | ListDecoder::Json(..) => return None,
        };
        let totals = ListTotals {
            items: totals
                .estimate_items(bytes)
                .filter(|_| totals.has_metadata)?,
            ..totals
        };
        Some(totals.into_summary(bytes, media_type))
    }
}
