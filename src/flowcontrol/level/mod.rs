//! One priority level at work: its lock, who waits in it, and what it counts.
//!
//! The [queue set](crate::flowcontrol::fairqueuing::queue_set) decides; here its decisions are carried out. One
//! mutex guards a level. It is held for one step, never across an await, and nobody is woken under
//! it. Whoever is admitted holds a [`Place`], in the queue and then in a seat, and a place gives
//! itself back when it is dropped, wherever that happens.
//!
//! Exempt levels take the lock as well. The demand for seats that borrowing follows is an integral
//! of squares, and the dumps list exempt requests too: neither can be had from counters alone.
//!
//! Which level a request belongs to, and how many seats the level has, is decided by the
//! [controller](crate::flowcontrol::controller).

mod counters;
mod request_details;
mod seat_permit;
mod state;
mod summary;

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

use self::state::LevelInner;
use self::state::LevelState;
use crate::api::UserInfo;
use crate::flowcontrol::concurrency::LevelSeats as Seats;
use crate::flowcontrol::concurrency::demand::DemandPeriod;
use crate::flowcontrol::fairqueuing::queue_set::LastDispatch;
use crate::flowcontrol::fairqueuing::queue_set::QueueDump;
use crate::flowcontrol::fairqueuing::queue_set::QueueSetTotals;
use crate::flowcontrol::fairqueuing::queue_set::Queuing;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::fairqueuing::queue_set::RequestKey;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;
use crate::flowcontrol::metrics::in_flight::InFlightMetrics;
use crate::request_info::RequestInfo;

pub use self::summary::LevelSummary;
pub use crate::flowcontrol::level::counters::LevelCounters;
pub use crate::flowcontrol::level::counters::SchemaCounters;
pub use crate::flowcontrol::level::counters::Utilization;
pub use crate::flowcontrol::level::request_details::DetailColumn;
pub use crate::flowcontrol::level::request_details::RequestDetails;
pub use crate::flowcontrol::level::seat_permit::ArrivalOutcome;
pub use crate::flowcontrol::level::seat_permit::ObjectId;
pub use crate::flowcontrol::level::seat_permit::SchemaRoute;
pub use crate::flowcontrol::level::seat_permit::SeatPermit;

/// A priority level that exists or has existed.
pub struct PriorityLevel {
    name: String,
    /// The most seats that a request is estimated at; 0 if that is not bounded. Relaxed: it stands
    /// for nothing but itself.
    max_seats: AtomicU32,
    /// Guards all else. Held for one step; nothing is awaited and nobody is woken under it.
    inner: Mutex<LevelInner>,
    /// Told when the level has been quiescing and is idle.
    drained: Arc<Notify>,
}

/// A request that has been classified and estimated.
#[derive(Clone, Copy, Debug)]
pub struct ArrivingRequest<'a> {
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
pub enum ArrivalError {
    /// The level has gone since the request was classified.
    Closed,
    /// The level turns it away.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// In how many seconds the client may try again.
        retry_after: u32,
    },
}

/// A level as the metrics show it.
#[derive(Clone, Debug)]
pub struct LevelMetrics {
    /// What was counted.
    pub counters: LevelCounters,
    /// The progress meter.
    pub current_r: SeatSeconds,
    /// Virtual times at the last dispatch.
    pub last_dispatch: Option<LastDispatch>,
}

/// A level as the dumps show it.
#[derive(Clone, Copy, Debug)]
pub struct LevelDump {
    /// Its counts.
    pub totals: QueueSetTotals,
    /// Queues in which somebody waits.
    pub active_queues: usize,
    /// Whether nobody waits or runs.
    pub is_idle: bool,
    /// Whether it goes as soon as it is idle.
    pub is_quiescing: bool,
}

/// A request as the dumps show it.
#[derive(Clone, Debug)]
pub struct DumpedRequest {
    /// The name of its schema.
    pub flow_schema: String,
    /// The queue it waits in or came from.
    pub queue: Option<usize>,
    /// Its place in the queue, while it waits.
    pub position: Option<usize>,
    /// What was noted of it.
    pub details: RequestDetails,
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
        in_flight: &Arc<InFlightMetrics>,
        drained: &Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            max_seats: AtomicU32::new(0),
            inner: Mutex::new(LevelInner::new(now, queuing, Arc::clone(in_flight))),
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
    pub fn apply_limits(&self, now: Instant, seats: &Seats, denominator: u32) {
        let max_seats = seats.max_seats.unwrap_or_default();
        self.max_seats.store(max_seats, Ordering::Relaxed);
        self.with_lock(|state| state.apply_limits(now, seats, denominator));
    }

    /// The configuration has the level, perhaps again.
    pub fn open(&self, now: Instant, queuing: Queuing) {
        self.with_lock(|state| state.open(now, queuing));
    }

    /// The configuration has the level no longer. True if it has gone by this; otherwise it has
    /// requests, and is to be closed again when it has drained.
    pub fn close(&self, now: Instant) -> bool {
        self.with_lock(|state| state.close(now))
    }

    /// Whether it is in use: in the configuration, or still draining.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.lock().state != LevelState::Closed
    }

    /// Whether nobody waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock().queue_set.is_idle()
    }

    /// The demand for its seats since this was last asked.
    pub fn end_demand_period(&self, now: Instant) -> DemandPeriod {
        self.lock().end_demand_period(now)
    }

    /// Where the requests of a schema are counted.
    #[must_use]
    pub fn register_schema(&self, flow_schema: &str) -> usize {
        self.lock().counters.register_schema(flow_schema)
    }

    /// For the metrics.
    #[must_use]
    pub fn metrics(&self) -> LevelMetrics {
        let state = self.lock();
        LevelMetrics {
            counters: state.counters.clone(),
            current_r: state.queue_set.current_r(),
            last_dispatch: state.queue_set.last_dispatch(),
        }
    }

    /// For `dump_priority_levels`.
    #[must_use]
    pub fn dump(&self) -> LevelDump {
        let state = self.lock();
        LevelDump {
            totals: state.queue_set.totals(),
            active_queues: state.queue_set.backlogged_queues(),
            is_idle: state.queue_set.is_idle(),
            is_quiescing: state.state == LevelState::Quiescing,
        }
    }

    /// For `dump_queues`.
    #[must_use]
    pub fn dump_queues(&self) -> Vec<QueueDump> {
        self.lock().queue_set.dump_queues().collect()
    }

    /// For `dump_requests`.
    #[must_use]
    pub fn dump_requests(&self) -> Vec<DumpedRequest> {
        let state = self.lock();
        let shown = state
            .queue_set
            .dump_requests()
            .into_iter()
            .map(|line| DumpedRequest {
                flow_schema: state
                    .counters
                    .schema_name(line.payload.counters_index)
                    .to_owned(),
                queue: line.queue,
                position: line.position,
                details: line.payload.details.clone(),
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
        arriving: &ArrivingRequest<'_>,
    ) -> Result<(RequestKey, bool), ArrivalError> {
        self.with_lock(|state| state.arrive(now, row, arriving))
    }

    fn leave(&self, now: Instant, ticket: RequestKey) -> Option<Duration> {
        self.with_lock(|state| state.leave(now, ticket))
    }

    fn cancel(&self, now: Instant, ticket: RequestKey) -> Option<u32> {
        self.with_lock(|state| state.cancel(now, ticket))
    }

    fn poll_dispatched(&self, ticket: RequestKey, waker: &Waker) -> bool {
        self.with_lock(|state| state.poll_dispatched(ticket, waker))
    }

    /// Does something under the lock, and the rest when it is gone.
    fn with_lock<R>(&self, act: impl FnOnce(&mut LevelInner) -> R) -> R {
        let mut state = self.lock();
        let result = act(&mut state);
        let after = state.take_deferred();
        drop(state);
        if after.drained {
            self.drained.notify_one();
        }
        after.run();
        result
    }

    fn lock(&self) -> MutexGuard<'_, LevelInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityLevel").field(&self.name).finish()
    }
}
