//! API Priority and Fairness as the rest of weir sees it: a request is admitted or rejected.
//!
//! One controller serves all cores. A request reads an immutable snapshot of the configuration,
//! is classified and estimated by it, and then takes one lock, that of its priority level. What
//! changes the configuration works beside that and swaps the snapshot in the end; a request keeps
//! the one it was classified by, and levels live on from one to the next. This is `configController`
//! of Kubernetes 1.36 (`apf_controller.go`, `apf_filter.go`).
//!
//! What it does not do: read files, answer requests, or decide which requests pass it by. Those
//! that run long do, except for watches.

mod configuration;
mod dry_run;
pub(in crate::flowcontrol) mod dump;
mod object_counting;
mod object_stats;
mod outcome;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio::time::interval;
use tokio::time::timeout_at;
use tracing::debug;

use self::configuration::Configuration;
use self::dry_run::SimulatedRequest;
use self::snapshot::ConfigSnapshot;
use crate::api::UserInfo;
use crate::api::flowcontrol::Object;
use crate::clock::Clock;
use crate::flowcontrol::collector;
use crate::flowcontrol::concurrency::BORROWING_ADJUSTMENT_PERIOD;
use crate::flowcontrol::controller::object_counting::ObjectCounting;
use crate::flowcontrol::controller::outcome::DryRun;
use crate::flowcontrol::controller::outcome::WatchGuard;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;
use crate::flowcontrol::level::ArrivalError;
use crate::flowcontrol::level::ArrivalOutcome;
use crate::flowcontrol::level::ArrivingRequest;
use crate::flowcontrol::level::LevelSummary;
use crate::flowcontrol::level::PriorityLevel;
use crate::flowcontrol::level::SchemaRoute;
use crate::flowcontrol::level::SeatPermit;
use crate::flowcontrol::matching::Matcher;
use crate::flowcontrol::matching::RequestDigest;
use crate::flowcontrol::metrics::in_flight::InFlightMetrics;
use crate::flowcontrol::metrics::in_flight::PEAK_UPDATE_PERIOD;
use crate::flowcontrol::work_estimator::EstimateContext;
use crate::flowcontrol::work_estimator::ObjectStats;
use crate::flowcontrol::work_estimator::estimate;
use crate::flowcontrol::work_estimator::list_samples::ListSampleQueue;
use crate::flowcontrol::work_estimator::object_counts::ObjectCounts;
use crate::flowcontrol::work_estimator::watch_tracker::WatchTracker;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

pub use crate::flowcontrol::controller::outcome::AdmissionPermit;
pub use crate::flowcontrol::controller::outcome::AdmissionRejection;
pub use crate::flowcontrol::controller::outcome::FlowControlDecision;

/// No request waits longer, whatever its deadline (Kubernetes 1.36,
/// `server/filters/priority-and-fairness.go`).
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(60);

/// A request may spend this part of its time in a queue: a quarter (in the same place).
const QUEUE_WAIT_DIVISOR: u32 = 4;

/// What the controller is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// The seats of all levels together: `--max-requests-inflight` and
    /// `--max-mutating-requests-inflight` added up.
    pub server_concurrency_limit: u32,
    /// How long a request takes at most that does not say, and how long a watch is taken to:
    /// `--request-timeout`.
    pub request_timeout: Duration,
    /// Whether decisions count.
    pub enforcement: Enforcement,
    /// Whether the API server answers consistent lists from its memory, as 1.31 and later do.
    pub consistent_reads_from_cache: bool,
}

/// When a request is asked about.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// Now.
    pub now: Instant,
    /// When it came: what it may wait is counted from there.
    pub arrived: Instant,
    /// When it is over, if it says so.
    pub deadline: Option<Instant>,
}

impl RequestTimes {
    /// Of a request that came just now and has no deadline.
    #[must_use]
    pub const fn at(now: Instant) -> Self {
        Self {
            now,
            arrived: now,
            deadline: None,
        }
    }
}

/// What becomes of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Requests run at once; what would have become of them is only counted.
    DryRun,
    /// Requests wait and are refused.
    Enforce,
}

/// All priority levels, and the way to them.
pub struct Controller {
    config: ControllerConfig,
    snapshot: ArcSwap<ConfigSnapshot>,
    /// No request takes it. Held while the configuration changes and seats are divided.
    configuration: Mutex<Configuration>,
    /// Told when a level that was to go has drained.
    drained: Arc<Notify>,
    in_flight: Arc<InFlightMetrics>,
    watch_tracker: Arc<Mutex<WatchTracker>>,
    object_counts: Mutex<ObjectCounts>,
    list_samples: Arc<ListSampleQueue>,
    object_counting: ObjectCounting,
    /// What is said of refusals on paper.
    dry_run_log: Arc<LogLimiter>,
    /// All seats, as a metric.
    seats_gauge: IntGauge,
}

/// A request that has been led to its level.
struct RoutedRequest {
    arrival: ArrivalOutcome,
    work: WorkEstimate,
}

/// Answers what the estimate asks, and remembers what it said.
struct ControllerContext<'c> {
    controller: &'c Controller,
    now: Instant,
    watches: Cell<Option<u32>>,
}

impl Controller {
    /// A controller that goes by these objects and shows itself in `registry`.
    #[must_use]
    pub fn new<'o>(
        config: ControllerConfig,
        objects: impl IntoIterator<Item = &'o Object>,
        registry: &Registry,
    ) -> Arc<Self> {
        let now = Clock.now();
        let in_flight = InFlightMetrics::new(registry);
        let drained = Arc::new(Notify::new());
        let seats = config.server_concurrency_limit;
        let shown = registry.gauge(
            "weir_server_concurrency_limit_seats",
            "Seats of all levels together, where priority and fairness is what limits.",
        );
        shown.set(seats.into());
        let matcher = compile_matcher(objects);
        let (configuration, snapshot) =
            Configuration::new(now, seats, matcher, &in_flight, &drained);
        let controller = Arc::new(Self {
            config,
            snapshot: ArcSwap::from_pointee(snapshot),
            configuration: Mutex::new(configuration),
            drained,
            in_flight,
            watch_tracker: Arc::default(),
            object_counts: Mutex::default(),
            list_samples: Arc::default(),
            object_counting: ObjectCounting::new(registry),
            dry_run_log: Arc::default(),
            seats_gauge: shown,
        });
        collector::register(&controller, registry);
        controller
    }

    /// Whether its decisions are only counted.
    #[must_use]
    pub const fn is_dry_run(&self) -> bool {
        matches!(self.config.enforcement, Enforcement::DryRun)
    }

    /// Admits a request, perhaps after a while in a queue; a quarter of the time to its deadline at most.
    ///
    /// # Errors
    /// It is to be answered 429. Never in a dry run.
    ///
    /// # Cancel safety
    /// A request that waits leaves the queue, and is counted as timed out: so it is upstream.
    pub async fn admit(
        &self,
        info: &RequestInfo<'_>,
        user: &UserInfo,
        times: RequestTimes,
    ) -> Result<AdmissionPermit, AdmissionRejection> {
        let now = times.now;
        let until = self.queue_deadline(times);
        let RoutedRequest {
            arrival: arrived,
            work,
        } = match (self.route_request(now, info, user), self.config.enforcement) {
            (Ok(led), _) => led,
            (Err(rejected), Enforcement::Enforce) => return Err(rejected),
            (Err(rejected), Enforcement::DryRun) => {
                let work = rejected.work;
                dry_run::log_rejection(&self.dry_run_log, now, &rejected.route, rejected.reason);
                let on_paper = DryRun::Rejected(rejected.reason);
                let place = SeatPermit::empty(rejected.route);
                return Ok(self.build_admitted(info, place, on_paper, work, Duration::ZERO));
            }
        };
        let (place, on_paper, queue_wait) = match (arrived, self.config.enforcement) {
            (ArrivalOutcome::Executing(place), _) => (place, DryRun::Admitted, Duration::ZERO),
            (ArrivalOutcome::Queued(place), Enforcement::Enforce) => {
                let turn = wait_for_dispatch_until(place, until).await;
                let waited = Clock.now().saturating_duration_since(now);
                let place = turn.map_err(|(route, retry_after)| AdmissionRejection {
                    route,
                    reason: RejectReason::TimeOut,
                    retry_after,
                    work,
                    queue_wait: waited,
                })?;
                (place, DryRun::Admitted, waited)
            }
            (ArrivalOutcome::Queued(place), Enforcement::DryRun) => {
                let none = SeatPermit::empty(Arc::clone(place.route()));
                let played = SimulatedRequest::start(place, now, until, &self.dry_run_log);
                (none, DryRun::Queued(played), Duration::ZERO)
            }
        };
        Ok(self.build_admitted(info, place, on_paper, work, queue_wait))
    }

    /// Goes by these objects from now on. Whoever waits goes on waiting where he is.
    pub fn configure<'o>(&self, now: Instant, objects: impl IntoIterator<Item = &'o Object>) {
        let matcher = compile_matcher(objects);
        lock(&self.configuration).set_matcher(now, matcher, &self.snapshot);
    }

    /// Divides so many seats among the levels from now on.
    pub fn set_server_concurrency_limit(&self, now: Instant, seats: u32) {
        lock(&self.configuration).set_server_concurrency_limit(now, seats, &self.snapshot);
        self.seats_gauge.set(seats.into());
    }

    /// Moves seats between levels by their demand; to be called every
    /// [`BORROWING_ADJUSTMENT_PERIOD`].
    pub fn adjust(&self, now: Instant) {
        lock(&self.configuration).adjust(now);
    }

    /// Publishes the most requests in flight since the last call; to be called every second.
    pub fn publish_peaks(&self) {
        self.in_flight.publish_peaks();
    }

    /// Does from time to time what has to be done from time to time. Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Nothing is left half done.
    pub async fn run(&self) {
        tokio::join!(self.run_maintenance(), self.process_list_samples());
    }

    async fn run_maintenance(&self) {
        let mut adjustments = interval(BORROWING_ADJUSTMENT_PERIOD);
        adjustments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut peaks = interval(PEAK_UPDATE_PERIOD);
        loop {
            tokio::select! {
                _ = adjustments.tick() => self.adjust(Clock.now()),
                _ = peaks.tick() => self.publish_peaks(),
                () = self.drained.notified() => {
                    lock(&self.configuration).digest(Clock.now(), &self.snapshot);
                }
            }
        }
    }

    /// Each level that is in use in a few numbers, by name.
    #[must_use]
    pub fn summaries(&self) -> Vec<LevelSummary> {
        let levels = self.levels().into_iter();
        levels.map(|level| level.summary()).collect()
    }

    /// The levels that are in use, by name.
    pub(super) fn levels(&self) -> Vec<Arc<PriorityLevel>> {
        lock(&self.configuration).levels_in_use()
    }

    /// Also those that are gone, by name; and the `seat_fair_frac` of the last adjustment.
    pub(super) fn levels_and_fair_fraction(&self) -> (Vec<Arc<PriorityLevel>>, f64) {
        let configuration = lock(&self.configuration);
        (configuration.all_levels(), configuration.fair_fraction())
    }

    /// Until when the request may wait: counted from its arrival, not from its turn to be admitted.
    fn queue_deadline(&self, times: RequestTimes) -> Instant {
        let RequestTimes {
            arrived, deadline, ..
        } = times;
        let time = deadline.map_or(self.config.request_timeout, |deadline| {
            deadline.saturating_duration_since(arrived)
        });
        arrived + (time / QUEUE_WAIT_DIVISOR).min(MAX_QUEUE_WAIT)
    }

    /// Whether the request would be led to a level that neither queues nor refuses.
    #[must_use]
    pub fn is_exempt(&self, info: &RequestInfo<'_>, user: &UserInfo) -> bool {
        let snapshot = self.snapshot.load();
        let classified = snapshot.matcher.classify(&RequestDigest::new(info, user));
        classified.level.is_exempt()
    }

    /// Classifies and estimates a request and brings it to its level.
    fn route_request(
        &self,
        now: Instant,
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) -> Result<RoutedRequest, AdmissionRejection> {
        let digest = RequestDigest::new(info, user);
        loop {
            let snapshot = self.snapshot.load();
            let classified = snapshot.matcher.classify(&digest);
            let route = route_for(&snapshot, classified.index);
            let asked = ControllerContext {
                controller: self,
                now,
                watches: Cell::new(None),
            };
            let work = estimate(info, route.level.max_seats(), &asked);
            let arriving = ArrivingRequest {
                info,
                user,
                flow_distinguisher: classified.flow_distinguisher,
                flow_hash: classified.flow_hash,
                work,
                interested_watches: asked.watches.get(),
            };
            match route.arrive(now, &arriving) {
                Ok(arrived) => {
                    return Ok(RoutedRequest {
                        arrival: arrived,
                        work,
                    });
                }
                Err(ArrivalError::Rejected {
                    reason,
                    retry_after,
                }) => {
                    let route = Arc::clone(route);
                    return Err(AdmissionRejection {
                        route,
                        reason,
                        retry_after,
                        work,
                        queue_wait: Duration::ZERO,
                    });
                }
                // The configuration was swapped while the request was on its way.
                Err(ArrivalError::Closed) => {}
            }
        }
    }

    fn build_admitted(
        &self,
        info: &RequestInfo<'_>,
        place: SeatPermit,
        on_paper: DryRun,
        work: WorkEstimate,
        queue_wait: Duration,
    ) -> AdmissionPermit {
        let watching = (*info.verb() == Verb::Watch).then(|| WatchGuard {
            registration: lock(&self.watch_tracker).register(info),
            tracker: Arc::clone(&self.watch_tracker),
        });
        AdmissionPermit {
            seat_permit: place,
            dry_run: on_paper,
            _watch: watching,
            work,
            queue_wait,
        }
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl EstimateContext for ControllerContext<'_> {
    fn consistent_reads_from_cache(&self) -> bool {
        self.controller.config.consistent_reads_from_cache
    }

    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        lock(&self.controller.object_counts).stats(self.now, api_group, resource)
    }

    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize {
        let watches = lock(&self.controller.watch_tracker).interested_watches(write);
        self.watches
            .set(Some(u32::try_from(watches).unwrap_or(u32::MAX)));
        watches
    }
}

/// Waits for the turn, but not past `until`: then it is the `Retry-After` in seconds.
async fn wait_for_dispatch_until(
    mut place: SeatPermit,
    until: Instant,
) -> Result<SeatPermit, (Arc<SchemaRoute>, u32)> {
    if timeout_at(until.into(), place.wait_for_dispatch())
        .await
        .is_err()
        && let Some(retry_after) = place.cancel(Clock.now())
    {
        return Err((Arc::clone(place.route()), retry_after));
    }
    Ok(place)
}

fn compile_matcher<'o>(objects: impl IntoIterator<Item = &'o Object>) -> Matcher {
    let matcher = Matcher::new(objects);
    for schema in matcher.dangling() {
        // Whoever reads the objects warns of it, and says where it stands.
        debug!(%schema, "the flow schema is left out: its priority level does not exist");
    }
    matcher
}

#[expect(
    clippy::indexing_slicing,
    reason = "a snapshot has a route for each schema of its matcher"
)]
fn route_for(snapshot: &ConfigSnapshot, schema: usize) -> &Arc<SchemaRoute> {
    &snapshot.routes[schema]
}

/// What these locks guard is whole between any two calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
