//! Out of the queue without having run, or out of a seat.

use std::time::Duration;

use super::QueueSet;
use super::queue::Queue;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::DispatchPhase;
use crate::flowcontrol::fairqueuing::seats::ESTIMATED_SERVICE_DURATION;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;

impl<T> QueueSet<T> {
    /// Takes a request out of its queue: to give it seats, or because it leaves.
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

    /// A waiting request leaves.
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

    /// A request ends that ran for `service_time`, and its queue is charged for that instead of the
    /// guess. Returns how long its seats linger. Upstream: `finishRequestLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "an executing request keeps its queue"
    )]
    pub(super) fn finish(&mut self, slot: usize, service_time: Duration) -> Duration {
        let request = self.requests.at_mut(slot);
        request.phase = DispatchPhase::Lingering;
        let work = request.work;
        // Of the seats of the main phase only, although it held the larger number: so it is
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

    /// Restores what must hold of a queue that a request has left, in whichever way.
    #[expect(clippy::indexing_slicing, reason = "called for queues of this set")]
    fn restore_queue_invariants(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        queue.bound_next_dispatch_r(&self.requests);
        if !queue.is_active() {
            self.active_queues -= 1;
        }
    }

    /// Frees the seats of a request and forgets it. Upstream: `releaseSeatsLocked`
    /// within `finishRequestLocked`.
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

    /// Removes a drained queue of a level that has too many: whichever drains, so the later ones
    /// move up and flows may be dealt other queues. Requests that linger are no longer charged to
    /// it.
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
