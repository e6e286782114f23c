//! The rejection of a request, by any limit.

use std::time::Duration;

use crate::flowcontrol::level::{FlowControlDecision, SeatRejection};
use weir_limits::levers::{BLOCKED, LEVER_LIMIT, LeverAction, LeverRejection};
use weir_limits::max_in_flight::MaxInFlightRejection;
use weir_limits::rate::clients::enforcer::ClientLimitRejection;
use weir_limits::rate::events::enforcer::EventRejection;
use weir_limits::rate::policies::enforcer::PolicyRejection;
use weir_limits::rejection_hold::HoldPolicy;

/// The label of the limit of abandoned exempt requests.
pub(crate) const ABANDONED_REQUESTS: &str = "abandoned-requests";

/// The label of the budget of lists.
pub(crate) const LIST_BYTES: &str = "list-bytes";

/// The label of the memory limit.
pub(crate) const MEMORY_LIMIT: &str = "memory-limit";

/// The label of a policy that rejects.
pub(crate) const POLICY: &str = "policy";

/// The label of the limit of a policy.
pub(crate) const POLICY_LIMIT: &str = "policy-limit";

/// The label of the limit of unproven upgrades.
pub(crate) const UNPROVEN_UPGRADES: &str = "unproven-upgrades";

/// The rejection of a request, with the limit that rejected it.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// The API server still executes too many exempt requests that the requester has abandoned.
    AbandonedBacklog,
    /// The client exceeds a rule of `clientLimits`.
    ClientLimit(ClientLimitRejection),
    /// EventRateLimit has no token for the event.
    EventRateLimit(EventRejection),
    /// The priority level of the request has no free seat and no space in its queues, or the
    /// request timed out in a queue.
    Fairness(SeatRejection),
    /// An operator blocks or limits such requests.
    Lever {
        /// The lever.
        lever: LeverRejection,
        /// Whether the request has waited since it was checked before: it is no retry.
        waited: bool,
    },
    /// The list has waited too long for the API server to be done with others.
    ListBytes {
        /// The `Retry-After` in seconds.
        retry_after: u32,
    },
    /// The limit of concurrent requests of this kind is reached.
    MaxInFlight(MaxInFlightRejection),
    /// The process uses as much memory as it may.
    MemoryLimit,
    /// A policy rejects such requests, or the request exceeds its limit.
    Policy(PolicyRejection),
    /// A source network sends too many upgrade requests whose credential the API server has not
    /// accepted before.
    UnprovenUpgrade {
        /// The `Retry-After` in seconds.
        retry_after: u32,
    },
}

/// The `Retry-After` of a requester with too many abandoned requests, in seconds. By then the API
/// server has answered most of them.
const ABANDONED_BACKLOG_RETRY_AFTER: u32 = 1;

/// The `Retry-After` of the memory limit in seconds: after that time the connections without requests
/// are closed, which frees the memory of those whose clients do not read.
const MEMORY_LIMIT_RETRY_AFTER: u32 = 1;

impl Rejection {
    /// The `Retry-After` in seconds; at least 1.
    #[must_use]
    pub(crate) const fn retry_after(&self) -> u32 {
        match self {
            Self::ClientLimit(rejection) => rejection.retry_after,
            Self::EventRateLimit(rejection) => match rejection.retry_after {
                Some(seconds) => seconds,
                None => 1,
            },
            Self::Fairness(rejection) => rejection.retry_after,
            Self::Lever { lever, .. } => lever.retry_after,
            Self::MaxInFlight(_) => MaxInFlightRejection::RETRY_AFTER,
            Self::Policy(rejection) => rejection.retry_after,
            Self::AbandonedBacklog => ABANDONED_BACKLOG_RETRY_AFTER,
            Self::MemoryLimit => MEMORY_LIMIT_RETRY_AFTER,
            Self::ListBytes { retry_after } | Self::UnprovenUpgrade { retry_after } => *retry_after,
        }
    }

    /// When a retry makes sense, and how to hold a client that retries earlier.
    #[must_use]
    pub(crate) fn hold_policy(&self) -> HoldPolicy {
        match self {
            Self::ClientLimit(ClientLimitRejection { wait, .. })
            | Self::EventRateLimit(EventRejection { wait, .. })
            | Self::Policy(PolicyRejection { wait, .. })
                if !wait.is_zero() =>
            {
                HoldPolicy::for_rate(*wait)
            }
            Self::Lever { lever, .. } if lever.is_by_rate() => HoldPolicy::for_rate(lever.wait),
            Self::AbandonedBacklog
            | Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::Fairness(_)
            | Self::Lever { .. }
            | Self::ListBytes { .. }
            | Self::MaxInFlight(_)
            | Self::MemoryLimit
            | Self::Policy(_)
            | Self::UnprovenUpgrade { .. } => {
                HoldPolicy::for_seats(Duration::from_secs(self.retry_after().into()))
            }
        }
    }

    /// Whether the response has a `Retry-After`. That of EventRateLimit has none if upstream's
    /// behaviour is configured.
    #[must_use]
    pub(crate) const fn sends_retry_after(&self) -> bool {
        !matches!(self, Self::EventRateLimit(rejection) if rejection.retry_after.is_none())
    }

    /// The decision of API Priority and Fairness, if that rejected the request.
    #[must_use]
    pub(crate) const fn decision(&self) -> Option<&FlowControlDecision> {
        match self {
            Self::Fairness(rejection) => Some(&rejection.decision),
            Self::AbandonedBacklog
            | Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::Lever { .. }
            | Self::ListBytes { .. }
            | Self::MaxInFlight(_)
            | Self::MemoryLimit
            | Self::Policy(_)
            | Self::UnprovenUpgrade { .. } => None,
        }
    }

    /// The label of the limit; for API Priority and Fairness the reason as Kubernetes spells it.
    #[must_use]
    pub(crate) const fn limit_label(&self) -> &'static str {
        match self {
            Self::ClientLimit(_) => "client-limit",
            Self::EventRateLimit(_) => "event-rate-limit",
            Self::Fairness(rejection) => rejection.reason.label(),
            Self::AbandonedBacklog => ABANDONED_REQUESTS,
            Self::Lever { lever, .. } => match lever.action {
                LeverAction::Block => BLOCKED,
                // A setting rejects nothing.
                LeverAction::Disconnect | LeverAction::Limit { .. } | LeverAction::Set(_) => {
                    LEVER_LIMIT
                }
            },
            Self::ListBytes { .. } => LIST_BYTES,
            Self::MaxInFlight(_) => "max-in-flight",
            Self::MemoryLimit => MEMORY_LIMIT,
            Self::Policy(rejection) if rejection.is_by_limit => POLICY_LIMIT,
            Self::Policy(_) => POLICY,
            Self::UnprovenUpgrade { .. } => UNPROVEN_UPGRADES,
        }
    }

    /// The label of the limiter. API Priority and Fairness has one label for all reasons.
    #[must_use]
    pub(crate) const fn limiter_label(&self) -> &'static str {
        match self {
            Self::Fairness(_) => "fairness",
            Self::AbandonedBacklog
            | Self::ClientLimit(_)
            | Self::EventRateLimit(_)
            | Self::Lever { .. }
            | Self::ListBytes { .. }
            | Self::MaxInFlight(_)
            | Self::MemoryLimit
            | Self::Policy(_)
            | Self::UnprovenUpgrade { .. } => self.limit_label(),
        }
    }

    /// What classified the request. Together with its user it is the flow.
    #[must_use]
    pub(crate) fn flow_class(&self) -> &str {
        match self {
            Self::ClientLimit(rejection) => &rejection.rule,
            Self::AbandonedBacklog => "exempt",
            Self::EventRateLimit(_) => "events",
            Self::Fairness(rejection) => &rejection.decision.flow_schema().name,
            Self::Lever { lever, .. } => lever.action.label(),
            Self::ListBytes { .. } => "lists",
            Self::MaxInFlight(rejection) => rejection.kind.label(),
            Self::MemoryLimit => "memory",
            Self::Policy(rejection) => &rejection.policy,
            Self::UnprovenUpgrade { .. } => "upgrades",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::tests::{POD, one_level, reject};
    use weir_flowcontrol::fairqueuing::queue_set::RejectReason;

    #[tokio::test(start_paused = true)]
    async fn a_flow_is_the_same_for_all_rejection_reasons_of_fairness() {
        let fixture = one_level(1, reject());
        let _held = fixture.get_now("alice");
        let first = fixture.admit("bob", "GET", POD).await.unwrap_err();
        let mut timed_out = first.clone();
        timed_out.reason = RejectReason::TimeOut;
        let [one, other] = [first, timed_out].map(Rejection::Fairness);
        assert_ne!(one.limit_label(), other.limit_label());
        let flow =
            |rejection: &Rejection| (rejection.limiter_label(), rejection.flow_class().to_owned());
        assert_eq!(flow(&one), flow(&other));
    }
}
