//! The number of seats that a level wants: measured without gaps, then smoothed.
//!
//! The measure is an integral over time. A burst counts for its whole duration, however rarely the
//! integral is read. The smoothed value rises at once and falls slowly, so that a level that needs
//! its seats again does not have to wait for them. These are `fairqueuing/integrator.go` and
//! `seatDemandStats.update` of Kubernetes 1.36, in their order of operations: the deviation is a
//! small difference of large numbers.
//!
//! [`borrowing`](crate::concurrency::borrowing) uses the demand.

use std::time::Instant;

/// The part of an old demand that is left after one period. With periods of 10 s, half of it is
/// gone after five minutes.
const DECAY: f64 = 0.977;

/// The weight of the new demand. Written out, because 1 - 0.977 is not this number in floating
/// point.
const DECAY_COMPLEMENT: f64 = 0.023;

/// Integrates a level's seat demand over the time since the last reset.
#[derive(Clone, Debug)]
pub struct SeatDemand {
    seats: f64,
    since: Instant,
    integral: Integral,
    min: f64,
    max: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Integral {
    t: f64,
    x: f64,
    xx: f64,
}

/// The demand over one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DemandPeriod {
    /// The length of the period in seconds.
    pub seconds: f64,
    /// The least demand, in seats.
    pub min: f64,
    /// The greatest demand, in seats.
    pub max: f64,
    /// Average and deviation over time. `None` for a period of length 0.
    pub moments: Option<Moments>,
}

/// Time-weighted statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// The average, in seats.
    pub average: f64,
    /// The standard deviation. 0 where rounding makes the variance negative.
    pub deviation: f64,
}

/// The demand statistics of a level that borrowing keeps from period to period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SmoothedDemand {
    /// The greatest demand of the last period.
    pub high_watermark: u32,
    /// The average of the last period.
    pub average: f64,
    /// The standard deviation of the last period.
    pub deviation: f64,
    /// The smoothed demand: it rises at once and falls slowly.
    pub smoothed: f64,
}

impl SeatDemand {
    /// Starts without demand.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            seats: 0.0,
            since: now,
            integral: Integral::default(),
            min: 0.0,
            max: 0.0,
        }
    }

    /// Sets the demand from `now` on. The caller calls this on each change.
    #[expect(clippy::as_conversions, reason = "a number of seats is far below 2^53")]
    pub fn set(&mut self, now: Instant, seats: u64) {
        self.advance(now);
        self.seats = seats as f64;
        self.min = self.min.min(self.seats);
        self.max = self.max.max(self.seats);
    }

    /// The statistics since the last reset, as of `now`.
    pub fn read(&mut self, now: Instant) -> DemandPeriod {
        self.advance(now);
        let Integral { t, x, xx } = self.integral;
        let moments = (t > 0.0).then(|| {
            let average = x / t;
            let variance = xx / t - average * average;
            Moments {
                average,
                deviation: variance.max(0.0).sqrt(),
            }
        });
        DemandPeriod {
            seconds: t,
            min: self.min,
            max: self.max,
            moments,
        }
    }

    /// Returns the statistics since the last reset, and begins a new period with the current
    /// demand.
    pub fn reset(&mut self, now: Instant) -> DemandPeriod {
        let period = self.read(now);
        self.integral = Integral::default();
        (self.min, self.max) = (self.seats, self.seats);
        period
    }

    fn advance(&mut self, now: Instant) {
        let dt = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.integral.t += dt;
        self.integral.x += self.seats * dt;
        self.integral.xx += self.seats * self.seats * dt;
    }
}

impl SmoothedDemand {
    /// Adds one more period. A period of length 0 only raises the current demand.
    #[expect(
        clippy::as_conversions,
        reason = "saturates; the demand is a number of seats"
    )]
    pub fn update(&mut self, period: DemandPeriod) {
        self.high_watermark = period.max.round() as u32;
        let Some(Moments { average, deviation }) = period.moments else {
            return;
        };
        let envelope = average + deviation;
        self.average = average;
        self.deviation = deviation;
        self.smoothed = envelope.max(DECAY * self.smoothed + DECAY_COMPLEMENT * envelope);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn period(average: f64, deviation: f64, max: f64) -> DemandPeriod {
        DemandPeriod {
            seconds: 10.0,
            min: 0.0,
            max,
            moments: Some(Moments { average, deviation }),
        }
    }

    #[test]
    fn a_burst_counts_for_as_long_as_it_lasts() {
        let t0 = origin();
        let mut demand = SeatDemand::new(t0);
        demand.set(t0 + 6 * SECOND, 10);
        demand.set(t0 + 8 * SECOND, 0);
        let moments = Some(Moments {
            average: 2.0,
            deviation: 4.0,
        });
        let expected = DemandPeriod {
            seconds: 10.0,
            min: 0.0,
            max: 10.0,
            moments,
        };
        assert_eq!(demand.reset(t0 + 10 * SECOND), expected);
    }

    #[test]
    fn a_new_period_begins_with_the_demand_of_the_old_ones_end() {
        let t0 = origin();
        let mut demand = SeatDemand::new(t0);
        demand.set(t0 + SECOND, 7);
        demand.reset(t0 + 2 * SECOND);
        let at_once = demand.read(t0 + 2 * SECOND);
        assert_eq!(
            (at_once.min, at_once.max, at_once.moments),
            (7.0, 7.0, None)
        );
        demand.set(t0 + 3 * SECOND, 3);
        let later = demand.read(t0 + 3 * SECOND);
        assert_eq!(
            later.moments,
            Some(Moments {
                average: 7.0,
                deviation: 0.0
            })
        );
        assert_eq!((later.min, later.max), (3.0, 7.0));
    }

    #[test]
    fn demand_rises_at_once_and_decays_slowly() {
        let mut demand = SmoothedDemand::default();
        demand.update(period(80.0, 20.0, 150.4));
        assert_eq!((demand.smoothed, demand.high_watermark), (100.0, 150));
        demand.update(period(0.0, 0.0, 0.0));
        assert!((demand.smoothed - 97.7).abs() < 1e-9);
        for _ in 0..28 {
            demand.update(period(0.0, 0.0, 0.0));
        }
        assert!(
            (45.0..55.0).contains(&demand.smoothed),
            "half is gone after five minutes"
        );
        demand.update(period(60.0, 5.0, 70.0));
        assert_eq!(demand.smoothed, 65.0);
    }

    #[test]
    fn a_zero_length_period_only_updates_the_high_watermark() {
        let mut demand = SmoothedDemand::default();
        demand.update(period(8.0, 2.0, 12.0));
        let before = demand;
        demand.update(DemandPeriod {
            seconds: 0.0,
            min: 5.0,
            max: 5.0,
            moments: None,
        });
        assert_eq!(
            demand,
            SmoothedDemand {
                high_watermark: 5,
                ..before
            }
        );
    }
}
