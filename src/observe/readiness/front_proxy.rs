//! Whether the API server believes weir's front-proxy certificate: weir asks who it is (`SelfSubjectReview`), as a probe user that it
//! asserts, at the start and from then on at an interval.
//!
//! Promises: only answers to weir's own probes decide. An API server behind kube-apiserver's proxy can answer 401 to a client's
//! request at will; such an answer brings the next probe forward and nothing else. An answer that says nothing about the
//! certificate (no connection, 429, 5xx) changes nothing. Such answers bring forward one probe in [`RETRY_INTERVAL`].

use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::StatusCode;
use http::header;
use http_body_util::BodyExt;
use http_body_util::Limited;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use serde::Deserialize;
use tokio::time::timeout;
use tracing::error;
use tracing::info;
use tracing::warn;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::metrics::Registry;
use crate::upstream;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::forward::SendContext;
use crate::upstream::headers;
use crate::upstream::headers::ClientAddress;
use crate::upstream::headers::FrontProxy;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;

/// The user that probes assert. It has no rights but those of `system:authenticated`, one of which is to ask who it is.
pub const PROBE_USER: &str = "weir:front-proxy-probe";

/// Where a `SelfSubjectReview` is created (`authentication.k8s.io/v1`, Kubernetes 1.28).
const REVIEW_PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

const REVIEW_BODY: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// After so many refused probes without an accepted one between them `/readyz` fails.
const FAILURE_THRESHOLD: u32 = 3;

/// The time between probes while the last one was refused, or a client's request was answered 401.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long an answer may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// More than such an answer has, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// What an answer says about the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The request counted as the probe user's.
    Accepted,
    /// It did not, and why.
    Rejected(String),
    /// Nothing, and why.
    Unknown(String),
}

/// Reads an answer. An API server that does not serve the review (before 1.28) answers 403, in which it names the user, or 404, which
/// says nothing; one that does not believe the certificate answers 401 in either case.
#[must_use]
pub fn classify_response(code: StatusCode, body: &[u8]) -> ProbeOutcome {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ProbeResponse {
        status: serde_json::Value,
        message: String,
    }
    let answer: ProbeResponse = serde_json::from_slice(body).unwrap_or_default();
    let taken_for = match code {
        StatusCode::UNAUTHORIZED => {
            return ProbeOutcome::Rejected("its requests are answered 401".to_owned());
        }
        StatusCode::OK | StatusCode::CREATED => {
            let name = answer.status.pointer("/userInfo/username");
            name.and_then(|name| name.as_str()).map(str::to_owned)
        }
        StatusCode::FORBIDDEN => forbidden_user(&answer.message),
        _ => None,
    };
    match taken_for.as_deref() {
        Some(PROBE_USER) => ProbeOutcome::Accepted,
        Some(other) => ProbeOutcome::Rejected(format!(
            "its requests count as {other:?}'s, whoever they assert"
        )),
        None => ProbeOutcome::Unknown(format!("it answers {code} without naming a user")),
    }
}

/// The user that a refusal of the authorizer names (`responsewriters.Forbidden`): `… is forbidden: User "NAME" cannot …`.
fn forbidden_user(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("User \"")?;
    let (name, _) = rest.split_once("\" cannot ")?;
    Some(name.to_owned())
}

/// What the probes have come to.
#[derive(Debug, Default)]
struct ProbeState {
    /// Refused ones since the last accepted one.
    rejected_probes: u32,
    why: String,
}

/// What a verdict changes about readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthChange {
    Failed,
    Recovered,
}

impl ProbeState {
    fn is_failing(&self) -> bool {
        self.rejected_probes >= FAILURE_THRESHOLD
    }

    fn record(&mut self, verdict: ProbeOutcome) -> Option<HealthChange> {
        let failed_before = self.is_failing();
        match verdict {
            ProbeOutcome::Accepted => *self = Self::default(),
            ProbeOutcome::Rejected(why) => {
                self.rejected_probes = self.rejected_probes.saturating_add(1);
                self.why = why;
            }
            ProbeOutcome::Unknown(_) => {}
        }
        match (failed_before, self.is_failing()) {
            (false, true) => Some(HealthChange::Failed),
            (true, false) => Some(HealthChange::Recovered),
            _ => None,
        }
    }
}

/// Whether the API server believes the certificate, as far as the probes know.
#[derive(Debug)]
pub struct FrontProxyHealth {
    /// Held for a look.
    state: Mutex<ProbeState>,
    accepted: IntGauge,
    probes: IntCounterVec,
}

impl FrontProxyHealth {
    /// Before the first probe; shows itself in `registry`.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        let accepted = registry.gauge(
            "weir_front_proxy_accepted",
            "0 while the API server does not believe weir's front-proxy certificate: the last three probes or more were refused; 1 otherwise.",
        );
        accepted.set(1);
        Arc::new(Self {
            state: Mutex::default(),
            accepted,
            probes: registry.counters(
                "weir_front_proxy_probes_total",
                "Probes of whether the API server believes weir's front-proxy certificate, by result: accepted, refused, or unknown where the answer says nothing about it or there is none.",
                &["result"],
            ),
        })
    }

    /// Why readiness fails, if it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let state = self.lock_state();
        state.is_failing().then(|| {
            format!(
                "the API server does not believe weir's front-proxy certificate: {}",
                state.why
            )
        })
    }

    /// Counts and logs a probe. Whether the next one is due soon.
    fn record(&self, verdict: ProbeOutcome) -> bool {
        let result = match &verdict {
            ProbeOutcome::Accepted => "accepted",
            ProbeOutcome::Rejected(_) => "refused",
            ProbeOutcome::Unknown(_) => "unknown",
        };
        self.probes.with_label_values(&[result]).inc();
        let mut state = self.lock_state();
        let first = state.rejected_probes == 0;
        let change = state.record(verdict);
        self.accepted.set((!state.is_failing()).into());
        let why = &state.why;
        match change {
            Some(HealthChange::Failed) => error!(
                why,
                "the API server does not believe weir's front-proxy certificate: clients with certificates are answered 401, \
                 and /readyz fails. It must not have expired, be signed by the CA of the API server's \
                 --requestheader-client-ca-file, and have a common name that its --requestheader-allowed-names admits"
            ),
            Some(HealthChange::Recovered) => {
                info!("the API server believes weir's front-proxy certificate again");
            }
            None if first && state.rejected_probes > 0 => {
                warn!(why, "a probe of weir's front-proxy certificate was refused");
            }
            None => {}
        }
        state.rejected_probes > 0
    }

    fn lock_state(&self) -> MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The probe itself.
#[derive(Debug)]
pub struct FrontProxyProbe {
    /// Connections by the certificate.
    pub pool: Arc<Pool<FrontProxy>>,
    /// Which headers name the user.
    pub headers: Arc<IdentityHeaders>,
    /// Tells of clients' requests that were answered 401.
    pub metrics: Arc<upstream::UpstreamMetrics>,
    /// Where results go.
    pub health: Arc<FrontProxyHealth>,
    /// The time between probes while all is well.
    pub interval: Duration,
}

impl FrontProxyProbe {
    /// Probes until it is dropped.
    ///
    /// # Cancel safety
    /// A probe under way is not counted.
    pub async fn run(self) {
        let soon = RETRY_INTERVAL.min(self.interval);
        let mut brought_forward: Option<Instant> = None;
        loop {
            let probed = timeout(PROBE_TIMEOUT, self.probe()).await;
            let late =
                || ProbeOutcome::Unknown(format!("no answer within {}s", PROBE_TIMEOUT.as_secs()));
            let refused = self.health.record(probed.unwrap_or_else(|_| late()));
            if refused {
                tokio::time::sleep(soon).await;
                continue;
            }
            let early = timeout(
                self.interval,
                self.metrics.wait_for_unauthorized_assertion(),
            )
            .await;
            if early.is_ok() {
                if let Some(last) = brought_forward {
                    tokio::time::sleep_until((last + soon).into()).await;
                }
                brought_forward = Some(Clock.now());
            }
        }
    }

    async fn probe(&self) -> ProbeOutcome {
        let json = HeaderValue::from_static("application/json");
        let request = Request::builder()
            .method(Method::POST)
            .uri(REVIEW_PATH)
            .header(
                header::USER_AGENT,
                concat!("weir/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::CONTENT_TYPE, json.clone())
            .header(header::ACCEPT, json)
            .body(());
        let Ok(request) = request else {
            return ProbeOutcome::Unknown("the probe cannot be written".to_owned());
        };
        let user = UserInfo {
            name: PROBE_USER.to_owned(),
            ..UserInfo::default()
        };
        let here = ClientAddress {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            trusted: false,
        };
        let (parts, ()) = request.into_parts();
        let asserted =
            headers::front_proxy_head(parts, here, &self.headers, &user.with_authenticated_group());
        let Ok(head) = asserted else {
            return ProbeOutcome::Unknown("the probe user cannot be written".to_owned());
        };
        let body = RequestBody::internal(Bytes::from_static(REVIEW_BODY.as_bytes()));
        let mut turn = None;
        let errand = SendContext {
            requester: &Requester::default(),
            guard: &mut turn,
            sent_at: &mut None,
        };
        let answer = match self
            .pool
            .send(head, body, ConnectionClass::Shared, errand)
            .await
        {
            Ok(answer) => answer,
            Err(why) => return ProbeOutcome::Unknown(why.to_string()),
        };
        let code = answer.status();
        match Limited::new(answer.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
        {
            Ok(body) => {
                if let Some(turn) = &mut turn {
                    turn.complete();
                }
                classify_response(code, &body.to_bytes())
            }
            Err(why) => ProbeOutcome::Unknown(format!("the answer broke off: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected() -> ProbeOutcome {
        ProbeOutcome::Rejected("why".to_owned())
    }

    fn unknown() -> ProbeOutcome {
        ProbeOutcome::Unknown("why".to_owned())
    }

    #[test]
    fn the_response_shows_which_user_the_probe_had() {
        let review = |name: &str| format!(r#"{{"status":{{"userInfo":{{"username":"{name}"}}}}}}"#);
        let forbidden = |name: &str| {
            format!(
                r#"{{"kind":"Status","message":"selfsubjectreviews.authentication.k8s.io is forbidden: User \"{name}\" cannot create resource \"selfsubjectreviews\" in API group \"authentication.k8s.io\" at the cluster scope"}}"#
            )
        };
        let told = |code: u16, body: &str| {
            let code = StatusCode::from_u16(code).unwrap();
            classify_response(code, body.as_bytes())
        };
        assert_eq!(told(201, &review(PROBE_USER)), ProbeOutcome::Accepted);
        assert_eq!(told(403, &forbidden(PROBE_USER)), ProbeOutcome::Accepted);
        for (code, body) in [
            (401, "{}".to_owned()),
            (201, review("front-proxy-client")),
            (403, forbidden("system:anonymous")),
        ] {
            let told = told(code, &body);
            assert!(
                matches!(told, ProbeOutcome::Rejected(_)),
                "{code} {body}: {told:?}"
            );
        }
        for (code, body) in [(201, "{}"), (403, "no"), (404, ""), (429, "{}"), (500, "x")] {
            let told = told(code, body);
            assert!(
                matches!(told, ProbeOutcome::Unknown(_)),
                "{code} {body}: {told:?}"
            );
        }
    }

    #[test]
    fn three_rejected_probes_fail_and_one_accepted_probe_recovers() {
        let mut state = ProbeState::default();
        for verdict in [
            rejected(),
            rejected(),
            ProbeOutcome::Accepted,
            rejected(),
            unknown(),
            rejected(),
        ] {
            assert_eq!(state.record(verdict), None);
            assert!(!state.is_failing());
        }
        assert_eq!(state.record(rejected()), Some(HealthChange::Failed));
        assert_eq!(state.record(rejected()), None, "told once");
        assert_eq!(state.record(unknown()), None);
        assert!(state.is_failing(), "no answer mends nothing");
        assert_eq!(
            state.record(ProbeOutcome::Accepted),
            Some(HealthChange::Recovered)
        );
        assert!(!state.is_failing());
    }
}
