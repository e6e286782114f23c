//! Divides a sum among classes in proportion to their targets, within bounds.
//!
//! This is the one problem that borrowing has to solve. Every class has a target, a lower and an
//! upper bound, and the whole sum must be allocated. The solution is one proportion p such that
//! class i gets
//!
//! 1. p × targetᵢ, if that is within its bounds;
//! 2. its lower bound, if that is more;
//! 3. its upper bound, if that is less;
//!
//! and the allocations add up to the sum. It exists whenever the sum is between the sums of the
//! bounds, and the allocations are then unique. This is `computeConcurrencyAllocation` of
//! Kubernetes 1.36, operation by operation, because the results are rounded to seats afterwards.
//!
//! This module is pure arithmetic and knows nothing of priority levels.

/// Targets below this count as this, so that idle classes share what no class wants.
const MIN_TARGET: f64 = 0.001;

/// Sums that differ by less are equal. It is far above the rounding errors of a few dozen terms,
/// and far below a seat.
const EPSILON: f64 = 1e-7;

/// One of the classes that share the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationClass {
    /// The least allocation. Not negative.
    pub lower_bound: f64,
    /// The greatest allocation. Not less than the lower bound.
    pub upper_bound: f64,
    /// The wanted allocation. Not less than the lower bound.
    pub target: f64,
}

/// The result of a division.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// One for each class, in their order.
    pub allocations: Vec<f64>,
    /// The proportion p.
    pub fair_proportion: f64,
}

/// The errors of a division, in upstream's wording.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the class at fault and the numbers that are")]
pub enum AllocationError {
    /// The sum is negative.
    #[error("negative sums are not supported")]
    NegativeSum,
    /// A lower bound is negative.
    #[error("lower bound {class} is {} but negative lower bounds are not allowed", format_go_float(*lower_bound))]
    NegativeLowerBound { class: usize, lower_bound: f64 },
    /// A target is below its lower bound.
    #[error("target {class} is {}, which is below its lower bound of {}", format_go_float(*target), format_go_float(*lower_bound))]
    TargetBelowLowerBound {
        class: usize,
        target: f64,
        lower_bound: f64,
    },
    /// An upper bound is below its lower bound.
    #[error("upper bound {class} is {} but should not be less than the lower bound {}", format_go_float(*upper_bound), format_go_float(*lower_bound))]
    UpperBelowLowerBound {
        class: usize,
        upper_bound: f64,
        lower_bound: f64,
    },
    /// The lower bounds add up to more than the sum.
    #[error("lower bounds sum to {}, which is higher than the required sum of {required_sum}", format_go_float(*lower_bounds))]
    SumTooLow {
        lower_bounds: f64,
        required_sum: i64,
    },
    /// The upper bounds add up to less than the sum.
    #[error("upper bounds sum to {}, which is lower than the required sum of {required_sum}", format_go_float(*upper_bounds))]
    SumTooHigh {
        upper_bounds: f64,
        required_sum: i64,
    },
}

/// A value of p from which on a class follows p (above its lower bound) or no longer does (at its
/// upper bound).
struct Breakpoint {
    proportion: f64,
    target: f64,
    is_lower_bound: bool,
}

/// Divides `required_sum` among the `classes`.
///
/// # Errors
///
/// The bounds of a class are inconsistent, or no division satisfies all bounds.
#[expect(clippy::as_conversions, reason = "a number of seats is far below 2^53")]
pub fn allocate(
    required_sum: i64,
    classes: &[AllocationClass],
) -> Result<Allocation, AllocationError> {
    if required_sum < 0 {
        return Err(AllocationError::NegativeSum);
    }
    for (index, class) in classes.iter().enumerate() {
        validate(index, class)?;
    }
    let required = required_sum as f64;
    let lower_bounds = sum(classes, |class| class.lower_bound);
    let upper_bounds = sum(classes, |class| class.upper_bound);
    if lower_bounds - required > EPSILON {
        return Err(AllocationError::SumTooLow {
            lower_bounds,
            required_sum,
        });
    }
    if required - upper_bounds > EPSILON {
        return Err(AllocationError::SumTooHigh {
            upper_bounds,
            required_sum,
        });
    }
    if required_sum == 0 {
        return Ok(build_allocation(classes, 0.0, |_| 0.0));
    }
    let lowest = classes
        .iter()
        .map(AllocationClass::relative_lower)
        .fold(f64::INFINITY, f64::min);
    let highest = classes
        .iter()
        .map(AllocationClass::relative_upper)
        .fold(0.0, f64::max);
    if required - lower_bounds <= EPSILON {
        return Ok(build_allocation(classes, lowest, |class| class.lower_bound));
    }
    if upper_bounds - required <= EPSILON {
        return Ok(build_allocation(classes, highest, |class| {
            class.upper_bound
        }));
    }
    let p = required / sum(classes, AllocationClass::floored_target);
    let unbound = classes
        .iter()
        .all(|c| c.relative_lower() <= p && p <= c.relative_upper());
    if unbound {
        return Ok(build_allocation(classes, p, |class| {
            class.floored_target() * p
        }));
    }
    let p = find_proportion(required, lower_bounds, lowest, classes);
    Ok(build_allocation(classes, p, |class| {
        (p * class.floored_target())
            .min(class.upper_bound)
            .max(class.lower_bound)
    }))
}

fn build_allocation(
    classes: &[AllocationClass],
    fair_proportion: f64,
    allocation: impl Fn(&AllocationClass) -> f64,
) -> Allocation {
    Allocation {
        allocations: classes.iter().map(allocation).collect(),
        fair_proportion,
    }
}

/// Follows the sum of the allocations as p grows, breakpoint by breakpoint, to where it is
/// `required`.
fn find_proportion(
    required: f64,
    lower_bounds: f64,
    lowest: f64,
    classes: &[AllocationClass],
) -> f64 {
    let mut bends: Vec<Breakpoint> = classes
        .iter()
        .flat_map(|class| {
            let target = class.floored_target();
            [
                Breakpoint {
                    proportion: class.relative_lower(),
                    target,
                    is_lower_bound: true,
                },
                Breakpoint {
                    proportion: class.relative_upper(),
                    target,
                    is_lower_bound: false,
                },
            ]
        })
        .collect();
    bends.sort_by(|a, b| a.proportion.total_cmp(&b.proportion));
    let mut p = lowest;
    let mut allocated = lower_bounds;
    let mut slope = 0.0; // the sum of the targets of the classes that follow p
    let mut following = 0_u32;
    for bend in bends {
        if bend.proportion > p {
            if allocated >= required {
                return p;
            }
            if following > 0 {
                let step = (required - allocated) / slope;
                if p + step <= bend.proportion {
                    return p + step;
                }
                allocated += (bend.proportion - p) * slope;
            }
            p = bend.proportion;
        }
        if bend.is_lower_bound {
            slope += bend.target;
            following += 1;
        } else {
            slope -= bend.target;
            following -= 1;
        }
    }
    p
}

fn validate(index: usize, class: &AllocationClass) -> Result<(), AllocationError> {
    let &AllocationClass {
        lower_bound,
        upper_bound,
        target,
    } = class;
    if lower_bound < 0.0 {
        return Err(AllocationError::NegativeLowerBound {
            class: index,
            lower_bound,
        });
    }
    if target < lower_bound {
        return Err(AllocationError::TargetBelowLowerBound {
            class: index,
            target,
            lower_bound,
        });
    }
    if upper_bound < lower_bound {
        return Err(AllocationError::UpperBelowLowerBound {
            class: index,
            upper_bound,
            lower_bound,
        });
    }
    Ok(())
}

/// Adds from the first class to the last, so that the rounding is upstream's.
fn sum(classes: &[AllocationClass], value: impl Fn(&AllocationClass) -> f64) -> f64 {
    classes.iter().map(value).fold(0.0, |sum, term| sum + term)
}

impl AllocationClass {
    const fn floored_target(&self) -> f64 {
        self.target.max(MIN_TARGET)
    }

    /// The p above which the class gets more than its lower bound.
    fn relative_lower(&self) -> f64 {
        self.lower_bound / self.floored_target()
    }

    /// The p above which the class gets no more.
    fn relative_upper(&self) -> f64 {
        self.upper_bound / self.floored_target()
    }
}

/// Formats a number as Go's `%v` does: as shortest `%g`, with an exponent of two digits or more
/// below 1e-4 and from 1e6 on.
fn format_go_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let parts = scientific.split_once('e');
    let exponent = parts.and_then(|(mantissa, e)| Some((mantissa, e.parse::<i32>().ok()?)));
    match exponent {
        Some((mantissa, e @ (..-4 | 6..))) => {
            let sign = if e < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", e.unsigned_abs())
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(lower_bound: u32, target: u32, upper_bound: u32) -> AllocationClass {
        let [lower_bound, target, upper_bound] = [lower_bound, target, upper_bound].map(f64::from);
        AllocationClass {
            lower_bound,
            upper_bound,
            target,
        }
    }

    #[test]
    fn without_bounds_all_classes_get_the_same_fraction_of_their_targets() {
        let made = allocate(30, &[class(0, 10, 99), class(0, 50, 99)]).unwrap();
        assert_eq!(
            made,
            Allocation {
                allocations: vec![5.0, 25.0],
                fair_proportion: 0.5
            }
        );
    }

    #[test]
    fn seats_above_an_upper_bound_go_to_the_other_classes() {
        let made = allocate(100, &[class(0, 10, 5), class(60, 60, 99), class(0, 20, 99)]).unwrap();
        let allocations = vec![5.0, 71.25, 23.75];
        assert_eq!(
            made,
            Allocation {
                allocations,
                fair_proportion: 1.1875
            }
        );
    }

    #[test]
    fn classes_with_zero_targets_get_equal_allocations() {
        let made = allocate(9, &[class(0, 0, 99), class(0, 0, 99), class(0, 0, 1)]).unwrap();
        assert_eq!(made.allocations, [4.0, 4.0, 1.0]);
    }

    #[test]
    fn a_sum_outside_the_bounds_is_rejected() {
        let classes = [class(3, 3, 4), class(2, 5, 6)];
        assert_eq!(
            allocate(4, &classes),
            Err(AllocationError::SumTooLow {
                lower_bounds: 5.0,
                required_sum: 4
            })
        );
        assert_eq!(
            allocate(11, &classes),
            Err(AllocationError::SumTooHigh {
                upper_bounds: 10.0,
                required_sum: 11
            })
        );
        assert!(allocate(5, &classes).is_ok() && allocate(10, &classes).is_ok());
    }

    #[test]
    fn numbers_are_formatted_as_go_formats_them() {
        for (number, text) in [
            (0.0, "0"),
            (10.0000005, "10.0000005"),
            (999999.5, "999999.5"),
            (1e6, "1e+06"),
            (2097152.5, "2.0971525e+06"),
            (1e21, "1e+21"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (-0.00001, "-1e-05"),
        ] {
            assert_eq!(format_go_float(number), text);
        }
        let error = AllocationError::NegativeLowerBound {
            class: 0,
            lower_bound: -1e-7,
        };
        assert_eq!(
            error.to_string(),
            "lower bound 0 is -1e-07 but negative lower bounds are not allowed"
        );
    }

    /// Checks the properties of the module documentation for a grid of problems.
    #[test]
    fn the_whole_sum_is_allocated_at_one_proportion_within_the_bounds() {
        let sizes = [
            (0, 0, 7),
            (2, 3, 3),
            (5, 40, 60),
            (1, 9, 200),
            (30, 30, 31),
            (0, 17, 20),
        ];
        for mask in 1_usize..64 {
            let classes: Vec<AllocationClass> = sizes
                .iter()
                .enumerate()
                .filter(|(bit, _)| mask & (1 << bit) != 0)
                .map(|(_, &(lower, target, upper))| class(lower, target, upper))
                .collect();
            for required in 0..330_u32 {
                let required = f64::from(required);
                let Ok(made) = allocate(required.to_string().parse().unwrap(), &classes) else {
                    let lower = sum(&classes, |class| class.lower_bound);
                    let upper = sum(&classes, |class| class.upper_bound);
                    assert!(
                        required < lower || required > upper,
                        "{required} of {classes:?}"
                    );
                    continue;
                };
                let given: f64 = made.allocations.iter().sum();
                assert!((given - required).abs() < 1e-6, "{made:?} of {required}");
                for (class, got) in classes.iter().zip(&made.allocations) {
                    let fair = made.fair_proportion * class.floored_target();
                    let bounded = fair.clamp(class.lower_bound, class.upper_bound);
                    assert!(required == 0.0 || (got - bounded).abs() < 1e-6, "{made:?}");
                }
            }
        }
    }
}
