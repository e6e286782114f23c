//! The state of one level's queues and seats, and the steps that change it.

use std::time::Instant;

use super::decisions::{
    Arrival, Departure, Effects, LastDispatch, QueueSetTotals, Queuing, RejectReason,
};
use super::fifo::Fifo;
use super::request_slab::{DispatchPhase, QueueSetRequest, RequestKey, RequestSlab};
use crate::fairqueuing::seats::{ESTIMATED_SERVICE_DURATION, SeatSeconds, WorkEstimate};

/// The queues and seats of one priority level.
///
/// `T` is the caller's payload of a request (its waker, its details for a dump). The set keeps it
/// and returns it when the request is removed.
#[derive(Debug)]
pub struct QueueSet<T> {
    pub(super) queuing: Queuing,
    pub(super) concurrency_limit: u32,
    pub(super) requests: RequestSlab<T>,
    /// At least as many as flows are dealt from. More while surplus queues drain.
    pub(super) queues: Vec<Queue>,
    /// The indices of the queues with waiting requests, ascending. The search for the next request
    /// visits only these queues, not all queues of the level.
    pub(super) backlogged: Vec<usize>,
    /// The number of queues with waiting or executing requests.
    pub(super) active_queues: usize,
    /// Those of `totals.seats_in_use` that belong to a queue.
    pub(super) seats_in_use_by_queues: u64,
    pub(super) totals: QueueSetTotals,
    /// The virtual time R, as of `last_sync`.
    pub(super) current_r: SeatSeconds,
    pub(super) last_sync: Instant,
    /// One past the queue of the last dispatch. Equal queues are served in round-robin order from
    /// here.
    pub(super) next_robin_index: usize,
    /// Arrivals that chose a queue, including rejected ones.
    pub(super) enqueues: usize,
    pub(super) last_dispatch: Option<LastDispatch>,
}

/// One queue: its waiting requests, its counts, and the virtual time of its next dispatch.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) waiting: Fifo,
    /// The virtual start of the next request to be dispatched: the service that this queue has
    /// received so far, on the scale of the level's R.
    pub(super) next_dispatch_r: SeatSeconds,
    pub(super) requests_executing: usize,
    /// The seats of executing and lingering requests.
    pub(super) seats_in_use: u64,
}

impl<T> QueueSet<T> {
    /// An idle level.
    #[must_use]
    pub fn new(now: Instant, queuing: Queuing, concurrency_limit: u32) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(queuing.desired_queues(), Queue::default);
        Self {
            queuing,
            concurrency_limit,
            requests: RequestSlab::new(),
            queues,
            backlogged: Vec::new(),
            active_queues: 0,
            seats_in_use_by_queues: 0,
            totals: QueueSetTotals::default(),
            current_r: SeatSeconds::ZERO,
            last_sync: now,
            next_robin_index: 1, // upstream starts as if queue 0 had been served
            enqueues: 0,
            last_dispatch: None,
        }
    }

    /// Decides about an arriving request. The payload is dropped if the request is rejected.
    ///
    /// `flow_hash` selects the queues that the request may join. A level without queues ignores it.
    /// The estimate may be narrowed at dispatch: see [`work`](Self::work). Upstream:
    /// `StartRequest`.
    pub fn arrive(
        &mut self,
        now: Instant,
        flow_hash: u64,
        work: WorkEstimate,
        request: T,
        effects: &mut Effects,
    ) -> Arrival {
        effects.clear();
        let now = self.sync(now, effects);
        let request = QueueSetRequest::new(request, work, now, self.current_r);
        match self.queuing {
            Queuing::Exempt | Queuing::Reject if self.fits(request.seats()) => {
                let slot = self.requests.insert(request);
                self.mark_executing(slot, now, effects);
                Arrival::Execute(self.requests.key(slot))
            }
            Queuing::Exempt | Queuing::Reject => self.reject(RejectReason::ConcurrencyLimit),
            Queuing::Queue {
                dealer,
                queue_length_limit,
            } => {
                let queue = self.choose_queue(dealer, flow_hash);
                self.enqueue(queue, queue_length_limit, request, now, effects)
            }
        }
    }

    /// Gives back a key: removes its request from the queue, or releases its seats.
    ///
    /// Returns `None` if the key is invalid. An executed request may keep its seats for a while
    /// ([`Departure::Lingers`]). Its key must then be given back again. When a wide request leaves
    /// the queue, the narrow requests behind it start with the next step that is not such a
    /// departure, as upstream. Upstream: `removeFromQueueLocked`, `finishRequestLocked`.
    pub fn leave(
        &mut self,
        now: Instant,
        key: RequestKey,
        effects: &mut Effects,
    ) -> Option<Departure<T>> {
        effects.clear();
        let slot = self.requests.find(key)?;
        let now = self.sync(now, effects);
        match self.requests.at(slot).phase {
            DispatchPhase::Waiting => self.eject(slot).map(Departure::Ejected),
            DispatchPhase::Executing { since } => {
                let linger = self.finish(slot, now.saturating_duration_since(since));
                let departure = if linger.is_zero() {
                    self.release(slot).map(Departure::Released)
                } else {
                    Some(Departure::Lingers(linger))
                };
                self.dispatch(now, effects);
                departure
            }
            DispatchPhase::Lingering => {
                let request = self.release(slot);
                self.dispatch(now, effects);
                request.map(Departure::Released)
            }
        }
    }

    /// Removes the request from its queue if it still waits. Otherwise nothing changes: a request
    /// that is dispatched just before it is cancelled keeps its seats and may execute.
    pub fn cancel(&mut self, now: Instant, key: RequestKey, effects: &mut Effects) -> Option<T> {
        effects.clear();
        let slot = self.requests.find(key)?;
        if self.requests.at(slot).phase != DispatchPhase::Waiting {
            return None;
        }
        self.sync(now, effects);
        self.eject(slot)
    }

    /// Changes the queuing of the level and its limit at once.
    ///
    /// New queues exist immediately. Surplus queues get no more arrivals and are removed as they
    /// drain. All queues are removed this way when the level stops queuing. No request changes its
    /// queue, and no executing request is stopped. Upstream: `setConfiguration`.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        queuing: Queuing,
        concurrency_limit: u32,
        effects: &mut Effects,
    ) {
        effects.clear();
        let now = self.sync(now, effects);
        self.queuing = queuing;
        if self.queues.len() < queuing.desired_queues() {
            self.queues
                .resize_with(queuing.desired_queues(), Queue::default);
        }
        self.concurrency_limit = concurrency_limit;
        self.dispatch(now, effects);
    }

    /// Changes only the limit, as borrowing does frequently.
    #[cfg(any(test, fuzzing))]
    pub fn set_concurrency_limit(
        &mut self,
        now: Instant,
        concurrency_limit: u32,
        effects: &mut Effects,
    ) {
        self.reconfigure(now, self.queuing, concurrency_limit, effects);
    }

    /// The queuing of the level.
    #[must_use]
    pub const fn queuing(&self) -> Queuing {
        self.queuing
    }

    /// The counts of the level.
    #[must_use]
    pub const fn totals(&self) -> QueueSetTotals {
        self.totals
    }

    /// Whether no request waits or executes. Seats may still linger, as upstream.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.totals.requests_waiting == 0 && self.totals.requests_executing == 0
    }

    /// The limit of the level, in seats.
    #[must_use]
    #[cfg(any(test, fuzzing))]
    pub const fn concurrency_limit(&self) -> u32 {
        self.concurrency_limit
    }

    /// The virtual time R as of the last step: `current_r`.
    #[must_use]
    pub const fn current_r(&self) -> SeatSeconds {
        self.current_r
    }

    /// Virtual times at the last dispatch from a queue.
    #[must_use]
    pub const fn last_dispatch(&self) -> Option<LastDispatch> {
        self.last_dispatch
    }

    /// The caller's payload of a request.
    #[must_use]
    pub fn payload(&self, key: RequestKey) -> Option<&T> {
        Some(&self.requests.at(self.requests.find(key)?).payload)
    }

    /// The caller's payload of a request, mutably.
    pub fn payload_mut(&mut self, key: RequestKey) -> Option<&mut T> {
        let slot = self.requests.find(key)?;
        Some(&mut self.requests.at_mut(slot).payload)
    }

    /// The estimate of a request. The dispatch narrows and extends a final phase that is wider than
    /// the level.
    #[must_use]
    pub fn work(&self, key: RequestKey) -> Option<WorkEstimate> {
        Some(self.requests.at(self.requests.find(key)?).work)
    }

    /// The phase of a request.
    #[must_use]
    pub fn phase(&self, key: RequestKey) -> Option<DispatchPhase> {
        Some(self.requests.at(self.requests.find(key)?).phase)
    }
}

impl Queue {
    /// Whether virtual time passes for the queue. Lingering seats do not keep a queue active.
    pub(super) const fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.requests_executing > 0
    }

    /// Raises the virtual start of the oldest waiting request to its arrival, so that a queue
    /// cannot save up service for a burst: the anti-windup of KEP-1040.
    pub(super) fn bound_next_dispatch_r<T>(&mut self, requests: &RequestSlab<T>) {
        if let Some(oldest) = self.waiting.oldest() {
            self.next_dispatch_r = self.next_dispatch_r.max(requests.at(oldest).arrived_r);
        }
    }

    /// `next_dispatch_r` less the expected work of the seats in use.
    pub(super) fn discounted_s(&self) -> SeatSeconds {
        let per_seat = SeatSeconds::from_seats(1.0, ESTIMATED_SERVICE_DURATION).units();
        let expected = SeatSeconds::from_units(per_seat.wrapping_mul(self.seats_in_use));
        self.next_dispatch_r.wrapping_sub(expected)
    }
}
