//! Protobuf's wire format. Pure.

/// The prefix of every body that Kubernetes writes
/// (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`).
pub const KUBERNETES_MAGIC: &[u8; 4] = b"k8s\0";

/// The wire type of a field: the lowest three bits of its tag.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod wire_type {
    pub const VARINT: u64 = 0;
    pub const FIXED64: u64 = 1;
    pub const LENGTH_DELIMITED: u64 = 2;
    pub const START_GROUP: u64 = 3;
    pub const END_GROUP: u64 = 4;
    pub const FIXED32: u64 = 5;
}

/// A partially read number: seven bits per byte, the lowest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VarintDecoder {
    value: u64,
    shift: u32,
}

/// What is known after a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarintProgress {
    /// The number.
    Complete(u64),
    /// Its last byte is still missing.
    Incomplete,
    /// The number is complete and does not fit in 64 bits. These are its lowest bits, which Go's
    /// generated code uses.
    Truncated(u64),
    /// The number has more than ten bytes.
    TooLong,
}

impl VarintDecoder {
    /// The shift of the tenth byte, which holds the last bit.
    const LAST_SHIFT: u32 = 63;

    /// Takes the next byte.
    pub fn push(&mut self, byte: u8) -> VarintProgress {
        let bits = byte & 0x7f;
        let is_last = self.shift == Self::LAST_SHIFT;
        self.value |= u64::from(bits) << self.shift;
        if byte != bits && is_last {
            return VarintProgress::TooLong;
        }
        if byte != bits {
            self.shift += 7;
            return VarintProgress::Incomplete;
        }
        let value = std::mem::take(self).value;
        if is_last && bits > 1 {
            VarintProgress::Truncated(value)
        } else {
            VarintProgress::Complete(value)
        }
    }
}

/// Reads a number from the beginning of `bytes`, which become the rest. As in Go's generated code,
/// higher bits than 64 are dropped. `None` if the number has no end, or more than ten bytes.
pub fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut decoder = VarintDecoder::default();
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        match decoder.push(*byte) {
            VarintProgress::Complete(value) | VarintProgress::Truncated(value) => {
                return Some(value);
            }
            VarintProgress::Incomplete => {}
            VarintProgress::TooLong => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> VarintProgress {
        let mut decoder = VarintDecoder::default();
        let mut progress = VarintProgress::Incomplete;
        for byte in bytes {
            assert_eq!(progress, VarintProgress::Incomplete);
            progress = decoder.push(*byte);
        }
        progress
    }

    #[test]
    fn a_number_has_seven_bits_per_byte_and_ten_bytes_at_most() {
        let tenth = |byte| [&[0xff; 9][..], &[byte]].concat();
        assert_eq!(decode(&[0x96, 0x01]), VarintProgress::Complete(150));
        assert_eq!(decode(&[0x96]), VarintProgress::Incomplete);
        assert_eq!(decode(&tenth(1)), VarintProgress::Complete(u64::MAX));
        assert_eq!(decode(&tenth(0x7f)), VarintProgress::Truncated(u64::MAX));
        assert_eq!(decode(&tenth(0x81)), VarintProgress::TooLong);
    }

    #[test]
    fn a_number_is_read_from_the_beginning_of_bytes() {
        let mut bytes = &[0x96, 0x01, 7, 0x80][..];
        assert_eq!(read_varint(&mut bytes), Some(150));
        assert_eq!(read_varint(&mut bytes), Some(7));
        assert_eq!(read_varint(&mut bytes), None, "it has no end");
        let mut truncated = &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2][..];
        assert_eq!(read_varint(&mut truncated), Some(0));
        assert_eq!(read_varint(&mut &[0x80; 11][..]), None);
    }
}
