//! Accepts connections, speaks TLS and HTTP, and serves each request from its head to its response.
//!
//! TLS requests a client certificate and accepts any; `auth::authentication` verifies it. On HTTP/2
//! an anonymous or unauthorized request closes its connection gracefully, as kube-apiserver's
//! `UnauthenticatedHTTP2DOSMitigation` does.
//!
//! The server behaves as Go's where attacks through a proxy depend on it. On HTTP/1.1 a response
//! waits for the rest of a small request body (`unread_body`). A handler continues when its client
//! disconnects (`handler_future`), and an HTTP/2 connection has a limited number of them
//! (`serving::handler_scheduler`).
//!
//! `faulty` lets it fail on purpose.

use crate::auth::authentication::PlaygroundAuthenticator;
use crate::auth::authorization::{Denial, Grant, PolicyChanges};
use crate::auth::pki::{CertificateAndKey, Certificates};
use crate::auth::tls;
use crate::objects::resources::{RESOURCES, ResourceBackend};
use crate::objects::seed;
use crate::objects::storage::shared_store::SharedStore;
use crate::objects::storage::store::Store;
use crate::server::connection::handle_connection;
use crate::serving::capacity::Capacity;
use crate::serving::fairness::Fairness;
use crate::serving::fault::{Fault, FaultState};
use crate::serving::list_memory::ListMemory;
use crate::serving::request_log::{RequestLog, RequestRecord, ReviewRecord, ServerCounters};
use crate::settings::PlaygroundSettings;
use crate::state::ServerState;
use crate::time;
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

mod connection;
mod faulty;
mod framed_stream;
mod handler_future;
mod serve;
mod unread_body;

/// Timeout for requests in flight after the server stops; then their connections are closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a failed accept, e.g. without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The API server. Clones share one server.
#[derive(Clone, Debug)]
pub struct PlaygroundServer {
    state: Arc<ServerState>,
    tls: Arc<TlsConfigs>,
}

/// What a new connection shows, by fault.
#[derive(Debug)]
struct TlsConfigs {
    usual: Arc<ServerConfig>,
    expired: Arc<ServerConfig>,
    of_changed_ca: Arc<ServerConfig>,
}

impl TlsConfigs {
    fn in_force(&self, fault: Option<Fault>) -> &Arc<ServerConfig> {
        match fault {
            Some(Fault::CaChanged) => &self.of_changed_ca,
            Some(Fault::CertificateExpired) => &self.expired,
            Some(_) | None => &self.usual,
        }
    }
}

/// The reason why a server could not be made: its certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaygroundStartError(String);

impl std::fmt::Display for PlaygroundStartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot start the API server: {}", self.0)
    }
}

impl std::error::Error for PlaygroundStartError {}

impl PlaygroundServer {
    /// Returns a server with the objects that `settings` describe.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(
        settings: PlaygroundSettings,
        certificates: &Certificates,
    ) -> Result<Self, PlaygroundStartError> {
        Self::with_fairness(settings, certificates, None)
    }

    /// Returns a server with its own priority and fairness.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn with_fairness(
        settings: PlaygroundSettings,
        certificates: &Certificates,
        fairness: Option<Arc<dyn Fairness>>,
    ) -> Result<Self, PlaygroundStartError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authenticator =
            PlaygroundAuthenticator::new(certificates, &provider).map_err(PlaygroundStartError)?;
        let tls = |certificate: &CertificateAndKey| {
            tls::server_config(certificate, &authenticator, Arc::clone(&provider))
                .map(Arc::new)
                .map_err(PlaygroundStartError)
        };
        let tls = TlsConfigs {
            usual: tls(&certificates.apiserver)?,
            expired: tls(&certificates.apiserver_expired)?,
            of_changed_ca: tls(&certificates.apiserver_of_changed_ca)?,
        };
        let mut store = Store::new(settings.watch_history);
        let now = time::wall_time().to_string();
        seed::seed_store(&mut store, settings.nodes, settings.pods, &now);
        let built_in = fairness.as_ref().map(|one| one.built_in_objects());
        seed::seed_flowcontrol(&mut store, built_in.unwrap_or_default(), &now);
        let capacity = (!settings.service_time.is_zero()).then(|| {
            let unshared = NonZeroUsize::MAX;
            Capacity::new(settings.capacity.unwrap_or(unshared), settings.service_time)
        });
        let state = ServerState {
            storage: SharedStore::new(store),
            request_log: RequestLog::new(settings.max_recorded_requests),
            authenticator,
            policy: RwLock::default(),
            fairness,
            flowcontrol_changes: Mutex::default(),
            capacity,
            list_memory: ListMemory::new(settings.list_memory_limit),
            fault: tokio::sync::watch::Sender::default(),
            stopping: tokio::sync::watch::Sender::new(false),
            settings,
        };
        state.apply_flowcontrol();
        Ok(Self {
            state: Arc::new(state),
            tls: Arc::new(tls),
        })
    }

    /// Serves until `stop` is ready. Then it ends watches and logs, waits for the other requests
    /// for a short time, and closes the remaining connections. It may run on several listeners at
    /// once; the first one that stops, stops all.
    ///
    /// Cancel safety: dropping the future closes all connections at once.
    pub async fn run(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let Ok(address) = listener.local_addr() else {
            return; // it is no open socket
        };
        let mut connections = JoinSet::new();
        // These tasks end when the set is dropped.
        if let Some(capacity) = self.state.capacity.clone() {
            let changes = self.state.settings.capacity_changes.clone();
            connections.spawn(async move {
                tokio::join!(capacity.run(), capacity.follow(&changes));
            });
        }
        if let Some(fairness) = self.state.fairness.clone() {
            connections.spawn(async move { fairness.run().await });
        }
        let state = Arc::clone(&self.state);
        connections.spawn(async move { faulty::end_shutdowns(&state).await });
        let drivers = connections.len();
        let mut listener = Some(listener);
        let mut changes = self.state.fault.subscribe();
        let mut stop = pin!(stop);
        loop {
            let fault = *changes.borrow_and_update();
            tokio::select! {
                () = &mut stop => break,
                _ = changes.changed() => {}
                accepted = faulty::next_connection(&mut listener, address, fault) => match accepted {
                    Ok(stream) => {
                        let acceptor = TlsAcceptor::from(Arc::clone(self.tls.in_force(fault.fault)));
                        let state = Arc::clone(&self.state);
                        connections.spawn(handle_connection(state, acceptor, stream, changes.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        drop(listener);
        self.state.stopping.send_replace(true);
        let drained = async {
            while connections.len() > drivers && connections.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    }

    /// Puts a fault in force, in place of the one before; `None` ends it.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let before = self.state.fault.send_replace(FaultState {
            fault,
            has_shut_down: false,
        });
        if before.has_shut_down {
            self.state.stopping.send_replace(false);
        }
    }

    /// Allows a user an access that the fixed rules deny.
    pub fn grant(&self, grant: Grant) {
        self.change_policy(|policy| policy.grants.push(grant));
    }

    /// Denies a user an access that the fixed rules allow.
    pub fn deny(&self, denial: Denial) {
        self.change_policy(|policy| policy.denials.push(denial));
    }

    fn change_policy(&self, change: impl FnOnce(&mut PolicyChanges)) {
        change(&mut self.state.policy.write());
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.state.request_log.requests()
    }

    /// The last reviews, oldest first.
    pub fn reviews(&self) -> Vec<ReviewRecord> {
        self.state.request_log.reviews()
    }

    /// The counters.
    pub fn counters(&self) -> ServerCounters {
        self.state.request_log.counters()
    }

    /// Number of stored objects of a resource (`pods`, `events`); `None` if the resource is
    /// unknown.
    pub fn object_count(&self, plural: &str) -> Option<usize> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        Some(self.state.storage.lock().len(kind))
    }

    /// Total size of the stored objects of a resource, in bytes; `None` if the resource is unknown.
    pub fn object_bytes(&self, plural: &str) -> Option<usize> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        Some(self.state.storage.lock().bytes(kind))
    }

    /// A stored object, without `kind` and `apiVersion`. `namespace` is empty for cluster-scoped
    /// ones.
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<serde_json::Value> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        let object = Arc::clone(self.state.storage.lock().get(kind, namespace, name)?);
        Some(object.value())
    }
}

#[cfg(test)]
mod tests;
