//! Fair queuing of one priority level: who waits, who runs, who is next.
//!
//! A request arrives with the hash of its flow and an estimate of its work. It joins the least
//! loaded of the few queues that its flow is dealt, and starts when its queue's turn comes and
//! enough seats are free. The turn is the queue's whose oldest request would be finished first if
//! all busy queues were served at the same time in equal shares; the [theory](crate::flowcontrol)
//! is told one floor up. Step by step this is `fairqueuing/queueset` of Kubernetes 1.36: the same
//! requests start in the same order at the same instant.
//!
//! It differs where upstream is mistaken and nothing depends on the mistake:
//!
//! - Seats of a waiting request are taken off the count as they were put on. Upstream narrows a
//!   final phase that is too wide in between, and counts the difference as waiting for ever.
//! - A queue that is removed while seats of its requests linger is removed once. Upstream removes
//!   by an index that may meanwhile be another queue's, or none's (kubernetes/kubernetes#140884).
//! - A request that leaves is gone at once, so none is dispatched after it has given up.
//!
//! The set is plain data. Each step takes `now`, returns what was decided, and leaves in
//! [`Effects`] whom to wake and what to count; it reads no clock, takes no lock, wakes nobody. A
//! ticket is given back with [`leave`](QueueSet::leave), whatever it has become; who holds tickets
//! sees to it that each is.

mod admission;
mod decisions;
mod departure;
mod dispatch;
mod dump;
pub(in crate::flowcontrol) mod fifo;
mod queue;
pub(in crate::flowcontrol) mod request_slab;
#[cfg(test)]
mod tests;
mod virtual_time;

use std::time::Instant;

pub use self::decisions::Arrival;
pub use self::decisions::Departure;
pub use self::decisions::Effects;
pub use self::decisions::EpochAdvance;
pub use self::decisions::LastDispatch;
pub use self::decisions::Load;
pub use self::decisions::QueueSetTotals;
pub use self::decisions::Queuing;
pub use self::decisions::RejectReason;
pub use self::dump::QueueDump;
use self::queue::Queue;
pub use crate::flowcontrol::fairqueuing::queue_set::request_slab::DispatchPhase;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::QueueSetRequest;
pub use crate::flowcontrol::fairqueuing::queue_set::request_slab::RequestKey;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::RequestSlab;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;

/// The queues and seats of one priority level.
///
/// `T` is the caller's part of a request (whom to wake, what to show in a dump); the set keeps it
/// and hands it back.
#[derive(Debug)]
pub struct QueueSet<T> {
    queuing: Queuing,
    concurrency_limit: u32,
    requests: RequestSlab<T>,
    /// At least as many as are dealt from; more while surplus ones drain.
    queues: Vec<Queue>,
    /// The queues in which somebody waits, ascending. Looking for the next request to start costs
    /// what these cost, not what the level has.
    backlogged: Vec<usize>,
    /// How many queues have requests, waiting or executing.
    active_queues: usize,
    /// Those of `totals.seats_in_use` that belong to a queue.
    seats_in_use_by_queues: u64,
    totals: QueueSetTotals,
    /// The progress meter R, as of `synced`.
    current_r: SeatSeconds,
    last_sync: Instant,
    /// One past the queue dispatched from last: equals take turns from here.
    next_robin_index: usize,
    /// Arrivals that chose a queue, the rejected ones too.
    enqueues: usize,
    last_dispatch: Option<LastDispatch>,
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

    /// A request arrives, with the caller's part of it; that is dropped if the request is rejected.
    ///
    /// `flow_hash` decides which queues it may join and is ignored by a level without queues. The
    /// estimate may be cut at dispatch: see [`work`](Self::work). Upstream: `StartRequest`.
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

    /// Gives back whatever the ticket holds: a place in the queue, or seats.
    ///
    /// None if it holds nothing any more. A request that ran may keep its seats for a while
    /// ([`Departure::Lingers`]); then the ticket has to be given back once more. When a wide
    /// request leaves the queue, the narrow ones that it kept waiting start with the next step that
    /// is not such a departure: so it is upstream. Upstream: `removeFromQueueLocked`,
    /// `finishRequestLocked`.
    pub fn leave(
        &mut self,
        now: Instant,
        ticket: RequestKey,
        effects: &mut Effects,
    ) -> Option<Departure<T>> {
        effects.clear();
        let slot = self.requests.find(ticket)?;
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

    /// Takes the request out of its queue if it still waits. If it does not, nothing happens at
    /// all: who gives up waiting just as the turn comes has the seats, and may use them.
    pub fn cancel(&mut self, now: Instant, ticket: RequestKey, effects: &mut Effects) -> Option<T> {
        effects.clear();
        let slot = self.requests.find(ticket)?;
        if self.requests.at(slot).phase != DispatchPhase::Waiting {
            return None;
        }
        self.sync(now, effects);
        self.eject(slot)
    }

    /// Changes the shape of the level and its limit at once.
    ///
    /// New queues are there immediately. Surplus ones get no more arrivals and go as they drain; so
    /// do all of them when the level stops queuing. Nobody changes queues, nobody who runs is
    /// stopped. Upstream: `setConfiguration`.
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

    /// Changes the limit only, as borrowing does all the time.
    pub fn set_concurrency_limit(
        &mut self,
        now: Instant,
        concurrency_limit: u32,
        effects: &mut Effects,
    ) {
        self.reconfigure(now, self.queuing, concurrency_limit, effects);
    }

    /// The counts. What waits and what uses seats makes the level's demand for them.
    #[must_use]
    pub const fn totals(&self) -> QueueSetTotals {
        self.totals
    }

    /// Whether no request waits or runs. Seats may still linger: so it is upstream.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.totals.requests_waiting == 0 && self.totals.requests_executing == 0
    }

    /// How many seats there are.
    #[must_use]
    pub const fn concurrency_limit(&self) -> u32 {
        self.concurrency_limit
    }

    /// The progress meter R as of the last step: `current_r`.
    #[must_use]
    pub const fn current_r(&self) -> SeatSeconds {
        self.current_r
    }

    /// Virtual times at the last dispatch from a queue.
    #[must_use]
    pub const fn last_dispatch(&self) -> Option<LastDispatch> {
        self.last_dispatch
    }

    /// The caller's part of a request.
    #[must_use]
    pub fn payload(&self, ticket: RequestKey) -> Option<&T> {
        Some(&self.requests.at(self.requests.find(ticket)?).payload)
    }

    /// The caller's part of a request, to change.
    pub fn payload_mut(&mut self, ticket: RequestKey) -> Option<&mut T> {
        let slot = self.requests.find(ticket)?;
        Some(&mut self.requests.at_mut(slot).payload)
    }

    /// The estimate of a request. A final phase wider than the level was narrowed, and drawn out,
    /// when the request was dispatched.
    #[must_use]
    pub fn work(&self, ticket: RequestKey) -> Option<WorkEstimate> {
        Some(self.requests.at(self.requests.find(ticket)?).work)
    }

    /// Where a request stands.
    #[must_use]
    pub fn phase(&self, ticket: RequestKey) -> Option<DispatchPhase> {
        Some(self.requests.at(self.requests.find(ticket)?).phase)
    }
}
