//! Finds the end of a JSON object or array whose content does not matter, 64 bytes at a time.
//!
//! Each block becomes bit sets, one bit a byte: quotes, backslashes, brackets. From those follow
//! the bytes in strings, and without a branch for each string or bracket how deep the block ends.
//! Only brackets are counted: that each is closed by one of its own kind, and what stands between
//! them, is not checked.

/// As many bytes as a `u64` has bits.
const BLOCK_SIZE: usize = 64;
const ODD_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// For each of eight bytes the bit that it becomes.
const BIT_WEIGHTS: u64 = 0x8040_2010_0804_0201;
/// Multiplied by it, eight bytes are summed up in the highest.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Where in the value the scan is.
#[derive(Debug)]
pub(super) struct NestedSkipper {
    /// How many brackets are open.
    depth: u64,
    in_string: bool,
    /// The next byte follows a backslash.
    escaped: bool,
}

impl NestedSkipper {
    /// Just after the first bracket.
    pub(super) const fn after_open_bracket() -> Self {
        Self {
            depth: 1,
            in_string: false,
            escaped: false,
        }
    }

    /// Reads on to the end of the value. Gives what follows it, or nothing if it does not end here.
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

    /// Takes in the first `length` bytes of a block, at least one, which spaces follow. Gives the
    /// position after the end of the value, if it ends in there.
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

    /// Which bytes of a block follow a backslash that is not itself escaped.
    fn escaped_bytes(&mut self, backslashes: u64, length: usize) -> u64 {
        let carried = u64::from(self.escaped);
        let runs = backslashes & !carried;
        // Of a run, every other backslash escapes, from the first on. The subtraction makes a run
        // all ones if it begins at an even place, else all zeros.
        let filled = (runs << 1 | ODD_BITS).wrapping_sub(runs);
        let escaping = (filled ^ ODD_BITS) & runs;
        self.escaped = escaping >> (length - 1) == 1;
        escaping << 1 | carried
    }
}

/// The bytes for which `wanted` holds. Written so that a compiler makes vector instructions of it.
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

/// For each bit whether an odd number is set up to and with it: from an opening quote to just
/// before its closing one.
const fn prefix_xor(mut bits: u64) -> u64 {
    let mut width = 1;
    while width < u64::BITS {
        bits ^= bits << width;
        width *= 2;
    }
    bits
}
