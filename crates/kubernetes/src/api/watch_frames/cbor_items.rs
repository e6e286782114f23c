//! Finds the ends of the items of a CBOR sequence (RFC 8742).
//!
//! Kubernetes' encoder writes no item of indefinite length. A stream with one is malformed here.

use crate::numeric::{saturating_u64, saturating_usize};

/// The current item.
#[derive(Debug)]
pub(super) struct CborItems {
    /// The data items, of all levels, that have not begun.
    missing: u64,
    /// Of the head of a data item: its major type, its argument, and the missing bytes of this.
    major: u8,
    argument: u64,
    argument_bytes: u8,
    /// The missing bytes of a string.
    string_bytes: u64,
    is_malformed: bool,
}

impl Default for CborItems {
    fn default() -> Self {
        Self {
            missing: 1,
            major: 0,
            argument: 0,
            argument_bytes: 0,
            string_bytes: 0,
            is_malformed: false,
        }
    }
}

impl CborItems {
    pub(super) const fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// The length of what belongs to the current item, if it ends within these bytes.
    pub(super) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut rest = bytes;
        while let Some((byte, after)) = rest.split_first() {
            if self.string_bytes > 0 {
                let read = saturating_usize(self.string_bytes).min(rest.len());
                self.string_bytes = self.string_bytes.saturating_sub(saturating_u64(read));
                rest = rest.get(read..).unwrap_or_default();
            } else {
                self.push_head(*byte);
                rest = after;
            }
            if self.is_malformed {
                return None;
            }
            if self.missing == 0 && self.argument_bytes == 0 && self.string_bytes == 0 {
                self.missing = 1;
                return Some(bytes.len() - rest.len());
            }
        }
        None
    }

    fn push_head(&mut self, byte: u8) {
        if self.argument_bytes > 0 {
            self.argument = self.argument << 8 | u64::from(byte);
            self.argument_bytes -= 1;
        } else {
            self.major = byte >> 5;
            match byte & 0x1f {
                here @ 0..=23 => self.argument = u64::from(here),
                power @ 24..=27 => (self.argument, self.argument_bytes) = (0, 1 << (power - 24)),
                _ => self.is_malformed = true,
            }
        }
        if self.argument_bytes == 0 {
            self.begin_item();
        }
    }

    fn begin_item(&mut self) {
        let children = match self.major {
            2 | 3 => {
                self.string_bytes = self.argument;
                Some(0)
            }
            4 => Some(self.argument),
            5 => self.argument.checked_mul(2),
            6 => Some(1),
            _ => Some(0),
        };
        let missing = children.and_then(|children| (self.missing - 1).checked_add(children));
        self.is_malformed |= missing.is_none();
        self.missing = missing.unwrap_or_default();
    }
}
