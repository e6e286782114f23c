//! Moves seats from levels that do not need theirs to levels that do. One call is one adjustment.
//!
//! Each level keeps what it currently needs of its own seats. The remaining seats are distributed
//! in proportion to demand. The seats that an exempt level uses come first, because exempt levels
//! cannot be limited. The other levels share the rest. Only if that does not cover their needs are
//! they cut, down to their lower limits. This is `updateBorrowingLocked` of Kubernetes 1.36.
//!
//! An adjustment has no state. [`demand`](crate::concurrency::demand) smooths the
//! demand.

use crate::concurrency::allocation::{AllocationClass, AllocationError, allocate};
use crate::concurrency::demand::SmoothedDemand;
use crate::concurrency::level_limits::LevelLimits;

/// The input of an adjustment for one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BorrowingInput {
    /// Whether the level is exempt.
    pub exempt: bool,
    /// The limits by configuration, in seats.
    pub limits: LevelLimits,
    /// The demand of the level, in seats.
    pub demand: SmoothedDemand,
}

/// The result of an adjustment for one level.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeatAllocation {
    /// `minCurrentCL`: the seats that the level needs now of its own.
    pub min_current: u32,
    /// The seats that the level would have if seats were unlimited.
    pub target: f64,
    /// `currentCL`: the seats of the level until the next adjustment. `None`: as many as before.
    pub current: Option<u32>,
}

/// The result of an adjustment.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustment {
    /// One for each input, in their order.
    pub allocations: Vec<SeatAllocation>,
    /// The part of its target that an unbounded level got. 0 if there were too few seats to share.
    pub fair_fraction: f64,
    /// The limited levels keep the seats they have, because their configuration permits no division
    /// (together they may borrow less than is left).
    pub error: Option<AllocationError>,
}

/// Computes the seats of all levels until the next adjustment.
#[must_use]
pub fn compute_adjustment(inputs: &[BorrowingInput]) -> Adjustment {
    let mut allocations: Vec<SeatAllocation> = inputs
        .iter()
        .map(BorrowingInput::initial_allocation)
        .collect();
    let nominal: i64 = inputs
        .iter()
        .map(|input| i64::from(input.limits.nominal))
        .sum();
    let (mut remaining, mut lower, mut needed) = (nominal, 0, 0);
    for (input, allocated) in inputs.iter().zip(&allocations) {
        if input.exempt {
            remaining -= i64::from(allocated.min_current);
        } else {
            lower += i64::from(input.limits.lower);
            needed += i64::from(allocated.min_current);
        }
    }
    let mut adjustment = Adjustment {
        allocations: Vec::new(),
        fair_fraction: 0.0,
        error: None,
    };
    let limited = inputs
        .iter()
        .zip(&mut allocations)
        .filter(|(input, _)| !input.exempt);
    if remaining <= lower {
        limited.for_each(|(input, allocated)| allocated.current = Some(input.limits.lower));
    } else if remaining <= needed {
        let fraction = ratio(remaining - lower, needed - lower);
        limited.for_each(|(input, allocated)| {
            allocated.current = Some(input.scale_down(allocated, fraction))
        });
    } else {
        // Of all the nominal seats, although an exempt level may be using some, as upstream.
        let (classes, limited): (Vec<AllocationClass>, Vec<&mut SeatAllocation>) = limited
            .map(|(input, allocated)| (input.allocation_class(allocated), allocated))
            .unzip();
        match allocate(nominal, &classes) {
            Ok(allocation) => {
                adjustment.fair_fraction = allocation.fair_proportion;
                for (allocated, seats) in limited.into_iter().zip(allocation.allocations) {
                    allocated.current = Some(round(seats));
                }
            }
            Err(error) => adjustment.error = Some(error),
        }
    }
    adjustment.allocations = allocations;
    adjustment
}

impl BorrowingInput {
    /// The seats that the level needs, and its target. An exempt level gets its need at once.
    fn initial_allocation(&self) -> SeatAllocation {
        let Self {
            exempt,
            limits,
            demand,
        } = *self;
        let own = if exempt { u32::MAX } else { limits.nominal };
        let min_current = demand.high_watermark.min(own).max(limits.lower);
        SeatAllocation {
            min_current,
            target: f64::from(min_current).max(demand.smoothed),
            current: exempt.then_some(min_current),
        }
    }

    fn allocation_class(&self, allocated: &SeatAllocation) -> AllocationClass {
        AllocationClass {
            lower_bound: f64::from(allocated.min_current),
            upper_bound: f64::from(self.limits.upper),
            target: allocated.target,
        }
    }

    /// The lower limit, and a part of the need above it.
    fn scale_down(&self, allocated: &SeatAllocation, fraction: f64) -> u32 {
        let lower = self.limits.lower;
        lower + round(f64::from(allocated.min_current - lower) * fraction)
    }
}

#[expect(clippy::as_conversions, reason = "numbers of seats are far below 2^53")]
fn ratio(part: i64, whole: i64) -> f64 {
    part as f64 / whole as f64
}

/// Rounds half away from zero.
#[expect(
    clippy::as_conversions,
    reason = "an allocation lies between two numbers of seats"
)]
fn round(seats: f64) -> u32 {
    seats.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(exempt: bool, nominal: u32, lower: u32, high_watermark: u32) -> BorrowingInput {
        let smoothed = f64::from(high_watermark);
        BorrowingInput {
            exempt,
            limits: LevelLimits {
                nominal,
                lower,
                upper: nominal + 870,
            },
            demand: SmoothedDemand {
                high_watermark,
                smoothed,
                ..SmoothedDemand::default()
            },
        }
    }

    /// The levels `workload-high`, `workload-low`, `catch-all` and `exempt` of a server with 870
    /// seats.
    fn levels(high: u32, low: u32, catch_all: u32, exempt: u32) -> [BorrowingInput; 4] {
        [
            input(false, 240, 120, high),
            input(false, 600, 60, low),
            input(false, 30, 30, catch_all),
            input(true, 0, 0, exempt),
        ]
    }

    fn current(inputs: &[BorrowingInput]) -> Vec<Option<u32>> {
        compute_adjustment(inputs)
            .allocations
            .iter()
            .map(|allocated| allocated.current)
            .collect()
    }

    #[test]
    fn levels_keep_their_lower_limits_whatever_exempt_levels_use() {
        let inputs = levels(970, 970, 970, 970);
        assert_eq!(current(&inputs), [Some(120), Some(60), Some(30), Some(970)]);
        assert_eq!(compute_adjustment(&inputs).fair_fraction, 0.0);
    }

    #[test]
    fn seats_short_of_all_needs_are_reduced_in_proportion() {
        let halfway = 870 - (180 + 330 + 30);
        let inputs = levels(970, 970, 970, halfway);
        assert_eq!(
            current(&inputs),
            [Some(180), Some(330), Some(30), Some(halfway)]
        );
    }

    #[test]
    fn a_level_without_demand_lends_all_lendable_seats() {
        assert_eq!(
            current(&levels(970, 1, 970, 540)),
            [Some(240), Some(60), Some(30), Some(540)]
        );
    }

    #[test]
    fn seats_are_divided_in_proportion_to_demand() {
        let inputs = [input(false, 100, 10, 300), input(false, 100, 10, 20)];
        let divided = compute_adjustment(&inputs);
        assert_eq!(divided.fair_fraction, 0.6);
        assert_eq!(
            current(&inputs),
            [Some(180), Some(20)],
            "the second keeps what it needs"
        );
    }

    #[test]
    fn seats_that_no_level_may_borrow_change_nothing() {
        let mut inputs = [input(false, 100, 100, 0), input(true, 50, 0, 0)];
        inputs[0].limits.upper = 100;
        let divided = compute_adjustment(&inputs);
        assert_eq!(divided.allocations[0].current, None);
        assert_eq!(divided.allocations[1].current, Some(0));
        assert!(matches!(
            divided.error,
            Some(AllocationError::SumTooHigh { .. })
        ));
    }
}
