//! Explains what the policies of a configuration decide about a request, without sending it.
//!
//! An [`Explainer`](explainer::Explainer) is built from the objects and limits that `weir serve` would use. It runs the
//! same parser, matcher, estimator and allocation of seats as the proxy, and none of its state:
//! there are no queues, no buckets and no clock. "At rest" means that no other request is there.
//!
//! The names of the fields in JSON are those of `tests/vectors` (`request_info`,
//! `flow_schema_match`, `shuffle_shard`, `work_estimate`, `concurrency_allocation`), so that both
//! can be compared.

pub mod batch;
pub mod explainer;
pub mod levels;
pub mod now;
pub mod policies;
pub mod rate_limits;
pub mod report;
pub mod request;
#[cfg(test)]
mod tests;
pub mod tree;
