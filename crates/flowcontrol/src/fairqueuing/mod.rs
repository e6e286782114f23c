//! Fair queuing: seats and work, shuffle sharding, and the queue set of one priority level.
//!
//! This is `util/flowcontrol/fairqueuing` of Kubernetes 1.36. The [theory](crate) is
//! in the parent module. All modules are pure.

use std::time::Duration;

pub mod queue_set;
pub mod seats;
pub mod shuffle_sharding;

/// The longest time in a queue, whatever the request's deadline (Kubernetes 1.36,
/// `server/filters/priority-and-fairness.go`).
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(60);

/// A request may spend a quarter of its time in a queue (same file).
const QUEUE_WAIT_DIVISOR: u32 = 4;

/// The most time in a queue for a request that may take `time` in all.
#[must_use]
pub fn longest_queue_wait(time: Duration) -> Duration {
    (time / QUEUE_WAIT_DIVISOR).min(MAX_QUEUE_WAIT)
}
