//! When a credential is refreshed. Pure: times in, times out.
//!
//! A credential is refreshed well before it expires, and soon after it was rejected. A source that
//! fails is tried again with backoff. However often weir's calls are rejected, the source is not
//! read more often than this file says.

use std::time::{Duration, Instant};

/// Shortest time from one credential to the next. It bounds how often a source is read that gives
/// credentials of a few seconds, or that keeps giving the last seconds of the same one.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// Shortest time between two attempts, whatever the credentials say.
const MIN_ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

/// The wait after a first failure; it doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);

/// The longest wait after a failure: most failures of a source (a network, an identity service) end
/// within minutes.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// A rejected credential is replaced at once if it is older than this, otherwise when it is. A user
/// that the API server does not know is rejected every time, and no new credential helps.
pub(super) const REJECTED_REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// When a credential obtained `now` that expires at `expires` is to be refreshed: after 80 % of its
/// lifetime.
///
/// The kubelet refreshes tokens then, too, and it leaves a fifth of the lifetime for failures. "One
/// minute before expiry" as well, if sooner, would refresh a credential of one minute at once, for
/// ever. Plugins with a cache return the same credential until shortly before its expiry; a
/// fraction of the time left handles that.
pub(super) fn next_refresh(now: Instant, expires: Instant) -> Instant {
    let left = expires.saturating_duration_since(now);
    now + left
        .mul_f64(0.8)
        .max(MIN_REFRESH_INTERVAL)
        .min(left)
        .max(MIN_ATTEMPT_INTERVAL)
}

/// The wait after that many failures in a row.
fn backoff(failures: u32) -> Duration {
    let doublings = failures
        .saturating_sub(1)
        .min(MAX_BACKOFF.as_secs().ilog2() + 1);
    (INITIAL_BACKOFF * 2_u32.pow(doublings)).min(MAX_BACKOFF)
}

/// When the source is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefreshSchedule {
    last_attempt: Instant,
    due: Option<Instant>,
    failures: u32,
}

impl RefreshSchedule {
    /// Records that a credential was obtained `now`; the source is to be read again at `due`, if at
    /// all.
    pub(super) fn after_success(now: Instant, due: Option<Instant>) -> Self {
        Self {
            last_attempt: now,
            due,
            failures: 0,
        }
    }

    /// Records another failure of the source.
    pub(super) fn after_failure(self, now: Instant) -> Self {
        let failures = self.failures.saturating_add(1);
        Self {
            last_attempt: now,
            due: Some(now + backoff(failures)),
            failures,
        }
    }

    /// Records that the API server rejected the credential.
    pub(super) fn after_rejection(self) -> Self {
        let soon = self.last_attempt + REJECTED_REFRESH_INTERVAL;
        Self {
            due: Some(self.due.map_or(soon, |due| due.min(soon))),
            ..self
        }
    }

    /// When the source is to be read.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_credential_is_refreshed_when_a_fifth_of_its_lifetime_remains() {
        let now = Instant::now();
        let cases = [
            // life, waited (milliseconds)
            (3_600_000, 2_880_000),
            (840_000, 672_000), // a token of `aws eks get-token`
            (60_000, 48_000),
            (12_000, 10_000), // not sooner than after ten seconds
            (4_000, 4_000),   // which it has not
            (300, 1_000),
            (0, 1_000),
        ];
        for (life, waited) in cases {
            let due = next_refresh(now, now + Duration::from_millis(life));
            assert_eq!(
                due - now,
                Duration::from_millis(waited),
                "a life of {life} ms"
            );
        }
    }

    #[test]
    fn a_caching_plugin_is_run_a_few_times_only() {
        // It gives out one credential of an hour until its end.
        let (mut now, expires) = (Instant::now(), Instant::now() + seconds(3600));
        let mut asked = 0;
        while now < expires {
            now = next_refresh(now, expires);
            asked += 1;
        }
        assert!(asked <= 7, "asked {asked} times");
    }

    #[test]
    fn failures_are_retried_with_exponential_backoff() {
        let mut now = Instant::now();
        let mut schedule = RefreshSchedule::after_success(now, Some(now));
        let mut waits = Vec::new();
        for _ in 0..9 {
            schedule = schedule.after_failure(now);
            let due = schedule.due().unwrap();
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let recovered = RefreshSchedule::after_success(now, None).after_failure(now);
        assert_eq!(recovered.due(), Some(now + seconds(1)));
        let mut long = schedule;
        long.failures = u32::MAX;
        assert_eq!(long.after_failure(now).due(), Some(now + seconds(60)));
    }

    #[test]
    fn a_rejection_never_delays_the_next_attempt() {
        let now = Instant::now();
        let for_ever = RefreshSchedule::after_success(now, None);
        assert_eq!(for_ever.due(), None);
        assert_eq!(
            for_ever.after_rejection().due(),
            Some(now + REJECTED_REFRESH_INTERVAL)
        );
        let soon = RefreshSchedule::after_success(now, Some(now + seconds(20)));
        assert_eq!(soon.after_rejection().due(), Some(now + seconds(20)));
        let late = RefreshSchedule::after_success(now, Some(now + seconds(3000))).after_rejection();
        assert_eq!(late.due(), Some(now + REJECTED_REFRESH_INTERVAL));
        assert_eq!(late.after_rejection(), late);
        let failing = for_ever.after_failure(now).after_rejection();
        assert_eq!(failing.due(), Some(now + seconds(1)));
    }
}
