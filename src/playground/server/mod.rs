//! Accepts connections, speaks TLS and HTTP, and leads one request after the other from its head to
//! its answer.
//!
//! TLS asks for a client certificate and takes whatever comes; `authentication` judges it. On HTTP/2 an
//! anonymous or refused request closes its connection gracefully, as kube-apiserver's
//! `UnauthenticatedHTTP2DOSMitigation` does.
//!
//! Where attacks through a proxy live from it, the server behaves as Go's: on HTTP/1.1 a response waits for the rest of a
//! small request body (`unread`), and a handler goes on when its client is gone (`handler`), of which an HTTP/2 connection
//! has room for so many (`handlers`).

use crate::playground::auth::authentication::ApiUser;
use crate::playground::auth::authentication::ClientCertificateResult;
use crate::playground::auth::authentication::PlaygroundAuthenticator;
use crate::playground::auth::authentication::Unauthorized;
use crate::playground::auth::authorization::Denial;
use crate::playground::auth::authorization::Grant;
use crate::playground::auth::authorization::PolicyChanges;
use crate::playground::auth::pki::Certificates;
use crate::playground::auth::tls;
use crate::playground::endpoints;
use crate::playground::objects::resources::RESOURCES;
use crate::playground::objects::resources::ResourceBackend;
use crate::playground::objects::seed;
use crate::playground::objects::storage::shared_store::SharedStore;
use crate::playground::objects::storage::store::Store;
use crate::playground::request::ApiRoute;
use crate::playground::request::QueryParameters;
use crate::playground::server::framed_stream::FramedStream;
use crate::playground::server::handler_future::HandlerFuture;
use crate::playground::serving::capacity::Capacity;
use crate::playground::serving::fairness::ClassificationUids;
use crate::playground::serving::fairness::Fairness;
use crate::playground::serving::fairness::TooManyRequests;
use crate::playground::serving::handler_scheduler::HandlerScheduler;
use crate::playground::serving::handler_scheduler::HandlerSlot;
use crate::playground::serving::request_log::PlaygroundBody;
use crate::playground::serving::request_log::RequestGuard;
use crate::playground::serving::request_log::RequestLog;
use crate::playground::serving::request_log::RequestRecord;
use crate::playground::serving::request_log::ReviewRecord;
use crate::playground::serving::request_log::ServerCounters;
use crate::playground::serving::request_log::ServingClass;
use crate::playground::serving::request_log::TrackedBody;
use crate::playground::settings::PlaygroundSettings;
use crate::playground::state::ServerState;
use crate::playground::status::StatusError;
use crate::playground::time;
use http::HeaderName;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::Response;
use http::StatusCode;
use http::Version;
use http::header::CACHE_CONTROL;
use http::header::CONNECTION;
use http::header::CONTENT_LENGTH;
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

mod framed_stream;
mod handler_future;
pub(in crate::playground) mod unread_body;

/// How long a client may take to shake hands.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests may take to end once the server stops; then they are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// kube-apiserver's limit on idle connections. (hyper counts it from the end of a request.)
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long to wait when there are no file descriptors left to accept with.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// kube-apiserver's HTTP/2 frame size and stream window, in bytes.
const H2_WINDOW: u32 = 256 * 1024;

/// kube-apiserver's limit on a request's head, in bytes.
const MAX_HEAD_BYTES: u32 = 1024 * 1024;
/// On HTTP/1.1 headers are counted: room for a user with some hundreds of groups.
const MAX_HEADERS: usize = 512;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The API server. Clones are the same server.
#[derive(Clone, Debug)]
pub struct PlaygroundServer {
    state: Arc<ServerState>,
    tls: Arc<ServerConfig>,
}

/// Why a server could not be made: something is wrong with its certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaygroundStartError(String);

impl std::fmt::Display for PlaygroundStartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot start the API server: {}", self.0)
    }
}

impl std::error::Error for PlaygroundStartError {}

impl PlaygroundServer {
    /// A server with the objects that `settings` asks for.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(
        settings: PlaygroundSettings,
        certificates: &Certificates,
    ) -> Result<Self, PlaygroundStartError> {
        Self::with_fairness(settings, certificates, None)
    }

    /// Likewise, with priority and fairness of its own.
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
        let tls = tls::server_config(&certificates.apiserver, &authenticator, provider)
            .map_err(PlaygroundStartError)?;
        let mut store = Store::new(settings.watch_history);
        let now = time::wall_time().to_string();
        seed::seed_store(&mut store, settings.nodes, settings.pods, &now);
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
            capacity,
            stopping: tokio::sync::watch::Sender::new(false),
            settings,
        };
        Ok(Self {
            state: Arc::new(state),
            tls: Arc::new(tls),
        })
    }

    /// Serves until `stop` is ready; then ends watches and logs, waits a little for the rest, and cuts
    /// what is left. May be run on several listeners at once; the first to stop stops all.
    ///
    /// Cancel safety: dropping it cuts all connections at once.
    pub async fn run(&self, listener: TcpListener, stop: impl Future<Output = ()>) {
        let mut connections = JoinSet::new();
        // Both end with the set, when it is dropped.
        if let Some(capacity) = self.state.capacity.clone() {
            connections.spawn(async move { capacity.run().await });
        }
        if let Some(fairness) = self.state.fairness.clone() {
            connections.spawn(async move { fairness.run().await });
        }
        let drivers = connections.len();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (state, acceptor) = (Arc::clone(&self.state), acceptor.clone());
                        connections.spawn(handle_connection(state, acceptor, stream));
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

    /// Lets a user do what the fixed rules do not.
    pub fn grant(&self, grant: Grant) {
        self.change_policy(|rights| rights.grants.push(grant));
    }

    /// Takes from a user what the fixed rules allow.
    pub fn deny(&self, denial: Denial) {
        self.change_policy(|rights| rights.denials.push(denial));
    }

    fn change_policy(&self, change: impl FnOnce(&mut PolicyChanges)) {
        let rights = self.state.policy.write();
        change(&mut rights.unwrap_or_else(PoisonError::into_inner));
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.state.request_log.requests()
    }

    /// The last reviews that were asked for, oldest first.
    pub fn reviews(&self) -> Vec<ReviewRecord> {
        self.state.request_log.reviews()
    }

    /// What has been counted.
    pub fn counters(&self) -> ServerCounters {
        self.state.request_log.counters()
    }

    /// How many objects of a resource (`pods`, `events`) are stored; `None` if it is not known.
    pub fn object_count(&self, plural: &str) -> Option<usize> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        Some(self.state.storage.lock().len(kind))
    }

    /// How long all objects of a resource are together, as they are stored, in bytes; `None` if it is not known.
    pub fn object_bytes(&self, plural: &str) -> Option<usize> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        Some(self.state.storage.lock().bytes(kind))
    }

    /// A stored object, without `kind` and `apiVersion`. `namespace` is empty for cluster-scoped ones.
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<serde_json::Value> {
        let ResourceBackend::Objects(kind) = RESOURCES.iter().find(|r| r.plural == plural)?.backend
        else {
            return None;
        };
        let object = Arc::clone(self.state.storage.lock().get(kind, namespace, name)?);
        Some(object.value())
    }
}

/// One connection, from the handshake to its end.
async fn handle_connection(state: Arc<ServerState>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let Ok(Ok(stream)) = handshake.await else {
        return;
    };
    state.request_log.record_connection();
    let (_, session) = stream.get_ref();
    let peer = Arc::new(state.authenticator.verify_peer(session.peer_certificates()));
    let h2 = session.alpn_protocol() == Some(b"h2");
    let closing = Arc::new(Notify::new());
    let streams = state.settings.max_concurrent_streams;
    let handlers = h2.then(|| HandlerScheduler::new(streams));
    let service = service_fn({
        let (state, closing, handlers) =
            (Arc::clone(&state), Arc::clone(&closing), handlers.clone());
        move |request| {
            let scheduled = handlers.as_ref().map(HandlerScheduler::schedule);
            let (state, peer) = (Arc::clone(&state), Arc::clone(&peer));
            let closing = Arc::clone(&closing);
            async move {
                let running = match scheduled {
                    Some(scheduled) => Some(scheduled.wait_for_slot().await),
                    None => None,
                };
                let handled = serve_request(Arc::clone(&state), peer, closing, request, running);
                Ok::<_, Infallible>(HandlerFuture::new(state, handled).await)
            }
        }
    });
    if let Some(handlers) = handlers {
        let stream = FramedStream::new(stream);
        let io = TokioIo::new(stream.clone());
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_frame_size(H2_WINDOW)
            .initial_stream_window_size(H2_WINDOW)
            .initial_connection_window_size(H2_WINDOW.saturating_mul(streams.clamp(1, 100)))
            .serve_connection(io, service);
        let served = run_connection(&state, &closing, connection, |c| c.graceful_shutdown());
        tokio::select! {
            () = served => return,
            () = handlers.wait_for_too_many_resets() => {}
        }
        state.request_log.record_too_many_early_resets();
        stream.enhance_your_calm().await;
    } else {
        let io = TokioIo::new(stream);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .title_case_headers(true)
            .max_headers(MAX_HEADERS)
            .header_read_timeout(IDLE_TIMEOUT)
            .serve_connection(io, service)
            .with_upgrades();
        run_connection(&state, &closing, connection, |c| c.graceful_shutdown()).await;
    }
}

/// Runs a connection; closes it gracefully when asked to or when the server stops.
async fn run_connection<C, E>(
    state: &ServerState,
    closing: &Notify,
    connection: C,
    close: impl Fn(Pin<&mut C>),
) where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let mut stopping = state.stopping.subscribe();
    let mut connection = pin!(connection);
    let mut open = true;
    loop {
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closing.notified(), if open => {
                open = false;
                close(connection.as_mut());
                continue;
            }
            _ = stopping.wait_for(|stopping| *stopping), if open => {
                open = false;
                close(connection.as_mut());
                continue;
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
            if is_enhance_your_calm(&error) {
                state.request_log.record_too_many_early_resets();
            }
        }
        return;
    }
}

/// Whether the HTTP/2 library itself ended the connection with ENHANCE_YOUR_CALM: streams that are reset before they are
/// accepted have a limit of its own.
fn is_enhance_your_calm(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .filter_map(|error| error.downcast_ref::<h2::Error>())
        .any(|error| error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM) && !error.is_remote())
}

/// One request: who asks, then everything else, then the headers that every answer has.
async fn serve_request(
    state: Arc<ServerState>,
    peer: Arc<ClientCertificateResult>,
    closing: Arc<Notify>,
    mut request: Request<Incoming>,
    running: Option<HandlerSlot>,
) -> Response<TrackedBody> {
    let h2 = request.version() == Version::HTTP_2;
    let head = *request.method() == Method::HEAD;
    let audit_id = request.headers().get(AUDIT_ID).cloned();
    let user = state.authenticator.authenticate(&peer, request.headers());
    state.request_log.record_request(RequestRecord {
        method: request.method().clone(),
        uri: request.uri().clone(),
        version: request.version(),
        user: user.clone().ok(),
        headers: request.headers().clone(),
    });
    if h2 && user.as_ref().map_or(true, ApiUser::is_anonymous) {
        closing.notify_one();
    }
    let mut response = match user {
        Err(Unauthorized) => {
            // An unknown token is looked up where all are, with a webhook elsewhere.
            if let Some(capacity) = &state.capacity {
                capacity.serve().await;
            }
            untracked(endpoints::status_error(&StatusError::unauthorized()))
        }
        Ok(user) => admit(&state, &user, &mut request).await,
    };
    state
        .request_log
        .record_response(response.status().as_u16());
    if !h2 {
        drain_request_body(&mut request, &mut response).await;
    }
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id.unwrap_or_else(new_audit_id));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    if head && h2 {
        return without_body(response);
    }
    response.map(|body| body.with_handler_slot(running))
}

/// On HTTP/1.1: what the unread part of the request's body does to the response.
async fn drain_request_body(request: &mut Request<Incoming>, response: &mut Response<TrackedBody>) {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return; // the connection is taken over
    }
    let length = response.body().size_hint().exact();
    if length.is_some_and(|length| length <= unread_body::BUFFERED_RESPONSE_LENGTH) {
        response.body_mut().release(); // the handler has returned
    }
    if let Some(connection) = unread_body::drain(request).await {
        response.headers_mut().insert(CONNECTION, connection);
    }
}

/// The answer to HEAD on HTTP/2: as to GET, with the length that its body would have, and without it.
fn without_body(mut response: Response<TrackedBody>) -> Response<TrackedBody> {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    response.map(TrackedBody::into_headers_only)
}

fn new_audit_id() -> HeaderValue {
    let uuid = seed::uuid(&mut fastrand::Rng::new());
    HeaderValue::try_from(uuid).unwrap_or(HeaderValue::from_static("0"))
}

fn untracked(response: Response<PlaygroundBody>) -> Response<TrackedBody> {
    response.map(|body| TrackedBody::new(body, None))
}

/// Whether a known user's request is served now, when, and with what.
async fn admit(
    state: &Arc<ServerState>,
    user: &ApiUser,
    request: &mut Request<Incoming>,
) -> Response<TrackedBody> {
    let query = QueryParameters::parse(request.uri().query());
    let route = ApiRoute::parse(request.uri().path());
    let occupied = if matches!(route, ApiRoute::Health(_) | ApiRoute::Metrics) {
        ServingClass::Exempt
    } else if route.is_long_running(request.method(), &query) {
        ServingClass::LongRunning
    } else {
        ServingClass::InFlight
    };
    let mut seat = match &state.fairness {
        Some(fairness) if occupied != ServingClass::Exempt => {
            let admitted = fairness.admit(request.method(), request.uri(), user);
            match admitted.await {
                Ok(seat) => seat,
                Err(rejected) => return reject_request(state, Some(rejected)),
            }
        }
        Some(_) | None => None,
    };
    let limit = state.settings.max_in_flight;
    let Some(mut place) = state.request_log.begin_request(occupied, limit) else {
        return reject_request(state, None);
    };
    if let Some(capacity) = &state.capacity {
        capacity.serve().await;
    }
    time::burn_cpu_in_slices(state.settings.service_cpu).await;
    let answer = endpoints::handle(state, user, &route, &query, request).await;
    let mut response = answer.unwrap_or_else(|status| endpoints::status_error(&status));
    let classified = seat.as_ref().map(|seat| seat.classification.clone());
    let classified = classified.unwrap_or(ClassificationUids::PLACEHOLDER);
    classified.insert_headers(response.headers_mut());
    // A watch that has begun holds no seat; what else runs long never had one.
    place.seat = seat.take_if(|_| occupied == ServingClass::InFlight);
    tracked(response, place)
}

/// What a request is answered that the server's own limit does not let in.
fn reject_request(state: &ServerState, rejected: Option<TooManyRequests>) -> Response<TrackedBody> {
    state.request_log.record_rejection();
    time::burn_cpu(state.settings.rejection_cpu);
    let retry_after = rejected.as_ref().map_or(1, |rejected| rejected.retry_after);
    let mut response = endpoints::too_many_requests(retry_after);
    if let Some(rejected) = rejected {
        rejected
            .classification
            .insert_headers(response.headers_mut());
    }
    untracked(response)
}

fn tracked(response: Response<PlaygroundBody>, place: RequestGuard) -> Response<TrackedBody> {
    response.map(|body| TrackedBody::new(body, Some(place)))
}

#[cfg(test)]
mod tests;
