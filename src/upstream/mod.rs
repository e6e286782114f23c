//! The way to the API server: connections, what travels on them, and what went wrong.
//!
//! Promises: a request goes by the [`Way`] that its credential allows and by no other (the types say so); nothing is
//! buffered; a request is sent again only where it cannot have been executed; every failure says whose it is.

pub mod address;
pub mod body;
pub mod cdn_loop;
pub mod client_body;
pub mod connector;
pub mod credentials;
pub mod failures;
pub mod forward;
pub mod headers;
mod http1;
mod http2;
pub mod kubeconfig;
pub mod lane;
pub mod loop_probes;
pub mod loops;
pub mod own_calls;
mod ping_schedule;
pub mod pool;
pub mod read_body;
mod resets;
mod retry_budget;
pub mod room;
mod settings;
pub mod shares;
pub mod tls;
pub mod upgrade;
mod upload;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use http::HeaderValue;
use http::Response;
use http::StatusCode;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGaugeVec;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use rustls::RootCertStore;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::sign::SingleCertAndKey;
use tokio::sync::Notify;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::metrics::Counted;
use crate::metrics::Registry;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::cdn_loop::ProcessId;
use crate::upstream::connector::Connector;
use crate::upstream::connector::Protocol;
use crate::upstream::connector::Target;
use crate::upstream::credentials::Expired;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::failures::Failures;
use crate::upstream::forward::Errand;
use crate::upstream::headers::Asserting;
use crate::upstream::headers::Elsewhere;
use crate::upstream::headers::Impersonating;
use crate::upstream::headers::Outbound;
use crate::upstream::headers::Own;
use crate::upstream::headers::PassThrough;
use crate::upstream::headers::Stranger;
use crate::upstream::headers::Way;
use crate::upstream::lane::Place;
use crate::upstream::pool::Pool;
use crate::upstream::room::Holder;
use crate::upstream::room::Room;

/// Where the API server is, and what weir shows it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Host, port, name and proxy.
    pub target: Target,
    /// Whom to believe there.
    pub roots: RootCertStore,
    /// The front-proxy certificate, if there is one.
    pub front_proxy: Option<Arc<CertifiedKey>>,
    /// Most HTTP/2 connections for each way, for requests that end (`--upstream-max-connections`).
    pub most_connections: usize,
    /// Most connections for all requests of clients.
    pub room: usize,
    /// What requests list in `CDN-Loop`.
    pub id: ProcessId,
}

/// The API server, by every way that is configured.
#[derive(Debug)]
pub struct Upstream {
    asserting: Option<Arc<Pool<Asserting>>>,
    impersonating: Option<Impersonators>,
    pass_through: Arc<Pool<PassThrough>>,
    stranger: Arc<Pool<Stranger>>,
    metrics: Arc<Metrics>,
}

/// A client's request, dressed for its way.
#[derive(Debug)]
pub enum Dressed {
    /// In the name of the certificate's user.
    Asserting(Outbound<Asserting>),
    /// Likewise, in the name of nobody: kube-apiserver closes an HTTP/2 connection after that, so it goes on none that others share.
    AssertingNobody(Outbound<Asserting>),
    /// Likewise, by weir's own credentials.
    Impersonating(Outbound<Impersonating>),
    /// With its own credential, known to be good.
    PassThrough(Outbound<PassThrough>),
    /// With none, or one that is not known.
    Stranger(Outbound<Stranger>),
}

impl Upstream {
    /// Pools without connections; requests open them, as far as there are `places`.
    #[must_use]
    pub fn new(
        config: &Config,
        places: &Room,
        impersonator: Option<&Arc<OwnCredentials>>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let resolver = config.front_proxy.as_ref().map(|key| {
            let resolver: Arc<dyn ResolvesClientCert> =
                Arc::new(SingleCertAndKey::from(Arc::clone(key)));
            resolver
        });
        let room = || Some(places.clone());
        Self {
            asserting: resolver.map(|resolver| pool(config, Some(resolver), room(), metrics)),
            impersonating: impersonator.map(|own| Impersonators {
                pool: pool(config, Some(own.certificate_resolver()), room(), metrics),
                changes: Mutex::new(own.certificate_changes()),
                own: Arc::clone(own),
            }),
            pass_through: pool(config, None, room(), metrics),
            stranger: pool(config, None, Some(places.for_unproven()), metrics),
            metrics: Arc::clone(metrics),
        }
    }

    /// Whether a certificate's user can be asserted.
    #[must_use]
    pub fn can_assert(&self) -> bool {
        self.asserting.is_some() || self.impersonating.is_some()
    }

    /// Whether a certificate's user is asserted by impersonation.
    #[must_use]
    pub fn impersonates(&self) -> bool {
        self.impersonating.is_some()
    }

    /// What stands in the `Authorization` of a request that impersonates.
    ///
    /// # Errors
    /// weir's own credential is over, and there is no other.
    pub fn impersonator(&self) -> Result<Option<HeaderValue>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        own.own
            .authorization()
            .map_err(|why| ForwardError::NoCredential(Arc::new(why)))
    }

    /// The upstream has answered 401 to a request that impersonates: weir's own credential is not good.
    pub fn impersonator_refused(&self) {
        if let Some(own) = &self.impersonating {
            own.own.answered(StatusCode::UNAUTHORIZED);
        }
    }

    /// Sends a client's request; see [`Pool::send`].
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    pub async fn send(
        &self,
        request: Dressed,
        body: RequestBody,
        place: Place,
        errand: Errand<'_>,
    ) -> Result<Response<AnswerBody>, ForwardError> {
        let sent = match request {
            Dressed::Asserting(head) => {
                let sent = self.asserting()?.send(head, body, place, errand).await;
                sent.inspect(|answer| self.metrics.asserted(answer.status()))
            }
            Dressed::AssertingNobody(head) => {
                let pool = self.asserting()?;
                pool.send(head, body, place.alone(), errand).await
            }
            Dressed::Impersonating(head) => {
                let pool = self.impersonating()?;
                pool.send(head, body, place, errand).await
            }
            Dressed::PassThrough(head) => self.pass_through.send(head, body, place, errand).await,
            Dressed::Stranger(head) => self.stranger.send(head, body, place, errand).await,
        };
        sent.inspect_err(|why| self.metrics.failures.note(why, Clock.now()))
    }

    /// Sends a client's request that asks for another protocol; see [`Pool::send_upgrade`].
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    pub async fn send_upgrade(
        &self,
        request: Dressed,
        body: RequestBody,
        protocol: HeaderValue,
        errand: Errand<'_>,
    ) -> Result<Response<AnswerBody>, ForwardError> {
        let sent = match request {
            Dressed::Asserting(head) | Dressed::AssertingNobody(head) => {
                let pool = self.asserting()?;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            Dressed::Impersonating(head) => {
                let pool = self.impersonating()?;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            Dressed::PassThrough(head) => {
                let pool = &self.pass_through;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            Dressed::Stranger(head) => {
                let pool = &self.stranger;
                pool.send_upgrade(head, body, protocol, errand).await
            }
        };
        sent.inspect_err(|why| self.metrics.failures.note(why, Clock.now()))
    }

    /// Closes connections that have been idle for long.
    pub fn close_idle(&self, now: Instant) {
        if let Some(asserting) = &self.asserting {
            asserting.close_idle(now);
        }
        if let Some(impersonating) = &self.impersonating {
            impersonating.pool.close_idle(now);
        }
        self.pass_through.close_idle(now);
        self.stranger.close_idle(now);
    }

    fn asserting(&self) -> Result<&Arc<Pool<Asserting>>, ForwardError> {
        // Asked before the request was dressed; a request dressed for a way that is not there goes nowhere.
        self.asserting.as_ref().ok_or(ForwardError::Closed)
    }

    fn impersonating(&self) -> Result<&Arc<Pool<Impersonating>>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        let mut changes = own.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            own.pool.renew();
        }
        Ok(&own.pool)
    }
}

/// Connections that impersonate, and the credentials that they do it with.
#[derive(Debug)]
struct Impersonators {
    pool: Arc<Pool<Impersonating>>,
    own: Arc<OwnCredentials>,
    /// Changes of the certificate, up to which connections were closed. Held for a look.
    changes: Mutex<watch::Receiver<u64>>,
}

/// Connections by the front-proxy certificate for weir's own probe of it; none without one.
#[must_use]
pub fn front_proxy_pool(config: &Config, metrics: &Arc<Metrics>) -> Option<Arc<Pool<Asserting>>> {
    let key = config.front_proxy.as_ref()?;
    let resolver = Arc::new(SingleCertAndKey::from(Arc::clone(key)));
    Some(pool(config, Some(resolver), None, metrics))
}

/// Connections for weir's own calls.
#[must_use]
pub fn own_pool(
    config: &Config,
    own: &Arc<OwnCredentials>,
    metrics: &Arc<Metrics>,
) -> Arc<Pool<Own>> {
    pool(config, Some(own.certificate_resolver()), None, metrics)
}

/// Connections to somebody who is no API server, with nothing to show.
#[must_use]
pub fn elsewhere_pool(
    target: Target,
    roots: RootCertStore,
    metrics: &Arc<Metrics>,
) -> Arc<Pool<Elsewhere>> {
    let connector = Connector::new(target, tls::client_config(roots, None), None);
    Pool::new(connector, 1, None, Arc::clone(metrics))
}

fn pool<W: Way>(
    config: &Config,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
    room: Option<Room>,
    metrics: &Arc<Metrics>,
) -> Arc<Pool<W>> {
    let tls = tls::client_config(config.roots.clone(), certificate);
    let connector = Connector::new(config.target.clone(), tls, room);
    let (most, id) = (config.most_connections, config.id.clone());
    Pool::new(connector, most, Some(id), Arc::clone(metrics))
}

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub enum ForwardError {
    /// The connection was closed before the request could be sent.
    Closed,
    /// No TCP connection.
    Connect(Arc<io::Error>),
    /// No connection in this time.
    ConnectTimeout(Duration),
    /// weir's own credential is over.
    NoCredential(Arc<Expired>),
    /// Of this many connections to the API server there is none left for such a request.
    NoRoom(usize),
    /// No stream came free in this time.
    NoStream(Duration),
    /// This one has its share of the places for such requests.
    Share(Holder),
    /// The CONNECT proxy failed.
    Proxy(Arc<hyper::Error>),
    /// The CONNECT proxy said no.
    ProxyRefused(StatusCode),
    /// The API server did not begin with the request, and said so.
    Refused(Arc<dyn Error + Send + Sync>),
    /// The connection broke after the request may have been sent.
    Reset(Arc<dyn Error + Send + Sync>),
    /// No TLS: the handshake failed, or the certificate is not the upstream's.
    Tls(Arc<io::Error>),
    /// This many requests wait for a stream already.
    TooManyWaiting(usize),
    /// It changed to a protocol that nobody asked for.
    Unasked,
}

impl ForwardError {
    pub(crate) fn reset(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Reset(Arc::new(error))
    }

    pub(crate) fn refused(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Refused(Arc::new(error))
    }

    /// The value of the cause that a client sees, and of the log's `reason`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Closed => "weir/upstream-closed",
            Self::Connect(_) => "weir/upstream-connect",
            Self::ConnectTimeout(_) => "weir/upstream-connect-timeout",
            Self::NoCredential(_) => "weir/own-credentials",
            Self::Proxy(_) | Self::ProxyRefused(_) => "weir/upstream-proxy",
            Self::Refused(_) => "weir/upstream-refused",
            Self::Reset(_) => "weir/upstream-reset",
            Self::Tls(_) => "weir/upstream-tls",
            Self::NoRoom(_) => "weir/upstream-connections",
            Self::Share(_) => "weir/long-running-share",
            Self::NoStream(_) | Self::TooManyWaiting(_) => "weir/upstream-streams",
            Self::Unasked => "weir/upstream-protocol",
        }
    }

    /// Whether the request cannot have reached the API server, so that the client may simply try again.
    #[must_use]
    pub const fn unsent(&self) -> bool {
        match self {
            Self::Closed
            | Self::Connect(_)
            | Self::ConnectTimeout(_)
            | Self::NoCredential(_)
            | Self::NoRoom(_)
            | Self::NoStream(_)
            | Self::Proxy(_)
            | Self::ProxyRefused(_)
            | Self::Refused(_)
            | Self::Share(_)
            | Self::Tls(_)
            | Self::TooManyWaiting(_) => true,
            Self::Reset(_) | Self::Unasked => false,
        }
    }
}

impl ForwardError {
    /// Whether it is worth another try in a moment: what was not sent is, but that whom weir cannot believe now it cannot
    /// believe in a second either; a client that tries ten times would only seem to hang.
    #[must_use]
    pub fn passes(&self) -> bool {
        // What is wrong with the peer's handshake, rather than with the connection, is invalid data.
        let disbelieved =
            matches!(self, Self::Tls(why) if why.kind() == io::ErrorKind::InvalidData);
        self.unsent() && !disbelieved
    }
}

impl From<hyper::Error> for ForwardError {
    fn from(error: hyper::Error) -> Self {
        Self::reset(error)
    }
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the connection was closing"),
            Self::Connect(why) => write!(f, "cannot connect: {why}"),
            Self::ConnectTimeout(limit) => write!(f, "no connection within {}s", limit.as_secs()),
            Self::NoCredential(why) => why.fmt(f),
            Self::Proxy(why) => write!(f, "the proxy on the way failed: {why}"),
            Self::ProxyRefused(status) => write!(f, "the proxy on the way refused: {status}"),
            Self::Refused(why) => {
                write!(f, "it did not begin with the request: {}", Chain(&**why))
            }
            Self::Reset(why) => write!(
                f,
                "the connection broke before an answer: {}",
                Chain(&**why)
            ),
            Self::Tls(why) => write!(f, "TLS failed: {why}"),
            Self::NoRoom(most) => write!(
                f,
                "of {most} connections to the API server there is none left for such a request"
            ),
            Self::Share(holder) => write!(
                f,
                "{holder} has its share of the connections to the API server for such requests"
            ),
            Self::NoStream(limit) => write!(f, "no stream came free within {}s", limit.as_secs()),
            Self::Unasked => write!(f, "it changed to a protocol that was not asked for"),
            Self::TooManyWaiting(most) => {
                write!(f, "{most} requests wait for a free stream already")
            }
        }
    }
}

/// An error and what caused it, in one line.
struct Chain<'a>(&'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// What is counted here.
#[derive(Debug)]
pub struct Metrics {
    connections: IntGaugeVec,
    connects: IntCounterVec,
    retries: IntCounter,
    stream_waits: IntCounter,
    failures: Failures,
    own_requests: IntCounterVec,
    unauthorized_assertions: Notify,
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            connections: registry.gauges(
                "weir_upstream_connections",
                "Open connections to the API server, by the way that they serve.",
                &["way"],
            ),
            connects: registry.counters(
                "weir_upstream_connects_total",
                "Connections to the API server that were tried, by way and result (http1, http2, failed).",
                &["way", "result"],
            ),
            retries: registry.counter(
                "weir_upstream_retries_total",
                "Requests sent again because the API server cannot have executed them.",
            ),
            stream_waits: registry.counter(
                "weir_upstream_stream_waits_total",
                "Requests that had to wait for a connection or a free HTTP/2 stream to the API server.",
            ),
            failures: Failures::default(),
            unauthorized_assertions: Notify::new(),
            own_requests: registry.counters(
                "rest_client_requests_total",
                "[ALPHA] Requests of weir's own to the API server, by status code, method, and host; <error> where no answer came.",
                &["code", "host", "method"],
            ),
        })
    }

    fn asserted(&self, code: StatusCode) {
        if code == StatusCode::UNAUTHORIZED {
            self.unauthorized_assertions.notify_one();
        }
    }

    /// Waits until a request that asserts a user has been answered 401 since the last wait.
    ///
    /// # Cancel safety
    /// Such an answer ends the next wait.
    pub async fn unauthorized_assertion(&self) {
        self.unauthorized_assertions.notified().await;
    }

    /// Requests of clients that got no answer.
    #[must_use]
    pub const fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Open connections, by the way that they serve.
    #[must_use]
    pub fn connections(&self) -> BTreeMap<String, u64> {
        let mut open = BTreeMap::new();
        for metric in self
            .connections
            .collect()
            .iter()
            .flat_map(MetricFamily::get_metric)
        {
            for label in metric.get_label() {
                let count = self.connections.with_label_values(&[label.value()]).get();
                open.insert(
                    label.value().to_owned(),
                    count.try_into().unwrap_or_default(),
                );
            }
        }
        open
    }

    fn connected(&self, way: &str, tried: Result<Protocol, &ForwardError>) {
        let result = match tried {
            Ok(Protocol::Http1) => "http1",
            Ok(Protocol::Http2) => "http2",
            Err(ForwardError::NoRoom(_) | ForwardError::Share(_)) => return, // nothing was tried
            Err(_) => "failed",
        };
        self.connects.with_label_values(&[way, result]).inc();
    }

    /// Counts a connection as open until the value is dropped.
    fn open(&self, way: &str) -> Counted {
        Counted::one_more(self.connections.with_label_values(&[way]))
    }
}
