//! The components that all workers share, and the pipelines and the acceptor that are built from
//! them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use prometheus::IntGauge;
use rustls::crypto::CryptoProvider;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::app::authentication::AuthComponents;
use crate::app::observers::Observers;
use crate::app::start_error::StartError;
use crate::clock::Clock;
use crate::config;
use crate::drain::Drain;
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::rate::RateLimits;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::log_limiter::LogLimiter;
use crate::memory_budget::MemoryBudget;
use crate::metrics::Registry;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::observe::status::sources::StatusSources;
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::dependencies::PipelineSettings;
use crate::pipeline::dependencies::SharedDependencies;
use crate::pipeline::dependencies::WorkerDependencies;
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::SlowTransfers;
use crate::pipeline::steps::request_body::request_body_budget;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::record::RequestObserver;
use crate::pipeline::trace::record::RequestObservers;
use crate::server;
use crate::server::acceptor;
use crate::server::acceptor::Acceptor;
use crate::server::connection::ConnectionContext;
use crate::server::connection::HANDSHAKE_TIMEOUT;
use crate::server::handshake_queue::HandshakeQueue;
use crate::server::pending_handshakes::PendingHandshakes;
use crate::server::tls;
use crate::server::worker::Worker;
use crate::upstream;
use crate::upstream::Upstream;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connection_budget::SlotMetrics;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::loop_detection::LoopDetector;

/// The memory and connection budgets of all requests together.
pub(super) struct Budgets {
    pub(super) request_body_budget: Arc<MemoryBudget>,
    pub(super) head_budget: Arc<HeadBudget>,
    pub(super) body_drain_budget: Arc<BodyDrainBudget>,
    pub(super) transfers: config::TransferConfig,
    pub(super) slow_transfers: SlowTransfers,
    pub(super) abandoned_requests: IntGauge,
    pub(super) abandoned_backlog: Arc<AbandonedBacklog>,
    pub(super) upgrade_rate: Arc<UpgradeRateLimit>,
    pub(super) connection_budget: ConnectionBudget,
}

impl Budgets {
    /// The deadlines of one worker.
    pub(super) fn deadlines(&self) -> Arc<Deadlines> {
        Deadlines::new(self.transfers.minimum_rate, self.slow_transfers.clone())
    }

    pub(super) fn new(
        transfers: config::TransferConfig,
        connections: usize,
        registry: &Registry,
    ) -> Self {
        Self {
            transfers,
            slow_transfers: SlowTransfers::register(registry),
            abandoned_requests: AbandonedRequests::register(registry),
            abandoned_backlog: AbandonedBacklog::new(registry),
            upgrade_rate: UpgradeRateLimit::new(transfers.upgrades_per_second, registry),
            connection_budget: ConnectionBudget::new(connections, &SlotMetrics::register(registry)),
            request_body_budget: request_body_budget(registry),
            head_budget: HeadBudget::new(registry),
            body_drain_budget: BodyDrainBudget::new(registry),
        }
    }
}

/// What the workers' pipelines and weir's own API calls share.
pub(super) struct SharedComponents {
    pub(super) auth: AuthComponents,
    pub(super) rates: Arc<RateLimits>,
    pub(super) budgets: Budgets,
    pub(super) admission: Admission,
    pub(super) rejection_responses: Arc<RejectionResponseCache>,
    pub(super) rejection_delay: Arc<RejectionDelay>,
    pub(super) metrics: Arc<RequestMetrics>,
    pub(super) outcome_counts: Arc<OutcomeCounts>,
    pub(super) talkers: Arc<TopTalkers>,
    pub(super) observers: Observers,
    pub(super) upstream_log_limiter: Arc<LogLimiter>,
    pub(super) request_timeout: Duration,
    pub(super) drain: Arc<Drain>,
    pub(super) upstream: upstream::UpstreamConfig,
    /// The credentials that assert a certificate's user, if no front-proxy certificate does.
    pub(super) impersonator: Option<Arc<OwnCredentials>>,
    pub(super) loop_detector: Arc<LoopDetector>,
    pub(super) upstream_metrics: Arc<upstream::UpstreamMetrics>,
}

impl SharedComponents {
    /// The observers of one worker, with a shard of the top talkers.
    pub(super) fn request_observers(&self) -> RequestObservers {
        let counts: Arc<dyn RequestObserver> = Arc::<OutcomeCounts>::clone(&self.outcome_counts);
        self.observers
            .request_observers([self.talkers.new_shard(), counts])
    }

    fn pipeline_dependencies(&self) -> SharedDependencies {
        SharedDependencies {
            authenticator: Arc::clone(&self.auth.authenticator),
            impersonation_authorizer: self.auth.impersonation_authorizer.clone(),
            identity_headers: Arc::clone(&self.auth.identity_headers),
            rates: Arc::clone(&self.rates),
            admission: self.admission.clone(),
            abandoned_backlog: Arc::clone(&self.budgets.abandoned_backlog),
            upgrade_rate: Arc::clone(&self.budgets.upgrade_rate),
            head_budget: Arc::clone(&self.budgets.head_budget),
            request_body_budget: Arc::clone(&self.budgets.request_body_budget),
            body_drain_budget: Arc::clone(&self.budgets.body_drain_budget),
            loop_detector: Arc::clone(&self.loop_detector),
            rejection_responses: Arc::clone(&self.rejection_responses),
            rejection_delay: Arc::clone(&self.rejection_delay),
            drain: Arc::clone(&self.drain),
            metrics: Arc::clone(&self.metrics),
            upstream_log_limiter: Arc::clone(&self.upstream_log_limiter),
        }
    }

    fn pipeline_settings(&self) -> PipelineSettings {
        PipelineSettings {
            request_timeout: self.request_timeout,
            body_buffer: self.budgets.transfers.body_buffer,
            classify_impersonated: self.auth.classify_impersonated,
            sampler: self.observers.sampler,
            has_audit_log: self.observers.has_audit_log(),
            explain_responses: self.observers.explain_responses,
        }
    }

    /// What one worker keeps as long as it runs.
    fn worker_dependencies(&self) -> WorkerDependencies {
        WorkerDependencies {
            upstream: Arc::new(Upstream::new(
                &self.upstream,
                &self.budgets.connection_budget,
                self.impersonator.as_ref(),
                &self.upstream_metrics,
            )),
            abandoned_requests: AbandonedRequests::new(self.budgets.abandoned_requests.clone()),
            deadlines: self.budgets.deadlines(),
            observers: self.request_observers(),
        }
    }

    pub(super) fn status(
        &self,
        readiness: &Arc<Readiness>,
        max_connections: usize,
        host: &str,
    ) -> Arc<StatusFeed> {
        StatusFeed::new(StatusSources {
            host: host.to_owned(),
            upstream_address: self.upstream.address.authority.to_string(),
            start_time: Clock.now(),
            drain: Arc::clone(&self.drain),
            readiness: Arc::clone(readiness),
            upstream: Arc::clone(&self.upstream_metrics),
            connection_budget: self.budgets.connection_budget.clone(),
            admission: self.admission.clone(),
            rate_limits: Arc::clone(&self.rates),
            rejection_delay: Arc::clone(&self.rejection_delay),
            outcomes: Arc::clone(&self.outcome_counts),
            top_talkers: Arc::clone(&self.talkers),
            max_connections,
        })
    }

    pub(super) fn acceptor(
        &self,
        serving: config::ServingConfig,
        workers: usize,
        provider: Arc<CryptoProvider>,
        registry: &Registry,
    ) -> Result<Acceptor, StartError> {
        let tls = tls::server_config(serving.tls, provider)
            .map_err(|why| StartError::new("TLS towards clients", why))?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = listen(serving.address)?;
        let metrics = server::metrics::ServerMetrics::register(registry);
        let trusted: Arc<[IpNet]> = serving.trusted_proxies.into();
        let handshake_queue = HandshakeQueue::new(HANDSHAKE_TIMEOUT, &metrics);
        let (shared, settings) = (self.pipeline_dependencies(), self.pipeline_settings());
        let start = |number| {
            let worker = self.worker_dependencies();
            let serving = ConnectionContext {
                pipeline: Arc::new(Pipeline::new(&shared, &worker, settings)),
                worker,
                head_budget: Arc::clone(&shared.head_budget),
                drain: Arc::clone(&self.drain),
                max_streams: serving.max_streams,
                trusted_proxies: Arc::clone(&trusted),
                proxy_protocol: serving.proxy_protocol,
                handshake_queue: Arc::clone(&handshake_queue),
                goaway_chance: serving.goaway_chance,
                header_timeout: serving.header_timeout,
                max_resets_per_second: serving.resets_per_second,
                metrics: metrics.clone(),
            };
            Worker::start(number, tls.clone(), Arc::new(serving))
        };
        let workers: Result<_, _> = (0..workers.max(1)).map(start).collect();
        Ok(Acceptor {
            listener,
            workers: workers.map_err(|why| StartError::new("cannot start a worker", why))?,
            max_connections: serving.max_connections,
            drain: Arc::clone(&self.drain),
            pending_handshakes: PendingHandshakes::new(),
            metrics,
        })
    }
}

pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    acceptor::bind(address)
        .and_then(TcpListener::from_std)
        .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))
}

pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
