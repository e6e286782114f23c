//! How scarce memory is: what is in use, compared with a limit. Pure.
//!
//! Each level begins at a threshold and ends below a lower one, so that a use of about the limit
//! does not change the level with every sample.

/// A level ends this part of the limit below its threshold: more than what a sample differs from
/// the next one under a steady load.
const HYSTERESIS_DIVISOR: u64 = 16;

/// The critical level begins this part of the limit above the limit. With the default limit (80 %
/// of the memory that the process may use), it begins at 90 %.
const CRITICAL_MARGIN_DIVISOR: u64 = 8;

/// The elevated level begins at this part of the limit: what is counted from there on decides about
/// requests at the limit, so counting begins long before. A process that uses less than half of what
/// it may pays nothing for it.
const ELEVATED_DIVISOR: u64 = 2;

/// How scarce memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// The use is below half of the limit.
    #[default]
    None,
    /// The use is below the limit. Nothing is rejected yet, but what clients hold is counted.
    Elevated,
    /// The limit is reached.
    High,
    /// The limit is exceeded by an eighth: what the high level still admits takes too much.
    Critical,
}

impl MemoryPressure {
    /// The level when `used` bytes are in use, after this level. A limit of 0 is no limit.
    #[must_use]
    pub fn after(self, used: u64, limit: u64) -> Self {
        if limit == 0 {
            return Self::None;
        }
        let reaches = |level: Self, threshold: u64| {
            let hysteresis = if self >= level {
                limit / HYSTERESIS_DIVISOR
            } else {
                0
            };
            used >= threshold.saturating_sub(hysteresis)
        };
        let critical = limit.saturating_add(limit / CRITICAL_MARGIN_DIVISOR);
        if reaches(Self::Critical, critical) {
            Self::Critical
        } else if reaches(Self::High, limit) {
            Self::High
        } else if reaches(Self::Elevated, limit / ELEVATED_DIVISOR) {
            Self::Elevated
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryPressure;
    use super::MemoryPressure::{Critical, Elevated, High, None};

    #[test]
    fn each_level_begins_at_its_threshold_and_ends_below_a_lower_one() {
        let steps = [
            (799, None),
            (800, Elevated),
            (700, Elevated),
            (699, None),
            (1599, Elevated),
            (1600, High),
            (1500, High),
            (1799, High),
            (1800, Critical),
            (1700, Critical),
            (1699, High),
            (1499, Elevated),
            (1599, Elevated),
            (5000, Critical),
            (100, None),
        ];
        let mut level = MemoryPressure::default();
        for (used, expected) in steps {
            level = level.after(used, 1600);
            assert_eq!(level, expected, "{used}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_no_limit() {
        assert_eq!(Critical.after(u64::MAX, 0), None);
        assert_eq!(None.after(u64::MAX, u64::MAX), Critical);
    }
}
