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

mod outline;
mod protobuf;
#[cfg(test)]
mod tests;

use self::outline::Outline;
use crate::api::walk::Cbor;
use crate::api::walk::Json;

/// What a list told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The number of its items, or of its rows if it is a table.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether its `metadata.continue` is there and not empty.
    pub continues: bool,
    /// The length of its body, in bytes.
    pub bytes: u64,
    /// Whether it is a table or a list of metadata: its length is not that of the objects. The
    /// `Content-Type` of such answers does not say so, their kind does.
    pub abridged: bool,
    /// How it was written.
    pub coding: Coding,
}

/// How objects are written in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
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
    body: Body,
    bytes: u64,
}

#[derive(Debug)]
enum Body {
    Cbor(Cbor<outline::Place>, Outline),
    Json(Json<outline::Place>, Outline),
    Protobuf(protobuf::Scan),
}

/// What a list told, but for the length of its body.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Those that have begun.
    items: u64,
    remaining_items: Option<u64>,
    continues: bool,
    abridged: bool,
    has_metadata: bool,
    /// Where the first item begins.
    first_at: u64,
    /// How many items have ended, and where the last of them did.
    ended: u64,
    ended_at: u64,
}

impl Coding {
    /// The coding of a `Content-Type`, whatever its parameters. None if it is another.
    #[must_use]
    pub fn of_content_type(content_type: &[u8]) -> Option<Self> {
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

impl Counts {
    fn item_begins(&mut self, at: u64) {
        if self.items == 0 {
            self.first_at = at;
        }
        self.items = self.items.saturating_add(1);
    }

    fn item_ended(&mut self, at: u64) {
        self.ended = self.ended.saturating_add(1);
        self.ended_at = at;
    }

    /// How many items a body of that length has, if the others are as long as those that were seen.
    fn items_in(&self, bytes: u64) -> Option<u64> {
        let seen = self.ended_at.checked_sub(self.first_at)?;
        let all = bytes.checked_sub(self.first_at)?;
        let items = u128::from(all).checked_mul(self.ended.into())?;
        let items = items.checked_add(u128::from(seen / 2))?;
        u64::try_from(items.checked_div(seen.into())?).ok()
    }

    const fn summary(self, bytes: u64, coding: Coding) -> Summary {
        Summary {
            items: self.items,
            remaining_items: self.remaining_items,
            continues: self.continues,
            bytes,
            abridged: self.abridged,
            coding,
        }
    }
}

/// Whether a list of that kind does not hold the objects as they are.
pub(super) fn is_abridged(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"Table" | b"PartialObjectMetadata" | b"PartialObjectMetadataList"
    )
}

impl ListScan {
    /// Begins a body of that `Content-Type`, parameters and all. None if it cannot be read.
    #[must_use]
    pub fn for_content_type(content_type: &[u8]) -> Option<Self> {
        Coding::of_content_type(content_type).map(Self::new)
    }

    /// Begins a body in that coding.
    #[must_use]
    pub fn new(coding: Coding) -> Self {
        let body = match coding {
            Coding::Cbor => Body::Cbor(Cbor::default(), Outline::default()),
            Coding::Json => Body::Json(Json::default(), Outline::default()),
            Coding::Protobuf => Body::Protobuf(protobuf::Scan::default()),
        };
        Self { body, bytes: 0 }
    }

    /// Takes in the next part of the body, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(length);
        match &mut self.body {
            Body::Cbor(walk, outline) => walk.feed(chunk, outline),
            Body::Json(walk, outline) => walk.feed(chunk, outline),
            Body::Protobuf(scan) => scan.feed(chunk),
        }
    }

    /// Takes note that the body is complete.
    #[must_use]
    pub fn finish(self) -> Option<Summary> {
        let (coding, counts) = match self.body {
            Body::Cbor(walk, outline) => (
                Coding::Cbor,
                outline.finish().filter(|_| walk.is_between())?,
            ),
            Body::Json(walk, outline) => (
                Coding::Json,
                outline.finish().filter(|_| walk.is_between())?,
            ),
            Body::Protobuf(scan) => (Coding::Protobuf, scan.finish()?),
        };
        Some(counts.summary(self.bytes, coding))
    }

    /// Estimates a body of `bytes` of which only the beginning was taken in. The items that were
    /// not seen are taken to be as long as those that were. None if not even one was, or if the
    /// list's metadata may still follow.
    #[must_use]
    pub fn extrapolate(self, bytes: u64) -> Option<Summary> {
        let (coding, counts) = match self.body {
            Body::Cbor(walk, outline) if !walk.stopped() => (Coding::Cbor, outline.so_far()),
            Body::Json(walk, outline) if !walk.stopped() => (Coding::Json, outline.so_far()),
            Body::Protobuf(scan) => (Coding::Protobuf, scan.so_far()?),
            Body::Cbor(..) | Body::Json(..) => return None,
        };
        let counts = Counts {
            items: counts.items_in(bytes).filter(|_| counts.has_metadata)?,
            ..counts
        };
        Some(counts.summary(bytes, coding))
    }
}
