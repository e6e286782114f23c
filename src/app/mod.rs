//! Puts the parts together, lowest first; binds; runs; and goes away in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients. Going away follows
//! kube-apiserver (`genericapiserver.go`, 1.36): `/readyz` fails; after the delay no new connections, and those that are open are told;
//! requests end; watches end, spread over the grace period; what is left is cut off.

mod api_server_tasks;
mod authentication;
mod info_metrics;
mod list_counter;
mod object_counts;
mod observers;
mod self_access;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use prometheus::IntGauge;
use rustls::crypto::CryptoProvider;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::info;

use crate::app::api_server_tasks::ApiServerTasks;
use crate::app::api_server_tasks::SelfCheckConfig;
use crate::app::authentication::AuthComponents;
use crate::app::authentication::AuthDependencies;
use crate::app::authentication::ReviewTasks;
use crate::app::authentication::build_authenticator;
use crate::app::observers::Observers;
use crate::clock::Clock;
use crate::config;
use crate::config::AdmissionConfig;
use crate::config::Config;
use crate::config::ShutdownConfig;
use crate::drain::Drain;
use crate::drain::DrainStage;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::metrics::in_flight::PEAK_UPDATE_PERIOD;
use crate::limits::Admission;
use crate::limits::MaxInFlight;
use crate::limits::rate::RateLimits;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::observe::admin::AdminServer;
use crate::observe::admin::zpages::Zpages;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::outcome_counts::OutcomeCounts;
use crate::observe::status::sources::StatusSources;
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::reject::BodyDrainBudget;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::request_body::request_body_budget;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::SlowTransfers;
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
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connection_budget::SlotMetrics;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::loop_detection::LoopDetector;

/// How long connections may take to close once nothing is under way on them: a GOAWAY and a few round trips.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A proxy that is bound and ready to run.
#[derive(Debug)]
pub struct App {
    acceptor: Acceptor,
    admin: AdminListeners,
    own_calls: ApiServerTasks,
    review_tasks: ReviewTasks,
    talkers: Arc<TopTalkers>,
    admission: Admission,
    observers: Observers,
    drain: Arc<Drain>,
    shutdown: ShutdownConfig,
    request_timeout: Duration,
    addresses: Addresses,
}

/// Where it can be reached; the ports are the real ones where 0 was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients.
    pub clients: SocketAddr,
    /// Operators.
    pub admin: SocketAddr,
    /// Probes, where they have an address of their own.
    pub health: Option<SocketAddr>,
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

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownOutcome {
    /// Every request and watch had its end. (Tunnels, which have none, are cut off.)
    Drained,
    /// Some were cut off when their time was over.
    CutOff,
    /// A second order to go cut it short.
    Forced,
}

/// Why the proxy cannot start.
#[derive(Debug)]
pub struct StartError {
    context: String,
    reason: String,
}

impl StartError {
    fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            context: what.into(),
            reason: why.to_string(),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.context, self.reason)
    }
}

impl std::error::Error for StartError {}

impl App {
    /// Builds every part and binds every address, so that what cannot work fails here.
    ///
    /// # Errors
    /// What could not be had, and why.
    ///
    /// # Cancel safety
    /// Dropping the future lets go of what was bound.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let self_checks = SelfCheckConfig::from_config(&config);
        let registry = Registry::new();
        let drain = Drain::new();
        let Config {
            serving,
            identity,
            admission: limits,
            upstream,
            own_credentials: own,
            reporting: telling,
            crypto_provider: provider,
            ..
        } = config;
        let admission = build_admission(limits, &registry);
        let upstream_metrics = upstream::UpstreamMetrics::register(&registry);
        let checks = self_checks.build(&upstream, &upstream_metrics, &registry);
        let own = (own, config.object_count_poll_period);
        let asks = ApiServerTasks::start(own, &upstream, &upstream_metrics, &drain, checks);
        let (own_calls, readiness, server) = asks.await?;
        let credentials = &own_calls.credentials;
        info_metrics::register(&serving, &upstream, credentials, &readiness, &registry);
        let impersonator = config
            .assert_by_impersonation
            .then(|| Arc::clone(credentials));
        let ground = AuthDependencies::new(server, &upstream_metrics, &registry, &provider);
        let (who, reviews) = build_authenticator(identity, config.assert_by_impersonation, ground)?;
        let shared = SharedComponents {
            auth: who,
            rates: Arc::new(RateLimits::new(&config.rates, &registry)),
            budgets: Budgets::new(config.transfers, upstream.max_connections, &registry),
            admission: admission.clone(),
            rejection_responses: Arc::default(),
            rejection_delay: Arc::new(RejectionDelay::new(config.rejection_hold, &registry)),
            metrics: RequestMetrics::register(&registry),
            outcome_counts: Arc::default(),
            talkers: top_talkers(&admission),
            observers: Observers::start(telling, &registry)?,
            upstream_log_limiter: Arc::default(),
            request_timeout: config.request_timeout,
            drain: Arc::clone(&drain),
            impersonator,
            loop_detector: Arc::clone(&own_calls.loop_detector),
            upstream_metrics,
            upstream,
        };
        let admin = AdminListeners::bind(config.admin, readiness, &registry, &shared, &serving)?;
        let acceptor = shared.acceptor(serving, config.workers, provider, &registry)?;
        Ok(Self {
            addresses: Addresses::new(&acceptor, &admin)?,
            acceptor,
            admin,
            own_calls,
            review_tasks: reviews,
            talkers: shared.talkers,
            admission,
            observers: shared.observers,
            drain,
            shutdown: config.shutdown,
            request_timeout: config.request_timeout,
        })
    }

    /// Where it can be reached.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `stop` comes, then goes away in order, or at once if `at_once` comes.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let Self {
            acceptor,
            admin,
            own_calls,
            review_tasks: reviews,
            talkers,
            admission,
            observers: onlookers,
            drain,
            shutdown,
            request_timeout,
            addresses: _,
        } = self;
        admin.run();
        own_calls.run(&admission);
        reviews.run();
        tokio::spawn(talkers.run());
        tokio::spawn(maintain_limits(admission));
        tokio::spawn(onlookers.clone().run());
        let accepting = tokio::spawn(acceptor.run());
        stop.await;
        let ended = tokio::select! {
            ended = shut_down(&drain, shutdown, request_timeout) => ended,
            () = at_once => ShutdownOutcome::Forced,
        };
        drain.advance(DrainStage::Closing); // when it is cut short, the listener ends here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_TIMEOUT, stopping).await;
        }
        onlookers.finish().await;
        ended
    }
}

/// What all requests together may take of memory.
struct Budgets {
    request_body_budget: Arc<MemoryBudget>,
    head_budget: Arc<HeadBudget>,
    body_drain_budget: Arc<BodyDrainBudget>,
    transfers: config::TransferConfig,
    slow_transfers: SlowTransfers,
    abandoned_requests: IntGauge,
    upgrade_rate: Arc<UpgradeRateLimit>,
    connection_budget: ConnectionBudget,
}

impl Budgets {
    /// One worker's.
    fn deadlines(&self) -> Arc<Deadlines> {
        Deadlines::new(self.transfers.minimum_rate, self.slow_transfers.clone())
    }

    fn new(transfers: config::TransferConfig, connections: usize, registry: &Registry) -> Self {
        Self {
            transfers,
            slow_transfers: SlowTransfers::register(registry),
            abandoned_requests: AbandonedRequests::register(registry),
            upgrade_rate: UpgradeRateLimit::new(transfers.upgrades_per_second, registry),
            connection_budget: ConnectionBudget::new(connections, &SlotMetrics::register(registry)),
            request_body_budget: request_body_budget(registry),
            head_budget: HeadBudget::new(registry),
            body_drain_budget: BodyDrainBudget::new(registry),
        }
    }
}

/// What the workers' pipelines, and the calls of weir's own, share.
struct SharedComponents {
    auth: AuthComponents,
    rates: Arc<RateLimits>,
    budgets: Budgets,
    admission: Admission,
    rejection_responses: Arc<RejectionResponseCache>,
    rejection_delay: Arc<RejectionDelay>,
    metrics: Arc<RequestMetrics>,
    outcome_counts: Arc<OutcomeCounts>,
    talkers: Arc<TopTalkers>,
    observers: Observers,
    upstream_log_limiter: Arc<LogLimiter>,
    request_timeout: Duration,
    drain: Arc<Drain>,
    upstream: upstream::UpstreamConfig,
    /// Whose credentials assert a certificate's user, if it is not a front proxy's.
    impersonator: Option<Arc<OwnCredentials>>,
    loop_detector: Arc<LoopDetector>,
    upstream_metrics: Arc<upstream::UpstreamMetrics>,
}

impl SharedComponents {
    /// Those of one worker, who counts on a desk of its own.
    fn request_observers(&self) -> RequestObservers {
        let counts: Arc<dyn RequestObserver> = Arc::<OutcomeCounts>::clone(&self.outcome_counts);
        self.observers
            .request_observers([self.talkers.new_shard(), counts])
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline {
            authenticator: Arc::clone(&self.auth.authenticator),
            impersonation: self.auth.impersonation.clone(),
            identity_headers: Arc::clone(&self.auth.identity_headers),
            rates: Arc::clone(&self.rates),
            request_body_budget: Arc::clone(&self.budgets.request_body_budget),
            head_budget: Arc::clone(&self.budgets.head_budget),
            body_drain_budget: Arc::clone(&self.budgets.body_drain_budget),
            body_buffer: self.budgets.transfers.body_buffer,
            abandoned_requests: AbandonedRequests::new(self.budgets.abandoned_requests.clone()),
            upgrade_rate: Arc::clone(&self.budgets.upgrade_rate),
            admission: self.admission.clone(),
            loop_detector: Arc::clone(&self.loop_detector),
            upstream: Upstream::new(
                &self.upstream,
                &self.budgets.connection_budget,
                self.impersonator.as_ref(),
                &self.upstream_metrics,
            ),
            request_timeout: self.request_timeout,
            rejection_responses: Arc::clone(&self.rejection_responses),
            rejection_delay: Arc::clone(&self.rejection_delay),
            drain: Arc::clone(&self.drain),
            deadlines: self.budgets.deadlines(),
            metrics: Arc::clone(&self.metrics),
            observers: self.request_observers(),
            sampler: self.observers.sampler,
            has_audit_log: self.observers.has_audit_log(),
            explain_responses: self.observers.explain_responses,
            upstream_log_limiter: Arc::clone(&self.upstream_log_limiter),
        }
    }

    fn status(
        &self,
        readiness: &Arc<Readiness>,
        most_connections: usize,
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
            max_connections: most_connections,
        })
    }

    fn acceptor(
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
        let metrics = server::ServerMetrics::register(registry);
        let trusted: Arc<[IpNet]> = serving.trusted_proxies.into();
        let turns = HandshakeQueue::new(HANDSHAKE_TIMEOUT, &metrics);
        let start = |number| {
            let serving = ConnectionContext {
                pipeline: Arc::new(self.pipeline()),
                drain: Arc::clone(&self.drain),
                max_streams: serving.max_streams,
                trusted_proxies: Arc::clone(&trusted),
                proxy_protocol: serving.proxy_protocol,
                handshake_queue: Arc::clone(&turns),
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

/// The listeners for operators, and what each serves.
#[derive(Debug)]
struct AdminListeners {
    operators: (TcpListener, Arc<AdminServer>),
    probes: Option<(TcpListener, Arc<AdminServer>)>,
    status: Arc<StatusFeed>,
    readiness_poll_after: Duration,
}

impl AdminListeners {
    fn bind(
        admin: config::AdminConfig,
        readiness: Arc<Readiness>,
        registry: &Registry,
        shared: &SharedComponents,
        serving: &config::ServingConfig,
    ) -> Result<Self, StartError> {
        let host = &admin.effective.host;
        let status = shared.status(&readiness, serving.max_connections, host);
        let zpages = Arc::new(Zpages {
            upstream: shared.upstream.address.authority.to_string(),
            start_time: (Clock.now(), Clock.wall()),
            effective: admin.effective.clone(),
        });
        let fairness = match &shared.admission {
            Admission::Fairness(controller) => Some(controller),
            Admission::MaxInFlight(_) => None,
        };
        let serve = |address, metrics: bool, operators: bool| {
            let metrics = metrics.then(|| registry.clone());
            let dumps = fairness.filter(|_| operators).cloned();
            Ok((
                listen(address)?,
                Arc::new(AdminServer {
                    readiness: Arc::clone(&readiness),
                    metrics,
                    rate_limits: operators.then(|| Arc::clone(&shared.rates)),
                    connection_budget: operators.then(|| shared.budgets.connection_budget.clone()),
                    top_talkers: operators.then(|| Arc::clone(&shared.talkers)),
                    log_level: admin.log_level.clone().filter(|_| operators),
                    flow_controller: dumps,
                    status: operators.then(|| Arc::clone(&status)),
                    zpages: operators.then(|| Arc::clone(&zpages)),
                }),
            ))
        };
        Ok(Self {
            operators: serve(admin.address, true, true)?,
            probes: admin
                .health
                .map(|address| serve(address, admin.health_metrics, false))
                .transpose()?,
            status,
            readiness_poll_after: admin.readiness_poll_after,
        })
    }

    fn run(self) {
        let Self {
            operators,
            probes,
            status,
            readiness_poll_after: unasked,
        } = self;
        tokio::spawn(status.run(unasked));
        for (listener, admin) in std::iter::once(operators).chain(probes) {
            tokio::spawn(admin.run(listener));
        }
    }
}

fn top_talkers(admission: &Admission) -> Arc<TopTalkers> {
    let seats_without_decision = match admission {
        Admission::Fairness(_) => 0,
        Admission::MaxInFlight(_) => 1,
    };
    TopTalkers::new(Clock.now(), seats_without_decision)
}

async fn shut_down(
    drain: &Drain,
    shutdown: ShutdownConfig,
    request_timeout: Duration,
) -> ShutdownOutcome {
    let ShutdownConfig { delay, watch_grace } = shutdown;
    info!(
        delay_seconds = delay.as_secs_f64(),
        "told to go: /readyz fails from now on"
    );
    drain.advance(DrainStage::NotReady);
    // By then load balancers have seen it; what they keep connections for goes elsewhere before the end.
    tokio::time::sleep(delay / 2).await;
    drain.advance(DrainStage::Draining);
    tokio::time::sleep(delay / 2).await;
    info!(
        connections = drain.open_connections(),
        "no new connections; requests under way finish"
    );
    drain.advance(DrainStage::Closing);
    // No request outlives its time, so this wait ends; the time is for those that came last.
    let _ = timeout(request_timeout, drain.requests_done()).await;
    info!(
        watches = drain.open_watches(),
        grace_seconds = watch_grace.as_secs_f64(),
        "watches end"
    );
    drain.end_watches(watch_grace);
    let _ = timeout(watch_grace + CLOSE_TIMEOUT, drain.watches_done()).await;
    let _ = timeout(CLOSE_TIMEOUT, drain.connections_done()).await;
    let (requests, watches) = (drain.open_requests(), drain.open_watches());
    info!(
        requests,
        watches,
        connections = drain.open_connections(),
        "gone; what is still open is cut off"
    );
    if requests == 0 && watches == 0 {
        ShutdownOutcome::Drained
    } else {
        ShutdownOutcome::CutOff
    }
}

/// What the limits need done from time to time.
async fn maintain_limits(admission: Admission) {
    match admission {
        Admission::Fairness(controller) => controller.run().await,
        Admission::MaxInFlight(limiter) => {
            let mut second = tokio::time::interval(PEAK_UPDATE_PERIOD);
            loop {
                second.tick().await;
                limiter.publish_peaks();
            }
        }
    }
}

fn build_admission(limits: AdmissionConfig, registry: &Registry) -> Admission {
    info_metrics::register_dry_run(&limits, registry);
    match limits {
        AdmissionConfig::Fairness { config, objects } => {
            Admission::Fairness(Controller::new(config, &objects, registry))
        }
        AdmissionConfig::MaxInFlight(config) => {
            Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, registry)))
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    acceptor::bind(address)
        .and_then(TcpListener::from_std)
        .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
