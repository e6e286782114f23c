//! Protobuf's varints, byte by byte.

/// A number of seven bits a byte, the lowest first, of which a part was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Varint {
    read: u64,
    bits: u32,
}

pub(super) enum Pushed {
    Complete(u64),
    Incomplete,
    /// It does not fit 64 bits.
    TooLong,
}

impl Varint {
    pub(super) fn push(&mut self, byte: u8) -> Pushed {
        // The tenth byte holds the last bit.
        if self.bits == 63 && byte > 1 {
            return Pushed::TooLong;
        }
        self.read |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        if byte & 0x80 != 0 {
            return Pushed::Incomplete;
        }
        Pushed::Complete(std::mem::take(self).read)
    }
}
