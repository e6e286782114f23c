//! Turns configuration objects into levels: opens and drains them, and allocates their seats.
//!
//! This is the digest of `apf_controller.go` (Kubernetes 1.36). The controller keeps it under a
//! lock that no request takes. Levels that stay keep their queues and statistics. A level that is
//! removed from the objects first drains, and keeps its seats meanwhile. Then it is closed. Its
//! counters remain until they were surely scraped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use tracing::warn;

use super::snapshot::{ConfigSnapshot, LevelEntry};
use crate::flowcontrol::level::{MAX_RETAINED, PriorityLevel, RETENTION};
use weir_base::sync::Notify;
use weir_flowcontrol::concurrency::ConcurrencyLimits;
use weir_flowcontrol::concurrency::allocation::AllocationError;
use weir_flowcontrol::concurrency::demand::DemandPeriod;
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::matching::{CompiledLevel, Matcher};
use weir_kubernetes::numeric::{saturating_u32, saturating_u64};
use weir_kubernetes::request_info::RequestKind;
use weir_limits::in_flight::{InFlightMetrics, UtilizationLimits};

#[derive(Debug)]
pub(super) struct Configuration {
    matcher: Arc<Matcher>,
    concurrency: ConcurrencyLimits,
    /// All levels that exist or have existed until some time ago, by name.
    levels: BTreeMap<String, LevelEntry>,
    in_flight: Arc<InFlightMetrics>,
    drained: Arc<Notify>,
    /// Whether new requests come here. Otherwise another limiter's limits are those that the
    /// requests in flight are measured against.
    is_in_force: bool,
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
            is_in_force: true,
        };
        configuration.allocate_seats(now);
        let snapshot = ConfigSnapshot::new(&configuration.matcher, &configuration.levels);
        (configuration, snapshot)
    }

    pub(super) const fn is_in_force(&self) -> bool {
        self.is_in_force
    }

    pub(super) fn set_in_force(&mut self, now: Instant, in_force: bool) {
        self.is_in_force = in_force;
        self.publish_limits(now);
    }

    /// Replaces the configured objects.
    pub(super) fn set_matcher(
        &mut self,
        now: Instant,
        matcher: Matcher,
        published: &ArcSwap<ConfigSnapshot>,
    ) {
        self.matcher = Arc::new(matcher);
        self.digest(now, published);
    }

    /// Changes the number of seats that the levels share.
    pub(super) fn set_server_concurrency_limit(
        &mut self,
        now: Instant,
        seats: u32,
        published: &ArcSwap<ConfigSnapshot>,
    ) {
        self.concurrency.set_server_concurrency_limit(seats);
        self.digest(now, published);
    }

    /// Changes the number of seats that the levels share, within a borrowing period.
    pub(super) fn resize(&mut self, now: Instant, seats: u32) {
        let resized = self.concurrency.resize(seats);
        self.apply_limits(now, resized);
        self.publish_limits(now);
    }

    /// How many seats the levels have together beyond those that they share, by rounding.
    pub(super) fn rounding(&self, seats: u32) -> u32 {
        let sum = saturating_u32(self.concurrency.nominal_limit_sum());
        sum.saturating_sub(seats)
    }

    /// Applies the objects (again), and closes levels that have drained.
    ///
    /// Seats are allocated before a request can see the new snapshot. Levels are closed after the
    /// new snapshot has replaced the old one. Only a request that loaded the old snapshot meets a
    /// closed level.
    pub(super) fn digest(&mut self, now: Instant, published: &ArcSwap<ConfigSnapshot>) {
        self.allocate_seats(now);
        let snapshot = Arc::new(ConfigSnapshot::new(&self.matcher, &self.levels));
        published.store(Arc::clone(&snapshot));
        let mut is_stale = false;
        let mut closed = Vec::new();
        for (name, entry) in &self.levels {
            entry
                .level
                .retain_schemas(now, &snapshot.slots_of(&entry.level));
            if entry.level.is_in_use() && !self.is_configured(name) {
                let was_idle = !self.has_seats(name);
                if entry.level.close(now) {
                    closed.push(name.clone());
                } else {
                    is_stale |= was_idle;
                }
            }
        }
        for name in closed {
            if let Some(entry) = self.levels.get_mut(&name) {
                entry.closed_at = Some(now);
            }
        }
        if is_stale {
            self.allocate_seats(now); // a request arrived at a level that was taken to be idle
        }
        self.forget_closed_levels(now);
    }

    /// Forgets levels that were closed some time ago, with their counters. A request that was
    /// classified long before finds its level closed and is classified again.
    fn forget_closed_levels(&mut self, now: Instant) {
        let mut closed: Vec<Instant> = self
            .levels
            .values()
            .filter_map(|entry| entry.closed_at)
            .collect();
        closed.sort_unstable();
        let excess = closed.len().saturating_sub(MAX_RETAINED);
        let cut_off = excess.checked_sub(1).and_then(|last| closed.get(last));
        let cut_off = cut_off.copied();
        self.levels.retain(|_, entry| {
            entry.closed_at.is_none_or(|at| {
                now.saturating_duration_since(at) < RETENTION && cut_off.is_none_or(|end| at > end)
            })
        });
    }

    /// Ends a borrowing period.
    pub(super) fn adjust(&mut self, now: Instant) {
        let levels = &self.levels;
        let adjusted = self
            .concurrency
            .adjust(|name| end_demand_period(levels, now, name));
        self.apply_limits(now, adjusted);
        for entry in self.levels.values() {
            entry.level.drop_old_counters(now);
        }
        self.forget_closed_levels(now);
    }

    /// The levels that are in use, by name.
    pub(super) fn levels_in_use(&self) -> Vec<Arc<PriorityLevel>> {
        let levels = self.all_levels().into_iter();
        levels.filter(|level| level.is_in_use()).collect()
    }

    /// All levels, also closed ones, by name.
    pub(super) fn all_levels(&self) -> Vec<Arc<PriorityLevel>> {
        self.levels
            .values()
            .map(|entry| Arc::clone(&entry.level))
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
        let draining = |entry: &&LevelEntry| entry.level.is_in_use() && !entry.level.is_idle();
        let specs = self
            .levels
            .values()
            .filter(|entry| self.is_configured(entry.level.name()) || draining(entry))
            .map(|entry| entry.spec.clone())
            .collect();
        let levels = &self.levels;
        let result = self
            .concurrency
            .configure(specs, |name| end_demand_period(levels, now, name));
        self.apply_limits(now, result);
        self.publish_limits(now);
    }

    /// Sets the limits that the requests in flight are measured against.
    fn publish_limits(&self, now: Instant) {
        if !self.is_in_force {
            return;
        }
        let limits = UtilizationLimits {
            executing: Some(self.concurrency.nominal_limit_sum()),
            waiting: Some(self.queue_capacity()),
        };
        for kind in RequestKind::ALL {
            self.in_flight.set_limits(kind, now, limits);
        }
    }

    fn open_level(&mut self, now: Instant, level: &CompiledLevel) {
        let spec = &level.spec;
        match self.levels.get_mut(&spec.name) {
            // Keeps the spec of its last object.
            Some(entry) if level.imagined && entry.level.is_in_use() => {}
            Some(entry) => {
                entry.level.open(now, spec.queuing);
                entry.closed_at = None;
                (entry.uid, entry.spec) = (level.uid.clone(), spec.clone());
            }
            None => {
                let Self {
                    in_flight, drained, ..
                } = self;
                let entry = LevelEntry {
                    level: PriorityLevel::new(&spec.name, now, spec.queuing, in_flight, drained),
                    uid: level.uid.clone(),
                    spec: spec.clone(),
                    closed_at: None,
                };
                self.levels.insert(spec.name.clone(), entry);
            }
        }
    }

    fn apply_limits(&self, now: Instant, result: Result<(), AllocationError>) {
        if let Err(why) = result {
            warn!(%why, "priority levels keep the seats they have: these cannot be divided");
        }
        for seats in self.concurrency.levels() {
            if let Some(entry) = self.levels.get(&seats.spec.name) {
                let denominator = self.concurrency.utilization_denominator(seats);
                entry.level.apply_limits(now, seats, denominator);
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

    /// The number of requests that all queues together can hold.
    fn queue_capacity(&self) -> u64 {
        let levels = self.concurrency.levels().iter();
        let capacities = levels.map(|level| match level.spec.queuing {
            Queuing::Queue {
                dealer,
                queue_length_limit,
            } => dealer.deck_size().saturating_mul(queue_length_limit),
            Queuing::Exempt | Queuing::Reject => 0,
        });
        saturating_u64(capacities.fold(0, usize::saturating_add))
    }
}

/// The demand since the end of the last period. No demand for an unknown level.
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
        |entry| entry.level.end_demand_period(now),
    )
}
