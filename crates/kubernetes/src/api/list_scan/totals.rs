//! The results of a scan.

use crate::api::media_type::MediaType;

/// The summary of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSummary {
    /// Number of items, or of rows if the list is a table.
    pub items: u64,
    /// `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether `metadata.continue` is set and not empty.
    pub has_continue_token: bool,
    /// Length of the body, in bytes.
    pub bytes: u64,
    /// Whether the list is a table or a metadata list, so that its length is not that of the
    /// objects. The `Content-Type` of such responses does not show this, their kind does.
    pub transformed: bool,
    /// The encoding of the body.
    pub media_type: MediaType,
}

/// The summary without the length of the body.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListTotals {
    /// Items that have begun.
    pub(super) items: u64,
    pub(super) remaining_items: Option<u64>,
    pub(super) has_continue_token: bool,
    pub(super) transformed: bool,
    pub(super) has_metadata: bool,
    /// Offset of the first item.
    pub(super) first_item_start: u64,
    /// Number of items that have ended, and the offset of the end of the last one.
    pub(super) ended_items: u64,
    pub(super) last_item_end: u64,
}

impl ListTotals {
    pub(super) fn begin_item(&mut self, at: u64) {
        if self.items == 0 {
            self.first_item_start = at;
        }
        self.items = self.items.saturating_add(1);
    }

    pub(super) fn end_item(&mut self, at: u64) {
        self.ended_items = self.ended_items.saturating_add(1);
        self.last_item_end = at;
    }

    /// Estimates the number of items in a body of `bytes` bytes, if all are as long as those that
    /// were scanned.
    pub(super) fn estimate_items(&self, bytes: u64) -> Option<u64> {
        let seen = self.last_item_end.checked_sub(self.first_item_start)?;
        let all = bytes.checked_sub(self.first_item_start)?;
        let items = u128::from(all).checked_mul(self.ended_items.into())?;
        let items = items.checked_add(u128::from(seen / 2))?;
        u64::try_from(items.checked_div(seen.into())?).ok()
    }

    pub(super) const fn into_summary(self, bytes: u64, media_type: MediaType) -> ListSummary {
        ListSummary {
            items: self.items,
            remaining_items: self.remaining_items,
            has_continue_token: self.has_continue_token,
            bytes,
            transformed: self.transformed,
            media_type,
        }
    }
}

/// Whether objects of this kind are tables or metadata instead of the stored objects.
pub(crate) fn is_transformed_kind(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"Table" | b"PartialObjectMetadata" | b"PartialObjectMetadataList"
    )
}
