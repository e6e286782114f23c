//! How many objects an answer to a list holds, told from its bytes as they pass.
//!
//! Keeps no part of the body: what it needs of memory is the same for every body, and how the body
//! is cut into chunks makes no difference. Of a body that is no list, is malformed where it
//! matters, or ended early there is no [`Summary`].
//!
//! Reads JSON (lists of objects or of their metadata, and tables) and Kubernetes' protobuf. It
//! checks only what it needs: the list around the objects, not what is in them, of which it follows
//! strings and brackets, or lengths. It does not undo compression, and does not look at the status:
//! the caller chooses the answers to hand in.

mod json;
mod nested;
mod protobuf;
#[cfg(test)]
mod tests;

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
}

/// Reads one body, chunk by chunk.
#[derive(Debug)]
pub struct ListScan {
    body: Body,
    bytes: u64,
}

#[derive(Debug)]
enum Body {
    Json(json::Scan),
    Protobuf(protobuf::Scan),
}

/// What a list told, but for the length of its body.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    items: u64,
    remaining_items: Option<u64>,
    continues: bool,
}

impl ListScan {
    /// Begins a body of that `Content-Type`, parameters and all. None if it cannot be read.
    #[must_use]
    pub fn for_content_type(content_type: &[u8]) -> Option<Self> {
        let media_type = content_type
            .split(|byte| *byte == b';')
            .next()?
            .trim_ascii();
        let body = if media_type.eq_ignore_ascii_case(b"application/json") {
            Body::Json(json::Scan::default())
        } else if media_type.eq_ignore_ascii_case(b"application/vnd.kubernetes.protobuf") {
            Body::Protobuf(protobuf::Scan::default())
        } else {
            return None;
        };
        Some(Self { body, bytes: 0 })
    }

    /// Takes in the next part of the body, of any length.
    pub fn feed(&mut self, chunk: &[u8]) {
        let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(length);
        match &mut self.body {
            Body::Json(scan) => scan.feed(chunk),
            Body::Protobuf(scan) => scan.feed(chunk),
        }
    }

    /// Takes note that the body is complete.
    #[must_use]
    pub fn finish(self) -> Option<Summary> {
        let counts = match self.body {
            Body::Json(scan) => scan.finish(),
            Body::Protobuf(scan) => scan.finish(),
        }?;
        let Counts {
            items,
            remaining_items,
            continues,
        } = counts;
        Some(Summary {
            items,
            remaining_items,
            continues,
            bytes: self.bytes,
        })
    }
}
