//! One client connection: the TLS handshake, HTTP/1.1 or HTTP/2, and its end.
//!
//! The HTTP settings follow kube-apiserver's. Where hyper cannot distinguish what Go's server can,
//! the constant says so. A panic ends one request only.

pub(crate) mod close_reason;
pub(crate) mod connection_guard;
pub mod connection_shares;
#[cfg(all(fuzzing, not(test)))]
pub(crate) mod head_model_tests;
#[cfg(test)]
pub(crate) mod head_model_tests;
pub(crate) mod head_monitor;
pub(crate) mod idle_timeout;
pub(crate) mod inspected_stream;
pub(crate) mod ordered_error;
pub(crate) mod stream_executor;
pub(crate) mod write_progress;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, error};

use crate::identity::PeerCertificate;
use crate::limits::memory_limit::MemoryLimit;
use crate::pipeline::Pipeline;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::connection::peer::{BodyDrainSlots, HoldState, Peer};
use crate::pipeline::connection::request_count::{CloseConnection, RequestCount};
use crate::pipeline::dependencies::WorkerDependencies;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::response::body::Body;
use crate::server::connection::close_reason::{
    ClientCloseReason, ConnectionMonitors, wait_for_http1_violation, wait_for_http2_violation,
};
use crate::server::connection::connection_guard::ConnectionGuard;
use crate::server::connection::head_monitor::{HeadMonitor, HeadTimer};
use crate::server::connection::idle_timeout::{Idle, IdleChecks, wait_for_idle_under_pressure};
use crate::server::connection::inspected_stream::{Http2InspectedStream, InspectedStream};
use crate::server::connection::ordered_error::{OrderedErrorBody, ResponseConnection};
use crate::server::connection::stream_executor::StreamExecutor;
use crate::server::connection::write_progress::WriteProgress;
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::handshake_queue::HandshakeQueue;
use crate::server::keepalive;
use crate::server::metrics::ServerMetrics;
use crate::server::pending_handshakes::PendingHandshakeGuard;
use crate::server::settings::{AddressLimit, ListenerSettings};
use crate::upstream::headers::detach_values;
use weir_base::clock::Clock;
use weir_base::drain::{Drain, DrainStage};
use weir_base::metrics::GaugeGuard;
use weir_base::sync::Mutex;
use weir_io::frame_scanner::PREFACE_LENGTH;
use weir_io::goaway::LastStreamId;
use weir_io::in_place;
use weir_io::not_tls::wait_for_tls;
use weir_io::proxy_protocol;
use weir_io::rare_events::{FirstReady, poll_with_rare_event};
use weir_io::staged_close::discard_until_closed;
use weir_io::tcp::TcpIo;
use weir_io::write_backpressure::{BackpressureBody, UnwrittenBytes};
use weir_io::write_coalescing::{CoalescingDriver, coalesce_writes};
use weir_kubernetes::numeric::{saturating_u64, saturating_usize};
use weir_limits::throttling::read_pacing::ReadPacing;

/// The longest handshake: enough for two lost packets. Go's server uses `ReadHeaderTimeout`, which
/// is no shorter for a well-behaved client.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake keeps its permit. The CPU time of a handshake is a few milliseconds.
const HANDSHAKE_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Go's `http.DefaultMaxHeaderBytes`.
const MAX_HEADER_BYTES: u32 = 1 << 20;

/// The most headers of an HTTP/1.1 request: a thousand `Impersonate-Group` and the usual ones.
/// Upstream limits the bytes only. hyper allocates and fills a table of 70 KB for so many with each
/// request, so a connection has it only after a head with more than fit hyper's default (100).
const MAX_HTTP1_HEADERS: usize = 1100;

/// The largest read buffer of an HTTP/1.1 connection in bytes: a request head must fit.
const MAX_HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// The window of a stream in bytes: kube-apiserver's for uploads.
const HTTP2_STREAM_WINDOW: u32 = 256 << 10;

/// How long a client has to accept the final response or the GOAWAY of its connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest window that HTTP/2 allows, in bytes.
const MAX_HTTP2_WINDOW: u32 = (1 << 31) - 1;

/// The send buffer of a stream in bytes, which limits the memory of a response that its client does
/// not read. Nothing else limits it, since the end of a response releases its seat.
const HTTP2_SEND_BUFFER: usize = 64 << 10;

/// The most streams that a client has reset before weir accepted them. With more, the connection is
/// closed (CVE-2023-44487).
const MAX_PENDING_RESET_STREAMS: usize = 1000;

/// What all connections of a worker share.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    /// Handles the requests. A request loads it once and keeps it to its end; a reload replaces it.
    pub(crate) pipeline: ArcSwap<Pipeline>,
    /// What the worker keeps for its pipelines.
    pub(crate) worker: WorkerDependencies,
    /// Memory for request heads that are incomplete.
    pub(crate) head_budget: Arc<HeadBudget>,
    /// Closes idle connections while the process uses too much memory.
    pub(crate) memory_limit: Arc<MemoryLimit>,
    /// The settings of new connections, shared by all workers.
    pub(crate) settings: Arc<ArcSwap<ListenerSettings>>,
    /// The stages of the shutdown.
    pub(crate) drain: Arc<Drain>,
    /// The queue for TLS handshakes.
    pub(crate) handshake_queue: Arc<HandshakeQueue>,
    /// The metrics of the server.
    pub(crate) metrics: ServerMetrics,
    /// Counts the turns of the worker's maintenance. Relaxed: no other memory depends on it.
    pub(crate) heartbeats: Arc<AtomicU64>,
}

/// What the requests of a connection share.
struct ClientConnection {
    peer: Peer,
    context: Arc<ConnectionContext>,
}

/// The stream of an HTTP/1.1 connection. Boxed, since it outlives what the library has of it.
type Http1Stream = Box<InspectedStream<TlsStream<TcpIo>>>;

/// Serves a connection until it is closed. Each phase has a box of its own: a connection has memory for
/// the one that it is in.
pub(crate) fn serve(
    tcp: TcpStream,
    address: SocketAddr,
    guard: ConnectionGuard,
    pending_guard: PendingHandshakeGuard,
    context: Arc<ConnectionContext>,
) -> impl Future<Output = ()> + Send + use<> {
    let accepting = in_place::pinned(|| accept(tcp, address, guard, pending_guard, context));
    async move {
        let serving = accepting.await;
        if let Some(serving) = serving {
            serving.await;
        }
    }
}

/// Performs the handshake. Returns what serves HTTP.
async fn accept(
    tcp: TcpStream,
    mut address: SocketAddr,
    mut guard: ConnectionGuard,
    mut pending_guard: PendingHandshakeGuard,
    context: Arc<ConnectionContext>,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    let evicted = pending_guard.wait_for_eviction();
    let settings = context.settings.load_full();
    let peer_address = address;
    let handshaking = handshake(
        tcp,
        &mut address,
        &mut guard,
        &mut pending_guard,
        &settings,
        &context,
    );
    let result = tokio::select! {
        biased;
        result = timeout(HANDSHAKE_TIMEOUT, handshaking) => result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        () = evicted => Err(io::Error::other("a client with fewer connections takes the slot")),
    };
    let stream = match result {
        Ok(stream) => stream,
        Err(why) => {
            let now = Clock.now();
            context.metrics.record_handshake_error(address, &why, now);
            drop(guard);
            drop(pending_guard); // this completes an eviction
            return None;
        }
    };
    drop(pending_guard);
    let peer = peer(&stream, address, peer_address, &settings, &context);
    let open = GaugeGuard::new(context.metrics.open_connections.clone());
    let budget = &context.head_budget;
    let head_monitor = HeadMonitor::new(
        settings.serving.connections.request_header_timeout,
        budget,
        peer.source_network(),
    );
    let monitors = ConnectionMonitors {
        head_monitor,
        write_stall: Arc::default(),
    };
    let write_progress = WriteProgress::new(&monitors.write_stall, &context.worker.deadlines);
    let client = Arc::new(ClientConnection { peer, context });
    let held = (guard, open);
    if is_http2(&stream) {
        keepalive::enable_http2(stream.get_ref().0.tcp());
        let serving = serve_http2(stream, write_progress, client, monitors, settings, held);
        Some(Box::pin(serving))
    } else {
        let requests = Arc::<RequestCount>::default();
        let write_progress = write_progress.with_unread(requests.unread());
        let stream = in_place::boxed(|| InspectedStream {
            stream,
            requests,
            head_monitor: Arc::clone(&monitors.head_monitor),
            unwritten_bytes: Arc::default(),
            write_progress,
            pacing: ReadPacing::default(),
            unparsed: Bytes::new(),
            takes_many_fields: false,
            rejection_response: None,
            response_suppressed: false,
            _guard: held,
        });
        Some(Box::pin(serve_http1(stream, client, monitors, settings)))
    }
}

fn is_http2(stream: &TlsStream<TcpIo>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// The client at `address`, whose connection comes from `peer_address`.
fn peer(
    stream: &TlsStream<TcpIo>,
    address: SocketAddr,
    peer_address: SocketAddr,
    settings: &ListenerSettings,
    context: &ConnectionContext,
) -> Peer {
    let certificate = PeerCertificate::new(stream.get_ref().1.peer_certificates()).map(Arc::new);
    // An address from the PROXY protocol is the client's, even if it is in `--trusted-proxies`: the
    // proxy passes bytes on without checking identity headers.
    let trusted = address == peer_address && settings.is_trusted_proxy(peer_address);
    Peer {
        address,
        address_value: OnceLock::new(),
        connection_id: fastrand::u64(..),
        trusted,
        certificate,
        trust: context.pipeline.load().trust_observer(),
        unverified_user: OnceLock::new(),
        last_user: Mutex::default(),
        levers_at_start: context.pipeline.load().latest_lever(),
        hold_state: HoldState::new(if is_http2(stream) {
            saturating_usize(
                settings
                    .serving
                    .connections
                    .http2_max_streams_per_connection,
            )
        } else {
            1
        }),
        body_drain_slots: BodyDrainSlots::default(),
    }
}

/// Performs the TLS handshake once there is a permit for it. A PROXY header sets `address` to the
/// client's.
async fn handshake(
    mut tcp: TcpStream,
    address: &mut SocketAddr,
    guard: &mut ConnectionGuard,
    pending_guard: &mut PendingHandshakeGuard,
    settings: &ListenerSettings,
    context: &ConnectionContext,
) -> io::Result<TlsStream<TcpIo>> {
    let mut source = ConnectionSource::from_address(address.ip());
    if settings.is_trusted_proxy(*address) {
        source = ConnectionSource::TrustedProxy(address.ip());
        if settings.serving.proxies.proxy_protocol
            && let Some(client) = proxy_protocol::read_client_address(&mut tcp).await?
        {
            *address = client;
            source = ConnectionSource::from_address(client.ip());
            pending_guard.set_source(source);
            let free = settings.free_connections(context.drain.open_connections());
            guard
                .set_source(source, settings.address_limit(), free)
                .map_err(io::Error::other)?;
        }
    }
    wait_for_tls(&mut tcp).await?; // a silent client takes no permit
    let permit = context.handshake_queue.acquire(source).await;
    let permit = permit.ok_or_else(|| io::Error::other("too many wait for the handshake"))?;
    // Loaded here, since a client may be silent for long before its handshake.
    let tls = TlsAcceptor::from(Arc::clone(&context.settings.load().tls));
    let mut accepting = pin!(tls.accept(TcpIo::new(tcp, ()).limit_reads()));
    tokio::select! {
        result = accepting.as_mut() => return result,
        () = tokio::time::sleep(HANDSHAKE_PERMIT_TIMEOUT) => drop(permit), // it waits for its peer, not for the CPU
    }
    accepting.await
}

/// Serves HTTP/1.1. While a connection rests, the library has no part of it, and so no buffers.
async fn serve_http1(
    mut stream: Http1Stream,
    client: Arc<ClientConnection>,
    monitors: ConnectionMonitors,
    settings: Arc<ListenerSettings>,
) {
    let ClientConnection { peer, context } = &*client;
    let requests = Arc::clone(&stream.requests);
    let mut end = pin!(async {
        tokio::select! {
            end = wait_for_http1_violation(peer, &monitors) => end,
            () = wait_for_memory_pressure(&requests, &context.memory_limit) => ClientCloseReason::MemoryPressure,
            () = context.drain.reached(DrainStage::Closing) => ClientCloseReason::Drain,
            () = requests.going_away() => ClientCloseReason::Drain,
            () = wait_for_disconnect(peer, context) => ClientCloseReason::Drain,
        }
    });
    let mut idle = IdleChecks::http1();
    loop {
        let busy = in_place::pinned(|| {
            serve_until_quiet(
                stream,
                &client,
                &monitors,
                &settings,
                end.as_mut(),
                &mut idle,
            )
        });
        let Some(quiet) = busy.await else { return };
        stream = quiet;
        let ended = {
            let woken = pin!(async {
                tokio::select! {
                    () = stream.readable() => None,
                    () = idle.rest() => Some(ClientCloseReason::Idle),
                }
            });
            match poll_with_rare_event(woken, end.as_mut()).await {
                FirstReady::Main(ended) => ended,
                FirstReady::Rare(end) => Some(end),
            }
        };
        if let Some(end) = ended {
            record_close(peer, context, end);
            if end == ClientCloseReason::Drain {
                let _ = timeout(LINGER_TIMEOUT, stream.stream.shutdown()).await;
            }
            return;
        }
    }
}

/// Serves requests until the connection ends, has been quiet for some seconds, or has a head with more
/// fields than fit. Returns the stream in the last two cases.
async fn serve_until_quiet(
    stream: Http1Stream,
    client: &Arc<ClientConnection>,
    monitors: &ConnectionMonitors,
    settings: &ListenerSettings,
    end: impl Future<Output = ClientCloseReason>,
    idle: &mut IdleChecks,
) -> Option<Http1Stream> {
    let ClientConnection { peer, context } = &**client;
    let requests = Arc::clone(&stream.requests);
    let head_monitor = &monitors.head_monitor;
    let unwritten_bytes = Arc::<UnwrittenBytes>::clone(&stream.unwritten_bytes);
    let service = service_fn(|request: Request<Incoming>| {
        head_monitor.http1_record_request(!request.body().is_end_stream());
        let unwritten_bytes = Arc::clone(&unwritten_bytes);
        let response = respond(Arc::clone(client), &requests, request);
        response.map_ok(|response| {
            let sent_on = ResponseConnection::Http1(Arc::clone(unwritten_bytes.flushes()));
            let ordered = response.map(|body| OrderedErrorBody::new(body, sent_on));
            ordered.map(|body| BackpressureBody::new(body, unwritten_bytes))
        })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(HeadTimer::new(head_monitor))
        .header_read_timeout(settings.serving.connections.request_header_timeout) // ignored by `HeadTimer`
        .max_buf_size(MAX_HTTP1_BUFFER);
    if stream.takes_many_fields {
        builder.max_headers(MAX_HTTP1_HEADERS);
    }
    let mut connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let end = pin!(async {
        tokio::select! {
            end = end => Some(end),
            idle = idle.wait(&requests, || head_monitor.http1_is_between_heads()) => match idle {
                Idle::Quiet => None,
                Idle::TooLong => Some(ClientCloseReason::Idle),
            },
        }
    });
    let mut first = match poll_with_rare_event(Pin::new(&mut connection), end).await {
        FirstReady::Main(result) => FirstReady::Main(result),
        FirstReady::Rare(Some(end)) => FirstReady::Rare(end),
        FirstReady::Rare(None) => {
            let parts = connection.into_parts()?;
            let mut stream = parts.io.into_inner();
            if !parts.read_buf.is_empty() {
                stream.unparsed = parts.read_buf; // an empty part would keep the whole buffer
            }
            return Some(stream);
        }
    };
    let is_draining = matches!(first, FirstReady::Rare(ClientCloseReason::Drain));
    if is_draining {
        Pin::new(&mut connection).graceful_shutdown();
        let violation = pin!(wait_for_http1_violation(peer, monitors));
        first = poll_with_rare_event(Pin::new(&mut connection), violation).await;
    }
    let result = match first {
        FirstReady::Main(result) => result,
        // The stream writes the response when the library reads from it again.
        FirstReady::Rare(end @ ClientCloseReason::IncompleteHead(_)) => {
            match timeout(LINGER_TIMEOUT, Pin::new(&mut connection)).await {
                Ok(result) => result,
                Err(_) => {
                    record_close(peer, context, end);
                    return None;
                }
            }
        }
        FirstReady::Rare(end) => {
            record_close(peer, context, end);
            return None;
        }
    };
    let Some(parts) = connection.into_parts() else {
        log_connection_error(peer, result);
        return None;
    };
    let mut stream = parts.io.into_inner();
    let is_too_large = result.as_ref().is_err_and(hyper::Error::is_parse_too_large);
    if is_too_large && !is_draining && stream.may_reread() {
        stream.reread(parts.read_buf);
        return Some(stream);
    }
    finish_http1(peer, context, result, stream).await;
    None
}

/// Completes when a lever disconnects the client, by the user of its last request. What is in flight
/// ends by itself.
///
/// # Cancel safety
/// Nothing is lost.
async fn wait_for_disconnect(peer: &Peer, context: &ConnectionContext) {
    loop {
        let mut pulled = pin!(context.worker.lever_pulled.notified());
        // Before the look: a lever that is pulled in between wakes the connection.
        pulled.as_mut().enable();
        match context.pipeline.load().disconnect_after(peer) {
            Some(Duration::ZERO) => return,
            // Boxed: most connections do not pay for this memory. The lever may end before.
            Some(wait) => Box::pin(tokio::time::sleep(wait)).await,
            None => pulled.await,
        }
    }
}

/// Finishes a connection after the library has. `stream` is `None` if the protocol has changed. The
/// stream may have rejected an incomplete head and ended before `wait_for_error` was polled, or
/// have suppressed the library's response to a head that cannot be parsed.
async fn finish_http1(
    peer: &Peer,
    context: &ConnectionContext,
    result: Result<(), hyper::Error>,
    mut stream: Http1Stream,
) {
    if let Some(error) = stream.head_monitor.error() {
        record_close(peer, context, ClientCloseReason::IncompleteHead(error));
    } else if stream.response_suppressed
        && let Err(why) = &result
    {
        let why = InvalidHead::from_parse_error(why.to_string());
        let rejection = context.pipeline.load().reject_unparsed(peer, why);
        let _ = timeout(LINGER_TIMEOUT, stream.reject(&rejection)).await;
    }
    if stream.may_have_unread() {
        close_in_stages(stream).await;
    }
    log_connection_error(peer, result);
}

/// Shuts down the write half, and closes the connection when the client had time to read it.
async fn close_in_stages(mut stream: Http1Stream) {
    // The library has done it, unless reading failed.
    if let Ok(Ok(())) = timeout(LINGER_TIMEOUT, stream.stream.shutdown()).await {
        let (tcp, _) = stream.stream.into_inner();
        discard_until_closed(tcp).await;
    }
}

/// Serves HTTP/2. Not an `async fn`, whose future would have room for the stream twice.
fn serve_http2(
    stream: TlsStream<TcpIo>,
    write_progress: WriteProgress,
    client: Arc<ClientConnection>,
    monitors: ConnectionMonitors,
    settings: Arc<ListenerSettings>,
    held: (ConnectionGuard, GaugeGuard),
) -> impl Future<Output = ()> + Send + use<> {
    let connections = &settings.serving.connections;
    let requests = Arc::new(RequestCount::with_reset_limit(
        connections.http2_max_resets_per_second,
        Clock.now(),
    ));
    let write_progress = write_progress.with_unread(requests.unread());
    let last_stream = Arc::<LastStreamId>::default();
    let pacing = ReadPacing::with_reset_limit(connections.http2_max_resets_per_second, Clock.now());
    let stream = Http2InspectedStream::new(
        stream,
        &monitors.head_monitor,
        &last_stream,
        write_progress,
        pacing,
        |stream: &TlsStream<TcpIo>| keepalive::allow_pauses(stream.get_ref().0.tcp()),
    );
    let (stream, coalescer) = coalesce_writes(stream);
    async move {
        // Dropped in the reverse order: the socket is closed before it stops counting.
        let (_held, coalescer) = (held, coalescer);
        let ClientConnection { peer, context } = &*client;
        let connections = &settings.serving.connections;
        let close_stage = context.drain.close_stage();
        let service = service_fn(|request| {
            if connections.goaway_chance > 0.0 && fastrand::f64() < connections.goaway_chance {
                requests.go_away();
            }
            respond(Arc::clone(&client), &requests, request).map_ok(|response| {
                response.map(|body| OrderedErrorBody::new(body, ResponseConnection::Http2))
            })
        });
        let mut idle = IdleChecks::http2();
        // Boxed, so that it can be dropped with its requests before the connection is closed.
        let mut connection = Box::pin(
            http2_builder(
                StreamExecutor(Arc::clone(&requests)),
                settings
                    .serving
                    .connections
                    .http2_max_streams_per_connection,
            )
            .serve_connection(TokioIo::new(stream), service),
        );
        let end = pin!(async {
            tokio::select! {
                () = coalescer.insufficient_read(saturating_u64(PREFACE_LENGTH), HANDSHAKE_TIMEOUT) => ClientCloseReason::Silence,
                _ = idle.wait(&requests, || false) => ClientCloseReason::Idle,
                () = wait_for_memory_pressure(&requests, &context.memory_limit) => ClientCloseReason::MemoryPressure,
                () = context.drain.reached(close_stage) => ClientCloseReason::Drain,
                () = requests.going_away() => ClientCloseReason::Drain,
                () = wait_for_disconnect(peer, context) => ClientCloseReason::Drain,
                end = wait_for_http2_violation(peer, &monitors, &requests) => end,
            }
        });
        let driven = coalescer.drive(connection.as_mut());
        let first = poll_with_rare_event(pin!(driven), end).await;
        let mut end = match first {
            FirstReady::Main(result) => {
                drop(connection);
                return Box::pin(finish_http2(peer, result, &coalescer)).await;
            }
            FirstReady::Rare(end) => end,
        };
        if matches!(end, ClientCloseReason::Idle | ClientCloseReason::Drain) {
            record_close(peer, context, end);
            connection.as_mut().graceful_shutdown();
            let drain_timeout = end.drain_timeout();
            let drained = {
                let draining = pin!(coalescer.drive(connection.as_mut()));
                let violation = pin!(wait_for_http2_violation(peer, &monitors, &requests));
                timeout(drain_timeout, poll_with_rare_event(draining, violation)).await
            };
            end = match drained {
                Ok(FirstReady::Main(result)) => {
                    drop(connection);
                    return Box::pin(finish_http2(peer, result, &coalescer)).await;
                }
                Ok(FirstReady::Rare(end)) => end,
                Err(_) => return,
            };
        }
        record_close(peer, context, end);
        if end != ClientCloseReason::Silence {
            drop(connection);
            let goaway = last_stream.goaway_frame(end.http2_error());
            let _ = timeout(LINGER_TIMEOUT, async {
                if coalescer.close_write(&goaway).await.is_ok() {
                    discard_until_closed(&coalescer).await;
                }
            })
            .await;
        }
    }
}

/// Finishes a connection after the library has. A client that still reads the last response sends
/// WINDOW_UPDATE. One that is not read, or arrives after the close, resets the connection, and the
/// end of the response is lost.
async fn finish_http2(
    peer: &Peer,
    result: Result<(), hyper::Error>,
    coalescer: &CoalescingDriver<Http2InspectedStream<TlsStream<TcpIo>>>,
) {
    let has_ended_well = result.is_ok();
    log_connection_error(peer, result);
    // The library has closed the write side.
    if has_ended_well && let Ok(Ok(())) = timeout(LINGER_TIMEOUT, coalescer.close_write(&[])).await
    {
        discard_until_closed(coalescer).await;
    }
}

fn http2_builder(streams: StreamExecutor, max_streams: u32) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(max_streams)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        // The window has room for all streams, so that uploads to a slow upstream cannot block the
        // other streams of their connection.
        .initial_connection_window_size(
            max_streams
                .saturating_mul(HTTP2_STREAM_WINDOW)
                .min(MAX_HTTP2_WINDOW),
        )
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESET_STREAMS);
    builder
}

/// Completes when the connection is idle and its memory is needed.
///
/// # Cancel safety
/// The time starts again.
async fn wait_for_memory_pressure(requests: &RequestCount, memory: &MemoryLimit) {
    let exceeds_share = || memory.exceeds_share(requests.unread());
    wait_for_idle_under_pressure(requests, memory.observe(), exceeds_share).await;
}

fn record_close(peer: &Peer, context: &ConnectionContext, end: ClientCloseReason) {
    if let Some(reason) = end.metric_label() {
        context
            .metrics
            .closed_connections
            .with_label_values(&[reason])
            .inc();
        delay_reconnects(peer, context, end);
        debug!(client = %peer.address, reason, "a client's connection is closed");
    }
}

/// Delays new connections of an address that has exceeded a limit, unless it is a proxy's or stands
/// for many clients (`--max-connections-per-address=0`).
fn delay_reconnects(peer: &Peer, context: &ConnectionContext, end: ClientCloseReason) {
    if end.is_violation()
        && context.settings.load().address_limit() != AddressLimit::Unlimited
        && let Some(network) = peer.source_network()
    {
        let source = ConnectionSource::from_address(network);
        context.handshake_queue.record_violation(source);
    }
}

/// Handles a request. It counts as in flight until the end of its response. The futures are boxed,
/// since the library moves them several times on their way into a task.
fn respond(
    client: Arc<ClientConnection>,
    requests: &Arc<RequestCount>,
    request: Request<Incoming>,
) -> Pin<Box<impl Future<Output = Result<Response<Body>, Infallible>> + use<>>> {
    let active_request = requests.start();
    let (head, body) = request.into_parts();
    let http1 = head.version < Version::HTTP_2;
    let head = Box::new(head);
    let pipeline = client.context.pipeline.load_full();
    in_place::pinned(move || async move {
        let ClientConnection { peer, context } = &*client;
        let handled = AssertUnwindSafe(pipeline.handle(peer, head, body));
        let response = active_request.track(pin!(handled.catch_unwind())).await;
        let mut response = response.unwrap_or_else(|_| {
            context.metrics.panics.inc();
            error!(client = %peer.address, "a request ended in a panic; this is a defect, please report it");
            pipeline.panic_response()
        });
        if response.extensions().get::<CloseConnection>().is_some() {
            active_request.go_away();
        }
        if !http1 && response.body().is_forwarded() {
            detach_values(response.headers_mut());
        }
        let mut response = response.map(|body| body.with_end_guard(active_request));
        let closes = http1 && context.drain.is_draining();
        if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(response)
    })
}

fn log_connection_error(peer: &Peer, result: Result<(), hyper::Error>) {
    if let Err(why) = result {
        debug!(client = %peer.address, %why, "connection ended");
    }
}
