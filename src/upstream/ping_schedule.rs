//! When a PING goes out on an HTTP/2 connection, and what its answer proves. Pure.
//!
//! One PING is under way at a time (the library has no more), for two purposes: a peer that is silent for long is asked whether it
//! is still there, and behind streams that were reset the answer proves that the peer has seen their end.

use std::time::Duration;
use std::time::Instant;

/// How often, and how long an answer may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// A PING goes out when the last answer is this old.
    pub(super) every: Duration,
    /// Without an answer for this long, the peer is gone.
    pub(super) answer: Duration,
}

/// What has been asked on a connection.
#[derive(Debug)]
pub(super) struct PingSchedule {
    times: Times,
    /// Of the PING that is under way: how many resets went out before it, and when it was sent.
    outstanding: Option<(u64, Instant)>,
    /// Resets that the peer has seen.
    acknowledged: u64,
    /// The last answer.
    answered: Instant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A PING goes out now.
    Send,
    /// Nothing, until then.
    Wait(Instant),
    /// The peer does not answer.
    Gone,
}

impl PingSchedule {
    /// Of a connection that was opened now.
    pub(super) const fn new(times: Times, now: Instant) -> Self {
        Self {
            times,
            outstanding: None,
            acknowledged: 0,
            answered: now,
        }
    }

    /// Whether a PING is under way.
    pub(super) const fn is_outstanding(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Whether there are resets that no PING stands behind, of so many that have been written.
    pub(super) const fn is_behind(&self, written: u64) -> bool {
        self.outstanding.is_none() && written > self.acknowledged
    }

    /// What is to be done, when so many resets have been written to the last byte.
    pub(super) fn next(&mut self, now: Instant, written: u64) -> Next {
        if let Some((_, sent)) = self.outstanding {
            let end = sent + self.times.answer;
            return if now < end {
                Next::Wait(end)
            } else {
                Next::Gone
            };
        }
        let again = self.answered + self.times.every;
        if !self.is_behind(written) && now < again {
            return Next::Wait(again);
        }
        self.outstanding = Some((written, now));
        Next::Send
    }

    /// The PING was answered. Returns how many resets the peer has seen.
    pub(super) fn answer(&mut self, now: Instant) -> u64 {
        if let Some((resets, _)) = self.outstanding.take() {
            self.acknowledged = resets;
        }
        self.answered = now;
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const TIMES: Times = Times {
        every: Duration::from_secs(30),
        answer: Duration::from_secs(15),
    };

    fn after(began: Instant, seconds: u64) -> Instant {
        began + Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_is_asked_and_given_up() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        assert_eq!(pings.next(began, 0), Next::Wait(after(began, 30)));
        assert_eq!(pings.next(after(began, 30), 0), Next::Send);
        let end = after(began, 45);
        assert_eq!(pings.next(after(began, 31), 0), Next::Wait(end));
        assert_eq!(pings.next(end, 0), Next::Gone);
    }

    #[test]
    fn a_ping_proves_those_resets_that_went_out_before_it() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        assert_eq!(pings.next(began, 3), Next::Send);
        assert!(!pings.is_behind(5), "one is under way");
        assert_eq!(pings.answer(began), 3);
        assert!(pings.is_behind(5));
        assert_eq!(pings.next(began, 5), Next::Send);
        assert_eq!(pings.answer(began), 5);
        assert_eq!(pings.next(began, 5), Next::Wait(after(began, 30)));
    }

    #[test]
    fn the_keep_alive_proves_resets_as_well() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        let late = after(began, 30);
        assert_eq!(pings.next(late, 0), Next::Send);
        assert_eq!(pings.next(late, 2), Next::Wait(after(began, 45)));
        assert_eq!(pings.answer(late), 0, "they went out behind it");
        assert_eq!(pings.next(late, 2), Next::Send);
    }
}
