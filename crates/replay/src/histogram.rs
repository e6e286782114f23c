//! A histogram of durations with a bounded relative error, in bounded memory. Pure.
//!
//! Sixteen buckets for each doubling: a value is known to 1/16. A report has a histogram for each
//! user, flow and address, and few of these have values in many buckets. So only the buckets with
//! values are kept, unlike in the [histogram](weir_base::timing_ratio::Histogram) of a metric, whose
//! few buckets are given.

use std::time::Duration;

use weir_kubernetes::numeric::saturating_u32;

/// The bits of a value that its bucket keeps, below the leading one.
const PRECISION_BITS: u32 = 4;
const STEPS: u64 = 1 << PRECISION_BITS;

/// The bits of a count. The rest of a [`BucketCount`] is the number of its bucket, below 1,000.
const COUNT_BITS: u32 = 22;

/// The greatest count of one entry. A bucket with more values has several.
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;

/// The new entries for which a histogram without room makes room, besides a quarter.
const SPARE_ENTRIES: usize = 4;

/// Counts of durations, in buckets of microseconds: 4 bytes for each bucket that has values, of
/// 1,000 at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// By bucket. All entries of a bucket but the last are full.
    counts: Vec<BucketCount>,
    /// The number of zeros, which need no bucket.
    zeros: u64,
    total: u64,
    max_ns: u64,
    sum_ns: u128,
}

/// A bucket and the number of its values, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketCount(u32);

impl BucketCount {
    const fn empty(bucket: u32) -> Self {
        Self(bucket << COUNT_BITS)
    }

    const fn bucket(self) -> u32 {
        self.0 >> COUNT_BITS
    }

    const fn count(self) -> u32 {
        self.0 & MAX_COUNT
    }
}

impl DurationHistogram {
    /// Counts a value, in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        self.total += 1;
        if nanoseconds == 0 {
            self.zeros += 1;
            return;
        }
        self.max_ns = self.max_ns.max(nanoseconds);
        self.sum_ns += u128::from(nanoseconds);
        self.add(bucket_of(nanoseconds.div_ceil(1000)), 1);
    }

    fn add(&mut self, bucket: u32, mut count: u32) {
        while count > 0 {
            let end = self
                .counts
                .partition_point(|entry| entry.bucket() <= bucket);
            let last = end
                .checked_sub(1)
                .and_then(|last| self.counts.get_mut(last));
            let last = last.filter(|last| last.bucket() == bucket && last.count() < MAX_COUNT);
            let Some(last) = last else {
                self.insert(end, BucketCount::empty(bucket));
                continue;
            };
            let added = count.min(MAX_COUNT - last.count());
            last.0 += added;
            count -= added;
        }
    }

    fn insert(&mut self, at: usize, entry: BucketCount) {
        let len = self.counts.len();
        if len == self.counts.capacity() {
            self.counts.reserve_exact(SPARE_ENTRIES + len / 4);
        }
        self.counts.insert(at, entry);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for entry in &other.counts {
            self.add(entry.bucket(), entry.count());
        }
        self.zeros += other.zeros;
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
    }

    /// The number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The number of values above zero.
    #[must_use]
    pub const fn above_zero(&self) -> u64 {
        self.total - self.zeros
    }

    /// The greatest value.
    #[must_use]
    pub const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The sum of all values, in seconds.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The value that `per_mille` of 1000 values do not exceed: the end of its bucket, and never
    /// more than the greatest value. Zero without values.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Duration {
        self.at_rank((u128::from(self.total) * u128::from(per_mille)).div_ceil(1000))
    }

    /// The value of this rank, where the least has rank 1: as exact as [`quantile`](Self::quantile).
    /// The greatest beyond the last.
    #[must_use]
    pub fn at_rank(&self, rank: u128) -> Duration {
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
fn bucket_of(value: u64) -> u32 {
    let exponent = value.max(STEPS).ilog2() - PRECISION_BITS;
    let step = value >> exponent; // below 2 STEPS
    saturating_u32(u64::from(exponent) * STEPS + step)
}

/// The greatest number of microseconds in a bucket.
fn end_of(bucket: u32) -> u64 {
    let bucket = u64::from(bucket);
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

    #[test]
    fn a_bucket_has_any_number_of_values() {
        let mut once = DurationHistogram::default();
        for _ in 0..3 {
            once.add(7, MAX_COUNT - 1);
        }
        once.add(8, 5);
        once.add(7, 4);
        let counts = once.counts.iter();
        let counts: Vec<_> = counts
            .map(|entry| (entry.bucket(), entry.count()))
            .collect();
        assert_eq!(
            counts,
            [
                (7, MAX_COUNT),
                (7, MAX_COUNT),
                (7, MAX_COUNT),
                (7, 1),
                (8, 5)
            ]
        );
        let mut merged = DurationHistogram::default();
        merged.add(8, 5);
        merged.add(7, 1);
        merged.merge(&DurationHistogram {
            counts: vec![BucketCount(BucketCount::empty(7).0 + MAX_COUNT); 3],
            ..DurationHistogram::default()
        });
        assert_eq!(merged.counts, once.counts);
    }
}
