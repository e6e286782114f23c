//! Removes requests from queues and releases seats.

use std::time::Duration;

use super::set::{Queue, QueueSet};
use crate::fairqueuing::queue_set::request_slab::DispatchPhase;
use crate::fairqueuing::seats::{ESTIMATED_SERVICE_DURATION, SeatSeconds};

impl<T> QueueSet<T> {
    /// Removes a request from its queue: it is dispatched, or it leaves.
    #[expect(clippy::indexing_slicing, reason = "a waiting request keeps its queue")]
    pub(super) fn remove_from_queue(&mut self, index: usize, slot: usize) {
        let queue = &mut self.queues[index];
        queue.waiting.remove(&mut self.requests, slot);
        if queue.waiting.is_empty()
            && let Ok(at) = self.backlogged.binary_search(&index)
        {
            self.backlogged.remove(at);
        }
        self.totals.requests_waiting -= 1;
        self.totals.seats_waiting -= self.requests.at(slot).seats();
    }

    /// Removes a waiting request that will not execute.
    pub(super) fn eject(&mut self, slot: usize) -> Option<T> {
        let request = self.requests.at(slot);
        if let Some(index) = request.queue {
            self.remove_from_queue(index, slot);
            self.restore_queue_invariants(index);
        }
        self.totals.rejected += 1;
        self.totals.cancelled += 1;
        self.requests.remove(slot).map(|request| request.payload)
    }

    /// Ends a request that executed for `service_time`, and charges its queue for that time instead
    /// of the estimate. Returns the time for which its seats linger. Upstream:
    /// `finishRequestLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "an executing request keeps its queue"
    )]
    pub(super) fn finish(&mut self, slot: usize, service_time: Duration) -> Duration {
        let request = self.requests.at_mut(slot);
        request.phase = DispatchPhase::Lingering;
        let work = request.work;
        // Charges the seats of the main phase only, although the request held the larger number, as
        // upstream.
        let charge = |span| SeatSeconds::from_seats(f64::from(work.initial_seats), span);
        let guess = ESTIMATED_SERVICE_DURATION;
        self.totals.requests_executing -= 1;
        if let Some(index) = request.queue {
            let queue = &mut self.queues[index];
            queue.requests_executing -= 1;
            queue.next_dispatch_r = if service_time > guess {
                queue
                    .next_dispatch_r
                    .wrapping_add(charge(service_time - guess))
            } else {
                queue
                    .next_dispatch_r
                    .wrapping_sub(charge(guess - service_time))
            };
            self.restore_queue_invariants(index);
        }
        work.additional_latency
    }

    /// Restores the invariants of a queue after a request has left it.
    #[expect(clippy::indexing_slicing, reason = "called for queues of this set")]
    fn restore_queue_invariants(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        queue.bound_next_dispatch_r(&self.requests);
        if !queue.is_active() {
            self.active_queues -= 1;
        }
    }

    /// Releases the seats of a request and removes it. Upstream: `releaseSeatsLocked` within
    /// `finishRequestLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "a request names a queue of this set, or none"
    )]
    pub(super) fn release(&mut self, slot: usize) -> Option<T> {
        let request = self.requests.remove(slot)?;
        self.totals.seats_in_use -= request.seats();
        if let Some(index) = request.queue {
            self.seats_in_use_by_queues -= request.seats();
            let queue = &mut self.queues[index];
            queue.seats_in_use -= request.seats();
            if !queue.is_active() && self.queues.len() > self.queuing.desired_queues() {
                self.remove_queue(index);
            }
        }
        Some(request.payload)
    }

    /// Removes a drained queue of a level with surplus queues. Any queue may drain first, so later
    /// queues move up and flows may be dealt other queues. Lingering requests are no longer charged
    /// to the removed queue.
    fn remove_queue(&mut self, index: usize) {
        let Queue {
            waiting: _,
            next_dispatch_r: _,
            requests_executing: _,
            seats_in_use,
        } = self.queues.remove(index);
        self.seats_in_use_by_queues -= seats_in_use;
        for later in self.backlogged.iter_mut().filter(|other| **other > index) {
            *later -= 1;
        }
        for request in self.requests.iter_mut() {
            request.queue = request
                .queue
                .filter(|&queue| queue != index)
                .map(|queue| if queue > index { queue - 1 } else { queue });
        }
        if self.next_robin_index > index {
            self.next_robin_index -= 1;
        }
    }
}
