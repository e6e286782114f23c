//! A level in a few numbers, for who looks each second: unlike a [`Reading`](super::Reading) it copies no histogram but one.

use super::PriorityLevel;
use super::state::LevelState;
use crate::flowcontrol::concurrency::LevelSeats as Seats;
use crate::flowcontrol::fairqueuing::queue_set::QueueSetTotals;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::metrics::histogram::Histogram;

/// A level in a few numbers, all of one instant.
#[derive(Clone, Debug)]
pub struct LevelSummary {
    /// Its name.
    pub name: String,
    /// Its counts.
    pub totals: QueueSetTotals,
    /// What its seats were when they were last divided.
    pub seats: Option<Seats>,
    /// Queues in which somebody waits.
    pub active_queues: usize,
    /// Whether it goes as soon as it is idle.
    pub is_quiescing: bool,
    /// Requests that did not start.
    pub rejected: [(RejectReason, u64); 3],
    /// How long the others waited, those who gave up too; none where no schema has ever led here.
    pub waits: Option<Histogram>,
}

impl PriorityLevel {
    /// For the status page: takes the lock for as long as it takes to add up the schemas' rows.
    #[must_use]
    pub fn summary(&self) -> LevelSummary {
        let state = self.lock();
        let mut rejected = [
            (RejectReason::ConcurrencyLimit, 0),
            (RejectReason::QueueFull, 0),
            (RejectReason::TimeOut, 0),
        ];
        let mut waits: Option<Histogram> = None;
        for row in &state.counters.schemas {
            for (sum, (_, count)) in rejected.iter_mut().zip(row.rejected) {
                sum.1 += count;
            }
            match &mut waits {
                Some(waits) => waits.merge(&row.waits),
                None => waits = Some(row.waits.clone()),
            }
        }
        LevelSummary {
            name: self.name.clone(),
            totals: state.queue_set.totals(),
            seats: state.counters.seats.clone(),
            active_queues: state.queue_set.backlogged_queues(),
            is_quiescing: state.state == LevelState::Quiescing,
            rejected,
            waits,
        }
    }
}
