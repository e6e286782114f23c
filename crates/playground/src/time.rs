//! The only reader of clocks in the playground. All other modules get the time as an argument.
//!
//! Monotonic time is tokio's, so that a paused runtime advances it. Wall time is used only in
//! objects (`creationTimestamp`, ages in tables) and in the verification of certificates.

use jiff::{Timestamp, Unit};
use rustls::pki_types::UnixTime;
use std::time::{Duration, Instant};

/// Monotonic time.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// CPU time of one slice. A server releases its core many times while it serves a request (reading,
/// storage, encoding, writing), and each time waits behind all others. A rejection takes one slice.
/// So a burst of rejected clients slows the executing requests as much as in a real kube-apiserver.
const CPU_SLICE: Duration = Duration::from_micros(20);

/// Consumes `span` of CPU time on this thread; a span of zero reads no clock.
pub(crate) fn burn_cpu(span: Duration) {
    if span.is_zero() {
        return;
    }
    let start = thread_cpu_time();
    while thread_cpu_time().saturating_sub(start) < span {
        std::hint::spin_loop();
    }
}

/// Consumes `span` of CPU time in slices, and yields to other tasks in between.
///
/// # Cancel safety
/// The remaining time is not consumed.
pub(crate) async fn burn_cpu_in_slices(span: Duration) {
    let mut remaining = span;
    while !remaining.is_zero() {
        let slice = remaining.min(CPU_SLICE);
        burn_cpu(slice);
        remaining -= slice;
        tokio::task::yield_now().await;
    }
}

/// The CPU time of this thread; other threads on the same core do not count.
fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Wall time, in whole seconds as in `metav1.Time`.
pub(crate) fn wall_time() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

/// Wall time for the verification of certificates.
pub(crate) fn unix_time() -> UnixTime {
    UnixTime::now()
}
