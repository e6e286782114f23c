//! What is counted of a priority level: plain numbers, changed under the level's lock.
//!
//! They are kept per flow schema too, in rows that are found by index, so that nothing is looked up
//! for a request. A row stays when its schema has gone, as a metric's series does.

use std::time::Duration;
use std::time::Instant;

use crate::flowcontrol::concurrency::Level as Seats;
use crate::flowcontrol::histogram::Histogram;
use crate::flowcontrol::histogram::TimingRatio;
use crate::flowcontrol::queue_set::EpochAdvance;
use crate::flowcontrol::queue_set::Load;
use crate::flowcontrol::queue_set::Queuing;
use crate::flowcontrol::queue_set::Reason;

const QUEUE_LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SECONDS: &[f64] = &[
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];
const WATCH_COUNTS: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const REQUEST_UTILIZATION: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const SEAT_UTILIZATION: &[f64] = &[
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0,
];
const DEMAND: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// All that is counted of a level.
#[derive(Clone, Debug)]
pub struct Tally {
    /// One for each schema that has ever led here.
    pub rows: Vec<Row>,
    /// How often virtual time was wound back: without and with success.
    pub epoch_advances: [u64; 2],
    /// Ratios over time.
    pub ratios: Ratios,
    /// What the level's seats were when they were last divided.
    pub seats: Option<Seats>,
}

/// Utilization of the level, over time.
#[derive(Clone, Debug)]
pub struct Ratios {
    /// Waiting requests to places in queues.
    pub waiting: TimingRatio,
    /// Executing requests to seats there are.
    pub executing: TimingRatio,
    /// Seats in use to seats there are.
    pub seats: TimingRatio,
    /// Seats wanted to seats there are.
    pub demand: TimingRatio,
}

/// What is counted of one schema's requests in a level.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the schema.
    pub flow_schema: String,
    /// Requests that started.
    pub dispatched: u64,
    /// Requests that run.
    pub executing: u64,
    /// The seats that these and lingering ones have.
    pub executing_seats: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The seats that these will occupy.
    pub waiting_seats: u64,
    /// Requests that did not start.
    pub rejected: [(Reason, u64); 3],
    /// How often one was next and did not fit.
    pub no_accommodation: u64,
    /// Of the queue that each joined.
    pub queue_lengths: Histogram,
    /// How long those waited that were turned away at once: not at all.
    pub waits_of_rejected: Histogram,
    /// How long the others waited, those who gave up too: so it is upstream.
    pub waits: Histogram,
    /// How long requests ran.
    pub executions: Histogram,
    /// How long watches took to be initialized.
    pub watch_initializations: Histogram,
    /// How many watches each write was estimated to concern.
    pub watch_counts: Histogram,
    /// How many seats each request was estimated to need.
    pub estimated_seats: Histogram,
}

impl Tally {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            rows: Vec::new(),
            epoch_advances: [0; 2],
            ratios: Ratios {
                waiting: TimingRatio::new(REQUEST_UTILIZATION, now, 1),
                executing: TimingRatio::new(REQUEST_UTILIZATION, now, 1),
                seats: TimingRatio::new(SEAT_UTILIZATION, now, 1),
                demand: TimingRatio::new(DEMAND, now, 1),
            },
            seats: None,
        }
    }

    /// The index of a schema's row.
    pub(super) fn row_of(&mut self, flow_schema: &str) -> usize {
        let known = self
            .rows
            .iter()
            .position(|row| row.flow_schema == flow_schema);
        known.unwrap_or_else(|| {
            self.rows.push(Row::new(flow_schema));
            self.rows.len() - 1
        })
    }

    #[expect(clippy::indexing_slicing, reason = "rows are only ever added")]
    pub(super) fn row(&mut self, index: usize) -> &mut Row {
        &mut self.rows[index]
    }

    /// The name of a row.
    pub(super) fn flow_schema(&self, index: usize) -> &str {
        self.rows.get(index).map_or("", |row| &row.flow_schema)
    }

    pub(super) fn advanced(&mut self, epoch: EpochAdvance) {
        let [failures, successes] = &mut self.epoch_advances;
        *if epoch.success { successes } else { failures } += 1;
    }

    /// The level's seats have been divided anew.
    pub(super) fn divided(&mut self, now: Instant, seats: &Seats, denominator: u32) {
        let places = match seats.spec.queuing {
            Queuing::Queue {
                dealer,
                queue_length_limit,
            } => dealer.deck_size().saturating_mul(queue_length_limit).max(1),
            Queuing::Exempt | Queuing::Reject => 1,
        };
        let Ratios {
            waiting,
            executing,
            seats: in_use,
            demand,
        } = &mut self.ratios;
        waiting.set_denominator(now, u64::try_from(places).unwrap_or(u64::MAX));
        for ratio in [executing, in_use, demand] {
            ratio.set_denominator(now, u64::from(denominator));
        }
        self.seats = Some(seats.clone());
    }

    /// From `now` on this is there.
    pub(super) fn loaded(&mut self, now: Instant, load: Load) {
        let ratios = &mut self.ratios;
        ratios.waiting.set(now, count(load.requests_waiting));
        ratios.executing.set(now, count(load.requests_executing));
        ratios.seats.set(now, load.seats_in_use);
        ratios.demand.set(now, load.seat_demand);
    }
}

impl Row {
    fn new(flow_schema: &str) -> Self {
        Self {
            flow_schema: flow_schema.to_owned(),
            dispatched: 0,
            executing: 0,
            executing_seats: 0,
            waiting: 0,
            waiting_seats: 0,
            rejected: [
                (Reason::ConcurrencyLimit, 0),
                (Reason::QueueFull, 0),
                (Reason::TimeOut, 0),
            ],
            no_accommodation: 0,
            queue_lengths: Histogram::new(QUEUE_LENGTHS),
            waits_of_rejected: Histogram::new(SECONDS),
            waits: Histogram::new(SECONDS),
            executions: Histogram::new(SECONDS),
            watch_initializations: Histogram::new(SECONDS),
            watch_counts: Histogram::new(WATCH_COUNTS),
            estimated_seats: Histogram::new(SEATS),
        }
    }

    pub(super) fn reject(&mut self, why: Reason) {
        for (reason, times) in &mut self.rejected {
            *times += u64::from(*reason == why);
        }
    }

    pub(super) fn executed(&mut self, is_watch: bool, time: Duration) {
        self.executing -= 1;
        let times = if is_watch {
            &mut self.watch_initializations
        } else {
            &mut self.executions
        };
        times.observe(time.as_secs_f64());
    }
}

/// How many there are of something in memory.
fn count(requests: usize) -> u64 {
    u64::try_from(requests).unwrap_or(u64::MAX)
}
