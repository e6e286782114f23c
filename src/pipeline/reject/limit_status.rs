//! The Status of a request that a limit rejects.

use http::StatusCode;

use crate::flowcontrol::level::SeatRejection;
use crate::limits::Rejection;
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_kubernetes::api::Status;
use weir_kubernetes::request_info::RequestKind;
use weir_limits::levers::{LeverAction, LeverRejection};
use weir_limits::max_in_flight::MaxInFlightRejection;
use weir_limits::rate::clients::enforcer::ClientLimitRejection;
use weir_limits::rate::events::enforcer::EventRejection;
use weir_limits::rate::policies::enforcer::PolicyRejection;

/// The Status of upstream's EventRateLimit plugin. Without `Retry-After` it equals upstream's.
fn too_many_events(rejected: &EventRejection) -> Status {
    let cause = match rejected.retry_after {
        Some(_) => "weir/event-rate-limit",
        None => "",
    };
    Status {
        code: StatusCode::TOO_MANY_REQUESTS.as_u16(),
        reason: "TooManyRequests",
        message: rejected.message.clone(),
        cause,
        retry_after_seconds: rejected.retry_after,
    }
}

/// The Status of a limit's rejection.
pub(crate) fn limit_status(rejection: &Rejection) -> Status {
    let (cause, message) = match rejection {
        Rejection::EventRateLimit(rejected) => return too_many_events(rejected),
        Rejection::ClientLimit(ClientLimitRejection { rule, limit, .. }) => {
            let what = limit.name();
            let message = format!(
                "too many requests: rule {rule:?} of weir's clientLimits allows no more ({what}); please try again later"
            );
            ("weir/client-limit", message)
        }
        Rejection::AbandonedBacklog => {
            let message = "too many exempt requests: the API server still executes those that you have cancelled; please try again later";
            ("weir/abandoned-requests", message.to_owned())
        }
        Rejection::UnprovenUpgrade { .. } => {
            let message = "too many requests for another protocol (Upgrade) come from this address without a credential that the API server has accepted (--unproven-upgrades-per-second); please try again later";
            ("weir/unproven-upgrades", message.to_owned())
        }
        Rejection::ListBytes { .. } => {
            let message = "the API server works on as many bytes of lists as it may (--max-list-bytes-inflight); please try again later, or ask for less: a page (limit), a namespace, a selector";
            ("weir/list-bytes", message.to_owned())
        }
        Rejection::MemoryLimit => {
            let message =
                "weir uses as much memory as it may (--memory-limit); please try again later";
            ("weir/memory-limit", message.to_owned())
        }
        Rejection::Fairness(rejected) => level_rejection(rejected),
        Rejection::Policy(rejected) => policy_rejection(rejected),
        Rejection::Lever { lever, .. } => lever_rejection(lever),
        Rejection::MaxInFlight(MaxInFlightRejection { kind, limit }) => {
            let (cause, flag, what) = match kind {
                RequestKind::Mutating => (
                    "weir/max-mutating-requests-inflight",
                    "--max-mutating-requests-inflight",
                    "mutating",
                ),
                RequestKind::ReadOnly => (
                    "weir/max-requests-inflight",
                    "--max-requests-inflight",
                    "read-only",
                ),
            };
            let message = format!(
                "too many requests: weir serves at most {limit} {what} requests at a time ({flag}); please try again later"
            );
            (cause, message)
        }
    };
    Status {
        code: StatusCode::TOO_MANY_REQUESTS.as_u16(),
        reason: "TooManyRequests",
        message,
        cause,
        retry_after_seconds: Some(rejection.retry_after()),
    }
}

/// Cause and message of a lever's rejection.
fn lever_rejection(rejected: &LeverRejection) -> (&'static str, String) {
    let because = if rejected.reason.is_empty() {
        String::new()
    } else {
        format!(" ({})", rejected.reason)
    };
    match rejected.action {
        LeverAction::Block => (
            "weir/blocked",
            format!("an operator blocks such requests in weir{because}; please try again later"),
        ),
        // A setting rejects nothing.
        LeverAction::Disconnect | LeverAction::Limit { .. } | LeverAction::Set(_) => (
            "weir/lever-limit",
            format!(
                "too many requests: an operator limits such requests in weir{because}; please try again later"
            ),
        ),
    }
}

/// Cause and message of a policy's rejection.
fn policy_rejection(rejected: &PolicyRejection) -> (&'static str, String) {
    let (cause, what) = match rejected.is_by_limit {
        true => ("weir/policy-limit", "allows no more of such requests"),
        false => ("weir/policy", "rejects such requests"),
    };
    let message = match &rejected.message {
        Some(message) => message.clone(),
        None => format!(
            "weir's policy {:?} {what}; please try again later",
            rejected.policy
        ),
    };
    (cause, message)
}

/// Cause and message of a priority level's rejection.
fn level_rejection(rejected: &SeatRejection) -> (&'static str, String) {
    let (cause, what) = match rejected.reason {
        RejectReason::ConcurrencyLimit => ("weir/concurrency-limit", "all its seats are taken"),
        RejectReason::QueueFull => ("weir/queue-full", "its queues are full"),
        RejectReason::TimeOut => ("weir/time-out", "no seat came free in time"),
    };
    let schema = &rejected.decision.flow_schema().name;
    let level = &rejected.decision.priority_level().name;
    let reason = rejected.reason.label();
    let message = format!(
        "too many requests: flow schema {schema:?} leads to priority level {level:?}, and {what} ({reason}); please try again later"
    );
    (cause, message)
}
