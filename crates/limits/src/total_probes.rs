//! When small reads probe the API server, and what the time of each says. Pure.

use std::time::{Duration, Instant};

use crate::auto_total::TotalSignal;

/// The period of probes under load: five for each step of the total.
pub const PROBE_PERIOD: Duration = Duration::from_millis(200);

/// A probe that takes longer has no answer.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The period of probes without load, and how long there must have been none before such a probe: what a server still
/// works on when a storm has just ended slows a probe down.
const UNLOADED_PERIOD: Duration = Duration::from_secs(10);

/// What the seats of a limiter are used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeatLoad {
    /// The seats that there are.
    pub seats: u64,
    /// Those in use.
    pub in_use: u64,
    /// The requests that wait for one.
    pub waiting: u64,
}

impl SeatLoad {
    /// More than half of the seats is in use, or requests wait: a level whose queues are long may have
    /// less than half, as much as it may borrow.
    const fn is_loaded(self) -> bool {
        self.in_use.saturating_mul(2) > self.seats || self.waiting > 0
    }

    /// Hardly anything is in use.
    const fn is_unloaded(self) -> bool {
        self.in_use.saturating_mul(20) <= self.seats && self.waiting == 0
    }
}

/// What the time of a probe says, by the load when it was sent.
pub type ProbeMeaning = fn(Duration) -> TotalSignal;

/// Decides which probes are sent.
#[derive(Debug)]
pub struct ProbeSchedule {
    unloaded_from: Instant,
    unloaded: ProbeMeaning,
}

impl ProbeSchedule {
    /// A schedule that begins.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            unloaded_from: now,
            unloaded: TotalSignal::First,
        }
    }

    /// What the time of a probe that is sent now will say. It is asked each [`PROBE_PERIOD`]. `None`: no
    /// probe is sent.
    pub fn next(&mut self, now: Instant, load: SeatLoad) -> Option<ProbeMeaning> {
        let meaning: ProbeMeaning = if load.is_loaded() {
            TotalSignal::Loaded
        } else if load.is_unloaded() && now >= self.unloaded_from {
            std::mem::replace(&mut self.unloaded, TotalSignal::Unloaded)
        } else {
            return None;
        };
        self.unloaded_from = now + UNLOADED_PERIOD;
        Some(meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::clock::Clock;

    const CALM: SeatLoad = load(0, 0);
    const STORM: SeatLoad = load(40, 9);

    const fn load(in_use: u64, waiting: u64) -> SeatLoad {
        SeatLoad {
            seats: 40,
            in_use,
            waiting,
        }
    }

    #[test]
    fn more_than_half_of_the_seats_in_use_or_a_queue_is_load() {
        let loads = [load(20, 0), load(21, 0), load(2, 1)];
        assert_eq!(loads.map(SeatLoad::is_loaded), [false, true, true]);
        let loads = [load(2, 0), load(3, 0), load(2, 1)];
        assert_eq!(loads.map(SeatLoad::is_unloaded), [true, false, false]);
    }

    #[test]
    fn a_probe_without_load_comes_ten_seconds_after_the_last_load() {
        let now = Clock.now();
        let mut schedule = ProbeSchedule::new(now);
        let mut next = |seconds, load| {
            let meaning = schedule.next(now + Duration::from_secs(seconds), load);
            meaning.map(|meaning| meaning(Duration::ZERO))
        };
        assert_eq!(next(0, CALM), Some(TotalSignal::First(Duration::ZERO)));
        assert_eq!(next(1, load(10, 0)), None);
        assert_eq!(next(9, STORM), Some(TotalSignal::Loaded(Duration::ZERO)));
        assert_eq!(next(18, CALM), None);
        assert_eq!(next(19, CALM), Some(TotalSignal::Unloaded(Duration::ZERO)));
        assert_eq!(next(28, CALM), None);
    }
}
