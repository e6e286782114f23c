//! HPACK's header fields (RFC 7541), counted and not decoded. Pure.
//!
//! A field in the dynamic table is one byte on the wire. What it costs to decode a header block
//! depends on its fields, and hardly on its bytes.

/// The bit of a byte that another byte of the same integer follows (RFC 7541, 5.1).
const CONTINUES: u8 = 0x80;

/// The largest number in the first byte of a string's length, whose other bit says whether the
/// string has Huffman codes (RFC 7541, 5.2).
const LENGTH_PREFIX: u8 = 0x7f;

/// Counts the fields of one header block, in parts as they arrive.
#[derive(Debug, Default)]
pub struct FieldCounter {
    next: Next,
    /// The strings that follow in the current field, the current string included.
    strings: u8,
}

/// What the next byte is.
#[derive(Clone, Copy, Debug, Default)]
enum Next {
    /// The first byte of a field.
    #[default]
    Field,
    /// Another byte of an index.
    Index,
    /// The first byte of a string's length.
    Length,
    /// Another byte of a string's length, the number of bits in `shift`.
    LengthRest { length: usize, shift: u32 },
    /// The first of so many bytes of a string, at least one.
    Text(usize),
}

impl FieldCounter {
    /// Returns the number of fields that begin in the next part of the block. A change of the
    /// table's size counts as one. The result is arbitrary for a block that is not valid.
    pub fn count(&mut self, mut block: &[u8]) -> u64 {
        let mut fields = 0;
        while let Some((first, rest)) = block.split_first() {
            block = rest;
            self.next = match self.next {
                Next::Field => {
                    fields += 1;
                    self.begin_field(*first)
                }
                Next::Index if first & CONTINUES != 0 => Next::Index,
                Next::Index => self.string_or_field(),
                Next::Length => {
                    let length = first & LENGTH_PREFIX;
                    if length == LENGTH_PREFIX {
                        let length = usize::from(length);
                        Next::LengthRest { length, shift: 0 }
                    } else {
                        self.begin_text(length.into())
                    }
                }
                Next::LengthRest { length, shift } => {
                    let digit = usize::from(first & !CONTINUES);
                    let added = digit.checked_shl(shift).unwrap_or(usize::MAX);
                    let length = length.saturating_add(added);
                    if first & CONTINUES == 0 {
                        self.begin_text(length)
                    } else {
                        let shift = shift.saturating_add(7);
                        Next::LengthRest { length, shift }
                    }
                }
                Next::Text(length) => {
                    let length = length.saturating_sub(1); // `first`
                    let skipped = length.min(block.len());
                    block = block.get(skipped..).unwrap_or_default();
                    self.begin_rest_of_text(length - skipped)
                }
            };
        }
        fields
    }

    /// The first byte of a field: its kind, and its index, of which 0 is none (RFC 7541, 6).
    const fn begin_field(&mut self, first: u8) -> Next {
        let (largest, with_value) = match first {
            0x80.. => (0x7f, false),     // in a table
            0x40..0x80 => (0x3f, true),  // with a value, to be remembered
            0x20..0x40 => (0x1f, false), // the table's size
            0x00..0x20 => (0x0f, true),  // with a value, not to be remembered
        };
        let index = first & largest;
        self.strings = match (with_value, index) {
            (false, _) => 0,
            (true, 0) => 2, // its name, too
            (true, _) => 1,
        };
        if index == largest {
            Next::Index
        } else {
            self.string_or_field()
        }
    }

    const fn begin_text(&mut self, length: usize) -> Next {
        self.strings = self.strings.saturating_sub(1);
        self.begin_rest_of_text(length)
    }

    const fn begin_rest_of_text(&self, length: usize) -> Next {
        match length {
            0 => self.string_or_field(),
            _ => Next::Text(length),
        }
    }

    const fn string_or_field(&self) -> Next {
        match self.strings {
            0 => Next::Field,
            _ => Next::Length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::saturating_u64;

    fn count(block: &[u8]) -> u64 {
        FieldCounter::default().count(block)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn the_fields_of_the_examples_of_rfc_7541_are_counted() {
        for (fields, block) in [
            (
                1,
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            ), // C.2.1
            (1, "040c 2f73 616d 706c 652f 7061 7468"), // C.2.2
            (1, "1008 7061 7373 776f 7264 0673 6563 7265 74"), // C.2.3
            (1, "82"),                                 // C.2.4
            (5, "8286 84be 5808 6e6f 2d63 6163 6865"), // C.3.2
            (
                5,
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
            ), // C.3.3
            (4, "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff"), // C.4.1
            (
                4,
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            ), // C.6.1
        ] {
            assert_eq!(count(&bytes(block)), fields, "{block}");
        }
    }

    /// An integer with a prefix of so many bits (RFC 7541, 5.1).
    fn integer(pattern: u8, largest: u8, value: usize) -> Vec<u8> {
        if value < usize::from(largest) {
            return vec![pattern | u8::try_from(value).unwrap()];
        }
        let mut bytes = vec![pattern | largest];
        let mut rest = value - usize::from(largest);
        while rest >= 128 {
            bytes.push(CONTINUES | u8::try_from(rest % 128).unwrap());
            rest /= 128;
        }
        bytes.push(u8::try_from(rest).unwrap());
        bytes
    }

    fn string(random: &mut fastrand::Rng) -> Vec<u8> {
        let length = [0, 1, 126, 127, 128, 300, 20_000][random.usize(..7)];
        let mut bytes = integer([0, CONTINUES][random.usize(..2)], LENGTH_PREFIX, length);
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
        bytes
    }

    fn field(random: &mut fastrand::Rng) -> Vec<u8> {
        let index = [1, 14, 15, 31, 62, 63, 127, 300, 70_000][random.usize(..9)];
        let (pattern, largest) = [(0x40, 0x3f), (0x10, 0x0f), (0, 0x0f)][random.usize(..3)];
        match random.u8(..4) {
            0 => integer(0x80, 0x7f, index),
            1 => integer(0x20, 0x1f, index),
            2 => [integer(pattern, largest, index), string(random)].concat(),
            _ => [vec![pattern], string(random), string(random)].concat(),
        }
    }

    #[test]
    fn random_fields_in_random_parts_are_counted_once() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let fields: Vec<_> = (0..random.usize(..20))
                .map(|_| field(&mut random))
                .collect();
            let block = fields.concat();
            let mut counter = FieldCounter::default();
            let (mut counted, mut rest) = (0, &block[..]);
            while !rest.is_empty() {
                let most = [1, 3, 200, 16_384][random.usize(..4)];
                let (part, next) = rest.split_at(random.usize(1..=most).min(rest.len()));
                counted += counter.count(part);
                rest = next;
            }
            assert_eq!(counted, saturating_u64(fields.len()), "{fields:?}");
        }
    }

    #[test]
    fn what_is_not_valid_is_counted_without_a_panic() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..1000 {
            let length = random.usize(..100);
            let block: Vec<_> = (0..length)
                .map(|_| [0, 0x7f, 0xff, random.u8(..)][random.usize(..4)])
                .collect();
            assert!(count(&block) <= saturating_u64(block.len()));
        }
        assert_eq!(
            count(&[&[0][..], &[0xff; 100]].concat()),
            1,
            "a length beyond all numbers"
        );
    }
}
