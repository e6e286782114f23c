//! Classifies requests: matches a flow schema, and determines its priority level and the flow.
//!
//! A [`Matcher`] is built from the configuration objects when they change, and is immutable. It is
//! `digestFlowSchemasLocked` and the matching of `startRequest` (Kubernetes 1.36,
//! `apf_controller.go`). Schemas are tried in the order of their precedence, the first match wins,
//! and missing mandatory schemas are imagined. Classifying a request allocates nothing, and
//! everything that can be computed in advance is.
//!
//! [`Matcher::explain`] tells why the schemas before the one that matched do not match.
//!
//! [`Policies`] and its parts do not depend on flow schemas. Other modules use them to select
//! requests by the same kind of rules.
//!
//! The controller keeps removed levels that still have requests.
//! kube-apiserver writes the objects' status.

use weir_kubernetes::request_info::{RequestInfo, Verb};

mod flow_distinguisher;
mod levels;
mod matcher;
mod mismatch;
mod names;
mod policies;
mod rule_index;
mod rules;
mod subjects;
#[cfg(test)]
mod tests;

pub use self::flow_distinguisher::FlowDistinguisherMethod;
pub use self::levels::CompiledLevel;
pub use self::matcher::CompiledSchema;
pub use self::matcher::Matcher;
pub use self::mismatch::Mismatch;
pub use self::policies::Policies;
pub use self::rules::RequestDigest;
pub use self::subjects::Subjects;

/// Whether a request is admitted by API Priority and Fairness at once, without a seat: a long-running
/// request, except for a watch, which is charged for its initialization.
#[must_use]
pub fn bypasses_fairness(info: &RequestInfo<'_>) -> bool {
    info.long_running() && *info.verb() != Verb::Watch
}
