//! What a [`Pipeline`](crate::pipeline::Pipeline) is built from, by how long it lives.
//!
//! A pipeline is cheap to build: its steps clone references. Two pipelines of one worker may share
//! everything but their settings.

use std::sync::Arc;
use std::time::Duration;

use crate::drain::Drain;
use crate::identity::request_header::IdentityHeaders;
use crate::identity::{ImpersonationAuthorizer, RequestAuthenticator};
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::limits::watch_starts::WatchStarts;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::record::RequestObservers;
use crate::pipeline::trace::trace_context::Sampler;
use crate::upstream::Upstream;
use crate::upstream::loop_detection::LoopDetector;
use weir_limits::rate::RateLimits;
use weir_limits::throttling::log_limiter::LogLimiter;
use weir_limits::throttling::memory_budget::MemoryBudget;

/// What the pipelines of all workers share.
#[derive(Clone, Debug)]
pub struct SharedDependencies {
    /// Authenticates requests.
    pub authenticator: Arc<RequestAuthenticator>,
    /// Decides impersonations. Required for `classify_impersonated`, and if weir asserts users by
    /// impersonation.
    pub impersonation_authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// The header names that carry an identity.
    pub identity_headers: Arc<IdentityHeaders>,
    /// Rate limits.
    pub rates: Arc<RateLimits>,
    /// Admits or rejects requests.
    pub admission: Admission,
    /// Rejects requests while the process uses too much memory.
    pub memory_limit: Arc<MemoryLimit>,
    /// The abandoned requests that have no seat.
    pub abandoned_backlog: Arc<AbandonedBacklog>,
    /// The watches that start.
    pub watch_starts: Arc<WatchStarts>,
    /// How often requests without a verified credential may request a protocol upgrade.
    pub upgrade_rate: Arc<UpgradeRateLimit>,
    /// Memory for request heads until their user is authenticated.
    pub head_budget: Arc<HeadBudget>,
    /// Memory for bodies that are read before their requests are forwarded.
    pub request_body_budget: Arc<MemoryBudget>,
    /// How many bodies of rejected requests may be drained at a time.
    pub body_drain_budget: Arc<BodyDrainBudget>,
    /// Detects requests that have passed weir before.
    pub loop_detector: Arc<LoopDetector>,
    /// The responses to rejected requests.
    pub rejection_responses: Arc<RejectionResponseCache>,
    /// Delays repeated rejections.
    pub rejection_delay: Arc<RejectionDelay>,
    /// The stage of the shutdown.
    pub drain: Arc<Drain>,
    /// The metrics of requests.
    pub metrics: Arc<RequestMetrics>,
    /// Limits the log lines about upstream failures.
    pub upstream_log_limiter: Arc<LogLimiter>,
}

/// What the pipelines of one worker share, one after the other. Requests in flight refer to it.
#[derive(Clone, Debug)]
pub struct WorkerDependencies {
    /// The API server, with the worker's connections to it.
    pub upstream: Arc<Upstream>,
    /// What abandoned requests still hold.
    pub abandoned_requests: Arc<AbandonedRequests>,
    /// What expires at a deadline.
    pub deadlines: Arc<Deadlines>,
    /// The observers of requests.
    pub observers: RequestObservers,
}

/// The settings of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelineSettings {
    /// `--request-timeout`, for requests that are not long-running.
    pub request_timeout: Duration,
    /// `--request-body-buffer`, in bytes: how much of a body is read before its request takes a
    /// seat.
    pub body_buffer: usize,
    /// `--classify-impersonated`.
    pub classify_impersonated: bool,
    /// Samples requests for traces. `None` without tracing.
    pub sampler: Option<Sampler>,
    /// Whether there is an audit log, for which requests get ids.
    pub has_audit_log: bool,
    /// `--explain-responses`.
    pub explain_responses: bool,
}
