//! The components that all workers share, and the pipelines and the acceptor that are built from
//! them.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use rustls::crypto::CryptoProvider;
use tokio::net::TcpListener;

use crate::app::authentication::AuthComponents;
use crate::app::observers::Observers;
use crate::app::start_error::StartError;
use crate::drain::Drain;
use crate::flowcontrol::sources::LiveObjects;
use crate::handover::listeners::{InheritedListeners, ListenerId, ListenerName, Opener};
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::limiters::{LimiterInForce, Limiters};
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::limits::watch_starts::WatchStarts;
use crate::observe::alarms::board::{AlarmBoard, LossCounts};
use crate::observe::audit::AuditMetrics;
use crate::observe::logging::recording::RecordingMetrics;
use crate::observe::readiness::Readiness;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::status::StatusFeed;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::observe::status::sources::{ConfiguredSources, StatusSources};
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::dependencies::{PipelineSettings, SharedDependencies, WorkerDependencies};
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::{Deadlines, SlowTransfers};
use crate::pipeline::steps::request_body::request_body_budget;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::record::{RequestObserver, RequestObservers};
use crate::server::acceptor::Acceptor;
use crate::server::connection::connection_shares::ConnectionShares;
use crate::server::connection::{ConnectionContext, HANDSHAKE_TIMEOUT};
use crate::server::handshake_queue::HandshakeQueue;
use crate::server::pending_handshakes::PendingHandshakes;
use crate::server::settings::ListenerSettings;
use crate::server::worker::Worker;
use crate::server::{acceptor, tls};
use crate::upstream::Upstream;
use crate::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::servers::server_set::ServerSet;
use crate::{config, server, upstream};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::rate::RateLimits;
use weir_limits::throttling::log_limiter::LogLimiter;
use weir_limits::throttling::memory_budget::MemoryBudget;

/// The memory and connection budgets of all requests together.
pub(super) struct Budgets {
    pub(super) memory_limit: Arc<MemoryLimit>,
    pub(super) request_body_budget: Arc<MemoryBudget>,
    pub(super) head_budget: Arc<HeadBudget>,
    pub(super) body_drain_budget: Arc<BodyDrainBudget>,
    pub(super) transfers: config::TransferConfig,
    pub(super) slow_transfers: SlowTransfers,
    pub(super) abandoned_requests: IntGauge,
    pub(super) abandoned_backlog: Arc<AbandonedBacklog>,
    pub(super) watch_starts: Arc<WatchStarts>,
    pub(super) upgrade_rate: Arc<UpgradeRateLimit>,
    pub(super) connection_budget: ConnectionBudget,
}

impl Budgets {
    pub(super) fn new(
        transfers: config::TransferConfig,
        memory_limit: u64,
        connections: usize,
        registry: &Registry,
    ) -> Self {
        Self {
            transfers,
            slow_transfers: SlowTransfers::register(registry),
            abandoned_requests: AbandonedRequests::register(registry),
            abandoned_backlog: AbandonedBacklog::new(registry),
            watch_starts: WatchStarts::new(registry),
            upgrade_rate: UpgradeRateLimit::new(transfers.upgrades_per_second, registry),
            connection_budget: ConnectionBudget::new(connections, &SlotMetrics::register(registry)),
            memory_limit: MemoryLimit::new(memory_limit, registry),
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
    /// The limiters of both modes.
    pub(super) limiters: Arc<Limiters>,
    pub(super) admission: Admission,
    /// The flow schemas and priority levels. `None` without priority and fairness.
    pub(super) flowcontrol: Option<Arc<LiveObjects>>,
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
    pub(super) servers: Arc<ServerSet>,
    /// The credentials that assert a certificate's user, if no front-proxy certificate does.
    pub(super) impersonator: Option<Arc<OwnCredentials>>,
    pub(super) loop_detector: Arc<LoopDetector>,
    pub(super) upstream_metrics: Arc<upstream::UpstreamMetrics>,
    pub(super) config_status: Arc<ConfigStatus>,
}

/// A worker, and where its pipeline is replaced.
#[derive(Debug)]
pub(super) struct ConfiguredWorker {
    talkers_shard: Arc<dyn RequestObserver>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) context: Arc<ConnectionContext>,
}

/// The listener for clients, and what a reload replaces of it.
#[derive(Debug)]
pub(super) struct ConfiguredListener {
    pub(super) acceptor: Acceptor,
    pub(super) workers: Vec<ConfiguredWorker>,
}

impl ConfiguredListener {
    /// Counts the turns of each worker's maintenance.
    pub(super) fn heartbeats(&self) -> Vec<Arc<AtomicU64>> {
        let workers = self.workers.iter();
        workers
            .map(|worker| Arc::clone(&worker.context.heartbeats))
            .collect()
    }

    /// The abandoned requests of each worker.
    pub(super) fn abandoned_requests(&self) -> Vec<Arc<AbandonedRequests>> {
        let workers = self.workers.iter();
        workers
            .map(|worker| Arc::clone(&worker.context.worker.abandoned_requests))
            .collect()
    }
}

impl SharedComponents {
    fn pipeline_dependencies(&self) -> SharedDependencies {
        SharedDependencies {
            authenticator: Arc::clone(&self.auth.authenticator),
            impersonation_authorizer: self.auth.impersonation_authorizer.clone(),
            identity_headers: Arc::clone(&self.auth.identity_headers),
            rates: Arc::clone(&self.rates),
            admission: self.admission.clone(),
            memory_limit: Arc::clone(&self.budgets.memory_limit),
            abandoned_backlog: Arc::clone(&self.budgets.abandoned_backlog),
            watch_starts: Arc::clone(&self.budgets.watch_starts),
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

    /// The observers of a worker with this shard of the top talkers.
    fn request_observers(&self, talkers_shard: &Arc<dyn RequestObserver>) -> RequestObservers {
        let counts: Arc<dyn RequestObserver> = Arc::<OutcomeCounts>::clone(&self.outcome_counts);
        self.observers
            .request_observers([Arc::clone(talkers_shard), counts])
    }

    /// What one worker keeps as long as it runs.
    fn worker_dependencies(&self, observers: RequestObservers) -> WorkerDependencies {
        let budgets = &self.budgets;
        WorkerDependencies {
            upstream: Arc::new(Upstream::new(
                &self.upstream,
                &self.servers,
                &budgets.connection_budget,
                self.impersonator.as_ref(),
                &self.upstream_metrics,
            )),
            abandoned_requests: AbandonedRequests::new(budgets.abandoned_requests.clone()),
            deadlines: Deadlines::new(
                budgets.transfers.minimum_rate,
                budgets.slow_transfers.clone(),
            ),
            observers,
        }
    }

    /// A new pipeline of a worker, by the configuration in force.
    pub(super) fn pipeline(&self, worker: &ConfiguredWorker) -> Pipeline {
        let dependencies = WorkerDependencies {
            observers: self.request_observers(&worker.talkers_shard),
            upstream: Arc::clone(&worker.upstream),
            ..worker.context.worker.clone()
        };
        let (shared, settings) = (self.pipeline_dependencies(), self.pipeline_settings());
        Pipeline::new(&shared, &dependencies, settings)
    }

    /// What a reload replaces of the sources of the status page.
    pub(super) fn configured_sources(
        &self,
        max_connections: usize,
        health_metrics: bool,
    ) -> ConfiguredSources {
        ConfiguredSources {
            upstream_address: self.upstream.authorities(),
            rate_limits: Arc::clone(&self.rates),
            rejection_delay: Arc::clone(&self.rejection_delay),
            max_connections,
            health_metrics,
            admission: self.admission.clone(),
            flowcontrol: self.flowcontrol.clone(),
        }
    }

    /// What alarms about losses and limits are made from.
    pub(super) fn totals(&self, registry: &Registry) -> LossCounts {
        let (audit, record) = (
            AuditMetrics::register(registry),
            RecordingMetrics::register(registry),
        );
        let clients = server::metrics::ServerMetrics::register(registry);
        let memory = Arc::clone(&self.budgets.memory_limit);
        let log = self.observers.dropped_lines.clone();
        LossCounts {
            audit_log: Box::new(move || audit.lost()),
            connections: Box::new(move || clients.refused()),
            log: Box::new(move || log.count()),
            memory: Box::new(move || memory.rejected()),
            record: Box::new(move || record.lost()),
        }
    }

    pub(super) fn status(
        &self,
        readiness: &Arc<Readiness>,
        alarms: &Arc<AlarmBoard>,
        configured: &Arc<ArcSwap<ConfiguredSources>>,
        host: &str,
    ) -> Arc<StatusFeed> {
        StatusFeed::new(StatusSources {
            host: host.to_owned(),
            alarms: Arc::clone(alarms),
            start_time: Clock.now(),
            drain: Arc::clone(&self.drain),
            readiness: Arc::clone(readiness),
            upstream: Arc::clone(&self.upstream_metrics),
            connection_budget: self.budgets.connection_budget.clone(),
            outcomes: Arc::clone(&self.outcome_counts),
            top_talkers: Arc::clone(&self.talkers),
            configured: Arc::clone(configured),
            config: Arc::clone(&self.config_status),
        })
    }

    pub(super) fn listener(
        &self,
        listener: Arc<TcpListener>,
        settings: &Arc<ArcSwap<ListenerSettings>>,
        workers: usize,
        registry: &Registry,
    ) -> Result<ConfiguredListener, StartError> {
        let metrics = server::metrics::ServerMetrics::register(registry);
        metrics.set_max_connections(settings.load().max_connections);
        let handshake_queue = HandshakeQueue::new(HANDSHAKE_TIMEOUT, &metrics);
        let shares = ConnectionShares::new(registry);
        let (shared, pipeline) = (self.pipeline_dependencies(), self.pipeline_settings());
        let configure = |_| {
            let talkers_shard: Arc<dyn RequestObserver> = self.talkers.new_shard();
            let worker = self.worker_dependencies(self.request_observers(&talkers_shard));
            let upstream = Arc::clone(&worker.upstream);
            let context = ConnectionContext {
                pipeline: ArcSwap::from_pointee(Pipeline::new(&shared, &worker, pipeline)),
                worker,
                head_budget: Arc::clone(&shared.head_budget),
                memory_limit: Arc::clone(&shared.memory_limit),
                settings: Arc::clone(settings),
                drain: Arc::clone(&self.drain),
                handshake_queue: Arc::clone(&handshake_queue),
                metrics: metrics.clone(),
                heartbeats: Arc::default(),
            };
            ConfiguredWorker {
                talkers_shard,
                upstream,
                context: Arc::new(context),
            }
        };
        let configured: Vec<_> = (0..workers.max(1)).map(configure).collect();
        let start = |(number, worker): (usize, &ConfiguredWorker)| {
            Worker::start(number, Arc::clone(&worker.context))
        };
        let workers: Result<_, _> = configured.iter().enumerate().map(start).collect();
        let acceptor = Acceptor {
            listener,
            workers: workers.map_err(|why| StartError::new("cannot start a worker", why))?,
            settings: Arc::clone(settings),
            drain: Arc::clone(&self.drain),
            pending_handshakes: PendingHandshakes::new(),
            shares,
            memory_limit: Arc::clone(&self.budgets.memory_limit),
            metrics,
        };
        Ok(ConfiguredListener {
            acceptor,
            workers: configured,
        })
    }
}

/// The settings of new connections. With `resumable`, clients can resume its TLS sessions.
pub(super) fn listener_settings(
    serving: &config::ServingConfig,
    provider: &Arc<CryptoProvider>,
    resumable: Option<&ListenerSettings>,
) -> Result<ListenerSettings, StartError> {
    let resumable = resumable.map(|settings| &*settings.tls);
    let tls = tls::server_config(serving.tls.clone(), Arc::clone(provider), resumable)
        .map_err(|why| StartError::new("TLS towards clients", why))?;
    Ok(ListenerSettings {
        tls: Arc::new(tls),
        max_streams: serving.max_streams,
        trusted_proxies: serving.trusted_proxies.clone(),
        proxy_protocol: serving.proxy_protocol,
        goaway_chance: serving.goaway_chance,
        header_timeout: serving.header_timeout,
        max_resets_per_second: serving.resets_per_second,
        max_connections: serving.max_connections,
        address_limit: serving.address_limit,
    })
}

/// Puts the configured mode and limits of admission in force.
pub(super) fn apply_limits(
    limiters: &Limiters,
    configured: &config::AdmissionConfig,
) -> LimiterInForce {
    let now = Clock.now();
    match configured {
        config::AdmissionConfig::Fairness { config, sources } => {
            let (files, reads_cluster) = (sources.files.clone(), sources.cluster.is_some());
            limiters.apply_fairness(now, *config, files, reads_cluster)
        }
        config::AdmissionConfig::MaxInFlight(config) => limiters.apply_max_in_flight(now, *config),
    }
}

/// The listening sockets of all addresses.
pub(super) struct Sockets {
    pub(super) main: Arc<TcpListener>,
    pub(super) admin: Arc<TcpListener>,
    pub(super) health: Option<Arc<TcpListener>>,
    /// All of them, for a hand-over.
    pub(super) all: Vec<(ListenerId, Weak<TcpListener>)>,
}

impl Sockets {
    pub(super) fn listen(
        main: SocketAddr,
        admin: &config::AdminConfig,
        mut inherited: InheritedListeners,
    ) -> Result<Self, StartError> {
        let mut all = Vec::new();
        let mut listen = |name, address| {
            let (opener, socket) = listen(name, address, &mut inherited)?;
            all.push((ListenerId { name, opener }, Arc::downgrade(&socket)));
            Ok::<_, StartError>(socket)
        };
        Ok(Self {
            admin: listen(ListenerName::Admin, admin.address)?,
            health: admin
                .health
                .map(|address| listen(ListenerName::Health, address))
                .transpose()?,
            main: listen(ListenerName::Main, main)?,
            all,
        })
    }
}

/// The listening socket that another process has opened, or a new one.
fn listen(
    name: ListenerName,
    address: SocketAddr,
    inherited: &mut InheritedListeners,
) -> Result<(Opener, Arc<TcpListener>), StartError> {
    let inherited = inherited.take(name, address);
    let bind = || acceptor::bind(address).map(|socket| (Opener::Weir, socket));
    inherited
        .map_or_else(bind, Ok)
        .and_then(|(opener, socket)| Ok((opener, Arc::new(TcpListener::from_std(socket)?))))
        .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))
}

pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
