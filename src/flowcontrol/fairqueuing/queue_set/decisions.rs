//! What a queue set is told and what it answers: its shape, its decisions, and the events that the
//! shell turns into wake-ups and metrics.

use std::time::Duration;

use crate::flowcontrol::fairqueuing::queue_set::request_slab::RequestKey;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::fairqueuing::shuffle_sharding::Dealer;

/// What a level does with requests that find no free seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queuing {
    /// There are no such requests: seats are counted, not limited.
    Exempt,
    /// They wait in line.
    Queue {
        /// Knows the number of queues and how many of them a flow is dealt.
        dealer: Dealer,
        /// How many requests a queue may hold while the level has no free seat.
        queue_length_limit: usize,
    },
    /// They are refused.
    Reject,
}

/// The answer to an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It has its seats and may run.
    Execute(RequestKey),
    /// It waits; its ticket is among [`Effects::started`] of a later step, or it leaves first.
    Queued(RequestKey),
    /// It is turned away, and is already forgotten.
    Reject(RejectReason),
}

/// Why a request did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// A level that does not queue had too few free seats.
    ConcurrencyLimit,
    /// The level had no free seat and the queue was full.
    QueueFull,
    /// It left the queue, for whatever cause. Upstream has no other name for a client that left.
    TimeOut,
}

/// What a ticket was when it was given back; the caller's own part of the request comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure<T> {
    /// It waited: the request never ran, [`Reason::TimeOut`].
    Ejected(T),
    /// It ran, and its seats stay taken. The ticket is still good: give it back again after so
    /// long.
    Lingers(Duration),
    /// Its seats are free.
    Released(T),
}

/// What a step did besides answering its caller, to be acted on and counted by whoever called.
///
/// A step empties it first. Keep one and hand it to every step: then its memory is used again.
#[derive(Debug, Default)]
pub struct Effects {
    /// The requests that have their seats from this step on, in the order of dispatch; the one that
    /// has just arrived is among them if it may run.
    pub started: Vec<RequestKey>,
    /// The request whose turn it is, but for which there are too few free seats. Nothing behind it
    /// may overtake it, so a wide request is not starved by narrow ones.
    pub blocked: Option<RequestKey>,
    /// The queue that the arriving request joined.
    pub enqueued: Option<QueuePosition>,
    /// The progress meter was wound back.
    pub epoch_advance: Option<EpochAdvance>,
}

/// Where an arriving request joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The index of the queue, at the time.
    pub queue: usize,
    /// The requests that wait in it, with this one, before anything is dispatched.
    pub length: usize,
}

/// All virtual times of the level were lowered, long before the progress meter would overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochAdvance {
    /// False if a time was too low to be lowered, and wrapped.
    pub success: bool,
}

/// The counts of a level, now and since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSetTotals {
    /// Requests in the queues.
    pub requests_waiting: usize,
    /// The seats that these will occupy.
    pub seats_waiting: u64,
    /// Requests that run; those whose seats only linger do not count.
    pub requests_executing: usize,
    /// Seats taken, lingering ones included.
    pub seats_in_use: u64,
    /// Requests that ever started.
    pub dispatched: u64,
    /// Requests that never did and will not: turned away, or gone from the queue.
    pub rejected: u64,
    /// Those of `rejected` that had waited.
    pub cancelled: u64,
}

/// What there is of a level's requests and seats at a time; a request that is turned away changes nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the queues.
    pub requests_waiting: usize,
    /// Requests that run.
    pub requests_executing: usize,
    /// Seats taken, lingering ones included.
    pub seats_in_use: u64,
    /// See [`Totals::seat_demand`].
    pub seat_demand: u64,
}

/// Virtual times at the last dispatch from a queue, for the gauges that watch over fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastDispatch {
    /// The progress meter: `dispatch_r`.
    pub r: SeatSeconds,
    /// The virtual start of the request that was chosen: `latest_s`.
    pub s: SeatSeconds,
    /// The least and the greatest virtual start, over the queues that had requests waiting:
    /// `next_s_bounds`.
    pub s_bounds: (SeatSeconds, SeatSeconds),
    /// The same, each less what its queue's seats in use are expected to cost:
    /// `next_discounted_s_bounds`.
    pub discounted_s_bounds: (SeatSeconds, SeatSeconds),
}

impl RejectReason {
    /// The value of the `reason` label, as Kubernetes spells it.
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
    /// How many queues arriving requests are spread over.
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
    /// What the level would use if it could: the quantity that borrowing follows.
    #[must_use]
    pub const fn seat_demand(&self) -> u64 {
        self.seats_in_use + self.seats_waiting
    }

    /// Those that demand and utilization are measured by.
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
