//! One client's connection: the TLS handshake, HTTP/1.1 or HTTP/2, and its end.
//!
//! HTTP's settings are set on purpose, after kube-apiserver's own; where the library cannot be told apart what Go can,
//! the constant says so. A panic ends one request.

pub(in crate::server) mod frame_scanner;
pub(in crate::server) mod head_monitor;
pub(in crate::server) mod idle_timeout;
pub(in crate::server) mod inspected_stream;
pub(in crate::server) mod rare_events;
pub(in crate::server) mod stream_executor;
pub(in crate::server) mod write_backpressure;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::TryFutureExt;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::StatusCode;
use http::Version;
use http::header;
use hyper::body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;
use tracing::error;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::drain::DrainStage;
use crate::identity::PeerCertificate;
use crate::io::TcpIo;
use crate::metrics::GaugeGuard;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::request_count::RequestCount;
use crate::pipeline::connection::target_fragments::TargetFragments;
use crate::pipeline::reject::BodyDrainSlots;
use crate::pipeline::reject::delay::HoldState;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::reject::rejection::StatusEncoding;
use crate::pipeline::response::body::Body;
use crate::server::ServerMetrics;
use crate::server::connection::frame_scanner::PREFACE_LENGTH;
use crate::server::connection::head_monitor::HeadMonitor;
use crate::server::connection::head_monitor::HeadTimer;
use crate::server::connection::head_monitor::IncompleteHeadError;
use crate::server::connection::idle_timeout::wait_for_idle_timeout;
use crate::server::connection::inspected_stream::Http2InspectedStream;
use crate::server::connection::inspected_stream::InspectedStream;
use crate::server::connection::inspected_stream::LastStreamId;
use crate::server::connection::rare_events::FirstReady;
use crate::server::connection::rare_events::poll_with_rare_event;
use crate::server::connection::stream_executor::StreamExecutor;
use crate::server::connection::write_backpressure::BackpressureBody;
use crate::server::connection::write_backpressure::UnwrittenBytes;
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::handshake_queue::HandshakeQueue;
use crate::server::keepalive;
use crate::server::pending_handshakes::PendingHandshakeGuard;
use crate::server::proxy_protocol;
use crate::server::worker::ConnectionGuard;
use crate::write_coalescing::coalesce_writes;

/// Longest handshake: two lost packets' worth; Go's server gives `ReadHeaderTimeout`, which is no shorter for the honest.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake keeps its turn: what it takes of the cores is a few milliseconds.
const HANDSHAKE_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Go's `http.DefaultMaxHeaderBytes`.
const MAX_HEADER_BYTES: u32 = 1 << 20;

/// Most headers of an HTTP/1.1 request: a thousand `Impersonate-Group` and the usual ones. Upstream counts bytes only.
const MAX_HTTP1_HEADERS: usize = 1100;

/// Read buffer of an HTTP/1.1 connection at its largest: a head must fit.
const MAX_HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// kube-apiserver's own for an upload.
const HTTP2_STREAM_WINDOW: u32 = 256 << 10;

/// How long a client whose HTTP/2 connection was quiet for too long has for the end of what it has not read: an answer counts
/// as over when its last bytes are the connection's. It can begin no more, and one that has nothing left goes at once.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a client has to take the answer or the GOAWAY with which its connection ends (Go's `rstAvoidanceDelay` is 0.5 s).
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// What HTTP/2 allows of a window.
const MAX_HTTP2_WINDOW: u32 = (1 << 31) - 1;

/// What an answer may have in memory that its client does not take: its end gives its seat back, so that nothing else bounds
/// it.
const HTTP2_SEND_BUFFER: usize = 64 << 10;

/// Streams that a client gave up before weir came to them: more, and its connection ends (CVE-2023-44487).
const MAX_PENDING_RESET_STREAMS: usize = 1000;

/// What all connections of a worker share.
#[derive(Debug)]
pub struct ConnectionContext {
    /// What answers.
    pub pipeline: Arc<Pipeline>,
    /// When to end.
    pub drain: Arc<Drain>,
    /// `--http2-max-streams-per-connection`.
    pub max_streams: u32,
    /// `--trusted-proxies`.
    pub trusted_proxies: Arc<[IpNet]>,
    /// `--proxy-protocol`.
    pub proxy_protocol: bool,
    /// Whose handshake may go on.
    pub handshake_queue: Arc<HandshakeQueue>,
    /// `--goaway-chance`, 0 to 0.02.
    pub goaway_chance: f64,
    /// `--request-header-timeout`; zero is none.
    pub header_timeout: Duration,
    /// `--http2-max-resets-per-second`; 0 is no limit.
    pub max_resets_per_second: u32,
    /// What is counted.
    pub metrics: ServerMetrics,
}

impl ConnectionContext {
    fn is_trusted_proxy(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&ip))
    }
}

/// Serves a connection to its end.
pub async fn serve(
    tcp: TcpStream,
    mut address: SocketAddr,
    (held, mut newcomer): (ConnectionGuard, PendingHandshakeGuard),
    tls: TlsAcceptor,
    serving: Arc<ConnectionContext>,
) {
    let displaced = newcomer.wait_for_eviction();
    let connected = address;
    let shaking = handshake(tcp, &mut address, &mut newcomer, &tls, &serving);
    let shaken = tokio::select! {
        biased;
        shaken = timeout(HANDSHAKE_TIMEOUT, shaking) => shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        () = displaced => Err(io::Error::other("somebody with fewer connections needs the place")),
    };
    let stream = match shaken {
        Ok(stream) => stream,
        Err(why) => {
            serving.metrics.handshake_errors.inc();
            debug!(client = %address, %why, "TLS handshake error");
            drop(held);
            return drop(newcomer); // now there is room
        }
    };
    drop(newcomer);
    let (_, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let certificate = PeerCertificate::new(session.peer_certificates());
    let fragments = Arc::new(TargetFragments::default());
    // A client that a proxy names speaks for itself, wherever it is: whoever passes its bytes on does not look at its headers.
    let trusted = address == connected && serving.is_trusted_proxy(connected);
    let peer = Arc::new(Peer {
        address,
        connection_id: fastrand::u64(..),
        trusted,
        certificate,
        unverified_user: OnceLock::new(),
        target_fragments: Arc::clone(&fragments),
        hold_state: HoldState::new(if http2 {
            usize::try_from(serving.max_streams).unwrap_or(usize::MAX)
        } else {
            1
        }),
        body_drain_slots: BodyDrainSlots::default(),
    });
    let open = GaugeGuard::new(serving.metrics.open_connections.clone());
    let budget = &serving.pipeline.head_budget;
    let heads = HeadMonitor::new(serving.header_timeout, budget, peer.source_network());
    if http2 {
        serve_http2(stream, peer, &heads, &serving).await;
        drop((held, open));
    } else {
        let stream = InspectedStream {
            stream,
            target_fragments: fragments,
            requests: Arc::default(),
            head_monitor: heads,
            unwritten_bytes: Arc::default(),
            rejection_response: None,
            response_suppressed: false,
            _guard: (held, open),
        };
        serve_http1(stream, peer, &serving).await;
    }
}

/// The TLS handshake, when its turn has come; `address` becomes the client's where a proxy tells it.
async fn handshake(
    mut tcp: TcpStream,
    address: &mut SocketAddr,
    newcomer: &mut PendingHandshakeGuard,
    tls: &TlsAcceptor,
    serving: &ConnectionContext,
) -> io::Result<TlsStream<TcpIo>> {
    let mut origin = ConnectionSource::from_address(address.ip());
    if serving.is_trusted_proxy(*address) {
        origin = ConnectionSource::TrustedProxy(address.ip());
        if serving.proxy_protocol
            && let Some(client) = proxy_protocol::read_client_address(&mut tcp).await?
        {
            *address = client;
            origin = ConnectionSource::from_address(client.ip());
            newcomer.set_source(origin);
        }
    }
    tcp.readable().await?; // who says nothing takes no turn
    let turn = serving.handshake_queue.acquire(origin).await;
    let turn = turn.ok_or_else(|| io::Error::other("too many wait for the handshake"))?;
    let mut accepting = pin!(tls.accept(TcpIo::new(tcp, ())));
    tokio::select! {
        shaken = accepting.as_mut() => return shaken,
        () = tokio::time::sleep(HANDSHAKE_PERMIT_TIMEOUT) => drop(turn), // it waits for its peer, not for us
    }
    accepting.await
}

async fn serve_http1(
    stream: InspectedStream<TlsStream<TcpIo>>,
    peer: Arc<Peer>,
    serving: &Arc<ConnectionContext>,
) {
    let requests = Arc::clone(&stream.requests);
    let heads = Arc::clone(&stream.head_monitor);
    let pace = Arc::<UnwrittenBytes>::clone(&stream.unwritten_bytes);
    let service = service_fn(|request: Request<Incoming>| {
        heads.http1_record_request(!request.body().is_end_stream());
        let pace = Arc::clone(&pace);
        let answered = respond(Arc::clone(serving), Arc::clone(&peer), &requests, request);
        answered.map_ok(|answer| answer.map(|body| BackpressureBody::new(body, pace)))
    });
    let mut connection = http1::Builder::new()
        .timer(HeadTimer::new(&heads))
        .header_read_timeout(serving.header_timeout) // the timer makes nothing of it
        .max_headers(MAX_HTTP1_HEADERS)
        .max_buf_size(MAX_HTTP1_BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let end = pin!(async {
        tokio::select! {
            fault = heads.wait_for_error() => ClientCloseReason::IncompleteHead(fault),
            () = wait_for_idle_timeout(&requests) => ClientCloseReason::Idle,
            () = serving.drain.reached(DrainStage::Closing) => ClientCloseReason::Drain,
        }
    });
    let mut first = poll_with_rare_event(Pin::new(&mut connection), end).await;
    if matches!(first, FirstReady::Rare(ClientCloseReason::Drain)) {
        Pin::new(&mut connection).graceful_shutdown();
        let fault = pin!(
            heads
                .wait_for_error()
                .map(ClientCloseReason::IncompleteHead)
        );
        first = poll_with_rare_event(Pin::new(&mut connection), fault).await;
    }
    let end = match first {
        FirstReady::Main(ended) => {
            let stream = connection.into_parts().map(|parts| parts.io.into_inner());
            // In a box, so that a connection does not hold room for its stream twice.
            return Box::pin(finish_http1(&peer, serving, ended, stream)).await;
        }
        FirstReady::Rare(end) => end,
    };
    record_close(&peer, serving, end);
    if matches!(end, ClientCloseReason::IncompleteHead(_)) {
        // The stream answers, when the library reads it again.
        let _ = timeout(LINGER_TIMEOUT, Pin::new(&mut connection)).await;
    }
}

/// The library has ended; the stream is not there if it changed its protocol. The stream may have refused a head and come to its end
/// in one step, before that was heard of, or swallowed the library's answer to a head that cannot be parsed.
async fn finish_http1(
    peer: &Peer,
    serving: &ConnectionContext,
    ended: Result<(), hyper::Error>,
    stream: Option<InspectedStream<TlsStream<TcpIo>>>,
) {
    if let Some(mut stream) = stream {
        if let Some(fault) = stream.head_monitor.error() {
            record_close(peer, serving, ClientCloseReason::IncompleteHead(fault));
        } else if stream.response_suppressed
            && let Err(why) = &ended
        {
            let why = InvalidHead::from_parse_error(why.to_string());
            let refusal = serving.pipeline.reject_unparsed(peer, why);
            let _ = timeout(LINGER_TIMEOUT, stream.reject(&refusal)).await;
        }
    }
    log_connection_error(peer, ended);
}

async fn serve_http2(
    stream: TlsStream<TcpIo>,
    peer: Arc<Peer>,
    heads: &Arc<HeadMonitor>,
    serving: &Arc<ConnectionContext>,
) {
    let go_away = Arc::new(Notify::new());
    let told_at = serving.drain.close_stage();
    let requests = Arc::new(RequestCount::with_reset_limit(
        serving.max_resets_per_second,
        Clock.now(),
    ));
    let service = service_fn(|request| {
        if serving.goaway_chance > 0.0 && fastrand::f64() < serving.goaway_chance {
            go_away.notify_one();
        }
        respond(Arc::clone(serving), Arc::clone(&peer), &requests, request)
    });
    keepalive::enable_http2(stream.get_ref().0.tcp());
    let last_stream = Arc::<LastStreamId>::default();
    let (stream, cork) = coalesce_writes(Http2InspectedStream::new(stream, heads, &last_stream));
    // In a box, so that it can be dropped, and its requests with it, before the connection is closed.
    let mut connection = Box::pin(
        http2_builder(StreamExecutor(Arc::clone(&requests)), serving)
            .serve_connection(TokioIo::new(stream), service),
    );
    let preface = u64::try_from(PREFACE_LENGTH).unwrap_or(u64::MAX);
    let end = pin!(async {
        tokio::select! {
            () = cork.insufficient_read(preface, HANDSHAKE_TIMEOUT) => ClientCloseReason::Silence,
            () = wait_for_idle_timeout(&requests) => ClientCloseReason::Idle,
            () = serving.drain.reached(told_at) => ClientCloseReason::Drain,
            () = go_away.notified() => ClientCloseReason::Drain,
            end = wait_for_client_violation(heads, &requests) => end,
        }
    });
    let driven = heads.with_block_limit(cork.drive(connection.as_mut()));
    let first = poll_with_rare_event(pin!(driven), end).await;
    let mut end = match first {
        FirstReady::Main(ended) => return log_connection_error(&peer, ended),
        FirstReady::Rare(end) => end,
    };
    if matches!(end, ClientCloseReason::Idle | ClientCloseReason::Drain) {
        record_close(&peer, serving, end);
        connection.as_mut().graceful_shutdown();
        let farewell = if end == ClientCloseReason::Idle {
            DRAIN_TIMEOUT
        } else {
            Duration::MAX
        };
        let leaving = pin!(heads.with_block_limit(cork.drive(connection.as_mut())));
        let too_much = pin!(wait_for_client_violation(heads, &requests));
        let leaving = poll_with_rare_event(leaving, too_much);
        end = match timeout(farewell, leaving).await {
            Ok(FirstReady::Main(ended)) => return log_connection_error(&peer, ended),
            Ok(FirstReady::Rare(end)) => end,
            Err(_) => return,
        };
    }
    record_close(&peer, serving, end);
    if end != ClientCloseReason::Silence {
        drop(connection);
        let _ = timeout(LINGER_TIMEOUT, cork.finish(&last_stream.goaway_frame())).await;
    }
}

/// Comes when a client is too much for its HTTP/2 connection to go on. Cancel safety: nothing is lost.
async fn wait_for_client_violation(
    heads: &HeadMonitor,
    requests: &RequestCount,
) -> ClientCloseReason {
    tokio::select! {
        fault = heads.wait_for_error() => ClientCloseReason::IncompleteHead(fault),
        () = requests.reset_limit_exceeded() => ClientCloseReason::TooManyResets,
    }
}

fn http2_builder(
    streams: StreamExecutor,
    serving: &ConnectionContext,
) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(serving.max_streams)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        // Room for all streams: uploads that the upstream takes slowly cannot stop the others of their connection.
        .initial_connection_window_size(
            serving
                .max_streams
                .saturating_mul(HTTP2_STREAM_WINDOW)
                .min(MAX_HTTP2_WINDOW),
        )
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESET_STREAMS);
    builder
}

/// Why weir ends a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientCloseReason {
    /// Nothing was said on it.
    Silence,
    /// Nothing has been asked on it for a long time.
    Idle,
    /// Its requests are to be finished, and no more begun.
    Drain,
    /// A request's head is incomplete.
    IncompleteHead(IncompleteHeadError),
    /// Too many of its requests were cancelled.
    TooManyResets,
}

impl ClientCloseReason {
    /// The word of the metric; `None` for what is no fault of the client's.
    const fn metric_label(self) -> Option<&'static str> {
        Some(match self {
            Self::Silence => "silence",
            Self::Idle => "idle",
            Self::Drain => return None,
            Self::IncompleteHead(IncompleteHeadError::Timeout) => "head_timeout",
            Self::IncompleteHead(IncompleteHeadError::BudgetExceeded) => "head_budget",
            Self::TooManyResets => "resets",
        })
    }
}

fn record_close(peer: &Peer, serving: &ConnectionContext, end: ClientCloseReason) {
    if let Some(reason) = end.metric_label() {
        serving
            .metrics
            .closed_connections
            .with_label_values(&[reason])
            .inc();
        debug!(client = %peer.address, reason, "a client's connection is closed");
    }
}

/// In boxes: the library moves what it is given several times on its way into a task. The request is under way to the end of its
/// answer.
fn respond(
    serving: Arc<ConnectionContext>,
    peer: Arc<Peer>,
    requests: &Arc<RequestCount>,
    request: Request<Incoming>,
) -> Pin<Box<impl Future<Output = Result<Response<Body>, Infallible>> + use<>>> {
    let (begun, unfinished) = (requests.start(), requests.reset_guard());
    let (head, body) = request.into_parts();
    let http1 = head.version < Version::HTTP_2;
    let head = Box::new(head);
    Box::pin(async move {
        let handled = AssertUnwindSafe(serving.pipeline.handle(&peer, head, body));
        let answered = begun.track(pin!(handled.catch_unwind())).await;
        let answer = answered.unwrap_or_else(|_| {
            serving.metrics.panics.inc();
            error!(client = %peer.address, "a request ended in a panic; this is a defect, please report it");
            serving
                .pipeline
                .rejection_responses
                .respond(&RequestRejection::Panic, StatusEncoding::Json)
        });
        let mut answer = answer.map(|body| body.with_end_guards(begun, unfinished));
        let ends = http1 && serving.drain.is_draining();
        if ends && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(answer)
    })
}

fn log_connection_error(peer: &Peer, ended: Result<(), hyper::Error>) {
    if let Err(why) = ended {
        debug!(client = %peer.address, %why, "connection ended");
    }
}
