//! The most work that one poll of a connection does. Pure.
//!
//! A task keeps its thread until it returns. The HTTP libraries process everything that can be read
//! in one poll, and a client can send more than weir processes. Other connections of the worker
//! would wait for the end of that poll, and then behind the tasks of all the requests that it
//! started.
//!
//! Tokio's own budget does not help: it counts 128 reads, each of which may be hundreds of frames.
//! This one counts work: bytes, bytes of heads and header blocks eightfold, some 660 bytes for each
//! field of a header block, and 4 KiB for each frame. The stream hands out 256 bytes beyond the
//! current frame at a time, so that a poll ends after some 30 frames. (8 KiB in place of 256 bytes
//! gave 15.4 µs a request against 15.6, which is within the noise.)
//!
//! Only a single frame can exceed the budget, since the library decodes it in one poll: 8,000
//! fields of two bytes each (their name is in the connection's HPACK table) took 2.5 ms. So a frame
//! has 2,048 fields at most; different fields are so long that a frame has room for fewer. A bound
//! on the fields of a whole head would reject users with many groups. A connection with more than a
//! poll's fields pauses instead, twenty times as long as the excess took
//! ([`read_pacing`](super::read_pacing)). Below TLS, a poll reads 64 KiB at most: records without
//! data are work that nothing above TLS sees.

/// The work of one poll, in bytes of request bodies. Some 60 µs of decryption and copying; a body
/// is still read in full TLS records.
pub const WORK_PER_POLL: u64 = 128 << 10;

/// The work of a byte of a head or header block: a poll reads 16 KiB of them, which is a hundred
/// usual heads.
///
/// Heads cost more than bodies: they are parsed, and they may grow buffers.
pub const HEADER_BYTE_WORK: u64 = WORK_PER_POLL / (16 << 10);

/// The work of a field of a header block: a poll decodes 200 of them.
///
/// A field takes some 300 ns to decode and to drop again, however short it is: a frame of 8,000
/// fields of two bytes took 2.5 ms.
pub const HEADER_FIELD_WORK: u64 = WORK_PER_POLL / 200;

/// The work that has been done since the last poll ended.
#[derive(Debug, Default)]
pub struct PollBudget {
    used: u64,
}

impl PollBudget {
    /// Adds `work`, in bytes of request bodies.
    pub const fn spend(&mut self, work: u64) {
        self.used = self.used.saturating_add(work);
    }

    /// Whether the poll has to end. The next poll then has the whole budget again.
    pub const fn end_if_exhausted(&mut self) -> bool {
        let exhausted = self.used >= WORK_PER_POLL;
        if exhausted {
            self.used = 0;
        }
        exhausted
    }

    /// Records that there is nothing to read: the poll ends by itself.
    pub const fn reset(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_ends_when_its_work_is_done_and_the_next_begins_anew() {
        let mut budget = PollBudget::default();
        for poll in 0..3 {
            for part in 0..4 {
                assert!(!budget.end_if_exhausted(), "poll {poll}, part {part}");
                budget.spend(WORK_PER_POLL / 4);
            }
            assert!(budget.end_if_exhausted(), "poll {poll}");
        }
    }

    #[test]
    fn polls_that_end_by_themselves_never_exhaust_it() {
        let mut budget = PollBudget::default();
        for _ in 0..100 {
            budget.spend(WORK_PER_POLL / 2);
            assert!(!budget.end_if_exhausted());
            budget.reset();
        }
    }

    #[test]
    fn work_beyond_all_numbers_is_work() {
        let mut budget = PollBudget::default();
        budget.spend(u64::MAX);
        budget.spend(u64::MAX);
        assert!(budget.end_if_exhausted());
        assert!(!budget.end_if_exhausted());
    }
}
