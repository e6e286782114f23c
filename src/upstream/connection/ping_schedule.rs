//! When a PING goes out on an HTTP/2 connection, and what its answer proves. Pure.
//!
//! One PING is under way at a time (the library has no more), for two purposes: a peer that is silent for long is asked whether it
//! is still there, and behind streams that were reset the answer proves that the peer has seen their end.

use std::time::Duration;
use std::time::Instant;

/// How often, and how long an answer may take.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct PingTimeouts {
    /// A PING goes out when the last answer is this old.
    pub(in crate::upstream) interval: Duration,
    /// Without an answer for this long, the peer is gone.
    pub(in crate::upstream) timeout: Duration,
}

/// What has been asked on a connection.
#[derive(Debug)]
pub(in crate::upstream) struct PingSchedule {
    timeouts: PingTimeouts,
    /// Of the PING that is under way: how many resets went out before it, and when it was sent.
    outstanding: Option<(u64, Instant)>,
    /// Resets that the peer has seen.
    acknowledged: u64,
    /// The last answer.
    last_pong: Instant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum PingAction {
    /// A PING goes out now.
    Send,
    /// Nothing, until then.
    Wait(Instant),
    /// The peer does not answer.
    PeerGone,
}

impl PingSchedule {
    /// Of a connection that was opened now.
    pub(in crate::upstream) const fn new(times: PingTimeouts, now: Instant) -> Self {
        Self {
            timeouts: times,
            outstanding: None,
            acknowledged: 0,
            last_pong: now,
        }
    }

    /// Whether a PING is under way.
    pub(in crate::upstream) const fn is_outstanding(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Whether there are resets that no PING stands behind, of so many that have been written.
    pub(in crate::upstream) const fn has_unacknowledged(&self, written: u64) -> bool {
        self.outstanding.is_none() && written > self.acknowledged
    }

    /// What is to be done, when so many resets have been written to the last byte.
    pub(in crate::upstream) fn next_action(&mut self, now: Instant, written: u64) -> PingAction {
        if let Some((_, sent)) = self.outstanding {
            let end = sent + self.timeouts.timeout;
            return if now < end {
                PingAction::Wait(end)
            } else {
                PingAction::PeerGone
            };
        }
        let again = self.last_pong + self.timeouts.interval;
        if !self.has_unacknowledged(written) && now < again {
            return PingAction::Wait(again);
        }
        self.outstanding = Some((written, now));
        PingAction::Send
    }

    /// The PING was answered. Returns how many resets the peer has seen.
    pub(in crate::upstream) fn record_pong(&mut self, now: Instant) -> u64 {
        if let Some((resets, _)) = self.outstanding.take() {
            self.acknowledged = resets;
        }
        self.last_pong = now;
        self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const TIMES: PingTimeouts = PingTimeouts {
        interval: Duration::from_secs(30),
        timeout: Duration::from_secs(15),
    };

    fn after(began: Instant, seconds: u64) -> Instant {
        began + Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_is_pinged_and_then_gone() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        assert_eq!(
            pings.next_action(began, 0),
            PingAction::Wait(after(began, 30))
        );
        assert_eq!(pings.next_action(after(began, 30), 0), PingAction::Send);
        let end = after(began, 45);
        assert_eq!(
            pings.next_action(after(began, 31), 0),
            PingAction::Wait(end)
        );
        assert_eq!(pings.next_action(end, 0), PingAction::PeerGone);
    }

    #[test]
    fn a_pong_acknowledges_the_resets_sent_before_its_ping() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        assert_eq!(pings.next_action(began, 3), PingAction::Send);
        assert!(!pings.has_unacknowledged(5), "one is under way");
        assert_eq!(pings.record_pong(began), 3);
        assert!(pings.has_unacknowledged(5));
        assert_eq!(pings.next_action(began, 5), PingAction::Send);
        assert_eq!(pings.record_pong(began), 5);
        assert_eq!(
            pings.next_action(began, 5),
            PingAction::Wait(after(began, 30))
        );
    }

    #[test]
    fn a_keepalive_ping_acknowledges_resets_too() {
        let began = Clock.now();
        let mut pings = PingSchedule::new(TIMES, began);
        let late = after(began, 30);
        assert_eq!(pings.next_action(late, 0), PingAction::Send);
        assert_eq!(
            pings.next_action(late, 2),
            PingAction::Wait(after(began, 45))
        );
        assert_eq!(pings.record_pong(late), 0, "they went out behind it");
        assert_eq!(pings.next_action(late, 2), PingAction::Send);
    }
}
