//! How many objects an answer to a list holds, told from its bytes as they pass.
//!
//! Keeps no part of the body: what it needs of memory is the same for every body, and how the body
//! is cut into chunks makes no difference. Of a body that is no list, is malformed where it
//! matters, or ended early there is no [`Summary`].
//!
//! Reads JSON and CBOR (lists of objects or of their metadata, and tables) and Kubernetes' protobuf.
//! It checks only what it needs: the list around the objects, not what is in them, of which it
//! follows strings and brackets, or lengths. It does not undo compression, and does not look at the
//! status: the caller chooses the answers to hand in.

mod protobuf;
#[cfg(test)]
mod tests;
mod visitor;

use crate::api::list_scan::visitor::ListVisitor;
use crate::api::walk::CborWalker;
use crate::api::walk::JsonWalker;

/// What a list told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSummary {
    /// The number of its items, or of its rows if it is a table.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether its `metadata.continue` is there and not empty.
    pub has_continue_token: bool,
    /// The length of its body, in bytes.
    pub bytes: u64,
    /// Whether it is a table or a list of metadata: its length is not that of the objects. The
    /// `Content-Type` of such answers does not say so, their kind does.
    pub transformed: bool,
    /// How it was written.
    pub media_type: MediaType,
}

/// How objects are written in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`, in which built-in resources are stored as well.
    Protobuf,
}

/// Reads one body, chunk by chunk.
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

/// What a list told, but for the length of its body.
#[derive(Clone, Copy, Debug, Default)]
struct ListTotals {
    /// Those that have begun.
    items: u64,
    remaining_items: Option<u64>,
    has_continue_token: bool,
    transformed: bool,
    has_metadata: bool,
    /// Where the first item begins.
    first_item_start: u64,
    /// How many items have ended, and where the last of them did.
    ended_items: u64,
    last_item_end: u64,
}

impl MediaType {
    /// The coding of a `Content-Type`, whatever its parameters. None if it is another.
    #[must_use]
    pub fn from_content_type(content_type: &[u8]) -> Option<Self> {
        let media_type = content_type
            .split(|byte| *byte == b';')
            .next()?
            .trim_ascii();
        let is = |name: &[u8]| media_type.eq_ignore_ascii_case(name);
        if is(b"application/json") {
            Some(Self::Json)
        } else if is(b"application/vnd.kubernetes.protobuf") {
            Some(Self::Protobuf)
        } else if is(b"application/cbor") || is(b"application/cbor-seq") {
            Some(Self::Cbor)
        } else {
            None
        }
    }
}

impl ListTotals {
    fn begin_item(&mut self, at: u64) {
        if self.items == 0 {
            self.first_item_start = at;
        }
        self.items = self.items.saturating_add(1);
    }

    fn end_item(&mut self, at: u64) {
        self.ended_items = self.ended_items.saturating_add(1);
        self.last_item_end = at;
    }

    /// How many items a body of that length has, if the others are as long as those that were seen.
    fn estimate_items(&self, bytes: u64) -> Option<u64> {
        let seen = self.last_item_end.checked_sub(self.first_item_start)?;
        let all = bytes.checked_sub(self.first_item_start)?;
        let items = u128::from(all).checked_mul(self.ended_items.into())?;
        let items = items.checked_add(u128::from(seen / 2))?;
        u64::try_from(items.checked_div(seen.into())?).ok()
    }

    const fn into_summary(self, bytes: u64, coding: MediaType) -> ListSummary {
        ListSummary {
            items: self.items,
            remaining_items: self.remaining_items,
            has_continue_token: self.has_continue_token,
            bytes,
            transformed: self.transformed,
            media_type: coding,
        }
    }
}

/// Whether a list of that kind does not hold the objects as they are.
pub(super) fn is_transformed_kind(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"Table" | b"PartialObjectMetadata" | b"PartialObjectMetadataList"
    )
}

impl ListScan {
    /// Begins a body of that `Content-Type`, parameters and all. None if it cannot be read.
    #[must_use]
    pub fn for_content_type(content_type: &[u8]) -> Option<Self> {
        MediaType::from_content_type(content_type).map(Self::new)
    }

    /// Begins a body in that coding.
    #[must_use]
    pub fn new(coding: MediaType) -> Self {
        let body = match coding {
            MediaType::Cbor => ListDecoder::Cbor(CborWalker::default(), ListVisitor::default()),
            MediaType::Json => ListDecoder::Json(JsonWalker::default(), ListVisitor::default()),
            MediaType::Protobuf => ListDecoder::Protobuf(protobuf::ProtobufListScan::default()),
        };
        Self {
            decoder: body,
            bytes: 0,
        }
    }

    /// Takes in the next part of the body, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(length);
        match &mut self.decoder {
            ListDecoder::Cbor(walk, outline) => walk.feed(chunk, outline),
            ListDecoder::Json(walk, outline) => walk.feed(chunk, outline),
            ListDecoder::Protobuf(scan) => scan.feed(chunk),
        }
    }

    /// Takes note that the body is complete.
    #[must_use]
    pub fn finish(self) -> Option<ListSummary> {
        let (coding, counts) = match self.decoder {
            ListDecoder::Cbor(walk, outline) => (
                MediaType::Cbor,
                outline.finish().filter(|_| walk.is_between_documents())?,
            ),
            ListDecoder::Json(walk, outline) => (
                MediaType::Json,
                outline.finish().filter(|_| walk.is_between_documents())?,
            ),
            ListDecoder::Protobuf(scan) => (MediaType::Protobuf, scan.finish()?),
        };
        Some(counts.into_summary(self.bytes, coding))
    }

    /// Estimates a body of `bytes` of which only the beginning was taken in. The items that were
    /// not seen are taken to be as long as those that were. None if not even one was, or if the
    /// list's metadata may still follow.
    #[must_use]
    pub fn extrapolate(self, bytes: u64) -> Option<ListSummary> {
        let (coding, counts) = match self.decoder {
            ListDecoder::Cbor(walk, outline) if !walk.is_stopped() => {
                (MediaType::Cbor, outline.totals_so_far())
            }
            ListDecoder::Json(walk, outline) if !walk.is_stopped() => {
                (MediaType::Json, outline.totals_so_far())
            }
            ListDecoder::Protobuf(scan) => (MediaType::Protobuf, scan.totals_so_far()?),
            ListDecoder::Cbor(..) | ListDecoder::Json(..) => return None,
        };
        let counts = ListTotals {
            items: counts
                .estimate_items(bytes)
                .filter(|_| counts.has_metadata)?,
            ..counts
        };
        Some(counts.into_summary(bytes, coding))
    }
}
