//! The only reader of time.
//!
//! Code that decides takes `now` as an argument; its caller reads the clock here, once per step. A
//! paused tokio runtime controls [`Clock::now`], so tests control time. Wall-clock time is for
//! certificates and log lines only.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Reads the monotonic clock and, for dates, the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The monotonic time of the current runtime (of the system outside of one).
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads it")]
    pub fn now(self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// The wall-clock time, for dates: a certificate's validity, a token's expiry.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads it")]
    pub fn wall(self) -> SystemTime {
        SystemTime::now()
    }

    /// The wall-clock time of the system's last tick, a few milliseconds ago, at a fifth of the
    /// cost: for dates that have whole seconds.
    #[must_use]
    pub fn coarse_wall(self) -> SystemTime {
        let since_epoch = Duration::try_from(clock_gettime(ClockId::RealtimeCoarse));
        SystemTime::UNIX_EPOCH + since_epoch.unwrap_or_default()
    }

    /// The Unix second of [`coarse_wall`](Self::coarse_wall).
    #[must_use]
    pub fn unix_second(self) -> i64 {
        clock_gettime(ClockId::RealtimeCoarse).tv_sec
    }
}
