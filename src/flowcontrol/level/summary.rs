//! A summary of a level, for readers that poll every second. Unlike
//! [`LevelMetrics`](super::LevelMetrics) it copies only one histogram.

use super::priority_level::PriorityLevel;
use super::state::LevelState;
use weir_base::timing_ratio::Histogram;
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::fairqueuing::queue_set::{QueueSetTotals, RejectReason};

/// A summary of a level, all values of one instant.
#[derive(Clone, Debug)]
pub(crate) struct LevelSummary {
    /// The name of the level.
    pub(crate) name: String,
    /// The counts of requests and seats.
    pub(crate) totals: QueueSetTotals,
    /// The level's seats as of the last allocation.
    pub(crate) seats: Option<LevelSeats>,
    /// The number of queues with waiting requests.
    pub(crate) active_queues: usize,
    /// Whether the level is closed as soon as it is idle.
    pub(crate) is_quiescing: bool,
    /// Requests that did not start, by reason.
    pub(crate) rejected: [(RejectReason, u64); 3],
    /// The waits of all other requests, including those that left the queue, in seconds. `None` if
    /// no schema has ever led to the level.
    pub(crate) waits: Option<Histogram>,
}

impl PriorityLevel {
    /// The summary for the status page. Holds the lock while it adds up the schemas' counters.
    #[must_use]
    pub(crate) fn summary(&self) -> LevelSummary {
        let inner = self.lock();
        let mut rejected = [
            (RejectReason::ConcurrencyLimit, 0),
            (RejectReason::QueueFull, 0),
            (RejectReason::TimeOut, 0),
        ];
        let mut waits: Option<Histogram> = None;
        for schema in &inner.counters.schemas {
            for (sum, (_, count)) in rejected.iter_mut().zip(schema.rejected) {
                sum.1 += count;
            }
            match &mut waits {
                Some(waits) => waits.merge(&schema.waits),
                None => waits = Some(schema.waits.clone()),
            }
        }
        LevelSummary {
            name: self.name().to_owned(),
            totals: inner.queue_set.totals(),
            seats: inner.counters.seats.clone(),
            active_queues: inner.queue_set.backlogged_queues(),
            is_quiescing: inner.state == LevelState::Quiescing,
            rejected,
            waits,
        }
    }
}
