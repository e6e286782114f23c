//! Finds the end of a JSON object or array whose content does not matter, 64 bytes at a time.
//!
//! Each block becomes bit sets with one bit per byte: quotes, backslashes, brackets. The bytes
//! inside strings and the depth at the end of the block follow from them, without a branch for each
//! string or bracket. Only brackets are counted. Whether each is closed by a bracket of its own
//! kind, and what stands between them, is not checked.

/// The number of bits of a `u64`.
const BLOCK_SIZE: usize = 64;
const ODD_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The bit that each of eight bytes becomes.
const BIT_WEIGHTS: u64 = 0x8040_2010_0804_0201;
/// A multiplication by it sums eight bytes into the highest one.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The position of the scan within the value.
#[derive(Debug)]
pub(super) struct NestedSkipper {
    /// Number of open brackets.
    depth: u64,
    in_string: bool,
    /// Whether the next byte follows a backslash.
    escaped: bool,
}

impl NestedSkipper {
    /// The state after the opening bracket.
    pub(super) const fn after_open_bracket() -> Self {
        Self {
            depth: 1,
            in_string: false,
            escaped: false,
        }
    }

    /// Skips to the end of the value. Returns the input after it, or `None` if the value does not
    /// end in `input`.
    pub(super) fn skip<'i>(&mut self, input: &'i [u8]) -> Option<&'i [u8]> {
        let (blocks, tail) = input.as_chunks::<BLOCK_SIZE>();
        let mut rest = input;
        for block in blocks {
            if let Some(end) = self.skip_block(block, BLOCK_SIZE) {
                return rest.get(end..);
            }
            rest = rest.get(BLOCK_SIZE..)?;
        }
        if tail.is_empty() {
            return None;
        }
        let mut last = [b' '; BLOCK_SIZE];
        last.get_mut(..tail.len())?.copy_from_slice(tail);
        let end = self.skip_block(&last, tail.len())?;
        tail.get(end..)
    }

    /// Consumes the first `length` bytes of a block (at least one; spaces follow). Returns the
    /// position after the end of the value, if it ends there.
    fn skip_block(&mut self, block: &[u8; BLOCK_SIZE], length: usize) -> Option<usize> {
        let escaped = self.escaped_bytes(bit_mask(block, |byte| byte == b'\\'), length);
        let quotes = bit_mask(block, |byte| byte == b'"') & !escaped;
        let strings = prefix_xor(quotes) ^ if self.in_string { u64::MAX } else { 0 };
        self.in_string = strings >> 63 == 1;
        // The two kinds of bracket differ in this one bit.
        let opening = bit_mask(block, |byte| byte | 0x20 == b'{') & !strings;
        let closing = bit_mask(block, |byte| byte | 0x20 == b'}') & !strings;
        let closed = u64::from(closing.count_ones());
        if closed < self.depth {
            self.depth += u64::from(opening.count_ones());
            self.depth -= closed;
            return None;
        }
        let mut brackets = opening | closing;
        while brackets != 0 {
            let first = brackets & brackets.wrapping_neg();
            if opening & first != 0 {
                self.depth += 1;
            } else {
                self.depth -= 1;
            }
            if self.depth == 0 {
                return usize::try_from(first.trailing_zeros() + 1).ok();
            }
            brackets ^= first;
        }
        None
    }

    /// The bytes of a block that follow an unescaped backslash.
    fn escaped_bytes(&mut self, backslashes: u64, length: usize) -> u64 {
        let carried = u64::from(self.escaped);
        let runs = backslashes & !carried;
        // In a run of backslashes every other one escapes, beginning with the first. The
        // subtraction sets all bits of a run that begins at an even position, and clears all
        // others.
        let filled = (runs << 1 | ODD_BITS).wrapping_sub(runs);
        let escaping = (filled ^ ODD_BITS) & runs;
        self.escaped = escaping >> (length - 1) == 1;
        escaping << 1 | carried
    }
}

/// The bytes for which `wanted` is true. Written so that the compiler vectorizes it.
fn bit_mask(block: &[u8; BLOCK_SIZE], wanted: impl Fn(u8) -> bool) -> u64 {
    let mut flags = [0; BLOCK_SIZE];
    for (flag, byte) in flags.iter_mut().zip(block) {
        *flag = if wanted(*byte) { u8::MAX } else { 0 };
    }
    let mut set = [0; BLOCK_SIZE / 8];
    for (bits, eight) in set.iter_mut().zip(flags.as_chunks::<8>().0) {
        let weighed = u64::from_le_bytes(*eight) & BIT_WEIGHTS;
        [.., *bits] = weighed.wrapping_mul(ONES).to_le_bytes();
    }
    u64::from_le_bytes(set)
}

/// Sets each bit at which the number of set bits up to and including it is odd: from an opening
/// quote to just before its closing one.
const fn prefix_xor(mut bits: u64) -> u64 {
    let mut width = 1;
    while width < u64::BITS {
        bits ^= bits << width;
        width *= 2;
    }
    bits
}
