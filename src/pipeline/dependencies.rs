//! The [`Pipeline`] of a worker: what its steps use, by how long it lives, and its settings.
//!
//! A pipeline is cheap to build: it refers to one value that all workers share, and clones what is
//! its worker's.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::Notify;

use crate::flag_values;
use crate::flag_values::{parse_duration, parse_positive_duration};
use crate::identity::request_header::IdentityHeaders;
use crate::identity::{ImpersonationAuthorizer, RequestAuthenticator};
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::levers::Levers;
use crate::limits::list_bytes::ListBytes;
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::upgrade_rate::{DEFAULT_UPGRADES_PER_SECOND, UpgradeRateLimit};
use crate::limits::watch_starts::WatchStarts;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::response_reader::WorkerMemoryLimit;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::record::RequestObservers;
use crate::pipeline::trace::trace_context::Sampler;
use crate::upstream::Upstream;
use crate::upstream::loop_detection::LoopDetector;
use weir_base::drain::Drain;
use weir_limits::rate::RateLimits;
use weir_limits::throttling::log_limiter::LogLimiter;
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_limits::throttling::minimum_rate::MinimumRate;

/// The way of each request, shared by all connections of a worker.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) shared: Arc<SharedDependencies>,
    pub(super) worker: WorkerDependencies,
    pub(super) memory_limit: Arc<WorkerMemoryLimit>,
}

impl Pipeline {
    /// A pipeline of a worker. A later one with the same dependencies of the worker takes its place
    /// without losing anything.
    #[must_use]
    pub fn new(shared: Arc<SharedDependencies>, worker: WorkerDependencies) -> Self {
        Self {
            memory_limit: Arc::new(WorkerMemoryLimit(Arc::clone(&shared.memory_limit))),
            shared,
            worker,
        }
    }
}

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
    /// What an operator blocks and limits.
    pub levers: Arc<Levers>,
    /// The lists that the API servers work on.
    pub list_bytes: Arc<ListBytes>,
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
    /// The settings of the configuration in force.
    pub settings: PipelineSettings,
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
    /// Wakes the requests that wait in admission when there is a new lever.
    pub lever_pulled: Arc<Notify>,
}

/// The settings of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct PipelineSettings {
    /// `--request-timeout`, for requests that are not long-running.
    pub request_timeout: Duration,
    /// Limits on the transfers of clients.
    pub transfers: TransferConfig,
    /// `--classify-impersonated`.
    pub classify_impersonated: bool,
    /// Samples requests for traces. `None` without tracing.
    pub sampler: Option<Sampler>,
    /// Whether there is an audit log, for which requests get ids.
    pub has_audit_log: bool,
    /// `--explain-responses`.
    pub explain_responses: bool,
}

/// Limits on the transfers of clients.
#[derive(Args, Clone, Copy, Debug)]
pub struct TransferConfig {
    /// How much of a request's body is read before the request takes a seat, in bytes: a client that does not send its body
    /// holds no seat. 0 reads none (but that of GET, HEAD and upgrades). At most 3 MiB.
    #[arg(long, value_name = "BYTES", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(0..=3 << 20))]
    pub request_body_buffer: u32,
    /// Minimum rate at which a client has to send its request's body, or read its response, while weir waits for it, in bytes a
    /// second; a transfer that falls behind by --min-transfer-rate-grace is ended. 0 means no minimum.
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    pub min_transfer_rate: u32,
    /// How far a transfer may fall behind --min-transfer-rate.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive_duration)]
    pub min_transfer_rate_grace: Duration,
    /// How long the client of a long-running request (exec, attach, port-forward, a log, a proxied stream, a watch) may read nothing,
    /// or send nothing of a body, before it is cut off, if the API server has accepted its credential: --min-transfer-rate does not
    /// apply to it, unless memory is scarce (--memory-limit). 0 is no limit.
    #[arg(long, value_name = "DURATION", default_value = "15m0s", value_parser = parse_duration)]
    pub long_running_pause_timeout: Duration,
    /// Most requests a second of one address (of IPv6 a /64) that may ask for another protocol (Upgrade: exec, attach, port-forward)
    /// without a credential that the API server has accepted, and five times as many at once; 429 beyond. Each costs the API
    /// server a TLS handshake. 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_UPGRADES_PER_SECOND, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub unproven_upgrades_per_second: u32,
}

impl TransferConfig {
    /// The minimum rate of transfers.
    #[must_use]
    pub fn minimum_rate(&self) -> MinimumRate {
        MinimumRate {
            bytes_per_second: self.min_transfer_rate,
            grace: self.min_transfer_rate_grace,
            pause: self.long_running_pause_timeout,
        }
    }
}

impl Default for TransferConfig {
    fn default() -> Self {
        flag_values::defaults()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_flags() {
        let transfers = TransferConfig::default();
        assert_eq!(transfers.request_body_buffer, 64 << 10);
        assert_eq!(transfers.minimum_rate(), MinimumRate::default());
    }
}
