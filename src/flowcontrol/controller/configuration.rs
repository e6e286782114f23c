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

use super::snapshot::Snapshot;
use crate::flowcontrol::allocation::AllocationError;
use crate::flowcontrol::concurrency::Concurrency;
use crate::flowcontrol::demand::Period;
use crate::flowcontrol::in_flight::InFlight;
use crate::flowcontrol::in_flight::Limits;
use crate::flowcontrol::level::PriorityLevel;
use crate::flowcontrol::matching;
use crate::flowcontrol::matching::Matcher;
use crate::flowcontrol::queue_set::Queuing;
use crate::flowcontrol::shares::LevelSpec;
use crate::request_info::RequestKind;

#[derive(Debug)]
pub(super) struct Configuration {
    matcher: Arc<Matcher>,
    concurrency: Concurrency,
    /// All levels that have ever been, by name.
    levels: BTreeMap<String, Known>,
    in_flight: Arc<InFlight>,
    drained: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct Known {
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
        in_flight: &Arc<InFlight>,
        drained: &Arc<Notify>,
    ) -> (Self, Snapshot) {
        let mut configuration = Self {
            matcher: Arc::new(matcher),
            concurrency: Concurrency::new(server_concurrency_limit),
            levels: BTreeMap::new(),
            in_flight: Arc::clone(in_flight),
            drained: Arc::clone(drained),
        };
        configuration.divide(now);
        let snapshot = Snapshot::new(&configuration.matcher, &configuration.levels);
        (configuration, snapshot)
    }

    /// Goes by these objects from now on.
    pub(super) fn replace(
        &mut self,
        now: Instant,
        matcher: Matcher,
        published: &ArcSwap<Snapshot>,
    ) {
        self.matcher = Arc::new(matcher);
        self.digest(now, published);
    }

    /// Divides so many seats from now on.
    pub(super) fn resize(&mut self, now: Instant, seats: u32, published: &ArcSwap<Snapshot>) {
        self.concurrency.set_server_concurrency_limit(seats);
        self.digest(now, published);
    }

    /// Takes in the objects (again), and lets go of levels that have drained.
    ///
    /// Seats are divided before anybody can come by the new configuration, and levels are closed
    /// after nobody comes by the old one. Only who was on the way in between meets a closed level.
    pub(super) fn digest(&mut self, now: Instant, published: &ArcSwap<Snapshot>) {
        self.divide(now);
        published.store(Arc::new(Snapshot::new(&self.matcher, &self.levels)));
        let mut late = false;
        for known in self.levels.values() {
            if known.level.in_use() && !self.is_wanted(known.level.name()) {
                let was_idle = !self.has_seats(known.level.name());
                late |= !known.level.close(now) && was_idle;
            }
        }
        if late {
            self.divide(now); // a request slipped into a level that was taken to have gone
        }
    }

    /// Ends a period of borrowing.
    pub(super) fn adjust(&mut self, now: Instant) {
        let levels = &self.levels;
        let adjusted = self.concurrency.adjust(|name| demand(levels, now, name));
        self.install(now, adjusted);
    }

    /// The levels that are in use, by name.
    pub(super) fn in_use(&self) -> Vec<Arc<PriorityLevel>> {
        let levels = self.all().into_iter();
        levels.filter(|level| level.in_use()).collect()
    }

    /// Also those that are gone, by name.
    pub(super) fn all(&self) -> Vec<Arc<PriorityLevel>> {
        self.levels
            .values()
            .map(|known| Arc::clone(&known.level))
            .collect()
    }

    pub(super) const fn fair_fraction(&self) -> f64 {
        self.concurrency.fair_fraction()
    }

    fn divide(&mut self, now: Instant) {
        let matcher = Arc::clone(&self.matcher);
        for level in matcher.levels() {
            self.open(now, level);
        }
        let draining = |known: &&Known| known.level.in_use() && !known.level.is_idle();
        let specs = self
            .levels
            .values()
            .filter(|known| self.is_wanted(known.level.name()) || draining(known))
            .map(|known| known.spec.clone())
            .collect();
        let levels = &self.levels;
        let divided = self
            .concurrency
            .configure(specs, |name| demand(levels, now, name));
        self.install(now, divided);
        let limits = Limits {
            running: Some(self.concurrency.nominal_limit_sum()),
            waiting: Some(self.places()),
        };
        for kind in RequestKind::ALL {
            self.in_flight.set_limits(kind, now, limits);
        }
    }

    fn open(&mut self, now: Instant, level: &matching::Level) {
        let spec = &level.spec;
        match self.levels.get_mut(&spec.name) {
            // What it was when there was an object.
            Some(known) if level.imagined && known.level.in_use() => {}
            Some(known) => {
                known.level.open(now, spec.queuing);
                (known.uid, known.spec) = (level.uid.clone(), spec.clone());
            }
            None => {
                let Self {
                    in_flight, drained, ..
                } = self;
                let known = Known {
                    level: PriorityLevel::new(&spec.name, now, spec.queuing, in_flight, drained),
                    uid: level.uid.clone(),
                    spec: spec.clone(),
                };
                self.levels.insert(spec.name.clone(), known);
            }
        }
    }

    fn install(&self, now: Instant, divided: Result<(), AllocationError>) {
        if let Err(why) = divided {
            warn!(%why, "priority levels keep the seats they have: these cannot be divided");
        }
        for seats in self.concurrency.levels() {
            if let Some(known) = self.levels.get(&seats.spec.name) {
                let denominator = self.concurrency.denominator(seats);
                known.level.install(now, seats, denominator);
            }
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
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
    fn places(&self) -> u64 {
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
fn demand(levels: &BTreeMap<String, Known>, now: Instant, name: &str) -> Period {
    levels.get(name).map_or(
        Period {
            seconds: 0.0,
            min: 0.0,
            max: 0.0,
            moments: None,
        },
        |known| known.level.end_period(now),
    )
}
