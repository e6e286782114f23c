//! The components that are there from the start to the end.

use std::sync::Arc;

use prometheus::IntGauge;

use crate::app::api_server_tasks::OwnCalls;
use crate::app::start_error::StartError;
use crate::app::tasks::Tasks;
use crate::config::Config;
use crate::identity::delegated::DelegatedAuth;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::levers::{Levers, OverriddenLimits};
use crate::limits::limiters::Limiters;
use crate::limits::list_bytes::ListBytes;
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::watch_starts::WatchStarts;
use crate::observe::dry_run::DryRunCounts;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::SlowTransfers;
use crate::pipeline::steps::request_body::request_body_budget;
use crate::pipeline::trace::RequestMetrics;
use crate::replicas::coordinator::{ReplicaDependencies, Replicas};
use crate::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use crate::upstream::{UpstreamConfig, UpstreamMetrics};
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_base::metrics::Registry;
use weir_limits::rate::RateLimits;
use weir_limits::shared_limits::refill::SharedLimits;
use weir_limits::throttling::log_limiter::LogLimiter;
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_talkers::TopTalkers;

/// The components that stay while the process runs.
pub(super) struct Permanent {
    pub(super) registry: Registry,
    pub(super) drain: Arc<Drain>,
    pub(super) config_status: Arc<ConfigStatus>,
    pub(super) own_calls: Arc<OwnCalls>,
    /// Has requests of operators authenticated and authorized, if the configuration says so.
    pub(super) delegated_auth: Arc<DelegatedAuth>,
    pub(super) replicas: Option<Replicas>,
    /// The limiters of both modes.
    pub(super) limiters: Arc<Limiters>,
    /// The buckets that replicas share, if they do.
    pub(super) shared_limits: Option<Arc<SharedLimits>>,
    pub(super) memory_limit: Arc<MemoryLimit>,
    pub(super) head_budget: Arc<HeadBudget>,
    pub(super) request_body_budget: Arc<MemoryBudget>,
    pub(super) body_drain_budget: Arc<BodyDrainBudget>,
    pub(super) slow_transfers: SlowTransfers,
    pub(super) abandoned_requests: IntGauge,
    pub(super) abandoned_backlog: Arc<AbandonedBacklog>,
    pub(super) levers: Arc<Levers>,
    pub(super) list_bytes: Arc<ListBytes>,
    pub(super) watch_starts: Arc<WatchStarts>,
    pub(super) connection_budget: ConnectionBudget,
    pub(super) rejection_responses: Arc<RejectionResponseCache>,
    pub(super) rejection_delay: Arc<RejectionDelay>,
    pub(super) metrics: Arc<RequestMetrics>,
    pub(super) upstream_log_limiter: Arc<LogLimiter>,
    pub(super) upstream_metrics: Arc<UpstreamMetrics>,
    pub(super) outcome_counts: Arc<OutcomeCounts>,
    pub(super) dry_run_counts: Arc<DryRunCounts>,
    pub(super) talkers: Arc<TopTalkers>,
}

impl Permanent {
    /// Builds them for the first configuration.
    ///
    /// # Errors
    /// weir's own credentials cannot be loaded, or the connections to other replicas not be set up.
    pub(super) async fn start(
        config: &Config,
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> Result<Self, StartError> {
        let drain = Drain::new();
        let config_status = Arc::new(ConfigStatus::register(registry, Clock.wall()));
        let limiters = Arc::new(Limiters::new(registry));
        let upstream_metrics = UpstreamMetrics::register(registry);
        let own_calls = OwnCalls::start(
            config,
            &drain,
            &limiters,
            &config_status,
            &upstream_metrics,
            registry,
            tasks,
        )
        .await?;
        let levers = Levers::of_limits(
            registry,
            String::from_utf8_lossy(config.upstream.instance_id.as_bytes()).into_owned(),
            OverriddenLimits {
                total: Arc::clone(&own_calls.finder),
                limiters: Arc::clone(&limiters),
            },
        );
        let replicas = build_replicas(config, &own_calls, &limiters, &levers)?;
        let shared_limits = config.shared_limits.clone();
        let shared_limits = shared_limits.map(|config| SharedLimits::new(config, registry));
        let status = shared_limits.as_ref().map(|shared| shared.status());
        own_calls
            .readiness
            .set_shared_limits(status.map(Arc::clone));
        let transport = Arc::clone(&own_calls.transport);
        let delegated_auth = DelegatedAuth::new(transport, registry)
            .map_err(|why| StartError::new("marks of tokens", why))?;
        let permanent = Self {
            memory_limit: MemoryLimit::new(config.memory_limit, registry),
            head_budget: HeadBudget::new(registry),
            request_body_budget: request_body_budget(registry),
            body_drain_budget: BodyDrainBudget::new(registry),
            slow_transfers: SlowTransfers::register(registry),
            abandoned_requests: AbandonedRequests::register(registry),
            abandoned_backlog: AbandonedBacklog::new(registry),
            levers,
            list_bytes: {
                let limiters = Arc::clone(&limiters);
                ListBytes::new(move || limiters.part_of_total(), registry)
            },
            watch_starts: WatchStarts::new(registry),
            connection_budget: ConnectionBudget::new(
                config.upstream.max_connections,
                &SlotMetrics::register(registry),
            ),
            rejection_responses: Arc::default(),
            rejection_delay: Arc::new(RejectionDelay::new(config.rejections, registry)),
            metrics: RequestMetrics::register(registry),
            upstream_log_limiter: Arc::default(),
            outcome_counts: Arc::default(),
            dry_run_counts: Arc::new(DryRunCounts::new(registry)),
            talkers: TopTalkers::new(Clock.now(), 0),
            registry: registry.clone(),
            drain,
            config_status,
            own_calls,
            delegated_auth,
            replicas,
            limiters,
            shared_limits,
            upstream_metrics,
        };
        config.reporting.dropped_lines.register(registry);
        permanent.push_tasks(tasks);
        Ok(permanent)
    }

    fn push_tasks(&self, tasks: &mut Tasks) {
        let in_flight = Arc::clone(self.limiters.in_flight());
        tasks.push(async move { in_flight.run().await });
        tasks.push(Arc::clone(&self.levers).run());
        tasks.push(Arc::clone(&self.talkers).run());
        tasks.push(Arc::clone(&self.memory_limit).run());
        tasks.push(Arc::clone(&self.delegated_auth).run());
        if let Some(shared) = &self.shared_limits {
            tasks.push(Arc::clone(shared).run());
        }
    }

    /// The rate limits, whose buckets may be shared with other replicas.
    pub(super) fn build_rates(
        &self,
        config: &Config,
        earlier: Option<&RateLimits>,
    ) -> Arc<RateLimits> {
        let built = match earlier {
            Some(earlier) => earlier.replaced_by(&config.rates, &self.registry),
            None => {
                let sharing = self.shared_limits.as_ref().map(|shared| shared.sharing());
                RateLimits::sharing(sharing)
                    .following(self.limiters.enforcement())
                    .replaced_by(&config.rates, &self.registry)
            }
        };
        Arc::new(built)
    }
}

/// The division among replicas, if there is one.
fn build_replicas(
    config: &Config,
    own_calls: &OwnCalls,
    limiters: &Arc<Limiters>,
    levers: &Arc<Levers>,
) -> Result<Option<Replicas>, StartError> {
    let dependencies = ReplicaDependencies {
        instance: &config.upstream.instance_id,
        server: first_server(&config.upstream),
        limiters,
        finder: &own_calls.finder,
        levers,
        calls: own_calls.client().clone(),
        provider: &config.crypto_provider,
        registry: own_calls.registry(),
    };
    let replicas = config.replicas.clone();
    let replicas = replicas.map(|config| Replicas::new(config, dependencies));
    let replicas = replicas
        .transpose()
        .map_err(|why| StartError::new("connections to the other replicas", why))?;
    own_calls.readiness.set_replicas(replicas.clone());
    Ok(replicas)
}

/// An API server, as `HOST:PORT`.
fn first_server(upstream: &UpstreamConfig) -> String {
    let server = upstream.servers.first().map(|server| &server.authority);
    server.map_or_else(String::new, |server| {
        format!("{}:{}", server.host(), server.port_u16().unwrap_or(443))
    })
}
