//! The units of fair queuing: seats, and seats times seconds.
//!
//! A request occupies seats (most occupy one) for as long as it executes, so its cost is a product,
//! in seat-seconds. Work and virtual time are both measured in seat-seconds, as unsigned fixed
//! point that wraps. The virtual time of a busy level only grows, and differences stay correct
//! across the wrap. The arithmetic is that of `fairqueuing/queueset` and `flowcontrol/request` in
//! Kubernetes 1.36, to the last unit, because two queues that differ by one unit are served in a
//! different order.
//!
//! This module is pure arithmetic. The number of seats of a request comes from the
//! `work_estimator`.

use std::fmt;
use std::time::Duration;

/// The assumed execution time of a request until it ends: `estimatedServiceDuration`, the G of
/// KEP-1040.
///
/// The estimate is corrected when the request ends, so it only affects the order of requests that
/// are dispatched before the first of them ends. 3 ms is Kubernetes' measurement.
pub const ESTIMATED_SERVICE_DURATION: Duration = Duration::from_millis(3);

/// Work, or virtual time, in units of 1e-8 seat-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeatSeconds(u64);

/// The expected cost of a request.
///
/// The request executes with `initial_seats` until it is answered. Its consequences (events that
/// watches receive after a write) occupy `final_seats` for `additional_latency` more. The request
/// occupies the larger of the two for the whole of that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkEstimate {
    /// The seats of the main phase, until the response is sent.
    pub initial_seats: u32,
    /// The seats of the final phase. 0 without a final phase.
    pub final_seats: u32,
    /// The time for which the seats linger after the response.
    pub additional_latency: Duration,
}

impl SeatSeconds {
    /// No work.
    pub const ZERO: Self = Self(0);

    const PER_SEAT_SECOND: u64 = 100_000_000;
    const NANOSECONDS_PER_UNIT: f64 = 10.0;

    /// The work of `seats` for `span`, rounded half away from zero. `seats` may be fractional.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        reason = "float and integer have no lossless conversion; upstream rounds in the same place"
    )]
    pub fn from_seats(seats: f64, span: Duration) -> Self {
        Self((seats * span.as_nanos() as f64 / Self::NANOSECONDS_PER_UNIT).round() as u64)
    }

    /// From a number of units, as in the debug endpoints and the golden traces.
    #[must_use]
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// The number of units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0
    }

    /// The value in seat-seconds, for gauges.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "a gauge is a float")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Self::PER_SEAT_SECOND as f64
    }

    /// The time for which this much work occupies `seats`, truncated to whole nanoseconds.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        reason = "float and integer have no lossless conversion; upstream truncates in the same place"
    )]
    pub fn duration_per_seat(self, seats: u32) -> Duration {
        let nanoseconds = self.0 as f64 / f64::from(seats) * Self::NANOSECONDS_PER_UNIT;
        Duration::from_nanos(nanoseconds as u64)
    }

    /// The sum modulo 2^64.
    #[must_use]
    pub const fn wrapping_add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// The difference modulo 2^64.
    #[must_use]
    pub const fn wrapping_sub(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }

    /// The difference modulo 2^64, and whether it wrapped.
    #[must_use]
    pub const fn overflowing_sub(self, other: Self) -> (Self, bool) {
        let (units, wrapped) = self.0.overflowing_sub(other.0);
        (Self(units), wrapped)
    }

    /// The sum modulo 2^64, and whether it wrapped.
    #[must_use]
    pub const fn overflowing_add(self, other: Self) -> (Self, bool) {
        let (units, wrapped) = self.0.overflowing_add(other.0);
        (Self(units), wrapped)
    }
}

/// The format of the debug endpoints: `0.00300000ss`.
impl fmt::Display for SeatSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0 / Self::PER_SEAT_SECOND;
        let rest = self.0 % Self::PER_SEAT_SECOND;
        write!(f, "{whole}.{rest:08}ss")
    }
}

impl WorkEstimate {
    /// The seats that a request occupies from its dispatch to the end of its additional latency.
    #[must_use]
    pub fn max_seats(&self) -> u32 {
        self.initial_seats.max(self.final_seats)
    }

    /// The work of the final phase.
    #[must_use]
    pub fn final_work(&self) -> SeatSeconds {
        SeatSeconds::from_seats(f64::from(self.final_seats), self.additional_latency)
    }

    /// The total work. The main phase is assumed to last [`ESTIMATED_SERVICE_DURATION`].
    #[must_use]
    pub fn total_work(&self) -> SeatSeconds {
        SeatSeconds::from_seats(f64::from(self.initial_seats), ESTIMATED_SERVICE_DURATION)
            .wrapping_add(self.final_work())
    }

    /// Narrows the final phase to `limit` seats, and extends it so that the work stays the same.
    #[must_use]
    pub fn narrowed_to(self, limit: u32) -> Self {
        if self.final_seats <= limit {
            return self;
        }
        Self {
            initial_seats: self.initial_seats,
            final_seats: limit,
            additional_latency: self.final_work().duration_per_seat(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_seat_for_three_milliseconds_is_three_hundred_thousand_units() {
        let work = SeatSeconds::from_seats(1.0, ESTIMATED_SERVICE_DURATION);
        assert_eq!(work.units(), 300_000);
        assert_eq!(work.to_string(), "0.00300000ss");
        assert_eq!(
            SeatSeconds::from_units(1_234_567_890).to_string(),
            "12.34567890ss"
        );
        assert_eq!(SeatSeconds::from_units(150_000_000).as_f64(), 1.5);
    }

    #[test]
    fn halves_round_away_from_zero() {
        assert_eq!(
            SeatSeconds::from_seats(1.0, Duration::from_nanos(4)).units(),
            0
        );
        assert_eq!(
            SeatSeconds::from_seats(1.0, Duration::from_nanos(5)).units(),
            1
        );
        assert_eq!(
            SeatSeconds::from_seats(1.0, Duration::from_nanos(25)).units(),
            3
        );
        assert_eq!(
            SeatSeconds::from_seats(0.5, Duration::from_nanos(30)).units(),
            2
        );
    }

    #[test]
    fn differences_survive_the_wrap() {
        let before = SeatSeconds::from_units(u64::MAX - 4);
        let after = before.wrapping_add(SeatSeconds::from_units(10));
        assert_eq!(after.units(), 5);
        assert_eq!(after.wrapping_sub(before).units(), 10);
        assert_eq!(
            after.overflowing_sub(before),
            (SeatSeconds::from_units(10), true)
        );
    }

    #[test]
    fn a_request_costs_both_its_phases_and_occupies_the_wider() {
        let work = WorkEstimate {
            initial_seats: 1,
            final_seats: 2,
            additional_latency: 5 * MS,
        };
        assert_eq!(work.total_work().units(), 1_300_000);
        assert_eq!(work.max_seats(), 2);
    }

    #[test]
    fn a_final_phase_wider_than_the_limit_becomes_narrower_and_longer() {
        let work = WorkEstimate {
            initial_seats: 2,
            final_seats: 9,
            additional_latency: 4 * MS,
        };
        assert_eq!(
            work.narrowed_to(3),
            WorkEstimate {
                initial_seats: 2,
                final_seats: 3,
                additional_latency: 12 * MS
            }
        );
        assert_eq!(work.narrowed_to(9), work);
    }
}
