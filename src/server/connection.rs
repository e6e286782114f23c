//! One client's connection: the TLS handshake, HTTP/1.1 or HTTP/2, and its end.
//!
//! HTTP's settings are set on purpose, after kube-apiserver's own; where the library cannot be told apart what Go can,
//! the constant says so. A panic ends one request.

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
use crate::corked::cork;
use crate::drain::Drain;
use crate::drain::Stage;
use crate::identity::PeerCertificate;
use crate::metrics::Counted;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::begun::Requests;
use crate::pipeline::body::Body;
use crate::pipeline::fragments::Fragments;
use crate::pipeline::holding::Patience;
use crate::pipeline::invalid_head::InvalidHead;
use crate::pipeline::refusal::Encoding;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Skips;
use crate::pipeline::request_body::source;
use crate::server::Metrics;
use crate::server::aside::First;
use crate::server::aside::beside;
use crate::server::frame_scan::PREFACE;
use crate::server::gate::Origin;
use crate::server::heads::HeadFault;
use crate::server::heads::HeadTimer;
use crate::server::heads::HeadWatch;
use crate::server::inspected::LastStream;
use crate::server::inspected::LookedOver;
use crate::server::inspected::Scanned;
use crate::server::newcomers::Newcomer;
use crate::server::pacing::Pace;
use crate::server::pacing::Paced;
use crate::server::proxied;
use crate::server::quiet::quiet_for_too_long;
use crate::server::signs_of_life;
use crate::server::streams::Streams;
use crate::server::turns::Turns;
use crate::server::worker::Held;
use crate::wire::Wire;

/// Longest handshake: two lost packets' worth; Go's server gives `ReadHeaderTimeout`, which is no shorter for the honest.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handshake keeps its turn: what it takes of the cores is a few milliseconds.
const TURN: Duration = Duration::from_secs(1);

/// Go's `http.DefaultMaxHeaderBytes`.
const HEADER_BYTES: u32 = 1 << 20;

/// Most headers of an HTTP/1.1 request: a thousand `Impersonate-Group` and the usual ones. Upstream counts bytes only.
const HEADERS: usize = 1100;

/// Read buffer of an HTTP/1.1 connection at its largest: a head must fit.
const HTTP1_BUFFER: usize = (1 << 20) + (64 << 10);

/// kube-apiserver's own for an upload.
const STREAM_WINDOW: u32 = 256 << 10;

/// How long a client whose HTTP/2 connection was quiet for too long has for the end of what it has not read: an answer counts
/// as over when its last bytes are the connection's. It can begin no more, and one that has nothing left goes at once.
const FAREWELL: Duration = Duration::from_secs(600);

/// How long a client has to take the answer or the GOAWAY with which its connection ends (Go's `rstAvoidanceDelay` is 0.5 s).
const LINGER: Duration = Duration::from_secs(1);

/// What HTTP/2 allows of a window.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;

/// What an answer may have in memory that its client does not take: its end gives its seat back, so that nothing else bounds
/// it.
const SEND_BUFFER: usize = 64 << 10;

/// Streams that a client gave up before weir came to them: more, and its connection ends (CVE-2023-44487).
const RESET_UNSEEN: usize = 1000;

/// What all connections of a worker share.
#[derive(Debug)]
pub struct Serving {
    /// What answers.
    pub pipeline: Arc<Pipeline>,
    /// When to end.
    pub drain: Arc<Drain>,
    /// `--http2-max-streams-per-connection`.
    pub max_streams: u32,
    /// `--trusted-proxies`.
    pub trusted: Arc<[IpNet]>,
    /// `--proxy-protocol`.
    pub proxy_protocol: bool,
    /// Whose handshake may go on.
    pub turns: Arc<Turns>,
    /// `--goaway-chance`, 0 to 0.02.
    pub goaway_chance: f64,
    /// `--request-header-timeout`; zero is none.
    pub header_timeout: Duration,
    /// `--http2-max-resets-per-second`; 0 is no limit.
    pub resets_per_second: u32,
    /// What is counted.
    pub metrics: Metrics,
}

impl Serving {
    fn trusts(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.trusted.iter().any(|net| net.contains(&ip))
    }
}

/// Serves a connection to its end.
pub async fn serve(
    tcp: TcpStream,
    mut address: SocketAddr,
    (held, mut newcomer): (Held, Newcomer),
    tls: TlsAcceptor,
    serving: Arc<Serving>,
) {
    let displaced = newcomer.displaced();
    let connected = address;
    let shaking = shake(tcp, &mut address, &mut newcomer, &tls, &serving);
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
    let fragments = Arc::new(Fragments::default());
    // A client that a proxy names speaks for itself, wherever it is: whoever passes its bytes on does not look at its headers.
    let trusted = address == connected && serving.trusts(connected);
    let peer = Arc::new(Peer {
        address,
        number: fastrand::u64(..),
        trusted,
        certificate,
        unverified: OnceLock::new(),
        fragments: Arc::clone(&fragments),
        patience: Patience::new(if http2 {
            usize::try_from(serving.max_streams).unwrap_or(usize::MAX)
        } else {
            1
        }),
        skips: Skips::default(),
    });
    let open = Counted::one_more(serving.metrics.connections.clone());
    let budget = &serving.pipeline.heads;
    let heads = HeadWatch::new(serving.header_timeout, budget, source(&peer));
    if http2 {
        serve_http2(stream, peer, &heads, &serving).await;
        drop((held, open));
    } else {
        let stream = LookedOver {
            stream,
            fragments,
            requests: Arc::default(),
            heads,
            pace: Arc::default(),
            refusal: None,
            swallowed: false,
            _open: (held, open),
        };
        serve_http1(stream, peer, &serving).await;
    }
}

/// The TLS handshake, when its turn has come; `address` becomes the client's where a proxy tells it.
async fn shake(
    mut tcp: TcpStream,
    address: &mut SocketAddr,
    newcomer: &mut Newcomer,
    tls: &TlsAcceptor,
    serving: &Serving,
) -> io::Result<TlsStream<Wire>> {
    let mut origin = Origin::of(address.ip());
    if serving.trusts(*address) {
        origin = Origin::Trusted(address.ip());
        if serving.proxy_protocol
            && let Some(client) = proxied::client(&mut tcp).await?
        {
            *address = client;
            origin = Origin::of(client.ip());
            newcomer.is_from(origin);
        }
    }
    tcp.readable().await?; // who says nothing takes no turn
    let turn = serving.turns.take(origin).await;
    let turn = turn.ok_or_else(|| io::Error::other("too many wait for the handshake"))?;
    let mut accepting = pin!(tls.accept(Wire::new(tcp, ())));
    tokio::select! {
        shaken = accepting.as_mut() => return shaken,
        () = tokio::time::sleep(TURN) => drop(turn), // it waits for its peer, not for us
    }
    accepting.await
}

async fn serve_http1(stream: LookedOver<TlsStream<Wire>>, peer: Arc<Peer>, serving: &Arc<Serving>) {
    let requests = Arc::clone(&stream.requests);
    let heads = Arc::clone(&stream.heads);
    let pace = Arc::<Pace>::clone(&stream.pace);
    let service = service_fn(|request: Request<Incoming>| {
        heads.http1_request(!request.body().is_end_stream());
        let pace = Arc::clone(&pace);
        let answered = answer(Arc::clone(serving), Arc::clone(&peer), &requests, request);
        answered.map_ok(|answer| answer.map(|body| Paced::new(body, pace)))
    });
    let mut connection = http1::Builder::new()
        .timer(HeadTimer::new(&heads))
        .header_read_timeout(serving.header_timeout) // the timer makes nothing of it
        .max_headers(HEADERS)
        .max_buf_size(HTTP1_BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let end = pin!(async {
        tokio::select! {
            fault = heads.fault() => End::Head(fault),
            () = quiet_for_too_long(&requests) => End::Quiet,
            () = serving.drain.reached(Stage::Closing) => End::Farewell,
        }
    });
    let mut first = beside(Pin::new(&mut connection), end).await;
    if matches!(first, First::Aside(End::Farewell)) {
        Pin::new(&mut connection).graceful_shutdown();
        let fault = pin!(heads.fault().map(End::Head));
        first = beside(Pin::new(&mut connection), fault).await;
    }
    let end = match first {
        First::Main(ended) => {
            let stream = connection.into_parts().map(|parts| parts.io.into_inner());
            // In a box, so that a connection does not hold room for its stream twice.
            return Box::pin(end_http1(&peer, serving, ended, stream)).await;
        }
        First::Aside(end) => end,
    };
    record_close(&peer, serving, end);
    if matches!(end, End::Head(_)) {
        // The stream answers, when the library reads it again.
        let _ = timeout(LINGER, Pin::new(&mut connection)).await;
    }
}

/// The library has ended; the stream is not there if it changed its protocol. The stream may have refused a head and come to its end
/// in one step, before that was heard of, or swallowed the library's answer to a head that cannot be parsed.
async fn end_http1(
    peer: &Peer,
    serving: &Serving,
    ended: Result<(), hyper::Error>,
    stream: Option<LookedOver<TlsStream<Wire>>>,
) {
    if let Some(mut stream) = stream {
        if let Some(fault) = stream.heads.known_fault() {
            record_close(peer, serving, End::Head(fault));
        } else if stream.swallowed
            && let Err(why) = &ended
        {
            let why = InvalidHead::unparsed(why.to_string());
            let refusal = serving.pipeline.reject_unparsed(peer, why);
            let _ = timeout(LINGER, stream.reject(&refusal)).await;
        }
    }
    log_end(peer, ended);
}

async fn serve_http2(
    stream: TlsStream<Wire>,
    peer: Arc<Peer>,
    heads: &Arc<HeadWatch>,
    serving: &Arc<Serving>,
) {
    let go_away = Arc::new(Notify::new());
    let told_at = serving.drain.told_at();
    let requests = Arc::new(Requests::with_reset_limit(
        serving.resets_per_second,
        Clock.now(),
    ));
    let service = service_fn(|request| {
        if serving.goaway_chance > 0.0 && fastrand::f64() < serving.goaway_chance {
            go_away.notify_one();
        }
        answer(Arc::clone(serving), Arc::clone(&peer), &requests, request)
    });
    signs_of_life::ask_http2(stream.get_ref().0.tcp());
    let last_stream = Arc::<LastStream>::default();
    let (stream, cork) = cork(Scanned::new(stream, heads, &last_stream));
    // In a box, so that it can be dropped, and its requests with it, before the connection is closed.
    let mut connection = Box::pin(
        http2_settings(Streams(Arc::clone(&requests)), serving)
            .serve_connection(TokioIo::new(stream), service),
    );
    let preface = u64::try_from(PREFACE).unwrap_or(u64::MAX);
    let end = pin!(async {
        tokio::select! {
            () = cork.silence(preface, HANDSHAKE_TIMEOUT) => End::Silent,
            () = quiet_for_too_long(&requests) => End::Quiet,
            () = serving.drain.reached(told_at) => End::Farewell,
            () = go_away.notified() => End::Farewell,
            end = too_much(heads, &requests) => end,
        }
    });
    let driven = heads.with_block_limit(cork.drive(connection.as_mut()));
    let first = beside(pin!(driven), end).await;
    let mut end = match first {
        First::Main(ended) => return log_end(&peer, ended),
        First::Aside(end) => end,
    };
    if matches!(end, End::Quiet | End::Farewell) {
        record_close(&peer, serving, end);
        connection.as_mut().graceful_shutdown();
        let farewell = if end == End::Quiet {
            FAREWELL
        } else {
            Duration::MAX
        };
        let leaving = pin!(heads.with_block_limit(cork.drive(connection.as_mut())));
        let too_much = pin!(too_much(heads, &requests));
        let leaving = beside(leaving, too_much);
        end = match timeout(farewell, leaving).await {
            Ok(First::Main(ended)) => return log_end(&peer, ended),
            Ok(First::Aside(end)) => end,
            Err(_) => return,
        };
    }
    record_close(&peer, serving, end);
    if end != End::Silent {
        drop(connection);
        let _ = timeout(LINGER, cork.finish(&last_stream.go_away())).await;
    }
}

/// Comes when a client is too much for its HTTP/2 connection to go on. Cancel safety: nothing is lost.
async fn too_much(heads: &HeadWatch, requests: &Requests) -> End {
    tokio::select! {
        fault = heads.fault() => End::Head(fault),
        () = requests.reset_too_often() => End::Resets,
    }
}

fn http2_settings(streams: Streams, serving: &Serving) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(serving.max_streams)
        .max_header_list_size(HEADER_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        // Room for all streams: uploads that the upstream takes slowly cannot stop the others of their connection.
        .initial_connection_window_size(
            serving
                .max_streams
                .saturating_mul(STREAM_WINDOW)
                .min(LARGEST_WINDOW),
        )
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(RESET_UNSEEN);
    builder
}

/// Why weir ends a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing was said on it.
    Silent,
    /// Nothing has been asked on it for a long time.
    Quiet,
    /// Its requests are to be finished, and no more begun.
    Farewell,
    /// A request's head is incomplete.
    Head(HeadFault),
    /// Too many of its requests were cancelled.
    Resets,
}

impl End {
    /// The word of the metric; `None` for what is no fault of the client's.
    const fn reason(self) -> Option<&'static str> {
        Some(match self {
            Self::Silent => "silence",
            Self::Quiet => "idle",
            Self::Farewell => return None,
            Self::Head(HeadFault::TooSlow) => "head_timeout",
            Self::Head(HeadFault::NoRoom) => "head_budget",
            Self::Resets => "resets",
        })
    }
}

fn record_close(peer: &Peer, serving: &Serving, end: End) {
    if let Some(reason) = end.reason() {
        serving.metrics.closed.with_label_values(&[reason]).inc();
        debug!(client = %peer.address, reason, "a client's connection is closed");
    }
}

/// In boxes: the library moves what it is given several times on its way into a task. The request is under way to the end of its
/// answer.
fn answer(
    serving: Arc<Serving>,
    peer: Arc<Peer>,
    requests: &Arc<Requests>,
    request: Request<Incoming>,
) -> Pin<Box<impl Future<Output = Result<Response<Body>, Infallible>> + use<>>> {
    let (begun, unfinished) = (requests.begin(), requests.unfinished());
    let (head, body) = request.into_parts();
    let http1 = head.version < Version::HTTP_2;
    let head = Box::new(head);
    Box::pin(async move {
        let handled = AssertUnwindSafe(serving.pipeline.handle(&peer, head, body));
        let answered = begun.watch(pin!(handled.catch_unwind())).await;
        let answer = answered.unwrap_or_else(|_| {
            serving.metrics.panics.inc();
            error!(client = %peer.address, "a request ended in a panic; this is a defect, please report it");
            serving
                .pipeline
                .refusals
                .respond(&Refusal::Panic, Encoding::Json)
        });
        let mut answer = answer.map(|body| body.ending(begun, unfinished));
        let ends = http1 && serving.drain.moving();
        if ends && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(answer)
    })
}

fn log_end(peer: &Peer, ended: Result<(), hyper::Error>) {
    if let Err(why) = ended {
        debug!(client = %peer.address, %why, "connection ended");
    }
}
