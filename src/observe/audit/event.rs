//! The audit events (`audit.k8s.io/v1`) of a request, in kube-apiserver's fields and order (1.36). Pure.
//!
//! A [`Note`] is what is kept of a request until its events are written: copies, since what a request's headers are parts of is
//! larger than they are, and stays with them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::Method;
use jiff::Timestamp;
use serde::Serialize;

use crate::api::UserInfo;
use crate::api::user::ANONYMOUS;
use crate::flowcontrol::controller::Decision;
use crate::observe::audit::json;
use crate::observe::audit::policy::Level;
use crate::observe::audit::policy::Policy;
use crate::observe::audit::policy::Stage;
use crate::observe::texts::redacted;
use crate::pipeline::record::Outcome;
use crate::request_info::RequestInfo;
use crate::request_info::go_duration;

/// Most of what a client calls itself, in bytes (`audit/request.go`).
const LONGEST_USER_AGENT: usize = 1024;
/// What stands at the end of one that was longer.
const TRUNCATED: &[u8] = b"...TRUNCATED";

/// Most of `X-Forwarded-For`, in bytes: a hundred proxies' worth. Those that are nearest stand at its end.
const LONGEST_FORWARDED_FOR: usize = 4096;

/// What upstream says of a request whose client was gone before an answer (`filters.WithAudit`). There it comes with code 200 and
/// `Success`; nobody was told that, and who counts answers by this log is not to count it, so that here it is a failure without a code.
const CLOSED_EARLY: &str = "Connection closed early";

/// What is kept of a request until its events are written.
#[derive(Clone, Debug)]
pub(super) struct Note {
    /// Its id, shared with the API server's log.
    pub(super) id: Box<[u8]>,
    pub(super) method: Method,
    pub(super) target: Box<str>,
    pub(super) user: Option<Arc<UserInfo>>,
    /// Whom it was taken for, as far as that is known.
    pub(super) impersonated: Option<Arc<UserInfo>>,
    pub(super) peer: IpAddr,
    /// See [`forwarded_for`].
    pub(super) forwarded_for: Box<[u8]>,
    /// See [`user_agent`].
    pub(super) user_agent: Box<[u8]>,
    pub(super) long_running: bool,
    /// Whether the beginning of its answer has a note of its own.
    pub(super) began: bool,
    pub(super) decision: Option<Decision>,
    pub(super) rule: Option<Arc<str>>,
    pub(super) outcome: Outcome,
    pub(super) moment: Moment,
    pub(super) received: Timestamp,
    /// How much later the moment was.
    pub(super) after: Duration,
}

/// What a note is taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The answer to a long-running request has begun.
    Began,
    /// The request is over.
    Ended,
}

/// So much of what a client calls itself as is noted.
pub(super) fn user_agent(header: Option<&HeaderValue>) -> Box<[u8]> {
    let all = header.map(HeaderValue::as_bytes).unwrap_or_default();
    match all.get(..LONGEST_USER_AGENT) {
        Some(beginning) if all.len() > LONGEST_USER_AGENT => [beginning, TRUNCATED].concat().into(),
        _ => all.into(),
    }
}

/// So much of `X-Forwarded-For` as is noted: whole addresses.
pub(super) fn forwarded_for(header: Option<&HeaderValue>) -> Box<[u8]> {
    let all = header.map(HeaderValue::as_bytes).unwrap_or_default();
    let end = all
        .len()
        .checked_sub(LONGEST_FORWARDED_FOR)
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

impl Note {
    /// The memory that it takes, in bytes.
    pub(super) fn weight(&self) -> usize {
        let texts = [
            self.id.len(),
            self.target.len(),
            self.forwarded_for.len(),
            self.user_agent.len(),
        ];
        let users = [&self.user, &self.impersonated]
            .into_iter()
            .flatten()
            .map(|user| weight(user));
        size_of::<Self>() + texts.into_iter().sum::<usize>() + users.sum::<usize>()
    }

    /// Appends the lines of its events to `lines`; their number, and the level that the policy has for it.
    pub(super) fn write(&self, policy: &Policy, lines: &mut Vec<u8>) -> (u64, Level) {
        let target = self.target.as_bytes();
        let Ok(info) = RequestInfo::parse(self.method.as_str(), target) else {
            return (0, Level::None); // it was parsed before
        };
        let verdict = policy.verdict(&info, self.user.as_deref());
        let mut written = 0;
        for stage in self.stages().iter().filter(|stage| verdict.wants(**stage)) {
            json::append_line(&self.event(&info, verdict.level, *stage), lines);
            written += 1;
        }
        (written, verdict.level)
    }

    /// Whether it is the last of its request.
    pub(super) fn is_last(&self) -> bool {
        self.moment == Moment::Ended
    }

    /// The stages that its request has passed since the note before.
    fn stages(&self) -> &'static [Stage] {
        use Stage::Panic;
        use Stage::RequestReceived;
        use Stage::ResponseComplete;
        use Stage::ResponseStarted;
        let panicked = self.outcome == Outcome::Panicked;
        match (self.moment, self.began, self.long_running) {
            (Moment::Began, _, _) => &[RequestReceived, ResponseStarted],
            (Moment::Ended, true, _) if panicked => &[Panic],
            (Moment::Ended, true, _) => &[ResponseComplete],
            (Moment::Ended, false, _) if panicked => &[RequestReceived, Panic],
            (Moment::Ended, false, true) => &[RequestReceived, ResponseStarted, ResponseComplete],
            (Moment::Ended, false, false) => &[RequestReceived, ResponseComplete],
        }
    }

    fn event<'a>(&'a self, info: &'a RequestInfo<'_>, level: Level, stage: Stage) -> Event<'a> {
        let at_arrival = stage == Stage::RequestReceived;
        let after = if at_arrival {
            Duration::ZERO
        } else {
            self.after
        };
        Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: level.name(),
            audit_id: String::from_utf8_lossy(&self.id),
            stage: stage.name(),
            request_uri: redacted(&self.target),
            verb: info.verb().as_str(),
            user: self
                .user
                .as_deref()
                .map_or_else(User::default, User::authenticated),
            impersonated_user: self
                .impersonated
                .as_deref()
                .filter(|_| !at_arrival)
                .map(User::of),
            source_ips: self.source_ips(),
            user_agent: String::from_utf8_lossy(&self.user_agent),
            object_ref: info
                .is_resource_request()
                .then(|| ObjectReference::of(info)),
            response_status: (!at_arrival).then(|| ResponseStatus::of(self.outcome)),
            request_received_timestamp: micro_time(self.received),
            stage_timestamp: micro_time(
                self.received.saturating_add(after).unwrap_or(self.received),
            ),
            annotations: if at_arrival {
                BTreeMap::new()
            } else {
                self.annotations()
            },
        }
    }

    /// Those that were named on the way, and who came here in the end (`net.SourceIPs`).
    fn source_ips(&self) -> Vec<IpAddr> {
        let named = self.forwarded_for.split(|b| *b == b',').filter_map(|ip| {
            let ip = str::from_utf8(ip.trim_ascii()).ok()?;
            Some(ip.parse::<IpAddr>().ok()?.to_canonical())
        });
        let mut all: Vec<_> = named.collect();
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
            all.insert("weir/seats", decision.seats.to_string().into());
        }
        if let Outcome::Rejected(limit) = self.outcome {
            all.insert("weir/rejected-by", limit.into());
        }
        if let Some(rule) = &self.rule {
            all.insert("weir/client-limit", (&**rule).into());
        }
        all
    }
}

fn weight(user: &UserInfo) -> usize {
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

/// `metav1.MicroTime`.
fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: Cow<'a, str>,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    /// Without the credentials in its query.
    request_uri: Cow<'a, str>,
    verb: &'a str,
    user: User<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<User<'a>>,
    #[serde(rename = "sourceIPs")]
    source_ips: Vec<IpAddr>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<ResponseStatus>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, Cow<'a, str>>,
}

#[derive(Default, Serialize)]
struct User<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<&'a str, &'a [String]>,
}

impl<'a> User<'a> {
    fn of(user: &'a UserInfo) -> Self {
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

    /// A stranger's uid is a mark of weir's own, by which its flow is known.
    fn authenticated(user: &'a UserInfo) -> Self {
        let mut user = Self::of(user);
        if user.username == ANONYMOUS {
            user.uid = "";
        }
        user
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference<'a> {
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
    fn of(info: &'a RequestInfo<'_>) -> Self {
        Self {
            resource: String::from_utf8_lossy(info.resource()),
            namespace: String::from_utf8_lossy(info.namespace()),
            name: String::from_utf8_lossy(info.name()),
            api_group: String::from_utf8_lossy(info.api_group()),
            api_version: String::from_utf8_lossy(info.api_version()),
            subresource: String::from_utf8_lossy(info.subresource()),
        }
    }
}

/// As much of a `metav1.Status` as is known of an answer that is passed on.
#[derive(Serialize)]
struct ResponseStatus {
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
    fn of(outcome: Outcome) -> Self {
        let (status, message, reason) = match outcome {
            Outcome::Answered(_) | Outcome::Refused(_) | Outcome::Rejected(_) => ("", "", ""),
            Outcome::Panicked => ("Failure", "weir panicked", "InternalError"),
            Outcome::Unanswered => ("Failure", CLOSED_EARLY, ""),
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
