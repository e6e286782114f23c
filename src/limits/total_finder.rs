//! The total that weir finds by itself (`--max-requests-inflight=auto`), and what operators see of
//! it. [`auto_total`](weir_limits::auto_total) decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use parking_lot::Mutex;
use prometheus::{Histogram, IntGauge};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::flag_values;
use crate::flag_values::{parse_positive_duration, parse_share};
use crate::limits::limiters::{Limiters, PoolUse};
use crate::limits::total_warning::{ConfiguredTotal, share_of};
use weir_base::metrics::Registry;
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use weir_kubernetes::numeric::saturating_u32;
use weir_limits::auto_total::{
    AutoTotal, LEAST_SEATS_OF_LEVEL, ProposedTotal, TotalSignal, agreed_total,
};
use weir_limits::levers::TotalOverride;

/// kube-apiserver's default of both limits together, where it publishes none.
const DEFAULT_SERVER_SEATS: u64 = 600;

/// The API server queues by itself if more than one part in so many of its seats waits. Single
/// requests pass through its queues.
const QUEUED_PART: u64 = 10;

/// The least change that is logged.
const LOGGED_CHANGE: f64 = 1.2;

/// Upper bounds in seconds. The last one is the timeout of a probe.
const BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 2.0];

/// How weir finds its total.
#[derive(Args, Clone, Copy, Debug, PartialEq)]
pub struct AutoTotalConfig {
    /// With --max-requests-inflight=auto: how long an urgent small read may take inside the API server while weir sends it as much
    /// as it admits. weir's total follows from it: it reads the Namespace default five times a second (without credentials
    /// /livez/ping) while more than half of the total is in use or requests wait for a seat. Three times the time of such a read
    /// without load where that is more, as in front of a cluster that is far away.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = parse_positive_duration)]
    pub target_latency: Duration,
    /// With --max-requests-inflight=auto: the share of the API server's own seats that weir's total never exceeds, so that requests
    /// queue in weir and not there. weir reads its seats from its /metrics; where it may not, they count as 600.
    #[arg(long, value_name = "SHARE", default_value = "0.9", value_parser = parse_share)]
    pub server_limit_share: f64,
}

impl AutoTotalConfig {
    /// The greatest total in front of servers with so many seats of their own, by default as many as
    /// kube-apiserver has.
    pub(crate) fn greatest_total(self, server_seats: Option<u64>) -> u32 {
        let seats = saturating_u32(server_seats.unwrap_or(DEFAULT_SERVER_SEATS));
        share_of(seats, self.server_limit_share)
    }
}

impl Default for AutoTotalConfig {
    fn default() -> Self {
        flag_values::defaults()
    }
}

/// The total, and what it was found from.
#[derive(Clone, Debug)]
pub(crate) struct FoundTotal {
    /// In seats.
    pub(crate) total: u32,
    /// The most that it may be, in seats.
    pub(crate) most: u32,
    /// The seats of the API server itself, if it publishes them.
    pub(crate) server_seats: Option<u64>,
    /// What a small read took under load, last.
    pub(crate) median: Option<Duration>,
    /// What it may take.
    pub(crate) target: Duration,
    /// Why the total changed last.
    pub(crate) reason: &'static str,
}

/// Finds the total while it is switched on.
#[derive(Debug)]
pub(crate) struct TotalFinder {
    limiters: Arc<Limiters>,
    /// Locked for one step. Nothing is awaited under it.
    state: Mutex<State>,
    /// Whether it is switched on. Changed with `state`.
    is_on: watch::Sender<bool>,
    metrics: TotalMetrics,
}

/// The metrics of the total that weir finds.
#[derive(Debug)]
pub struct TotalMetrics {
    most: IntGauge,
    probes: Histogram,
}

impl TotalMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            most: registry.gauge(
                "weir_auto_total_bound_seats",
                "The most that the total may be with --max-requests-inflight=auto: what the API server publishes of its own seats, times --server-limit-share. 0 if the total is a number.",
            ),
            probes: registry.histogram(
                "weir_server_probe_seconds",
                "How long a small read of weir's own takes inside the API server while more than half of the total is in use or requests wait, with --max-requests-inflight=auto.",
                &BUCKETS,
            ),
        }
    }
}

/// What API servers publish of their own seats, in their metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedSeats {
    /// The sum. `None` if none of them publishes any.
    seats: Option<u64>,
    /// How many servers publish theirs.
    servers: u64,
    /// The requests in their queues.
    queued: u64,
}

impl PublishedSeats {
    /// Adds what one server publishes.
    pub(crate) fn add(&mut self, metrics: &ResourceMetrics) {
        if let Some(seats) = metrics.nominal_seats() {
            self.seats = Some(self.seats.unwrap_or_default().saturating_add(seats));
            self.servers += 1;
        }
        self.queued = self.queued.saturating_add(metrics.queued_requests());
    }
}

/// What `--max-requests-inflight` says.
#[derive(Clone, Copy, Debug)]
struct ConfiguredFinder {
    config: AutoTotalConfig,
    is_auto: bool,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until the first configuration.
    configured: Option<ConfiguredFinder>,
    /// The total of a lever. While it is a number, nothing is found.
    lever: Option<TotalOverride>,
    /// `None` while the total is a number.
    auto: Option<(AutoTotal, AutoTotalConfig)>,
    published: PublishedSeats,
    /// The number of API servers, if it was found out.
    servers: Option<u64>,
    /// Whether many requests were in the API server's own queues.
    server_queues: bool,
    /// `--server-limit-share`, also where the total is a number.
    share: f64,
    /// The warning that was logged last.
    warned: Option<String>,
    /// The number of priority levels that have seats, if it was found out.
    levels: u32,
    /// What the other replicas propose.
    others: Vec<ProposedTotal>,
    /// The total of all replicas, in seats.
    in_force: u32,
    reason: &'static str,
    logged: u32,
}

impl State {
    /// The seats of all API servers together, if they publish them. A server that was not read
    /// counts as the others on average.
    fn server_seats(&self) -> Option<u64> {
        let PublishedSeats { seats, servers, .. } = self.published;
        let all = self.servers.unwrap_or(1).max(servers);
        seats?.saturating_mul(all).checked_div(servers)
    }

    /// What this replica proposes as the total of all.
    fn proposal(&self, now: Instant) -> Option<ProposedTotal> {
        let (auto, _) = self.auto.as_ref()?;
        let own = auto.proposal(now);
        Some(match own.is_measured {
            true => own,
            false => ProposedTotal {
                seats: self.in_force,
                ..own
            },
        })
    }

    /// Whether a lever sets the total.
    const fn is_set(&self) -> bool {
        matches!(self.lever, Some(TotalOverride::Seats(_)))
    }

    /// The total instead of the configured one, if there is one.
    fn total(&self) -> Option<u32> {
        match self.lever {
            Some(TotalOverride::Seats(seats)) => Some(seats),
            Some(TotalOverride::Auto) | None => self.auto.as_ref().map(|_| self.in_force),
        }
    }

    /// The least and the greatest total.
    fn bounds(&self, config: AutoTotalConfig) -> (u32, u32) {
        let most = config.greatest_total(self.server_seats());
        let least = self.levels.saturating_mul(LEAST_SEATS_OF_LEVEL).max(1);
        (least, most.max(least))
    }
}

impl TotalFinder {
    /// A finder that is switched off.
    pub(crate) fn new(limiters: &Arc<Limiters>, registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            limiters: Arc::clone(limiters),
            state: Mutex::default(),
            is_on: watch::Sender::new(false),
            metrics: TotalMetrics::register(registry),
        })
    }

    /// Takes a configuration in. `apply` puts its limits in force, with the total instead of the
    /// configured one; no lever changes that in between.
    pub(crate) fn configure<T>(
        &self,
        now: Instant,
        config: AutoTotalConfig,
        is_auto: bool,
        apply: impl FnOnce(Option<u32>) -> T,
    ) -> T {
        let mut state = self.state.lock();
        state.configured = Some(ConfiguredFinder { config, is_auto });
        self.switch(&mut state, now);
        apply(state.total())
    }

    /// Puts the total of a lever in force; `None` for what is configured or was found before.
    pub(crate) fn set_lever(&self, now: Instant, lever: Option<TotalOverride>) {
        let mut state = self.state.lock();
        if state.lever == lever {
            return;
        }
        state.lever = lever;
        self.switch(&mut state, now);
        self.limiters.set_total(now, state.total());
    }

    /// Switches the finder on or off.
    fn switch(&self, state: &mut State, now: Instant) {
        let Some(ConfiguredFinder { config, is_auto }) = state.configured else {
            return;
        };
        state.share = config.server_limit_share;
        if !is_auto && state.lever != Some(TotalOverride::Auto) {
            state.auto = None;
            self.is_on.send_replace(false);
            self.metrics.most.set(0);
            return;
        }
        let (least, most) = state.bounds(config);
        if let Some((auto, configured)) = &mut state.auto {
            auto.configure(config.target_latency, (least, most));
            *configured = config;
        } else {
            let auto = AutoTotal::new(config.target_latency, (least, most), now);
            state.in_force = auto.total();
            state.logged = state.in_force;
            state.reason = "the start: as much as there may be";
            state.auto = Some((auto, config));
        }
        self.metrics.most.set(most.into());
        state.in_force = state.in_force.min(most).max(least);
        self.is_on.send_replace(true);
    }

    /// Whether it is switched on, now and later.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.is_on.subscribe()
    }

    /// The seats of all API servers together, if they publish them.
    pub(crate) fn server_seats(&self) -> Option<u64> {
        self.state.lock().server_seats()
    }

    /// The total in force of all replicas, in seats or slots; 0 is no limit.
    pub(crate) fn total(&self) -> u32 {
        self.pool_sum(|pool| pool.total)
    }

    /// Records what API servers publish of their own seats.
    pub(crate) fn record_seats(&self, published: PublishedSeats) {
        let PublishedSeats { seats, queued, .. } = published;
        let mut state = self.state.lock();
        if state.published.seats != seats && state.auto.is_some() {
            info!(
                seats,
                servers = published.servers,
                "the API server's own seats bound the total"
            );
        }
        state.published = published;
        let total = self.total();
        let is_below = state
            .server_seats()
            .is_some_and(|seats| u64::from(total) < seats);
        let server_queues = is_below && seats.is_some_and(|seats| queued > seats / QUEUED_PART);
        if server_queues && !state.server_queues {
            info!(
                queued,
                seats,
                total,
                "requests queue in the API server although weir's total is below its own: traffic passes beside weir"
            );
        }
        state.server_queues = server_queues;
        drop(state);
        self.log_warning();
    }

    fn pool_sum(&self, value: fn(&PoolUse) -> u32) -> u32 {
        let pools = self.limiters.pools();
        pools.iter().map(value).fold(0, u32::saturating_add)
    }

    /// What is wrong with a configured total. `None` if nothing is, or if weir finds it by itself or a
    /// lever sets it.
    pub(crate) fn warning(&self) -> Option<String> {
        let (seats, own) = (self.total(), self.pool_sum(|pool| pool.share));
        let limited = self.limiters.flowcontrol().map_or_else(Vec::new, |live| {
            let levels = live.controller().summaries().into_iter();
            let levels = levels.filter_map(|level| Some((level.name, level.seats?)));
            let limited = levels.filter(|(_, seats)| seats.spec.queuing != Queuing::Exempt);
            // A replica has its part of each level.
            let all = |nominal: u32| {
                let all = u64::from(nominal) * u64::from(seats);
                saturating_u32(all.checked_div(own.into()).unwrap_or_default())
            };
            limited
                .map(|(name, seats)| (name, all(seats.limits.nominal)))
                .collect()
        });
        let state = self.state.lock();
        if state.auto.is_some() || state.is_set() {
            return None;
        }
        let total = ConfiguredTotal {
            seats,
            share: state.share,
            server_seats: state.server_seats(),
            levels: &limited,
        };
        total.warning()
    }

    /// Logs what is wrong with a configured total, if that is another warning than before.
    pub(crate) fn log_warning(&self) {
        let warning = self.warning();
        let mut state = self.state.lock();
        if state.warned == warning {
            return;
        }
        if let Some(text) = &warning {
            warn!("--max-requests-inflight: {text}");
        }
        state.warned = warning;
    }

    /// Records the number of API servers.
    pub(crate) fn record_servers(&self, servers: u64) {
        self.state.lock().servers = Some(servers);
        self.log_warning();
    }

    /// Follows the bounds, which depend on the API server's seats and on the number of levels.
    pub(crate) fn follow_bounds(&self, now: Instant) {
        let levels = self.limiters.flowcontrol().map_or(0, |live| {
            let levels = live.controller().summaries().into_iter();
            let seats = levels.filter_map(|level| level.seats);
            saturating_u32(
                seats
                    .filter(|seats| seats.spec.queuing != Queuing::Exempt)
                    .count(),
            )
        });
        let mut state = self.state.lock();
        let Some(config) = state.auto.as_ref().map(|(_, config)| *config) else {
            return;
        };
        state.levels = levels;
        let bounds = state.bounds(config);
        if let Some((auto, _)) = &mut state.auto {
            auto.configure(config.target_latency, bounds);
        }
        self.metrics.most.set(bounds.1.into());
        self.apply(&mut state, now, "the bounds have changed");
    }

    /// What this replica proposes as the total of all, if it finds one.
    pub(crate) fn proposal(&self, now: Instant) -> Option<ProposedTotal> {
        self.state.lock().proposal(now)
    }

    /// Takes in what the other replicas propose.
    pub(crate) fn set_others(&self, now: Instant, others: Vec<ProposedTotal>) {
        let mut state = self.state.lock();
        if state.others == others {
            return;
        }
        state.others = others;
        self.apply(&mut state, now, "the median of what the replicas propose");
    }

    /// Records that requests wait for a seat, or were rejected for want of one.
    pub(crate) fn record_limiting(&self) {
        let mut state = self.state.lock();
        if state.is_set() {
            return;
        }
        if let Some((auto, _)) = &mut state.auto {
            auto.record_limiting();
        }
    }

    /// Takes a signal in, and changes the total if it says so.
    pub(crate) fn record(&self, now: Instant, signal: TotalSignal) {
        if let TotalSignal::Loaded(time) = signal {
            self.metrics.probes.observe(time.as_secs_f64());
        }
        let mut state = self.state.lock();
        // What the API server does under another total says nothing of this one.
        if state.is_set() {
            return;
        }
        // Without load means without that of the other replicas, too.
        if matches!(signal, TotalSignal::First(_) | TotalSignal::Unloaded(_))
            && state.others.iter().any(|other| other.is_measured)
        {
            return;
        }
        let Some((auto, _)) = &mut state.auto else {
            return;
        };
        if let Some(change) = auto.record(now, signal) {
            self.apply(&mut state, now, change.reason);
        }
    }

    /// Puts the agreed total in force.
    fn apply(&self, state: &mut State, now: Instant, reason: &'static str) {
        let own = state.proposal(now).into_iter();
        let proposals: Vec<_> = state.others.iter().copied().chain(own).collect();
        let Some((auto, config)) = &state.auto else {
            return;
        };
        let (least, most) = state.bounds(*config);
        let total = agreed_total(&proposals).unwrap_or_else(|| auto.total());
        let total = total.min(most).max(least);
        let median = auto.median();
        if let Some((auto, _)) = &mut state.auto {
            auto.follow(total);
        }
        if total == state.in_force {
            return;
        }
        (state.in_force, state.reason) = (total, reason);
        self.limiters.set_total(now, state.total());
        if state.is_set() {
            return;
        }
        let (logged, to) = (f64::from(state.logged.max(1)), f64::from(total.max(1)));
        if to > logged * LOGGED_CHANGE || to < logged / LOGGED_CHANGE {
            let read_ms = median.map(|time| time.as_millis());
            info!(
                from = state.logged,
                to = total,
                read_ms,
                reason,
                "the total has changed"
            );
            state.logged = total;
        }
    }

    /// The total, while it is found.
    pub(crate) fn found(&self) -> Option<FoundTotal> {
        let state = self.state.lock();
        let (auto, config) = state.auto.as_ref()?;
        let (_, most) = state.bounds(*config);
        Some(FoundTotal {
            total: state.in_force,
            most,
            server_seats: state.server_seats(),
            median: auto.median(),
            target: auto.target(),
            reason: state.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::{ControllerConfig, Enforcement};
    use weir_base::clock::Clock;
    use weir_limits::auto_total::Overload;
    use weir_limits::max_in_flight::MaxInFlightConfig;

    #[test]
    fn the_defaults_are_those_of_the_flags() {
        let AutoTotalConfig {
            target_latency,
            server_limit_share,
        } = AutoTotalConfig::default();
        assert_eq!(target_latency, Duration::from_millis(100));
        assert!((server_limit_share - 0.9).abs() < 1e-9);
    }

    fn seats_of_one(seats: u64) -> PublishedSeats {
        PublishedSeats {
            seats: Some(seats),
            servers: 1,
            queued: 0,
        }
    }

    #[test]
    fn each_server_counts_by_what_it_publishes_and_one_that_was_not_read_as_the_others() {
        let metrics = |seats: &[u32]| {
            let mut metrics = ResourceMetrics::default();
            for seats in seats {
                let line = format!(
                    "apiserver_flowcontrol_nominal_limit_seats{{priority_level=\"l\"}} {seats}\n"
                );
                metrics.feed(line.as_bytes());
            }
            metrics
        };
        let (_, finder) = configured(true);
        let mut published = PublishedSeats::default();
        published.add(&metrics(&[]));
        finder.record_seats(published);
        assert_eq!(finder.server_seats(), None);
        published.add(&metrics(&[400, 200]));
        finder.record_seats(published);
        finder.record_servers(3);
        assert_eq!(finder.server_seats(), Some(1800));
        published.add(&metrics(&[100]));
        finder.record_seats(published);
        assert_eq!(finder.server_seats(), Some(1050));
        published.add(&metrics(&[200]));
        finder.record_seats(published);
        assert_eq!(finder.server_seats(), Some(900));
    }

    /// Priority and fairness with 50 seats, unless the total is found.
    fn configured(is_auto: bool) -> (Arc<Limiters>, Arc<TotalFinder>) {
        let registry = Registry::new();
        let limiters = Arc::new(Limiters::new(&registry));
        let finder = TotalFinder::new(&limiters, &registry);
        reload(&limiters, &finder, is_auto, 50);
        (limiters, finder)
    }

    fn reload(limiters: &Limiters, finder: &TotalFinder, is_auto: bool, seats: u32) {
        let fairness = ControllerConfig {
            server_concurrency_limit: seats,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        let (now, config) = (Clock.now(), AutoTotalConfig::default());
        finder.configure(now, config, is_auto, |total| {
            limiters.apply_fairness(now, fairness, total, Vec::new(), false)
        });
    }

    #[test]
    fn the_total_of_a_lever_stays_at_a_reload_and_ends_with_what_is_configured() {
        let (limiters, finder) = configured(false);
        let now = Clock.now();
        let total = || limiters.pools()[0].total;
        finder.set_lever(now, Some(TotalOverride::Seats(200)));
        assert_eq!(total(), 200);
        reload(&limiters, &finder, false, 60);
        assert_eq!(total(), 200);
        let slots = MaxInFlightConfig {
            read_only: 7.into(),
            mutating: 3.into(),
        };
        let config = AutoTotalConfig::default();
        finder.configure(now, config, false, |total| {
            limiters.apply_max_in_flight(now, slots, Enforcement::Enforce, total)
        });
        let slots = || limiters.pools().map(|pool| pool.total);
        assert_eq!(slots(), [0, 134, 66]);
        finder.set_lever(now, None);
        assert_eq!(slots(), [0, 7, 3]);
        reload(&limiters, &finder, false, 60);
        assert_eq!(total(), 60);
        let is_on = finder.subscribe();
        finder.set_lever(now, Some(TotalOverride::Auto));
        assert_eq!((total(), *is_on.borrow()), (540, true));
        finder.set_lever(now, None);
        assert_eq!((total(), *is_on.borrow()), (60, false));
    }

    #[test]
    fn what_was_found_is_in_force_again_after_a_lever_whatever_was_measured_meanwhile() {
        let (limiters, finder) = configured(true);
        let now = Clock.now();
        let total = || limiters.pools()[0].total;
        let overload = TotalSignal::Overload(Overload::Rejected);
        finder.record(now + Duration::from_secs(2), overload);
        let found = total();
        assert!(found < 540, "{found}");
        finder.set_lever(now, Some(TotalOverride::Seats(100)));
        reload(&limiters, &finder, true, 50);
        finder.record_limiting();
        finder.record(now + Duration::from_secs(9), overload);
        finder.follow_bounds(now);
        assert_eq!(total(), 100);
        assert_eq!(finder.warning(), None);
        finder.set_lever(now, None);
        assert_eq!(total(), found);
    }

    #[test]
    fn the_total_follows_the_server_its_bounds_and_the_configuration() {
        let registry = Registry::new();
        let limiters = Arc::new(Limiters::new(&registry));
        let finder = TotalFinder::new(&limiters, &registry);
        let now = Clock.now();
        let config = AutoTotalConfig::default();
        let total = finder.configure(now, config, true, Option::unwrap);
        assert_eq!(total, 540, "0.9 of kube-apiserver's 600");
        let fairness = ControllerConfig {
            server_concurrency_limit: total,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        limiters.apply_fairness(now, fairness, Some(total), Vec::new(), false);
        let in_force = || limiters.pools()[0].total;
        finder.record_seats(seats_of_one(100));
        finder.follow_bounds(now);
        assert_eq!((in_force(), finder.found().unwrap().most), (90, 90));
        let overload = TotalSignal::Overload(Overload::Rejected);
        finder.record(now + Duration::from_secs(2), overload);
        assert_eq!((in_force(), finder.found().unwrap().total), (63, 63));
        finder.record_seats(seats_of_one(10));
        finder.follow_bounds(now);
        assert_eq!(
            in_force(),
            35,
            "five for each of the seven levels that have seats"
        );
        assert_eq!(
            finder.configure(now, config, true, |total| total),
            Some(35),
            "a reload keeps it"
        );
        finder.record_seats(seats_of_one(1000));
        finder.follow_bounds(now);
        let measured = |seats| ProposedTotal {
            seats,
            is_measured: true,
        };
        let later = now + Duration::from_secs(20);
        finder.set_others(later, vec![measured(80), measured(90)]);
        assert_eq!(in_force(), 85, "the other replicas have load");
        let own = finder.proposal(later).unwrap();
        assert_eq!((own.seats, own.is_measured), (85, false));
        let target = || finder.found().unwrap().target;
        let unloaded = TotalSignal::Unloaded(Duration::from_secs(1));
        finder.record(later, unloaded);
        assert_eq!(
            target(),
            config.target_latency,
            "the others' load slows the server down"
        );
        finder.set_others(later, Vec::new());
        finder.record(later, unloaded);
        assert_eq!(target(), Duration::from_secs(3), "it is far away");
        assert_eq!(finder.configure(now, config, false, |total| total), None);
        assert!(finder.found().is_none() && finder.proposal(now).is_none());
        let warning = finder.warning().unwrap();
        assert!(
            warning.contains("less than a tenth of the 1000"),
            "{warning}"
        );
    }
}
