//! Chooses the queue of an arriving request, and enqueues or rejects it.

use std::time::Instant;

use super::decisions::{Arrival, Effects, QueuePosition, RejectReason};
use super::set::QueueSet;
use crate::fairqueuing::queue_set::request_slab::QueueSetRequest;
use crate::fairqueuing::shuffle_sharding::Dealer;

impl<T> QueueSet<T> {
    pub(super) fn reject(&mut self, reason: RejectReason) -> Arrival {
        self.totals.rejected += 1;
        Arrival::Reject(reason)
    }

    /// The queue of the flow's hand with the least waiting work. Executing requests do not count.
    /// The search starts at a different card each time, so that equal queues share the arrivals.
    /// Upstream: `shuffleShardLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "a set has all the queues that its dealer deals"
    )]
    pub(super) fn choose_queue(&mut self, dealer: Dealer, flow_hash: u64) -> usize {
        let hand = dealer.deal(flow_hash);
        let (last, first) = hand.cards().split_at(self.enqueues % dealer.hand_size());
        self.enqueues = self.enqueues.wrapping_add(1);
        first
            .iter()
            .chain(last)
            .copied()
            .min_by_key(|&card| self.queues[card].waiting.total_work())
            .unwrap_or_default()
    }

    /// Enqueues a request, and dispatches it at once if it is next. A request is rejected only if
    /// the queue is full *and* no seat is free. Behind a wide request that waits for more seats, a
    /// queue may exceed its limit. Upstream: `rejectOrEnqueueToBoundLocked`.
    #[expect(
        clippy::indexing_slicing,
        reason = "the queue was chosen from this set"
    )]
    pub(super) fn enqueue(
        &mut self,
        index: usize,
        queue_length_limit: usize,
        mut request: QueueSetRequest<T>,
        now: Instant,
        effects: &mut Effects,
    ) -> Arrival {
        if self.queues[index].waiting.len() >= queue_length_limit && !self.has_free_seat() {
            return self.reject(RejectReason::QueueFull);
        }
        let queue = &mut self.queues[index];
        if !queue.is_active() {
            queue.next_dispatch_r = self.current_r;
            self.active_queues += 1;
        }
        if queue.waiting.is_empty() {
            self.backlogged.insert(
                self.backlogged.partition_point(|&other| other < index),
                index,
            );
        }
        self.totals.requests_waiting += 1;
        self.totals.seats_waiting += request.seats();
        request.queue = Some(index);
        let slot = self.requests.insert(request);
        queue.waiting.push(&mut self.requests, slot);
        effects.enqueued = Some(QueuePosition {
            queue: index,
            length: queue.waiting.len(),
        });
        queue.bound_next_dispatch_r(&self.requests);
        self.dispatch(now, effects);
        let key = self.requests.key(slot);
        if self.requests.at(slot).is_waiting() {
            Arrival::Queued(key)
        } else {
            Arrival::Execute(key)
        }
    }
}
