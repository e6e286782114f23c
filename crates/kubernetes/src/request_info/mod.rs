//! Resolves the method and target of a request into Kubernetes' terms.
//!
//! [`RequestInfo`] follows `RequestInfoFactory.NewRequestInfo` (Kubernetes 1.36,
//! `endpoints/request/requestinfo.go`) as kube-apiserver configures it, and the parsing of request
//! targets by Go's HTTP server: weir must see each request as the server behind it does. Limits,
//! flow schemas, seats and metrics depend on it.
//!
//! The functions are pure and do not panic on any input. They allocate only if the target contains
//! percent-escapes that matter or the method is unusual. Paths are bytes and need not be UTF-8.
//! Nothing is normalized, and nothing here is forwarded: the upstream receives the target
//! unchanged.
//!
//! Not covered: the body (a POST has no name), whether the resource exists, and OpenShift's
//! additional long-running requests.

pub mod go_duration;
mod info;
mod list_options;
mod metric_labels;
#[cfg(all(fuzzing, not(test)))]
pub mod model_tests;
#[cfg(test)]
mod model_tests;
mod path;
mod query;
mod target;
#[cfg(test)]
mod tests;
mod verb;

pub use info::{RequestInfo, RequestKind, TargetError};
pub use metric_labels::MetricLabels;
pub use metric_labels::{is_built_in_group, measures_response_size};
pub use query::Query;
pub use target::escaped_path;
pub use verb::Verb;
