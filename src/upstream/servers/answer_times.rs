//! When a server answered last, and since when a request waits for it in vain.
//!
//! Every request of every worker reads and writes these times, so they are written only as often as
//! [`RESOLUTION`] says while the server answers. Relaxed: each is read alone, and nothing else
//! depends on its order.
//!
//! Silence counts only beside an answer. A server that answers nothing may hang, or all of them
//! wait for one etcd. Only if another one answers is a read sent there, once. A probe tells a slow
//! list from a hung server before the two seconds are over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The accuracy of the times while a server answers, in milliseconds.
const RESOLUTION: u64 = 50;

/// A server that has answered within this time is up.
pub(crate) const RECENT_ANSWER: Duration = Duration::from_secs(1);

/// The times of one server, in milliseconds after the base and from 1 on; 0 is never.
#[derive(Debug)]
pub(crate) struct AnswerTimes {
    base: Instant,
    last_answer: AtomicU64,
    /// When the first request was sent after the last answer, if it is later than that.
    waiting_since: AtomicU64,
}

impl AnswerTimes {
    pub(crate) const fn new(base: Instant) -> Self {
        Self {
            base,
            last_answer: AtomicU64::new(0),
            waiting_since: AtomicU64::new(0),
        }
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.base).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX - 1) + 1
    }

    /// A request is sent.
    pub(crate) fn record_request(&self, now: Instant) {
        let now = self.millis(now);
        let last = self.last_answer.load(Ordering::Relaxed);
        let is_answering = last > 0 && now < last + RESOLUTION;
        if !is_answering && self.waiting_since.load(Ordering::Relaxed) <= last {
            self.waiting_since
                .store(now.max(last + 1), Ordering::Relaxed);
        }
    }

    /// A request or a probe was answered.
    pub(crate) fn record_answer(&self, now: Instant) {
        let now = self.millis(now);
        let last = self.last_answer.load(Ordering::Relaxed);
        let waiting = self.waiting_since.load(Ordering::Relaxed);
        if last == 0 || waiting > last || now >= last + RESOLUTION {
            self.last_answer.store(now.max(waiting), Ordering::Relaxed);
        }
    }

    /// How long requests have waited without any answer; zero if none waits.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let waiting = self.waiting_since.load(Ordering::Relaxed);
        if waiting <= self.last_answer.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        Duration::from_millis(self.millis(now).saturating_sub(waiting))
    }

    /// Whether it has answered within the last `time`.
    pub(crate) fn answered_within(&self, time: Duration, now: Instant) -> bool {
        let last = self.last_answer.load(Ordering::Relaxed);
        let since = Duration::from_millis(self.millis(now).saturating_sub(last));
        last > 0 && since <= time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::clock::Clock;

    #[test]
    fn a_server_is_silent_from_the_first_request_after_its_last_answer() {
        let base = Clock.now();
        let at = |millis| base + Duration::from_millis(millis);
        let silence = |times: &AnswerTimes, now| times.silence(at(now)).as_millis();
        let times = AnswerTimes::new(base);
        assert_eq!(silence(&times, 5_000), 0, "no request");
        assert!(!times.answered_within(Duration::from_secs(9), at(5_000)));
        times.record_request(at(1_000));
        times.record_request(at(1_500));
        assert_eq!(silence(&times, 3_000), 2_000);
        times.record_answer(at(3_000));
        assert_eq!(silence(&times, 9_000), 0, "no request since");
        assert!(times.answered_within(Duration::from_secs(1), at(4_000)));
        assert!(!times.answered_within(Duration::from_secs(1), at(4_001)));
        times.record_request(at(3_020));
        assert_eq!(silence(&times, 3_040), 0, "it answers");
        times.record_request(at(3_100));
        times.record_answer(at(3_101));
        assert_eq!(silence(&times, 9_000), 0);
        times.record_request(at(10_000));
        assert_eq!(silence(&times, 10_500), 500);
    }
}
