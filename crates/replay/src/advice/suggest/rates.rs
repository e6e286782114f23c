//! The rates of users in a log. Pure.

use std::collections::BTreeMap;

/// Counts up to this are exact; greater ones are rounded up to a sixteenth, so that a user needs no
/// more than some hundred numbers.
const EXACT_UP_TO: u32 = 256;

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateLimit {
    /// Tokens a second.
    pub(super) qps: u32,
    /// The most tokens.
    pub(super) burst: u32,
}

/// How many requests came in each second.
#[derive(Clone, Debug, Default)]
pub(super) struct SecondCounts {
    second: i64,
    count: u32,
    /// The number of seconds by the requests in them, without seconds without requests.
    seconds: BTreeMap<u32, u64>,
    total: u64,
    most: u32,
}

/// A token bucket of a rate that never rejects: what it lacks at most is the burst that is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    qps: u32,
    /// The tokens that are missing.
    missing: f64,
    last_us: Option<i64>,
    /// The most that were missing.
    most_missing: f64,
}

impl SecondCounts {
    /// Counts a request. Requests come in the order of their times.
    pub(super) fn count(&mut self, at_us: i64) {
        let second = at_us.div_euclid(1_000_000);
        if self.total == 0 || second > self.second {
            self.end_second();
            self.second = second;
        }
        self.count = self.count.saturating_add(1);
        self.total += 1;
        self.most = self.most.max(self.count);
    }

    /// Ends the last second.
    pub(super) fn end_second(&mut self) {
        if self.count > 0 {
            *self.seconds.entry(rounded_up(self.count)).or_default() += 1;
        }
        self.count = 0;
    }

    /// The rate that is not exceeded in 999 of 1000 of the seconds in which there are requests, in
    /// requests a second. 0 without any.
    pub(super) fn p999(&self) -> u32 {
        let all: u64 = self.seconds.values().sum();
        let rank = (u128::from(all) * 999).div_ceil(1000);
        let mut seen = 0;
        let found = self.seconds.iter().find(|(_, seconds)| {
            seen += u128::from(**seconds);
            seen >= rank
        });
        found.map_or(0, |(count, _)| (*count).min(self.most))
    }

    /// All requests.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }
}

fn rounded_up(count: u32) -> u32 {
    if count <= EXACT_UP_TO {
        return count;
    }
    let step = 1 << (count.ilog2() - 4);
    count.div_ceil(step).saturating_mul(step)
}

impl Bucket {
    /// A bucket that is full.
    pub(super) const fn new(qps: u32) -> Self {
        Self {
            qps,
            missing: 0.0,
            last_us: None,
            most_missing: 0.0,
        }
    }

    /// Takes a token.
    pub(super) fn take(&mut self, at_us: i64) {
        let since = at_us.saturating_sub(self.last_us.unwrap_or(at_us)).max(0);
        let since = weir_kubernetes::numeric::to_f64(since.unsigned_abs()) / 1e6;
        self.last_us = Some(self.last_us.map_or(at_us, |last| last.max(at_us)));
        self.missing = (self.missing - since * f64::from(self.qps)).max(0.0) + 1.0;
        self.most_missing = self.most_missing.max(self.missing);
    }

    /// The limit of this rate that would not have rejected: with the least burst, or that of a second.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; it is not negative"
    )]
    pub(super) fn limit(&self) -> RateLimit {
        let needed = self.most_missing.ceil() as u32;
        RateLimit {
            qps: self.qps,
            burst: needed.max(self.qps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_of_a_thousand_does_not_count() {
        let mut counts = SecondCounts::default();
        for second in 0..2000_i64 {
            let requests = match second {
                1000 => 500,
                5 | 6 => 7,
                _ => 3,
            };
            (0..requests).for_each(|_| counts.count(second * 2_000_000));
        }
        counts.end_second();
        assert_eq!((counts.p999(), counts.most), (7, 500));
        assert_eq!(counts.total(), 500 + 14 + 1997 * 3);
        assert_eq!(SecondCounts::default().p999(), 0);
    }

    #[test]
    fn seconds_before_the_epoch_and_out_of_order_are_counted() {
        let mut counts = SecondCounts::default();
        for at in [-5_000_000, -4_500_000, -4_900_000, 3, 1] {
            counts.count(at);
        }
        counts.end_second();
        assert_eq!((counts.total(), counts.most), (5, 3));
    }

    #[test]
    fn large_counts_are_rounded_up_to_a_sixteenth() {
        for count in (1..100_000).step_by(7) {
            let rounded = rounded_up(count);
            assert!(rounded >= count && rounded - count <= count / 16, "{count}");
        }
    }

    #[test]
    fn a_burst_is_what_the_bucket_lacks_at_most_and_that_of_a_second_at_least() {
        let mut bucket = Bucket::new(5);
        (0..8).for_each(|_| bucket.take(0));
        (1..=20).for_each(|n| bucket.take(n * 200_000));
        assert_eq!(bucket.limit(), RateLimit { qps: 5, burst: 8 });
        let mut bucket = Bucket::new(10);
        bucket.take(0);
        assert_eq!(bucket.limit(), RateLimit { qps: 10, burst: 10 });
    }
}
