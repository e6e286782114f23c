//! Which of weir's own probes returned to it. Pure.
//!
//! Promises: a nonce counts once, and only until its probe, or a later one, has reached the API
//! server. At most [`MAX_PROBES`] are remembered, none for longer than [`PROBE_TTL`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::upstream::loop_detection::cdn_loop::Nonce;

/// Most probes that are remembered. One is in flight at a time; others timed out without a
/// response.
pub(crate) const MAX_PROBES: usize = 16;

/// How long a probe without a clear response is remembered: longer than any proxy on the path waits
/// for a response.
pub(crate) const PROBE_TTL: Duration = Duration::from_secs(120);

/// What a probe shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopEvent {
    /// It returned: the upstream leads back to this weir.
    Started,
    /// It returned, as an earlier one did.
    Continued,
    /// It reached the API server, after an earlier one had returned.
    Ended,
}

/// The probes in flight, and whether the upstream loops.
#[derive(Debug, Default)]
pub(crate) struct LoopProbes {
    /// Oldest first.
    in_flight: VecDeque<(Instant, Nonce)>,
    looping: bool,
}

impl LoopProbes {
    /// Whether the last conclusive probe returned.
    #[must_use]
    pub(crate) const fn looping(&self) -> bool {
        self.looping
    }

    /// Records that a probe with `nonce` is about to be sent.
    pub(crate) fn record_sent(&mut self, nonce: Nonce, now: Instant) {
        self.evict_expired(now);
        if self.in_flight.len() >= MAX_PROBES {
            self.in_flight.pop_front();
        }
        self.in_flight.push_back((now, nonce));
    }

    /// Records that a request with `nonce` was received. A nonce that is not remembered shows
    /// nothing: it was used before, or is not weir's.
    pub(crate) fn record_returned(&mut self, nonce: &Nonce, now: Instant) -> Option<LoopEvent> {
        self.evict_expired(now);
        let at = self.position(nonce)?;
        self.in_flight.remove(at);
        let event = if self.looping {
            LoopEvent::Continued
        } else {
            LoopEvent::Started
        };
        self.looping = true;
        Some(event)
    }

    /// Records the response to the probe with `nonce`. If it did not return, and the response is
    /// one that an API server gives, it reached one: its nonce and those of earlier probes are
    /// removed.
    pub(crate) fn record_response(&mut self, nonce: &Nonce, code: StatusCode) -> Option<LoopEvent> {
        let at = self.position(nonce)?;
        if !is_api_server_response(code) {
            return None;
        }
        self.in_flight.drain(..=at);
        let event = self.looping.then_some(LoopEvent::Ended);
        self.looping = false;
        event
    }

    fn position(&self, nonce: &Nonce) -> Option<usize> {
        // All are compared, whichever matches: the time does not depend on the match.
        let each = self.in_flight.iter().enumerate();
        each.fold(None, |found, (at, (_, candidate))| {
            if candidate.constant_time_eq(nonce) {
                Some(at)
            } else {
                found
            }
        })
    }

    fn evict_expired(&mut self, now: Instant) {
        let old = |sent: &Instant| now.saturating_duration_since(*sent) >= PROBE_TTL;
        while self.in_flight.front().is_some_and(|(sent, _)| old(sent)) {
            self.in_flight.pop_front();
        }
    }
}

/// Whether a response to `GET /readyz` shows that the probe reached an API server. A proxy on the
/// path sends the other codes too, for example one that rejects the probe before it returns.
fn is_api_server_response(code: StatusCode) -> bool {
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
    fn a_returned_probe_starts_a_loop_and_a_later_answered_one_ends_it() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.record_sent(nonce(1), now);
        assert_eq!(
            probes.record_returned(&nonce(1), now),
            Some(LoopEvent::Started)
        );
        assert_eq!(
            probes.record_response(&nonce(1), StatusCode::LOOP_DETECTED),
            None
        );
        assert_eq!(probes.record_response(&nonce(1), OK), None, "it came back");
        assert!(probes.looping());
        probes.record_sent(nonce(2), now);
        let again = probes.record_returned(&nonce(2), now);
        assert_eq!(again, Some(LoopEvent::Continued));
        probes.record_sent(nonce(3), now);
        assert_eq!(
            probes.record_response(&nonce(3), OK),
            Some(LoopEvent::Ended)
        );
        assert!(!probes.looping());
        probes.record_sent(nonce(4), now);
        assert_eq!(probes.record_response(&nonce(4), OK), None);
    }

    #[test]
    fn a_nonce_counts_once() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        assert_eq!(probes.record_returned(&nonce(1), now), None, "never sent");
        probes.record_sent(nonce(1), now);
        assert_eq!(
            probes.record_returned(&nonce(1), now),
            Some(LoopEvent::Started)
        );
        probes.record_sent(nonce(2), now);
        assert_eq!(
            probes.record_response(&nonce(2), OK),
            Some(LoopEvent::Ended)
        );
        for replayed in [nonce(1), nonce(2), nonce(3)] {
            assert_eq!(probes.record_returned(&replayed, now), None);
            assert!(!probes.looping());
        }
    }

    #[test]
    fn a_response_of_an_intermediate_proxy_changes_nothing() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.record_sent(nonce(1), now);
        probes.record_returned(&nonce(1), now);
        for code in [429, 502, 503, 504, 508] {
            let code = StatusCode::from_u16(code).unwrap();
            probes.record_sent(nonce(2), now);
            assert_eq!(probes.record_response(&nonce(2), code), None);
            assert!(probes.looping(), "{code}");
        }
        for code in [200, 401, 403, 404, 500] {
            let code = StatusCode::from_u16(code).unwrap();
            probes.record_sent(nonce(3), now);
            assert_eq!(
                probes.record_response(&nonce(3), code),
                Some(LoopEvent::Ended),
                "{code}"
            );
            probes.record_sent(nonce(4), now);
            assert_eq!(
                probes.record_returned(&nonce(4), now),
                Some(LoopEvent::Started)
            );
        }
    }

    #[test]
    fn a_timed_out_probe_may_return_until_a_later_one_is_answered() {
        let (mut probes, now) = (LoopProbes::default(), Instant::now());
        probes.record_sent(nonce(1), now);
        probes.record_sent(nonce(2), now);
        assert_eq!(
            probes.record_returned(&nonce(1), now),
            Some(LoopEvent::Started)
        );
        probes.record_sent(nonce(3), now);
        assert_eq!(
            probes.record_response(&nonce(3), OK),
            Some(LoopEvent::Ended)
        );
        assert_eq!(probes.record_returned(&nonce(2), now), None, "overtaken");
    }

    #[test]
    fn the_tracked_probes_are_recent_and_bounded_in_number() {
        let (mut probes, start) = (LoopProbes::default(), Instant::now());
        for n in 0..=16 {
            probes.record_sent(nonce(n), start);
        }
        assert_eq!(probes.in_flight.len(), MAX_PROBES);
        assert_eq!(probes.record_returned(&nonce(0), start), None, "pushed out");
        let late = start + PROBE_TTL;
        assert_eq!(probes.record_returned(&nonce(1), late), None, "too old");
        assert!(probes.in_flight.is_empty());
        probes.record_sent(nonce(1), start);
        let in_time = late - Duration::from_millis(1);
        assert_eq!(
            probes.record_returned(&nonce(1), in_time),
            Some(LoopEvent::Started)
        );
    }
}
