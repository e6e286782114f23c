//! Moves seats from levels that do not need theirs to levels that do, as often as it is asked.
//!
//! Each level keeps what it currently needs of its own seats; what is left goes where demand is, in
//! proportion to it. What an exempt level uses comes first, for it cannot be limited: the others
//! share the rest, and only if it does not suffice for what they need are they cut, down to what
//! they never lend. `updateBorrowingLocked` of Kubernetes 1.36.
//!
//! One call is one adjustment, and has no memory; demand is smoothed in
//! [`demand`](crate::flowcontrol::concurrency::demand).

use crate::flowcontrol::concurrency::allocation::AllocationClass;
use crate::flowcontrol::concurrency::allocation::AllocationError;
use crate::flowcontrol::concurrency::allocation::allocate;
use crate::flowcontrol::concurrency::demand::SmoothedDemand;
use crate::flowcontrol::concurrency::level_limits::LevelLimits;

/// What a level brings to an adjustment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BorrowingInput {
    /// Whether the level is exempt.
    pub exempt: bool,
    /// Its limits by configuration.
    pub limits: LevelLimits,
    /// What it wants.
    pub demand: SmoothedDemand,
}

/// What one level takes away from an adjustment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeatAllocation {
    /// `minCurrentCL`: what it needs of its own seats now.
    pub min_current: u32,
    /// What it would have if seats could be had without limit.
    pub target: f64,
    /// `currentCL`: the seats it has until the next adjustment. None: as many as before.
    pub current: Option<u32>,
}

/// The outcome of an adjustment.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustment {
    /// One for each claim, in their order.
    pub allocations: Vec<SeatAllocation>,
    /// The part of its target that an unbounded level got; 0 when seats were too scarce to share.
    pub fair_fraction: f64,
    /// Why the limited levels keep what they have: their configuration leaves no way to divide the
    /// seats (it allows them, all together, to borrow less than is left).
    pub error: Option<AllocationError>,
}

/// Divides the seats anew.
#[must_use]
pub fn compute_adjustment(claims: &[BorrowingInput]) -> Adjustment {
    let mut shares: Vec<SeatAllocation> = claims
        .iter()
        .map(BorrowingInput::initial_allocation)
        .collect();
    let nominal: i64 = claims
        .iter()
        .map(|claim| i64::from(claim.limits.nominal))
        .sum();
    let (mut remaining, mut lower, mut needed) = (nominal, 0, 0);
    for (claim, share) in claims.iter().zip(&shares) {
        if claim.exempt {
            remaining -= i64::from(share.min_current);
        } else {
            lower += i64::from(claim.limits.lower);
            needed += i64::from(share.min_current);
        }
    }
    let mut adjustment = Adjustment {
        allocations: Vec::new(),
        fair_fraction: 0.0,
        error: None,
    };
    let limited = claims
        .iter()
        .zip(&mut shares)
        .filter(|(claim, _)| !claim.exempt);
    if remaining <= lower {
        limited.for_each(|(claim, share)| share.current = Some(claim.limits.lower));
    } else if remaining <= needed {
        let part = ratio(remaining - lower, needed - lower);
        limited.for_each(|(claim, share)| share.current = Some(claim.scale_down(share, part)));
    } else {
        // Of all the nominal seats, although an exempt level may be using some: so it is upstream.
        let (classes, limited): (Vec<AllocationClass>, Vec<&mut SeatAllocation>) = limited
            .map(|(claim, share)| (claim.allocation_class(share), share))
            .unzip();
        match allocate(nominal, &classes) {
            Ok(allocation) => {
                adjustment.fair_fraction = allocation.fair_proportion;
                for (share, seats) in limited.into_iter().zip(allocation.allocations) {
                    share.current = Some(round(seats));
                }
            }
            Err(error) => adjustment.error = Some(error),
        }
    }
    adjustment.allocations = shares;
    adjustment
}

impl BorrowingInput {
    /// What the level needs and wants. An exempt one has what it needs at once.
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

    fn allocation_class(&self, share: &SeatAllocation) -> AllocationClass {
        AllocationClass {
            lower_bound: f64::from(share.min_current),
            upper_bound: f64::from(self.limits.upper),
            target: share.target,
        }
    }

    /// What it never lends, and a part of what it needs beyond.
    fn scale_down(&self, share: &SeatAllocation, part: f64) -> u32 {
        let lower = self.limits.lower;
        lower + round(f64::from(share.min_current - lower) * part)
    }
}

#[expect(clippy::as_conversions, reason = "numbers of seats are far below 2^53")]
fn ratio(part: i64, whole: i64) -> f64 {
    part as f64 / whole as f64
}

/// Half away from zero.
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

    /// `workload-high`, `workload-low`, `catch-all` and `exempt` of a server with 870 seats.
    fn levels(high: u32, low: u32, catch_all: u32, exempt: u32) -> [BorrowingInput; 4] {
        [
            input(false, 240, 120, high),
            input(false, 600, 60, low),
            input(false, 30, 30, catch_all),
            input(true, 0, 0, exempt),
        ]
    }

    fn current(claims: &[BorrowingInput]) -> Vec<Option<u32>> {
        compute_adjustment(claims)
            .allocations
            .iter()
            .map(|share| share.current)
            .collect()
    }

    #[test]
    fn levels_keep_their_lower_limits_whatever_exempt_levels_use() {
        let claims = levels(970, 970, 970, 970);
        assert_eq!(current(&claims), [Some(120), Some(60), Some(30), Some(970)]);
        assert_eq!(compute_adjustment(&claims).fair_fraction, 0.0);
    }

    #[test]
    fn seats_short_of_all_needs_are_reduced_in_proportion() {
        let halfway = 870 - (180 + 330 + 30);
        let claims = levels(970, 970, 970, halfway);
        assert_eq!(
            current(&claims),
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
        let claims = [input(false, 100, 10, 300), input(false, 100, 10, 20)];
        let divided = compute_adjustment(&claims);
        assert_eq!(divided.fair_fraction, 0.6);
        assert_eq!(
            current(&claims),
            [Some(180), Some(20)],
            "the second keeps what it needs"
        );
    }

    #[test]
    fn seats_that_no_level_may_borrow_change_nothing() {
        let mut claims = [input(false, 100, 100, 0), input(true, 50, 0, 0)];
        claims[0].limits.upper = 100;
        let divided = compute_adjustment(&claims);
        assert_eq!(divided.allocations[0].current, None);
        assert_eq!(divided.allocations[1].current, Some(0));
        assert!(matches!(
            divided.error,
            Some(AllocationError::SumTooHigh { .. })
        ));
    }
}
