//! The simulation: lets the requests of a log arrive, one after the other, and everything happen
//! that happens between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use slab::Slab;

use super::agenda::SimTime;
use super::agenda::{Agenda, Turn};
use super::auto_total::SimTotal;
use super::limits::level::Started;
use super::limits::limiter::{Epoch, Limiter};
use super::limits::rates::SimRates;
use super::limits::retries::Holds;
use super::model::{ReplayModel, ReplayedPolicies};
use super::requests::{LingeringSeats, OpenWatch, Planned, SimRequest};
use super::service::{RecordedServiceTimes, SharedProcessor};
use super::statistics::groups::{Groups, Outcome};
use super::statistics::series::{LevelEvent, Series};
use super::workers::Workers;
use crate::clients::{Client, ClientTable};
use crate::logged::LogItem;
use weir_flowcontrol::concurrency::BORROWING_ADJUSTMENT_PERIOD;

/// The adjustments of seats during which nothing else happens, before the time until something
/// does is skipped: an hour. The demand is then forgotten.
const MAX_IDLE_ADJUSTMENTS: u32 = 360;

const ADJUSTMENT_PERIOD_NS: u64 = BORROWING_ADJUSTMENT_PERIOD.as_secs() * 1_000_000_000;

/// The simulation goes on for so long after the last arrival, in nanoseconds. Requests that are
/// still there then are unfinished.
const LONGEST_AFTERMATH_NS: u64 = 3_600_000_000_000;

/// The longest log, in nanoseconds: a century. What is later happens then.
const LONGEST_LOG_NS: u64 = 3_155_760_000_000_000_000;

/// Replays a log under one configuration.
#[derive(Debug)]
pub struct Simulation {
    pub(super) name: String,
    pub(super) model: ReplayModel,
    pub(super) request_timeout: Duration,
    pub(super) epoch: Epoch,
    /// Whether something has arrived: `epoch.first_us` is then known.
    pub(super) has_begun: bool,
    pub(super) now: SimTime,
    pub(super) agenda: Agenda<Planned>,
    pub(super) next_adjustment: SimTime,
    /// `None`: the total is that of the limits.
    pub(super) auto_total: Option<SimTotal>,
    /// When the record began, if the log is one.
    recorded_start_us: Option<i64>,
    /// The time to the second adjustment; of the others it is [`ADJUSTMENT_PERIOD_NS`].
    first_period_ns: u64,
    pub(super) idle_adjustments: u32,
    pub(super) table: Arc<ClientTable>,
    pub(super) clients: Vec<Arc<Client>>,
    pub(super) requests: Slab<SimRequest>,
    pub(super) lingering: Slab<LingeringSeats>,
    pub(super) serial: u64,
    pub(super) limiter: Limiter,
    pub(super) rates: SimRates,
    pub(super) holds: Holds,
    pub(super) service: RecordedServiceTimes,
    pub(super) capacity: Option<SharedProcessor>,
    pub(super) watches: HashMap<u64, OpenWatch, FixedState>,
    pub(super) groups: Groups,
    pub(super) series: Series,
    pub(super) started: Vec<Started>,
    /// Of closed-loop clients.
    pub(super) workers: Workers,
    /// For so long the log was not read on, because too many requests waited for their workers.
    pub(super) paused_ns: u64,
    /// Requests that will come (again): they wait for a rate, or their clients wait.
    pub(super) absent: u64,
    /// Requests that weir would answer with an error before all limits.
    pub(super) malformed: u64,
    pub(super) left_out_retries: u64,
}

impl Simulation {
    /// A simulation that begins with the first arrival. `base` is any moment.
    #[must_use]
    pub fn new(
        policies: &ReplayedPolicies,
        model: ReplayModel,
        table: &Arc<ClientTable>,
        base: Instant,
    ) -> Self {
        let limiter = Limiter::new(base, &policies.limits.concurrency);
        let mut simulation = Self {
            name: policies.name.clone(),
            model,
            request_timeout: policies.limits.request_timeout,
            epoch: Epoch { base, first_us: 0 },
            has_begun: false,
            now: SimTime(0),
            agenda: Agenda::default(),
            recorded_start_us: None,
            first_period_ns: ADJUSTMENT_PERIOD_NS,
            next_adjustment: SimTime(0), // the controller adjusts when it starts
            auto_total: None,
            idle_adjustments: 0,
            table: Arc::clone(table),
            clients: Vec::new(),
            requests: Slab::new(),
            lingering: Slab::new(),
            serial: 0,
            series: Series::new(limiter.level_count() + 1),
            limiter,
            rates: SimRates::new(&policies.limits.rates),
            holds: Holds::new(policies.rejection_hold),
            service: RecordedServiceTimes::default(),
            capacity: model.capacity.map(SharedProcessor::new),
            watches: HashMap::default(),
            groups: Groups::default(),
            started: Vec::new(),
            workers: Workers::default(),
            paused_ns: 0,
            absent: 0,
            malformed: 0,
            left_out_retries: 0,
        };
        if let (Some(policy), Some(_)) = (policies.auto_total, model.capacity) {
            simulation.begin_auto_total(policy);
        }
        simulation.record_all_levels();
        simulation
    }

    /// Lets the next item of a log happen. One that is out of order happens now.
    pub fn offer(&mut self, item: LogItem) {
        if let LogItem::Start { at_us } = item {
            self.recorded_start_us = self.recorded_start_us.or(Some(at_us));
            return;
        }
        if !self.has_begun {
            self.has_begun = true;
            self.epoch.first_us = item.at_us();
            self.first_period_ns = self.time_to_adjustment(item.at_us());
        }
        let at = self.log_time(item.at_us()).plus(self.paused_ns);
        self.run_until(at);
        self.now = self.now.max(at);
        self.wait_for_workers();
        match item {
            LogItem::StreamEnd { stream, .. } => self.end_watch(stream),
            LogItem::Request(request) => self.arrive_first(request),
            LogItem::Start { .. } => {}
        }
    }

    /// Nanoseconds from the first item of a log to the next adjustment by the weir that was recorded:
    /// it adjusts from its start on, which is that of its record.
    fn time_to_adjustment(&self, first_us: i64) -> u64 {
        let since = self
            .recorded_start_us
            .map(|start| first_us.saturating_sub(start));
        let since = since.and_then(|since| u64::try_from(since).ok());
        let into_period = since.unwrap_or_default().saturating_mul(1000) % ADJUSTMENT_PERIOD_NS;
        ADJUSTMENT_PERIOD_NS - into_period
    }

    /// Pauses the log while too many requests wait for their workers: all that follows is later by
    /// that time.
    fn wait_for_workers(&mut self) {
        let since = self.now;
        while self.workers.is_full() {
            let Some((at, _)) = self.next_end() else {
                return; // unreachable: a worker that others wait for is busy
            };
            self.run_until(at);
        }
        self.paused_ns = self.paused_ns.saturating_add(self.now.since(since));
    }

    /// A time of the log, in microseconds.
    pub(super) fn log_time(&self, at_us: i64) -> SimTime {
        let since = at_us.saturating_sub(self.epoch.first_us);
        let since = u64::try_from(since).unwrap_or_default();
        SimTime(since.saturating_mul(1000).min(LONGEST_LOG_NS))
    }

    /// Lets everything end that is still there.
    pub(super) fn run_to_the_end(&mut self) {
        let mut last = self.now.plus(LONGEST_AFTERMATH_NS);
        loop {
            let next = self.next_end().map(|(at, _)| at);
            let pending = self.workers.pending();
            let is_over = self.absent == 0 && self.requests.is_empty() && pending == 0;
            let Some(at) = next.filter(|&at| at <= last && !is_over) else {
                break;
            };
            self.run_until(at);
            if self.workers.pending() < pending {
                last = self.now.plus(LONGEST_AFTERMATH_NS); // a request was sent
            }
        }
        for request in self.workers.drain() {
            self.send_unfinished(request);
        }
        let unfinished: Vec<SimRequest> = self.requests.drain().collect();
        for request in unfinished {
            let dispatched = request.dispatched;
            let settled = self.settled(&request, Outcome::Unfinished, dispatched, 0);
            self.groups.settle(&request.groups, &settled);
        }
    }

    /// When the next request ends, or something else happens but an adjustment.
    pub(super) fn next_end(&self) -> Option<(SimTime, Turn)> {
        let capacity = self.capacity.as_ref().and_then(SharedProcessor::next_end);
        let capacity = capacity.map(|at| (at, Turn::Release));
        [capacity, self.agenda.next()].into_iter().flatten().min()
    }

    /// Lets everything happen that is due before an arrival at `until`.
    pub(super) fn run_until(&mut self, until: SimTime) {
        loop {
            let next = self.next_end().unwrap_or((SimTime(u64::MAX), Turn::Arrive));
            let adjustment = (self.next_adjustment, Turn::Adjust);
            let probe = (self.next_probe(), Turn::Adjust);
            if next.min(adjustment).min(probe) > (until, Turn::Arrive) {
                return;
            }
            if probe < next && probe < adjustment {
                self.probe(next.min(adjustment).0.min(until));
                continue;
            }
            if adjustment < next {
                self.adjust(next.0.min(until));
                continue;
            }
            self.idle_adjustments = 0;
            self.now = self.now.max(next.0);
            let ended = self.capacity.as_mut().and_then(|capacity| {
                let is_next = capacity.next_end() == Some(next.0) && next.1 == Turn::Release;
                is_next.then(|| capacity.take_end(next.0)).flatten()
            });
            if let Some(request) = ended {
                self.end(request);
            } else if let Some((_, planned)) = self.agenda.take() {
                self.act(planned);
            }
        }
    }

    /// Adjusts the seats of levels as it is due. `next` is when something else happens.
    pub(super) fn adjust(&mut self, next: SimTime) {
        self.now = self.now.max(self.next_adjustment);
        self.adjust_seats();
        self.idle_adjustments += 1;
        let period = std::mem::replace(&mut self.first_period_ns, ADJUSTMENT_PERIOD_NS);
        let due = self.now.plus(period);
        self.next_adjustment = due;
        if self.idle_adjustments >= MAX_IDLE_ADJUSTMENTS {
            let skipped = next.since(due) / ADJUSTMENT_PERIOD_NS;
            self.next_adjustment = due.plus(skipped.saturating_mul(ADJUSTMENT_PERIOD_NS));
        }
    }

    fn adjust_seats(&mut self) {
        self.limiter.adjust(self.epoch.instant(self.now));
        self.dispatch_all_started();
    }

    pub(super) fn dispatch_all_started(&mut self) {
        for level in 0..self.limiter.level_count() {
            self.dispatch_started(level);
        }
        self.record_all_levels();
    }

    pub(super) fn act(&mut self, planned: Planned) {
        match planned {
            Planned::End { request, serial } => {
                if let Some(request) = self.present(request, serial) {
                    self.end(request);
                }
            }
            Planned::TimeOut { request, serial } => {
                if let Some(request) = self.present(request, serial) {
                    self.leave_queue(request, false);
                }
            }
            Planned::Cancel { request, serial } => {
                if let Some(request) = self.present(request, serial) {
                    self.leave_queue(request, true);
                }
            }
            Planned::LingerEnd { lingering } => {
                let Some(LingeringSeats { level, key }) = self.lingering.try_remove(lingering)
                else {
                    return; // unreachable: they linger once
                };
                let now = self.epoch.instant(self.now);
                if let Limiter::Fairness(fairness) = &mut self.limiter
                    && let Some(at) = fairness.level_mut(level)
                {
                    let _ = at.leave(now, key); // seats linger once
                }
                self.dispatch_started(level);
                self.record_level(level);
            }
            Planned::AfterRates(waited) => {
                self.absent -= 1;
                let (attempt, charged) = *waited;
                self.take_client_slots(attempt, charged);
            }
            Planned::Retry(repeated) => {
                self.absent -= 1;
                self.repeat(*repeated);
            }
            Planned::Send { worker } => {
                if let Some(request) = self.workers.take(self.now, worker) {
                    self.send(request, Some(worker));
                }
            }
            Planned::WatchEnd { stream } => self.end_watch(stream),
            Planned::HoldEnd { client, hold } => self.holds.release(client, hold),
        }
    }

    /// A request by its number, if it has not ended.
    pub(super) fn present(&self, request: u32, serial: u64) -> Option<usize> {
        let request = usize::try_from(request).ok()?;
        let there = self.requests.get(request)?;
        (there.serial == serial).then_some(request)
    }

    pub(super) fn count(&mut self, level: u32, event: LevelEvent) {
        let level = usize::try_from(level).unwrap_or(usize::MAX);
        self.series.count(self.now, level, event);
    }

    pub(super) fn record_level(&mut self, level: usize) {
        let now = self.limiter.level_now(level);
        self.series.set(self.now, level, now);
    }

    pub(super) fn record_all_levels(&mut self) {
        for level in 0..self.limiter.level_count() {
            self.record_level(level);
        }
    }
}
