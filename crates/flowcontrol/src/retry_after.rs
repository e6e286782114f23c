//! The `Retry-After` of rejected requests: longer while a level keeps rejecting, up to half a
//! minute.
//!
//! One tracker counts the requests that one priority level drops, per second. At the first drop of
//! a new second it sums the drops of the last `retry_after` seconds. With three drops a second or
//! more, `retry_after` doubles. With less than one drop a second, it decreases by one second. This
//! is `dropped_requests_tracker.go` of Kubernetes 1.36.
//!
//! The caller decides which requests count as dropped.

use std::collections::VecDeque;

/// The greatest `Retry-After`, in seconds.
const MAX_RETRY_AFTER: i64 = 32;

/// The number of seconds with drops that are kept. Twice the longest look-back: the rest is for a
/// clock that was set back, which leaves entries that are not old yet.
const MAX_HISTORY: usize = 64;

/// The drops of one priority level, and the `Retry-After` that follows from them.
#[derive(Clone, Debug)]
pub struct DroppedRequestsTracker {
    retry_after: i64,
    /// The second of the last doubling.
    last_doubled_at: i64,
    current: DropsPerSecond,
    /// The seconds before `current` that had drops, oldest first.
    history: VecDeque<DropsPerSecond>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DropsPerSecond {
    unix_second: i64,
    drops: i64,
}

impl Default for DroppedRequestsTracker {
    fn default() -> Self {
        Self {
            retry_after: 1,
            last_doubled_at: 0,
            current: DropsPerSecond::default(),
            history: VecDeque::new(),
        }
    }
}

impl DroppedRequestsTracker {
    /// Records that a request was dropped at `unix_second` (wall clock, as upstream) and returns
    /// the `Retry-After` of its response, in seconds.
    pub fn record(&mut self, unix_second: i64) -> i64 {
        if unix_second == self.current.unix_second {
            self.current.drops += 1;
        } else {
            self.push_current();
            self.current = DropsPerSecond {
                unix_second,
                drops: 1,
            };
            self.update_retry_after();
        }
        self.retry_after
    }

    /// The current `Retry-After`, in seconds.
    #[must_use]
    pub const fn retry_after(&self) -> i64 {
        self.retry_after
    }

    fn push_current(&mut self) {
        self.history.push_back(self.current);
        let longest = (2 * self.retry_after).min(MAX_RETRY_AFTER);
        while let Some(oldest) = self.history.front()
            && (self.current.unix_second - oldest.unix_second > longest
                || self.history.len() > MAX_HISTORY)
        {
            self.history.pop_front();
        }
    }

    fn update_retry_after(&mut self) {
        let now = self.current.unix_second;
        let dropped: i64 = self
            .history
            .iter()
            .rev()
            .take_while(|second| second.unix_second >= now - self.retry_after)
            .filter(|second| second.unix_second < now)
            .map(|second| second.drops)
            .sum();
        if now - self.last_doubled_at >= self.retry_after && dropped >= 3 * self.retry_after {
            self.retry_after = (2 * self.retry_after).min(MAX_RETRY_AFTER);
            self.last_doubled_at = now;
        } else if dropped < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop_at(tracker: &mut DroppedRequestsTracker, second: i64, times: usize) -> i64 {
        (0..times).map(|_| tracker.record(second)).last().unwrap()
    }

    #[test]
    fn a_flood_doubles_retry_after_up_to_32_and_only_when_the_last_one_has_passed() {
        let mut tracker = DroppedRequestsTracker::default();
        let delays: Vec<_> = (1000..1100)
            .map(|second| drop_at(&mut tracker, second, 10))
            .collect();
        assert_eq!(delays[..9], [1, 2, 2, 4, 4, 4, 4, 8, 8]);
        assert_eq!(delays[99], 32);
        assert_eq!(tracker.retry_after(), 32);
    }

    #[test]
    fn a_trickle_lowers_retry_after_by_one_a_second() {
        let mut tracker = DroppedRequestsTracker::default();
        for second in 0..100 {
            drop_at(&mut tracker, 1000 + second, 10);
        }
        assert_eq!(tracker.record(1200), 31);
        assert_eq!(tracker.record(1200), 31);
        assert_eq!(tracker.record(1201), 30);
        assert_eq!(tracker.record(1300), 29);
    }

    #[test]
    fn a_clock_that_keeps_stepping_back_leaves_the_history_bounded() {
        let mut tracker = DroppedRequestsTracker::default();
        for second in (0..100_000).rev() {
            tracker.record(second);
        }
        assert!(tracker.history.len() <= MAX_HISTORY);
    }
}
