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

/// A server gives up its core many times on the way of a request (reading, storage, encoding, writing), and waits behind all
/// others each time: this much is done at a turn. A refusal is said in one turn. With it a storm of refused clients keeps
/// from the served what it does with a real kube-apiserver.
const CPU_SLICE: Duration = Duration::from_micros(20);

/// Has this thread work for `span` of CPU time; a span of zero reads no clock.
pub(crate) fn burn_cpu(span: Duration) {
    if span.is_zero() {
        return;
    }
    let start = thread_cpu_time();
    while thread_cpu_time().saturating_sub(start) < span {
        std::hint::spin_loop();
    }
}

/// Works for `span`, and lets others work in between.
///
/// # Cancel safety
/// What is left is not done.
pub(crate) async fn burn_cpu_in_slices(span: Duration) {
    let mut left = span;
    while !left.is_zero() {
        let turn = left.min(CPU_SLICE);
        burn_cpu(turn);
        left -= turn;
        tokio::task::yield_now().await;
    }
}

/// The CPU time of this thread: what others do on this core meanwhile is not counted.
fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Wall time, in whole seconds as `metav1.Time` has it.
pub(crate) fn wall_time() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now)
}

/// Wall time for checking certificates.
pub(crate) fn unix_time() -> UnixTime {
    UnixTime::now()
}
