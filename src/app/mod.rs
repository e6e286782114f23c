//! Builds the components, lowest layer first; binds the listeners; runs; shuts down in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients.

mod admin_listeners;
mod api_server_tasks;
mod authentication;
mod cluster;
mod info_metrics;
mod lifecycle;
mod observers;
mod reload;
mod self_checks;
mod shared_components;
mod start_error;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::app::admin_listeners::{AdminListeners, shown_config};
use crate::app::api_server_tasks::{OwnCallSettings, OwnCalls, OwnCallsConfig};
use crate::app::authentication::{AuthDependencies, ReviewTasks, build_authenticator};
use crate::app::lifecycle::shutdown::{
    CLOSE_TIMEOUT, ShutdownTimes, finish_after_handover, shut_down,
};
use crate::app::lifecycle::state::LearnedState;
use crate::app::observers::Observers;
use crate::app::reload::InForce;
use crate::app::shared_components::{
    Budgets, ConfiguredListener, SharedComponents, Sockets, apply_limits, listener_settings,
    local_address,
};
use crate::config::{AdmissionConfig, Config};
use crate::drain::{Drain, DrainStage};
use crate::flowcontrol::controller::Controller;
use crate::handover::listeners::{InheritedListeners, ListenerId};
use crate::limits::limiters::{LimiterInForce, Limiters};
use crate::limits::memory_limit::MemoryLimit;
use crate::observe::process_metrics::HandoverMetrics;
use crate::observe::readiness::config_status::ConfigStatus;
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::trace::RequestMetrics;
use crate::replicas::config::ReplicaConfig;
use crate::replicas::coordinator::{ReplicaDependencies, Replicas};
use crate::server::acceptor::Acceptor;
use crate::server::worker::Worker;
use crate::upstream;
use crate::upstream::UpstreamConfig;
use crate::upstream::credentials::RefreshTask;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::in_flight::InFlightMetrics;
use weir_limits::rate::{RateLimits, RateLimitsConfig};
use weir_limits::shared_limits::refill::SharedLimits;
use weir_limits::shared_limits::server::SharedLimitsConfig;

pub(crate) use crate::app::lifecycle::handover::HandoverParts;
pub(crate) use crate::app::lifecycle::shutdown::{ShutdownOutcome, StopReason};
pub(crate) use crate::app::reload::Reloader;
pub(crate) use crate::app::self_checks::online::{OnlineFinding, OnlineReport, check_online};
pub(crate) use crate::app::start_error::StartError;

/// A proxy that is bound and ready to run.
#[derive(Debug)]
pub struct App {
    acceptor: Acceptor,
    admin: AdminListeners,
    own_calls: Arc<OwnCalls>,
    own_call_settings: OwnCallSettings,
    upstream: UpstreamConfig,
    renewal: RefreshTask,
    review_tasks: ReviewTasks,
    talkers: Arc<TopTalkers>,
    limiter_tasks: LimiterTasks,
    memory_limit: Arc<MemoryLimit>,
    observers: Arc<ArcSwap<Observers>>,
    replicas: Option<Replicas>,
    drain: Arc<Drain>,
    shutdown: Arc<ArcSwap<ShutdownTimes>>,
    addresses: Addresses,
    reloader: Option<Reloader>,
    handover: HandoverParts,
}

/// A proxy whose tasks run and that accepts no connections yet.
#[derive(Debug)]
pub(crate) struct StartedApp {
    acceptor: Acceptor,
    admin: AdminListeners,
    observers: Arc<ArcSwap<Observers>>,
    replicas: Option<Replicas>,
    drain: Arc<Drain>,
    shutdown: Arc<ArcSwap<ShutdownTimes>>,
}

/// The bound addresses; a port that was configured as 0 is the actual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients.
    pub clients: SocketAddr,
    /// Operators.
    pub admin: SocketAddr,
    /// Probes, if they have an address of their own.
    pub(crate) health: Option<SocketAddr>,
}

impl Addresses {
    fn new(acceptor: &Acceptor, admin: &AdminListeners) -> Result<Self, StartError> {
        Ok(Self {
            clients: local_address(&acceptor.listener)?,
            admin: local_address(&admin.operators.0)?,
            health: match &admin.probes {
                Some((listener, _)) => Some(local_address(listener)?),
                None => None,
            },
        })
    }
}

impl App {
    /// Builds every component and binds every address, so that an invalid configuration fails here.
    ///
    /// # Errors
    /// A component cannot be built or an address cannot be bound.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was bound.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        Self::bind_with(config, InheritedListeners::default()).await
    }

    /// Likewise, with listening sockets that another process has opened.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Cancel safety
    /// As [`bind`](Self::bind).
    pub(crate) async fn bind_with(
        config: Config,
        inherited: InheritedListeners,
    ) -> Result<Self, StartError> {
        let in_force = InForce::from_config(&config);
        let (serving, admin) = (config.serving.clone(), config.admin.clone());
        let (workers, provider) = (config.workers, Arc::clone(&config.crypto_provider));
        let registry = Registry::new();
        let Components {
            shared,
            limiter_tasks,
            replicas,
            own_calls,
            own_call_settings,
            renewal,
            review_tasks,
        } = Components::build(config, &registry).await?;
        let settings = listener_settings(&serving, &provider, None)?;
        let shown = shown_config(&shared, serving.max_connections, &admin);
        let readiness = Arc::clone(&own_calls.readiness);
        let sockets = Sockets::listen(serving.address, &admin, inherited)?;
        let Sockets { main, all, .. } = sockets;
        let operators = (sockets.admin, sockets.health);
        let admin = AdminListeners::new(admin, operators, readiness, &registry, &shared, &shown);
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let listener = shared.listener(main, &settings, workers, &registry)?;
        let shutdown = Arc::new(ArcSwap::from_pointee(in_force.shutdown_times()));
        let observers = Arc::new(ArcSwap::from_pointee(shared.observers.clone()));
        let addresses = Addresses::new(&listener.acceptor, &admin)?;
        own_calls.verify_servers(addresses.clients).await;
        Ok(Self {
            handover: handover_parts(all, &own_calls, &admin, &listener, &shared, &registry),
            addresses,
            acceptor: listener.acceptor,
            admin,
            own_calls: Arc::clone(&own_calls),
            own_call_settings: own_call_settings.clone(),
            upstream: shared.upstream.clone(),
            renewal,
            review_tasks,
            talkers: Arc::clone(&shared.talkers),
            limiter_tasks,
            replicas: replicas.clone(),
            memory_limit: Arc::clone(&shared.budgets.memory_limit),
            observers: Arc::clone(&observers),
            drain: Arc::clone(&shared.drain),
            shutdown: Arc::clone(&shutdown),
            reloader: Some(Reloader {
                in_force,
                shared,
                workers: listener.workers,
                settings,
                shown,
                own_calls,
                own_call_settings,
                replicas,
                registry,
                provider,
                observers,
                shutdown,
            }),
        })
    }

    /// Replaces the configuration while the proxy runs. `None` if it was taken before.
    pub(crate) fn take_reloader(&mut self) -> Option<Reloader> {
        self.reloader.take()
    }

    /// What a hand-over to or from another process needs.
    pub(crate) fn handover_parts(&self) -> HandoverParts {
        self.handover.clone()
    }

    /// The bound addresses.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `stop` completes, then shuts down in order, or at once if `at_once` completes.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let stop = async {
            stop.await;
            StopReason::Signal
        };
        self.start().serve(stop, at_once).await
    }

    /// Starts everything but the listeners. Must be called within a runtime.
    pub(crate) fn start(self) -> StartedApp {
        let Self {
            acceptor,
            admin,
            own_calls,
            own_call_settings,
            upstream,
            renewal,
            review_tasks,
            talkers,
            limiter_tasks,
            memory_limit,
            observers,
            replicas,
            drain,
            shutdown,
            addresses: _,
            reloader: _,
            handover: _,
        } = self;
        own_calls.run(&own_call_settings, &upstream);
        tokio::spawn(renewal.run());
        review_tasks.run();
        tokio::spawn(talkers.run());
        limiter_tasks.run();
        tokio::spawn(memory_limit.run());
        tokio::spawn(Observers::clone(&observers.load()).run());
        StartedApp {
            acceptor,
            admin,
            observers,
            replicas,
            drain,
            shutdown,
        }
    }
}

impl StartedApp {
    /// Serves until `stop` completes, then ends as its result says, or at once if `at_once`
    /// completes. `stop` is first polled when connections are accepted.
    pub(crate) async fn serve(
        self,
        stop: impl Future<Output = StopReason>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let Self {
            acceptor,
            admin,
            observers,
            replicas,
            drain,
            shutdown,
        } = self;
        if let Some(replicas) = &replicas {
            // Not before: another process of this replica has its Lease until it hands over.
            replicas.run(&drain);
        }
        admin.run(&drain);
        let accepting = tokio::spawn(acceptor.run());
        let reason = stop.await;
        let times = **shutdown.load();
        let ended = tokio::select! {
            ended = end(&drain, times, reason) => ended,
            () = at_once => ShutdownOutcome::Forced,
        };
        drain.advance(DrainStage::Closing); // a forced shutdown closes the listener here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_TIMEOUT, stopping).await;
        }
        if let Some(replicas) = &replicas {
            replicas.finish().await;
        }
        Observers::clone(&observers.load()).finish().await;
        ended
    }
}

async fn end(drain: &Drain, times: ShutdownTimes, reason: StopReason) -> ShutdownOutcome {
    match reason {
        StopReason::Signal => shut_down(drain, times).await,
        StopReason::HandedOver => finish_after_handover(drain, times).await,
    }
}

fn handover_parts(
    listeners: Vec<(ListenerId, Weak<TcpListener>)>,
    own_calls: &OwnCalls,
    admin: &AdminListeners,
    listener: &ConfiguredListener,
    shared: &SharedComponents,
    registry: &Registry,
) -> HandoverParts {
    HandoverParts {
        listeners,
        readiness: Arc::clone(&own_calls.readiness),
        heartbeats: listener.heartbeats(),
        state: LearnedState {
            status: admin.status(),
            talkers: Arc::clone(&shared.talkers),
            limiters: Arc::clone(&shared.limiters),
            abandoned: listener.abandoned_requests(),
        },
        metrics: HandoverMetrics::register(registry),
    }
}

/// What all workers share, weir's own calls, and the tasks that belong to them.
struct Components {
    shared: SharedComponents,
    limiter_tasks: LimiterTasks,
    replicas: Option<Replicas>,
    own_calls: Arc<OwnCalls>,
    own_call_settings: OwnCallSettings,
    renewal: RefreshTask,
    review_tasks: ReviewTasks,
}

impl Components {
    async fn build(config: Config, registry: &Registry) -> Result<Self, StartError> {
        let own_call_settings = OwnCallSettings::from_config(&config);
        let provider = &Arc::clone(&config.crypto_provider);
        let config_status = Arc::new(ConfigStatus::register(registry, Clock.wall()));
        let (drain, upstream) = (Drain::new(), config.upstream);
        let (limiters, limiter, limiter_tasks) = build_limiters(&config.admission, registry);
        let upstream_metrics = upstream::UpstreamMetrics::register(registry);
        let calls = OwnCallsConfig {
            credentials: config.own_credentials,
            drain: Arc::clone(&drain),
            config_status: Arc::clone(&config_status),
            limiter: limiter.clone(),
            cluster: config.admission.cluster().cloned(),
        };
        let (own_calls, renewal) =
            OwnCalls::start(calls, &upstream, &upstream_metrics, registry).await?;
        let replicas = build_replicas(config.replicas, &own_calls, &upstream, &limiters, provider)?;
        let certificate = &config.serving.tls.certificate;
        own_calls.register_info_metrics(certificate, upstream.front_proxy.as_ref(), registry);
        let impersonates = config.assert_by_impersonation;
        let server = own_calls.api_server(&own_call_settings);
        let auth = AuthDependencies::new(server, &upstream_metrics, registry, provider);
        let (auth, review_tasks) = build_authenticator(config.identity, impersonates, auth)?;
        let (transfers, memory) = (config.transfers, config.memory_limit);
        let budgets = Budgets::new(transfers, memory, upstream.max_connections, registry);
        let limiter_tasks = limiter_tasks.sharing(config.shared_limits, registry);
        let (hold, millicores) = (config.rejection_hold, config.max_rejection_millicores);
        let shared = SharedComponents {
            auth,
            rates: build_rates(&limiter_tasks, &config.rates, &own_calls, registry),
            budgets,
            rejection_responses: Arc::default(),
            rejection_delay: Arc::new(RejectionDelay::new(hold, millicores, registry)),
            metrics: RequestMetrics::register(registry),
            outcome_counts: Arc::default(),
            talkers: TopTalkers::new(Clock.now(), limiter.admission.seats_without_decision()),
            limiters,
            admission: limiter.admission,
            observers: Observers::start(config.reporting, limiter.flowcontrol.as_ref(), registry)?,
            flowcontrol: limiter.flowcontrol,
            upstream_log_limiter: Arc::default(),
            request_timeout: config.request_timeout,
            drain,
            impersonator: impersonates.then(|| Arc::clone(&own_calls.credentials)),
            loop_detector: Arc::clone(&own_calls.loop_detector),
            upstream_metrics,
            servers: Arc::clone(&own_calls.servers),
            upstream,
            config_status,
        };
        Ok(Self {
            shared,
            limiter_tasks,
            replicas,
            own_calls,
            own_call_settings,
            renewal,
            review_tasks,
        })
    }
}

/// The division among replicas, if there is one.
fn build_replicas(
    config: Option<ReplicaConfig>,
    own_calls: &OwnCalls,
    upstream: &UpstreamConfig,
    limiters: &Arc<Limiters>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Replicas>, StartError> {
    let dependencies = ReplicaDependencies {
        instance: &upstream.instance_id,
        server: first_server(upstream),
        limiters,
        calls: own_calls.client().clone(),
        provider,
        registry: own_calls.registry(),
    };
    let replicas = config.map(|config| Replicas::new(config, dependencies));
    let replicas = replicas.transpose();
    let replicas =
        replicas.map_err(|why| StartError::new("connections to the other replicas", why))?;
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

/// The rate limits, whose buckets may be shared with other replicas.
fn build_rates(
    tasks: &LimiterTasks,
    config: &RateLimitsConfig,
    own_calls: &OwnCalls,
    registry: &Registry,
) -> Arc<RateLimits> {
    let shared = tasks.shared_limits.as_ref();
    let status = shared.map(|shared| Arc::clone(shared.status()));
    own_calls.readiness.set_shared_limits(status);
    let sharing = shared.map(|shared| shared.sharing());
    Arc::new(RateLimits::sharing(sharing).replaced_by(config, registry))
}

/// The limiter that is configured, and the tasks to start.
fn build_limiters(
    config: &AdmissionConfig,
    registry: &Registry,
) -> (Arc<Limiters>, LimiterInForce, LimiterTasks) {
    info_metrics::register_dry_run(config, registry);
    let limiters = Arc::new(Limiters::new(registry));
    let limiter = apply_limits(&limiters, config);
    let tasks = LimiterTasks {
        in_flight: Arc::clone(limiters.in_flight()),
        controller: limiter.started.clone(),
        shared_limits: None,
    };
    (limiters, limiter, tasks)
}

/// The periodic maintenance of the limits.
#[derive(Debug)]
struct LimiterTasks {
    in_flight: Arc<InFlightMetrics>,
    controller: Option<Arc<Controller>>,
    shared_limits: Option<Arc<SharedLimits>>,
}

impl LimiterTasks {
    /// With the task of shared rate limits, if there are any.
    fn sharing(self, config: Option<SharedLimitsConfig>, registry: &Registry) -> Self {
        Self {
            shared_limits: config.map(|config| SharedLimits::new(config, registry)),
            ..self
        }
    }

    fn run(self) {
        let Self {
            in_flight,
            controller,
            shared_limits,
        } = self;
        if let Some(shared) = shared_limits {
            tokio::spawn(shared.run());
        }
        tokio::spawn(async move { in_flight.run().await });
        if let Some(controller) = controller {
            tokio::spawn(async move { controller.run().await });
        }
    }
}
