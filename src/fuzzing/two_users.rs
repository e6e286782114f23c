//! Whole requests of two users through one pipeline, in front of an API server that marks each answer
//! with the user that it saw.
//!
//! An input is text in parts, with the byte 255 between them. Its first byte is `1` for an API server
//! that speaks HTTP/1.1 only. Parts begin with what they are:
//!
//! | first byte | the rest |
//! |---|---|
//! | `a`, `b` | bytes that the client of alice or bob sends on its connection |
//! | `A`, `B` | nothing: the client closes its connection, and sends on another from then on |
//! | `s` | how the API server answers the next requests, a byte each ([`Behaviour`]) |
//! | others | nothing: weir and the API server have a millisecond |
//!
//! In all that a client receives is no mark but its user's, and at the end nothing is held. The next
//! request of each user gets its own answer then: no connection to the API server is left out of step.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::flowcontrol::controller::{Controller, ControllerConfig, Enforcement};
use crate::identity::client_certificate::{CertificateVerifier, PeerCertificate};
use crate::identity::tokens::TokenConfig;
use crate::identity::{LocalAuthenticators, RequestAuthenticator, TokenAuthenticator};
use crate::limits::Admission;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::limits::levers::Levers;
use crate::limits::list_bytes::ListBytes;
use crate::limits::memory_limit::MemoryLimit;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::limits::watch_starts::WatchStarts;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::connection::peer::{BodyDrainSlots, HoldState, Peer};
use crate::pipeline::dependencies::{
    PipelineSettings, SharedDependencies, TransferConfig, WorkerDependencies,
};
use crate::pipeline::reject::body_drain::BodyDrainBudget;
use crate::pipeline::reject::delay::{RejectionDelay, RejectionDelayConfig};
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::{Deadlines, SlowTransfers};
use crate::pipeline::trace::RequestMetrics;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::connection_budget::{ConnectionBudget, SlotMetrics};
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::{self, Upstream, UpstreamConfig, UpstreamMetrics, UpstreamProtocol};
use weir_base::drain::Drain;
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap::{self, BootstrapClass};
use weir_limits::rate::{RateLimits, RateLimitsConfig};
use weir_limits::throttling::memory_budget::MemoryBudget;
use weir_limits::throttling::minimum_rate::MinimumRate;
use weir_x509::CertificatePool;

const USERS: [&str; 2] = ["alice", "bob"];

/// Between the parts of an input.
const SEPARATOR: u8 = 0xff;

/// What a connection in memory takes before it is read: more than an input is long.
const BUFFER: usize = 1 << 20;

/// How long the API server waits for the rest of a request's body before it answers.
const BODY_PATIENCE: Duration = Duration::from_millis(10);

/// How long an answer that is under way has before its client leaves.
const SETTLE_TIME: Duration = Duration::from_millis(20);

/// What is held is released sooner: a cancelled request has a second.
const RELEASE_TIME: Duration = Duration::from_secs(10);

const PROBE: &[u8] = b"PUT /api/v1/namespaces/a/configmaps/c HTTP/1.1\r\nhost: weir\r\n\
    connection: close\r\ncontent-length: 2\r\n\r\n{}";

/// How the API server answers a request.
#[derive(Clone, Copy)]
enum Behaviour {
    /// After the body, with a known length.
    Answer,
    /// Before the body, of which it reads nothing.
    Early,
    /// In chunks, with a pause between them.
    Chunks,
    /// It breaks off in the middle of its answer.
    BreakOff,
    /// It closes the connection instead.
    Close,
    /// The request's connection is the last one's.
    LastOfConnection,
    /// As if the user were not authenticated.
    Unauthorized,
}

impl From<u8> for Behaviour {
    fn from(byte: u8) -> Self {
        match byte % 7 {
            0 => Self::Answer,
            1 => Self::Early,
            2 => Self::Chunks,
            3 => Self::BreakOff,
            4 => Self::Close,
            5 => Self::LastOfConnection,
            _ => Self::Unauthorized,
        }
    }
}

/// What the API server does, and how it marks the answers of each user. The marks are new for each
/// input: none is in an input by chance.
#[derive(Default)]
struct Script {
    behaviours: VecDeque<u8>,
    marks: [String; 2],
    /// What is wrong with the requests that it has got.
    faults: Vec<String>,
}

/// A pipeline and the API server behind it.
struct PipelineBeforeServer {
    runtime: Runtime,
    pipeline: Arc<Pipeline>,
    certificates: [Arc<PeerCertificate>; 2],
    controller: Arc<Controller>,
    bodies: Arc<MemoryBudget>,
    drain: Arc<Drain>,
    script: Arc<Mutex<Script>>,
}

/// Runs one input.
pub(super) fn run(bytes: &[u8]) {
    static PIPELINES: OnceLock<[Mutex<PipelineBeforeServer>; 2]> = OnceLock::new();
    let fixtures = PIPELINES.get_or_init(|| {
        let protocols: [&[&[u8]]; 2] = [&[b"h2", b"http/1.1"], &[b"http/1.1"]];
        protocols.map(|protocols| Mutex::new(PipelineBeforeServer::new(protocols)))
    });
    let fixture = fixtures[usize::from(bytes.first() == Some(&b'1'))].lock();
    let parts = bytes.get(1..).unwrap_or_default();
    fixture.runtime.block_on(fixture.run(parts));
}

impl PipelineBeforeServer {
    fn new(protocols: &[&[u8]]) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let (servers, clients) = (FuzzingCa::new(), FuzzingCa::new());
        let script = Arc::<Mutex<Script>>::default();
        let server = servers.issue("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
        let tls = server_tls(server, &clients, protocols);
        let entered = runtime.enter();
        let address = runtime.block_on(serve_api(tls, Arc::clone(&script)));
        let registry = Registry::new();
        let config = ControllerConfig {
            server_concurrency_limit: 20,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        };
        let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
        let objects = classes.into_iter().flat_map(bootstrap::objects);
        let controller = Controller::new(config, objects, &registry);
        let verifier = CertificateVerifier::new(clients.roots(), provider()).unwrap();
        let shared = shared(&controller, verifier, &registry);
        let (bodies, drain) = (
            Arc::clone(&shared.request_body_budget),
            Arc::clone(&shared.drain),
        );
        let front_proxy = clients.issue("weir", ExtendedKeyUsagePurpose::ClientAuth);
        let upstream = UpstreamConfig {
            servers: vec![ServerAddress::new(
                address.to_string().parse().unwrap(),
                "127.0.0.1".try_into().unwrap(),
            )],
            endpoint_slices: false,
            roots: servers.roots(),
            front_proxy: Some(Arc::new(front_proxy)),
            max_http2_connections: 1,
            protocol: UpstreamProtocol::Auto,
            max_connections: 1024,
            instance_id: instance_id(),
            probe_interval: None,
        };
        let worker = worker(&upstream, &registry);
        let pipeline = Arc::new(Pipeline::new(Arc::new(shared), worker));
        let certificates = USERS.map(|user| {
            let issued = clients.issue(user, ExtendedKeyUsagePurpose::ClientAuth);
            Arc::new(PeerCertificate::new(Some(&issued.cert)).unwrap())
        });
        drop(entered);
        Self {
            runtime,
            pipeline,
            certificates,
            controller,
            bodies,
            drain,
            script,
        }
    }

    async fn run(&self, parts: &[u8]) {
        let marks = USERS.map(|user| format!("{user}-{:016x}", fastrand::u64(..)));
        *self.script.lock() = Script {
            marks: marks.clone(),
            ..Script::default()
        };
        let mut clients = [const { None::<Client> }; 2];
        for part in parts.split(|byte| *byte == SEPARATOR) {
            let Some((kind, rest)) = part.split_first() else {
                continue;
            };
            match kind {
                b'a' | b'b' => {
                    let user = usize::from(*kind == b'b');
                    let client = clients[user].get_or_insert_with(|| self.connect(user));
                    client.send(rest).await;
                }
                b'A' | b'B' => clients[usize::from(*kind == b'B')] = None,
                b's' => self.script.lock().behaviours.extend(rest),
                _ => sleep(Duration::from_millis(1)).await,
            }
        }
        let _ = timeout(SETTLE_TIME, self.idle()).await; // answers that are under way
        drop(clients);
        self.released().await;
        self.script.lock().behaviours.clear();
        for (user, mark) in marks.iter().enumerate() {
            let mut client = self.connect(user);
            client.send(PROBE).await;
            let answer = timeout(RELEASE_TIME, client.answers()).await;
            let answer = answer.expect("the next request is answered");
            let answer = String::from_utf8_lossy(&answer);
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && answer.contains(mark),
                "{answer}"
            );
        }
        self.released().await;
        assert_eq!(self.script.lock().faults, [""; 0]);
    }

    /// Waits until nothing is held.
    async fn idle(&self) {
        // What has arrived is handled first.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        while self.held() != (0, 0, 0) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Seats in use or waited for, bytes of bodies, and open requests.
    fn held(&self) -> (u32, usize, usize) {
        let seats = self.controller.seat_use();
        let requests = self.drain.open_requests() + self.drain.open_watches();
        (
            seats.in_use.saturating_add(seats.waiting),
            self.bodies.used(),
            requests,
        )
    }

    async fn released(&self) {
        let released = timeout(RELEASE_TIME, self.idle()).await;
        assert!(
            released.is_ok(),
            "seats, memory or requests are left: {:?}",
            self.held()
        );
    }

    /// A connection of this user. What it receives is checked as it arrives.
    fn connect(&self, user: usize) -> Client {
        let (client, server) = tokio::io::duplex(BUFFER);
        let peer = Arc::new(Peer {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            address_value: OnceLock::new(),
            connection_id: fastrand::u64(..),
            trusted: false,
            certificate: Some(Arc::clone(&self.certificates[user])),
            trust: self.pipeline.trust_observer(),
            unverified_user: OnceLock::new(),
            last_user: Default::default(),
            levers_at_start: 0,
            hold_state: HoldState::new(1),
            body_drain_slots: BodyDrainSlots::default(),
        });
        let pipeline = Arc::clone(&self.pipeline);
        let service = service_fn(move |request: Request<Incoming>| {
            let (pipeline, peer) = (Arc::clone(&pipeline), Arc::clone(&peer));
            async move {
                let (head, body) = request.into_parts();
                Ok::<_, Infallible>(pipeline.handle(&peer, Box::new(head), body).await)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), service);
        tokio::spawn(connection);
        let (receiver, sender) = tokio::io::split(client);
        Client {
            sender,
            receiver,
            received: Vec::new(),
            other_mark: self.script.lock().marks[1 - user].clone(),
        }
    }
}

/// A client's connection.
struct Client {
    sender: WriteHalf<DuplexStream>,
    receiver: ReadHalf<DuplexStream>,
    received: Vec<u8>,
    other_mark: String,
}

impl Client {
    /// Sends bytes, and has weir run.
    async fn send(&mut self, bytes: &[u8]) {
        let _ = self.sender.write_all(bytes).await; // weir may have closed it
        tokio::task::yield_now().await;
    }

    /// All that it receives until weir closes the connection.
    async fn answers(&mut self) -> Vec<u8> {
        let _ = self.receiver.read_to_end(&mut self.received).await; // it is closed, or broken
        self.check();
        std::mem::take(&mut self.received)
    }

    fn check(&self) {
        let mark = memchr::memmem::find(&self.received, self.other_mark.as_bytes());
        assert!(
            mark.is_none(),
            "a user received {}",
            self.received.escape_ascii()
        );
    }
}

/// What has arrived by then is checked.
impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.receiver.read_to_end(&mut self.received).now_or_never();
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// Serves the API, and returns its address.
async fn serve_api(tls: TlsAcceptor, script: Arc<Mutex<Script>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, script) = (tls.clone(), Arc::clone(&script));
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else {
                    return;
                };
                let connection = stream.get_ref().1;
                let is_http2 = connection.alpn_protocol() == Some(b"h2");
                // As kube-apiserver: without the certificate, the headers name no user.
                let is_front_proxy = connection.peer_certificates().is_some();
                let service = service_fn(|request| answer(request, is_front_proxy, &script));
                let stream = TokioIo::new(stream);
                if is_http2 {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let service = service_fn(move |request| {
                        let script = Arc::clone(&script);
                        async move { answer(request, is_front_proxy, &script).await }
                    });
                    drop(server.serve_connection(stream, service).await);
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    drop(server.serve_connection(stream, service).await);
                }
            });
        }
    });
    address
}

async fn answer(
    request: Request<Incoming>,
    is_front_proxy: bool,
    script: &Mutex<Script>,
) -> Result<Response<Answer>, BrokenOff> {
    let (head, body) = request.into_parts();
    let (behaviour, mark) = {
        let mut script = script.lock();
        let behaviour = script.behaviours.pop_front().unwrap_or_default();
        let mut users = head.headers.get_all("x-remote-user").iter();
        let user = users.next().filter(|_| is_front_proxy);
        if users.next().is_some() {
            script.faults.push(format!("two users in one: {head:?}"));
        }
        let user = USERS
            .iter()
            .position(|name| user.is_some_and(|user| user == *name));
        let mark = user.map_or_else(|| "nobody".to_owned(), |user| script.marks[user].clone());
        (Behaviour::from(behaviour), mark)
    };
    if !matches!(behaviour, Behaviour::Early | Behaviour::Close) {
        let _ = timeout(BODY_PATIENCE, body.collect()).await; // it ends, or breaks off
    }
    let response = Response::builder().header("x-seen", &mark);
    let response = match behaviour {
        Behaviour::Close => return Err(BrokenOff),
        Behaviour::LastOfConnection => response.header(header::CONNECTION, "close"),
        Behaviour::Unauthorized => response.status(StatusCode::UNAUTHORIZED),
        Behaviour::Answer | Behaviour::BreakOff | Behaviour::Chunks | Behaviour::Early => response,
    };
    let frames = 1 + usize::from(matches!(behaviour, Behaviour::BreakOff | Behaviour::Chunks));
    let body = Answer {
        frames: vec![Bytes::from(mark); frames],
        behaviour,
        has_paused: false,
    };
    Ok(response.body(body).unwrap())
}

/// Why an answer ends early.
#[derive(Debug, thiserror::Error)]
#[error("the API server breaks off")]
struct BrokenOff;

/// The body of an answer.
struct Answer {
    frames: Vec<Bytes>,
    behaviour: Behaviour,
    has_paused: bool,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if self.frames.len() == 1 && !self.is_end_stream() && !self.has_paused {
            self.has_paused = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.frames.len() == 1 && matches!(self.behaviour, Behaviour::BreakOff) {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        Poll::Ready(self.frames.pop().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if matches!(self.behaviour, Behaviour::Chunks) {
            return SizeHint::default();
        }
        let length: usize = self.frames.iter().map(Bytes::len).sum();
        SizeHint::with_exact(u64::try_from(length).unwrap())
    }
}

/// A CA.
struct FuzzingCa {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl FuzzingCa {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> CertifiedKey {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider()).unwrap()
    }

    fn roots(&self) -> CertificatePool {
        CertificatePool::of_parsable([&self.certificate])
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn server_tls(own: CertifiedKey, clients: &FuzzingCa, protocols: &[&[u8]]) -> TlsAcceptor {
    let mut roots = RootCertStore::empty();
    roots.add(clients.certificate.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

fn instance_id() -> InstanceId {
    InstanceId::from_bytes([1; 16])
}

fn shared(
    controller: &Arc<Controller>,
    verifier: CertificateVerifier,
    registry: &Registry,
) -> SharedDependencies {
    let tokens = TokenConfig {
        issuers: Vec::new(),
        service_accounts: None,
        api_server: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        cache_ttl: Duration::from_secs(120),
    };
    let tokens = TokenAuthenticator::new(tokens, registry);
    let local = LocalAuthenticators {
        certificates: Some(verifier),
        ..LocalAuthenticators::default()
    };
    let authenticator = RequestAuthenticator::new(local, tokens);
    let rates = RateLimitsConfig {
        events: None,
        clients: Vec::new(),
        policies: Vec::new(),
    };
    let delay = RejectionDelayConfig {
        rejection_hold: Duration::ZERO,
        max_rejection_millicores: 0,
    };
    SharedDependencies {
        authenticator: Arc::new(authenticator.unwrap()),
        impersonation_authorizer: None,
        identity_headers: Arc::default(),
        rates: Arc::new(RateLimits::new(&rates, registry)),
        admission: Admission::Fairness(Arc::clone(controller)),
        memory_limit: MemoryLimit::new(0, registry),
        abandoned_backlog: AbandonedBacklog::new(registry),
        levers: Levers::new(registry),
        list_bytes: ListBytes::new(|| (1, 1), registry),
        watch_starts: WatchStarts::new(registry),
        upgrade_rate: UpgradeRateLimit::new(0, registry),
        head_budget: HeadBudget::new(registry),
        request_body_budget: MemoryBudget::new(64 << 20),
        body_drain_budget: BodyDrainBudget::new(registry),
        loop_detector: LoopDetector::register(instance_id(), registry),
        rejection_responses: Arc::default(),
        rejection_delay: Arc::new(RejectionDelay::new(delay, registry)),
        drain: Drain::new(),
        metrics: RequestMetrics::register(registry),
        upstream_log_limiter: Arc::default(),
        settings: PipelineSettings {
            request_timeout: Duration::from_secs(3600),
            transfers: TransferConfig::default(),
            classify_impersonated: false,
            sampler: None,
            has_audit_log: false,
            explain_responses: false,
        },
    }
}

fn worker(upstream: &UpstreamConfig, registry: &Registry) -> WorkerDependencies {
    let slots = ConnectionBudget::new(upstream.max_connections, &SlotMetrics::register(registry));
    let upstream = Upstream::new(
        upstream,
        &upstream::server_set(upstream, registry),
        &slots,
        None,
        &UpstreamMetrics::register(registry),
    );
    WorkerDependencies {
        upstream: Arc::new(upstream),
        abandoned_requests: AbandonedRequests::new(AbandonedRequests::register(registry)),
        deadlines: Deadlines::new(MinimumRate::default(), SlowTransfers::register(registry)),
        observers: Arc::from([]),
        lever_pulled: Arc::default(),
    }
}
