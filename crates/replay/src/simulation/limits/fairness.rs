//! API Priority and Fairness in virtual time: the matcher, the estimator, the levels and the
//! allocation of seats of the proxy. Pure.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::level::SimLevel;
use super::list_sizes::ListSizes;
use weir_flowcontrol::concurrency::demand::DemandPeriod;
use weir_flowcontrol::concurrency::{ConcurrencyLimits, LevelSeats};
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_flowcontrol::work_estimator::watch_tracker::{Registration, WatchTracker};
use weir_flowcontrol::work_estimator::{EstimateContext, ObjectStats, estimate};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::numeric::saturating_u32;
use weir_kubernetes::request_info::RequestInfo;

/// The most flows that a report distinguishes.
const MAX_FLOWS: usize = 50_000;

/// No requests, for no time.
const NO_DEMAND: DemandPeriod = DemandPeriod {
    seconds: 0.0,
    min: 0.0,
    max: 0.0,
    moments: None,
};

/// The levels and what they are configured by.
#[derive(Debug)]
pub(crate) struct SimFairness {
    matcher: Matcher,
    concurrency: ConcurrencyLimits,
    /// By the index of the level in the matcher.
    levels: Vec<SimLevel>,
    watches: RefCell<WatchTracker>,
    list_sizes: ListSizes,
    flows: Flows,
}

/// A request whose level is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Classified {
    /// The index of the level.
    pub level: usize,
    /// The index of the schema.
    pub schema: usize,
    /// The number of the flow in the report.
    pub flow: u32,
    pub flow_hash: u64,
    pub work: WorkEstimate,
}

/// What a weir has estimated a request at, which knew how many objects and watches there are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordedEstimate {
    /// The most seats of both phases.
    pub seats: Option<u32>,
    /// All of it.
    pub work: Option<WorkEstimate>,
    /// The bytes of the response, if it was successful.
    pub bytes: Option<u64>,
}

/// The flows of a report.
#[derive(Debug, Default)]
struct Flows {
    numbers: HashMap<Box<[u8]>, u32, FixedState>,
    /// The schema's index and the distinguisher.
    names: Vec<(usize, Box<[u8]>)>,
    /// A reused buffer for one key.
    key: Vec<u8>,
}

struct Context<'f> {
    watches: &'f RefCell<WatchTracker>,
    list_sizes: &'f ListSizes,
}

impl SimFairness {
    pub(crate) fn new(now: Instant, objects: &[Object], server_concurrency_limit: u32) -> Self {
        let matcher = Matcher::new(objects);
        let levels = matcher.levels().iter();
        let mut fairness = Self {
            levels: levels
                .map(|level| SimLevel::new(now, level.spec.queuing))
                .collect(),
            concurrency: ConcurrencyLimits::new(server_concurrency_limit),
            matcher,
            watches: RefCell::default(),
            list_sizes: ListSizes::default(),
            flows: Flows::default(),
        };
        let specs = fairness.matcher.levels().iter();
        let specs = specs.map(|level| level.spec.clone()).collect();
        // Levels whose seats cannot be divided keep those that they have, as in the controller.
        let _ = fairness.concurrency.configure(specs, |_| NO_DEMAND);
        fairness.apply_limits(now);
        fairness
    }

    /// Moves seats between levels by their demand.
    pub(crate) fn adjust(&mut self, now: Instant) {
        let levels = self.levels.iter_mut();
        let periods: Vec<_> = levels.map(|level| level.end_demand_period(now)).collect();
        // The levels are asked in their order.
        let mut periods = periods.into_iter();
        let _ = self
            .concurrency
            .adjust(|_| periods.next().unwrap_or(NO_DEMAND));
        self.apply_limits(now);
    }

    /// Changes the seats of all levels together.
    pub(crate) fn resize(&mut self, now: Instant, server_concurrency_limit: u32) {
        // As for `configure`.
        let _ = self.concurrency.resize(server_concurrency_limit);
        self.apply_limits(now);
    }

    /// The levels that are not exempt.
    pub(crate) fn limited_levels(&self) -> u32 {
        saturating_u32(self.limited().count())
    }

    /// The seats that are occupied, and the requests that wait for some. Exempt levels do not count.
    pub(crate) fn seat_use(&self) -> (u64, usize) {
        let loads = self.limited().map(SimLevel::load);
        loads.fold((0, 0), |(in_use, waiting), load| {
            (in_use + load.seats_in_use, waiting + load.requests_waiting)
        })
    }

    fn limited(&self) -> impl Iterator<Item = &SimLevel> {
        let levels = self.levels.iter().zip(self.matcher.levels());
        let limited = levels.filter(|(_, level)| level.spec.queuing != Queuing::Exempt);
        limited.map(|(level, _)| level)
    }

    fn apply_limits(&mut self, now: Instant) {
        for (level, seats) in self.levels.iter_mut().zip(self.concurrency.levels()) {
            level.apply_limits(now, seats);
        }
    }

    /// The schema, the level, the flow and the estimate of a request.
    pub(crate) fn classify(
        &mut self,
        info: &RequestInfo<'_>,
        user: &UserInfo,
        recorded: RecordedEstimate,
    ) -> Classified {
        let digest = RequestDigest::new(info, user);
        let classification = self.matcher.classify(&digest);
        let level = classification.schema.level;
        let max_seats = self.levels.get(level).and_then(SimLevel::max_seats);
        if let Some(bytes) = recorded.bytes {
            self.list_sizes.observe(info, bytes);
        }
        let context = Context {
            watches: &self.watches,
            list_sizes: &self.list_sizes,
        };
        let mut work = estimate(info, max_seats, &context);
        let most = max_seats.filter(|&most| most > 0).unwrap_or(u32::MAX);
        if let Some(recorded) = recorded.work {
            work = WorkEstimate {
                initial_seats: recorded.initial_seats.min(most),
                final_seats: recorded.final_seats.min(most),
                ..recorded
            };
        } else if let Some(seats) = recorded.seats {
            work.initial_seats = work.initial_seats.max(seats.min(most));
        }
        let schema = classification.index;
        Classified {
            level,
            schema,
            flow: self.flows.number(schema, classification.flow_distinguisher),
            flow_hash: classification.flow_hash,
            work,
        }
    }

    pub(crate) fn level_mut(&mut self, level: usize) -> Option<&mut SimLevel> {
        self.levels.get_mut(level)
    }

    pub(crate) fn levels(&self) -> &[SimLevel] {
        &self.levels
    }

    pub(crate) fn seats(&self) -> &[LevelSeats] {
        self.concurrency.levels()
    }

    /// A watch that has been admitted counts for writes until it ends.
    pub(crate) fn register_watch(&self, info: &RequestInfo<'_>) -> Option<Registration> {
        self.watches.borrow_mut().register(info)
    }

    pub(crate) fn unregister_watch(&self, registration: Registration) {
        self.watches.borrow_mut().unregister(registration);
    }

    /// The name of a schema, and of its level.
    pub(crate) fn schema_names(&self, schema: usize) -> Option<(&str, &str)> {
        let schema = self.matcher.schemas().get(schema)?;
        let level = self.matcher.levels().get(schema.level)?;
        Some((&schema.name, &level.spec.name))
    }

    pub(crate) fn schema_count(&self) -> usize {
        self.matcher.schemas().len()
    }

    /// The schema of a flow, and its distinguisher.
    pub(crate) fn flow(&self, flow: usize) -> Option<(usize, String)> {
        let (schema, distinguisher) = self.flows.names.get(flow)?;
        let name = String::from_utf8_lossy(distinguisher).into_owned();
        Some((*schema, name))
    }
}

impl Flows {
    /// The number of a flow. Beyond the limit, that of all other flows of the schema.
    fn number(&mut self, schema: usize, distinguisher: &[u8]) -> u32 {
        if let Some(number) = self.lookup(schema, distinguisher) {
            return number;
        }
        let full = self.names.len() >= MAX_FLOWS;
        let distinguisher = if full { b"(others)" } else { distinguisher };
        if let Some(number) = self.lookup(schema, distinguisher) {
            return number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push((schema, distinguisher.into()));
        self.numbers.insert(self.key.as_slice().into(), number);
        number
    }

    fn lookup(&mut self, schema: usize, distinguisher: &[u8]) -> Option<u32> {
        self.key.clear();
        self.key.extend_from_slice(&schema.to_le_bytes());
        self.key.extend_from_slice(distinguisher);
        self.numbers.get(self.key.as_slice()).copied()
    }
}

impl EstimateContext for Context<'_> {
    /// kube-apiserver's default.
    fn consistent_reads_from_cache(&self) -> bool {
        true
    }

    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        self.list_sizes.stats(api_group, resource)
    }

    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize {
        self.watches.borrow_mut().interested_watches(write)
    }
}

/// The time for which a watch lasts whose end is not in the log: that of kube-apiserver's own
/// minimum (`--min-request-timeout`), if it does not ask for another.
pub(crate) fn watch_duration(info: &RequestInfo<'_>) -> Duration {
    const DEFAULT: Duration = Duration::from_secs(1800);
    let seconds = info.query().first("timeoutSeconds");
    let seconds = seconds.and_then(|text| str::from_utf8(&text).ok()?.parse().ok());
    seconds.map_or(DEFAULT, |seconds: u32| Duration::from_secs(seconds.into()))
}
