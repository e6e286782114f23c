//! Histograms as plain numbers, for callers that count under a lock that they hold anyway.
//!
//! A [`Histogram`] counts values in buckets. A [`TimingRatioHistogram`] observes a ratio at the end
//! of every nanosecond. The caller sets the numerator or the denominator on each change, and the
//! ratio since the last change gets the weight of that time. Upstream: `TimingRatioHistogram`
//! (Kubernetes 1.36, `component-base/metrics`).
//!
//! This module does not know the names or the format of metrics.

use std::time::Instant;

use weir_kubernetes::numeric::{saturating_u64, to_f64};

/// Counts of values up to each of some bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for the values above all bounds.
    counts: Box<[u64]>,
    sum: f64,
}

/// A histogram of a ratio over time.
#[derive(Clone, Debug)]
pub struct TimingRatioHistogram {
    histogram: Histogram,
    numerator: f64,
    denominator: f64,
    since: Instant,
}

impl Histogram {
    /// An empty histogram. `bounds` ascend. A value equal to a bound counts as below it.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1].into(),
            sum: 0.0,
        }
    }

    /// Counts a value once.
    pub fn observe(&mut self, value: f64) {
        self.add(value, 1, value);
    }

    /// The number of observed values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the observed values.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// Each bound, and the number of values up to it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// Adds the counts of another histogram with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    fn add(&mut self, value: f64, weight: u64, weighted: f64) {
        let bucket = self.bounds.iter().position(|&bound| value <= bound);
        let bucket = bucket.unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += weight;
        }
        self.sum += weighted;
    }
}

impl TimingRatioHistogram {
    /// The ratio of 0 to `denominator`, from `now` on.
    #[must_use]
    pub fn new(bounds: &'static [f64], now: Instant, denominator: u64) -> Self {
        Self {
            histogram: Histogram::new(bounds),
            numerator: 0.0,
            denominator: to_f64(denominator),
            since: now,
        }
    }

    /// Sets the numerator from `now` on.
    pub fn set(&mut self, now: Instant, numerator: u64) {
        let numerator = to_f64(numerator);
        if numerator.to_bits() != self.numerator.to_bits() {
            self.advance(now);
            self.numerator = numerator;
        }
    }

    /// Sets the denominator from `now` on.
    pub fn set_denominator(&mut self, now: Instant, denominator: u64) {
        self.advance(now);
        self.denominator = to_f64(denominator);
    }

    /// The histogram up to `now`. Its counts are nanoseconds.
    pub fn read(&mut self, now: Instant) -> &Histogram {
        self.advance(now);
        &self.histogram
    }

    /// A clock that steps back counts as standing still.
    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.since).as_nanos();
        if elapsed > 0 {
            self.since = now;
            let weight = saturating_u64(elapsed);
            let ratio = self.numerator / self.denominator;
            self.histogram.add(ratio, weight, ratio * to_f64(weight));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_value_equal_to_a_bound_is_below_it() {
        let mut histogram = Histogram::new(&[0.0, 1.0, 10.0]);
        for value in [0.0, 1.0, 1.1, 10.0, 11.0, f64::NAN] {
            histogram.observe(value);
        }
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(0.0, 1), (1.0, 2), (10.0, 4)]);
        assert_eq!(histogram.count(), 6);
    }

    #[test]
    fn a_ratio_is_weighted_by_its_duration() {
        let t0 = Instant::now();
        let mut ratio = TimingRatioHistogram::new(&[0.0, 0.5, 1.0], t0, 4);
        ratio.set(t0 + 10 * MS, 2);
        ratio.set(t0 + 15 * MS, 4);
        ratio.set(t0 + 15 * MS, 3);
        ratio.set_denominator(t0 + 17 * MS, 2);
        let histogram = ratio.read(t0 + 18 * MS);
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(
            buckets,
            [(0.0, 10_000_000), (0.5, 15_000_000), (1.0, 17_000_000)]
        );
        assert_eq!(histogram.count(), 18_000_000);
        assert_eq!(histogram.sum(), 2.5e6 + 1.5e6 + 1.5e6);
    }

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let t0 = Instant::now();
        let mut ratio = TimingRatioHistogram::new(&[1.0], t0 + MS, 1);
        ratio.set(t0, 5);
        assert_eq!(ratio.read(t0 + 2 * MS).count(), 1_000_000);
        assert_eq!(ratio.read(t0 + 2 * MS).sum(), 5e6);
    }
}
