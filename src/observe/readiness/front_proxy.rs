//! Probes whether the API server accepts weir's front-proxy certificate: weir creates a
//! `SelfSubjectReview` as a probe user that it asserts, at startup and then at an interval.
//!
//! Only responses to weir's own probes decide. An API server behind kube-apiserver's proxy can
//! respond 401 to a client's request at will; such a response only advances the next probe, at most
//! once a second ([`FrontProxyTrust`]). A response that does not depend on the certificate (no connection,
//! 429, 5xx) changes nothing.

use parking_lot::{Mutex, MutexGuard};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use prometheus::{IntCounterVec, IntGauge};
use serde::Deserialize;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::identity::request_header::IdentityHeaders;
use crate::identity::self_subject_review;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::forward::send::SendContext;
use crate::upstream::forward::server_pools::ServerPools;
use crate::upstream::front_proxy_trust::{ACCEPTED_TTL, FrontProxyTrust};
use crate::upstream::headers::auth_mode::FrontProxy;
use crate::upstream::headers::forwarded_for::{ClientAddress, address_value};
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::requester::Requester;
use crate::upstream::{ForwardError, headers};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;

/// The user that probes assert. Its only rights are those of `system:authenticated`, which include
/// creating a `SelfSubjectReview`.
pub(crate) const PROBE_USER: &str = "weir:front-proxy-probe";

/// What the API server requires of the certificate.
pub(crate) const REQUIREMENTS: &str = "It must not have expired, be signed by the CA of the API server's --requestheader-client-ca-file, and have a common name that its --requestheader-allowed-names admits";

/// Rejected probes without an accepted one between them after which requests that assert a user are
/// not sent any more.
const FAILURE_THRESHOLD: u32 = 3;

/// Interval of probes after a rejected probe.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest response in bytes; more than such a response has.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrontProxyProbeOutcome {
    /// The response names the probe user.
    Accepted,
    /// The certificate was not accepted, with the reason.
    Rejected(String),
    /// The response does not depend on the certificate, with the reason.
    Unknown(String),
}

/// Classifies the response to a probe. An API server without the review (before 1.28) responds 403,
/// which names the user, or 404, which is unknown. One that does not accept the certificate
/// responds 401 in both cases.
#[must_use]
pub(crate) fn classify_response(code: StatusCode, body: &[u8]) -> FrontProxyProbeOutcome {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ProbeResponse {
        status: serde_json::Value,
        message: String,
    }
    let response: ProbeResponse = serde_json::from_slice(body).unwrap_or_default();
    let user = match code {
        StatusCode::UNAUTHORIZED => {
            return FrontProxyProbeOutcome::Rejected("its requests get 401".to_owned());
        }
        StatusCode::OK | StatusCode::CREATED => {
            let name = response.status.pointer("/userInfo/username");
            name.and_then(|name| name.as_str()).map(str::to_owned)
        }
        StatusCode::FORBIDDEN => forbidden_user(&response.message),
        _ => None,
    };
    match user.as_deref() {
        Some(PROBE_USER) => FrontProxyProbeOutcome::Accepted,
        Some(other) => FrontProxyProbeOutcome::Rejected(format!(
            "its requests count as {other:?}'s, whatever user they assert"
        )),
        None => {
            FrontProxyProbeOutcome::Unknown(format!("it responds with {code} and names no user"))
        }
    }
}

/// Returns the user that an authorizer's rejection names (`responsewriters.Forbidden`): `… is
/// forbidden: User "NAME" cannot …`.
fn forbidden_user(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("User \"")?;
    let (name, _) = rest.split_once("\" cannot ")?;
    Some(name.to_owned())
}

/// The state after the probes so far.
#[derive(Debug, Default)]
struct ProbeState {
    /// Rejected probes since the last accepted one.
    rejected_probes: u32,
    why: String,
}

/// A change of readiness caused by a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrontProxyChange {
    Failed,
    Recovered,
}

impl ProbeState {
    fn is_failing(&self) -> bool {
        self.rejected_probes >= FAILURE_THRESHOLD
    }

    fn record(&mut self, outcome: FrontProxyProbeOutcome) -> Option<FrontProxyChange> {
        let failed_before = self.is_failing();
        match outcome {
            FrontProxyProbeOutcome::Accepted => *self = Self::default(),
            FrontProxyProbeOutcome::Rejected(why) => {
                self.rejected_probes = self.rejected_probes.saturating_add(1);
                self.why = why;
            }
            FrontProxyProbeOutcome::Unknown(_) => {}
        }
        match (failed_before, self.is_failing()) {
            (false, true) => Some(FrontProxyChange::Failed),
            (true, false) => Some(FrontProxyChange::Recovered),
            _ => None,
        }
    }
}

/// Whether the API server accepts the certificate, by the results of probes.
#[derive(Debug)]
pub struct FrontProxyHealth {
    /// Locked for a few instructions.
    state: Mutex<ProbeState>,
    accepted: IntGauge,
    probes: IntCounterVec,
}

impl FrontProxyHealth {
    /// Creates the state before the first probe and registers its metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        let accepted = registry.gauge(
            "weir_front_proxy_accepted",
            "0 while the API server does not accept weir's front-proxy certificate: at least the last three probes were refused; 1 otherwise.",
        );
        accepted.set(1);
        Arc::new(Self {
            state: Mutex::default(),
            accepted,
            probes: registry.counters(
                "weir_front_proxy_probes_total",
                "Probes of whether the API server accepts weir's front-proxy certificate, by result: accepted, refused, or unknown where the response does not show it or there is none.",
                &["result"],
            ),
        })
    }

    /// Returns the reason if requests that assert a user get 503.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<String> {
        let state = self.lock_state();
        state.is_failing().then(|| {
            format!(
                "the API server does not accept weir's front-proxy certificate: {}",
                state.why
            )
        })
    }

    /// Counts and logs a probe. Returns whether the next one is due after [`RETRY_INTERVAL`].
    fn record(&self, outcome: FrontProxyProbeOutcome, trust: &FrontProxyTrust) -> bool {
        let result = match &outcome {
            FrontProxyProbeOutcome::Accepted => "accepted",
            FrontProxyProbeOutcome::Rejected(_) => "refused",
            FrontProxyProbeOutcome::Unknown(_) => "unknown",
        };
        self.probes.with_label_values(&[result]).inc();
        let mut state = self.lock_state();
        let first = state.rejected_probes == 0;
        let is_accepted = outcome == FrontProxyProbeOutcome::Accepted;
        let is_rejected = matches!(outcome, FrontProxyProbeOutcome::Rejected(_));
        let change = state.record(outcome);
        if is_accepted {
            trust.record_accepted(Clock.now());
        } else if is_rejected {
            trust.record_rejected(&state.why, state.is_failing());
        } else {
            trust.record_unknown();
        }
        self.accepted.set((!state.is_failing()).into());
        let why = &state.why;
        match change {
            Some(FrontProxyChange::Failed) => error!(
                why,
                "the API server does not accept weir's front-proxy certificate: clients with certificates get 503. \
                 {REQUIREMENTS}"
            ),
            Some(FrontProxyChange::Recovered) => {
                info!("the API server accepts weir's front-proxy certificate again");
            }
            None if first && state.rejected_probes > 0 => {
                warn!(
                    why,
                    "the API server did not accept a probe with weir's front-proxy certificate"
                );
            }
            None => {}
        }
        state.rejected_probes > 0
    }

    fn lock_state(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock()
    }
}

/// The task that probes the API server.
#[derive(Debug)]
pub(crate) struct FrontProxyProbe {
    /// Connections with the front-proxy certificate.
    pub(crate) pools: Arc<ServerPools<FrontProxy>>,
    /// The headers that carry the user.
    pub(crate) headers: Arc<IdentityHeaders>,
    /// The state that results are recorded in.
    pub(crate) health: Arc<FrontProxyHealth>,
    /// Interval of probes after an accepted one.
    pub(crate) interval: Duration,
}

impl FrontProxyProbe {
    /// Probes until the future is dropped.
    ///
    /// # Cancel safety
    /// A probe in progress is not counted.
    pub(crate) async fn run(self) {
        let retry_interval = RETRY_INTERVAL.min(self.interval);
        let mut last_advanced: Option<Instant> = None;
        let mut ready = self.pools.servers().ready_events();
        let trust = self.pools.servers().front_proxy_trust();
        loop {
            ready.mark_unchanged();
            let outcome = timeout(PROBE_TIMEOUT, self.probe()).await;
            let timed_out = || {
                FrontProxyProbeOutcome::Unknown(format!(
                    "no response within {}s",
                    PROBE_TIMEOUT.as_secs()
                ))
            };
            let outcome = outcome.unwrap_or_else(|_| timed_out());
            if self.health.record(outcome, trust) {
                tokio::time::sleep(retry_interval).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(self.interval) => {}
                Ok(()) = ready.changed() => {} // it may have been started with other flags
                () = trust.wait_for_probe_request() => {
                    if let Some(last) = last_advanced {
                        tokio::time::sleep_until((last + ACCEPTED_TTL).into()).await;
                    }
                    last_advanced = Some(Clock.now());
                }
            }
        }
    }

    /// Probes once.
    ///
    /// # Cancel safety
    /// The connection of the probe is closed.
    pub(crate) async fn probe(&self) -> FrontProxyProbeOutcome {
        let json = HeaderValue::from_static("application/json");
        let request = Request::builder()
            .method(Method::POST)
            .uri(self_subject_review::PATH)
            .header(
                header::USER_AGENT,
                concat!("weir/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::CONTENT_TYPE, json.clone())
            .header(header::ACCEPT, json)
            .body(());
        let Ok(request) = request else {
            return FrontProxyProbeOutcome::Unknown("the probe cannot be written".to_owned());
        };
        let user = UserInfo {
            name: PROBE_USER.to_owned(),
            ..UserInfo::default()
        };
        let localhost = address_value(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let peer = ClientAddress {
            peer: &localhost,
            trusted: false,
            app_host: None,
        };
        let (parts, ()) = request.into_parts();
        let user = user.with_authenticated_group();
        let asserted = headers::front_proxy_head(Box::new(parts), peer, &self.headers, &user);
        let Ok(head) = asserted else {
            return FrontProxyProbeOutcome::Unknown("the probe user cannot be written".to_owned());
        };
        let body = RequestBody::internal(Bytes::from_static(self_subject_review::BODY.as_bytes()));
        let mut lease = None;
        let context = SendContext {
            requester: &Requester::default(),
            guard: &mut lease,
            sent_at: &mut None,
        };
        let response = match self
            .pools
            .send(head, body, ConnectionClass::Shared, context)
            .await
        {
            Ok(response) => response,
            Err(ForwardError::FrontProxy(why)) => {
                return FrontProxyProbeOutcome::Rejected(why.to_string());
            }
            Err(why) => return FrontProxyProbeOutcome::Unknown(why.to_string()),
        };
        let code = response.status();
        match Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
        {
            Ok(body) => {
                if let Some(lease) = &mut lease {
                    lease.complete();
                }
                classify_response(code, &body.to_bytes())
            }
            Err(why) => FrontProxyProbeOutcome::Unknown(format!("the response ended early: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected() -> FrontProxyProbeOutcome {
        FrontProxyProbeOutcome::Rejected("why".to_owned())
    }

    fn unknown() -> FrontProxyProbeOutcome {
        FrontProxyProbeOutcome::Unknown("why".to_owned())
    }

    #[test]
    fn the_response_shows_which_user_the_probe_had() {
        let review = |name: &str| format!(r#"{{"status":{{"userInfo":{{"username":"{name}"}}}}}}"#);
        let forbidden = |name: &str| {
            format!(
                r#"{{"kind":"Status","message":"selfsubjectreviews.authentication.k8s.io is forbidden: User \"{name}\" cannot create resource \"selfsubjectreviews\" in API group \"authentication.k8s.io\" at the cluster scope"}}"#
            )
        };
        let classify = |code: u16, body: &str| {
            let code = StatusCode::from_u16(code).unwrap();
            classify_response(code, body.as_bytes())
        };
        assert_eq!(
            classify(201, &review(PROBE_USER)),
            FrontProxyProbeOutcome::Accepted
        );
        assert_eq!(
            classify(403, &forbidden(PROBE_USER)),
            FrontProxyProbeOutcome::Accepted
        );
        for (code, body) in [
            (401, "{}".to_owned()),
            (201, review("front-proxy-client")),
            (403, forbidden("system:anonymous")),
        ] {
            let outcome = classify(code, &body);
            assert!(
                matches!(outcome, FrontProxyProbeOutcome::Rejected(_)),
                "{code} {body}: {outcome:?}"
            );
        }
        for (code, body) in [(201, "{}"), (403, "no"), (404, ""), (429, "{}"), (500, "x")] {
            let outcome = classify(code, body);
            assert!(
                matches!(outcome, FrontProxyProbeOutcome::Unknown(_)),
                "{code} {body}: {outcome:?}"
            );
        }
    }

    #[test]
    fn three_rejected_probes_fail_and_one_accepted_probe_recovers() {
        let mut state = ProbeState::default();
        for outcome in [
            rejected(),
            rejected(),
            FrontProxyProbeOutcome::Accepted,
            rejected(),
            unknown(),
            rejected(),
        ] {
            assert_eq!(state.record(outcome), None);
            assert!(!state.is_failing());
        }
        assert_eq!(state.record(rejected()), Some(FrontProxyChange::Failed));
        assert_eq!(state.record(rejected()), None, "told once");
        assert_eq!(state.record(unknown()), None);
        assert!(state.is_failing(), "no answer mends nothing");
        assert_eq!(
            state.record(FrontProxyProbeOutcome::Accepted),
            Some(FrontProxyChange::Recovered)
        );
        assert!(!state.is_failing());
    }
}
