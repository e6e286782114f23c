//! A level in a few numbers, for who looks each second: unlike a [`Reading`](super::Reading) it copies no histogram but one.

use super::PriorityLevel;
use super::state::Standing;
use crate::flowcontrol::concurrency::Level as Seats;
use crate::flowcontrol::histogram::Histogram;
use crate::flowcontrol::queue_set::Reason;
use crate::flowcontrol::queue_set::Totals;

/// A level in a few numbers, all of one instant.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// Its counts.
    pub totals: Totals,
    /// What its seats were when they were last divided.
    pub seats: Option<Seats>,
    /// Queues in which somebody waits.
    pub active_queues: usize,
    /// Whether it goes as soon as it is idle.
    pub is_quiescing: bool,
    /// Requests that did not start.
    pub rejected: [(Reason, u64); 3],
    /// How long the others waited, those who gave up too; none where no schema has ever led here.
    pub waits: Option<Histogram>,
}

impl PriorityLevel {
    /// For the status page: takes the lock for as long as it takes to add up the schemas' rows.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let state = self.state();
        let mut rejected = [
            (Reason::ConcurrencyLimit, 0),
            (Reason::QueueFull, 0),
            (Reason::TimeOut, 0),
        ];
        let mut waits: Option<Histogram> = None;
        for row in &state.tally.rows {
            for (sum, (_, count)) in rejected.iter_mut().zip(row.rejected) {
                sum.1 += count;
            }
            match &mut waits {
                Some(waits) => waits.include(&row.waits),
                None => waits = Some(row.waits.clone()),
            }
        }
        Summary {
            name: self.name.clone(),
            totals: state.queues.totals(),
            seats: state.tally.seats.clone(),
            active_queues: state.queues.backlogged_queues(),
            is_quiescing: state.standing == Standing::Quiescing,
            rejected,
            waits,
        }
    }
}
