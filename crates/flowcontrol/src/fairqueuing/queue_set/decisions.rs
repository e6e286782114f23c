//! The inputs and outputs of a queue set: its configuration, its decisions, and the effects that
//! the level turns into wake-ups and metrics.

use std::time::Duration;

use crate::fairqueuing::queue_set::request_slab::RequestKey;
use crate::fairqueuing::seats::SeatSeconds;
use crate::fairqueuing::shuffle_sharding::Dealer;

/// The treatment of requests that find no free seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queuing {
    /// Every request executes at once. Seats are counted, not limited.
    Exempt,
    /// Requests are queued.
    Queue {
        /// Deals each flow its queues. It has the number of queues and the size of a hand.
        dealer: Dealer,
        /// The most requests in a queue while the level has no free seat.
        queue_length_limit: usize,
    },
    /// Requests are rejected.
    Reject,
}

/// The decision about an arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The request has its seats and may execute.
    Execute(RequestKey),
    /// The request is queued. Either its key is in [`Effects::started`] of a later step, or it
    /// leaves before that.
    Queued(RequestKey),
    /// The request is rejected and not kept.
    Reject(RejectReason),
}

/// The reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// A level without queues had too few free seats.
    ConcurrencyLimit,
    /// The level had no free seat and the queue was full.
    QueueFull,
    /// The request left the queue, for whatever cause. Upstream has no separate reason for a client
    /// that disconnects.
    TimeOut,
}

/// The effect of leaving with a key. Contains the caller's payload once the key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure<T> {
    /// The request waited and never executed: [`RejectReason::TimeOut`].
    Ejected(T),
    /// The request executed, and its seats stay occupied. The key is still valid: leave with it
    /// again after this time.
    Lingers(Duration),
    /// The seats are free.
    Released(T),
}

/// The effects of a step besides its return value. The caller acts on them and counts them.
///
/// A step clears them first. Pass the same value to every step to reuse its memory.
#[derive(Debug, Default)]
pub struct Effects {
    /// The requests that have their seats from this step on, in the order of dispatch. Includes the
    /// request that has just arrived, if it may execute.
    pub started: Vec<RequestKey>,
    /// The request that is next, if there are too few free seats for it. No request behind it may
    /// overtake it, so that narrow requests do not starve a wide one.
    pub blocked: Option<RequestKey>,
    /// The queue that the arriving request joined.
    pub enqueued: Option<QueuePosition>,
    /// The step advanced the epoch of virtual time.
    pub epoch_advance: Option<EpochAdvance>,
}

/// The position at which an arriving request joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The index of the queue at that time.
    pub queue: usize,
    /// The number of requests that wait in it, with this one, before any dispatch.
    pub length: usize,
}

/// All virtual times of the level were lowered, long before R would overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochAdvance {
    /// False if a time was too low and wrapped.
    pub success: bool,
}

/// The counts of a level, current and since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSetTotals {
    /// Requests in the queues.
    pub requests_waiting: usize,
    /// The seats that the queued requests will occupy.
    pub seats_waiting: u64,
    /// Executing requests, without those whose seats only linger.
    pub requests_executing: usize,
    /// Occupied seats, including lingering ones.
    pub seats_in_use: u64,
    /// Requests that ever started.
    pub dispatched: u64,
    /// Requests that never started and never will: rejected on arrival, or removed from the queue.
    pub rejected: u64,
    /// Those of `rejected` that had waited.
    pub cancelled: u64,
}

/// The current requests and seats of a level. A rejected request changes none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the queues.
    pub requests_waiting: usize,
    /// Executing requests.
    pub requests_executing: usize,
    /// Occupied seats, including lingering ones.
    pub seats_in_use: u64,
    /// See [`QueueSetTotals::seat_demand`].
    pub seat_demand: u64,
}

/// Virtual times at the last dispatch from a queue, for the gauges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastDispatch {
    /// The virtual time R of the level: `dispatch_r`.
    pub r: SeatSeconds,
    /// The virtual start of the dispatched request: `latest_s`.
    pub s: SeatSeconds,
    /// The least and the greatest virtual start of the queues with waiting requests:
    /// `next_s_bounds`.
    pub s_bounds: (SeatSeconds, SeatSeconds),
    /// The same, each less the expected cost of its queue's seats in use:
    /// `next_discounted_s_bounds`.
    pub discounted_s_bounds: (SeatSeconds, SeatSeconds),
}

impl RejectReason {
    /// The value of the `reason` label, in Kubernetes' spelling.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

impl Queuing {
    /// The number of queues for arriving requests.
    pub(super) const fn desired_queues(&self) -> usize {
        match self {
            Self::Exempt | Self::Reject => 0,
            Self::Queue { dealer, .. } => dealer.deck_size(),
        }
    }
}

impl Effects {
    pub(super) fn clear(&mut self) {
        let Self {
            started,
            blocked,
            enqueued,
            epoch_advance: epoch,
        } = self;
        started.clear();
        (*blocked, *enqueued, *epoch) = (None, None, None);
    }
}

impl QueueSetTotals {
    /// The seats that the level could use: the input of borrowing.
    #[must_use]
    pub const fn seat_demand(&self) -> u64 {
        self.seats_in_use + self.seats_waiting
    }

    /// The counts that demand and utilization are computed from.
    #[must_use]
    pub const fn load(&self) -> Load {
        Load {
            requests_waiting: self.requests_waiting,
            requests_executing: self.requests_executing,
            seats_in_use: self.seats_in_use,
            seat_demand: self.seat_demand(),
        }
    }
}
