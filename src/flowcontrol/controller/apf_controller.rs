//! The controller: classifies, estimates and admits requests, and maintains the levels.

use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use super::config::{ControllerConfig, Enforcement, RequestTimes};
use super::configuration::Configuration;
use super::count_state::ObjectCounting;
use super::snapshot::ConfigSnapshot;
use crate::flowcontrol::collector;
use crate::flowcontrol::level::{
    ArrivalError, ArrivalOutcome, ArrivingRequest, FlowControlDecision, LevelOccupants,
    LevelSummary, PriorityLevel, SchemaRoute, SeatPermit, SeatRejection, WatchGuard,
};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_base::sync::Notify;
use weir_flowcontrol::concurrency::BORROWING_ADJUSTMENT_PERIOD;
#[cfg(feature = "playground")]
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_flowcontrol::work_estimator::object_counts::ObjectCounts;
use weir_flowcontrol::work_estimator::watch_tracker::WatchTracker;
use weir_flowcontrol::work_estimator::{
    EstimateContext, ObjectStats, estimate, expected_list_bytes,
};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::numeric::saturating_u32;
use weir_kubernetes::request_info::{RequestInfo, Verb};
use weir_limits::in_flight::InFlightMetrics;

/// The suggested levels of the control plane and of nodes, besides the exempt ones.
const CONTROL_PLANE_LEVELS: [&str; 3] = ["leader-election", "node-high", "system"];

/// Routes requests to all priority levels.
pub struct Controller {
    pub(super) config: ArcSwap<ControllerConfig>,
    pub(super) snapshot: ArcSwap<ConfigSnapshot>,
    /// No request takes this lock. It is held while the configuration changes and seats are
    /// allocated.
    pub(super) configuration: Mutex<Configuration>,
    /// Notified when a quiescing level has drained.
    pub(super) drained: Arc<Notify>,
    pub(super) watch_tracker: Arc<Mutex<WatchTracker>>,
    pub(super) object_counts: Mutex<ObjectCounts>,
    pub(super) object_counting: ObjectCounting,
    /// The metric of the seats of all levels.
    pub(super) seats_gauge: IntGauge,
}

/// Provides the inputs of an estimate, and records the number of watches that it used.
struct ControllerContext<'c> {
    controller: &'c Controller,
    now: Instant,
    watches: Cell<Option<u32>>,
}

impl Controller {
    /// A controller with these objects. Registers its metrics in `registry`.
    #[must_use]
    pub fn new<'o>(
        config: ControllerConfig,
        objects: impl IntoIterator<Item = &'o Object>,
        registry: &Registry,
    ) -> Arc<Self> {
        Self::with_in_flight(config, objects, &InFlightMetrics::new(registry), registry)
    }

    /// As [`new`](Self::new), with metrics that it shares with the limiter of the other mode.
    #[must_use]
    pub(crate) fn with_in_flight<'o>(
        config: ControllerConfig,
        objects: impl IntoIterator<Item = &'o Object>,
        in_flight: &Arc<InFlightMetrics>,
        registry: &Registry,
    ) -> Arc<Self> {
        let now = Clock.now();
        let drained = Arc::new(Notify::new());
        let seats = config.server_concurrency_limit;
        let seats_gauge = registry.gauge(
            "weir_server_concurrency_limit_seats",
            "Seats of all levels together, where priority and fairness is what limits.",
        );
        seats_gauge.set(seats.into());
        let matcher = compile_matcher(objects);
        let (configuration, snapshot) =
            Configuration::new(now, seats, matcher, in_flight, &drained);
        let controller = Arc::new(Self {
            config: ArcSwap::from_pointee(config),
            snapshot: ArcSwap::from_pointee(snapshot),
            configuration: Mutex::new(configuration),
            drained,
            watch_tracker: Arc::default(),
            object_counts: Mutex::default(),
            object_counting: ObjectCounting::new(registry),
            seats_gauge,
        });
        let levels = Arc::clone(&controller);
        collector::register(registry, move || levels.levels_and_fair_fraction());
        controller
    }

    /// Whether all decisions are only counted.
    #[must_use]
    pub(crate) fn is_dry_run(&self) -> bool {
        self.config.load().enforcement == Enforcement::DryRun
    }

    /// The names of the levels that only count.
    #[must_use]
    pub(crate) fn dry_run_levels(&self) -> BTreeSet<String> {
        let enforcement = self.config.load().enforcement;
        let snapshot = self.snapshot.load();
        let levels = snapshot.matcher.levels().iter();
        levels
            .filter(|level| enforcement.is_dry_run(level.is_dry_run))
            .map(|level| level.spec.name.clone())
            .collect()
    }

    /// Replaces the settings. Requests that wait or execute keep the settings under which they
    /// arrived.
    pub(crate) fn set_config(&self, now: Instant, config: ControllerConfig) {
        let before = self.config.swap(Arc::new(config));
        if before.server_concurrency_limit != config.server_concurrency_limit {
            self.set_server_concurrency_limit(now, config.server_concurrency_limit);
        }
    }

    /// Admits a request, perhaps after a wait in a queue: a quarter of the time to its deadline at
    /// most.
    ///
    /// # Errors
    /// The request is rejected, to be answered with 429; not if its flow schema or its priority
    /// level is a dry run.
    ///
    /// # Cancel safety
    /// A request that waits leaves the queue and is counted as timed out, as upstream.
    pub async fn admit(
        &self,
        info: &RequestInfo<'_>,
        user: &UserInfo,
        times: RequestTimes,
    ) -> Result<SeatPermit, SeatRejection> {
        let config = **self.config.load();
        let until = times.queue_deadline(config.request_timeout);
        let is_dry_run =
            |decision: &FlowControlDecision| config.enforcement.is_dry_run(decision.is_dry_run());
        let mut permit = match self.route_request(times.now, info, user) {
            Ok(ArrivalOutcome::Executing(permit)) => permit,
            Ok(ArrivalOutcome::Queued(permit)) if is_dry_run(permit.decision()) => {
                permit.simulate(until)
            }
            Ok(ArrivalOutcome::Queued(mut permit)) => {
                permit.wait_until(until).await?;
                permit
            }
            Err(rejection) if is_dry_run(&rejection.decision) => SeatPermit::sparing(rejection),
            Err(rejection) => return Err(rejection),
        };
        permit.count_watch(self.watch_guard(info));
        Ok(permit)
    }

    /// Replaces the objects. Waiting requests stay in their queues.
    pub fn configure<'o>(&self, now: Instant, objects: impl IntoIterator<Item = &'o Object>) {
        let matcher = compile_matcher(objects);
        self.configuration
            .lock()
            .set_matcher(now, matcher, &self.snapshot);
    }

    /// The flow schemas that are left out because their priority level does not exist.
    #[must_use]
    pub(crate) fn dangling_schemas(&self) -> Vec<String> {
        self.snapshot.load().matcher.dangling().to_vec()
    }

    /// Changes the number of seats that the levels share.
    pub(crate) fn set_server_concurrency_limit(&self, now: Instant, seats: u32) {
        self.configuration
            .lock()
            .set_server_concurrency_limit(now, seats, &self.snapshot);
        self.seats_gauge.set(seats.into());
    }

    /// Whether this controller limits new requests, or only keeps the seats and queues of earlier
    /// ones. Until then, it does.
    pub(crate) fn set_in_force(&self, now: Instant, in_force: bool) {
        let mut configuration = self.configuration.lock();
        configuration.set_in_force(now, in_force);
        let seats = match in_force {
            true => self.config.load().server_concurrency_limit,
            false => 0,
        };
        self.seats_gauge.set(seats.into());
    }

    /// Moves seats between levels by their demand. The caller calls this every
    /// [`BORROWING_ADJUSTMENT_PERIOD`].
    pub(crate) fn adjust(&self, now: Instant) {
        self.configuration.lock().adjust(now);
    }

    /// Runs the periodic tasks until it is dropped.
    ///
    /// # Cancel safety
    /// No step is left unfinished.
    pub(crate) async fn run(&self) {
        let mut adjustments = interval(BORROWING_ADJUSTMENT_PERIOD);
        adjustments.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = adjustments.tick() => self.adjust(Clock.now()),
                () = self.drained.notified() => {
                    self.configuration.lock().digest(Clock.now(), &self.snapshot);
                }
            }
        }
    }

    /// A summary of each level that is in use, by name.
    #[must_use]
    pub(crate) fn summaries(&self) -> Vec<LevelSummary> {
        let levels = self.levels().into_iter();
        levels.map(|level| level.summary()).collect()
    }

    /// Whose requests wait in each level with waiting requests, by name. Holds the lock of one level
    /// at a time.
    #[must_use]
    pub(crate) fn occupants(&self, now: Instant) -> Vec<(String, LevelOccupants)> {
        let levels = self.levels().into_iter();
        levels
            .filter_map(|level| Some((level.name().to_owned(), level.occupants(now)?)))
            .collect()
    }

    /// The levels that are in use, by name.
    pub(super) fn levels(&self) -> Vec<Arc<PriorityLevel>> {
        self.configuration.lock().levels_in_use()
    }

    /// All levels, also closed ones, by name, and the `seat_fair_frac` of the last adjustment.
    /// Nothing once the controller is not in force and its last request has ended.
    pub(super) fn levels_and_fair_fraction(&self) -> (Vec<Arc<PriorityLevel>>, Option<f64>) {
        let configuration = self.configuration.lock();
        let levels = configuration.all_levels();
        if !configuration.is_in_force() && levels.iter().all(|level| level.is_idle()) {
            return (Vec::new(), None);
        }
        (levels, Some(configuration.fair_fraction()))
    }

    /// Whether the request takes seats, and waits or is rejected where there are none.
    #[must_use]
    pub(crate) fn is_enforced(&self, info: &RequestInfo<'_>, user: &UserInfo) -> bool {
        let snapshot = self.snapshot.load();
        let classification = snapshot.matcher.classify(&RequestDigest::new(info, user));
        let route = route_for(&snapshot, classification.index);
        let enforcement = self.config.load().enforcement;
        !classification.level.is_exempt() && !enforcement.is_dry_run(route.is_dry_run)
    }

    /// Whether the request belongs to an exempt level, which neither queues nor rejects.
    #[must_use]
    pub(crate) fn is_exempt(&self, info: &RequestInfo<'_>, user: &UserInfo) -> bool {
        let snapshot = self.snapshot.load();
        let classification = snapshot.matcher.classify(&RequestDigest::new(info, user));
        classification.level.is_exempt()
    }

    /// The bytes that a list, or the initial events of a watch, is expected to have; 0 if nothing is
    /// known of them. `None` if its level is exempt, serves the control plane or is a dry run.
    #[must_use]
    pub(crate) fn expected_list_bytes(
        &self,
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) -> Option<u64> {
        let snapshot = self.snapshot.load();
        let classification = snapshot.matcher.classify(&RequestDigest::new(info, user));
        let level = route_for(&snapshot, classification.index).level.name();
        let is_spared = !self.is_enforced(info, user) || CONTROL_PLANE_LEVELS.contains(&level);
        if is_spared {
            return None;
        }
        let context = ControllerContext {
            controller: self,
            now: Clock.now(),
            watches: Cell::new(None),
        };
        Some(expected_list_bytes(info, &context))
    }

    /// The objects that classify a request, without a seat for it.
    #[must_use]
    #[cfg(feature = "playground")]
    pub(crate) fn classify(&self, info: &RequestInfo<'_>, user: &UserInfo) -> FlowControlDecision {
        let snapshot = self.snapshot.load();
        let classification = snapshot.matcher.classify(&RequestDigest::new(info, user));
        let route = route_for(&snapshot, classification.index);
        FlowControlDecision::new(route, WorkEstimate::default(), Clock.now())
    }

    /// Classifies and estimates a request, and lets it arrive at its level.
    fn route_request(
        &self,
        now: Instant,
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) -> Result<ArrivalOutcome, SeatRejection> {
        let digest = RequestDigest::new(info, user);
        loop {
            let snapshot = self.snapshot.load();
            let classification = snapshot.matcher.classify(&digest);
            let route = route_for(&snapshot, classification.index);
            let context = ControllerContext {
                controller: self,
                now,
                watches: Cell::new(None),
            };
            let work = estimate(info, route.level.max_seats(), &context);
            let arriving = ArrivingRequest {
                info,
                user,
                flow_distinguisher: classification.flow_distinguisher,
                flow_hash: classification.flow_hash,
                work,
                interested_watches: context.watches.get(),
            };
            match route.arrive(now, &arriving) {
                Ok(arrival) => return Ok(arrival),
                Err(ArrivalError::Rejected {
                    reason,
                    retry_after,
                }) => {
                    return Err(SeatRejection {
                        decision: FlowControlDecision::new(route, work, now),
                        reason,
                        retry_after,
                    });
                }
                // The configuration changed after the snapshot was loaded.
                Err(ArrivalError::Closed) => {}
            }
        }
    }

    /// Counts an admitted watch. `None` for any other request.
    fn watch_guard(&self, info: &RequestInfo<'_>) -> Option<WatchGuard> {
        (*info.verb() == Verb::Watch).then(|| WatchGuard {
            registration: self.watch_tracker.lock().register(info),
            tracker: Arc::clone(&self.watch_tracker),
        })
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("config", &self.config.load())
            .finish_non_exhaustive()
    }
}

impl EstimateContext for ControllerContext<'_> {
    fn consistent_reads_from_cache(&self) -> bool {
        self.controller.config.load().consistent_reads_from_cache
    }

    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        self.controller
            .object_counts
            .lock()
            .stats(self.now, api_group, resource)
    }

    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize {
        let watches = self
            .controller
            .watch_tracker
            .lock()
            .interested_watches(write);
        self.watches.set(Some(saturating_u32(watches)));
        watches
    }
}

fn compile_matcher<'o>(objects: impl IntoIterator<Item = &'o Object>) -> Matcher {
    let matcher = Matcher::new(objects);
    for schema in matcher.dangling() {
        // The reader of the objects logs a warning with the location.
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
