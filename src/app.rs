//! Puts the parts together, lowest first; binds; runs; and goes away in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients. Going away follows
//! kube-apiserver (`genericapiserver.go`, 1.36): `/readyz` fails; after the delay no new connections, and those that are open are told;
//! requests end; watches end, spread over the grace period; what is left is cut off.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::info;

use crate::config::Config;
use crate::config::Shutdown;
use crate::drain::Drain;
use crate::drain::Stage;
use crate::identity::ClientCertificates;
use crate::identity::Identity;
use crate::identity::ProvenTokens;
use crate::limits::Admission;
use crate::limits::MaxInFlight;
use crate::metrics::Registry;
use crate::observe::admin::Admin;
use crate::observe::readiness::Readiness;
use crate::pipeline::Pipeline;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::refusal::Prepared;
use crate::pipeline::trace::RequestMetrics;
use crate::server;
use crate::server::accept;
use crate::server::accept::Acceptor;
use crate::server::connection::Serving;
use crate::server::tls;
use crate::server::worker::Worker;
use crate::upstream;
use crate::upstream::Upstream;
use crate::upstream::connector::Connector;
use crate::upstream::pool::Pool;

/// `maintainInFlightWatermark`'s period.
const PEAKS_EVERY: Duration = Duration::from_secs(1);

/// How long connections may take to close once nothing is under way on them: a GOAWAY and a few round trips.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A proxy that is bound and ready to run.
#[derive(Debug)]
pub struct App {
    acceptor: Acceptor,
    admin: Vec<(TcpListener, Arc<Admin>)>,
    limiter: Arc<MaxInFlight>,
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
}

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything under way had its end.
    Drained,
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
    pub fn bind(config: Config) -> Result<Self, StartError> {
        let Config {
            serving,
            identity,
            limits,
            request_timeout,
            upstream,
            shutdown,
            admin,
            workers,
            provider,
        } = config;
        let registry = Registry::new();
        let drain = Drain::new();

        let tls = tls::server_config(serving.tls, Arc::clone(&provider))
            .map_err(|why| StartError::new("--tls-cert-file and --tls-private-key-file", why))?;
        let certificates = identity
            .client_ca
            .map(|roots| ClientCertificates::new(roots, provider))
            .transpose()
            .map_err(|why| StartError::new("--client-ca-file", why))?;
        let limiter = Arc::new(MaxInFlight::new(limits, &registry));
        let upstream_metrics = upstream::Metrics::register(&registry);
        let server_metrics = server::Metrics::register(&registry);
        let shared = Shared {
            identity: Arc::new(Identity::new(certificates, identity.tokens)),
            proven: Arc::default(),
            refusals: Arc::new(Prepared::new(limiter.rejections())),
            metrics: RequestMetrics::register(&registry),
        };

        let bound = accept::bind(serving.address)
            .and_then(TcpListener::from_std)
            .map_err(|why| StartError::new(format!("cannot listen on {}", serving.address), why))?;
        let own = Pool::new(
            Connector::new(Arc::new(upstream.target.clone()), upstream.own.clone()),
            upstream.most_connections,
            Arc::clone(&upstream_metrics),
        );
        let readiness = Arc::new(Readiness::new(own, Arc::clone(&drain)));
        let admin_listeners = bind_admin(admin, &readiness, &registry)?;
        let addresses = Addresses {
            clients: local(&bound)?,
            admin: admin_listeners
                .first()
                .map_or(Ok(admin.address), |(listener, _)| local(listener))?,
        };

        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let workers = (0..workers.max(1)).map(|number| {
            let pipeline = Pipeline {
                identity: Arc::clone(&shared.identity),
                proven: Arc::clone(&shared.proven),
                identity_headers: Arc::new(identity.headers.clone()),
                admission: Admission::MaxInFlight(Arc::clone(&limiter)),
                upstream: Arc::new(Upstream::new(upstream.clone(), &upstream_metrics)),
                request_timeout,
                refusals: Arc::clone(&shared.refusals),
                drain: Arc::clone(&drain),
                overdue: Arc::new(Overdue::default()),
                metrics: Arc::clone(&shared.metrics),
            };
            let serving = Arc::new(Serving {
                pipeline: Arc::new(pipeline),
                drain: Arc::clone(&drain),
                max_streams: serving.max_streams,
                goaway_chance: serving.goaway_chance,
                metrics: server_metrics.clone(),
            });
            Worker::start(number, acceptor.clone(), serving)
        });
        let workers = workers
            .collect::<io::Result<Vec<_>>>()
            .map_err(|why| StartError::new("cannot start a worker", why))?;
        let acceptor = Acceptor {
            listener: bound,
            workers,
            most: serving.max_connections,
            trusted: serving.trusted_proxies,
            drain: Arc::clone(&drain),
            metrics: server_metrics,
        };
        Ok(Self {
            acceptor,
            admin: admin_listeners,
            limiter,
            drain,
            shutdown,
            request_timeout,
            addresses,
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
            limiter,
            drain,
            shutdown,
            request_timeout,
            addresses: _,
        } = self;
        for (listener, admin) in admin {
            tokio::spawn(admin.run(listener));
        }
        tokio::spawn(publish_peaks(limiter));
        let accepting = tokio::spawn(acceptor.run());
        stop.await;
        let drained = go_away(&drain, shutdown, request_timeout);
        let ended = tokio::select! {
            () = drained => Ended::Drained,
            () = at_once => Ended::AtOnce,
        };
        drain.enter(Stage::Closing); // when it is cut short, the listener ends here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_WITHIN, stopping).await;
        }
        ended
    }
}

/// What the workers share, beside the counts of the limits.
struct Shared {
    identity: Arc<Identity>,
    proven: Arc<ProvenTokens>,
    refusals: Arc<Prepared>,
    metrics: Arc<RequestMetrics>,
}

async fn go_away(drain: &Drain, shutdown: Shutdown, request_timeout: Duration) {
    let Shutdown { delay, watch_grace } = shutdown;
    info!(
        delay_seconds = delay.as_secs_f64(),
        "told to go: /readyz fails from now on"
    );
    drain.enter(Stage::NotReady);
    tokio::time::sleep(delay).await;
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
    info!(
        connections = drain.open_connections(),
        "gone; what is still open is cut off"
    );
}

async fn publish_peaks(limiter: Arc<MaxInFlight>) {
    let mut second = tokio::time::interval(PEAKS_EVERY);
    loop {
        second.tick().await;
        limiter.publish_peaks();
    }
}

fn bind_admin(
    admin: crate::config::Admin,
    readiness: &Arc<Readiness>,
    registry: &Registry,
) -> Result<Vec<(TcpListener, Arc<Admin>)>, StartError> {
    let health = admin.health.map(|address| (address, admin.health_metrics));
    let listeners = std::iter::once((admin.address, true)).chain(health);
    listeners
        .map(|(address, metrics)| {
            let listener = accept::bind(address)
                .and_then(TcpListener::from_std)
                .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))?;
            let metrics = metrics.then(|| registry.clone());
            Ok((
                listener,
                Arc::new(Admin {
                    readiness: Arc::clone(readiness),
                    metrics,
                }),
            ))
        })
        .collect()
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
