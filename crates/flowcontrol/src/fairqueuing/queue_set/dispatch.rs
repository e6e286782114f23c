//! Chooses the next request, and starts it if there are enough free seats.

use std::time::Instant;

use super::decisions::{Effects, LastDispatch, Queuing};
use super::set::QueueSet;
use crate::fairqueuing::queue_set::request_slab::DispatchPhase;
use crate::fairqueuing::seats::SeatSeconds;

/// The request that is next.
struct DispatchCandidate {
    queue: usize,
    slot: usize,
    /// The gauge values if the request is dispatched.
    virtual_times: LastDispatch,
}

impl<T> QueueSet<T> {
    /// Starts requests in order until no seat is free or too few for the next request. Upstream:
    /// `dispatchAsMuchAsPossibleLocked`.
    pub(super) fn dispatch(&mut self, now: Instant, effects: &mut Effects) {
        while self.has_free_seat() {
            let Some(candidate) = self.next_candidate() else {
                return;
            };
            if !self.fits(self.requests.at(candidate.slot).seats()) {
                effects.blocked = Some(self.requests.key(candidate.slot));
                // A search that finds no request moves the index from before the first queue to
                // behind the last. Both are the same position until a queue is added.
                if self.next_robin_index == 0 {
                    self.next_robin_index = self.queues.len();
                }
                return;
            }
            self.start(candidate, now, effects);
        }
    }

    pub(super) fn has_free_seat(&self) -> bool {
        self.totals.seats_in_use < u64::from(self.concurrency_limit)
    }

    /// Whether `seats` seats are free. A request wider than the whole level may execute alone.
    /// Lingering seats do not prevent that. Upstream: `canAccommodateSeatsLocked`.
    pub(super) fn fits(&self, seats: u64) -> bool {
        let limit = u64::from(self.concurrency_limit);
        if self.queuing == Queuing::Exempt {
            true
        } else if seats > limit {
            self.totals.requests_executing == 0
        } else {
            self.totals.seats_in_use + seats <= limit
        }
    }

    /// The oldest request of the queue with the least virtual finish. Of equal queues, the first in
    /// round-robin order. Upstream: `findDispatchQueueToBoundLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "`backlogged` holds indices of `queues`"
    )]
    fn next_candidate(&self) -> Option<DispatchCandidate> {
        let first = self.next_robin_index % self.queues.len().max(1);
        let (behind, ahead) = self
            .backlogged
            .split_at(self.backlogged.partition_point(|&queue| queue < first));
        let mut best: Option<(SeatSeconds, usize, usize)> = None;
        let mut s_bounds = TimeBounds::EMPTY;
        let mut discounted_s_bounds = TimeBounds::EMPTY;
        for &index in ahead.iter().chain(behind) {
            let queue = &self.queues[index];
            let oldest = queue.waiting.oldest()?;
            let work = self.requests.at(oldest).total_work;
            let finish = queue.next_dispatch_r.wrapping_add(work);
            if best.is_none_or(|(least, ..)| finish < least) {
                best = Some((finish, index, oldest));
            }
            s_bounds.include(queue.next_dispatch_r);
            discounted_s_bounds.include(queue.discounted_s());
        }
        let (_, queue, slot) = best?;
        let virtual_times = LastDispatch {
            r: self.current_r,
            s: self.queues[queue].next_dispatch_r,
            s_bounds: s_bounds.0?,
            discounted_s_bounds: discounted_s_bounds.0?,
        };
        Some(DispatchCandidate {
            queue,
            slot,
            virtual_times,
        })
    }

    /// Removes a request from its queue and assigns its seats.
    #[expect(clippy::indexing_slicing, reason = "a turn names a queue of this set")]
    fn start(&mut self, candidate: DispatchCandidate, now: Instant, effects: &mut Effects) {
        let DispatchCandidate {
            queue: index,
            slot,
            virtual_times,
        } = candidate;
        self.remove_from_queue(index, slot);
        let request = self.requests.at_mut(slot);
        request.work = request.work.narrowed_to(self.concurrency_limit);
        self.next_robin_index = index + 1;
        self.last_dispatch = Some(virtual_times);
        let queue = &mut self.queues[index];
        queue.requests_executing += 1;
        queue.seats_in_use += request.seats();
        queue.next_dispatch_r = queue.next_dispatch_r.wrapping_add(request.total_work);
        self.seats_in_use_by_queues += request.seats();
        queue.bound_next_dispatch_r(&self.requests);
        self.mark_executing(slot, now, effects);
    }

    /// Counts a request, from a queue or from none, as executing.
    pub(super) fn mark_executing(&mut self, slot: usize, now: Instant, effects: &mut Effects) {
        let request = self.requests.at_mut(slot);
        request.phase = DispatchPhase::Executing { since: now };
        self.totals.requests_executing += 1;
        self.totals.seats_in_use += request.seats();
        self.totals.dispatched += 1;
        effects.started.push(self.requests.key(slot));
    }
}

/// The least and the greatest of the included times.
struct TimeBounds(Option<(SeatSeconds, SeatSeconds)>);

impl TimeBounds {
    const EMPTY: Self = Self(None);

    fn include(&mut self, time: SeatSeconds) {
        let (least, greatest) = self.0.unwrap_or((time, time));
        self.0 = Some((least.min(time), greatest.max(time)));
    }
}
