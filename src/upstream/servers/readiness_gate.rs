//! Whether a server gets requests before its `/readyz` has passed. Pure.
//!
//! kube-apiserver listens before it is ready, and answers 403 until its authorizer has its rules.
//! Many controllers exit on a 403. So after weir's start, and after an outage, a server gets no
//! request before `/readyz` has passed once, or [`MAX_CLOSED`] is over. A `/readyz` that fails later
//! does not close the gate: it fails for a minute in each shutdown, in which the server still
//! serves.
//!
//! A 403 of an authorizer without rules looks like one that the client deserves. The gate
//! opens after a minute in any case, since a `/readyz` may fail for good on a server that serves.
//! weir's own calls pass it, too: otherwise each of them would need its own way to tell an early
//! 403 from a missing right. Only probes go around it.

use std::time::{Duration, Instant};

/// Longest time that the gate stays closed, from the first answer after the start or the outage. A
/// server whose `/readyz` never passes may still serve.
const MAX_CLOSED: Duration = Duration::from_secs(60);

/// The gate of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadinessGate {
    closed_until: Option<Instant>,
    /// Whether the server has not answered a probe since weir's start, or since a connection to it
    /// failed.
    is_down: bool,
}

impl ReadinessGate {
    /// The gate of a server that was not probed yet.
    pub(crate) fn closed(now: Instant) -> Self {
        Self {
            closed_until: Some(now + MAX_CLOSED),
            is_down: true,
        }
    }

    /// Until when it is closed, if it is; the time may have passed.
    pub(crate) const fn closed_until(self) -> Option<Instant> {
        self.closed_until
    }

    /// `/readyz` has passed.
    pub(crate) const fn record_ready(&mut self) {
        self.closed_until = None;
        self.is_down = false;
    }

    /// `/readyz` has failed.
    pub(crate) fn record_not_ready(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_down, false) {
            self.closed_until = Some(now + MAX_CLOSED);
        }
    }

    /// A probe found the server unreachable. Further such probes do not keep the gate closed: they
    /// may fail for a reason that does not concern requests.
    pub(crate) fn record_unreachable(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_down, true) {
            self.closed_until = Some(now + MAX_CLOSED);
        }
    }

    /// A request found the server unreachable.
    pub(crate) fn record_failure(&mut self, now: Instant) {
        self.is_down = true;
        if self.closed_until.is_none_or(|until| until <= now) {
            self.closed_until = Some(now + MAX_CLOSED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::clock::Clock;

    /// What happens to a gate.
    #[derive(Clone, Copy)]
    enum Event {
        Failure,
        NotReady,
        Ready,
        Unreachable,
    }

    /// Applies the events at their seconds after the start. Returns whether the gate is closed at
    /// `seconds`.
    fn is_closed(events: &[(u64, Event)], seconds: u64) -> bool {
        let start = Clock.now();
        let mut gate = ReadinessGate::closed(start);
        for (at, event) in events {
            let now = start + Duration::from_secs(*at);
            match event {
                Event::Failure => gate.record_failure(now),
                Event::NotReady => gate.record_not_ready(now),
                Event::Ready => gate.record_ready(),
                Event::Unreachable => gate.record_unreachable(now),
            }
        }
        let now = start + Duration::from_secs(seconds);
        gate.closed_until().is_some_and(|until| now < until)
    }

    #[test]
    fn a_server_is_closed_until_its_first_passed_probe_and_after_each_outage() {
        use Event::{Failure, NotReady, Ready, Unreachable};
        type Case = (&'static str, &'static [(u64, Event)], u64, bool);
        let cases: &[Case] = &[
            ("at the start", &[], 0, true),
            ("without an answer", &[], 59, true),
            ("for a minute", &[], 60, false),
            ("a passed probe", &[(1, Ready)], 1, false),
            (
                "the minute begins with an answer",
                &[(50, NotReady)],
                109,
                true,
            ),
            ("and ends", &[(50, NotReady), (90, NotReady)], 110, false),
            ("a shutdown", &[(1, Ready), (100, NotReady)], 100, false),
            ("a failed request", &[(1, Ready), (100, Failure)], 100, true),
            ("a probe", &[(1, Ready), (100, Unreachable)], 100, true),
            (
                "a server that boots after a long outage",
                &[(1, Ready), (100, Failure), (500, NotReady)],
                559,
                true,
            ),
            (
                "and is ready",
                &[(1, Ready), (100, Failure), (500, NotReady), (505, Ready)],
                505,
                false,
            ),
            (
                "probes alone do not keep it closed",
                &[(1, Ready), (100, Unreachable), (159, Unreachable)],
                160,
                false,
            ),
            (
                "a request that fails afterwards closes it again",
                &[(1, Ready), (100, Unreachable), (161, Failure)],
                220,
                true,
            ),
        ];
        for (name, events, seconds, closed) in cases {
            assert_eq!(is_closed(events, *seconds), *closed, "{name}");
        }
    }
}
