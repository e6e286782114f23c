//! The virtual time R (KEP-1040: progress meter): how it advances, and how epochs lower it.

use std::time::Instant;

use super::decisions::{Effects, EpochAdvance};
use super::set::QueueSet;
use crate::fairqueuing::seats::SeatSeconds;

/// The amount by which an epoch advance lowers every virtual time.
const EPOCH: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2);

/// The R at which an epoch ends: a quarter of the range below overflow.
const EPOCH_END: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2 + u64::MAX / 2 / 2);

impl<T> QueueSet<T> {
    /// Advances R to `now`, at the rate that has held since the last step. Returns the time of this
    /// step: a clock that steps back counts as standing still.
    ///
    /// Upstream: `syncTimeLocked`. R is rounded each time, so a step that upstream does not have
    /// would change the order of later dispatches.
    pub(super) fn sync(&mut self, now: Instant, effects: &mut Effects) -> Instant {
        let elapsed = now.saturating_duration_since(self.last_sync);
        self.last_sync = self.last_sync.max(now);
        let progress = SeatSeconds::from_seats(self.virtual_time_ratio(), elapsed);
        let (r, wrapped) = self.current_r.overflowing_add(progress);
        self.current_r = r;
        if !wrapped && r >= EPOCH_END {
            effects.epoch_advance = Some(self.advance_epoch());
        }
        self.last_sync
    }

    /// dR/dt: the seats of each active queue when all queues get the same.
    #[expect(clippy::as_conversions, reason = "a ratio of counts is a float")]
    fn virtual_time_ratio(&self) -> f64 {
        if self.active_queues == 0 {
            return 0.0;
        }
        let demand = self.seats_in_use_by_queues + self.totals.seats_waiting;
        demand.min(u64::from(self.concurrency_limit)) as f64 / self.active_queues as f64
    }

    /// Lowers all virtual times alike. Only their differences matter, so no decision changes.
    /// Upstream: `advanceEpoch`.
    fn advance_epoch(&mut self) -> EpochAdvance {
        let mut success = true;
        let mut lower = |time: &mut SeatSeconds| {
            let (lowered, wrapped) = time.overflowing_sub(EPOCH);
            *time = lowered;
            success &= !wrapped;
        };
        lower(&mut self.current_r);
        for queue in &mut self.queues {
            if queue.is_active() {
                lower(&mut queue.next_dispatch_r);
            } else {
                queue.next_dispatch_r = SeatSeconds::ZERO;
            }
        }
        for request in self
            .requests
            .iter_mut()
            .filter(|request| request.is_waiting())
        {
            lower(&mut request.arrived_r);
        }
        EpochAdvance { success }
    }
}
