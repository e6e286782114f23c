//! The counters of a priority level: plain numbers, changed under the level's lock.
//!
//! Most of them exist per flow schema, in a row, so that a request needs no lookup. The row of a
//! schema that was removed stays until its last counts were surely scraped. Then another schema gets
//! it: schemas that come and go take no more memory and no more series.

use std::time::{Duration, Instant};

use weir_base::timing_ratio::{Histogram, TimingRatioHistogram};
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::fairqueuing::queue_set::{EpochAdvance, Load, Queuing, RejectReason};
use weir_kubernetes::numeric::saturating_u64;

const QUEUE_LENGTH_BUCKETS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const DURATION_BUCKETS: &[f64] = &[
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];
const WATCH_COUNT_BUCKETS: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];
const SEAT_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const REQUEST_UTILIZATION_BUCKETS: &[f64] =
    &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const SEAT_UTILIZATION_BUCKETS: &[f64] = &[
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0,
];
const DEMAND_BUCKETS: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// How long the counters of a removed schema or level stay: several scrapes of Prometheus.
pub(crate) const RETENTION: Duration = Duration::from_secs(300);

/// The most removed schemas of a level, and the most removed levels, whose counters stay.
pub(crate) const MAX_RETAINED: usize = 32;

/// The row of a schema's counters. A row that was given to another schema has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchemaSlot {
    pub(super) index: usize,
    generation: u64,
}

/// The counters of a level.
#[derive(Clone, Debug)]
pub(crate) struct LevelCounters {
    /// One for each schema that leads to the level, and for removed ones. A row without a name is
    /// free.
    pub(crate) schemas: Vec<SchemaCounters>,
    /// Epoch advances of virtual time: without and with success.
    pub(crate) epoch_advances: [u64; 2],
    /// Utilization over time.
    pub(crate) utilization: Utilization,
    /// The level's seats as of the last allocation.
    pub(crate) seats: Option<LevelSeats>,
}

/// Utilization of the level, over time.
#[derive(Clone, Debug)]
pub(crate) struct Utilization {
    /// Waiting requests relative to the capacity of the queues.
    pub(crate) waiting: TimingRatioHistogram,
    /// Executing requests relative to the level's seats.
    pub(crate) executing: TimingRatioHistogram,
    /// Seats in use relative to the level's seats.
    pub(crate) seats: TimingRatioHistogram,
    /// Seat demand relative to the level's seats.
    pub(crate) demand: TimingRatioHistogram,
}

/// The counters of one schema's requests in a level.
#[derive(Clone, Debug)]
pub(crate) struct SchemaCounters {
    /// The name of the schema. Empty if the row is free.
    pub(crate) flow_schema: String,
    generation: u64,
    /// When the schema was removed.
    removed_at: Option<Instant>,
    /// Requests that started.
    pub(crate) dispatched: u64,
    /// Executing requests.
    pub(crate) executing: u64,
    /// The seats of executing and lingering requests.
    pub(crate) executing_seats: u64,
    /// Waiting requests.
    pub(crate) waiting: u64,
    /// The seats that the waiting requests will occupy.
    pub(crate) waiting_seats: u64,
    /// Requests that did not start.
    pub(crate) rejected: [(RejectReason, u64); 3],
    /// Dispatch attempts that found too few free seats for the next request.
    pub(crate) no_accommodation: u64,
    /// The length of the queue that each request joined.
    pub(crate) queue_lengths: Histogram,
    /// The waits of requests that were rejected at once: always 0.
    pub(crate) rejected_waits: Histogram,
    /// The waits of all other requests, including those that left the queue, as upstream. In
    /// seconds.
    pub(crate) waits: Histogram,
    /// Execution times in seconds.
    pub(crate) executions: Histogram,
    /// The times until watches were initialized, in seconds.
    pub(crate) watch_initializations: Histogram,
    /// The number of interested watches of each write, as estimated.
    pub(crate) watch_counts: Histogram,
    /// The seats of each request, as estimated.
    pub(crate) estimated_seats: Histogram,
}

impl LevelCounters {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            schemas: Vec::new(),
            epoch_advances: [0; 2],
            utilization: Utilization {
                waiting: TimingRatioHistogram::new(REQUEST_UTILIZATION_BUCKETS, now, 1),
                executing: TimingRatioHistogram::new(REQUEST_UTILIZATION_BUCKETS, now, 1),
                seats: TimingRatioHistogram::new(SEAT_UTILIZATION_BUCKETS, now, 1),
                demand: TimingRatioHistogram::new(DEMAND_BUCKETS, now, 1),
            },
            seats: None,
        }
    }

    /// Returns the row of a schema. Takes a free one if it has none.
    pub(super) fn register_schema(&mut self, flow_schema: &str) -> SchemaSlot {
        let position = |name: &str| {
            let mut rows = self.schemas.iter();
            rows.position(|row| row.flow_schema == name)
        };
        let index = position(flow_schema).or_else(|| position(""));
        let index = index.unwrap_or_else(|| {
            self.schemas.push(SchemaCounters::new(String::new(), 0));
            self.schemas.len() - 1
        });
        let row = self.schema_mut(index);
        flow_schema.clone_into(&mut row.flow_schema);
        row.removed_at = None;
        SchemaSlot {
            index,
            generation: row.generation,
        }
    }

    /// Whether the row still belongs to the schema that it was registered for.
    pub(super) fn is_current(&self, slot: SchemaSlot) -> bool {
        let row = self.schemas.get(slot.index);
        row.is_some_and(|row| row.generation == slot.generation)
    }

    /// Only these schemas lead to the level from now on.
    pub(super) fn retain_schemas(&mut self, now: Instant, current: &[SchemaSlot]) {
        for (index, row) in self.schemas.iter_mut().enumerate() {
            let is_current = current.iter().any(|slot| slot.index == index);
            if !is_current && !row.flow_schema.is_empty() {
                row.removed_at.get_or_insert(now);
            }
        }
        self.free_rows(now);
    }

    /// Frees the rows of schemas that were removed some time ago, if no request is counted there.
    pub(super) fn free_rows(&mut self, now: Instant) {
        let mut removed: Vec<_> = self
            .schemas
            .iter()
            .filter_map(|row| row.removed_at)
            .collect();
        removed.sort_unstable();
        let excess = removed.len().saturating_sub(MAX_RETAINED);
        let cut_off = excess.checked_sub(1).and_then(|last| removed.get(last));
        for row in &mut self.schemas {
            let is_over = row.removed_at.is_some_and(|at| {
                now.saturating_duration_since(at) >= RETENTION
                    || cut_off.is_some_and(|end| at <= *end)
            });
            if is_over && row.is_idle() {
                *row = SchemaCounters::new(String::new(), row.generation + 1);
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "rows are never taken away")]
    pub(super) fn schema_mut(&mut self, index: usize) -> &mut SchemaCounters {
        &mut self.schemas[index]
    }

    /// The name of the schema at an index.
    pub(super) fn schema_name(&self, index: usize) -> &str {
        self.schemas
            .get(index)
            .map_or("", |schema| &schema.flow_schema)
    }

    pub(super) fn record_epoch_advance(&mut self, epoch: EpochAdvance) {
        let [failures, successes] = &mut self.epoch_advances;
        *if epoch.success { successes } else { failures } += 1;
    }

    /// Records a new allocation of seats.
    pub(super) fn set_seats(&mut self, now: Instant, seats: &LevelSeats, denominator: u32) {
        let capacity = match seats.spec.queuing {
            Queuing::Queue {
                dealer,
                queue_length_limit,
            } => dealer.deck_size().saturating_mul(queue_length_limit).max(1),
            Queuing::Exempt | Queuing::Reject => 1,
        };
        let Utilization {
            waiting,
            executing,
            seats: seats_in_use,
            demand,
        } = &mut self.utilization;
        waiting.set_denominator(now, saturating_u64(capacity));
        for ratio in [executing, seats_in_use, demand] {
            ratio.set_denominator(now, u64::from(denominator));
        }
        self.seats = Some(seats.clone());
    }

    /// Sets the load from `now` on.
    pub(super) fn set_load(&mut self, now: Instant, load: Load) {
        let ratios = &mut self.utilization;
        ratios
            .waiting
            .set(now, saturating_u64(load.requests_waiting));
        ratios
            .executing
            .set(now, saturating_u64(load.requests_executing));
        ratios.seats.set(now, load.seats_in_use);
        ratios.demand.set(now, load.seat_demand);
    }
}

impl SchemaCounters {
    fn new(flow_schema: String, generation: u64) -> Self {
        Self {
            flow_schema,
            generation,
            removed_at: None,
            dispatched: 0,
            executing: 0,
            executing_seats: 0,
            waiting: 0,
            waiting_seats: 0,
            rejected: [
                (RejectReason::ConcurrencyLimit, 0),
                (RejectReason::QueueFull, 0),
                (RejectReason::TimeOut, 0),
            ],
            no_accommodation: 0,
            queue_lengths: Histogram::new(QUEUE_LENGTH_BUCKETS),
            rejected_waits: Histogram::new(DURATION_BUCKETS),
            waits: Histogram::new(DURATION_BUCKETS),
            executions: Histogram::new(DURATION_BUCKETS),
            watch_initializations: Histogram::new(DURATION_BUCKETS),
            watch_counts: Histogram::new(WATCH_COUNT_BUCKETS),
            estimated_seats: Histogram::new(SEAT_BUCKETS),
        }
    }

    /// Whether no request waits, executes or lingers.
    const fn is_idle(&self) -> bool {
        self.executing == 0
            && self.executing_seats == 0
            && self.waiting == 0
            && self.waiting_seats == 0
    }

    pub(super) fn record_rejection(&mut self, reason: RejectReason) {
        for (counted_reason, times) in &mut self.rejected {
            *times += u64::from(*counted_reason == reason);
        }
    }

    pub(super) fn record_execution(&mut self, is_watch: bool, time: Duration) {
        self.executing -= 1;
        let times = if is_watch {
            &mut self.watch_initializations
        } else {
            &mut self.executions
        };
        times.observe(time.as_secs_f64());
    }
}
