//! The way to the API server: connections, the requests and responses on them, and why a request
//! failed.
//!
//! Promises: a request goes only onto connections of the
//! [`AuthMode`](headers::auth_mode::AuthMode) that its credential allows (the types say so). Nothing
//! is buffered. A request is sent again only if the API server cannot have executed it. Every failure
//! says which side caused it.

pub mod body;
pub mod connection;
pub mod credentials;
pub(crate) mod forward;
pub(crate) mod front_proxy_trust;
pub(crate) mod headers;
pub(crate) mod kubeconfig;
pub mod loop_detection;
pub(crate) mod pool;
pub(crate) mod requester;
pub(crate) mod servers;
pub mod tls;

use parking_lot::Mutex;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::{HeaderValue, Response, StatusCode};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::forward::send::SendContext;
use crate::upstream::forward::server_pools::{PoolSettings, PresentedCertificate, ServerPools};
use crate::upstream::headers::auth_mode::{
    FrontProxy, Impersonating, Internal, PassThrough, Unverified,
};
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::pool_limits::PoolLimits;
use crate::upstream::requester::SlotHolder;
use crate::upstream::servers::server_set::ServerSet;
use crate::upstream::servers::sources::UpstreamTls;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_io::pauses::ServerLoad;
use weir_x509::CertificatePool;

pub(crate) use connection::error::ForwardError;
pub use pool::metrics::UpstreamMetrics;
pub use pool::pool_limits::UpstreamProtocol;

/// Longest time that a 401 to weir's own credential waits for a probe with it.
const CREDENTIAL_PATIENCE: Duration = Duration::from_secs(2);

/// The API servers, and what weir presents to them.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The configured servers, at least one. A name with several addresses is as many servers.
    pub servers: Vec<ServerAddress>,
    /// Whether the EndpointSlices of the Service `kubernetes` name the servers
    /// (`--upstream-endpoint-slices`).
    pub endpoint_slices: bool,
    /// The roots that their certificates are verified against.
    pub roots: CertificatePool,
    /// The front-proxy certificate and its key, if configured.
    pub front_proxy: Option<Arc<CertifiedKey>>,
    /// Most HTTP/2 connections of each pool for short requests (`--upstream-max-connections`).
    pub max_http2_connections: usize,
    /// The HTTP version of requests that end (`--upstream-protocol`).
    pub protocol: UpstreamProtocol,
    /// Most connections for all requests of clients.
    pub max_connections: usize,
    /// The id that requests list in `CDN-Loop`.
    pub instance_id: InstanceId,
    /// The interval of probes. A server gets no request before its `/readyz` has passed, at the start
    /// and after an outage. With `None` servers are not probed, and get requests at once. No flag.
    pub probe_interval: Option<Duration>,
}

impl UpstreamConfig {
    /// Whether connections go to the same servers, which are verified by the same roots.
    #[must_use]
    pub(crate) fn has_same_servers(&self, other: &Self) -> bool {
        let sources = |config: &Self| (config.servers.clone(), config.endpoint_slices);
        sources(self) == sources(other) && self.roots == other.roots
    }

    /// Whether a server is configured in both, so that both are of one cluster.
    #[must_use]
    pub(crate) fn has_server_in_common(&self, other: &Self) -> bool {
        let names = |config: &Self| -> Vec<_> {
            let servers = config.servers.iter();
            servers.map(|server| server.authority.clone()).collect()
        };
        let others = names(other);
        names(self).iter().any(|server| others.contains(server))
    }

    /// Whether connections present the same front-proxy certificate.
    #[must_use]
    pub(crate) fn has_same_front_proxy(&self, other: &Self) -> bool {
        let certificate = |config: &Self| config.front_proxy.as_ref().map(|key| key.cert.clone());
        certificate(self) == certificate(other)
    }

    /// The configured servers for operators: HOST:PORT, separated by commas.
    #[must_use]
    pub(crate) fn authorities(&self) -> String {
        let servers = self.servers.iter();
        let names: Vec<_> = servers.map(|server| server.authority.as_str()).collect();
        names.join(",")
    }

    fn tls(&self) -> UpstreamTls {
        UpstreamTls {
            roots: Arc::new(self.roots.clone()),
            front_proxy: self.front_proxy.clone(),
        }
    }

    fn pool_settings(
        &self,
        certificate: PresentedCertificate,
        budget: Option<ConnectionBudget>,
        metrics: &Arc<UpstreamMetrics>,
    ) -> PoolSettings {
        PoolSettings {
            certificate,
            budget,
            limits: Arc::new(PoolLimits::new(self.max_http2_connections, self.protocol)),
            instance_id: self.instance_id.clone(),
            metrics: Arc::clone(metrics),
        }
    }
}

/// The API servers of a configuration, which all workers share. Registers their metrics.
#[must_use]
pub fn server_set(config: &UpstreamConfig, registry: &Registry) -> Arc<ServerSet> {
    ServerSet::new(
        &config.servers,
        config.endpoint_slices,
        config.probe_interval.is_some(),
        config.tls(),
        registry,
    )
}

/// The API servers, as one worker uses them: the pools of each [`AuthMode`].
///
/// [`AuthMode`]: crate::upstream::headers::auth_mode::AuthMode
#[derive(Debug)]
pub struct Upstream {
    servers: Arc<ServerSet>,
    front_proxy: Arc<ServerPools<FrontProxy>>,
    impersonating: Option<ImpersonationPools>,
    pass_through: Arc<ServerPools<PassThrough>>,
    unverified: Arc<ServerPools<Unverified>>,
    /// Of all these pools.
    pool_limits: Arc<PoolLimits>,
    metrics: Arc<UpstreamMetrics>,
    /// Those that this one has replaced, as long as requests use them.
    earlier: Vec<Weak<Self>>,
}

/// The head of a client's request, with the [`AuthMode`](headers::auth_mode::AuthMode) that it is sent by.
#[derive(Debug)]
pub(crate) enum UpstreamRequest {
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
    /// Pools without connections. Requests open connections as far as `budget` allows, and users are
    /// asserted by `impersonator`, if there is one, or by the front-proxy certificate.
    #[must_use]
    pub fn new(
        config: &UpstreamConfig,
        servers: &Arc<ServerSet>,
        budget: &ConnectionBudget,
        impersonator: Option<&Arc<OwnCredentials>>,
        metrics: &Arc<UpstreamMetrics>,
    ) -> Self {
        Self::build(config, servers, budget, impersonator, metrics, None)
    }

    /// The same, in place of `earlier`, whose users are asserted in another way. The pools of other
    /// requests stay.
    ///
    /// Requests that have `earlier` keep it, and are sent as they were authenticated: with the
    /// front-proxy certificate of now. Its connections end with their requests.
    #[must_use]
    pub(crate) fn build(
        config: &UpstreamConfig,
        servers: &Arc<ServerSet>,
        budget: &ConnectionBudget,
        impersonator: Option<&Arc<OwnCredentials>>,
        metrics: &Arc<UpstreamMetrics>,
        earlier: Option<&Arc<Self>>,
    ) -> Self {
        let limits = earlier.map_or_else(
            || {
                Arc::new(PoolLimits::new(
                    config.max_http2_connections,
                    config.protocol,
                ))
            },
            |earlier| Arc::clone(&earlier.pool_limits),
        );
        let settings = |certificate, budget| PoolSettings {
            limits: Arc::clone(&limits),
            ..config.pool_settings(certificate, Some(budget), metrics)
        };
        let asserting = |certificate| settings(certificate, budget.clone());
        let (set, none) = (|| Arc::clone(servers), PresentedCertificate::None);
        let mut others = Vec::new();
        let (pass_through, unverified) = match earlier {
            None => (
                ServerPools::new(set(), settings(none.clone(), budget.clone())),
                ServerPools::new(set(), settings(none, budget.for_unverified())),
            ),
            Some(earlier) => {
                earlier.retire_asserting();
                let used = |earlier: &&Weak<Self>| earlier.strong_count() > 0;
                others.extend(earlier.earlier.iter().filter(used).cloned());
                others.push(Arc::downgrade(earlier));
                (
                    Arc::clone(&earlier.pass_through),
                    Arc::clone(&earlier.unverified),
                )
            }
        };
        Self {
            servers: set(),
            front_proxy: ServerPools::new(set(), asserting(PresentedCertificate::FrontProxy)),
            impersonating: impersonator.map(|own| ImpersonationPools::new(set(), own, asserting)),
            pass_through,
            unverified,
            pool_limits: Arc::clone(&limits),
            metrics: Arc::clone(metrics),
            earlier: others,
        }
    }

    /// Closes the connections that assert users, when their requests have ended.
    fn retire_asserting(&self) {
        self.front_proxy.keep_front_proxy_certificate();
        self.front_proxy.retire_all();
        if let Some(impersonating) = &self.impersonating {
            impersonating.pools.retire_all();
        }
    }

    /// Changes the number of HTTP/2 connections for short requests, and when HTTP/1.1 is used
    /// instead. Open ones stay. The servers are replaced by [`reconfigure`] for all workers.
    pub(crate) fn set_pool_limits(&self, config: &UpstreamConfig) {
        self.pool_limits
            .set(config.max_http2_connections, config.protocol);
    }

    /// Whether watches and lists wait for their turn after an outage of all API servers.
    #[must_use]
    pub(crate) fn is_recovering(&self) -> bool {
        self.servers.is_recovering()
    }

    /// How long a watch or a list of `holder` waits for its turn after an outage of all API servers.
    #[must_use]
    pub(crate) fn recovery_delay(&self, holder: &SlotHolder) -> Duration {
        self.servers.recovery_delay(holder)
    }

    /// Whether weir can assert a user: by the front-proxy certificate or by impersonation.
    #[must_use]
    pub(crate) fn can_assert(&self) -> bool {
        self.impersonating.is_some() || self.front_proxy.has_front_proxy_certificate()
    }

    /// Whether weir asserts users by impersonation.
    #[must_use]
    pub(crate) fn impersonates(&self) -> bool {
        self.impersonating.is_some()
    }

    /// The `Authorization` header of a request that impersonates.
    ///
    /// # Errors
    /// weir's own credential has expired, and no new one was obtained.
    pub(crate) fn impersonation_credential(&self) -> Result<Option<HeaderValue>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        own.credentials
            .authorization()
            .map_err(|error| ForwardError::NoCredential(Arc::new(error)))
    }

    /// Sends a client's request; see [`ServerPools::send`].
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    pub(crate) async fn send(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        class: ConnectionClass,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let response = match request {
            UpstreamRequest::FrontProxy(head) => {
                let sent = self.front_proxy.send(head, body, class, context);
                self.send_asserted(sent).await
            }
            UpstreamRequest::FrontProxyAnonymous(head) => {
                let class = class.dedicated();
                let sent = self.front_proxy.send(head, body, class, context);
                self.send_asserted(sent).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pools = self.refreshed_impersonation_pools()?;
                let response = pools.send(head, body, class, context).await;
                self.check_impersonation(response).await
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

    /// Sends a client's request that asks for a protocol upgrade; see [`ServerPools::send_upgrade`].
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    pub(crate) async fn send_upgrade(
        &self,
        request: UpstreamRequest,
        body: RequestBody,
        protocol: HeaderValue,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let response = match request {
            UpstreamRequest::FrontProxy(head) | UpstreamRequest::FrontProxyAnonymous(head) => {
                let pools = &self.front_proxy;
                let sent = pools.send_upgrade(head, body, protocol, context);
                self.send_asserted(sent).await
            }
            UpstreamRequest::Impersonating(head) => {
                let pools = self.refreshed_impersonation_pools()?;
                let response = pools.send_upgrade(head, body, protocol, context).await;
                self.check_impersonation(response).await
            }
            UpstreamRequest::PassThrough(head) => {
                let pools = &self.pass_through;
                pools.send_upgrade(head, body, protocol, context).await
            }
            UpstreamRequest::Unverified(head) => {
                let pools = &self.unverified;
                pools.send_upgrade(head, body, protocol, context).await
            }
        };
        response.inspect_err(|error| self.metrics.failures.record(error, Clock.now()))
    }

    /// The response to a request that weir asserts by its certificate. Fails if the API server does
    /// not accept the certificate: its 401 or 403 is not the client's.
    async fn send_asserted(
        &self,
        sent: impl Future<Output = Result<Response<ResponseBody>, ForwardError>>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let trust = self.servers.front_proxy_trust();
        if let Some(why) = trust.standing_rejection() {
            return Err(ForwardError::FrontProxy(why));
        }
        let response = sent.await?;
        match trust.rejection(response.status()).await {
            Some(why) => Err(ForwardError::FrontProxy(why)),
            None => Ok(response),
        }
    }

    /// The response to a request that impersonates. Fails if the API server answers 401 to weir's
    /// own credential, as the next probe shows: an API server behind it can answer 401, too.
    async fn check_impersonation(
        &self,
        response: Result<Response<ResponseBody>, ForwardError>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let response = response?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(own) = &self.impersonating
            && self.servers.wait_for_probe(CREDENTIAL_PATIENCE).await
            && own
                .credentials
                .trouble()
                .is_some_and(|why| !why.still_works)
        {
            return Err(ForwardError::OwnCredentialRejected);
        }
        Ok(response)
    }

    /// What the API servers have to do now.
    pub(crate) fn load(&self) -> ServerLoad {
        self.servers.load()
    }

    /// Closes connections that have been idle for 45 s.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.close_idle_asserting(now);
        for earlier in self.earlier.iter().filter_map(Weak::upgrade) {
            earlier.close_idle_asserting(now);
        }
        self.pass_through.close_idle(now);
        self.unverified.close_idle(now);
    }

    fn close_idle_asserting(&self, now: Instant) {
        self.front_proxy.close_idle(now);
        if let Some(impersonating) = &self.impersonating {
            impersonating.pools.close_idle(now);
        }
    }

    fn refreshed_impersonation_pools(
        &self,
    ) -> Result<&Arc<ServerPools<Impersonating>>, ForwardError> {
        let own = self.impersonating.as_ref().ok_or(ForwardError::Closed)?;
        let mut changes = own.certificate_changes.lock();
        if changes.has_changed().unwrap_or(false) {
            changes.mark_unchanged();
            own.pools.retire_all();
        }
        Ok(&own.pools)
    }
}

/// Takes over a changed configuration, for all workers and weir's own calls. Servers that stay keep
/// their connections and their health. Changed roots, and a changed front-proxy certificate, retire
/// the connections that have used the old ones: requests on them are completed. Connections to
/// removed servers end with their requests, too.
pub(crate) fn reconfigure(servers: &ServerSet, config: &UpstreamConfig) {
    servers.reconfigure(&config.servers, config.endpoint_slices, &config.tls());
}

/// The pools of connections that impersonate, and the credentials that they use.
#[derive(Debug)]
struct ImpersonationPools {
    pools: Arc<ServerPools<Impersonating>>,
    credentials: Arc<OwnCredentials>,
    /// The certificate changes that the pools have followed. The lock is held for one check.
    certificate_changes: Mutex<watch::Receiver<u64>>,
}

impl ImpersonationPools {
    fn new(
        servers: Arc<ServerSet>,
        own: &Arc<OwnCredentials>,
        settings: impl FnOnce(PresentedCertificate) -> PoolSettings,
    ) -> Self {
        let certificate = PresentedCertificate::Own(own.certificate_resolver());
        Self {
            pools: ServerPools::new(servers, settings(certificate)),
            certificate_changes: Mutex::new(own.certificate_changes()),
            credentials: Arc::clone(own),
        }
    }
}

/// Pools with the front-proxy certificate for weir's own probe of it; none without a certificate.
#[must_use]
pub(crate) fn front_proxy_pools(
    config: &UpstreamConfig,
    servers: &Arc<ServerSet>,
    metrics: &Arc<UpstreamMetrics>,
) -> Option<Arc<ServerPools<FrontProxy>>> {
    config.front_proxy.as_ref()?;
    let settings = config.pool_settings(PresentedCertificate::FrontProxy, None, metrics);
    Some(ServerPools::new(Arc::clone(servers), settings))
}

/// Pools for weir's own calls.
#[must_use]
pub(crate) fn internal_pools(
    config: &UpstreamConfig,
    servers: &Arc<ServerSet>,
    own: &Arc<OwnCredentials>,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<ServerPools<Internal>> {
    let certificate = PresentedCertificate::Own(own.certificate_resolver());
    let settings = config.pool_settings(certificate, None, metrics);
    ServerPools::new(Arc::clone(servers), settings)
}
