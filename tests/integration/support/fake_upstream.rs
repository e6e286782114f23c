//! An API server that the test controls step by step.
//!
//! [`Upstream`] accepts connections and hands every request to the test as an [`Exchange`], over
//! HTTP/1.1 and HTTP/2. [`RawUpstream`] hands over the connections themselves.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Response;
use rustls::ServerConfig;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::message::{Framing, ReceivedBody, ReceivedRequest, SentBody, header_map};
use crate::support::raw_http1::{BoxedStream, RawHttp1, limit_socket_buffers};
use crate::support::{HttpVersion, UnexpectedEnd, certificates, within};

/// A connection of weir.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    /// Its index, from 0.
    pub(crate) number: usize,
    /// The common name of its client certificate.
    pub(crate) certificate: Option<String>,
    pub(crate) http: HttpVersion,
    commands: mpsc::UnboundedSender<ConnectionCommand>,
}

#[derive(Debug)]
enum ConnectionCommand {
    Cut,
    GoAway,
}

impl UpstreamConnection {
    /// Closes an HTTP/2 connection immediately, without GOAWAY.
    pub(crate) fn cut(&self) {
        let _ = self.commands.send(ConnectionCommand::Cut); // it may be closed already
    }

    /// Sends GOAWAY and completes the requests in flight.
    pub(crate) fn go_away(&self) {
        let _ = self.commands.send(ConnectionCommand::GoAway);
    }
}

/// The protocols of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocols {
    alpn: &'static [&'static [u8]],
    max_streams: u32,
}

/// HTTP/2 and HTTP/1.1, as kube-apiserver.
pub(crate) const HTTP2_AND_HTTP1: Protocols = Protocols {
    alpn: &[b"h2", b"http/1.1"],
    max_streams: 100,
};

/// HTTP/1.1 alone.
pub(crate) const HTTP1_ONLY: Protocols = Protocols {
    alpn: &[b"http/1.1"],
    max_streams: 0,
};

/// As kube-apiserver, with fewer streams on a connection.
pub(crate) const fn with_max_streams(max_streams: u32) -> Protocols {
    Protocols {
        max_streams,
        ..HTTP2_AND_HTTP1
    }
}

/// An address that the system chose and that stays reserved while this is held, whether a listener
/// exists or not.
#[derive(Clone, Debug)]
pub(crate) struct ReservedAddress {
    pub(crate) address: SocketAddr,
    /// Bound, but not listening: listeners can bind the same address.
    _socket: Arc<Socket>,
}

impl ReservedAddress {
    pub(crate) fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).unwrap();
        Self {
            address: socket.local_addr().unwrap().as_socket().unwrap(),
            _socket: Arc::new(socket),
        }
    }
}

/// The value of `readyz` with which no probe is answered.
const HELD: u16 = 1;

/// The fake API server.
pub(crate) struct FakeUpstream {
    pub(crate) address: SocketAddr,
    /// Keeps the address reserved after the listener is closed. Another test could get it
    /// otherwise.
    pub(crate) reservation: ReservedAddress,
    exchanges: mpsc::UnboundedReceiver<Exchange>,
    accepted: Arc<AtomicUsize>,
    /// Whether the test responds to weir's own requests.
    self_checks_exposed: Arc<AtomicBool>,
    /// Whether the test responds to weir's lists and watches of flow schemas and priority levels.
    flowcontrol_exposed: Arc<AtomicBool>,
    /// Whether the test responds to weir's probes of readiness.
    readyz_exposed: Arc<AtomicBool>,
    /// The status of `/readyz`, if the test does not respond itself; 0 otherwise.
    readyz: Arc<AtomicU16>,
    /// Dropping it ends every connection that no exchange holds.
    _tasks: JoinSet<()>,
}

impl FakeUpstream {
    /// An upstream that speaks the protocols of kube-apiserver.
    pub(crate) async fn start() -> Self {
        Self::with_protocols(HTTP2_AND_HTTP1).await
    }

    /// An upstream that gets one kind of requests over this HTTP version.
    pub(crate) async fn preferring(http: HttpVersion) -> Self {
        Self::with_protocols(if http == HttpVersion::Http2 {
            HTTP2_AND_HTTP1
        } else {
            HTTP1_ONLY
        })
        .await
    }

    pub(crate) async fn with_protocols(speaks: Protocols) -> Self {
        Self::bind(ReservedAddress::reserve(), speaks, &pki().server).await
    }

    /// An upstream with this certificate.
    pub(crate) async fn with_certificate(own: &IssuedCertificate) -> Self {
        Self::bind(ReservedAddress::reserve(), HTTP2_AND_HTTP1, own).await
    }

    /// An upstream on a reserved address.
    pub(crate) async fn restart_at(place: ReservedAddress) -> Self {
        Self::bind(place, HTTP2_AND_HTTP1, &pki().server).await
    }

    async fn bind(place: ReservedAddress, speaks: Protocols, own: &IssuedCertificate) -> Self {
        let listener = TcpListener::bind(place.address).await.unwrap();
        let tls = certificates::upstream_tls_config(speaks.alpn, own);
        let (sender, mut all) = mpsc::unbounded_channel::<Exchange>();
        let (kept, exchanges) = mpsc::unbounded_channel();
        let connection_count = Arc::new(AtomicUsize::new(0));
        let sees_self_checks = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&sees_self_checks);
        let flowcontrol_exposed = Arc::new(AtomicBool::new(false));
        let sees_flowcontrol = Arc::clone(&flowcontrol_exposed);
        let readyz_exposed = Arc::new(AtomicBool::new(false));
        let sees_readyz = Arc::clone(&readyz_exposed);
        let readyz = Arc::<AtomicU16>::default();
        let status = Arc::clone(&readyz);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut held = Vec::new();
            while let Some(exchange) = all.recv().await {
                let status = status.load(Ordering::SeqCst);
                if status == HELD && exchange.request.is_readiness_probe() {
                    held.push(exchange);
                    continue;
                }
                if status > 0 && exchange.request.target == "/readyz" {
                    tokio::spawn(exchange.respond(status, "as the test says"));
                    continue;
                }
                if exchange.request.is_readiness_probe() && !sees_readyz.load(Ordering::SeqCst) {
                    tokio::spawn(exchange.respond(200, "ok"));
                    continue;
                }
                match exchange.request.self_check_response() {
                    Some(response) if !sees.load(Ordering::SeqCst) => {
                        tokio::spawn(exchange.respond(201, response));
                    }
                    // weir reads flow schemas from an upstream of its own: see
                    // `cluster_flowcontrol`.
                    None if exchange.request.reads_flowcontrol()
                        && !sees_flowcontrol.load(Ordering::SeqCst) =>
                    {
                        tokio::spawn(exchange.respond(403, "{}"));
                    }
                    _ => drop(kept.send(exchange)), // the test may have ended
                }
            }
        });
        tasks.spawn(accept(
            listener,
            Arc::new(tls),
            speaks,
            sender,
            Arc::clone(&connection_count),
        ));
        Self {
            address: place.address,
            reservation: place,
            exchanges,
            accepted: connection_count,
            self_checks_exposed: sees_self_checks,
            flowcontrol_exposed,
            readyz_exposed,
            readyz,
            _tasks: tasks,
        }
    }

    /// From now on the test responds to weir's own requests. Before, they succeed automatically.
    pub(crate) fn expose_self_checks(self) -> Self {
        self.self_checks_exposed.store(true, Ordering::SeqCst);
        self
    }

    /// From now on the test responds to weir's lists and watches of flow schemas and priority
    /// levels. Before, they are forbidden.
    pub(crate) fn expose_flowcontrol(self) -> Self {
        self.flowcontrol_exposed.store(true, Ordering::SeqCst);
        self
    }

    /// Whether the test responds to weir's probes of readiness from now on. Before, they succeed
    /// automatically.
    pub(crate) fn expose_readyz(&self, exposed: bool) {
        self.readyz_exposed.store(exposed, Ordering::SeqCst);
    }

    /// From now on no probe of readiness is answered, as if the server hung.
    pub(crate) fn hold_probes(&self) {
        self.readyz.store(HELD, Ordering::SeqCst);
    }

    /// From now on `/readyz` answers with this status.
    pub(crate) fn answer_readyz(&self, status: u16) {
        self.readyz.store(status, Ordering::SeqCst);
    }

    /// The next request on any connection.
    pub(crate) async fn next_exchange(&mut self) -> Exchange {
        within("a request to reach the upstream", self.exchanges.recv())
            .await
            .unwrap()
    }

    /// The next request, without a timeout. `None` after weir has ended.
    pub(crate) async fn next_exchange_without_timeout(&mut self) -> Exchange {
        match self.exchanges.recv().await {
            Some(exchange) => exchange,
            None => std::future::pending().await,
        }
    }

    /// Fails if an unexpected request has arrived.
    pub(crate) fn assert_no_request(&mut self) {
        if let Ok(exchange) = self.exchanges.try_recv() {
            panic!("the upstream saw {:?}", exchange.request);
        }
    }

    /// The number of connections so far, including closed ones.
    pub(crate) fn connection_count(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    speaks: Protocols,
    exchanges: mpsc::UnboundedSender<Exchange>,
    made: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        limit_socket_buffers(&tcp);
        let acceptor = TlsAcceptor::from(Arc::clone(&tls));
        let (exchanges, made) = (exchanges.clone(), Arc::clone(&made));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(tcp).await else {
                return;
            };
            let (orders, ordered) = mpsc::unbounded_channel();
            let peer = Arc::new(UpstreamConnection {
                number: made.fetch_add(1, Ordering::SeqCst),
                certificate: common_name(&stream),
                http: negotiated_version(&stream),
                commands: orders,
            });
            match peer.http {
                HttpVersion::Http1 => serve_http1(RawHttp1::new(stream), &peer, &exchanges).await,
                HttpVersion::Http2 => serve_http2(stream, speaks, &peer, ordered, &exchanges).await,
            }
        });
    }
}

fn common_name(stream: &TlsStream<TcpStream>) -> Option<String> {
    let chain = stream.get_ref().1.peer_certificates()?;
    let (_, certificate) = X509Certificate::from_der(chain.first()?).unwrap();
    let name = certificate.subject().iter_common_name().next()?;
    Some(name.as_str().unwrap().to_owned())
}

fn negotiated_version(stream: &TlsStream<TcpStream>) -> HttpVersion {
    if stream.get_ref().1.alpn_protocol() == Some(HttpVersion::Http2.alpn()) {
        HttpVersion::Http2
    } else {
        HttpVersion::Http1
    }
}

async fn serve_http1(
    mut wire: RawHttp1,
    peer: &Arc<UpstreamConnection>,
    exchanges: &mpsc::UnboundedSender<Exchange>,
) {
    loop {
        // An idle connection may wait for long: no timeout here.
        let Ok(Some(lines)) = wire.reader.read_head_without_timeout().await else {
            return;
        };
        let received = ReceivedRequest::from_lines(&lines);
        let framing = Framing::from_request(&received.headers);
        let (home, returned) = oneshot::channel();
        let exchange = Exchange {
            request: received,
            connection: Arc::clone(peer),
            request_body: wire.reader.into_body(framing),
            responder: ExchangeResponder::Http1 {
                outgoing: SentBody::Http1 {
                    writer: wire.writer,
                    chunked: false,
                },
                home: Some(home),
            },
        };
        if exchanges.send(exchange).is_err() {
            return;
        }
        match returned.await {
            Ok(back) => wire = back,
            Err(_) => return, // closed by `ConnectionCommand::Cut`
        }
    }
}

/// A stream without vectored writes. With them, h2 0.4.20 can close a connection that it has sent a
/// GOAWAY on while responses are not sent yet, which would not be weir's doing.
struct PlainWrites(TlsStream<TcpStream>);

impl AsyncRead for PlainWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PlainWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn serve_http2(
    stream: TlsStream<TcpStream>,
    speaks: Protocols,
    peer: &Arc<UpstreamConnection>,
    mut ordered: mpsc::UnboundedReceiver<ConnectionCommand>,
    exchanges: &mpsc::UnboundedSender<Exchange>,
) {
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(speaks.max_streams)
        .max_header_list_size(2 << 20)
        .handshake(PlainWrites(stream))
        .await;
    let Ok(mut connection) = handshake else {
        return;
    };
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            order = ordered.recv() => match order {
                Some(ConnectionCommand::GoAway) => {
                    connection.graceful_shutdown();
                    continue;
                }
                Some(ConnectionCommand::Cut) | None => return,
            },
        };
        let Some(Ok((request, respond))) = accepted else {
            return;
        };
        let (parts, body) = request.into_parts();
        let exchange = Exchange {
            request: ReceivedRequest::from_http2(&parts),
            connection: Arc::clone(peer),
            request_body: ReceivedBody::http2(body),
            responder: ExchangeResponder::Http2(respond, None),
        };
        if exchanges.send(exchange).is_err() {
            return;
        }
    }
}

/// A request at the upstream that waits for the test's response. Dropping it closes an HTTP/1.1
/// connection and resets a stream.
pub(crate) struct Exchange {
    pub(crate) request: ReceivedRequest,
    pub(crate) connection: Arc<UpstreamConnection>,
    pub(crate) request_body: ReceivedBody,
    responder: ExchangeResponder,
}

enum ExchangeResponder {
    Http1 {
        outgoing: SentBody,
        home: Option<oneshot::Sender<RawHttp1>>,
    },
    Http2(SendResponse<Bytes>, Option<SentBody>),
}

impl Exchange {
    /// The complete request body.
    pub(crate) async fn read_body(&mut self) -> Bytes {
        self.request_body.read_to_end().await.unwrap()
    }

    /// Sends the response head without a body.
    pub(crate) async fn send_head(&mut self, status: u16, headers: &[(&str, &str)]) {
        self.try_send_head(status, headers).await.unwrap();
    }

    /// As [`Exchange::send_head`]. Errors are returned.
    pub(crate) async fn try_send_head(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
    ) -> Result<(), UnexpectedEnd> {
        let bodiless = self.request.method == "HEAD" || matches!(status, 204 | 304);
        match &mut self.responder {
            ExchangeResponder::Http1 {
                outgoing: SentBody::Http1 { writer, chunked },
                ..
            } => {
                let mut head = format!("HTTP/1.1 {status} Said\r\n");
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                let has_length = headers
                    .iter()
                    .any(|(n, _)| n.eq_ignore_ascii_case("content-length"));
                *chunked = !has_length && !bodiless;
                if *chunked {
                    head.push_str("transfer-encoding: chunked\r\n");
                }
                head.push_str("\r\n");
                writer.send(head).await?;
            }
            ExchangeResponder::Http2(respond, outgoing) => {
                let mut response = Response::new(());
                *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                *response.headers_mut() = header_map(headers.iter().copied());
                let stream = respond.send_response(response, bodiless)?;
                *outgoing = Some(SentBody::Http2(stream));
            }
            ExchangeResponder::Http1 { .. } => unreachable!("HTTP/1.1 goes by HTTP/1.1"),
        }
        Ok(())
    }

    /// Sends a chunk of the response body.
    pub(crate) async fn send(&mut self, bytes: impl Into<Bytes>) {
        within("the answer's body to be taken", self.try_send(bytes))
            .await
            .unwrap();
    }

    /// As [`Exchange::send`], without a timeout. Errors are returned.
    pub(crate) async fn try_send(&mut self, bytes: impl Into<Bytes>) -> Result<(), UnexpectedEnd> {
        self.outgoing().send(bytes).await
    }

    fn outgoing(&mut self) -> &mut SentBody {
        match &mut self.responder {
            ExchangeResponder::Http1 { outgoing, .. }
            | ExchangeResponder::Http2(_, Some(outgoing)) => outgoing,
            ExchangeResponder::Http2(_, None) => panic!("an answer begins with its head"),
        }
    }

    /// Ends the response.
    pub(crate) async fn end(self) {
        self.end_with_trailers(&[]).await;
    }

    /// Ends the response with these trailers.
    pub(crate) async fn end_with_trailers(self, trailers: &[(&str, &str)]) {
        self.try_end(trailers).await.unwrap();
    }

    /// As [`Exchange::end_with_trailers`]. Errors are returned.
    pub(crate) async fn try_end(mut self, trailers: &[(&str, &str)]) -> Result<(), UnexpectedEnd> {
        self.outgoing().end(trailers).await?;
        self.return_connection().await;
        Ok(())
    }

    /// Sends a complete response.
    pub(crate) async fn respond(self, status: u16, body: impl Into<Bytes>) {
        self.respond_with_headers(status, &[], body).await;
    }

    /// Sends a complete response after the complete request has arrived.
    pub(crate) async fn respond_with_headers(
        mut self,
        status: u16,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) {
        let body: Bytes = body.into();
        let length = body.len().to_string();
        let mut headers = headers.to_vec();
        if !matches!(status, 204 | 304) {
            headers.push(("content-length", &length));
        }
        self.read_body().await;
        self.send_head(status, &headers).await;
        if matches!(status, 204 | 304) || self.request.method == "HEAD" {
            return self.return_connection().await;
        }
        self.send(body).await;
        self.end().await;
    }

    /// The connection serves the next request.
    async fn return_connection(mut self) {
        if let ExchangeResponder::Http1 { outgoing, home } = self.responder {
            let _ = self.request_body.read_to_end().await;
            let SentBody::Http1 { writer, .. } = outgoing else {
                unreachable!("HTTP/1.1 goes by HTTP/1.1");
            };
            if let (Some(reader), Some(home)) = (self.request_body.into_reader(), home) {
                let _ = home.send(RawHttp1 { reader, writer });
            }
        }
    }

    /// Waits until weir has cancelled this request: its stream is reset, or its connection is
    /// closed. Returns the reason of a reset.
    pub(crate) async fn wait_for_cancel(&mut self) -> Option<Reason> {
        match &mut self.responder {
            ExchangeResponder::Http1 { .. } => {
                self.request_body.reader().unwrap().wait_for_close().await;
                None
            }
            ExchangeResponder::Http2(respond, None) => {
                let reset = std::future::poll_fn(|cx| respond.poll_reset(cx));
                within("the stream to be reset", reset).await.ok()
            }
            ExchangeResponder::Http2(_, Some(SentBody::Http2(stream))) => {
                let reset = std::future::poll_fn(|cx| stream.poll_reset(cx));
                within("the stream to be reset", reset).await.ok()
            }
            ExchangeResponder::Http2(..) => unreachable!("HTTP/2 goes by HTTP/2"),
        }
    }

    /// Aborts: resets the stream with `reason`, or closes an HTTP/1.1 connection.
    pub(crate) fn reset(mut self, reason: Reason) {
        match &mut self.responder {
            ExchangeResponder::Http2(respond, None) => respond.send_reset(reason),
            ExchangeResponder::Http2(_, Some(SentBody::Http2(stream))) => stream.send_reset(reason),
            ExchangeResponder::Http1 { .. } | ExchangeResponder::Http2(..) => {}
        }
    }

    /// Closes the connection immediately, without a TLS shutdown.
    pub(crate) fn cut(self) {
        self.connection.cut();
    }

    /// Closes an HTTP/1.1 connection cleanly.
    pub(crate) async fn close(self) {
        let ExchangeResponder::Http1 {
            outgoing: SentBody::Http1 { mut writer, .. },
            ..
        } = self.responder
        else {
            panic!("only HTTP/1.1 is closed by hand");
        };
        writer.shutdown().await;
    }

    /// The HTTP/1.1 connection itself, for raw I/O.
    pub(crate) fn into_raw_http1(self) -> RawHttp1 {
        let ExchangeResponder::Http1 {
            outgoing: SentBody::Http1 { writer, .. },
            ..
        } = self.responder
        else {
            panic!("only HTTP/1.1 is bytes");
        };
        let reader = self
            .request_body
            .into_reader()
            .expect("no body is under way");
        RawHttp1 { reader, writer }
    }
}

/// A listener that hands connections to the test.
pub(crate) struct RawUpstream {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl RawUpstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    /// The next TCP connection, before TLS.
    pub(crate) async fn accept_tcp(&self) -> TcpStream {
        let (tcp, _) = within("a connection to the upstream", self.listener.accept())
            .await
            .unwrap();
        tcp.set_nodelay(true).unwrap(); // what a test has sent is on its way
        tcp
    }

    /// The next connection after a TLS handshake with `own` and `http`.
    pub(crate) async fn accept_tls(
        &self,
        http: HttpVersion,
        own: &IssuedCertificate,
    ) -> Result<BoxedStream, UnexpectedEnd> {
        let config = certificates::upstream_tls_config(&[http.alpn()], own);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let stream = within("the handshake", acceptor.accept(self.accept_tcp().await)).await?;
        Ok(Box::new(stream))
    }

    /// The next connection with a trusted certificate.
    pub(crate) async fn accept_trusted(&self, http: HttpVersion) -> BoxedStream {
        self.accept_tls(http, &pki().server).await.unwrap()
    }
}
