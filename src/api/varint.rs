//! Protobuf's varints, decoded byte by byte.

/// A partially read number: seven bits per byte, the lowest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VarintDecoder {
    value: u64,
    shift: u32,
}

pub(super) enum VarintProgress {
    Complete(u64),
    Incomplete,
    /// The number does not fit in 64 bits.
    TooLong,
}

impl VarintDecoder {
    pub(super) fn push(&mut self, byte: u8) -> VarintProgress {
        // The tenth byte holds the last bit.
        if self.shift == 63 && byte > 1 {
            return VarintProgress::TooLong;
        }
        self.value |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        if byte & 0x80 != 0 {
            return VarintProgress::Incomplete;
        }
        VarintProgress::Complete(std::mem::take(self).value)
    }
}
