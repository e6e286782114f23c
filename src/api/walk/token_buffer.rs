//! A short text that comes byte by byte.

use serde::de::IgnoredAny;

/// More than the longest text of interest has, `k8s.io/initial-events-end`, and than the longest number that Go writes.
const CAPACITY: usize = 40;

/// A short text; of a longer one it is only known that it is longer.
#[derive(Debug)]
pub(in crate::api) struct TokenBuffer {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Default for TokenBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; CAPACITY],
            length: 0,
        }
    }
}

impl TokenBuffer {
    pub(in crate::api) fn clear(&mut self) {
        self.length = 0;
    }

    pub(in crate::api) fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    /// Adds what there is room for.
    pub(in crate::api) fn extend(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(place) = self.bytes.get_mut(self.length..end) {
            place.copy_from_slice(bytes);
        }
        self.length = end;
    }

    /// All of it, if it is short.
    pub(in crate::api) fn as_bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }

    pub(in crate::api) fn equals(&self, text: &[u8]) -> bool {
        self.as_bytes() == Some(text)
    }

    /// Whether it is a JSON number, `true`, `false` or `null`.
    pub(super) fn is_json_scalar(&self) -> bool {
        self.as_bytes()
            .is_some_and(|kept| serde_json::from_slice::<IgnoredAny>(kept).is_ok())
    }

    pub(super) fn int64(&self) -> Option<i64> {
        serde_json::from_slice(self.as_bytes()?).ok()
    }
}
