//! The audit events (`audit.k8s.io/v1`) of a request, with kube-apiserver's fields in its order
//! (1.36). Pure.
//!
//! An [`AuditEntry`] holds copies of the request's data until its events are written: header values
//! are slices of larger buffers, which they would keep in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use serde::Serialize;

use crate::flowcontrol::level::FlowControlDecision;
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_audit::policy::{AuditLevel, AuditPolicy, AuditStage};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::encoding::client_text::redact_target;
use weir_kubernetes::encoding::go_text;
use weir_kubernetes::request_info::{RequestInfo, Verb, escaped_path, go_duration};
use weir_limits::rate::policies::enforcer::PolicyNotes;

/// Longest user agent in bytes (`audit/request.go`).
const MAX_USER_AGENT_BYTES: usize = 1024;
/// Appended to a truncated user agent.
const TRUNCATION_SUFFIX: &[u8] = b"...TRUNCATED";

/// Longest `X-Forwarded-For` in bytes: enough for a hundred proxies. The nearest proxies are at its
/// end.
const MAX_FORWARDED_FOR_BYTES: usize = 4096;

/// Upstream's message for a request whose client closed the connection before the response
/// (`filters.WithAudit`). Upstream logs it with code 200 and `Success`. weir logs it as a failure
/// without a code: no such response was sent, and statistics of this log must not count it.
const CLOSED_EARLY: &str = "Connection closed early";

/// A request's data, kept until its events are written.
#[derive(Clone, Debug)]
pub(super) struct AuditEntry {
    /// The audit ID, shared with the API server's log.
    pub(super) id: Box<[u8]>,
    pub(super) method: Method,
    pub(super) target: Box<str>,
    pub(super) user: Option<Arc<UserInfo>>,
    /// The impersonated user, once the impersonation is known to be allowed.
    pub(super) impersonated: Option<Arc<UserInfo>>,
    pub(super) peer: IpAddr,
    /// See [`truncate_forwarded_for`].
    pub(super) forwarded_for: Box<[u8]>,
    /// See [`truncate_user_agent`].
    pub(super) user_agent: Box<[u8]>,
    pub(super) long_running: bool,
    /// Whether the start of the response has an entry of its own.
    pub(super) response_started: bool,
    pub(super) decision: Option<FlowControlDecision>,
    pub(super) rule: Option<Arc<str>>,
    pub(super) policies: Option<Arc<PolicyNotes>>,
    /// The limits that only count and would have rejected it, joined by commas.
    pub(super) dry_run: Option<String>,
    pub(super) outcome: RequestOutcome,
    pub(super) phase: AuditPhase,
    pub(super) received_at: Timestamp,
    /// Time from the arrival to this phase.
    pub(super) elapsed: Duration,
}

/// The phase of a request that an entry describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuditPhase {
    /// The response to a long-running request has started.
    ResponseStarted,
    /// The request has ended.
    RequestEnded,
}

/// Copies a user agent, truncated to [`MAX_USER_AGENT_BYTES`].
pub(super) fn truncate_user_agent(header: Option<&HeaderValue>) -> Box<[u8]> {
    let all = header.map(HeaderValue::as_bytes).unwrap_or_default();
    match all.get(..MAX_USER_AGENT_BYTES) {
        Some(beginning) if all.len() > MAX_USER_AGENT_BYTES => {
            [beginning, TRUNCATION_SUFFIX].concat().into()
        }
        _ => all.into(),
    }
}

/// Copies `X-Forwarded-For`, truncated to whole addresses at its end.
pub(super) fn truncate_forwarded_for(header: Option<&HeaderValue>) -> Box<[u8]> {
    let all = header.map(HeaderValue::as_bytes).unwrap_or_default();
    let end = all
        .len()
        .checked_sub(MAX_FORWARDED_FOR_BYTES)
        .and_then(|from| all.get(from..));
    match end {
        Some(end) => end
            .splitn(2, |b| *b == b',')
            .nth(1)
            .unwrap_or_default()
            .into(),
        None => all.into(),
    }
}

impl AuditEntry {
    /// Returns the memory that the entry takes, in bytes.
    pub(super) fn size_bytes(&self) -> usize {
        let texts = [
            self.id.len(),
            self.target.len(),
            self.forwarded_for.len(),
            self.user_agent.len(),
        ];
        let users = [&self.user, &self.impersonated]
            .into_iter()
            .flatten()
            .map(|user| user_size_bytes(user));
        size_of::<Self>() + texts.into_iter().sum::<usize>() + users.sum::<usize>()
    }

    /// Appends the entry's events to `lines`, one per line. Returns their number and the policy's
    /// level for the request.
    pub(super) fn append_events(
        &self,
        policy: &AuditPolicy,
        lines: &mut Vec<u8>,
    ) -> (u64, AuditLevel) {
        let target = self.target.as_bytes();
        let Ok(info) = RequestInfo::parse(self.method.as_str(), target) else {
            return (0, AuditLevel::None); // unreachable: the request was parsed before
        };
        let config = policy.evaluate(&info, self.audited_user(&info));
        let mut count = 0;
        for stage in self
            .stages(&info)
            .iter()
            .filter(|stage| config.includes(**stage))
        {
            go_text::append_json(&self.to_event(&info, config.level, *stage), lines);
            lines.push(b'\n');
            count += 1;
        }
        (count, config.level)
    }

    /// Whether this is the last entry of its request.
    pub(super) fn is_last(&self) -> bool {
        self.phase == AuditPhase::RequestEnded
    }

    /// Whether upstream's filters reject the request before they authenticate it. One event reports
    /// that, without a user (`WithFailedAuthenticationAudit`, `withFailedRequestAudit`).
    fn failed_before_audit(&self, info: &RequestInfo<'_>) -> bool {
        // A server behind a Pod, a Service or a node has its own 401.
        let connects = self.long_running && *info.verb() != Verb::Watch;
        match self.outcome {
            RequestOutcome::Failed(StatusCode::UNAUTHORIZED) => true,
            RequestOutcome::Responded(StatusCode::UNAUTHORIZED) => !connects,
            RequestOutcome::Failed(StatusCode::BAD_REQUEST) => self.user.is_none(),
            RequestOutcome::NoResponse
            | RequestOutcome::Responded(_)
            | RequestOutcome::Rejected(_)
            | RequestOutcome::Failed(_)
            | RequestOutcome::Panicked => false,
        }
    }

    fn audited_user(&self, info: &RequestInfo<'_>) -> Option<&UserInfo> {
        self.user
            .as_deref()
            .filter(|_| !self.failed_before_audit(info))
    }

    /// Returns the stages that the request has passed since its previous entry.
    fn stages(&self, info: &RequestInfo<'_>) -> &'static [AuditStage] {
        use AuditStage::{Panic, RequestReceived, ResponseComplete, ResponseStarted};
        if self.failed_before_audit(info) {
            return match (self.phase, self.response_started) {
                (AuditPhase::RequestEnded, true) => &[],
                (AuditPhase::ResponseStarted, _) | (AuditPhase::RequestEnded, false) => {
                    &[ResponseStarted]
                }
            };
        }
        let panicked = self.outcome == RequestOutcome::Panicked;
        match (self.phase, self.response_started, self.long_running) {
            (AuditPhase::ResponseStarted, _, _) => &[RequestReceived, ResponseStarted],
            (AuditPhase::RequestEnded, true, _) if panicked => &[Panic],
            (AuditPhase::RequestEnded, true, _) => &[ResponseComplete],
            (AuditPhase::RequestEnded, false, _) if panicked => &[RequestReceived, Panic],
            (AuditPhase::RequestEnded, false, true) => {
                &[RequestReceived, ResponseStarted, ResponseComplete]
            }
            (AuditPhase::RequestEnded, false, false) => &[RequestReceived, ResponseComplete],
        }
    }

    fn to_event<'a>(
        &'a self,
        info: &'a RequestInfo<'_>,
        level: AuditLevel,
        stage: AuditStage,
    ) -> AuditEvent<'a> {
        let at_arrival = stage == AuditStage::RequestReceived;
        let elapsed = if at_arrival {
            Duration::ZERO
        } else {
            self.elapsed
        };
        AuditEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: level.name(),
            audit_id: go_text::lossy(&self.id),
            stage: stage.name(),
            request_uri: self.request_uri(info),
            verb: info.verb().as_str(),
            user: self
                .audited_user(info)
                .map_or_else(AuditUser::default, AuditUser::from_authenticated_user),
            impersonated_user: self
                .impersonated
                .as_deref()
                .filter(|_| !at_arrival)
                .map(AuditUser::from_user_info),
            source_ips: self.source_ips(),
            user_agent: go_text::lossy(&self.user_agent),
            object_ref: info
                .is_resource_request()
                .then(|| ObjectReference::from_request_info(info)),
            response_status: (!at_arrival).then(|| ResponseStatus::from_outcome(self.outcome)),
            request_received_timestamp: format_micro_time(self.received_at),
            stage_timestamp: format_micro_time(
                self.received_at
                    .saturating_add(elapsed)
                    .unwrap_or(self.received_at),
            ),
            annotations: if at_arrival {
                BTreeMap::new()
            } else {
                self.annotations()
            },
        }
    }

    /// Returns the target as Go prints it (`URL.RequestURI`), without credentials in its query.
    fn request_uri(&self, info: &RequestInfo<'_>) -> Cow<'_, str> {
        let target = redact_target(&self.target);
        let end = target.find('?').unwrap_or(target.len());
        let (path, query) = target.split_at(end);
        let escaped = match escaped_path(path.as_bytes(), info.path()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(escaped) => Some(format!("{}{query}", go_text::lossy(&escaped))),
        };
        escaped.map_or(target, Cow::Owned)
    }

    /// Returns the forwarded addresses, then the peer's (`net.SourceIPs`).
    fn source_ips(&self) -> Vec<IpAddr> {
        let forwarded = self.forwarded_for.split(|b| *b == b',').filter_map(|ip| {
            let ip = str::from_utf8(ip.trim_ascii()).ok()?;
            Some(ip.parse::<IpAddr>().ok()?.to_canonical())
        });
        let mut all: Vec<_> = forwarded.collect();
        let peer = self.peer.to_canonical();
        if all.last() != Some(&peer) {
            all.push(peer);
        }
        all
    }

    fn annotations(&self) -> BTreeMap<&'static str, Cow<'_, str>> {
        let mut all = BTreeMap::new();
        if let Some(decision) = &self.decision {
            let wait = go_duration::format(decision.queue_wait);
            all.insert("weir/flow-schema", (&*decision.flow_schema().name).into());
            all.insert(
                "weir/priority-level",
                (&*decision.priority_level().name).into(),
            );
            all.insert("weir/queue-wait", wait.into());
            all.insert("weir/seats", decision.seats().to_string().into());
        }
        if let RequestOutcome::Rejected(limit) = self.outcome {
            all.insert("weir/rejected-by", limit.into());
        }
        if let Some(rule) = &self.rule {
            all.insert("weir/client-limit", (&**rule).into());
        }
        if let Some(notes) = &self.policies {
            if let Some(policy) = &notes.rejected_by {
                all.insert("weir/policy", (&**policy).into());
            }
            if !notes.tags.is_empty() {
                all.insert("weir/policy-tags", notes.tags.join(",").into());
            }
        }
        if let Some(limits) = &self.dry_run {
            all.insert("weir/dry-run", limits.as_str().into());
        }
        all
    }
}

fn user_size_bytes(user: &UserInfo) -> usize {
    let texts = |all: &[String]| {
        all.iter()
            .map(|t| size_of::<String>() + t.len())
            .sum::<usize>()
    };
    let extra = user
        .extra
        .iter()
        .map(|(key, values)| key.len() + texts(values));
    size_of::<UserInfo>() + user.name.len() + texts(&user.groups) + extra.sum::<usize>()
}

/// Formats a time as `metav1.MicroTime`.
pub(super) fn format_micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEvent<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    pub(super) level: &'static str,
    #[serde(rename = "auditID")]
    pub(super) audit_id: Cow<'a, str>,
    pub(super) stage: &'static str,
    #[serde(rename = "requestURI")]
    /// Credentials in the query are redacted.
    pub(super) request_uri: Cow<'a, str>,
    pub(super) verb: &'a str,
    pub(super) user: AuditUser<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<AuditUser<'a>>,
    #[serde(rename = "sourceIPs")]
    pub(super) source_ips: Vec<IpAddr>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) user_agent: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<ResponseStatus>,
    pub(super) request_received_timestamp: String,
    pub(super) stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<&'static str, Cow<'a, str>>,
}

#[derive(Default, Serialize)]
pub(super) struct AuditUser<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) uid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) extra: BTreeMap<&'a str, &'a [String]>,
}

impl<'a> AuditUser<'a> {
    fn from_user_info(user: &'a UserInfo) -> Self {
        Self {
            username: &user.name,
            uid: &user.uid,
            groups: &user.groups,
            extra: user
                .extra
                .iter()
                .map(|(key, values)| (key.as_str(), values.as_slice()))
                .collect(),
        }
    }

    /// Leaves out the uid of an unauthenticated user: weir sets it only to identify the flow.
    fn from_authenticated_user(authenticated: &'a UserInfo) -> Self {
        let mut user = Self::from_user_info(authenticated);
        if authenticated.is_unverified() {
            user.uid = "";
        }
        user
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: Cow<'a, str>,
}

impl<'a> ObjectReference<'a> {
    fn from_request_info(info: &'a RequestInfo<'_>) -> Self {
        Self {
            resource: go_text::lossy(info.resource()),
            namespace: go_text::lossy(info.namespace()),
            name: go_text::lossy(info.name()),
            api_group: go_text::lossy(info.api_group()),
            api_version: go_text::lossy(info.api_version()),
            subresource: go_text::lossy(info.subresource()),
        }
    }
}

/// The part of a `metav1.Status` that is known of a forwarded response.
#[derive(Serialize)]
pub(super) struct ResponseStatus {
    metadata: BTreeMap<(), ()>,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

impl ResponseStatus {
    pub(super) fn from_outcome(outcome: RequestOutcome) -> Self {
        let (status, message, reason) = match outcome {
            RequestOutcome::Responded(_)
            | RequestOutcome::Failed(_)
            | RequestOutcome::Rejected(_) => ("", "", ""),
            RequestOutcome::Panicked => ("Failure", "weir panicked", "InternalError"),
            RequestOutcome::NoResponse => ("Failure", CLOSED_EARLY, ""),
        };
        Self {
            metadata: BTreeMap::new(),
            status,
            message,
            reason,
            code: outcome.code().map(|code| code.as_u16()),
        }
    }
}

#[cfg(test)]
mod tests;
