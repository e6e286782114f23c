//! The simulation: lets the requests of a log arrive, one after the other, and everything happen
//! that happens between them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use slab::Slab;

use super::agenda::recorded::{RecordedAgenda, RecordedStep};
use super::agenda::sim_time::SimTime;
use super::agenda::workers::Workers;
use super::agenda::{Agenda, Turn};
use super::limits::level::Started;
use super::limits::limiter::{Epoch, Limiter};
use super::limits::rates::SimRates;
use super::limits::retries::Holds;
use super::model::{ReplayModel, ReplayedPolicies};
use super::requests::{LingeringSeats, OpenWatch, Planned, SimRequest};
use super::service::{RecordedServiceTimes, SharedProcessor};
use super::statistics::groups::{Groups, Outcome};
use super::statistics::series::{LevelEvent, Series};
use crate::replay::clients::{Client, ClientTable};
use crate::replay::logged::{LogItem, RecordedAdjustment, RecordedOrder};
use weir_flowcontrol::concurrency::BORROWING_ADJUSTMENT_PERIOD;

/// The adjustments of seats during which nothing else happens, before the time until something
/// does is skipped: an hour. The demand is then forgotten.
const MAX_IDLE_ADJUSTMENTS: u32 = 360;

const ADJUSTMENT_PERIOD_NS: u64 = BORROWING_ADJUSTMENT_PERIOD.as_secs() * 1_000_000_000;

/// A recorded adjustment of seats is missing, if it is later than this.
const MAX_ADJUSTMENT_DELAY_NS: u64 = ADJUSTMENT_PERIOD_NS / 2;

/// The simulation goes on for so long after the last arrival, in nanoseconds. Requests that are
/// still there then are unfinished.
const LONGEST_AFTERMATH_NS: u64 = 3_600_000_000_000;

/// The longest log, in nanoseconds: a century. What is later happens then.
const LONGEST_LOG_NS: u64 = 3_155_760_000_000_000_000;

/// Replays a log under one configuration.
#[derive(Debug)]
pub(crate) struct Simulation {
    pub(super) name: String,
    pub(super) model: ReplayModel,
    pub(super) request_timeout: Duration,
    pub(super) epoch: Epoch,
    /// Whether something has arrived: `epoch.first_us` is then known.
    pub(super) has_begun: bool,
    pub(super) now: SimTime,
    pub(super) agenda: Agenda<Planned>,
    pub(super) recorded: RecordedAgenda<Planned>,
    pub(super) next_adjustment: SimTime,
    pub(super) last_adjustment: SimTime,
    /// Whether the log says when seats were adjusted.
    pub(super) has_adjustments: bool,
    /// The recorded adjustment that comes next.
    pub(super) recorded_adjustment: Option<SimTime>,
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
    pub(crate) fn new(
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
            recorded: RecordedAgenda::new(model.repeats_the_record()),
            next_adjustment: SimTime(0), // the controller adjusts when it starts
            last_adjustment: SimTime(0),
            has_adjustments: false,
            recorded_adjustment: None,
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
        simulation.record_all_levels();
        simulation
    }

    /// Lets the next item of a log happen. One that is out of order happens now.
    pub(crate) fn offer(&mut self, item: LogItem) {
        let order = match &item {
            LogItem::Request(request) => request.order(),
            LogItem::StreamEnd { .. } => None,
        };
        for (at, planned) in self.recorded.follow(order) {
            self.agenda.plan(at, Turn::Release, planned);
        }
        let order = order.filter(|order| self.recorded.follows(order));
        let adjustment = order.and_then(|order| order.adjustment);
        if !self.has_begun {
            self.begin(item.at_us(), adjustment);
        } else if let Some(adjustment) = adjustment {
            self.expect_adjustment(adjustment);
        }
        let step = order.map(|order| RecordedStep {
            number: order.arrival,
            at: self.recorded_time(order),
        });
        let at = step.map_or_else(|| self.log_time(item.at_us()), |step| step.at);
        let at = at.plus(self.paused_ns);
        self.run_until(at, step.map(|step| step.number));
        self.now = self.now.max(at);
        self.wait_for_workers();
        match item {
            LogItem::StreamEnd { stream, .. } => self.end_watch(stream),
            LogItem::Request(request) => {
                self.recorded.begin_step(step);
                self.arrive_first(request);
                self.recorded.end_step();
            }
        }
    }

    /// Pauses the log while too many requests wait for their workers: all that follows is later by
    /// that time.
    fn wait_for_workers(&mut self) {
        let since = self.now;
        while self.workers.is_full() {
            let Some((at, _)) = self.next_end() else {
                return; // unreachable: a worker that others wait for is busy
            };
            self.run_until(at, None);
        }
        self.paused_ns = self.paused_ns.saturating_add(self.now.since(since));
    }

    /// Begins with the first arrival, or with the adjustment of seats before it: the demand of a
    /// period counts from its begin.
    fn begin(&mut self, first_us: i64, adjustment: Option<RecordedAdjustment>) {
        self.has_begun = true;
        self.epoch.first_us = first_us;
        if let Some(adjustment) = adjustment {
            let earliest = first_us.saturating_sub_unsigned(2 * ADJUSTMENT_PERIOD_NS / 1000);
            let at_us = adjustment.at_ns.div_euclid(1000);
            self.epoch.first_us = at_us.clamp(earliest, first_us);
            self.has_adjustments = true;
            self.next_adjustment = self.log_time_ns(adjustment.at_ns);
        }
    }

    /// Plans a recorded adjustment of seats, and those since the last one after which nothing
    /// arrived.
    fn expect_adjustment(&mut self, adjustment: RecordedAdjustment) {
        let at = self.log_time_ns(adjustment.at_ns);
        let since = at.since(self.last_adjustment);
        if since < ADJUSTMENT_PERIOD_NS / 4 {
            return; // of another weir's record
        }
        let missing = ((since + ADJUSTMENT_PERIOD_NS / 2) / ADJUSTMENT_PERIOD_NS).max(1) - 1;
        self.has_adjustments = true;
        self.next_adjustment = match missing {
            0 => at.plus(MAX_ADJUSTMENT_DELAY_NS),
            _ => SimTime(at.0.saturating_sub(missing.saturating_mul(ADJUSTMENT_PERIOD_NS))),
        };
        self.recorded_adjustment = Some(at);
        let number = adjustment.number;
        self.recorded
            .plan(RecordedStep { number, at }, Planned::Adjustment);
    }

    /// A time of the log, in microseconds.
    pub(super) fn log_time(&self, at_us: i64) -> SimTime {
        let since = at_us.saturating_sub(self.epoch.first_us);
        let since = u64::try_from(since).unwrap_or_default();
        SimTime(since.saturating_mul(1000).min(LONGEST_LOG_NS))
    }

    /// The time of a recorded arrival.
    pub(super) fn recorded_time(&self, order: &RecordedOrder) -> SimTime {
        self.log_time_ns(order.at_ns)
    }

    /// A time of the log, in nanoseconds.
    fn log_time_ns(&self, at_ns: i64) -> SimTime {
        let first_ns = self.epoch.first_us.saturating_mul(1000);
        let since = at_ns.saturating_sub(first_ns);
        SimTime(u64::try_from(since).unwrap_or_default().min(LONGEST_LOG_NS))
    }

    /// The time by which a level decides: that of the recorded step, or now.
    pub(super) fn decision_time(&self) -> Instant {
        let step = self.recorded.current();
        self.epoch.instant(step.map_or(self.now, |step| step.at))
    }

    /// Lets everything end that is still there.
    pub(super) fn run_to_the_end(&mut self) {
        let mut last = self.now.plus(LONGEST_AFTERMATH_NS);
        if self.has_adjustments {
            // No request comes that could have the next one.
            self.has_adjustments = false;
            self.next_adjustment = self.last_adjustment.plus(ADJUSTMENT_PERIOD_NS);
        }
        loop {
            let next = self.next_end().map(|(at, _)| at);
            let next = [next, self.recorded.next()].into_iter().flatten().min();
            let pending = self.workers.pending();
            let is_over = self.absent == 0 && self.requests.is_empty() && pending == 0;
            let Some(at) = next.filter(|&at| at <= last && !is_over) else {
                break;
            };
            self.run_until(at, None);
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

    /// Lets everything happen that is due before an arrival at `until`, which may have a number in
    /// the recorded order.
    pub(super) fn run_until(&mut self, until: SimTime, number: Option<u64>) {
        loop {
            let next = self.next_end().unwrap_or((SimTime(u64::MAX), Turn::Arrive));
            let adjustment = (self.next_adjustment, Turn::Adjust);
            let (first, end) = (next.min(adjustment), (until, Turn::Arrive));
            let recorded = self.recorded.next_before(number, until);
            if let Some(at) = recorded
                && (first > end || (at, Turn::Release) <= first)
            {
                self.take_recorded_step();
                continue;
            }
            if first > end {
                return;
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

    fn take_recorded_step(&mut self) {
        self.idle_adjustments = 0;
        if let Some((step, planned)) = self.recorded.take() {
            self.now = self.now.max(step.at);
            self.act(planned);
        }
        self.recorded.end_step();
    }

    /// Adjusts the seats of levels as it is due. `next` is when something else happens.
    pub(super) fn adjust(&mut self, next: SimTime) {
        self.now = self.now.max(self.next_adjustment);
        self.adjust_seats(self.now);
        self.idle_adjustments += 1;
        let due = self.due_after(self.now);
        self.next_adjustment = due;
        if self.idle_adjustments >= MAX_IDLE_ADJUSTMENTS {
            let skipped = next.since(due) / ADJUSTMENT_PERIOD_NS;
            self.next_adjustment = due.plus(skipped.saturating_mul(ADJUSTMENT_PERIOD_NS));
        }
    }

    /// When seats are adjusted after an adjustment at `at`, if the log does not say it before.
    fn due_after(&self, at: SimTime) -> SimTime {
        let due = at.plus(ADJUSTMENT_PERIOD_NS);
        let later = due.plus(MAX_ADJUSTMENT_DELAY_NS);
        let comes_next = self.recorded_adjustment.is_none_or(|next| next <= later);
        match self.has_adjustments && comes_next {
            true => later,
            false => due,
        }
    }

    fn adjust_seats(&mut self, at: SimTime) {
        self.last_adjustment = at;
        self.limiter.adjust(self.epoch.instant(at));
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
                let now = self.decision_time();
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
            Planned::Adjustment => {
                let at = self.recorded.current().map_or(self.now, |step| step.at);
                // What follows from a change of seats has no number.
                self.recorded
                    .begin_step(Some(RecordedStep { number: 0, at }));
                self.recorded_adjustment = None;
                self.adjust_seats(at);
                self.next_adjustment = self.due_after(at);
            }
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
