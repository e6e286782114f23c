//! The way to the API server: connections, what travels on them, and what went wrong.
//!
//! Promises: a request goes by the [`Way`] that its credential allows and by no other (the types say so); nothing is
//! buffered; a request is sent again only where it cannot have been executed; every failure says whose it is.

pub mod body;
pub mod connection;
pub mod credentials;
pub mod forward;
pub mod headers;
pub mod kubeconfig;
pub mod loop_detection;
pub mod pool;
pub mod tls;

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
use crate::metrics::GaugeGuard;
use crate::metrics::Registry;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connection_budget::SlotHolder;
use crate::upstream::connection::connector::Connector;
use crate::upstream::connection::connector::Protocol;
use crate::upstream::connection::connector::ServerAddress;
use crate::upstream::credentials::CredentialExpired;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::SendContext;
use crate::upstream::headers::AuthMode;
use crate::upstream::headers::External;
use crate::upstream::headers::FrontProxy;
use crate::upstream::headers::Impersonating;
use crate::upstream::headers::Internal;
use crate::upstream::headers::PassThrough;
use crate::upstream::headers::RequestHead;
use crate::upstream::headers::Unverified;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::failure_stats::FailureStats;

/// Where the API server is, and what weir shows it.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Host, port, name and proxy.
    pub address: ServerAddress,
    /// Whom to believe there.
    pub roots: RootCertStore,
    /// The front-proxy certificate, if there is one.
    pub front_proxy: Option<Arc<CertifiedKey>>,
    /// Most HTTP/2 connections for each way, for requests that end (`--upstream-max-connections`).
    pub max_http2_connections: usize,
    /// Most connections for all requests of clients.
    pub max_connections: usize,
    /// What requests list in `CDN-Loop`.
    pub instance_id: InstanceId,
}

/// The API server, by every way that is configured.
#[derive(Debug)]
pub struct Upstream {
    front_proxy: Option<Arc<Pool<FrontProxy>>>,
    impersonating: Option<ImpersonationPool>,
    pass_through: Arc<Pool<PassThrough>>,
    unverified: Arc<Pool<Unverified>>,
    metrics: Arc<UpstreamMetrics>,
}

/// A client's request, dressed for its way.
#[derive(Debug)]
pub enum UpstreamRequest {
    /// In the name of the certificate's user.
    FrontProxy(RequestHead<FrontProxy>),
    /// Likewise, in the name of nobody: kube-apiserver closes an HTTP/2 connection after that, so it goes on none that others share.
    FrontProxyAnonymous(RequestHead<FrontProxy>),
    /// Likewise, by weir's own credentials.
    Impersonating(RequestHead<Impersonating>),
    /// With its own credential, known to be good.
    PassThrough(RequestHead<PassThrough>),
    /// With none, or one that is not known.
    Unverified(RequestHead<Unverified>),
}

impl Upstream {
    /// Pools without connections; requests open them, as far as there are `places`.
    #[must_use]
    pub fn new(
        config: &UpstreamConfig,
        places: &ConnectionBudget,
        impersonator: Option<&Arc<OwnCredentials>>,
        metrics: &Arc<UpstreamMetrics>,
    ) -> Self {
        let resolver = config.front_proxy.as_ref().map(|key| {
            let resolver: Arc<dyn ResolvesClientCert> =
                Arc::new(SingleCertAndKey::from(Arc::clone(key)));
            resolver
        });
        let room = || Some(places.clone());
        Self {
            front_proxy: resolver.map(|resolver| new_pool(config, Some(resolver), room(), metrics)),
            impersonating: impersonator.map(|own| ImpersonationPool {
                pool: new_pool(config, Some(own.certificate_resolver()), room(), metrics),
                certificate_changes: Mutex::new(own.certificate_changes()),
                credentials: Arc::clone(own),
            }),
            pass_through: new_pool(config, None, room(), metrics),
            unverified: new_pool(config, None, Some(places.for_unverified()), metrics),
            metrics: Arc::clone(metrics),
        }
    }

    /// Whether a certificate's user can be asserted.
    #[must_use]
    pub fn can_assert(&self) -> bool {
        self.front_proxy.is_some() || self.impersonating.is_some()
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
    pub fn impersonation_credential(&self) -> Result<Option<HeaderValue>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        own.credentials
            .authorization()
            .map_err(|why| ForwardError::NoCredential(Arc::new(why)))
    }

    /// The upstream has answered 401 to a request that impersonates: weir's own credential is not good.
    pub fn record_impersonation_unauthorized(&self) {
        if let Some(own) = &self.impersonating {
            own.credentials.record_response(StatusCode::UNAUTHORIZED);
        }
    }

    /// Sends a client's request; see [`Pool::send`].
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    pub async fn send(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        place: ConnectionClass,
        errand: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let sent = match request {
            UpstreamRequest::FrontProxy(head) => {
                let sent = self.front_proxy()?.send(head, body, place, errand).await;
                sent.inspect(|answer| self.metrics.record_assertion(answer.status()))
            }
            UpstreamRequest::FrontProxyAnonymous(head) => {
                let pool = self.front_proxy()?;
                pool.send(head, body, place.dedicated(), errand).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pool = self.refreshed_impersonation_pool()?;
                pool.send(head, body, place, errand).await
            }
            UpstreamRequest::PassThrough(head) => {
                self.pass_through.send(head, body, place, errand).await
            }
            UpstreamRequest::Unverified(head) => {
                self.unverified.send(head, body, place, errand).await
            }
        };
        sent.inspect_err(|why| self.metrics.failures.record(why, Clock.now()))
    }

    /// Sends a client's request that asks for another protocol; see [`Pool::send_upgrade`].
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    pub async fn send_upgrade(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        protocol: HeaderValue,
        errand: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let sent = match request {
            UpstreamRequest::FrontProxy(head) | UpstreamRequest::FrontProxyAnonymous(head) => {
                let pool = self.front_proxy()?;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pool = self.refreshed_impersonation_pool()?;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            UpstreamRequest::PassThrough(head) => {
                let pool = &self.pass_through;
                pool.send_upgrade(head, body, protocol, errand).await
            }
            UpstreamRequest::Unverified(head) => {
                let pool = &self.unverified;
                pool.send_upgrade(head, body, protocol, errand).await
            }
        };
        sent.inspect_err(|why| self.metrics.failures.record(why, Clock.now()))
    }

    /// Closes connections that have been idle for long.
    pub fn close_idle(&self, now: Instant) {
        if let Some(asserting) = &self.front_proxy {
            asserting.close_idle(now);
        }
        if let Some(impersonating) = &self.impersonating {
            impersonating.pool.close_idle(now);
        }
        self.pass_through.close_idle(now);
        self.unverified.close_idle(now);
    }

    fn front_proxy(&self) -> Result<&Arc<Pool<FrontProxy>>, ForwardError> {
        // Asked before the request was dressed; a request dressed for a way that is not there goes nowhere.
        self.front_proxy.as_ref().ok_or(ForwardError::Closed)
    }

    fn refreshed_impersonation_pool(&self) -> Result<&Arc<Pool<Impersonating>>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        let mut changes = own
            .certificate_changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            own.pool.retire_all();
        }
        Ok(&own.pool)
    }
}

/// Connections that impersonate, and the credentials that they do it with.
#[derive(Debug)]
struct ImpersonationPool {
    pool: Arc<Pool<Impersonating>>,
    credentials: Arc<OwnCredentials>,
    /// Changes of the certificate, up to which connections were closed. Held for a look.
    certificate_changes: Mutex<watch::Receiver<u64>>,
}

/// Connections by the front-proxy certificate for weir's own probe of it; none without one.
#[must_use]
pub fn front_proxy_pool(
    config: &UpstreamConfig,
    metrics: &Arc<UpstreamMetrics>,
) -> Option<Arc<Pool<FrontProxy>>> {
    let key = config.front_proxy.as_ref()?;
    let resolver = Arc::new(SingleCertAndKey::from(Arc::clone(key)));
    Some(new_pool(config, Some(resolver), None, metrics))
}

/// Connections for weir's own calls.
#[must_use]
pub fn internal_pool(
    config: &UpstreamConfig,
    own: &Arc<OwnCredentials>,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<Internal>> {
    new_pool(config, Some(own.certificate_resolver()), None, metrics)
}

/// Connections to somebody who is no API server, with nothing to show.
#[must_use]
pub fn external_pool(
    target: ServerAddress,
    roots: RootCertStore,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<External>> {
    let connector = Connector::new(target, tls::client_config(roots, None), None);
    Pool::new(connector, 1, None, Arc::clone(metrics))
}

fn new_pool<W: AuthMode>(
    config: &UpstreamConfig,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
    room: Option<ConnectionBudget>,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<W>> {
    let tls = tls::client_config(config.roots.clone(), certificate);
    let connector = Connector::new(config.address.clone(), tls, room);
    let (most, id) = (config.max_http2_connections, config.instance_id.clone());
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
    NoCredential(Arc<CredentialExpired>),
    /// Of this many connections to the API server there is none left for such a request.
    ConnectionLimit(usize),
    /// No stream came free in this time.
    StreamTimeout(Duration),
    /// This one has its share of the places for such requests.
    ShareExceeded(SlotHolder),
    /// The CONNECT proxy failed.
    Proxy(Arc<hyper::Error>),
    /// The CONNECT proxy said no.
    ProxyRejected(StatusCode),
    /// The API server did not begin with the request, and said so.
    Refused(Arc<dyn Error + Send + Sync>),
    /// The connection broke after the request may have been sent.
    Reset(Arc<dyn Error + Send + Sync>),
    /// No TLS: the handshake failed, or the certificate is not the upstream's.
    Tls(Arc<io::Error>),
    /// This many requests wait for a stream already.
    TooManyWaiting(usize),
    /// It changed to a protocol that nobody asked for.
    UnexpectedUpgrade,
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
            Self::Proxy(_) | Self::ProxyRejected(_) => "weir/upstream-proxy",
            Self::Refused(_) => "weir/upstream-refused",
            Self::Reset(_) => "weir/upstream-reset",
            Self::Tls(_) => "weir/upstream-tls",
            Self::ConnectionLimit(_) => "weir/upstream-connections",
            Self::ShareExceeded(_) => "weir/long-running-share",
            Self::StreamTimeout(_) | Self::TooManyWaiting(_) => "weir/upstream-streams",
            Self::UnexpectedUpgrade => "weir/upstream-protocol",
        }
    }

    /// Whether the request cannot have reached the API server, so that the client may simply try again.
    #[must_use]
    pub const fn is_unsent(&self) -> bool {
        match self {
            Self::Closed
            | Self::Connect(_)
            | Self::ConnectTimeout(_)
            | Self::NoCredential(_)
            | Self::ConnectionLimit(_)
            | Self::StreamTimeout(_)
            | Self::Proxy(_)
            | Self::ProxyRejected(_)
            | Self::Refused(_)
            | Self::ShareExceeded(_)
            | Self::Tls(_)
            | Self::TooManyWaiting(_) => true,
            Self::Reset(_) | Self::UnexpectedUpgrade => false,
        }
    }
}

impl ForwardError {
    /// Whether it is worth another try in a moment: what was not sent is, but that whom weir cannot believe now it cannot
    /// believe in a second either; a client that tries ten times would only seem to hang.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        // What is wrong with the peer's handshake, rather than with the connection, is invalid data.
        let disbelieved =
            matches!(self, Self::Tls(why) if why.kind() == io::ErrorKind::InvalidData);
        self.is_unsent() && !disbelieved
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
            Self::ProxyRejected(status) => write!(f, "the proxy on the way refused: {status}"),
            Self::Refused(why) => {
                write!(
                    f,
                    "it did not begin with the request: {}",
                    ErrorChain(&**why)
                )
            }
            Self::Reset(why) => write!(
                f,
                "the connection broke before an answer: {}",
                ErrorChain(&**why)
            ),
            Self::Tls(why) => write!(f, "TLS failed: {why}"),
            Self::ConnectionLimit(most) => write!(
                f,
                "of {most} connections to the API server there is none left for such a request"
            ),
            Self::ShareExceeded(holder) => write!(
                f,
                "{holder} has its share of the connections to the API server for such requests"
            ),
            Self::StreamTimeout(limit) => {
                write!(f, "no stream came free within {}s", limit.as_secs())
            }
            Self::UnexpectedUpgrade => write!(f, "it changed to a protocol that was not asked for"),
            Self::TooManyWaiting(most) => {
                write!(f, "{most} requests wait for a free stream already")
            }
        }
    }
}

/// An error and what caused it, in one line.
struct ErrorChain<'a>(&'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
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
pub struct UpstreamMetrics {
    open_connections: IntGaugeVec,
    connection_attempts: IntCounterVec,
    retries: IntCounter,
    stream_waits: IntCounter,
    failures: FailureStats,
    internal_requests: IntCounterVec,
    unauthorized_assertions: Notify,
}

impl UpstreamMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            open_connections: registry.gauges(
                "weir_upstream_connections",
                "Open connections to the API server, by the way that they serve.",
                &["way"],
            ),
            connection_attempts: registry.counters(
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
            failures: FailureStats::default(),
            unauthorized_assertions: Notify::new(),
            internal_requests: registry.counters(
                "rest_client_requests_total",
                "[ALPHA] Requests of weir's own to the API server, by status code, method, and host; <error> where no answer came.",
                &["code", "host", "method"],
            ),
        })
    }

    fn record_assertion(&self, code: StatusCode) {
        if code == StatusCode::UNAUTHORIZED {
            self.unauthorized_assertions.notify_one();
        }
    }

    /// Waits until a request that asserts a user has been answered 401 since the last wait.
    ///
    /// # Cancel safety
    /// Such an answer ends the next wait.
    pub async fn wait_for_unauthorized_assertion(&self) {
        self.unauthorized_assertions.notified().await;
    }

    /// Requests of clients that got no answer.
    #[must_use]
    pub const fn failures(&self) -> &FailureStats {
        &self.failures
    }

    /// Open connections, by the way that they serve.
    #[must_use]
    pub fn open_connections(&self) -> BTreeMap<String, u64> {
        let mut open = BTreeMap::new();
        for metric in self
            .open_connections
            .collect()
            .iter()
            .flat_map(MetricFamily::get_metric)
        {
            for label in metric.get_label() {
                let count = self
                    .open_connections
                    .with_label_values(&[label.value()])
                    .get();
                open.insert(
                    label.value().to_owned(),
                    count.try_into().unwrap_or_default(),
                );
            }
        }
        open
    }

    fn record_connect(&self, way: &str, tried: Result<Protocol, &ForwardError>) {
        let result = match tried {
            Ok(Protocol::Http1) => "http1",
            Ok(Protocol::Http2) => "http2",
            Err(ForwardError::ConnectionLimit(_) | ForwardError::ShareExceeded(_)) => return, // nothing was tried
            Err(_) => "failed",
        };
        self.connection_attempts
            .with_label_values(&[way, result])
            .inc();
    }

    /// Counts a connection as open until the value is dropped.
    fn count_open(&self, way: &str) -> GaugeGuard {
        GaugeGuard::new(self.open_connections.with_label_values(&[way]))
    }
}
