//! The only reader of clocks in the playground. Everything else is handed a time.
//!
//! Monotonic time is tokio's, so that a paused runtime moves it; wall time appears only in objects
//! (`creationTimestamp`, ages in tables) and in the checking of certificates.

use jiff::Timestamp;
use jiff::Unit;
use rustls::pki_types::UnixTime;
use std::time::Duration;
use std::time::Instant;

/// Monotonic time.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Keeps this thread busy for `span`; a span of zero reads no clock.
///
/// Real time, not tokio's: a paused clock would never end it.
#[expect(
    clippy::disallowed_methods,
    reason = "the span is real work on this thread"
)]
pub(crate) fn burn(span: Duration) {
    if span.is_zero() {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < span {
        std::hint::spin_loop();
    }
}

/// Wall time, in whole seconds as `metav1.Time` has it.
pub(crate) fn wall() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

/// Wall time for checking certificates.
pub(crate) fn unix() -> UnixTime {
    UnixTime::now()
}
