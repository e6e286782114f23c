//! The way to the API server: connections, the requests and responses on them, and why a request
//! failed.
//!
//! Promises: a request goes only onto connections of the [`AuthMode`] that its credential allows
//! (the types say so). Nothing is buffered. A request is sent again only if the API server cannot
//! have executed it. Every failure says which side caused it.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `loop_detection` `requester` `tls` |
//! | 1 | `credentials` `headers` |
//! | 2 | `body` `error` |
//! | 3 | `connection` |
//! | 4 | `kubeconfig` `pool` |
//! | 5 | `forward` |

pub mod body;
pub mod connection;
pub mod credentials;
pub mod error;
pub mod forward;
pub mod headers;
pub mod kubeconfig;
pub mod loop_detection;
pub mod pool;
pub mod requester;
pub mod tls;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use rustls::RootCertStore;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::sign::SingleCertAndKey;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connector::Connector;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::send::SendContext;
use crate::upstream::headers::auth_mode::AuthMode;
use crate::upstream::headers::auth_mode::FrontProxy;
use crate::upstream::headers::auth_mode::Impersonating;
use crate::upstream::headers::auth_mode::Internal;
use crate::upstream::headers::auth_mode::PassThrough;
use crate::upstream::headers::auth_mode::Unverified;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;

pub use error::ForwardError;
pub use pool::metrics::UpstreamMetrics;

/// The address of the API server, and what weir presents to it.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Host, port, name in the certificate, and proxy.
    pub address: ServerAddress,
    /// The roots that its certificate is verified against.
    pub roots: RootCertStore,
    /// The front-proxy certificate and its key, if configured.
    pub front_proxy: Option<Arc<CertifiedKey>>,
    /// Most HTTP/2 connections of each pool for short requests (`--upstream-max-connections`).
    pub max_http2_connections: usize,
    /// Most connections for all requests of clients.
    pub max_connections: usize,
    /// The id that requests list in `CDN-Loop`.
    pub instance_id: InstanceId,
}

impl UpstreamConfig {
    /// Whether connections go to the same server, which is verified by the same roots.
    #[must_use]
    pub fn has_same_server(&self, other: &Self) -> bool {
        self.address == other.address && self.roots.roots == other.roots.roots
    }

    /// Whether connections present the same front-proxy certificate.
    #[must_use]
    pub fn has_same_front_proxy(&self, other: &Self) -> bool {
        let certificate = |config: &Self| config.front_proxy.as_ref().map(|key| key.cert.clone());
        certificate(self) == certificate(other)
    }

    fn front_proxy_resolver(&self) -> Option<Arc<dyn ResolvesClientCert>> {
        let key = self.front_proxy.as_ref()?;
        Some(Arc::new(SingleCertAndKey::from(Arc::clone(key))))
    }
}

/// The API server: one connection pool for each [`AuthMode`] that is configured.
#[derive(Debug)]
pub struct Upstream {
    front_proxy: ArcSwapOption<Pool<FrontProxy>>,
    impersonating: ArcSwapOption<ImpersonationPool>,
    pass_through: Arc<Pool<PassThrough>>,
    unverified: Arc<Pool<Unverified>>,
    /// For pools that a reload adds.
    budget: ConnectionBudget,
    metrics: Arc<UpstreamMetrics>,
}

/// The head of a client's request, with the [`AuthMode`] that it is sent by.
#[derive(Debug)]
pub enum UpstreamRequest {
    /// Sent with the front-proxy certificate; headers name the user.
    FrontProxy(RequestHead<FrontProxy>),
    /// Likewise, for an anonymous user. kube-apiserver closes an HTTP/2 connection after such a
    /// request, so it never goes onto a shared one.
    FrontProxyAnonymous(RequestHead<FrontProxy>),
    /// Sent with weir's own credentials, which impersonate the user.
    Impersonating(RequestHead<Impersonating>),
    /// Sent with the client's own credential, which was verified.
    PassThrough(RequestHead<PassThrough>),
    /// Sent with no credential, or with one that was not verified.
    Unverified(RequestHead<Unverified>),
}

impl Upstream {
    /// Pools without connections. Requests open connections as far as `budget` allows.
    #[must_use]
    pub fn new(
        config: &UpstreamConfig,
        budget: &ConnectionBudget,
        impersonator: Option<&Arc<OwnCredentials>>,
        metrics: &Arc<UpstreamMetrics>,
    ) -> Self {
        let upstream = Self {
            front_proxy: ArcSwapOption::empty(),
            impersonating: ArcSwapOption::empty(),
            pass_through: new_pool(config, None, Some(budget.clone()), metrics),
            unverified: new_pool(config, None, Some(budget.for_unverified()), metrics),
            budget: budget.clone(),
            metrics: Arc::clone(metrics),
        };
        upstream.set_front_proxy(config);
        upstream.set_impersonator(config, impersonator);
        upstream
    }

    /// Opens connections as `config` says from now on. Retires those that `earlier`, which was in
    /// force, has opened otherwise: their requests finish.
    pub fn reconfigure(
        &self,
        config: &UpstreamConfig,
        earlier: &UpstreamConfig,
        impersonator: Option<&Arc<OwnCredentials>>,
    ) {
        let same_server = config.has_same_server(earlier);
        if !same_server {
            reconfigure_pool(&self.pass_through, config, None);
            reconfigure_pool(&self.unverified, config, None);
        }
        if !same_server || !config.has_same_front_proxy(earlier) {
            match (&*self.front_proxy.load(), config.front_proxy_resolver()) {
                (Some(pool), Some(resolver)) => reconfigure_pool(pool, config, Some(resolver)),
                _ => self.set_front_proxy(config),
            }
        }
        let impersonating = self.impersonating.load();
        match (&*impersonating, impersonator) {
            (Some(own), Some(_)) if same_server => {
                own.pool
                    .set_max_http2_connections(config.max_http2_connections);
            }
            (Some(own), Some(impersonator)) => {
                let resolver = impersonator.certificate_resolver();
                reconfigure_pool(&own.pool, config, Some(resolver));
            }
            (None, None) => {}
            _ => self.set_impersonator(config, impersonator),
        }
        let max = config.max_http2_connections;
        self.pass_through.set_max_http2_connections(max);
        self.unverified.set_max_http2_connections(max);
        if let Some(pool) = &*self.front_proxy.load() {
            pool.set_max_http2_connections(max);
        }
    }

    fn set_front_proxy(&self, config: &UpstreamConfig) {
        let pool = config.front_proxy_resolver().map(|resolver| {
            let budget = Some(self.budget.clone());
            new_pool(config, Some(resolver), budget, &self.metrics)
        });
        self.front_proxy.store(pool);
    }

    fn set_impersonator(
        &self,
        config: &UpstreamConfig,
        impersonator: Option<&Arc<OwnCredentials>>,
    ) {
        let pool = impersonator.map(|own| {
            let (resolver, budget) = (own.certificate_resolver(), Some(self.budget.clone()));
            Arc::new(ImpersonationPool {
                pool: new_pool(config, Some(resolver), budget, &self.metrics),
                certificate_changes: Mutex::new(own.certificate_changes()),
                credentials: Arc::clone(own),
            })
        });
        self.impersonating.store(pool);
    }

    /// Whether weir can assert a user: by the front-proxy certificate or by impersonation.
    #[must_use]
    pub fn can_assert(&self) -> bool {
        self.front_proxy.load().is_some() || self.impersonates()
    }

    /// Whether weir asserts users by impersonation.
    #[must_use]
    pub fn impersonates(&self) -> bool {
        self.impersonating.load().is_some()
    }

    /// The `Authorization` header of a request that impersonates.
    ///
    /// # Errors
    /// weir's own credential has expired, and no new one was obtained.
    pub fn impersonation_credential(&self) -> Result<Option<HeaderValue>, ForwardError> {
        let own = self.impersonating.load_full().ok_or(ForwardError::Closed)?;
        own.credentials
            .authorization()
            .map_err(|error| ForwardError::NoCredential(Arc::new(error)))
    }

    /// Records that the API server answered 401 to a request that impersonates: weir's own
    /// credential is not accepted.
    pub fn record_impersonation_unauthorized(&self) {
        if let Some(own) = &*self.impersonating.load() {
            own.credentials.record_response(StatusCode::UNAUTHORIZED);
        }
    }

    /// Sends a client's request; see [`Pool::send`].
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    pub async fn send(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        class: ConnectionClass,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let response = match request {
            UpstreamRequest::FrontProxy(head) => {
                let response = self.front_proxy()?.send(head, body, class, context).await;
                response.inspect(|response| self.metrics.record_assertion(response.status()))
            }
            UpstreamRequest::FrontProxyAnonymous(head) => {
                let pool = self.front_proxy()?;
                pool.send(head, body, class.dedicated(), context).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pool = self.refreshed_impersonation_pool()?;
                pool.send(head, body, class, context).await
            }
            UpstreamRequest::PassThrough(head) => {
                self.pass_through.send(head, body, class, context).await
            }
            UpstreamRequest::Unverified(head) => {
                self.unverified.send(head, body, class, context).await
            }
        };
        response.inspect_err(|error| self.metrics.failures.record(error, Clock.now()))
    }

    /// Sends a client's request that asks for a protocol upgrade; see [`Pool::send_upgrade`].
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    pub async fn send_upgrade(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        protocol: HeaderValue,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let response = match request {
            UpstreamRequest::FrontProxy(head) | UpstreamRequest::FrontProxyAnonymous(head) => {
                let pool = self.front_proxy()?;
                pool.send_upgrade(head, body, protocol, context).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pool = self.refreshed_impersonation_pool()?;
                pool.send_upgrade(head, body, protocol, context).await
            }
            UpstreamRequest::PassThrough(head) => {
                let pool = &self.pass_through;
                pool.send_upgrade(head, body, protocol, context).await
            }
            UpstreamRequest::Unverified(head) => {
                let pool = &self.unverified;
                pool.send_upgrade(head, body, protocol, context).await
            }
        };
        response.inspect_err(|error| self.metrics.failures.record(error, Clock.now()))
    }

    /// Closes connections that have been idle for 45 s.
    pub fn close_idle(&self, now: Instant) {
        if let Some(front_proxy) = &*self.front_proxy.load() {
            front_proxy.close_idle(now);
        }
        if let Some(impersonating) = &*self.impersonating.load() {
            impersonating.pool.close_idle(now);
        }
        self.pass_through.close_idle(now);
        self.unverified.close_idle(now);
    }

    fn front_proxy(&self) -> Result<Arc<Pool<FrontProxy>>, ForwardError> {
        // The pipeline checks `can_assert` before it builds the head. A head whose pool does not
        // exist is not sent.
        self.front_proxy.load_full().ok_or(ForwardError::Closed)
    }

    fn refreshed_impersonation_pool(&self) -> Result<Arc<Pool<Impersonating>>, ForwardError> {
        let own = self.impersonating.load();
        let own = own.as_ref().ok_or(ForwardError::Closed)?;
        let mut changes = own.certificate_changes.lock();
        if changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            own.pool.retire_all();
        }
        Ok(Arc::clone(&own.pool))
    }
}

/// The pool of connections that impersonate, and the credentials that they use.
#[derive(Debug)]
struct ImpersonationPool {
    pool: Arc<Pool<Impersonating>>,
    credentials: Arc<OwnCredentials>,
    /// The certificate changes that the pool has followed. The lock is held for one check.
    certificate_changes: Mutex<watch::Receiver<u64>>,
}

/// A pool with the front-proxy certificate for weir's own probe of it; none without a certificate.
#[must_use]
pub fn front_proxy_pool(
    config: &UpstreamConfig,
    metrics: &Arc<UpstreamMetrics>,
) -> Option<Arc<Pool<FrontProxy>>> {
    let resolver = config.front_proxy_resolver()?;
    Some(new_pool(config, Some(resolver), None, metrics))
}

/// A pool for weir's own calls.
#[must_use]
pub fn internal_pool(
    config: &UpstreamConfig,
    own: &Arc<OwnCredentials>,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<Internal>> {
    new_pool(config, Some(own.certificate_resolver()), None, metrics)
}

/// Directs weir's own calls to the server of `config`.
pub fn reconfigure_internal_pool(
    pool: &Pool<Internal>,
    config: &UpstreamConfig,
    own: &Arc<OwnCredentials>,
) {
    reconfigure_pool(pool, config, Some(own.certificate_resolver()));
}

fn reconfigure_pool<M: AuthMode>(
    pool: &Pool<M>,
    config: &UpstreamConfig,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
) {
    let tls = tls::client_config(config.roots.clone(), certificate);
    let connector = pool.connector().with(config.address.clone(), tls);
    pool.reconfigure(connector);
}

fn new_pool<M: AuthMode>(
    config: &UpstreamConfig,
    certificate: Option<Arc<dyn ResolvesClientCert>>,
    budget: Option<ConnectionBudget>,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<M>> {
    let tls = tls::client_config(config.roots.clone(), certificate);
    let connector = Connector::new(config.address.clone(), tls, budget);
    let instance_id = Some(config.instance_id.clone());
    Pool::new(
        connector,
        config.max_http2_connections,
        instance_id,
        Arc::clone(metrics),
    )
}
