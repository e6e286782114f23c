//! The only reader of time.
//!
//! Whatever decides takes `now` as an argument; the shells read it here, once a step. A paused tokio runtime moves
//! [`Clock::now`] with it, so tests own time. Wall time is for certificates and log lines only.

use std::time::Instant;
use std::time::SystemTime;

use rustix::time::ClockId;
use rustix::time::clock_gettime;

/// Reads the monotonic clock and, where a date is meant, the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The monotonic time of the runtime this is called in (of the system outside of one).
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads it")]
    pub fn now(self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    /// The date, for what has one: a certificate's validity, a token's expiry.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads it")]
    pub fn wall(self) -> SystemTime {
        SystemTime::now()
    }

    /// The second since 1970 as of the system's last tick, a few milliseconds ago: for what looks at whole seconds only, at a
    /// fifth of the cost.
    #[must_use]
    pub fn unix_second(self) -> i64 {
        clock_gettime(ClockId::RealtimeCoarse).tv_sec
    }
}
