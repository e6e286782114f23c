//! One priority level at work: its lock, who waits in it, and what it counts.
//!
//! The [queue set](crate::flowcontrol::queue_set) decides; here its decisions are carried out. One
//! mutex guards a level. It is held for one step, never across an await, and nobody is woken under
//! it. Whoever is admitted holds a [`Place`], in the queue and then in a seat, and a place gives
//! itself back when it is dropped, wherever that happens.
//!
//! Exempt levels take the lock as well. The demand for seats that borrowing follows is an integral
//! of squares, and the dumps list exempt requests too: neither can be had from counters alone.
//!
//! Which level a request belongs to, and how many seats the level has, is decided by the
//! [controller](crate::flowcontrol::controller).

mod details;
mod place;
mod state;
mod summary;
mod tally;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::Notify;

use self::state::Standing;
use self::state::State;
use crate::api::UserInfo;
use crate::flowcontrol::concurrency::Level as Seats;
use crate::flowcontrol::demand::Period;
use crate::flowcontrol::in_flight::InFlight;
use crate::flowcontrol::queue_set::LastDispatch;
use crate::flowcontrol::queue_set::QueueDump;
use crate::flowcontrol::queue_set::Queuing;
use crate::flowcontrol::queue_set::Reason;
use crate::flowcontrol::queue_set::Ticket;
use crate::flowcontrol::queue_set::Totals;
use crate::flowcontrol::seats::SeatSeconds;
use crate::flowcontrol::seats::WorkEstimate;
use crate::request_info::RequestInfo;

pub use self::details::Details;
pub use self::details::Part;
pub use self::place::Arrived;
pub use self::place::Named;
pub use self::place::Place;
pub use self::place::Route;
pub use self::summary::Summary;
pub use self::tally::Ratios;
pub use self::tally::Row;
pub use self::tally::Tally;

/// A priority level that exists or has existed.
pub struct PriorityLevel {
    name: String,
    /// The most seats that a request is estimated at; 0 if that is not bounded. Relaxed: it stands
    /// for nothing but itself.
    max_seats: AtomicU32,
    /// Guards all else. Held for one step; nothing is awaited and nobody is woken under it.
    state: Mutex<State>,
    /// Told when the level has been quiescing and is idle.
    drained: Arc<Notify>,
}

/// A request that has been classified and estimated.
#[derive(Clone, Copy, Debug)]
pub struct Arriving<'a> {
    /// What is asked.
    pub info: &'a RequestInfo<'a>,
    /// Who asks.
    pub user: &'a UserInfo,
    /// What tells its flow from others.
    pub flow_distinguisher: &'a [u8],
    /// By which the flow is dealt its queues.
    pub flow_hash: u64,
    /// What it will cost.
    pub work: WorkEstimate,
    /// For a write that was estimated by them: the watches that it concerns.
    pub interested_watches: Option<u32>,
}

/// Why a request does not get a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The level has gone since the request was classified.
    Closed,
    /// The level turns it away.
    Rejected {
        /// Why.
        reason: Reason,
        /// In how many seconds the client may try again.
        retry_after: u32,
    },
}

/// A level as the metrics show it.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What was counted.
    pub tally: Tally,
    /// The progress meter.
    pub current_r: SeatSeconds,
    /// Virtual times at the last dispatch.
    pub last_dispatch: Option<LastDispatch>,
}

/// A level as the dumps show it.
#[derive(Clone, Copy, Debug)]
pub struct Overview {
    /// Its counts.
    pub totals: Totals,
    /// Queues in which somebody waits.
    pub active_queues: usize,
    /// Whether nobody waits or runs.
    pub is_idle: bool,
    /// Whether it goes as soon as it is idle.
    pub is_quiescing: bool,
}

/// A request as the dumps show it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The name of its schema.
    pub flow_schema: String,
    /// The queue it waits in or came from.
    pub queue: Option<usize>,
    /// Its place in the queue, while it waits.
    pub position: Option<usize>,
    /// What was noted of it.
    pub details: Details,
    /// When it arrived.
    pub arrived: Instant,
    /// What it is expected to cost.
    pub work: WorkEstimate,
    /// When it started, if it has.
    pub started: Option<Instant>,
}

impl PriorityLevel {
    /// A level without seats, until some are [installed](Self::install).
    #[must_use]
    pub fn new(
        name: &str,
        now: Instant,
        queuing: Queuing,
        in_flight: &Arc<InFlight>,
        drained: &Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            max_seats: AtomicU32::new(0),
            state: Mutex::new(State::new(now, queuing, Arc::clone(in_flight))),
            drained: Arc::clone(drained),
        })
    }

    /// Its name, which is its identity.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The most seats that one of its requests may be estimated at, if that is bounded.
    #[must_use]
    pub fn max_seats(&self) -> Option<u32> {
        Some(self.max_seats.load(Ordering::Relaxed)).filter(|&seats| seats > 0)
    }

    /// Gives the level a part of the server's seats, and the shape that goes with it. Ratios are
    /// taken to `denominator`.
    pub fn install(&self, now: Instant, seats: &Seats, denominator: u32) {
        let max_seats = seats.max_seats.unwrap_or_default();
        self.max_seats.store(max_seats, Ordering::Relaxed);
        self.step(|state| state.install(now, seats, denominator));
    }

    /// The configuration has the level, perhaps again.
    pub fn open(&self, now: Instant, queuing: Queuing) {
        self.step(|state| state.open(now, queuing));
    }

    /// The configuration has the level no longer. True if it has gone by this; otherwise it has
    /// requests, and is to be closed again when it has drained.
    pub fn close(&self, now: Instant) -> bool {
        self.step(|state| state.close(now))
    }

    /// Whether it is in use: in the configuration, or still draining.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.state().standing != Standing::Closed
    }

    /// Whether nobody waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state().queues.is_idle()
    }

    /// The demand for its seats since this was last asked.
    pub fn end_period(&self, now: Instant) -> Period {
        self.state().end_period(now)
    }

    /// Where the requests of a schema are counted.
    #[must_use]
    pub fn row_of(&self, flow_schema: &str) -> usize {
        self.state().tally.row_of(flow_schema)
    }

    /// For the metrics.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let state = self.state();
        Reading {
            tally: state.tally.clone(),
            current_r: state.queues.current_r(),
            last_dispatch: state.queues.last_dispatch(),
        }
    }

    /// For `dump_priority_levels`.
    #[must_use]
    pub fn overview(&self) -> Overview {
        let state = self.state();
        Overview {
            totals: state.queues.totals(),
            active_queues: state.queues.backlogged_queues(),
            is_idle: state.queues.is_idle(),
            is_quiescing: state.standing == Standing::Quiescing,
        }
    }

    /// For `dump_queues`.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueDump> {
        self.state().queues.queues().collect()
    }

    /// For `dump_requests`.
    #[must_use]
    pub fn requests(&self) -> Vec<Shown> {
        let state = self.state();
        let shown = state.queues.requests().into_iter().map(|line| Shown {
            flow_schema: state.tally.flow_schema(line.request.row).to_owned(),
            queue: line.queue,
            position: line.position,
            details: line.request.details.clone(),
            arrived: line.arrived,
            work: line.work,
            started: line.started,
        });
        shown.collect()
    }

    fn arrive(
        &self,
        now: Instant,
        row: usize,
        arriving: &Arriving<'_>,
    ) -> Result<(Ticket, bool), Refused> {
        self.step(|state| state.arrive(now, row, arriving))
    }

    fn leave(&self, now: Instant, ticket: Ticket) -> Option<Duration> {
        self.step(|state| state.leave(now, ticket))
    }

    fn cancel(&self, now: Instant, ticket: Ticket) -> Option<u32> {
        self.step(|state| state.cancel(now, ticket))
    }

    fn has_turn(&self, ticket: Ticket, waker: &Waker) -> bool {
        self.step(|state| state.has_turn(ticket, waker))
    }

    /// Does something under the lock, and the rest when it is gone.
    fn step<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state();
        let result = act(&mut state);
        let after = state.after();
        drop(state);
        if after.drained {
            self.drained.notify_one();
        }
        after.wake();
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityLevel").field(&self.name).finish()
    }
}
