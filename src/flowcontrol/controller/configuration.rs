//! From objects to levels: which there are, which are going, and how many seats each has.
//!
//! The digest of `apf_controller.go` (Kubernetes 1.36). Its owner keeps it under a lock that no
//! request takes. Levels that stay keep their queues and their memory. One that is gone from the
//! objects drains first, without giving up its seats; after that it is closed, and only what was
//! counted of it remains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tracing::warn;

use super::snapshot::ConfigSnapshot;
use crate::flowcontrol::concurrency::ConcurrencyLimits;
use crate::flowcontrol::concurrency::allocation::AllocationError;
use crate::flowcontrol::concurrency::demand::DemandPeriod;
use crate::flowcontrol::concurrency::level_limits::LevelSpec;
use crate::flowcontrol::fairqueuing::queue_set::Queuing;
use crate::flowcontrol::level::PriorityLevel;
use crate::flowcontrol::matching;
use crate::flowcontrol::matching::Matcher;
use crate::flowcontrol::metrics::in_flight::InFlightMetrics;
use crate::flowcontrol::metrics::in_flight::UtilizationLimits;
use crate::request_info::RequestKind;

#[derive(Debug)]
pub(super) struct Configuration {
    matcher: Arc<Matcher>,
    concurrency: ConcurrencyLimits,
    /// All levels that have ever been, by name.
    levels: BTreeMap<String, LevelEntry>,
    in_flight: Arc<InFlightMetrics>,
    drained: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct LevelEntry {
    pub(super) level: Arc<PriorityLevel>,
    /// Its object's; empty if there is none.
    pub(super) uid: String,
    /// What its object says, or said last.
    spec: LevelSpec,
}

impl Configuration {
    pub(super) fn new(
        now: Instant,
        server_concurrency_limit: u32,
        matcher: Matcher,
        in_flight: &Arc<InFlightMetrics>,
        drained: &Arc<Notify>,
    ) -> (Self, ConfigSnapshot) {
        let mut configuration = Self {
            matcher: Arc::new(matcher),
            concurrency: ConcurrencyLimits::new(server_concurrency_limit),
            levels: BTreeMap::new(),
            in_flight: Arc::clone(in_flight),
            drained: Arc::clone(drained),
        };
        configuration.allocate_seats(now);
        let snapshot = ConfigSnapshot::new(&configuration.matcher, &configuration.levels);
        (configuration, snapshot)
    }

    /// Goes by these objects from now on.
    pub(super) fn set_matcher(
        &mut self,
        now: Instant,
        matcher: Matcher,
        published: &ArcSwap<ConfigSnapshot>,
    ) {
        self.matcher = Arc::new(matcher);
        self.digest(now, published);
    }

    /// Divides so many seats from now on.
    pub(super) fn set_server_concurrency_limit(
        &mut self,
        now: Instant,
        seats: u32,
        published: &ArcSwap<ConfigSnapshot>,
    ) {
        self.concurrency.set_server_concurrency_limit(seats);
        self.digest(now, published);
    }

    /// Takes in the objects (again), and lets go of levels that have drained.
    ///
    /// Seats are divided before anybody can come by the new configuration, and levels are closed
    /// after nobody comes by the old one. Only who was on the way in between meets a closed level.
    pub(super) fn digest(&mut self, now: Instant, published: &ArcSwap<ConfigSnapshot>) {
        self.allocate_seats(now);
        published.store(Arc::new(ConfigSnapshot::new(&self.matcher, &self.levels)));
        let mut late = false;
        for known in self.levels.values() {
            if known.level.is_in_use() && !self.is_configured(known.level.name()) {
                let was_idle = !self.has_seats(known.level.name());
                late |= !known.level.close(now) && was_idle;
            }
        }
        if late {
            self.allocate_seats(now); // a request slipped into a level that was taken to have gone
        }
    }

    /// Ends a period of borrowing.
    pub(super) fn adjust(&mut self, now: Instant) {
        let levels = &self.levels;
        let adjusted = self
            .concurrency
            .adjust(|name| end_demand_period(levels, now, name));
        self.apply_limits(now, adjusted);
    }

    /// The levels that are in use, by name.
    pub(super) fn levels_in_use(&self) -> Vec<Arc<PriorityLevel>> {
        let levels = self.all_levels().into_iter();
        levels.filter(|level| level.is_in_use()).collect()
    }

    /// Also those that are gone, by name.
    pub(super) fn all_levels(&self) -> Vec<Arc<PriorityLevel>> {
        self.levels
            .values()
            .map(|known| Arc::clone(&known.level))
            .collect()
    }

    pub(super) const fn fair_fraction(&self) -> f64 {
        self.concurrency.fair_fraction()
    }

    fn allocate_seats(&mut self, now: Instant) {
        let matcher = Arc::clone(&self.matcher);
        for level in matcher.levels() {
            self.open_level(now, level);
        }
        let draining = |known: &&LevelEntry| known.level.is_in_use() && !known.level.is_idle();
        let specs = self
            .levels
            .values()
            .filter(|known| self.is_configured(known.level.name()) || draining(known))
            .map(|known| known.spec.clone())
            .collect();
        let levels = &self.levels;
        let divided = self
            .concurrency
            .configure(specs, |name| end_demand_period(levels, now, name));
        self.apply_limits(now, divided);
        let limits = UtilizationLimits {
            executing: Some(self.concurrency.nominal_limit_sum()),
            waiting: Some(self.queue_capacity()),
        };
        for kind in RequestKind::ALL {
            self.in_flight.set_limits(kind, now, limits);
        }
    }

    fn open_level(&mut self, now: Instant, level: &matching::CompiledLevel) {
        let spec = &level.spec;
        match self.levels.get_mut(&spec.name) {
            // What it was when there was an object.
            Some(known) if level.imagined && known.level.is_in_use() => {}
            Some(known) => {
                known.level.open(now, spec.queuing);
                (known.uid, known.spec) = (level.uid.clone(), spec.clone());
            }
            None => {
                let Self {
                    in_flight, drained, ..
                } = self;
                let known = LevelEntry {
                    level: PriorityLevel::new(&spec.name, now, spec.queuing, in_flight, drained),
                    uid: level.uid.clone(),
                    spec: spec.clone(),
                };
                self.levels.insert(spec.name.clone(), known);
            }
        }
    }

    fn apply_limits(&self, now: Instant, divided: Result<(), AllocationError>) {
        if let Err(why) = divided {
            warn!(%why, "priority levels keep the seats they have: these cannot be divided");
        }
        for seats in self.concurrency.levels() {
            if let Some(known) = self.levels.get(&seats.spec.name) {
                let denominator = self.concurrency.utilization_denominator(seats);
                known.level.apply_limits(now, seats, denominator);
            }
        }
    }

    fn is_configured(&self, name: &str) -> bool {
        let levels = self.matcher.levels();
        levels
            .binary_search_by(|level| level.spec.name.as_str().cmp(name))
            .is_ok()
    }

    fn has_seats(&self, name: &str) -> bool {
        let mut levels = self.concurrency.levels().iter();
        levels.any(|level| level.spec.name == name)
    }

    /// The requests that all queues together may hold.
    fn queue_capacity(&self) -> u64 {
        let levels = self.concurrency.levels().iter();
        let places = levels.map(|level| match level.spec.queuing {
            Queuing::Queue {
                dealer,
                queue_length_limit,
            } => dealer.deck_size().saturating_mul(queue_length_limit),
            Queuing::Exempt | Queuing::Reject => 0,
        });
        u64::try_from(places.fold(0, usize::saturating_add)).unwrap_or(u64::MAX)
    }
}

/// The demand since the last period's end; of a level that is unknown, none.
fn end_demand_period(
    levels: &BTreeMap<String, LevelEntry>,
    now: Instant,
    name: &str,
) -> DemandPeriod {
    levels.get(name).map_or(
        DemandPeriod {
            seconds: 0.0,
            min: 0.0,
            max: 0.0,
            moments: None,
        },
        |known| known.level.end_demand_period(now),
    )
}
