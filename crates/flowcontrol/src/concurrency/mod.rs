//! The seats of all priority levels: configured limits and current limits.
//!
//! This module has all the arithmetic between the configuration objects and the levels' queue sets.
//! The controller passes the levels when they change, and calls
//! [`ConcurrencyLimits::adjust`] every [`BORROWING_ADJUSTMENT_PERIOD`]. It then applies each
//! level's `current_limit`. The caller decides which objects are valid and which levels are
//! imagined or draining. It passes all levels that have requests or may still receive some.

pub mod allocation;
pub mod borrowing;
pub mod demand;
pub mod level_limits;

use std::collections::HashMap;
use std::time::Duration;

use crate::concurrency::allocation::AllocationError;
use crate::concurrency::borrowing::{BorrowingInput, compute_adjustment};
use crate::concurrency::demand::{DemandPeriod, SmoothedDemand};
use crate::concurrency::level_limits::{LevelLimits, LevelSpec, max_seats};
use crate::fairqueuing::queue_set::Queuing;

/// The time for which levels keep borrowed seats: `borrowingAdjustmentPeriod`.
pub const BORROWING_ADJUSTMENT_PERIOD: Duration = Duration::from_secs(10);

/// The seats of one server, divided among its levels.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimits {
    server_concurrency_limit: u32,
    levels: Vec<LevelSeats>,
    fair_fraction: f64,
}

/// The seats of one level.
#[derive(Clone, Debug)]
pub struct LevelSeats {
    /// The configured attributes.
    pub spec: LevelSpec,
    /// The limits that follow from the shares of all levels.
    pub limits: LevelLimits,
    /// The greatest estimate of a request of the level, if that is bounded. A level that stops
    /// queuing keeps its bound, as upstream.
    pub max_seats: Option<u32>,
    /// The demand statistics.
    pub demand: SmoothedDemand,
    /// The seats that the level needs of its own.
    pub min_current_limit: u32,
    /// The seats that the level would have if seats were unlimited.
    pub target: f64,
    /// The seats of the level until the next adjustment.
    pub current_limit: u32,
}

impl ConcurrencyLimits {
    /// A server with this many seats, without levels.
    #[must_use]
    pub const fn new(server_concurrency_limit: u32) -> Self {
        Self {
            server_concurrency_limit,
            levels: Vec::new(),
            fair_fraction: 0.0,
        }
    }

    /// Changes the number of seats. It takes effect with the next [`configure`](Self::configure).
    pub const fn set_server_concurrency_limit(&mut self, server_concurrency_limit: u32) {
        self.server_concurrency_limit = server_concurrency_limit;
    }

    /// Divides the seats among these levels from now on, and adjusts.
    ///
    /// A level that existed before, by name, keeps its demand statistics.
    ///
    /// # Errors
    ///
    /// As for [`adjust`](Self::adjust).
    pub fn configure(
        &mut self,
        specs: Vec<LevelSpec>,
        demand: impl FnMut(&str) -> DemandPeriod,
    ) -> Result<(), AllocationError> {
        let mut before: HashMap<String, LevelSeats> = self
            .levels
            .drain(..)
            .map(|level| (level.spec.name.clone(), level))
            .collect();
        let share_sum = specs
            .iter()
            .map(|spec| u64::from(spec.nominal_concurrency_shares))
            .sum();
        self.levels = specs
            .into_iter()
            .map(|spec| {
                let limits =
                    LevelLimits::from_spec(&spec, share_sum, self.server_concurrency_limit);
                match before.remove(&spec.name) {
                    Some(level) => level.with_spec(spec, limits),
                    None => LevelSeats::new(spec, limits),
                }
            })
            .collect();
        self.adjust(demand)
    }

    /// Ends a period: reads each level's demand and divides the seats again. `demand` is called
    /// once per level, with its name.
    ///
    /// # Errors
    ///
    /// The configuration permits no division. The limited levels keep the seats they have.
    pub fn adjust(
        &mut self,
        mut demand: impl FnMut(&str) -> DemandPeriod,
    ) -> Result<(), AllocationError> {
        for level in &mut self.levels {
            level.demand.update(demand(&level.spec.name));
        }
        self.allocate()
    }

    /// Changes the number of seats and divides them again, by the demand of the last period: the
    /// current one goes on, so that the statistics keep their pace however often this is called.
    ///
    /// # Errors
    ///
    /// As for [`adjust`](Self::adjust).
    pub fn resize(&mut self, server_concurrency_limit: u32) -> Result<(), AllocationError> {
        self.server_concurrency_limit = server_concurrency_limit;
        let shares = self.levels.iter();
        let share_sum = shares
            .map(|level| u64::from(level.spec.nominal_concurrency_shares))
            .sum();
        for level in &mut self.levels {
            let spec = level.spec.clone();
            let limits = LevelLimits::from_spec(&spec, share_sum, server_concurrency_limit);
            *level = level.clone().with_spec(spec, limits);
        }
        self.allocate()
    }

    fn allocate(&mut self) -> Result<(), AllocationError> {
        let inputs: Vec<BorrowingInput> = self
            .levels
            .iter()
            .map(LevelSeats::borrowing_input)
            .collect();
        let adjustment = compute_adjustment(&inputs);
        for (level, allocation) in self.levels.iter_mut().zip(adjustment.allocations) {
            level.min_current_limit = allocation.min_current;
            level.target = allocation.target;
            level.current_limit = allocation.current.unwrap_or(level.current_limit);
        }
        self.fair_fraction = adjustment.fair_fraction;
        adjustment.error.map_or(Ok(()), Err)
    }

    /// The levels, in the order of [`configure`](Self::configure).
    #[must_use]
    pub fn levels(&self) -> &[LevelSeats] {
        &self.levels
    }

    /// The sum of the nominal limits. Rounding makes it larger than the server's limit.
    #[must_use]
    pub fn nominal_limit_sum(&self) -> u64 {
        self.levels
            .iter()
            .map(|level| u64::from(level.limits.nominal))
            .sum()
    }

    /// The part of its target that an unbounded level got: `seat_fair_frac`.
    #[must_use]
    pub const fn fair_fraction(&self) -> f64 {
        self.fair_fraction
    }

    /// The denominator of a level's utilization metrics: its current limit, or a tenth of the
    /// server's if the level has none.
    #[must_use]
    pub fn utilization_denominator(&self, level: &LevelSeats) -> u32 {
        if level.current_limit > 0 {
            return level.current_limit;
        }
        (self.server_concurrency_limit.saturating_add(5) / 10).max(1)
    }
}

impl LevelSeats {
    fn new(spec: LevelSpec, limits: LevelLimits) -> Self {
        let lendable = limits.nominal - limits.lower;
        Self {
            max_seats: max_seats(spec.queuing, limits.nominal),
            spec,
            limits,
            demand: SmoothedDemand::default(),
            min_current_limit: 0,
            target: 0.0,
            current_limit: limits.nominal - lendable / 2,
        }
    }

    fn with_spec(self, spec: LevelSpec, limits: LevelLimits) -> Self {
        let max_seats = max_seats(spec.queuing, limits.nominal).or(self.max_seats);
        Self {
            spec,
            limits,
            max_seats,
            ..self
        }
    }

    fn borrowing_input(&self) -> BorrowingInput {
        BorrowingInput {
            exempt: self.spec.queuing == Queuing::Exempt,
            limits: self.limits,
            demand: self.demand,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::demand::Moments;
    use crate::fairqueuing::shuffle_sharding::Dealer;

    fn spec(name: &str, shares: u32, lendable: u32, queuing: Queuing) -> LevelSpec {
        LevelSpec {
            name: name.to_owned(),
            queuing,
            nominal_concurrency_shares: shares,
            lendable_percent: lendable,
            borrowing_limit_percent: None,
        }
    }

    fn queues() -> Queuing {
        Queuing::Queue {
            dealer: Dealer::new(64, 6).unwrap(),
            queue_length_limit: 50,
        }
    }

    fn constant_demand(seats: f64) -> DemandPeriod {
        let moments = Some(Moments {
            average: seats,
            deviation: 0.0,
        });
        DemandPeriod {
            seconds: 10.0,
            min: seats,
            max: seats,
            moments,
        }
    }

    fn level_named<'a>(concurrency: &'a ConcurrencyLimits, name: &str) -> &'a LevelSeats {
        concurrency
            .levels()
            .iter()
            .find(|level| level.spec.name == name)
            .unwrap()
    }

    #[test]
    fn seats_go_where_the_demand_is_and_come_back() {
        let mut concurrency = ConcurrencyLimits::new(100);
        let specs = vec![
            spec("busy", 50, 50, queues()),
            spec("idle", 50, 80, queues()),
            spec("exempt", 0, 0, Queuing::Exempt),
        ];
        concurrency
            .configure(specs, |_| constant_demand(0.0))
            .unwrap();
        assert_eq!(concurrency.nominal_limit_sum(), 100);
        assert_eq!(level_named(&concurrency, "busy").current_limit, 71);
        let ask = |name: &str| constant_demand(if name == "busy" { 400.0 } else { 2.0 });
        concurrency.adjust(ask).unwrap();
        assert_eq!(level_named(&concurrency, "busy").current_limit, 90);
        assert_eq!(level_named(&concurrency, "idle").current_limit, 10);
        assert_eq!(level_named(&concurrency, "exempt").current_limit, 2);
        concurrency
            .adjust(|name| constant_demand(if name == "idle" { 50.0 } else { 0.0 }))
            .unwrap();
        assert_eq!(level_named(&concurrency, "idle").current_limit, 50);
    }

    #[test]
    fn a_level_keeps_its_demand_statistics_across_a_reconfiguration() {
        let mut concurrency = ConcurrencyLimits::new(100);
        let specs = |queuing| vec![spec("a", 1, 0, queuing), spec("b", 1, 0, queues())];
        concurrency
            .configure(specs(queues()), |_| constant_demand(40.0))
            .unwrap();
        concurrency
            .configure(specs(Queuing::Reject), |_| constant_demand(0.0))
            .unwrap();
        let level = level_named(&concurrency, "a");
        assert!(level.demand.smoothed > 39.0);
        assert_eq!(
            level.max_seats,
            Some(8),
            "what the level allowed when it had queues"
        );
        concurrency
            .configure(vec![spec("b", 1, 0, queues())], |_| constant_demand(0.0))
            .unwrap();
        concurrency
            .configure(specs(Queuing::Reject), |_| constant_demand(0.0))
            .unwrap();
        let level = level_named(&concurrency, "a");
        assert_eq!(
            (level.demand.smoothed, level.max_seats),
            (0.0, None),
            "it was forgotten"
        );
    }

    #[test]
    fn another_number_of_seats_is_divided_by_the_same_demand() {
        let specs = || {
            vec![
                spec("busy", 50, 50, queues()),
                spec("idle", 50, 80, queues()),
            ]
        };
        let ask = |name: &str| constant_demand(if name == "busy" { 400.0 } else { 2.0 });
        let mut concurrency = ConcurrencyLimits::new(100);
        concurrency.configure(specs(), ask).unwrap();
        for seats in [10, 20, 60, 100] {
            concurrency.resize(seats).unwrap();
            // One that had so many from the start, and the same period.
            let mut other = ConcurrencyLimits::new(seats);
            other.configure(specs(), ask).unwrap();
            for (level, expected) in concurrency.levels().iter().zip(other.levels()) {
                assert_eq!(level.limits, expected.limits, "{seats}");
                assert_eq!(level.current_limit, expected.current_limit, "{seats}");
                assert!((level.demand.smoothed - expected.demand.smoothed).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_utilization_denominator_is_positive_even_without_seats() {
        let mut concurrency = ConcurrencyLimits::new(100);
        let specs = vec![
            spec("a", 1, 0, queues()),
            spec("exempt", 0, 0, Queuing::Exempt),
        ];
        concurrency
            .configure(specs, |_| constant_demand(0.0))
            .unwrap();
        assert_eq!(
            concurrency.utilization_denominator(level_named(&concurrency, "a")),
            100
        );
        assert_eq!(
            concurrency.utilization_denominator(level_named(&concurrency, "exempt")),
            10
        );
    }
}
