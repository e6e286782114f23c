//! A histogram of durations with a bounded relative error, in bounded memory. Pure.
//!
//! Sixteen buckets for each doubling: a value is known to 1/16. A report has a histogram for each
//! user, flow and address, and few of these have values in many buckets. So only the buckets with
//! values are kept.

use std::time::Duration;

/// The bits of a value that its bucket keeps, below the leading one.
const PRECISION_BITS: u32 = 4;
const STEPS: u64 = 1 << PRECISION_BITS;

/// The bits of a count. The rest of a [`BucketCount`] is the number of its bucket, below 1,000.
const COUNT_BITS: u32 = 48;

/// The new entries for which a histogram without room makes room, besides a quarter.
const SPARE_ENTRIES: usize = 4;

/// Counts of durations, in buckets of microseconds: 8 bytes for each bucket that has values, of
/// 1,000 at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DurationHistogram {
    /// By bucket.
    counts: Vec<BucketCount>,
    /// The number of zeros, which need no bucket.
    zeros: u64,
    total: u64,
    max_ns: u64,
    sum_ns: u128,
}

/// A bucket and the number of its values, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketCount(u64);

impl BucketCount {
    const fn new(bucket: u64, count: u64) -> Self {
        Self(bucket << COUNT_BITS | count)
    }

    const fn bucket(self) -> u64 {
        self.0 >> COUNT_BITS
    }

    const fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }
}

impl DurationHistogram {
    /// Counts a value, in nanoseconds.
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.total += 1;
        if nanoseconds == 0 {
            self.zeros += 1;
            return;
        }
        self.max_ns = self.max_ns.max(nanoseconds);
        self.sum_ns += u128::from(nanoseconds);
        self.add(BucketCount::new(bucket_of(nanoseconds.div_ceil(1000)), 1));
    }

    fn add(&mut self, more: BucketCount) {
        let found = self
            .counts
            .binary_search_by_key(&more.bucket(), |entry| entry.bucket());
        match found {
            Ok(at) => {
                if let Some(entry) = self.counts.get_mut(at) {
                    entry.0 += more.count();
                }
            }
            Err(at) => {
                let len = self.counts.len();
                if len == self.counts.capacity() {
                    self.counts.reserve_exact(SPARE_ENTRIES + len / 4);
                }
                self.counts.insert(at, more);
            }
        }
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        for entry in &other.counts {
            self.add(*entry);
        }
        self.zeros += other.zeros;
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
    }

    /// The number of values.
    #[must_use]
    pub(crate) const fn count(&self) -> u64 {
        self.total
    }

    /// The number of values above zero.
    #[must_use]
    pub(crate) const fn above_zero(&self) -> u64 {
        self.total - self.zeros
    }

    /// The greatest value.
    #[must_use]
    pub(crate) const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The sum of all values, in seconds.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The value that `per_mille` of 1000 values do not exceed: the end of its bucket, and never
    /// more than the greatest value. Zero without values.
    #[must_use]
    pub(crate) fn quantile(&self, per_mille: u64) -> Duration {
        self.at_rank((u128::from(self.total) * u128::from(per_mille)).div_ceil(1000))
    }

    /// The value of this rank, where the least has rank 1: as exact as [`quantile`](Self::quantile).
    /// The greatest beyond the last.
    #[must_use]
    pub(crate) fn at_rank(&self, rank: u128) -> Duration {
        let mut seen = u128::from(self.zeros);
        if rank <= seen {
            return Duration::ZERO;
        }
        for entry in &self.counts {
            seen += u128::from(entry.count());
            if rank <= seen {
                return Duration::from_micros(end_of(entry.bucket())).min(self.max());
            }
        }
        self.max()
    }
}

/// The bucket of a number of microseconds: below 1,000.
fn bucket_of(value: u64) -> u64 {
    if value < STEPS {
        return value;
    }
    let exponent = value.ilog2() - PRECISION_BITS;
    let step = value >> exponent; // STEPS to 2 STEPS - 1
    u64::from(exponent) * STEPS + step
}

/// The greatest number of microseconds in a bucket.
fn end_of(bucket: u64) -> u64 {
    if bucket < 2 * STEPS {
        return bucket;
    }
    let exponent = bucket / STEPS - 1;
    let step = bucket % STEPS + STEPS;
    // The last bucket ends with the greatest number.
    u64::try_from(((u128::from(step) + 1) << exponent) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn each_value_is_in_a_bucket_that_ends_within_a_sixteenth_of_it() {
        let mut random = Rng::with_seed(7);
        let values = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power, power - 1, power + random.u64(..power)]
        });
        for value in values.chain([u64::MAX]) {
            let end = end_of(bucket_of(value));
            assert!(end >= value, "{value}: {end}");
            assert!(end - value <= value / 16, "{value}: {end}");
            assert_eq!(bucket_of(end), bucket_of(value), "{value}");
        }
        assert_eq!(bucket_of(u64::MAX), 975);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values_to_a_sixteenth() {
        let mut random = Rng::with_seed(8);
        let mut values: Vec<u64> = (0..10_000)
            .map(|_| random.u64(..1 << 40) >> random.u32(..40))
            .collect();
        let (mut whole, mut halves) = (
            DurationHistogram::default(),
            [DurationHistogram::default(), DurationHistogram::default()],
        );
        for (n, value) in values.iter().enumerate() {
            whole.record(*value);
            halves[n % 2].record(*value);
        }
        let [mut merged, other] = halves;
        merged.merge(&other);
        assert_eq!(merged, whole);
        values.sort_unstable();
        for per_mille in [1, 10, 500, 990, 1000] {
            let exact = values[usize::try_from(10 * per_mille - 1).unwrap()];
            let got = u64::try_from(whole.quantile(per_mille).as_nanos()).unwrap();
            assert!(
                got >= exact && got <= exact + exact / 16 + 1000,
                "{per_mille}: {got}, {exact}"
            );
        }
        assert_eq!(whole.quantile(1000), whole.max());
        assert_eq!(DurationHistogram::default().quantile(500), Duration::ZERO);
    }
}
