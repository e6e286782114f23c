//! The audit event of what an operator does by `weir ctl`. Pure.
//!
//! It has the fields of a request's event: a path that names the lever, and a user that names the
//! control socket. No policy leaves it out: it is no request of a client.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::StatusCode;
use jiff::Timestamp;

use crate::observe::audit::event::{AuditEvent, AuditUser, ResponseStatus, format_micro_time};
use crate::observe::audit::policy::{AuditLevel, AuditStage};
use crate::pipeline::trace::audit_id::new_audit_id;
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_kubernetes::encoding::go_text;

/// The user of these events. Only weir's own user and root can open the socket.
const USER: &str = "weir:control-socket";

/// What an operator has done.
#[derive(Clone, Debug)]
pub(crate) struct LeverEvent {
    /// `create` or `delete`.
    pub(crate) verb: &'static str,
    /// The lever's.
    pub(crate) id: u64,
    /// What it does and to what.
    pub(crate) lever: String,
    /// The time until its end.
    pub(crate) remaining: String,
    /// Why; may be empty.
    pub(crate) reason: String,
    /// Of the control socket's peer.
    pub(crate) uid: Option<u32>,
    /// Likewise.
    pub(crate) pid: Option<i32>,
    /// The name that the operator claims.
    pub(crate) claimed_name: Option<String>,
    /// When.
    pub(crate) at: Timestamp,
}

impl LeverEvent {
    /// Appends the event as a line.
    pub(super) fn append(&self, lines: &mut Vec<u8>) {
        let extra: Vec<(&str, [String; 1])> = [
            ("weir/uid", self.uid.map(|uid| uid.to_string())),
            ("weir/pid", self.pid.map(|pid| pid.to_string())),
            ("weir/claimed-name", self.claimed_name.clone()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, [value?])))
        .collect();
        let id = new_audit_id();
        let code = match self.verb {
            "create" => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        let event = AuditEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: AuditLevel::Metadata.name(),
            audit_id: go_text::lossy(id.as_bytes()),
            stage: AuditStage::ResponseComplete.name(),
            request_uri: format!("/weir/levers/{}", self.id).into(),
            verb: self.verb,
            user: AuditUser {
                username: USER,
                extra: extra
                    .iter()
                    .map(|(key, value)| (*key, value.as_slice()))
                    .collect(),
                ..AuditUser::default()
            },
            impersonated_user: None,
            source_ips: Vec::new(),
            user_agent: Cow::Borrowed(""),
            object_ref: None,
            response_status: Some(ResponseStatus::from_outcome(RequestOutcome::Responded(
                code,
            ))),
            request_received_timestamp: format_micro_time(self.at),
            stage_timestamp: format_micro_time(self.at),
            annotations: self.annotations(),
        };
        go_text::append_json(&event, lines);
        lines.push(b'\n');
    }

    fn annotations(&self) -> BTreeMap<&'static str, Cow<'_, str>> {
        let all = [
            ("weir/lever", &self.lever),
            ("weir/remaining", &self.remaining),
            ("weir/reason", &self.reason),
        ];
        let given = all.into_iter().filter(|(_, text)| !text.is_empty());
        given
            .map(|(key, text)| (key, text.as_str().into()))
            .collect()
    }

    /// The bytes that it takes while it is not written.
    pub(super) fn size_bytes(&self) -> usize {
        let claimed = self.claimed_name.as_ref().map_or(0, String::len);
        size_of::<Self>() + self.lever.len() + self.remaining.len() + self.reason.len() + claimed
    }
}
