//! The limiters of both modes of admission. One is in force; the other one is kept.
//!
//! A limiter keeps the permits and queues of the requests that it has admitted until these end,
//! also while the other one is in force. When its mode is in force again, it is the same limiter.
//! So however often the mode changes, no more requests execute than both limits together allow.
//!
//! That is true of two processes, too, while one takes over from the other: each limiter leaves to
//! the old process what the same limiter has admitted there.
//!
//! Where several replicas divide the totals, each limiter has the [shares](Limiters::set_shares) of
//! this process instead.
//!
//! The new process leaves them by priority level, and one request of a level can execute in any
//! case: otherwise both together would admit twice the total.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::IntGauge;

use crate::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, SeatUse};
use crate::flowcontrol::sources::{FlowcontrolSources, LiveObjects};
use crate::handover::message::HeldSeats;
use crate::limits::admission::Admission;
use weir_base::metrics::Registry;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::document::SourceLocation;
use weir_limits::enforcement::{EnforcementOverride, EnforcementSwitch};
use weir_limits::in_flight::InFlightMetrics;
use weir_limits::max_in_flight::{InFlightLimit, MaxInFlight, MaxInFlightConfig};

/// The limiters that have been in force.
#[derive(Debug)]
pub(crate) struct Limiters {
    in_flight: Arc<InFlightMetrics>,
    enforcement: Arc<EnforcementSwitch>,
    /// Whether the limits in force only count.
    dry_run: IntGauge,
    /// Held for one change; nothing is awaited under it.
    kept: Mutex<KeptLimiters>,
    registry: Registry,
}

/// What is limited, and what it needs. All numbers are seats, or slots of max-in-flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolUse {
    /// The total of all replicas. Zero if this is not what limits.
    pub(crate) total: u32,
    /// What this process may use of it.
    pub(crate) share: u32,
    /// In use, and reserved for another process.
    pub(crate) in_use: u32,
    /// What queued requests wait for.
    pub(crate) waiting: u32,
    /// The number of requests that were rejected for want of a slot, ever.
    pub(crate) rejected: u64,
    /// What may be in use beyond the share by rounding.
    pub(crate) rounding: u32,
}

/// The totals: the seats of priority and fairness; the slots of max-in-flight for read-only and for
/// mutating requests.
pub(crate) const POOLS: usize = 3;

/// The configured totals, of the limiter in force.
#[derive(Clone, Copy, Debug)]
enum Totals {
    Fairness(u32),
    MaxInFlight(MaxInFlightConfig),
}

#[derive(Debug, Default)]
struct KeptLimiters {
    fairness: Option<Arc<LiveObjects>>,
    max_in_flight: Option<Arc<MaxInFlight>>,
    /// As configured.
    configured: Option<Totals>,
    /// Whether priority and fairness only counts, as configured.
    is_dry_run: bool,
    /// The total instead of the configured one, in seats: found by weir, or of a lever.
    total: Option<u32>,
    /// What this process may use of the totals, if several replicas divide them.
    shares: Option<[u32; POOLS]>,
    /// What requests of the processes before this one hold, of both limiters, also of one that does
    /// not exist here yet.
    reserved: HeldSeats,
}

impl Totals {
    /// So many seats. Max-in-flight has a third of them for mutating requests, as the defaults of
    /// kube-apiserver's flags do.
    fn with_total(self, total: u32) -> Self {
        match self {
            Self::Fairness(_) => Self::Fairness(total),
            Self::MaxInFlight(_) => Self::MaxInFlight(MaxInFlightConfig::divided(total)),
        }
    }
}

impl KeptLimiters {
    /// The totals in force.
    fn totals(&self) -> Option<Totals> {
        let configured = self.configured?;
        Some(
            self.total
                .map_or(configured, |total| configured.with_total(total)),
        )
    }

    /// This process' part of so many seats.
    fn seats(&self, total: u32) -> u32 {
        let [seats, ..] = self.shares.unwrap_or([total; POOLS]);
        seats.min(total).max(1)
    }

    /// This process' part of these slots.
    fn slots(&self, totals: MaxInFlightConfig) -> MaxInFlightConfig {
        let Some([_, read_only, mutating]) = self.shares else {
            return totals;
        };
        let part = |total: InFlightLimit, share: u32| match total {
            InFlightLimit::Limited(total) => share.min(total.get()).max(1).into(),
            InFlightLimit::Unlimited => total,
        };
        MaxInFlightConfig {
            read_only: part(totals.read_only, read_only),
            mutating: part(totals.mutating, mutating),
        }
    }

    /// Puts the totals and shares in force.
    fn resize(&self, now: Instant) {
        match (self.totals(), &self.fairness, &self.max_in_flight) {
            (Some(Totals::Fairness(total)), Some(live), _) => {
                live.controller().resize(now, self.seats(total));
            }
            (Some(Totals::MaxInFlight(config)), _, Some(limiter)) => {
                limiter.set_limits(self.slots(config));
            }
            _ => {}
        }
    }

    /// Whether priority and fairness is enforced.
    fn enforcement(&self, switch: &EnforcementSwitch) -> Enforcement {
        match switch.get() {
            EnforcementOverride::Configured if self.is_dry_run => Enforcement::DryRun,
            EnforcementOverride::Configured => Enforcement::Enforce,
            EnforcementOverride::DryRun | EnforcementOverride::Lifted => Enforcement::DryRun,
            EnforcementOverride::Enforced => Enforcement::EnforceAll,
        }
    }

    /// Leaves the reserved seats to the processes before this one.
    fn apply_reserved(&self, now: Instant) {
        let HeldSeats {
            levels,
            read_only,
            mutating,
        } = &self.reserved;
        if let Some(live) = &self.fairness {
            live.controller().reserve_seats(now, levels);
        }
        if let Some(limiter) = &self.max_in_flight {
            limiter.reserve([*read_only, *mutating]);
        }
    }
}

/// The limiter in force.
#[derive(Clone, Debug)]
pub(crate) struct LimiterInForce {
    /// What admits requests.
    pub(crate) admission: Admission,
    /// The flow schemas and priority levels. `None` without priority and fairness.
    pub(crate) flowcontrol: Option<Arc<LiveObjects>>,
    /// A new controller, whose tasks have to be started.
    pub(crate) started: Option<Arc<Controller>>,
}

/// The gauge of a dry run.
#[must_use]
pub fn register_dry_run(registry: &Registry) -> IntGauge {
    registry.gauge(
        "weir_flowcontrol_dry_run",
        "1 while all limits of concurrency only count, so that requests that apiserver_flowcontrol_* count as rejected or queued were executed at once: by --flowcontrol-enforcement, or by weir ctl dry-run or bypass; 0 otherwise.",
    )
}

impl Limiters {
    /// No limiter.
    #[must_use]
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            in_flight: InFlightMetrics::new(registry),
            enforcement: Arc::default(),
            dry_run: register_dry_run(registry),
            kept: Mutex::default(),
            registry: registry.clone(),
        }
    }

    /// The requests in flight, whichever limiter has admitted them. Its task has to be started.
    #[must_use]
    pub(crate) const fn in_flight(&self) -> &Arc<InFlightMetrics> {
        &self.in_flight
    }

    /// What an operator says of the enforcement of all limits: of these, and of those that follow it.
    #[must_use]
    pub(crate) const fn enforcement(&self) -> &Arc<EnforcementSwitch> {
        &self.enforcement
    }

    /// Changes that, also for limits that a reload puts in force.
    pub(crate) fn set_enforcement(&self, to: EnforcementOverride) {
        let kept = self.kept.lock();
        self.enforcement.set(to);
        if let Some(live) = &kept.fairness {
            let enforcement = kept.enforcement(&self.enforcement);
            live.controller().set_enforcement(enforcement);
        }
        if let Some(limiter) = &kept.max_in_flight {
            limiter.set_dry_run(self.enforcement.is_dry_run(kept.is_dry_run));
        }
        self.show_dry_run(&kept);
    }

    /// Shows whether the limits in force only count.
    fn show_dry_run(&self, kept: &KeptLimiters) {
        self.dry_run
            .set(self.enforcement.is_dry_run(kept.is_dry_run).into());
    }

    /// The flow schemas and priority levels, in force or kept.
    #[must_use]
    pub(crate) fn flowcontrol(&self) -> Option<Arc<LiveObjects>> {
        self.kept.lock().fairness.clone()
    }

    /// What requests hold of both limiters: those of this process and of those before it.
    #[must_use]
    pub(crate) fn held(&self) -> HeldSeats {
        let kept = self.kept.lock();
        let HeldSeats {
            levels,
            read_only,
            mutating,
        } = &kept.reserved;
        let fairness = kept.fairness.as_ref();
        let max_in_flight = kept.max_in_flight.as_ref();
        let slots = max_in_flight.map_or([*read_only, *mutating], |limiter| limiter.held());
        let [read_only, mutating] = slots;
        HeldSeats {
            levels: fairness.map_or_else(|| levels.clone(), |live| live.controller().held_seats()),
            read_only,
            mutating,
        }
    }

    /// Leaves these seats and slots to the processes before this one, instead of those of the last
    /// call. They stay left when the mode changes: of each limiter what was admitted by its like.
    pub(crate) fn reserve(&self, now: Instant, held: HeldSeats) {
        let mut kept = self.kept.lock();
        kept.reserved = held;
        kept.apply_reserved(now);
    }

    /// What each of the totals is, and what this process needs of it.
    #[must_use]
    pub(crate) fn pools(&self) -> [PoolUse; POOLS] {
        let kept = self.kept.lock();
        let mut pools = [PoolUse::default(); POOLS];
        let [seats, slots @ ..] = &mut pools;
        match (kept.totals(), &kept.fairness, &kept.max_in_flight) {
            (Some(Totals::Fairness(total)), Some(live), _) => {
                let SeatUse {
                    in_use,
                    waiting,
                    rounding,
                } = live.controller().seat_use();
                *seats = PoolUse {
                    total,
                    share: kept.seats(total),
                    in_use,
                    waiting,
                    rejected: 0,
                    rounding,
                };
            }
            (Some(Totals::MaxInFlight(config)), _, Some(limiter)) => {
                let MaxInFlightConfig {
                    read_only,
                    mutating,
                } = kept.slots(config);
                let totals = [(config.read_only, read_only), (config.mutating, mutating)];
                let used = limiter.held().into_iter().zip(limiter.snapshot());
                for ((pool, (total, share)), (in_use, kind)) in
                    slots.iter_mut().zip(totals).zip(used)
                {
                    (pool.total, pool.share) = (total.as_number(), share.as_number());
                    (pool.in_use, pool.rejected) = (in_use, kind.rejected);
                }
            }
            _ => {}
        }
        pools
    }

    /// This process' part of the total, and the total.
    pub(crate) fn part_of_total(&self) -> (u32, u32) {
        let kept = self.kept.lock();
        match kept.totals() {
            Some(Totals::Fairness(total)) => (kept.seats(total), total),
            Some(Totals::MaxInFlight(config)) => {
                let total = config.read_only.as_number();
                (kept.slots(config).read_only.as_number(), total)
            }
            None => (1, 1),
        }
    }

    /// This process' part of each total, from now on; `None` for all of it. One request can execute
    /// in any case.
    pub(crate) fn set_shares(&self, now: Instant, shares: Option<[u32; POOLS]>) {
        let mut kept = self.kept.lock();
        if kept.shares == shares {
            return;
        }
        kept.shares = shares;
        kept.resize(now);
    }

    /// Changes the total of the mode in force, of all replicas, in seats; `None` for the configured
    /// one. Requests that wait or execute keep their places.
    pub(crate) fn set_total(&self, now: Instant, total: Option<u32>) {
        let mut kept = self.kept.lock();
        kept.total = total;
        kept.resize(now);
    }

    /// Puts priority and fairness in force, with the objects of these files, and with `total` instead
    /// of the configured total. The cluster's objects that were in force before stay if
    /// `reads_cluster`. Max-in-flight admits no new requests, and
    /// keeps those that it has.
    pub(crate) fn apply_fairness(
        &self,
        now: Instant,
        mut config: ControllerConfig,
        total: Option<u32>,
        files: Vec<(Object, SourceLocation)>,
        reads_cluster: bool,
    ) -> LimiterInForce {
        let mut kept = self.kept.lock();
        kept.configured = Some(Totals::Fairness(config.server_concurrency_limit));
        kept.total = total;
        kept.is_dry_run = config.enforcement == Enforcement::DryRun;
        config.enforcement = kept.enforcement(&self.enforcement);
        self.show_dry_run(&kept);
        config.server_concurrency_limit =
            kept.seats(total.unwrap_or(config.server_concurrency_limit));
        if let Some(limiter) = &kept.max_in_flight {
            limiter.hide_limits();
        }
        let (live, started) = match &kept.fairness {
            Some(live) => {
                live.controller().set_config(now, config);
                live.set_files(now, files);
                if !reads_cluster {
                    live.remove_cluster(now);
                }
                live.set_in_force(now, true);
                (Arc::clone(live), None)
            }
            None => {
                let files = FlowcontrolSources::from_files(files);
                let (in_flight, registry) = (&self.in_flight, &self.registry);
                let live = LiveObjects::with_in_flight(config, files, in_flight, registry);
                let started = Arc::clone(live.controller());
                (live, Some(started))
            }
        };
        kept.fairness = Some(Arc::clone(&live));
        kept.apply_reserved(now);
        LimiterInForce {
            admission: Admission::Fairness(Arc::clone(live.controller())),
            flowcontrol: Some(live),
            started,
        }
    }

    /// Puts max-in-flight in force, with `total` instead of the configured one. Priority and fairness admits no new requests, and keeps those
    /// that it has.
    pub(crate) fn apply_max_in_flight(
        &self,
        now: Instant,
        config: MaxInFlightConfig,
        enforcement: Enforcement,
        total: Option<u32>,
    ) -> LimiterInForce {
        let mut kept = self.kept.lock();
        kept.configured = Some(Totals::MaxInFlight(config));
        kept.total = total;
        kept.is_dry_run = enforcement == Enforcement::DryRun;
        self.show_dry_run(&kept);
        let config = kept.slots(total.map_or(config, MaxInFlightConfig::divided));
        if let Some(live) = &kept.fairness {
            live.set_in_force(now, false);
        }
        let limiter = match &kept.max_in_flight {
            Some(limiter) => {
                limiter.set_limits(config);
                Arc::clone(limiter)
            }
            None => {
                let (in_flight, registry) = (&self.in_flight, &self.registry);
                Arc::new(MaxInFlight::with_in_flight(config, in_flight, registry))
            }
        };
        limiter.set_dry_run(self.enforcement.is_dry_run(kept.is_dry_run));
        kept.max_in_flight = Some(Arc::clone(&limiter));
        kept.apply_reserved(now);
        LimiterInForce {
            admission: Admission::MaxInFlight(limiter),
            flowcontrol: None,
            started: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::flowcontrol::controller::RequestTimes;
    use crate::limits::admission::AdmissionPermit;
    use crate::limits::rejection::Rejection;
    use weir_base::clock::Clock;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::api::user::GROUP_AUTHENTICATED;
    use weir_kubernetes::request_info::RequestInfo;
    use weir_limits::AdmissionAttributes;

    const LEVEL: &str = "global-default";

    fn fairness(limiters: &Limiters) -> LimiterInForce {
        let config = ControllerConfig {
            server_concurrency_limit: 600,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        limiters.apply_fairness(Clock.now(), config, None, Vec::new(), false)
    }

    fn max_in_flight(limiters: &Limiters) -> LimiterInForce {
        let config = MaxInFlightConfig {
            read_only: 3.into(),
            mutating: 1.into(),
        };
        limiters.apply_max_in_flight(Clock.now(), config, Enforcement::Enforce, None)
    }

    #[tokio::test]
    async fn shares_limit_both_modes_and_the_totals_stay_as_configured() {
        let limiters = Limiters::new(&Registry::new());
        limiters.set_shares(Clock.now(), Some([100, 1, 1]));
        let limiter = max_in_flight(&limiters);
        let first = read(&limiter).await;
        assert!(first.is_ok() && read(&limiter).await.is_err());
        let [seats, read_only, mutating] = limiters.pools();
        assert_eq!((seats.total, read_only.total, mutating.total), (0, 3, 1));
        assert_eq!((read_only.in_use, read_only.rejected), (1, 1));
        limiters.set_shares(Clock.now(), Some([100, 2, 1]));
        assert!(read(&limiter).await.is_ok());
        let limiter = fairness(&limiters);
        let seats_of = || {
            let controller = limiter.flowcontrol.as_ref().unwrap().controller();
            let levels = controller.summaries();
            let level = levels.iter().find(|level| level.name == LEVEL).unwrap();
            level.seats.as_ref().unwrap().limits.nominal
        };
        assert_eq!(seats_of(), 9, "20 of 245 shares of 100 seats, rounded up");
        limiters.set_shares(Clock.now(), None);
        assert_eq!(seats_of(), 49);
        limiters.set_shares(Clock.now(), Some([20, 2, 1]));
        assert_eq!(seats_of(), 2);
        let seat = read(&limiter).await;
        let [seats, read_only, _] = limiters.pools();
        assert_eq!((seats.total, seats.in_use, read_only.total), (600, 1, 0));
        assert!(seats.rounding > 0 && seats.rounding < 12, "{seats:?}");
        drop(seat);
    }

    #[tokio::test]
    async fn an_override_of_enforcement_stays_when_a_limiter_is_put_in_force() {
        let limiters = Limiters::new(&Registry::new());
        let _fairness = fairness(&limiters);
        limiters.set_enforcement(EnforcementOverride::DryRun);
        let limiter = max_in_flight(&limiters);
        let mut permits = Vec::new();
        for _ in 0..5 {
            permits.push(read(&limiter).await.unwrap());
        }
        let [_, read_only, _] = limiters.pools();
        assert_eq!((read_only.in_use, read_only.rejected), (3, 2));
        let controller = fairness(&limiters).flowcontrol.unwrap();
        assert!(controller.controller().is_dry_run());
        limiters.set_enforcement(EnforcementOverride::Configured);
        assert!(!controller.controller().is_dry_run());
        assert!(read(&max_in_flight(&limiters)).await.is_err());
    }

    async fn read(limiter: &LimiterInForce) -> Result<AdmissionPermit, Rejection> {
        let attributes = AdmissionAttributes {
            info: &RequestInfo::parse("GET", b"/api/v1/pods").unwrap(),
            user: &UserInfo {
                groups: vec![GROUP_AUTHENTICATED.to_owned()],
                ..UserInfo::default()
            },
        };
        let times = RequestTimes::at(Clock.now());
        limiter.admission.admit(&attributes, times).await
    }

    fn held_by_another() -> HeldSeats {
        HeldSeats {
            levels: [(LEVEL.to_owned(), 2)].into(),
            read_only: 2,
            mutating: 0,
        }
    }

    #[tokio::test]
    async fn slots_of_another_process_are_left_to_it_by_a_limiter_that_comes_into_force_later() {
        let limiters = Limiters::new(&Registry::new());
        let _fairness = fairness(&limiters);
        limiters.reserve(Clock.now(), held_by_another());
        assert_eq!(limiters.held(), held_by_another(), "for a third process");
        let limiter = max_in_flight(&limiters);
        let first = read(&limiter).await;
        assert!(first.is_ok() && read(&limiter).await.is_err());
        let held = limiters.held();
        assert_eq!((held.read_only, held.levels[LEVEL]), (3, 2));
        // The other process ends while the mode is another one.
        let _fairness = fairness(&limiters);
        limiters.reserve(Clock.now(), HeldSeats::default());
        let limiter = max_in_flight(&limiters);
        let second = read(&limiter).await;
        let third = read(&limiter).await;
        assert!(second.is_ok() && third.is_ok() && read(&limiter).await.is_err());
        assert_eq!(limiters.held().read_only, 3);
    }

    #[tokio::test]
    async fn seats_of_another_process_are_left_to_it_after_a_switch_to_fairness() {
        let limiters = Limiters::new(&Registry::new());
        let limiter = max_in_flight(&limiters);
        let slot = read(&limiter).await.unwrap();
        limiters.reserve(Clock.now(), held_by_another());
        let limiter = fairness(&limiters);
        let level = || limiters.held().levels.get(LEVEL).copied();
        assert_eq!(level(), Some(2));
        let seat = read(&limiter).await.unwrap();
        assert_eq!(level(), Some(3));
        assert_eq!(limiters.held().read_only, 3, "the slot is held, too");
        drop((seat, slot));
        limiters.reserve(Clock.now(), HeldSeats::default());
        assert_eq!(limiters.held(), HeldSeats::default());
    }
}
