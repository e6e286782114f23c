//! Which of weir's own probes came back to it. Pure.
//!
//! Promises: a nonce counts once, and only until its probe, or a later one, has reached the API server. At most [`MOST`] are
//! remembered, none for longer than [`REMEMBERED`].

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;

use crate::upstream::cdn_loop::Nonce;

/// Most probes that are remembered. One at a time is under way; others were given up without an answer.
pub const MOST: usize = 16;

/// How long a probe without a clear answer is remembered: longer than any proxy on the way waits for an answer.
pub const REMEMBERED: Duration = Duration::from_secs(120);

/// What a probe tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEvent {
    /// It came back: the upstream leads back to this weir.
    Began,
    /// It came back, as an earlier one did.
    Continues,
    /// It reached the API server, after an earlier one had come back.
    Ended,
}

/// The probes under way, and what they have come to.
#[derive(Debug, Default)]
pub struct LoopProbes {
    /// Oldest first.
    under_way: VecDeque<(Instant, Nonce)>,
    looping: bool,
}

impl LoopProbes {
    /// Whether the last probe that tells came back.
    #[must_use]
    pub const fn looping(&self) -> bool {
        self.looping
    }

    /// A probe with `nonce` is about to be sent.
    pub fn sent(&mut self, nonce: Nonce, now: Instant) {
        self.forget(now);
        if self.under_way.len() >= MOST {
            self.under_way.pop_front();
        }
        self.under_way.push_back((now, nonce));
    }

    /// A request with `nonce` came to this weir. A nonce that is not remembered tells nothing: it was used before, or is not weir's.
    pub fn came_back(&mut self, nonce: &Nonce, now: Instant) -> Option<LoopEvent> {
        self.forget(now);
        let at = self.find(nonce)?;
        self.under_way.remove(at);
        let event = if self.looping {
            LoopEvent::Continues
        } else {
            LoopEvent::Began
        };
        self.looping = true;
        Some(event)
    }

    /// The probe with `nonce` was answered. If it did not come back, and the answer is one that an API server gives, it reached one:
    /// the nonce is forgotten, and those of earlier probes are.
    pub fn answered(&mut self, nonce: &Nonce, code: StatusCode) -> Option<LoopEvent> {
        let at = self.find(nonce)?;
        if !reached_a_server(code) {
            return None;
        }
        self.under_way.drain(..=at);
        let event = self.looping.then_some(LoopEvent::Ended);
        self.looping = false;
        event
    }

    fn find(&self, nonce: &Nonce) -> Option<usize> {
        // All are compared, whichever it is.
        let each = self.under_way.iter().enumerate();
        each.fold(
            None,
            |found, (at, (_, known))| {
                if known.is(nonce) { Some(at) } else { found }
            },
        )
    }

    fn forget(&mut self, now: Instant) {
        let old = |sent: &Instant| now.saturating_duration_since(*sent) >= REMEMBERED;
        while self.under_way.front().is_some_and(|(sent, _)| old(sent)) {
            self.under_way.pop_front();
        }
    }
}

/// Whether an answer to `GET /readyz` shows that the probe came to its end. A proxy on the way answers with the others too, one that
/// rejects the probe before it comes back among them.
fn reached_a_server(code: StatusCode) -> bool {
    !matches!(
        code,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
            | StatusCode::LOOP_DETECTED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: StatusCode = StatusCode::OK;

    fn nonce(n: u8) -> Nonce {
        Nonce::from_bytes([n; 16])
    }

    #[test]
    fn a_probe_that_comes_back_tells_once_and_a_later_one_that_does_not_mends() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.sent(nonce(1), now);
        assert_eq!(probes.came_back(&nonce(1), now), Some(LoopEvent::Began));
        assert_eq!(probes.answered(&nonce(1), StatusCode::LOOP_DETECTED), None);
        assert_eq!(probes.answered(&nonce(1), OK), None, "it came back");
        assert!(probes.looping());
        probes.sent(nonce(2), now);
        let again = probes.came_back(&nonce(2), now);
        assert_eq!(again, Some(LoopEvent::Continues));
        probes.sent(nonce(3), now);
        assert_eq!(probes.answered(&nonce(3), OK), Some(LoopEvent::Ended));
        assert!(!probes.looping());
        probes.sent(nonce(4), now);
        assert_eq!(probes.answered(&nonce(4), OK), None);
    }

    #[test]
    fn a_nonce_counts_once() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        assert_eq!(probes.came_back(&nonce(1), now), None, "never sent");
        probes.sent(nonce(1), now);
        assert_eq!(probes.came_back(&nonce(1), now), Some(LoopEvent::Began));
        probes.sent(nonce(2), now);
        assert_eq!(probes.answered(&nonce(2), OK), Some(LoopEvent::Ended));
        for replayed in [nonce(1), nonce(2), nonce(3)] {
            assert_eq!(probes.came_back(&replayed, now), None);
            assert!(!probes.looping());
        }
    }

    #[test]
    fn an_answer_of_a_proxy_on_the_way_tells_nothing() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.sent(nonce(1), now);
        probes.came_back(&nonce(1), now);
        for code in [429, 502, 503, 504, 508] {
            let code = StatusCode::from_u16(code).unwrap();
            probes.sent(nonce(2), now);
            assert_eq!(probes.answered(&nonce(2), code), None);
            assert!(probes.looping(), "{code}");
        }
        for code in [200, 401, 403, 404, 500] {
            let code = StatusCode::from_u16(code).unwrap();
            probes.sent(nonce(3), now);
            assert_eq!(
                probes.answered(&nonce(3), code),
                Some(LoopEvent::Ended),
                "{code}"
            );
            probes.sent(nonce(4), now);
            assert_eq!(probes.came_back(&nonce(4), now), Some(LoopEvent::Began));
        }
    }

    #[test]
    fn a_probe_that_was_given_up_may_still_come_back_until_a_later_one_is_answered() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.sent(nonce(1), now);
        probes.sent(nonce(2), now);
        assert_eq!(probes.came_back(&nonce(1), now), Some(LoopEvent::Began));
        probes.sent(nonce(3), now);
        assert_eq!(probes.answered(&nonce(3), OK), Some(LoopEvent::Ended));
        assert_eq!(probes.came_back(&nonce(2), now), None, "overtaken");
    }

    #[test]
    fn only_recent_probes_are_remembered_and_a_bounded_number_of_them() {
        let (mut probes, start) = (LoopProbes::default(), Instant::now());
        for n in 0..=16 {
            probes.sent(nonce(n), start);
        }
        assert_eq!(probes.under_way.len(), MOST);
        assert_eq!(probes.came_back(&nonce(0), start), None, "pushed out");
        let late = start + REMEMBERED;
        assert_eq!(probes.came_back(&nonce(1), late), None, "too old");
        assert!(probes.under_way.is_empty());
        probes.sent(nonce(1), start);
        let in_time = late - Duration::from_millis(1);
        assert_eq!(probes.came_back(&nonce(1), in_time), Some(LoopEvent::Began));
    }
}
