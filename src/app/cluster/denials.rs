//! Whether a 403 shows that weir lacks a right. Pure.
//!
//! An API server that has just started answers 403 until its authorizer has its rules. So a 403
//! counts only if the server is ready, and repeats for a while. Before that, the request is tried
//! again in seconds.

use std::time::{Duration, Instant};

/// How long 403s repeat before a right counts as missing.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// The 403s since the last success.
#[derive(Debug, Default)]
pub(super) struct Denials {
    since: Option<Instant>,
}

impl Denials {
    /// Records a 403. Returns whether a right is missing. `is_ready`: whether an API server passes
    /// its `/readyz`.
    pub(super) fn record(&mut self, now: Instant, is_ready: bool, grace: Duration) -> bool {
        if !is_ready {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.saturating_duration_since(since) >= grace
    }

    /// The request has succeeded, or a server has just become ready.
    pub(super) const fn reset(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::clock::Clock;

    #[test]
    fn a_right_is_missing_only_if_a_ready_server_repeats_it() {
        let start = Clock.now();
        let mut denials = Denials::default();
        let mut record = |seconds, is_ready| {
            denials.record(start + Duration::from_secs(seconds), is_ready, GRACE)
        };
        assert!(!record(0, false));
        assert!(!record(60, false), "it is not ready");
        assert!(!record(61, true), "the first");
        assert!(!record(70, true));
        assert!(record(71, true));
        assert!(record(131, true), "and from then on");
        assert!(!record(132, false), "it has restarted");
        assert!(!record(133, true));
        denials.reset();
        let later = start + Duration::from_secs(200);
        assert!(!denials.record(later, true, GRACE), "it has worked since");
    }
}
