//! What is counted of a request, as numbers that can be added without rounding.

use std::time::Duration;

/// How many things are counted.
pub(super) const MEASURES: usize = 5;

/// In the order of [`Sort`](super::Sort): bytes, queue wait (ns), rejections, requests, seat-seconds (seats × ns). Sums stay
/// at the greatest number rather than pass it: 584 years of one seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights(pub(super) [u64; MEASURES]);

impl Weights {
    /// One request, and what it took: so many seats for so long.
    #[must_use]
    pub fn from_request(
        bytes: u64,
        queue_wait: Duration,
        rejected: bool,
        (seats, held): (u64, Duration),
    ) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let held = nanos(held).saturating_mul(seats);
        Self([bytes, nanos(queue_wait), u64::from(rejected), 1, held])
    }

    /// More bytes of a request that was counted before.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self([bytes, 0, 0, 0, 0])
    }

    /// Nothing at all.
    pub const ZERO: Self = Self([0; MEASURES]);

    /// One of them.
    pub(super) fn get(self, measure: usize) -> u64 {
        self.0.get(measure).copied().unwrap_or(0)
    }

    /// Adds each to its like.
    pub(super) fn add(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Both, each with its like.
    pub(super) fn saturating_add(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    /// What is left of each when its like is taken away.
    pub(super) fn saturating_sub(mut self, other: Self) -> Self {
        for (rest, less) in self.0.iter_mut().zip(other.0) {
            *rest = rest.saturating_sub(less);
        }
        self
    }

    /// Whether any is greater than its like.
    pub(super) fn exceeds_any(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| *one > other)
    }
}
