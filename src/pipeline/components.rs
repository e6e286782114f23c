//! The components that the steps of a request share: the clients, budgets, limits and metrics of a
//! worker's [`Pipeline`].

use std::sync::Arc;
use std::time::Duration;

use crate::drain::Drain;
use crate::identity::ImpersonationAuthorizer;
use crate::identity::RequestAuthenticator;
use crate::identity::request_header::IdentityHeaders;
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::rate::RateLimits;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::log_limiter::LogLimiter;
use crate::memory_budget::MemoryBudget;
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

/// The steps of a request, built once and shared by all connections of a worker.
#[derive(Debug)]
pub struct Pipeline {
    /// Authenticates requests.
    pub authenticator: Arc<RequestAuthenticator>,
    /// What weir does about impersonation.
    pub impersonation: Impersonation,
    /// The header names that carry an identity.
    pub identity_headers: Arc<IdentityHeaders>,
    /// Rate limits.
    pub rates: Arc<RateLimits>,
    /// Memory for bodies that are read before their requests are forwarded.
    pub request_body_budget: Arc<MemoryBudget>,
    /// `--request-body-buffer`, in bytes: how much of a body is read before its request takes a
    /// seat.
    pub body_buffer: usize,
    /// What abandoned requests still hold.
    pub abandoned_requests: Arc<AbandonedRequests>,
    /// The abandoned requests that have no seat.
    pub abandoned_backlog: Arc<AbandonedBacklog>,
    /// How often requests without a verified credential may request a protocol upgrade.
    pub upgrade_rate: Arc<UpgradeRateLimit>,
    /// Memory for request heads until their user is authenticated.
    pub head_budget: Arc<HeadBudget>,
    /// How many bodies of rejected requests may be drained at a time.
    pub body_drain_budget: Arc<BodyDrainBudget>,
    /// Admits or rejects requests.
    pub admission: Admission,
    /// Detects requests that have passed weir before.
    pub loop_detector: Arc<LoopDetector>,
    /// The API server.
    pub upstream: Upstream,
    /// `--request-timeout`, for requests that are not long-running.
    pub request_timeout: Duration,
    /// The responses to rejected requests.
    pub rejection_responses: Arc<RejectionResponseCache>,
    /// Delays repeated rejections.
    pub rejection_delay: Arc<RejectionDelay>,
    /// The stage of the shutdown.
    pub drain: Arc<Drain>,
    /// What expires at a deadline.
    pub deadlines: Arc<Deadlines>,
    /// The metrics of requests.
    pub metrics: Arc<RequestMetrics>,
    /// The observers of requests.
    pub observers: RequestObservers,
    /// Samples requests for traces. `None` without tracing.
    pub sampler: Option<Sampler>,
    /// Whether there is an audit log, for which requests get ids.
    pub has_audit_log: bool,
    /// `--explain-responses`.
    pub explain_responses: bool,
    /// Limits the log lines about upstream failures.
    pub upstream_log_limiter: Arc<LogLimiter>,
}

/// What weir does about requests that impersonate.
#[derive(Clone, Debug, Default)]
pub struct Impersonation {
    /// Decides impersonations. Required for `classify`, and if weir asserts by impersonation.
    pub authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// `--classify-impersonated`.
    pub classify: bool,
}
