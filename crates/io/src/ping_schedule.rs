//! When a PING is sent on an HTTP/2 connection, and what its answer acknowledges. Pure.
//!
//! At most one PING is outstanding (h2 allows no more), for two purposes. It checks whether a
//! silent peer is still there, and its answer acknowledges the streams that were reset before it.

use std::time::{Duration, Instant};

/// The interval of PINGs and the time for an answer.
#[derive(Clone, Copy, Debug)]
pub struct PingTimeouts {
    /// A PING is sent when the last answer is this old.
    pub interval: Duration,
    /// A peer that has not answered for this long is gone.
    pub timeout: Duration,
}

/// The PINGs of one connection.
#[derive(Debug)]
pub struct PingSchedule {
    timeouts: PingTimeouts,
    /// The outstanding PING: how many resets were sent before it, and when it was sent.
    outstanding: Option<(u64, Instant)>,
    /// Resets that the peer has seen.
    acknowledged: u64,
    /// When the last answer arrived.
    last_pong: Instant,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingAction {
    /// Send a PING now.
    Send,
    /// Do nothing until then.
    Wait(Instant),
    /// The peer does not answer.
    PeerGone,
}

impl PingSchedule {
    /// The schedule of a connection that was opened now.
    #[must_use]
    pub const fn new(times: PingTimeouts, now: Instant) -> Self {
        Self {
            timeouts: times,
            outstanding: None,
            acknowledged: 0,
            last_pong: now,
        }
    }

    /// Whether a PING is outstanding.
    #[must_use]
    pub const fn is_outstanding(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Whether some of the `written` resets have no PING sent after them.
    #[must_use]
    pub const fn has_unacknowledged(&self, written: u64) -> bool {
        self.outstanding.is_none() && written > self.acknowledged
    }

    /// The next action, when `written` resets have been written in full.
    pub fn next_action(&mut self, now: Instant, written: u64) -> PingAction {
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

    /// Records the answer to the PING. Returns how many resets the peer has seen.
    pub fn record_pong(&mut self, now: Instant) -> u64 {
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
    use weir_base::clock::Clock;

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
