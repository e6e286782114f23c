//! Whether a server gets requests: by its probes, by the requests that failed on it, and whether it
//! is weir itself. Pure.
//!
//! - A server whose `/readyz` fails gets none until it passes (active probes). After weir's start
//!   and after an outage it has to pass first ([`readiness_gate`](super::readiness_gate)).
//! - A server on which requests fail one after the other is *ejected* for a while, twice as long
//!   each time (passive). A passed probe ends an ejection for failed connections. Broken connections
//!   can have a cause that no probe shows, so that ejection lasts its time.
//! - A server that returns gets a growing part of its share (*slow start*).
//! - A single server gets all requests whatever its probes show. They decide whether weir is ready
//!   ([`Health::readiness`]).

use std::fmt;
use std::time::{Duration, Instant};

use crate::upstream::connection::error::ForwardError;
use crate::upstream::servers::readiness_gate::ReadinessGate;

/// Failures to connect in a row that eject a server.
const CONNECT_FAILURES: u32 = 3;

/// Connections in a row that broke before a response and eject a server. More than
/// [`CONNECT_FAILURES`], since the request can be the cause.
const BROKEN_CONNECTIONS: u32 = 5;

/// Connections in a row that broke and make a server count as unreachable.
const UNREACHABLE_CONNECTIONS: u32 = 3;

/// Probes in a row without a response after which a server is not ready. One is not enough: a
/// garbage collection or a lost packet can delay one.
const MISSED_PROBES: u32 = 2;

/// A server that answers nothing for this long hangs; of several, while another one answers.
pub(crate) const HANG_TIME: Duration = Duration::from_secs(2);

/// weir is not ready when its only server has answered no probe for this long: longer than a busy
/// API server takes.
const UNREADY_AFTER: Duration = Duration::from_secs(5);

/// The first ejection.
const BASE_EJECTION: Duration = Duration::from_secs(1);

/// The longest ejection.
const MAX_EJECTION: Duration = Duration::from_secs(32);

/// A server without an ejection for this long begins with [`BASE_EJECTION`] again.
const EJECTION_MEMORY: Duration = Duration::from_secs(120);

/// How long a server that returns gets less than its share.
pub(crate) const SLOW_START: Duration = Duration::from_secs(10);

/// The share at the begin of a slow start.
const FIRST_SHARE: f64 = 0.1;

/// The result of a probe.
#[derive(Clone, Debug)]
pub(crate) enum ProbeOutcome {
    /// The server is ready.
    Ready,
    /// It responds, and is not ready.
    NotReady(String),
    /// It cannot be reached.
    Unreachable(ForwardError),
    /// There was no response in time, or the connection broke.
    NoResponse(String),
    /// A weir responds.
    Weir(WeirServer),
}

impl ProbeOutcome {
    /// All values of [`ProbeOutcome::label`].
    pub(crate) const LABELS: [&'static str; 5] =
        ["ready", "not-ready", "unreachable", "no-response", "weir"];

    /// The value of the metric label `result`.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady(_) => "not-ready",
            Self::Unreachable(_) => "unreachable",
            Self::NoResponse(_) => "no-response",
            Self::Weir(_) => "weir",
        }
    }

    /// Which weir responded, if one did.
    pub(crate) const fn weir(&self) -> Option<WeirServer> {
        if let Self::Weir(weir) = self {
            return Some(*weir);
        }
        None
    }

    /// Whether something responded.
    pub(crate) const fn is_response(&self) -> bool {
        matches!(self, Self::Ready | Self::NotReady(_) | Self::Weir(_))
    }
}

/// A server that is a weir, and never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeirServer {
    /// The address is one of this weir's own.
    OwnAddress,
    /// A probe came back to this weir.
    OwnProbe,
    /// Another weir answered a probe.
    Peer,
}

impl WeirServer {
    /// The value of the metric label `reason`.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::OwnAddress => "own-address",
            Self::OwnProbe => "own-probe",
            Self::Peer => "peer",
        }
    }
}

impl fmt::Display for WeirServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnAddress => "the address is one of this weir's own",
            Self::OwnProbe => "weir's own probe came back: the address leads to this weir",
            Self::Peer => "another weir answers there",
        })
    }
}

/// A request that failed because of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// No connection could be opened.
    Connect,
    /// The connection broke before a response.
    BrokenConnection,
}

/// A change that is logged and counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    /// It passes its probe again, or for the first time.
    Ready,
    /// Its probe fails, with the reason.
    NotReady(String),
    /// It is ejected for this long.
    Ejected(Duration),
    /// It is a weir, and never used.
    Refused(WeirServer),
}

/// Whether, or from when on, a server gets requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Without restriction.
    Always,
    /// From this time on, with a slow start. Earlier only where no server is available.
    From(Instant),
    /// Only where no server is available.
    NotReady,
    /// Not before a probe has shown that it is no weir; a configured server before that only where
    /// no other is available.
    Unverified,
    /// Never.
    Refused,
}

impl Availability {
    /// The part of its share that a server gets at `now`: 0 to 1. `None` if it is not available.
    pub(crate) fn share(self, now: Instant) -> Option<f64> {
        match self {
            Self::Always => Some(1.0),
            Self::From(from) => (now >= from).then(|| slow_start_share(now - from)),
            Self::NotReady | Self::Unverified | Self::Refused => None,
        }
    }
}

fn slow_start_share(since: Duration) -> f64 {
    let progress = since.as_secs_f64() / SLOW_START.as_secs_f64();
    progress.clamp(FIRST_SHARE, 1.0)
}

/// Whether weir can use its API servers, as far as probes show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamReadiness {
    /// They may hang, and are used.
    Late(String),
    NotReady(String),
    Ready,
    /// No probe has ended yet.
    Unknown,
}

/// The probes and failures of one server.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    availability: Availability,
    /// Why the last probe failed.
    probe_failure: Option<ForwardError>,
    /// `None` if it gets requests before a probe has passed.
    gate: Option<ReadinessGate>,
    missed_probes: u32,
    /// The end of the last probe.
    probed_at: Option<Instant>,
    /// The begin of the first probe after the last response to one.
    unanswered_since: Option<Instant>,
    /// Whether the last conclusive probe got a response.
    responds: bool,
    connect_failures: u32,
    broken_connections: u32,
    ejection: Option<Ejection>,
}

#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    time: Duration,
    cause: ServerFailure,
}

impl Health {
    /// A server that was not probed yet. If `verify`, it gets no request before a probe has shown
    /// that it is no weir.
    pub(crate) const fn new(verify: bool) -> Self {
        Self {
            availability: if verify {
                Availability::Unverified
            } else {
                Availability::Always
            },
            probe_failure: None,
            gate: None,
            missed_probes: 0,
            probed_at: None,
            unanswered_since: None,
            responds: true,
            connect_failures: 0,
            broken_connections: 0,
            ejection: None,
        }
    }

    /// The same, and it gets no request before its `/readyz` has passed, at the start and after an
    /// outage.
    pub(crate) fn with_gate(self, now: Instant) -> Self {
        Self {
            gate: Some(ReadinessGate::closed(now)),
            ..self
        }
    }

    /// A server that is never used.
    pub(crate) fn refused(weir: WeirServer) -> Self {
        Self {
            availability: Availability::Refused,
            probe_failure: Some(ForwardError::not_ready(weir)),
            ..Self::new(true)
        }
    }

    pub(crate) const fn availability(&self) -> Availability {
        self.availability
    }

    /// Why the last probe failed, if it did.
    pub(crate) const fn probe_failure(&self) -> Option<&ForwardError> {
        self.probe_failure.as_ref()
    }

    /// Until when it gets no requests because its `/readyz` has to pass first; the time may have
    /// passed.
    pub(crate) fn gated_until(&self) -> Option<Instant> {
        self.gate.and_then(ReadinessGate::closed_until)
    }

    /// Whether it is ejected at `now`.
    pub(crate) fn is_ejected(&self, now: Instant) -> bool {
        self.ejection.is_some_and(|ejection| now < ejection.until)
    }

    /// Why a request is not sent while `/readyz` has to pass first.
    pub(crate) fn gate_error(&self) -> ForwardError {
        let failure = self.probe_failure.clone();
        failure.unwrap_or_else(|| ForwardError::not_ready("its /readyz was not answered yet"))
    }

    /// The end of the last probe.
    pub(crate) const fn probed_at(&self) -> Option<Instant> {
        self.probed_at
    }

    /// How long probes have got no response at `now`.
    pub(crate) fn probe_silence(&self, now: Instant) -> Duration {
        let since = self.unanswered_since;
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Whether weir can use this server at `now`, if it is the only one. Any response will do once
    /// `/readyz` has passed, or had its time to: a failing `/readyz` alone takes no server away.
    pub(crate) fn readiness(&self, now: Instant) -> UpstreamReadiness {
        let is_gated = self.gated_until().is_some_and(|until| now < until);
        let silence = self.probe_silence(now);
        if self.probe_failure.is_some() && (is_gated || !self.responds) {
            return UpstreamReadiness::NotReady(self.gate_error().probe_failure());
        }
        if silence >= HANG_TIME {
            let why = format!("no answer for {} s", silence.as_secs());
            return match is_gated || silence >= UNREADY_AFTER {
                true => UpstreamReadiness::NotReady(why),
                false => UpstreamReadiness::Late(why),
            };
        }
        match (self.probed_at, is_gated) {
            (None, _) => UpstreamReadiness::Unknown,
            (Some(_), true) => UpstreamReadiness::NotReady(self.gate_error().probe_failure()),
            (Some(_), false) => UpstreamReadiness::Ready,
        }
    }

    /// Records a probe that is sent at `now`.
    pub(crate) fn record_probe_sent(&mut self, now: Instant) {
        self.unanswered_since.get_or_insert(now);
    }

    /// Records a probe that ended at `now`.
    pub(crate) fn record_probe(
        &mut self,
        outcome: ProbeOutcome,
        now: Instant,
    ) -> Option<HealthChange> {
        self.probed_at = Some(now);
        if outcome.is_response() {
            self.unanswered_since = None;
            self.responds = true;
        }
        match outcome {
            ProbeOutcome::Ready => self.record_ready(now),
            ProbeOutcome::NotReady(why) => {
                self.missed_probes = 0;
                if let Some(gate) = &mut self.gate {
                    gate.record_not_ready(now);
                }
                self.record_not_ready(ForwardError::not_ready(why), true)
            }
            ProbeOutcome::Unreachable(why) => {
                self.missed_probes = 0;
                if let Some(gate) = &mut self.gate {
                    gate.record_unreachable(now);
                }
                self.record_not_ready(why, false)
            }
            ProbeOutcome::NoResponse(why) => {
                self.missed_probes = self.missed_probes.saturating_add(1);
                if self.missed_probes < MISSED_PROBES {
                    return None;
                }
                self.record_not_ready(ForwardError::not_ready(why), false)
            }
            ProbeOutcome::Weir(weir) => {
                let known = self.availability == Availability::Refused;
                self.availability = Availability::Refused;
                if let Some(gate) = &mut self.gate {
                    gate.record_ready(); // it gets no requests anyway
                }
                self.probe_failure = Some(ForwardError::not_ready(weir));
                (!known).then_some(HealthChange::Refused(weir))
            }
        }
    }

    fn record_ready(&mut self, now: Instant) -> Option<HealthChange> {
        self.missed_probes = 0;
        self.probe_failure = None;
        self.connect_failures = 0;
        let was_gated = self.gated_until().is_some_and(|until| now < until);
        if let Some(gate) = &mut self.gate {
            gate.record_ready();
        }
        let ejection = self.ejection.filter(|ejection| now < ejection.until);
        let (availability, change) = match (self.availability, ejection) {
            (_, Some(ejection)) if ejection.cause == ServerFailure::BrokenConnection => {
                (Availability::From(ejection.until), None)
            }
            (_, Some(_)) => {
                if let Some(ejection) = &mut self.ejection {
                    ejection.until = now;
                }
                (Availability::From(now), Some(HealthChange::Ready))
            }
            (Availability::NotReady | Availability::Unverified | Availability::Refused, None) => {
                (Availability::From(now), Some(HealthChange::Ready))
            }
            (unchanged, None) => (unchanged, was_gated.then_some(HealthChange::Ready)),
        };
        self.availability = availability;
        change
    }

    /// `responds`: something that is no weir.
    fn record_not_ready(&mut self, why: ForwardError, responds: bool) -> Option<HealthChange> {
        self.responds = responds;
        let was_ready = self.probe_failure.is_none();
        let text = why.probe_failure();
        self.probe_failure = Some(why);
        let may_be_weir = matches!(
            self.availability,
            Availability::Unverified | Availability::Refused
        );
        if responds || !may_be_weir {
            self.availability = Availability::NotReady;
        }
        was_ready.then_some(HealthChange::NotReady(text))
    }

    /// Whether the server counts as unreachable after another such failure: if it cannot be connected
    /// to, or after several broken connections in a row. One of them can have any cause.
    pub(crate) const fn is_unreachable_after(&self, failure: ServerFailure) -> bool {
        match failure {
            ServerFailure::Connect => true,
            ServerFailure::BrokenConnection => {
                self.broken_connections.saturating_add(1) >= UNREACHABLE_CONNECTIONS
            }
        }
    }

    /// Records that a request found the server unreachable, and that it has answered nothing lately.
    pub(crate) fn record_outage(&mut self, now: Instant) {
        if let Some(gate) = &mut self.gate {
            gate.record_failure(now);
        }
    }

    /// Records a request that failed at `now`. The server is ejected only if `may_eject`.
    pub(crate) fn record_failure(
        &mut self,
        failure: ServerFailure,
        now: Instant,
        may_eject: bool,
    ) -> Option<HealthChange> {
        let count = match failure {
            ServerFailure::Connect => &mut self.connect_failures,
            ServerFailure::BrokenConnection => &mut self.broken_connections,
        };
        *count = count.saturating_add(1);
        let is_due = self.connect_failures >= CONNECT_FAILURES
            || self.broken_connections >= BROKEN_CONNECTIONS;
        if !is_due || !may_eject || self.is_ejected(now) {
            return None;
        }
        self.connect_failures = 0;
        self.broken_connections = 0;
        let time = match self.ejection {
            Some(last) if now < last.until + EJECTION_MEMORY => (last.time * 2).min(MAX_EJECTION),
            _ => BASE_EJECTION,
        };
        let until = now + time;
        self.ejection = Some(Ejection {
            until,
            time,
            cause: failure,
        });
        // A server that is not ready stays so until a probe passes.
        if matches!(
            self.availability,
            Availability::Always | Availability::From(_)
        ) {
            self.availability = Availability::From(until);
        }
        Some(HealthChange::Ejected(time))
    }

    /// Records a response to a request.
    pub(crate) const fn record_success(&mut self) {
        self.connect_failures = 0;
        self.broken_connections = 0;
    }
}

/// Whether another server may be ejected: at most half of them are, and never the only one.
pub(crate) const fn may_eject(ejected: usize, servers: usize) -> bool {
    (ejected + 1) * 2 <= servers
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
