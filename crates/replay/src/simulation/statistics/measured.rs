//! What objectives are about: the rejections and the waits of a group. Pure.

use std::time::Duration;

use crate::histogram::DurationHistogram;

/// The requests of a group in a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Requests, with those that clients repeated.
    pub arrivals: u64,
    /// Rejected requests.
    pub rejected: u64,
    /// The waits of the requests that were dispatched.
    pub waits: DurationHistogram,
}

impl Measured {
    /// The wait that `per_mille` of 1000 requests do not exceed. A rejected request counts as one
    /// that waits for ever: `None` if the quantile is one of these. Otherwise fewer dispatched
    /// requests could make the waits look shorter.
    #[must_use]
    pub fn wait_quantile(&self, per_mille: u64) -> Option<Duration> {
        let dispatched = u128::from(self.waits.count());
        let all = dispatched + u128::from(self.rejected);
        let rank = (all * u128::from(per_mille)).div_ceil(1000);
        (rank <= dispatched).then(|| self.waits.at_rank(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_requests_wait_for_ever() {
        let mut measured = Measured::default();
        assert_eq!(measured.wait_quantile(990), Some(Duration::ZERO));
        for n in 1..=98 {
            measured.waits.record(n * 1_000_000);
        }
        measured.rejected = 2;
        assert!(measured.wait_quantile(500).unwrap() >= Duration::from_millis(50));
        assert_eq!(
            measured.wait_quantile(980),
            Some(Duration::from_millis(98)),
            "the last that was dispatched"
        );
        assert_eq!(measured.wait_quantile(990), None);
        assert_eq!(measured.wait_quantile(1000), None);
    }
}
