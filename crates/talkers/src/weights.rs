//! The usage of a request as integers that are added without rounding.

use std::time::Duration;

use weir_kubernetes::numeric::saturating_u64;

/// The number of measures.
pub(crate) const MEASURES: usize = 6;

/// [`Weights`] as they are sent to other processes: one number for each measure.
pub(crate) type SavedWeights = [u64; MEASURES];

/// In the order of [`UsageMeasure`](super::query::UsageMeasure): bytes, queue wait (ns),
/// rejections, requests, seat-seconds (seats × ns), would-be rejections. Sums saturate: `u64` holds 584 years of one
/// seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights(pub(crate) [u64; MEASURES]);

impl Weights {
    /// The usage of one request that occupied `seats` for `seat_time`.
    #[must_use]
    pub fn from_request(
        bytes: u64,
        queue_wait: Duration,
        rejected: bool,
        seats: u64,
        seat_time: Duration,
    ) -> Self {
        let nanos = |time: Duration| saturating_u64(time.as_nanos());
        let seat_nanos = nanos(seat_time).saturating_mul(seats);
        let rejections = u64::from(rejected);
        Self([bytes, nanos(queue_wait), rejections, 1, seat_nanos, 0])
    }

    /// Further bytes of a request that is counted already.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self([bytes, 0, 0, 0, 0, 0])
    }

    /// A limit that only counts would have rejected a request.
    #[must_use]
    pub const fn from_dry_run_rejection() -> Self {
        Self([0, 0, 0, 0, 0, 1])
    }

    /// No usage.
    pub const ZERO: Self = Self([0; MEASURES]);

    /// Returns one measure by its index.
    pub(crate) fn get(self, measure: usize) -> u64 {
        self.0.get(measure).copied().unwrap_or(0)
    }

    /// Adds each measure. Saturates.
    pub(crate) fn add(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Returns the sum of each measure.
    pub(crate) fn saturating_add(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    /// Returns the difference of each measure, at least 0.
    pub(crate) fn saturating_sub(mut self, other: Self) -> Self {
        for (rest, less) in self.0.iter_mut().zip(other.0) {
            *rest = rest.saturating_sub(less);
        }
        self
    }

    /// Returns whether any measure is greater than that of `other`.
    pub(crate) fn exceeds_any(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| *one > other)
    }
}
