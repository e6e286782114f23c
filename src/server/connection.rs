//! One client's connection: the TLS handshake, HTTP/1.1 or HTTP/2, and its end.
//!
//! HTTP's settings are set on purpose, after kube-apiserver's own; where the library cannot be told apart what Go can,
//! the constant says so. A panic ends one request.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;
use tracing::error;

use crate::corked::cork;
use crate::drain::Drain;
use crate::drain::Stage;
use crate::identity::PeerCertificate;
use crate::metrics::Counted;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::begun::Begun;
use crate::pipeline::begun::Requests;
use crate::pipeline::body::Body;
use crate::pipeline::fragments::Fragments;
use crate::pipeline::holding::Patience;
use crate::pipeline::refusal::Encoding;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Skips;
use crate::server::Metrics;
use crate::server::aside::First;
use crate::server::aside::beside;
use crate::server::gate::Origin;
use crate::server::newcomers::Newcomer;
use crate::server::proxied;
use crate::server::quiet::quiet_for_too_long;
use crate::server::signs_of_life;
use crate::server::streams::Streams;
use crate::server::turns::Turns;
use crate::server::worker::Held;
use crate::wire::Wire;

/// Longest handshake: two lost packets' worth; Go's server gives `ReadHeaderTimeout`, which is no shorter for the honest.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What an HTTP/2 client sends before anything else, in bytes (RFC 9113, 3.4). The library asks for a sign of life only after it.
const PREFACE: u64 = 24;

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
    let trusted = serving.trusts(address);
    let peer = Arc::new(Peer {
        address,
        number: fastrand::u64(..),
        trusted,
        certificate,
        fragments: Arc::clone(&fragments),
        patience: Patience::new(if http2 {
            usize::try_from(serving.max_streams).unwrap_or(usize::MAX)
        } else {
            1
        }),
        skips: Skips::default(),
    });
    let open = Counted::one_more(serving.metrics.connections.clone());
    if http2 {
        serve_http2(stream, peer, &serving).await;
        drop((held, open));
    } else {
        let stream = LookedOver {
            stream,
            fragments,
            requests: Arc::default(),
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
    let service = service_fn(|request| {
        answer(
            Arc::clone(serving),
            Arc::clone(&peer),
            requests.begin(),
            request,
        )
    });
    let mut connection = pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(HEADERS)
            .max_buf_size(HTTP1_BUFFER)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
    );
    let end = pin!(async {
        tokio::select! {
            () = quiet_for_too_long(&requests) => End::Quiet,
            () = serving.drain.reached(Stage::Closing) => End::Farewell,
        }
    });
    match beside(connection.as_mut(), end).await {
        First::Main(ended) => log_end(&peer, ended),
        First::Aside(End::Silent | End::Quiet) => {}
        First::Aside(End::Farewell) => {
            connection.as_mut().graceful_shutdown();
            log_end(&peer, connection.await);
        }
    }
}

async fn serve_http2(stream: TlsStream<Wire>, peer: Arc<Peer>, serving: &Arc<Serving>) {
    let go_away = Arc::new(Notify::new());
    let requests = Arc::new(Requests::default());
    let service = service_fn(|request| {
        if serving.goaway_chance > 0.0 && fastrand::f64() < serving.goaway_chance {
            go_away.notify_one();
        }
        answer(
            Arc::clone(serving),
            Arc::clone(&peer),
            requests.begin(),
            request,
        )
    });
    signs_of_life::ask_http2(stream.get_ref().0.tcp());
    let (stream, cork) = cork(stream);
    let mut connection = pin!(
        http2::Builder::new(Streams(Arc::clone(&requests)))
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
            .max_pending_accept_reset_streams(RESET_UNSEEN)
            .serve_connection(TokioIo::new(stream), service)
    );
    let end = pin!(async {
        tokio::select! {
            () = cork.silence(PREFACE, HANDSHAKE_TIMEOUT) => End::Silent,
            () = quiet_for_too_long(&requests) => End::Quiet,
            () = serving.drain.reached(Stage::Closing) => End::Farewell,
            () = go_away.notified() => End::Farewell,
        }
    });
    let first = beside(pin!(cork.drive(connection.as_mut())), end).await;
    let end = match first {
        First::Main(ended) => return log_end(&peer, ended),
        First::Aside(end) => end,
    };
    if end == End::Silent {
        return debug!(client = %peer.address, "a connection that said nothing is closed");
    }
    connection.as_mut().graceful_shutdown();
    let leaving = cork.drive(connection.as_mut());
    if end == End::Farewell {
        return log_end(&peer, leaving.await);
    }
    if let Ok(ended) = timeout(FAREWELL, leaving).await {
        log_end(&peer, ended);
    }
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
}

/// In boxes: the library moves what it is given several times on its way into a task. The request is under way to the end of its
/// answer.
fn answer(
    serving: Arc<Serving>,
    peer: Arc<Peer>,
    begun: Begun,
    request: Request<Incoming>,
) -> Pin<Box<impl Future<Output = Result<Response<Body>, Infallible>>>> {
    let (head, body) = request.into_parts();
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
        Ok(answer.map(|body| body.ending(begun)))
    })
}

/// A connection whose bytes are looked over as they are read, and of which it is known whether some wait to be written.
struct LookedOver<S, H = (Held, Counted)> {
    stream: S,
    fragments: Arc<Fragments>,
    requests: Arc<Requests>,
    /// Here, because the stream outlives HTTP where the protocol changes: a tunnel is an open connection, too.
    _open: H,
}

impl<S, H> LookedOver<S, H> {
    fn noted<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.requests.set_unwritten(polled.is_pending());
        polled
    }
}

impl<S: AsyncRead + Unpin, H: Unpin> AsyncRead for LookedOver<S, H> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.fragments
            .look(buffer.filled().get(before..).unwrap_or_default());
        polled
    }
}

impl<S: AsyncWrite + Unpin, H: Unpin> AsyncWrite for LookedOver<S, H> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.noted(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn log_end(peer: &Peer, ended: Result<(), hyper::Error>) {
    if let Err(why) = ended {
        debug!(client = %peer.address, %why, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn it_is_known_that_a_client_has_not_read_all() {
        let (near, mut far) = tokio::io::duplex(8);
        let requests = Arc::<Requests>::default();
        let mut stream = LookedOver {
            stream: near,
            fragments: Arc::default(),
            requests: Arc::clone(&requests),
            _open: (),
        };
        let mut written = pin!(async { stream.write_all(&[7; 20]).await });
        assert!(written.as_mut().now_or_never().is_none());
        assert!(requests.unwritten());
        let mut read = [0; 20];
        let (written, read) = tokio::join!(written, far.read_exact(&mut read));
        assert!(written.is_ok() && read.is_ok());
        assert!(!requests.unwritten());
    }
}
