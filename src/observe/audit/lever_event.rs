//! The audit event of what an operator does by `weir ctl`, and of what follows from it. Pure.
//!
//! It has the fields of a request's event: a path that names the lever, and a user that names the
//! control socket, another replica, or the time. No policy leaves it out: it is no request of a
//! client, and `weir replay` leaves it out by its user and path.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Instant;

use http::StatusCode;
use jiff::Timestamp;

use crate::limits::levers::{LeverChange, LeverChangeKind, Operator};
use crate::observe::audit::event::{AuditEvent, AuditUser, ResponseStatus, format_micro_time};
use crate::pipeline::trace::audit_id::new_audit_id;
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_audit::policy::{AuditLevel, AuditStage};
use weir_kubernetes::encoding::go_text;

/// The user of what an operator does. Only weir's own user and root can open the socket.
const OPERATOR: &str = "weir:control-socket";

/// The user of what another replica has sent.
const REPLICA: &str = "weir:replica";

/// The user of what ends by itself.
const TIME: &str = "weir:time";

/// What has happened to a lever, or to this process.
#[derive(Clone, Debug)]
pub(crate) struct LeverEvent {
    /// `create` or `delete`.
    verb: &'static str,
    path: String,
    user: &'static str,
    by: Operator,
    annotations: Vec<(&'static str, String)>,
    at: Timestamp,
}

impl LeverEvent {
    /// The event of a change.
    #[must_use]
    pub(crate) fn of_change(change: &LeverChange<'_>, now: Instant, at: Timestamp) -> Self {
        let lever = change.lever.snapshot(now);
        let (verb, end) = match change.kind {
            LeverChangeKind::Pulled => ("create", ""),
            LeverChangeKind::Ended => ("delete", "in time"),
            LeverChangeKind::Replaced => ("delete", "replaced"),
            LeverChangeKind::Undone => ("delete", "undone"),
        };
        let user = match (change.kind, &change.by.replica) {
            (LeverChangeKind::Ended, _) => TIME,
            (_, Some(_)) => REPLICA,
            (_, None) => OPERATOR,
        };
        Self {
            verb,
            path: format!("/weir/levers/{}", lever.id),
            user,
            by: change.by.clone(),
            annotations: vec![
                ("weir/lever", lever.summary()),
                ("weir/remaining", lever.remaining()),
                ("weir/reason", lever.reason),
                ("weir/pulled-by", lever.pulled_by),
                ("weir/end", end.to_owned()),
            ],
            at,
        }
    }

    /// The event of `weir ctl drain`.
    #[must_use]
    pub(crate) fn of_drain(by: &Operator, at: Timestamp) -> Self {
        Self {
            verb: "create",
            path: "/weir/drain".to_owned(),
            user: OPERATOR,
            by: by.clone(),
            annotations: Vec::new(),
            at,
        }
    }

    /// Appends the event as a line.
    pub(super) fn append(&self, lines: &mut Vec<u8>) {
        let extra: Vec<(&str, [String; 1])> = [
            ("weir/uid", self.by.uid.map(|uid| uid.to_string())),
            ("weir/pid", self.by.pid.map(|pid| pid.to_string())),
            ("weir/claimed-name", self.by.claimed_name.clone()),
            ("weir/replica", self.by.replica.clone()),
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
            request_uri: self.path.as_str().into(),
            verb: self.verb,
            user: AuditUser {
                username: self.user,
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
        let given = self.annotations.iter().filter(|(_, text)| !text.is_empty());
        given
            .map(|(key, text)| (*key, text.as_str().into()))
            .collect()
    }

    /// The bytes that it takes while it is not written.
    pub(super) fn size_bytes(&self) -> usize {
        let names = [&self.by.claimed_name, &self.by.replica];
        let names = names.into_iter().flatten().map(String::len);
        let texts = self.annotations.iter().map(|(_, text)| text.len());
        size_of::<Self>() + self.path.len() + texts.chain(names).sum::<usize>()
    }
}
