//! When a client's connection is read next: more slowly while the client sends many frames that
//! have no effect. Pure.
//!
//! A PING, an empty DATA frame or the reset of a request costs its sender nothing and weir some
//! processor time. A connection may send them at a rate, with a burst. Beyond it, the connection
//! stays open and is read in intervals, so that its client waits and not the other clients.
//!
//! The connection is not closed: a wrong guess about a new client's habits costs latency and no
//! requests.

use std::time::{Duration, Instant};

use crate::throttling::token_bucket::{Rate, TokenBucket};

/// The interval between two reads of a connection beyond its rate. With the frames of one poll it
/// still allows some 6,000 frames a second, at a few per cent of a core.
pub const READ_INTERVAL: Duration = Duration::from_millis(5);

/// The frames without effect for each reset that a connection may send: Go's HTTP/2 client sends a
/// PING behind a reset.
pub const INEFFECTIVE_FRAMES_PER_RESET: u32 = 2;

/// The rate of one connection's frames without effect.
#[derive(Debug)]
pub struct ReadSpacing {
    rate: Rate,
    bucket: TokenBucket,
}

impl ReadSpacing {
    /// A connection that may reset `max_resets_per_second` requests. `None` if this is 0: no limit.
    #[must_use]
    pub fn new(max_resets_per_second: u32, now: Instant) -> Option<Self> {
        let per_second = max_resets_per_second.saturating_mul(INEFFECTIVE_FRAMES_PER_RESET);
        let rate = Rate::new(per_second, per_second);
        (per_second > 0).then(|| Self {
            bucket: TokenBucket::full(&rate, now),
            rate,
        })
    }

    /// Records frames without effect, and returns how long the connection is not read now.
    #[must_use]
    pub fn record(&mut self, frames: u64, now: Instant) -> Option<Duration> {
        let within = (0..frames).all(|_| self.bucket.take(&self.rate, now).is_ok());
        (!within).then_some(READ_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_burst_is_free_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut spacing = ReadSpacing::new(50, start).unwrap();
        for n in 0..100 {
            assert_eq!(spacing.record(1, start), None, "{n}");
        }
        assert_eq!(spacing.record(1, start), Some(READ_INTERVAL));
        for n in 1..1000 {
            let now = start + n * SECOND / 100;
            assert_eq!(spacing.record(1, now), None, "{n}");
            assert_eq!(spacing.record(1, now), Some(READ_INTERVAL), "{n}");
        }
    }

    #[test]
    fn a_client_that_stops_is_read_at_once_again() {
        let start = Instant::now();
        let mut spacing = ReadSpacing::new(50, start).unwrap();
        assert_eq!(spacing.record(100_000, start), Some(READ_INTERVAL));
        assert_eq!(spacing.record(100, start + SECOND), None);
    }

    #[test]
    fn without_a_limit_of_resets_there_is_no_spacing() {
        assert!(ReadSpacing::new(0, Instant::now()).is_none());
        let mut most = ReadSpacing::new(u32::MAX, Instant::now()).unwrap();
        assert_eq!(most.record(1000, Instant::now()), None);
    }
}
