//! The minimum rate of the peer of a transfer, for as long as the transfer waits for it. Pure.
//!
//! Progress is a rate: one byte a second is no progress. A transfer starts with an allowance of
//! time. Waiting for the peer uses the allowance up, and each transferred byte earns a part of it
//! back, up to the initial allowance. A transfer that stalls ends after the allowance; a transfer
//! below the rate ends when it is that far behind. Time without waiting for the peer (weir's own
//! back-pressure, a server that works) costs nothing.
//!
//! Some transfers may pause instead: any byte earns the whole allowance back.

use std::time::{Duration, Instant};

/// A rate and its allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumRate {
    /// Bytes a second; zero disables the minimum.
    pub bytes_per_second: u32,
    /// How far a transfer may fall behind.
    pub grace: Duration,
    /// How long a transfer that may pause may wait for its peer without a byte, at any rate; zero
    /// is no limit.
    pub pause: Duration,
}

impl Default for MinimumRate {
    /// 1 KiB/s, which the slowest link of a person has, after 10 s, in which a lost packet or two
    /// are retransmitted. A pause of 15 minutes, in which a database builds an index.
    fn default() -> Self {
        Self {
            bytes_per_second: 1024,
            grace: Duration::from_secs(10),
            pause: Duration::from_mins(15),
        }
    }
}

impl MinimumRate {
    /// The time that this many bytes may take.
    fn duration_of(self, bytes: u64) -> Duration {
        let seconds = bytes.checked_div(self.bytes_per_second.into());
        let Some(seconds) = seconds.filter(|whole| *whole < self.grace.as_secs()) else {
            return self.grace; // no number of bytes earns more
        };
        let rest = bytes % u64::from(self.bytes_per_second);
        let nanos = rest * 1_000_000_000 / u64::from(self.bytes_per_second);
        (Duration::from_secs(seconds) + Duration::from_nanos(nanos)).min(self.grace)
    }
}

/// The state of one transfer, checked from time to time.
#[derive(Clone, Copy, Debug)]
pub struct RateMeter {
    allowance: Duration,
    /// How long the peer has been awaited since the last byte.
    paused: Duration,
    bytes: u64,
    checked_at: Instant,
}

impl RateMeter {
    /// Of a transfer that starts now.
    #[must_use]
    pub const fn new(rate: MinimumRate, now: Instant) -> Self {
        Self {
            allowance: rate.grace,
            paused: Duration::ZERO,
            bytes: 0,
            checked_at: now,
        }
    }

    /// Whether the transfer is still in time. `bytes` have passed so far; `awaited` is whether the
    /// transfer has waited for the peer since the last check.
    pub fn check(&mut self, rate: MinimumRate, now: Instant, bytes: u64, awaited: bool) -> bool {
        let earned = rate.duration_of(bytes.saturating_sub(self.bytes));
        let waited = self.advance(now, bytes, awaited);
        if rate.bytes_per_second == 0 {
            return true;
        }
        let allowance = self.allowance + earned;
        self.allowance = allowance.saturating_sub(waited).min(rate.grace);
        allowance > waited || !awaited
    }

    /// As [`check`](Self::check), for a transfer that may pause.
    pub fn check_pause(
        &mut self,
        rate: MinimumRate,
        now: Instant,
        bytes: u64,
        awaited: bool,
    ) -> bool {
        self.advance(now, bytes, awaited);
        self.allowance = rate.grace; // should the rate apply from the next check on
        rate.pause.is_zero() || self.paused < rate.pause
    }

    /// Returns how long the peer was awaited since the last check.
    fn advance(&mut self, now: Instant, bytes: u64, awaited: bool) -> Duration {
        let passed = now.saturating_duration_since(self.checked_at);
        let waited = if awaited { passed } else { Duration::ZERO };
        self.paused = if awaited && bytes == self.bytes {
            self.paused + waited
        } else {
            Duration::ZERO
        };
        self.checked_at = now;
        self.bytes = bytes;
        waited
    }

    /// The deadline, if the peer is awaited from now on and sends nothing.
    #[must_use]
    pub fn deadline(&self, rate: MinimumRate) -> Option<Instant> {
        (rate.bytes_per_second > 0).then(|| self.checked_at + self.allowance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinimumRate = MinimumRate {
        bytes_per_second: 1024,
        grace: Duration::from_secs(10),
        pause: Duration::from_secs(900),
    };

    /// The seconds until a transfer with this many bytes in each second ends, if it ends within a
    /// thousand.
    fn seconds_until_end(bytes_per_second: u64) -> Option<u64> {
        let began = Instant::now();
        let mut meter = RateMeter::new(RATE, began);
        (1..1000).find(|second| {
            let now = began + Duration::from_secs(*second);
            !meter.check(RATE, now, second * bytes_per_second, true)
        })
    }

    #[test]
    fn a_stall_ends_after_the_grace_and_a_trickle_hardly_later() {
        assert_eq!(seconds_until_end(0), Some(10));
        assert_eq!(seconds_until_end(1), Some(11));
        assert_eq!(seconds_until_end(512), Some(20));
    }

    #[test]
    fn the_rate_itself_is_enough() {
        assert_eq!(seconds_until_end(1024), None);
        assert_eq!(seconds_until_end(1 << 40), None);
    }

    #[test]
    fn the_allowance_never_exceeds_the_grace() {
        let began = Instant::now();
        let mut meter = RateMeter::new(RATE, began);
        assert!(meter.check(RATE, began + Duration::from_secs(1), u64::MAX, true));
        assert_eq!(meter.deadline(RATE), Some(began + Duration::from_secs(11)));
        assert!(!meter.check(RATE, began + Duration::from_secs(11), u64::MAX, true));
    }

    #[test]
    fn time_without_waiting_for_the_other_side_does_not_count() {
        let began = Instant::now();
        let mut meter = RateMeter::new(RATE, began);
        for second in 1..1000 {
            assert!(meter.check(RATE, began + Duration::from_secs(second), 0, false));
        }
        let late = began + Duration::from_secs(1008);
        assert!(meter.check(RATE, late, 0, true), "nine seconds of ten");
        assert!(!meter.check(RATE, late + Duration::from_secs(1), 0, true));
    }

    #[test]
    fn a_transfer_that_may_pause_ends_after_a_pause_and_not_for_its_rate() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let mut meter = RateMeter::new(RATE, began);
        assert!(meter.check_pause(RATE, began, 0, false));
        for second in (800..8000).step_by(800) {
            assert!(meter.check_pause(RATE, at(second), second, true), "a byte");
        }
        assert!(
            meter.check_pause(RATE, at(8000), 7200, false),
            "all is read"
        );
        assert!(meter.check_pause(RATE, at(8899), 7200, true));
        assert!(!meter.check_pause(RATE, at(8900), 7200, true));
        let endless = MinimumRate {
            pause: Duration::ZERO,
            ..RATE
        };
        assert!(meter.check_pause(endless, at(90_000), 7200, true));
        assert!(meter.check(RATE, at(90_001), 7300, true), "a byte earns");
        assert!(!meter.check(RATE, at(90_020), 7300, true), "at the rate");
    }

    #[test]
    fn a_rate_of_zero_has_no_deadline() {
        let (began, rate) = (
            Instant::now(),
            MinimumRate {
                bytes_per_second: 0,
                ..RATE
            },
        );
        let mut meter = RateMeter::new(rate, began);
        assert!(meter.check(rate, began + Duration::from_secs(1000), 0, true));
        assert_eq!(meter.deadline(rate), None);
    }
}
