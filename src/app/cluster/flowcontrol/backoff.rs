//! The pauses between failed attempts.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(200);

/// The longest pause: an API server that is back is read soon.
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles with each failure.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure. `random` is from 0 to 1: several weirs do not come at once.
    pub(super) fn next_pause(&mut self, random: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures.min(16)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = FIRST.saturating_mul(factor).min(LONGEST);
        jittered(pause, random)
    }

    /// An attempt succeeded.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Half to one and a half of `pause`.
pub(super) fn jittered(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.5 + random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8).map(|_| backoff.next_pause(0.5)).collect();
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        backoff.reset();
        assert_eq!(backoff.next_pause(0.0), FIRST / 2);
        assert_eq!(backoff.next_pause(1.0), FIRST * 3);
        for _ in 0..100 {
            assert!(backoff.next_pause(1.0) <= LONGEST * 3 / 2);
        }
    }
}
