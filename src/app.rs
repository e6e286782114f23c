//! Puts the parts together, lowest first; binds; runs; and goes away in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients. Going away follows
//! kube-apiserver (`genericapiserver.go`, 1.36): `/readyz` fails; after the delay no new connections, and those that are open are told;
//! requests end; watches end, spread over the grace period; what is left is cut off.

mod authentication;
mod count_calls;
mod facts;
mod object_counts;
mod onlookers;
mod own_calls;
mod own_rights;

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

use crate::app::authentication::Ground;
use crate::app::authentication::Reviews;
use crate::app::authentication::WhoAsks;
use crate::app::authentication::who_asks;
use crate::app::onlookers::Onlookers;
use crate::app::own_calls::AboutItself;
use crate::app::own_calls::OwnCalls;
use crate::clock::Clock;
use crate::config;
use crate::config::Config;
use crate::config::Limits;
use crate::config::Shutdown;
use crate::drain::Drain;
use crate::drain::Stage;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::in_flight::PEAKS_EVERY;
use crate::limits::Admission;
use crate::limits::MaxInFlight;
use crate::limits::rates::Rates;
use crate::limits::upgrades::UpgradeRate;
use crate::metrics::Registry;
use crate::observe::admin::Admin;
use crate::observe::readiness::Readiness;
use crate::observe::status::Status;
use crate::observe::status::counts::Counts;
use crate::observe::status::sources::Sources;
use crate::observe::talkers::Talkers;
use crate::observe::zpages::Zpages;
use crate::pipeline::Pipeline;
use crate::pipeline::heads::HeadBudget;
use crate::pipeline::holding::Holding;
use crate::pipeline::in_flight::GivenUp;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::overdue::SlowTransfers;
use crate::pipeline::prepared::Prepared;
use crate::pipeline::record::Witness;
use crate::pipeline::record::Witnesses;
use crate::pipeline::refusing::SkippedBodies;
use crate::pipeline::request_body::request_bodies;
use crate::pipeline::trace::RequestMetrics;
use crate::server;
use crate::server::accept;
use crate::server::accept::Acceptor;
use crate::server::connection::HANDSHAKE_TIMEOUT;
use crate::server::connection::Serving;
use crate::server::newcomers::Newcomers;
use crate::server::tls;
use crate::server::turns::Turns;
use crate::server::worker::Worker;
use crate::sparingly::Sparingly;
use crate::upstream;
use crate::upstream::Upstream;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::loops::LoopDetector;
use crate::upstream::read_body::Budget;
use crate::upstream::room::PlaceMetrics;
use crate::upstream::room::Room;

/// How long connections may take to close once nothing is under way on them: a GOAWAY and a few round trips.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A proxy that is bound and ready to run.
#[derive(Debug)]
pub struct App {
    acceptor: Acceptor,
    admin: AdminListeners,
    own_calls: OwnCalls,
    reviews: Reviews,
    talkers: Arc<Talkers>,
    admission: Admission,
    onlookers: Onlookers,
    drain: Arc<Drain>,
    shutdown: Shutdown,
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
    fn of(acceptor: &Acceptor, admin: &AdminListeners) -> Result<Self, StartError> {
        Ok(Self {
            clients: local(&acceptor.listener)?,
            admin: local(&admin.operators.0)?,
            health: match &admin.probes {
                Some((listener, _)) => Some(local(listener)?),
                None => None,
            },
        })
    }
}

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request and watch had its end. (Tunnels, which have none, are cut off.)
    Drained,
    /// Some were cut off when their time was over.
    CutOff,
    /// A second order to go cut it short.
    AtOnce,
}

/// Why the proxy cannot start.
#[derive(Debug)]
pub struct StartError {
    what: String,
    why: String,
}

impl StartError {
    fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
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
        let (about, registry, drain) = (AboutItself::of(&config), Registry::new(), Drain::new());
        let Config {
            serving,
            identity,
            limits,
            upstream,
            own,
            admin,
            telling,
            provider,
            ..
        } = config;
        let admission = how_much(limits, &registry);
        let upstream_metrics = upstream::Metrics::register(&registry);
        let checks = about.checks(&upstream, &upstream_metrics, &registry);
        let own = (own, config.object_count_poll_period);
        let asks = OwnCalls::start(own, &upstream, &upstream_metrics, &drain, checks);
        let (own_calls, readiness, server) = asks.await?;
        facts::show(&serving, &upstream, &own_calls.own, &readiness, &registry);
        let ground = Ground::new(server, &upstream_metrics, &registry, &provider);
        let (who, reviews) = who_asks(identity, config.impersonate, ground)?;
        let shared = Shared {
            who,
            rates: Arc::new(Rates::new(&config.rates, &registry)),
            budgets: Budgets::new(config.transfers, upstream.room, &registry),
            admission: admission.clone(),
            refusals: Arc::default(),
            holding: Arc::new(Holding::new(config.rejection_hold, &registry)),
            metrics: RequestMetrics::register(&registry),
            counts: Arc::default(),
            talkers: who_does_most(&admission),
            onlookers: Onlookers::start(telling, &registry)?,
            upstream_log: Arc::default(),
            request_timeout: config.request_timeout,
            drain: Arc::clone(&drain),
            impersonator: config.impersonate.then(|| Arc::clone(&own_calls.own)),
            loops: Arc::clone(&own_calls.loops),
            upstream_metrics,
            upstream,
        };
        let admin = AdminListeners::bind(admin, readiness, &registry, &shared, &serving)?;
        let acceptor = shared.acceptor(serving, config.workers, provider, &registry)?;
        Ok(Self {
            addresses: Addresses::of(&acceptor, &admin)?,
            acceptor,
            admin,
            own_calls,
            reviews,
            talkers: shared.talkers,
            admission,
            onlookers: shared.onlookers,
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
    ) -> Ended {
        let Self {
            acceptor,
            admin,
            own_calls,
            reviews,
            talkers,
            admission,
            onlookers,
            drain,
            shutdown,
            request_timeout,
            addresses: _,
        } = self;
        admin.run();
        own_calls.run(&admission);
        reviews.run();
        tokio::spawn(talkers.run());
        tokio::spawn(keep_limits(admission));
        tokio::spawn(onlookers.clone().run());
        let accepting = tokio::spawn(acceptor.run());
        stop.await;
        let ended = tokio::select! {
            ended = go_away(&drain, shutdown, request_timeout) => ended,
            () = at_once => Ended::AtOnce,
        };
        drain.enter(Stage::Closing); // when it is cut short, the listener ends here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_WITHIN, stopping).await;
        }
        onlookers.finish().await;
        ended
    }
}

/// What all requests together may take of memory.
struct Budgets {
    request_bodies: Arc<Budget>,
    heads: Arc<HeadBudget>,
    skipped_bodies: Arc<SkippedBodies>,
    transfers: config::Transfers,
    slow_transfers: SlowTransfers,
    given_up: IntGauge,
    upgrades: Arc<UpgradeRate>,
    places: Room,
}

impl Budgets {
    /// One worker's.
    fn overdue(&self) -> Arc<Overdue> {
        Overdue::new(self.transfers.least_rate, self.slow_transfers.clone())
    }

    fn new(transfers: config::Transfers, connections: usize, registry: &Registry) -> Self {
        Self {
            transfers,
            slow_transfers: SlowTransfers::register(registry),
            given_up: GivenUp::register(registry),
            upgrades: UpgradeRate::new(transfers.upgrades_per_second, registry),
            places: Room::of(connections, &PlaceMetrics::register(registry)),
            request_bodies: request_bodies(registry),
            heads: HeadBudget::new(registry),
            skipped_bodies: SkippedBodies::new(registry),
        }
    }
}

/// What the workers' pipelines, and the calls of weir's own, share.
struct Shared {
    who: WhoAsks,
    rates: Arc<Rates>,
    budgets: Budgets,
    admission: Admission,
    refusals: Arc<Prepared>,
    holding: Arc<Holding>,
    metrics: Arc<RequestMetrics>,
    counts: Arc<Counts>,
    talkers: Arc<Talkers>,
    onlookers: Onlookers,
    upstream_log: Arc<Sparingly>,
    request_timeout: Duration,
    drain: Arc<Drain>,
    upstream: upstream::Config,
    /// Whose credentials assert a certificate's user, if it is not a front proxy's.
    impersonator: Option<Arc<OwnCredentials>>,
    loops: Arc<LoopDetector>,
    upstream_metrics: Arc<upstream::Metrics>,
}

impl Shared {
    /// Those of one worker, who counts on a desk of its own.
    fn witnesses(&self) -> Witnesses {
        let counts: Arc<dyn Witness> = Arc::<Counts>::clone(&self.counts);
        self.onlookers.witnesses([self.talkers.desk(), counts])
    }

    fn pipeline(&self) -> Pipeline {
        Pipeline {
            identity: Arc::clone(&self.who.identity),
            impersonation: self.who.impersonation.clone(),
            identity_headers: Arc::clone(&self.who.headers),
            rates: Arc::clone(&self.rates),
            request_bodies: Arc::clone(&self.budgets.request_bodies),
            heads: Arc::clone(&self.budgets.heads),
            skipped_bodies: Arc::clone(&self.budgets.skipped_bodies),
            body_buffer: self.budgets.transfers.body_buffer,
            given_up: GivenUp::new(self.budgets.given_up.clone()),
            upgrades: Arc::clone(&self.budgets.upgrades),
            admission: self.admission.clone(),
            loops: Arc::clone(&self.loops),
            upstream: Upstream::new(
                &self.upstream,
                &self.budgets.places,
                self.impersonator.as_ref(),
                &self.upstream_metrics,
            ),
            request_timeout: self.request_timeout,
            refusals: Arc::clone(&self.refusals),
            holding: Arc::clone(&self.holding),
            drain: Arc::clone(&self.drain),
            overdue: self.budgets.overdue(),
            metrics: Arc::clone(&self.metrics),
            witnesses: self.witnesses(),
            sampler: self.onlookers.sampler,
            audits: self.onlookers.audits(),
            explains: self.onlookers.explains,
            upstream_log: Arc::clone(&self.upstream_log),
        }
    }

    fn status(
        &self,
        readiness: &Arc<Readiness>,
        most_connections: usize,
        host: &str,
    ) -> Arc<Status> {
        Status::new(Sources {
            host: host.to_owned(),
            upstream_address: self.upstream.target.authority.to_string(),
            started: Clock.now(),
            drain: Arc::clone(&self.drain),
            readiness: Arc::clone(readiness),
            upstream: Arc::clone(&self.upstream_metrics),
            places: self.budgets.places.clone(),
            admission: self.admission.clone(),
            rates: Arc::clone(&self.rates),
            holding: Arc::clone(&self.holding),
            counts: Arc::clone(&self.counts),
            talkers: Arc::clone(&self.talkers),
            most_connections,
        })
    }

    fn acceptor(
        &self,
        serving: config::Serving,
        workers: usize,
        provider: Arc<CryptoProvider>,
        registry: &Registry,
    ) -> Result<Acceptor, StartError> {
        let tls = tls::server_config(serving.tls, provider)
            .map_err(|why| StartError::new("TLS towards clients", why))?;
        let tls = TlsAcceptor::from(Arc::new(tls));
        let listener = listen(serving.address)?;
        let metrics = server::Metrics::register(registry);
        let trusted: Arc<[IpNet]> = serving.trusted_proxies.into();
        let turns = Turns::new(HANDSHAKE_TIMEOUT, &metrics);
        let start = |number| {
            let serving = Serving {
                pipeline: Arc::new(self.pipeline()),
                drain: Arc::clone(&self.drain),
                max_streams: serving.max_streams,
                trusted: Arc::clone(&trusted),
                proxy_protocol: serving.proxy_protocol,
                turns: Arc::clone(&turns),
                goaway_chance: serving.goaway_chance,
                header_timeout: serving.header_timeout,
                resets_per_second: serving.resets_per_second,
                metrics: metrics.clone(),
            };
            Worker::start(number, tls.clone(), Arc::new(serving))
        };
        let workers: Result<_, _> = (0..workers.max(1)).map(start).collect();
        Ok(Acceptor {
            listener,
            workers: workers.map_err(|why| StartError::new("cannot start a worker", why))?,
            most: serving.max_connections,
            drain: Arc::clone(&self.drain),
            newcomers: Newcomers::none(),
            metrics,
        })
    }
}

/// The listeners for operators, and what each serves.
#[derive(Debug)]
struct AdminListeners {
    operators: (TcpListener, Arc<Admin>),
    probes: Option<(TcpListener, Arc<Admin>)>,
    status: Arc<Status>,
    unasked: Duration,
}

impl AdminListeners {
    fn bind(
        admin: config::Admin,
        readiness: Arc<Readiness>,
        registry: &Registry,
        shared: &Shared,
        serving: &config::Serving,
    ) -> Result<Self, StartError> {
        let host = &admin.effective.host;
        let status = shared.status(&readiness, serving.max_connections, host);
        let zpages = Arc::new(Zpages {
            upstream: shared.upstream.target.authority.to_string(),
            started: (Clock.now(), Clock.wall()),
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
                Arc::new(Admin {
                    readiness: Arc::clone(&readiness),
                    metrics,
                    rates: operators.then(|| Arc::clone(&shared.rates)),
                    places: operators.then(|| shared.budgets.places.clone()),
                    talkers: operators.then(|| Arc::clone(&shared.talkers)),
                    log_level: admin.log_level.clone().filter(|_| operators),
                    dumps,
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
            unasked: admin.unasked,
        })
    }

    fn run(self) {
        let Self {
            operators,
            probes,
            status,
            unasked,
        } = self;
        tokio::spawn(status.run(unasked));
        for (listener, admin) in std::iter::once(operators).chain(probes) {
            tokio::spawn(admin.run(listener));
        }
    }
}

fn who_does_most(admission: &Admission) -> Arc<Talkers> {
    let seats_without_decision = match admission {
        Admission::Fairness(_) => 0,
        Admission::MaxInFlight(_) => 1,
    };
    Talkers::new(Clock.now(), seats_without_decision)
}

async fn go_away(drain: &Drain, shutdown: Shutdown, request_timeout: Duration) -> Ended {
    let Shutdown { delay, watch_grace } = shutdown;
    info!(
        delay_seconds = delay.as_secs_f64(),
        "told to go: /readyz fails from now on"
    );
    drain.enter(Stage::NotReady);
    // By then load balancers have seen it; what they keep connections for goes elsewhere before the end.
    tokio::time::sleep(delay / 2).await;
    drain.enter(Stage::Moving);
    tokio::time::sleep(delay / 2).await;
    info!(
        connections = drain.open_connections(),
        "no new connections; requests under way finish"
    );
    drain.enter(Stage::Closing);
    // No request outlives its time, so this wait ends; the time is for those that came last.
    let _ = timeout(request_timeout, drain.requests_done()).await;
    info!(
        watches = drain.open_watches(),
        grace_seconds = watch_grace.as_secs_f64(),
        "watches end"
    );
    drain.end_watches(watch_grace);
    let _ = timeout(watch_grace + CLOSE_WITHIN, drain.watches_done()).await;
    let _ = timeout(CLOSE_WITHIN, drain.connections_done()).await;
    let (requests, watches) = (drain.open_requests(), drain.open_watches());
    info!(
        requests,
        watches,
        connections = drain.open_connections(),
        "gone; what is still open is cut off"
    );
    if requests == 0 && watches == 0 {
        Ended::Drained
    } else {
        Ended::CutOff
    }
}

/// What the limits need done from time to time.
async fn keep_limits(admission: Admission) {
    match admission {
        Admission::Fairness(controller) => controller.run().await,
        Admission::MaxInFlight(limiter) => {
            let mut second = tokio::time::interval(PEAKS_EVERY);
            loop {
                second.tick().await;
                limiter.publish_peaks();
            }
        }
    }
}

fn how_much(limits: Limits, registry: &Registry) -> Admission {
    facts::show_mode(&limits, registry);
    match limits {
        Limits::Fairness { config, objects } => {
            Admission::Fairness(Controller::new(config, &objects, registry))
        }
        Limits::MaxInFlight(config) => {
            Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, registry)))
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    accept::bind(address)
        .and_then(TcpListener::from_std)
        .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
