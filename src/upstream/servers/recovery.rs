//! The pace of watches and lists after an outage of all servers. Pure.
//!
//! While no server can be reached, every informer of the cluster retries. A server that has just
//! returned would get all their lists and watches in the same second. So watches and lists wait for
//! their turn: 100 a second at first, and e times as many every two seconds. A thousand are through
//! after 4 s, ten thousand after 8 s, and the pace ends after 15 s. Short requests do not wait.
//!
//! A user gets at most a quarter of the turns, so that a user with many requests does not delay the
//! others. Requests for which there is no turn wait until the end, and a random part of a second
//! more.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::upstream::requester::SlotHolder;

/// A shorter outage is none: a client hardly notices it, and few retry at once.
const MIN_OUTAGE: Duration = Duration::from_secs(1);

/// Requests a second at the begin.
const FIRST_RATE: f64 = 100.0;

/// The time in which the rate grows e-fold.
const GROWTH: Duration = Duration::from_secs(2);

/// The end of the pace.
const END: Duration = Duration::from_secs(15);

/// Turns are counted by intervals of this length; within one they are at random.
const INTERVAL: Duration = Duration::from_millis(100);

/// The time over which the requests without a turn are spread.
const LATE_SPREAD: Duration = Duration::from_secs(1);

/// The part of an interval's turns that one user gets at most, but one turn at least.
const USER_PART: f64 = 0.25;

/// Most users whose turns are counted apart, which bounds the memory. Later ones count as one.
const MAX_USERS: usize = 1 << 16;

/// The outages and the pace after them.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The first failure since which no server can be reached.
    outage_since: Option<Instant>,
    pace: Option<Pace>,
}

#[derive(Debug)]
struct Pace {
    since: Instant,
    /// The turns that are taken in each interval.
    taken: Vec<u32>,
    users: HashMap<SlotHolder, UserTurns>,
    /// The turns of users beyond [`MAX_USERS`].
    others: UserTurns,
}

/// The turns of one user: each is in the same interval as the one before or in a later one.
#[derive(Debug, Default)]
struct UserTurns {
    interval: usize,
    taken: u32,
}

impl Recovery {
    /// No server can be reached.
    pub(crate) fn record_down(&mut self, now: Instant) {
        self.outage_since.get_or_insert(now);
    }

    /// A server responds. Returns whether this ends an outage.
    pub(crate) fn record_up(&mut self, now: Instant) -> bool {
        let Some(since) = self.outage_since.take() else {
            return false;
        };
        let is_outage = now.saturating_duration_since(since) >= MIN_OUTAGE;
        if is_outage {
            self.pace = Some(Pace::new(now));
        }
        is_outage
    }

    /// Whether requests wait for their turn at `now`.
    pub(crate) fn is_recovering(&mut self, now: Instant) -> bool {
        let over = |pace: &Pace| now >= pace.since + END;
        if self.pace.as_ref().is_some_and(over) {
            self.pace = None;
        }
        self.pace.is_some()
    }

    /// Takes a turn for a watch or a list of `holder` that arrives at `now`. Returns how long it
    /// waits. `random` is from 0 to 1, 1 not included.
    pub(crate) fn take_turn(&mut self, holder: &SlotHolder, now: Instant, random: f64) -> Duration {
        if !self.is_recovering(now) {
            return Duration::ZERO;
        }
        let Some(pace) = &mut self.pace else {
            return Duration::ZERO;
        };
        let turn = match pace.take_interval(holder, now) {
            Some(start) => start + INTERVAL.mul_f64(random),
            None => pace.since + END + LATE_SPREAD.mul_f64(random),
        };
        turn.saturating_duration_since(now)
    }
}

impl Pace {
    fn new(since: Instant) -> Self {
        let intervals = END.as_millis() / INTERVAL.as_millis();
        Self {
            since,
            taken: vec![0; usize::try_from(intervals).unwrap_or_default()],
            users: HashMap::new(),
            others: UserTurns::default(),
        }
    }

    /// Takes a turn in the first interval that has one for `holder`. Returns when it begins.
    fn take_interval(&mut self, holder: &SlotHolder, now: Instant) -> Option<Instant> {
        let is_known = self.users.contains_key(holder);
        let user = if is_known || self.users.len() < MAX_USERS {
            self.users.entry(holder.clone()).or_default()
        } else {
            &mut self.others
        };
        let current = now.saturating_duration_since(self.since).as_millis() / INTERVAL.as_millis();
        let current = usize::try_from(current).unwrap_or(usize::MAX);
        let first = user.interval.max(current);
        let mut start = INTERVAL.checked_mul(u32::try_from(first).ok()?)?;
        for (interval, taken) in self.taken.iter_mut().enumerate().skip(first) {
            if interval > user.interval {
                *user = UserTurns { interval, taken: 0 };
            }
            let turns = turns_between(start, start + INTERVAL);
            let of_user = (turns * USER_PART).max(1.0);
            if f64::from(*taken) + 1.0 <= turns && f64::from(user.taken) + 1.0 <= of_user {
                *taken += 1;
                user.taken += 1;
                return Some(self.since + start);
            }
            start += INTERVAL;
        }
        user.interval = self.taken.len();
        None
    }
}

/// The turns between two times after the begin: the integral of the rate.
fn turns_between(from: Duration, to: Duration) -> f64 {
    let growth = GROWTH.as_secs_f64();
    let until = |time: Duration| FIRST_RATE * growth * (time.as_secs_f64() / growth).exp();
    until(to) - until(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::clock::Clock;

    fn recovered() -> (Recovery, Instant) {
        let (mut recovery, down) = (Recovery::default(), Clock.now());
        recovery.record_down(down);
        let up = down + Duration::from_secs(5);
        assert!(recovery.record_up(up));
        (recovery, up)
    }

    fn user(name: impl ToString) -> SlotHolder {
        SlotHolder::User(name.to_string())
    }

    #[test]
    fn without_an_outage_nothing_waits() {
        let (mut recovery, now) = (Recovery::default(), Clock.now());
        assert!(!recovery.record_up(now));
        assert_eq!(recovery.take_turn(&user(1), now, 0.5), Duration::ZERO);
        recovery.record_down(now);
        assert_eq!(recovery.take_turn(&user(1), now, 0.5), Duration::ZERO);
        let soon = now + Duration::from_millis(999);
        assert!(!recovery.record_up(soon));
        assert_eq!(recovery.take_turn(&user(1), now, 0.5), Duration::ZERO);
    }

    #[test]
    fn an_outage_begins_with_the_first_failure() {
        let (mut recovery, now) = (Recovery::default(), Clock.now());
        recovery.record_down(now);
        recovery.record_down(now + Duration::from_millis(900));
        assert!(recovery.record_up(now + MIN_OUTAGE));
    }

    #[test]
    fn a_thousand_requests_get_turns_within_four_seconds_and_ten_thousand_within_nine() {
        let (mut recovery, now) = recovered();
        let waits: Vec<f64> = (0..10_000)
            .map(|n| recovery.take_turn(&user(n), now, 0.0).as_secs_f64())
            .collect();
        assert_eq!(waits[0], 0.0);
        assert!(waits.is_sorted());
        assert!((3.4..4.0).contains(&waits[1_000]), "{}", waits[1_000]);
        assert!((7.6..8.5).contains(&waits[9_999]), "{}", waits[9_999]);
    }

    #[test]
    fn requests_that_come_late_are_paced_too() {
        let (mut recovery, now) = recovered();
        let late = now + Duration::from_secs(2);
        let waits: Vec<_> = (0..1_000)
            .map(|n| recovery.take_turn(&user(n), late, 0.5))
            .collect();
        let at_once = waits
            .iter()
            .filter(|wait| **wait < Duration::from_millis(100));
        // 272 a second after 2 s.
        assert!((20..40).contains(&at_once.count()));
    }

    #[test]
    fn a_user_with_many_requests_does_not_delay_the_others() {
        let (mut recovery, now) = recovered();
        for _ in 0..100_000 {
            recovery.take_turn(&user("flood"), now, 0.0);
        }
        for other in 0..7 {
            assert_eq!(recovery.take_turn(&user(other), now, 0.0), Duration::ZERO);
        }
        let waits: Vec<f64> = (0..1_000)
            .map(|n| recovery.take_turn(&user(n), now, 0.0).as_secs_f64())
            .collect();
        assert!(waits[999] < 5.0, "{}", waits[999]);
    }

    #[test]
    fn requests_without_a_turn_are_spread_over_a_second_at_the_end() {
        let (mut recovery, now) = recovered();
        for _ in 0..400_000 {
            assert!(recovery.take_turn(&user(1), now, 0.0) <= END);
        }
        assert_eq!(recovery.take_turn(&user(1), now, 0.0), END);
        let middle = END + Duration::from_millis(500);
        assert_eq!(recovery.take_turn(&user(1), now, 0.5), middle);
        assert!(recovery.is_recovering(now));
        assert_eq!(recovery.take_turn(&user(1), now + END, 0.5), Duration::ZERO);
        assert!(!recovery.is_recovering(now + END));
    }
}
