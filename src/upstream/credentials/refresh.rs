//! When a credential is fetched again. Pure: times come in, times go out.
//!
//! A credential that ends is renewed well before; one that was refused, soon; a source that fails is asked again at growing
//! distances. However often weir's calls are refused, the source is not asked more often than this file says.

use std::time::Duration;
use std::time::Instant;

/// Shortest time from one credential to the next, so that neither a source that gives credentials of a few seconds nor one
/// that keeps giving out the last seconds of the same one is asked all the time.
const SHORTEST: Duration = Duration::from_secs(10);

/// Shortest time between two attempts at all, whatever the credentials say.
const BREATH: Duration = Duration::from_secs(1);

/// The wait after a first failure; it doubles with every further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest wait after a failure: what breaks a source (a network, an identity service) is mostly mended in minutes.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// A refused credential is replaced at once if it is older than this, otherwise when it is: a user that the API server does
/// not know at all is refused every time, and no new credential helps.
pub(super) const REFUSED_EVERY: Duration = Duration::from_secs(60);

/// When a credential obtained `now` that ends at `expires` is to be renewed: after 80 % of its life.
///
/// That is when the kubelet renews tokens too, and it leaves a fifth of the life for failures. "One minute before the end" as
/// well, if sooner, would renew a credential of a minute the moment it comes, for ever; and plugins that cache give out the
/// same credential until shortly before its end, which a share of what is left meets gracefully.
pub(super) fn next_refresh(now: Instant, expires: Instant) -> Instant {
    let left = expires.saturating_duration_since(now);
    now + left.mul_f64(0.8).max(SHORTEST).min(left).max(BREATH)
}

/// How long to wait after that many failures in a row.
fn retry_after(failures: u32) -> Duration {
    let doublings = failures
        .saturating_sub(1)
        .min(LONGEST_RETRY.as_secs().ilog2() + 1);
    (FIRST_RETRY * 2_u32.pow(doublings)).min(LONGEST_RETRY)
}

/// When the source is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    attempted: Instant,
    due: Option<Instant>,
    failures: u32,
}

impl Schedule {
    /// A credential came `now`; the source is to be asked again at `due`, if at all.
    pub(super) fn succeeded(now: Instant, due: Option<Instant>) -> Self {
        Self {
            attempted: now,
            due,
            failures: 0,
        }
    }

    /// The source failed once more.
    pub(super) fn failed(self, now: Instant) -> Self {
        let failures = self.failures.saturating_add(1);
        Self {
            attempted: now,
            due: Some(now + retry_after(failures)),
            failures,
        }
    }

    /// The API server refused the credential.
    pub(super) fn refused(self) -> Self {
        let soon = self.attempted + REFUSED_EVERY;
        Self {
            due: Some(self.due.map_or(soon, |due| due.min(soon))),
            ..self
        }
    }

    /// When the source is to be asked.
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
    fn a_credential_is_renewed_when_a_fifth_of_its_life_is_left() {
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
    fn a_plugin_that_caches_is_not_asked_all_the_time() {
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
    fn failures_are_retried_at_growing_distances() {
        let mut now = Instant::now();
        let mut schedule = Schedule::succeeded(now, Some(now));
        let mut waits = Vec::new();
        for _ in 0..9 {
            schedule = schedule.failed(now);
            let due = schedule.due().unwrap();
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        let recovered = Schedule::succeeded(now, None).failed(now);
        assert_eq!(recovered.due(), Some(now + seconds(1)));
        let mut long = schedule;
        long.failures = u32::MAX;
        assert_eq!(long.failed(now).due(), Some(now + seconds(60)));
    }

    #[test]
    fn a_refusal_brings_the_next_attempt_forward_but_never_puts_it_off() {
        let now = Instant::now();
        let for_ever = Schedule::succeeded(now, None);
        assert_eq!(for_ever.due(), None);
        assert_eq!(for_ever.refused().due(), Some(now + REFUSED_EVERY));
        let soon = Schedule::succeeded(now, Some(now + seconds(20)));
        assert_eq!(soon.refused().due(), Some(now + seconds(20)));
        let late = Schedule::succeeded(now, Some(now + seconds(3000))).refused();
        assert_eq!(late.due(), Some(now + REFUSED_EVERY));
        assert_eq!(late.refused(), late);
        let failing = for_ever.failed(now).refused();
        assert_eq!(failing.due(), Some(now + seconds(1)));
    }
}
