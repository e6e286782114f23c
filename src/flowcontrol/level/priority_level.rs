//! The lock of one priority level, and the steps under it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::counters::{LevelCounters, SchemaSlot};
use super::request_details::RequestDetails;
use super::state::{LevelInner, LevelState};
use weir_base::sync::atomic::{AtomicU32, Ordering};
use weir_base::sync::{Mutex, MutexGuard, Notify};
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::concurrency::demand::DemandPeriod;
use weir_flowcontrol::fairqueuing::queue_set::{LastDispatch, QueueDump, QueueSetTotals, Queuing};
use weir_flowcontrol::fairqueuing::seats::{SeatSeconds, WorkEstimate};
use weir_limits::in_flight::InFlightMetrics;

/// A priority level that exists or has existed.
pub(crate) struct PriorityLevel {
    name: String,
    /// Constant for the lifetime of a level.
    is_exempt: bool,
    /// The greatest estimate of a request, in seats. 0 if unbounded. Relaxed: no other value
    /// depends on it.
    max_seats: AtomicU32,
    /// Guards all other state. Held for one step. Nothing is awaited and no task is woken while it
    /// is held.
    inner: Mutex<LevelInner>,
    /// Notified when the level is quiescing and idle.
    drained: Arc<Notify>,
}

/// The values of a level for the metrics.
#[derive(Clone, Debug)]
pub(crate) struct LevelMetrics {
    /// The counters of the level.
    pub(crate) counters: LevelCounters,
    /// The virtual time R.
    pub(crate) current_r: SeatSeconds,
    /// Virtual times at the last dispatch.
    pub(crate) last_dispatch: Option<LastDispatch>,
}

/// The values of a level for the dumps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelDump {
    /// The counts of requests and seats.
    pub(crate) totals: QueueSetTotals,
    /// The number of queues with waiting requests.
    pub(crate) active_queues: usize,
    /// Whether no request waits or executes.
    pub(crate) is_idle: bool,
    /// Whether the level is closed as soon as it is idle.
    pub(crate) is_quiescing: bool,
}

/// A request in a dump.
#[derive(Clone, Debug)]
pub(crate) struct DumpedRequest {
    /// The name of the flow schema.
    pub(crate) flow_schema: String,
    /// The queue that it waits in or was dispatched from.
    pub(crate) queue: Option<usize>,
    /// The position in the queue, while it waits.
    pub(crate) position: Option<usize>,
    /// The attributes of the request.
    pub(crate) details: RequestDetails,
    /// The time of arrival.
    pub(crate) arrived: Instant,
    /// The expected cost.
    pub(crate) work: WorkEstimate,
    /// The time of dispatch. `None` while it waits.
    pub(crate) started: Option<Instant>,
}

impl PriorityLevel {
    /// A level without seats, until [`apply_limits`](Self::apply_limits) sets some.
    #[must_use]
    pub(crate) fn new(
        name: &str,
        now: Instant,
        queuing: Queuing,
        in_flight: &Arc<InFlightMetrics>,
        drained: &Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            is_exempt: queuing == Queuing::Exempt,
            max_seats: AtomicU32::new(0),
            inner: Mutex::new(LevelInner::new(now, queuing, Arc::clone(in_flight))),
            drained: Arc::clone(drained),
        })
    }

    /// The name. It identifies the level.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the level neither queues nor rejects, and its requests take no seats.
    #[must_use]
    pub(crate) const fn is_exempt(&self) -> bool {
        self.is_exempt
    }

    /// The greatest estimate of a request of the level, in seats. `None` if unbounded.
    #[must_use]
    pub(crate) fn max_seats(&self) -> Option<u32> {
        Some(self.max_seats.load(Ordering::Relaxed)).filter(|&seats| seats > 0)
    }

    /// Sets the level's seats and queuing. `denominator` is the denominator of the utilization
    /// metrics, in seats.
    pub(crate) fn apply_limits(&self, now: Instant, seats: &LevelSeats, denominator: u32) {
        let max_seats = seats.max_seats.unwrap_or_default();
        self.max_seats.store(max_seats, Ordering::Relaxed);
        self.with_lock(|inner| inner.apply_limits(now, seats, denominator));
    }

    /// Opens the level because the configuration contains it (again).
    pub(crate) fn open(&self, now: Instant, queuing: Queuing) {
        self.with_lock(|inner| inner.open(now, queuing));
    }

    /// Closes the level because the configuration no longer contains it. Returns true if it is
    /// closed. Otherwise it still has requests, and must be closed again when it has drained.
    pub(crate) fn close(&self, now: Instant) -> bool {
        self.with_lock(|inner| inner.close(now))
    }

    /// Whether the level is in use: configured, or still draining.
    #[must_use]
    pub(crate) fn is_in_use(&self) -> bool {
        self.lock().state != LevelState::Closed
    }

    /// Whether no request waits or executes.
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().queue_set.is_idle()
    }

    /// The seats in use, and those that are reserved.
    #[must_use]
    pub(crate) fn held_seats(&self) -> u32 {
        self.lock().held_seats()
    }

    /// Reserves seats for requests of another process.
    pub(crate) fn reserve_seats(&self, now: Instant, seats: u32) {
        if !self.is_exempt {
            self.with_lock(|inner| inner.reserve_seats(now, seats));
        }
    }

    /// The seat demand since the last call. Begins a new period.
    pub(crate) fn end_demand_period(&self, now: Instant) -> DemandPeriod {
        self.lock().end_demand_period(now)
    }

    /// The row of a schema's counters.
    #[must_use]
    pub(crate) fn register_schema(&self, flow_schema: &str) -> SchemaSlot {
        self.lock().counters.register_schema(flow_schema)
    }

    /// Only these schemas lead to the level from now on. The counters of others are dropped later.
    pub(crate) fn retain_schemas(&self, now: Instant, current: &[SchemaSlot]) {
        self.lock().counters.retain_schemas(now, current);
    }

    /// Drops the counters of schemas that were removed some time ago.
    pub(crate) fn drop_old_counters(&self, now: Instant) {
        self.lock().counters.free_rows(now);
    }

    /// The values for the metrics.
    #[must_use]
    pub(crate) fn metrics(&self) -> LevelMetrics {
        let inner = self.lock();
        LevelMetrics {
            counters: inner.counters.clone(),
            current_r: inner.queue_set.current_r(),
            last_dispatch: inner.queue_set.last_dispatch(),
        }
    }

    /// The values for `dump_priority_levels`.
    #[must_use]
    pub(crate) fn dump(&self) -> LevelDump {
        let inner = self.lock();
        LevelDump {
            totals: inner.queue_set.totals(),
            active_queues: inner.queue_set.backlogged_queues(),
            is_idle: inner.queue_set.is_idle(),
            is_quiescing: inner.state == LevelState::Quiescing,
        }
    }

    /// The values for `dump_queues`.
    #[must_use]
    pub(crate) fn dump_queues(&self) -> Vec<QueueDump> {
        self.lock().queue_set.dump_queues().collect()
    }

    /// The values for `dump_requests`.
    #[must_use]
    pub(crate) fn dump_requests(&self) -> Vec<DumpedRequest> {
        let inner = self.lock();
        let requests = inner
            .queue_set
            .dump_requests()
            .into_iter()
            .map(|request| DumpedRequest {
                flow_schema: inner
                    .counters
                    .schema_name(request.payload.counters_index)
                    .to_owned(),
                queue: request.queue,
                position: request.position,
                details: request.payload.details.clone(),
                arrived: request.arrived,
                work: request.work,
                started: request.started,
            });
        requests.collect()
    }

    /// Runs `act` under the lock, and the deferred actions after its release.
    pub(super) fn with_lock<R>(&self, act: impl FnOnce(&mut LevelInner) -> R) -> R {
        let mut inner = self.lock();
        let result = act(&mut inner);
        let deferred = inner.take_deferred();
        drop(inner);
        if deferred.drained {
            self.drained.notify_one();
        }
        deferred.run();
        result
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LevelInner> {
        self.inner.lock()
    }
}

impl fmt::Debug for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityLevel").field(&self.name).finish()
    }
}
