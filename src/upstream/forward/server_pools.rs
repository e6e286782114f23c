//! The connections of one [`AuthMode`] to all API servers: chooses the server of a request, and
//! sends it to another one if the first cannot have executed it.
//!
//! # Cancel safety
//! Dropping a future here cancels the request.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderValue, Response};
use http_body::Body;
use parking_lot::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connector::Connector;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::forward::send::{AttemptError, Outgoing, SendAttempt, SendContext, is_safe};
use crate::upstream::headers::auth_mode::AuthMode;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::metrics::UpstreamMetrics;
use crate::upstream::pool::pool_limits::{PoolLimits, RetryBudget};
use crate::upstream::pool::stream_guard::{CANCEL_GRACE_PERIOD, StreamGuard};
use crate::upstream::servers::api_server::ApiServer;
use crate::upstream::servers::balancer::Candidate;
use crate::upstream::servers::health::{Availability, ServerFailure};
use crate::upstream::servers::server_set::{RequestTraits, ServerList, ServerSet};
use crate::upstream::tls;
use weir_base::clock::Clock;
use weir_x509::CertificatePool;

/// Attempts for one request. A second failure of this kind in a row happens while an upstream is
/// being replaced; a third one hardly does.
const MAX_ATTEMPTS: usize = 3;

/// Closing connections in a row that one request may meet: as many as a pool has when an upstream
/// goes away. More than that is an upstream that sends GOAWAY on every connection.
const MAX_CLOSING_CONNECTIONS: usize = 64;

/// Longest wait for a connection to a server while another one can be tried: enough for a lost
/// packet.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request without a response for this long is checked: its server may hang.
const FIRST_HANG_CHECK: Duration = Duration::from_secs(1);

/// The interval of further checks.
const HANG_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Longest wait of a request for the first probe of a server that has just started, or of one that
/// weir has just started in front of.
const GATE_PATIENCE: Duration = Duration::from_secs(2);

/// Paths of health checks, and of the single checks below them.
const HEALTH_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// The certificate that connections present.
#[derive(Clone, Debug)]
pub(crate) enum PresentedCertificate {
    /// None.
    None,
    /// The front-proxy certificate. Without one there are no connections.
    FrontProxy,
    /// weir's own, which can change.
    Own(Arc<dyn ResolvesClientCert>),
}

/// What all pools of a [`ServerPools`] have in common.
#[derive(Debug)]
pub(crate) struct PoolSettings {
    pub(crate) certificate: PresentedCertificate,
    pub(crate) budget: Option<ConnectionBudget>,
    pub(crate) limits: Arc<PoolLimits>,
    pub(crate) instance_id: InstanceId,
    pub(crate) metrics: Arc<UpstreamMetrics>,
}

/// One [`Pool`] for each API server.
pub(crate) struct ServerPools<M> {
    servers: Arc<ServerSet>,
    settings: PoolSettings,
    retry_budget: RetryBudget,
    /// The front-proxy certificate that connections present instead of the configured one.
    kept_front_proxy: OnceLock<Option<Arc<CertifiedKey>>>,
    /// The lock is held for list operations, never across an await.
    pools: Mutex<PoolList<M>>,
}

struct PoolList<M> {
    /// The version of the server list that the pools follow.
    version: u64,
    /// In the order of the server list.
    pools: Vec<PoolEntry<M>>,
    /// Memory for the choice of a server.
    candidates: Vec<Candidate>,
}

struct PoolEntry<M> {
    server: Arc<ApiServer>,
    roots: Arc<CertificatePool>,
    front_proxy: Option<Arc<CertifiedKey>>,
    /// When the front-proxy certificate expires, if it is presented.
    expires: Option<SystemTime>,
    pool: Arc<Pool<M>>,
}

/// The chosen server.
struct Choice<M> {
    server: Arc<ApiServer>,
    pool: Arc<Pool<M>>,
    has_alternative: bool,
}

impl<M: AuthMode> ServerPools<M> {
    /// Pools without connections.
    pub(crate) fn new(servers: Arc<ServerSet>, settings: PoolSettings) -> Arc<Self> {
        Arc::new(Self {
            servers,
            settings,
            retry_budget: RetryBudget::default(),
            kept_front_proxy: OnceLock::new(),
            pools: Mutex::new(PoolList {
                version: 0,
                pools: Vec::new(),
                candidates: Vec::new(),
            }),
        })
    }

    /// Connections present the front-proxy certificate that is configured now, also when it is
    /// replaced or removed: the requests that are left assert their users by it.
    pub(crate) fn keep_front_proxy_certificate(&self) {
        let _ = self
            .kept_front_proxy
            .set(self.servers.list().tls.front_proxy.clone()); // the first one is kept
    }

    /// Whether there is a front-proxy certificate for connections.
    #[must_use]
    pub(crate) fn has_front_proxy_certificate(&self) -> bool {
        self.front_proxy(&self.servers.list()).is_some()
    }

    fn front_proxy<'a>(&'a self, list: &'a ServerList) -> Option<&'a Arc<CertifiedKey>> {
        let configured = || &list.tls.front_proxy;
        self.kept_front_proxy
            .get()
            .unwrap_or_else(configured)
            .as_ref()
    }

    /// The API servers.
    #[must_use]
    pub(crate) const fn servers(&self) -> &Arc<ServerSet> {
        &self.servers
    }

    /// Sends the request. The caller gets the guard in `context` as soon as a connection is in use,
    /// and keeps it until the response body has ended. If the request is cancelled, the caller
    /// keeps it as long as [`StreamGuard::cancel`] says.
    ///
    /// [`StreamGuard::cancel`]: crate::upstream::pool::stream_guard::StreamGuard::cancel
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    pub(crate) async fn send(
        &self,
        mut head: RequestHead<M>,
        body: RequestBody,
        class: ConnectionClass,
        mut context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        self.retry_budget.deposit();
        let kind = RequestTraits {
            long_running: class.is_long_running(),
            is_health_check: is_health_check(head.path()),
        };
        head.append_cdn_loop(&self.settings.instance_id);
        let mut request = Outgoing { head, body };
        let mut tries = Tries::default();
        loop {
            let choice = self.choose_when_ready(kind, &tries.tried).await?;
            let attempt = SendAttempt {
                class,
                max_fields: tries.max_fields,
                counted: Some(choice.server.count_request(class.is_long_running())),
                patience: choice.has_alternative.then_some(PATIENCE),
            };
            let spare = self.spare(&request, &tries);
            choice.server.answers().record_request(Clock.now());
            let sent = choice.pool.attempt(request, attempt, &mut context);
            let sent = match &spare {
                Some(_) => self.unless_hung(&choice.server, sent).await,
                None => Some(sent.await),
            };
            let failed = match (sent, spare) {
                (Some(Ok(response)), _) => {
                    self.servers.record_success(&choice.server);
                    return Ok(response);
                }
                (Some(Err(failed)), _) => failed,
                (None, spare) => {
                    end_there(context.guard.take());
                    *context.sent_at = None;
                    let head = spare.ok_or(ForwardError::Closed)?;
                    let body = RequestBody::empty();
                    request = Outgoing { head, body };
                    let list = self.servers.list();
                    tries
                        .tried
                        .extend(list.unanswering(&choice.server, Clock.now()));
                    tries.has_left_hung = true;
                    self.servers.metrics().retries_elsewhere.inc();
                    continue;
                }
            };
            self.record_failure(&choice.server, &failed);
            request = self.next_request(failed, choice, &mut tries)?;
        }
    }

    /// A copy of a read without a body, which can be sent to another server once if this one hangs.
    fn spare(&self, request: &Outgoing<M>, tries: &Tries) -> Option<RequestHead<M>> {
        let can_repeat = self.servers.list().has_choice()
            && !tries.has_left_hung
            && is_safe(request.head.method())
            && request.body.is_end_stream();
        can_repeat.then(|| request.head.duplicate())
    }

    /// Waits for the response. `None` if the server hangs: no byte of the response has come, another
    /// server answers, and the retry budget allows to send the request there.
    async fn unless_hung<T>(
        &self,
        server: &Arc<ApiServer>,
        sent: impl Future<Output = T>,
    ) -> Option<T> {
        let mut sent = pin!(sent);
        let started = Clock.now();
        let mut wait = FIRST_HANG_CHECK;
        loop {
            if let Ok(response) = timeout(wait, &mut sent).await {
                return Some(response);
            }
            wait = HANG_CHECK_INTERVAL;
            let is_hung = self.servers.list().is_hung(server, started, Clock.now());
            if is_hung && self.retry_budget.try_withdraw() {
                return None;
            }
        }
    }

    /// Sends a request for an upgrade to `protocol`, on a connection of its own. The caller keeps
    /// the guard until the response body, or the other protocol, has ended.
    ///
    /// # Errors
    /// The request got no response; the error says which side failed.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn send_upgrade(
        &self,
        mut head: RequestHead<M>,
        body: RequestBody,
        protocol: HeaderValue,
        mut context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        self.retry_budget.deposit();
        let kind = RequestTraits {
            long_running: true,
            is_health_check: is_health_check(head.path()),
        };
        head.append_cdn_loop(&self.settings.instance_id);
        let head = head.with_upgrade(protocol);
        let mut request = Outgoing { head, body };
        let mut tries = Tries::default();
        loop {
            let choice = self.choose_when_ready(kind, &tries.tried).await?;
            let counted = choice.server.count_request(true);
            let patience = choice.has_alternative.then_some(PATIENCE);
            let pool = &choice.pool;
            let sent = pool.attempt_upgrade(request, counted, patience, &mut context);
            let failed = match sent.await {
                Ok(response) => {
                    self.servers.record_success(&choice.server);
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            self.record_failure(&choice.server, &failed);
            request = self.next_request(failed, choice, &mut tries)?;
        }
    }

    /// The request for another attempt, or the error that ends it.
    fn next_request(
        &self,
        failed: AttemptError<M>,
        choice: Choice<M>,
        tries: &mut Tries,
    ) -> Result<Outgoing<M>, ForwardError> {
        let again = match failed {
            // Nothing was sent.
            AttemptError::NoConnection(again, error)
                if choice.has_alternative && is_server_specific(&error) =>
            {
                again
            }
            // Not counted as an attempt: nothing was sent.
            AttemptError::ConnectionClosing(again) if tries.closing < MAX_CLOSING_CONNECTIONS => {
                tries.closing += 1;
                self.settings.metrics.retries.inc();
                again
            }
            AttemptError::NotExecuted(again, _)
                if tries.attempts + 1 < MAX_ATTEMPTS && self.retry_budget.try_withdraw() =>
            {
                tries.attempts += 1;
                self.settings.metrics.retries.inc();
                again
            }
            // Once: then its connection takes many.
            AttemptError::ManyFields(again, _) => {
                tries.max_fields = MaxFields::Many;
                self.settings.metrics.retries.inc();
                return Ok(*again);
            }
            failed @ (AttemptError::NoConnection(..)
            | AttemptError::ConnectionClosing(_)
            | AttemptError::NotExecuted(..)
            | AttemptError::Final(_)) => return Err(failed.into_error()),
        };
        if choice.has_alternative {
            self.servers.metrics().retries_elsewhere.inc();
            tries.tried.push(choice.server);
        }
        Ok(*again)
    }

    fn record_failure(&self, server: &ApiServer, failed: &AttemptError<M>) {
        match failed {
            AttemptError::ConnectionClosing(_) => server.request_probe(), // it may be shutting down
            AttemptError::ManyFields(..) => {}
            AttemptError::NoConnection(_, error)
            | AttemptError::NotExecuted(_, error)
            | AttemptError::Final(error) => self.record_error(server, error),
        }
    }

    fn record_error(&self, server: &ApiServer, error: &ForwardError) {
        match error {
            ForwardError::Connect(_)
            | ForwardError::ConnectTimeout(_)
            | ForwardError::Proxy(_)
            | ForwardError::ProxyRejected(_)
            | ForwardError::Tls(_) => self.servers.record_failure(server, ServerFailure::Connect),
            ForwardError::Reset(why) => {
                if is_broken_connection(&**why) {
                    self.servers
                        .record_failure(server, ServerFailure::BrokenConnection);
                }
            }
            // It may be overloaded, hang, or shut down.
            ForwardError::Closed
            | ForwardError::Refused(_)
            | ForwardError::StreamTimeout(_)
            | ForwardError::TooManyWaiting(_) => server.request_probe(),
            ForwardError::ConnectionLimit(_)
            | ForwardError::FrontProxy(_)
            | ForwardError::NoCredential(_)
            | ForwardError::NoServer
            | ForwardError::NotReady(_)
            | ForwardError::OwnCredentialRejected
            | ForwardError::ShareExceeded(_)
            | ForwardError::UnexpectedUpgrade => {}
        }
    }

    /// Chooses a server. If the only ones left have to pass their `/readyz` first, waits for a probe.
    async fn choose_when_ready(
        &self,
        kind: RequestTraits,
        tried: &[Arc<ApiServer>],
    ) -> Result<Choice<M>, ForwardError> {
        match self.choose(kind, tried) {
            Err(ForwardError::NoServer) => {}
            chosen => return chosen,
        }
        // Also where none is waited for: it may have passed since the choice.
        let deadline = Clock.now() + GATE_PATIENCE;
        self.servers.wait_for_gates(deadline).await?;
        self.choose(kind, tried)
    }

    fn choose(
        &self,
        kind: RequestTraits,
        tried: &[Arc<ApiServer>],
    ) -> Result<Choice<M>, ForwardError> {
        let mut pools = self.pools.lock();
        let list = self.servers.list(); // under the lock: not older than the one that was followed
        self.follow(&list, &mut pools);
        let PoolList {
            pools, candidates, ..
        } = &mut *pools;
        let pick = list.pick(kind, tried, candidates, fastrand::f64);
        let pick = pick.ok_or(ForwardError::NoServer)?;
        let entry = pools.get(pick.index).ok_or(ForwardError::NoServer)?;
        if entry.expires.is_some_and(|end| end <= Clock.coarse_wall()) {
            return Err(ForwardError::FrontProxy("it has expired".into()));
        }
        Ok(Choice {
            server: Arc::clone(&entry.server),
            pool: Arc::clone(&entry.pool),
            has_alternative: pick.has_alternative,
        })
    }

    /// The pool of `server`, for a probe.
    pub(crate) fn pool_of(&self, server: &Arc<ApiServer>) -> Option<Arc<Pool<M>>> {
        let mut pools = self.pools.lock();
        self.follow(&self.servers.list(), &mut pools);
        let mut entries = pools.pools.iter();
        let entry = entries.find(|entry| Arc::ptr_eq(&entry.server, server))?;
        Some(Arc::clone(&entry.pool))
    }

    /// Follows a changed list: pools of servers that stay are kept, the others are retired.
    fn follow(&self, list: &ServerList, pools: &mut PoolList<M>) {
        if pools.version >= list.version {
            return; // an older list would bring removed servers back
        }
        pools.version = list.version;
        let mut before = std::mem::take(&mut pools.pools);
        for server in &list.servers {
            let kept = before.iter().position(|entry| {
                Arc::ptr_eq(&entry.server, server) && self.has_same_tls(entry, list)
            });
            pools.pools.extend(match kept {
                Some(at) => Some(before.swap_remove(at)),
                None => self.new_entry(server, list),
            });
        }
        for removed in before {
            removed.pool.replace();
        }
    }

    fn has_same_tls(&self, entry: &PoolEntry<M>, list: &ServerList) -> bool {
        let same_certificate = match &self.settings.certificate {
            PresentedCertificate::None | PresentedCertificate::Own(_) => true,
            PresentedCertificate::FrontProxy => {
                entry.front_proxy.as_ref().map(Arc::as_ptr)
                    == self.front_proxy(list).map(Arc::as_ptr)
            }
        };
        same_certificate && Arc::ptr_eq(&entry.roots, &list.tls.roots)
    }

    /// `None` where the mode needs a certificate that is not configured.
    fn new_entry(&self, server: &Arc<ApiServer>, list: &ServerList) -> Option<PoolEntry<M>> {
        let settings = &self.settings;
        let mut expires = None;
        let certificate: Option<Arc<dyn ResolvesClientCert>> = match &settings.certificate {
            PresentedCertificate::None => None,
            PresentedCertificate::Own(resolver) => Some(Arc::clone(resolver)),
            PresentedCertificate::FrontProxy => {
                let key = self.front_proxy(list)?;
                expires = tls::expiry(key);
                Some(Arc::new(SingleCertAndKey::from(Arc::clone(key))))
            }
        };
        let tls = tls::client_config(CertificatePool::clone(&list.tls.roots), certificate);
        let connector = Connector::new(server.address().clone(), tls, settings.budget.clone());
        let metrics = Arc::clone(&settings.metrics);
        Some(PoolEntry {
            server: Arc::clone(server),
            roots: Arc::clone(&list.tls.roots),
            front_proxy: self.front_proxy(list).cloned(),
            expires,
            pool: Pool::new(connector, Arc::clone(&settings.limits), metrics),
        })
    }

    /// Counts a request of weir's own as client-go counts its requests.
    pub(crate) fn count_internal_request(&self, code: &str, method: &str) {
        let host = self.servers.authority();
        let requests = &self.settings.metrics.internal_requests;
        requests.with_label_values(&[code, &host, method]).inc();
    }

    /// Closes connections that have been idle for 45 s, those to removed servers, and the idle ones
    /// to servers whose `/readyz` fails: they are going away, and would lose what is sent then.
    pub(crate) fn close_idle(&self, now: Instant) {
        let mut pools = self.pools.lock();
        self.follow(&self.servers.list(), &mut pools);
        for entry in &pools.pools {
            if entry.server.availability() == Availability::NotReady {
                entry.pool.close_all_idle();
            } else {
                entry.pool.close_idle(now);
            }
        }
    }

    /// Retires every connection: their certificate has been replaced. Requests on them are
    /// completed.
    pub(crate) fn retire_all(&self) {
        for entry in &self.pools.lock().pools {
            entry.pool.retire_all();
        }
    }
}

impl<M: AuthMode> std::fmt::Debug for ServerPools<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerPools<{}>", M::NAME)
    }
}

/// Ends a request at a server that hangs. What it holds is kept until the server has seen that.
fn end_there(guard: Option<Box<dyn StreamGuard>>) {
    let Some(mut guard) = guard else {
        return;
    };
    if let Some(ended) = guard.cancel(Duration::ZERO) {
        tokio::spawn(async move {
            let _ = timeout(CANCEL_GRACE_PERIOD, ended).await;
            drop(guard);
        });
    }
}

/// The failed attempts of a request.
#[derive(Default)]
struct Tries {
    /// Servers that are not tried again while there is another.
    tried: Vec<Arc<ApiServer>>,
    attempts: usize,
    closing: usize,
    max_fields: MaxFields,
    /// Whether it was taken from a server that hangs, which happens once.
    has_left_hung: bool,
}

/// Whether a request asks for the health of the server.
fn is_health_check(path: &str) -> bool {
    HEALTH_PATHS.iter().any(|health| {
        let rest = path.strip_prefix(health);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Whether another server may have a connection although this one has none.
const fn is_server_specific(error: &ForwardError) -> bool {
    match error {
        ForwardError::Closed
        | ForwardError::Connect(_)
        | ForwardError::ConnectTimeout(_)
        | ForwardError::Proxy(_)
        | ForwardError::ProxyRejected(_)
        | ForwardError::Refused(_)
        | ForwardError::StreamTimeout(_)
        | ForwardError::Tls(_)
        | ForwardError::TooManyWaiting(_) => true,
        ForwardError::ConnectionLimit(_)
        | ForwardError::FrontProxy(_)
        | ForwardError::NoCredential(_)
        | ForwardError::NoServer
        | ForwardError::NotReady(_)
        | ForwardError::OwnCredentialRejected
        | ForwardError::Reset(_)
        | ForwardError::ShareExceeded(_)
        | ForwardError::UnexpectedUpgrade => false,
    }
}

/// Whether a request failed because its connection ended: an I/O error, an early end, a GOAWAY, or a
/// PING without an answer. Not if its own body failed, or only its stream was reset.
fn is_broken_connection(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_io() || error.is_go_away();
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_user() {
                return false;
            }
            if error.is_incomplete_message() || error.is_closed() {
                return true;
            }
        }
        if error.is::<io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
#[path = "server_pools_tests.rs"]
mod tests;
