//! A buffer for a short string that arrives byte by byte.

use serde::de::IgnoredAny;

/// More than the length of the longest string of interest, `k8s.io/initial-events-end`, and of the
/// longest number that Go writes.
const CAPACITY: usize = 40;

/// A short string. Of a longer one, only the fact that it is too long is kept.
#[derive(Debug)]
pub(crate) struct TokenBuffer {
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
    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    pub(crate) fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    /// Appends `bytes` if they fit; counts them in any case.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(slot) = self.bytes.get_mut(self.length..end) {
            slot.copy_from_slice(bytes);
        }
        self.length = end;
    }

    /// The whole string, if it fits.
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }

    pub(crate) fn equals(&self, text: &[u8]) -> bool {
        self.as_bytes() == Some(text)
    }

    /// Whether the string is a JSON number, `true`, `false` or `null`.
    pub(super) fn is_json_scalar(&self) -> bool {
        self.as_bytes()
            .is_some_and(|bytes| serde_json::from_slice::<IgnoredAny>(bytes).is_ok())
    }

    pub(super) fn int64(&self) -> Option<i64> {
        serde_json::from_slice(self.as_bytes()?).ok()
    }
}
