//! An API server that does what the test says, when it says it.
//!
//! [`Upstream`] takes connections and hands every request to the test as an [`Exchange`], whichever HTTP it came by;
//! [`ByHand`] hands over the connections themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Response;
use rustls::ServerConfig;
use socket2::Domain;
use socket2::Socket;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::FromDer;
use x509_parser::prelude::X509Certificate;

use crate::support::Broken;
use crate::support::Http;
use crate::support::certificates;
use crate::support::certificates::pki;
use crate::support::message::Asked;
use crate::support::message::Framing;
use crate::support::message::Incoming;
use crate::support::message::Outgoing;
use crate::support::message::header_map;
use crate::support::wire::Io;
use crate::support::wire::Wire;
use crate::support::wire::hold_little;
use crate::support::within;

/// A connection that weir made.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Which one, from 0 on.
    pub(crate) number: usize,
    /// The common name of the certificate that it carries.
    pub(crate) certificate: Option<String>,
    pub(crate) http: Http,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Cut,
    GoAway,
}

impl Peer {
    /// Cuts an HTTP/2 connection off, in the middle of whatever it does.
    pub(crate) fn cut(&self) {
        let _ = self.orders.send(Order::Cut); // it may be gone already
    }

    /// Says GOAWAY and serves what was begun.
    pub(crate) fn go_away(&self) {
        let _ = self.orders.send(Order::GoAway);
    }
}

/// What an upstream speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaks {
    alpn: &'static [&'static [u8]],
    max_streams: u32,
}

/// HTTP/2 and HTTP/1.1, as kube-apiserver does.
pub(crate) const BOTH: Speaks = Speaks {
    alpn: &[b"h2", b"http/1.1"],
    max_streams: 100,
};

/// HTTP/1.1 alone.
pub(crate) const HTTP1: Speaks = Speaks {
    alpn: &[b"http/1.1"],
    max_streams: 0,
};

/// As kube-apiserver, with fewer streams on a connection.
pub(crate) const fn streams(max_streams: u32) -> Speaks {
    Speaks {
        max_streams,
        ..BOTH
    }
}

/// An address of the system's choice that nobody else gets while this is held, whether somebody listens there or not.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    /// Bound, and never listening: those that listen may be bound beside it.
    _socket: Arc<Socket>,
}

impl Place {
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

/// The fake API server.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Whoever takes it away keeps this, or another test's may be found there.
    pub(crate) place: Place,
    exchanges: mpsc::UnboundedReceiver<Exchange>,
    made: Arc<AtomicUsize>,
    /// What weir asks about itself is the test's to answer.
    sees_self_checks: Arc<AtomicBool>,
    /// Its end ends every connection that no exchange holds.
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// As kube-apiserver speaks.
    pub(crate) async fn start() -> Self {
        Self::speaking(BOTH).await
    }

    /// One that has a kind of requests by this HTTP.
    pub(crate) async fn preferring(http: Http) -> Self {
        Self::speaking(if http == Http::Two { BOTH } else { HTTP1 }).await
    }

    pub(crate) async fn speaking(speaks: Speaks) -> Self {
        Self::on(Place::reserve(), speaks).await
    }

    /// Where one stood before.
    pub(crate) async fn back_at(place: Place) -> Self {
        Self::on(place, BOTH).await
    }

    async fn on(place: Place, speaks: Speaks) -> Self {
        let listener = TcpListener::bind(place.address).await.unwrap();
        let tls = certificates::upstream_config(speaks.alpn, &pki().server);
        let (sender, mut all) = mpsc::unbounded_channel::<Exchange>();
        let (kept, exchanges) = mpsc::unbounded_channel();
        let made = Arc::new(AtomicUsize::new(0));
        let sees_self_checks = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&sees_self_checks);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(exchange) = all.recv().await {
                match exchange.asked.good_self_check() {
                    Some(answer) if !sees.load(Ordering::SeqCst) => {
                        tokio::spawn(exchange.reply(201, answer));
                    }
                    _ => drop(kept.send(exchange)), // the test may be over
                }
            }
        });
        tasks.spawn(accept(
            listener,
            Arc::new(tls),
            speaks,
            sender,
            Arc::clone(&made),
        ));
        Self {
            address: place.address,
            place,
            exchanges,
            made,
            sees_self_checks,
            _tasks: tasks,
        }
    }

    /// From now on the test answers what weir asks about itself; otherwise that is answered well, and unseen.
    pub(crate) fn shows_self_checks(self) -> Self {
        self.sees_self_checks.store(true, Ordering::SeqCst);
        self
    }

    /// The next request, by whatever connection.
    pub(crate) async fn next(&mut self) -> Exchange {
        within("a request to reach the upstream", self.exchanges.recv())
            .await
            .unwrap()
    }

    /// The next request, however late it comes; none comes once weir is gone.
    pub(crate) async fn next_for_ever(&mut self) -> Exchange {
        match self.exchanges.recv().await {
            Some(exchange) => exchange,
            None => std::future::pending().await,
        }
    }

    /// The next request that is not weir's own question whether it is ready: a process asks that when nobody did for a while.
    pub(crate) async fn next_but_readyz(&mut self) -> Exchange {
        loop {
            let exchange = self.next().await;
            if exchange.asked.target != "/readyz" {
                return exchange;
            }
            exchange.reply(200, "ok").await;
        }
    }

    /// Fails if a request has come that nobody expects.
    pub(crate) fn assert_nothing_came(&mut self) {
        if let Ok(exchange) = self.exchanges.try_recv() {
            panic!("the upstream saw {:?}", exchange.asked);
        }
    }

    /// The connections made so far, those that have ended too.
    pub(crate) fn connections(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }
}

async fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    speaks: Speaks,
    exchanges: mpsc::UnboundedSender<Exchange>,
    made: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        hold_little(&tcp);
        let acceptor = TlsAcceptor::from(Arc::clone(&tls));
        let (exchanges, made) = (exchanges.clone(), Arc::clone(&made));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(tcp).await else {
                return;
            };
            let (orders, ordered) = mpsc::unbounded_channel();
            let peer = Arc::new(Peer {
                number: made.fetch_add(1, Ordering::SeqCst),
                certificate: common_name(&stream),
                http: spoken(&stream),
                orders,
            });
            match peer.http {
                Http::One => serve_http1(Wire::new(stream), &peer, &exchanges).await,
                Http::Two => serve_http2(stream, speaks, &peer, ordered, &exchanges).await,
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

fn spoken(stream: &TlsStream<TcpStream>) -> Http {
    if stream.get_ref().1.alpn_protocol() == Some(Http::Two.alpn()) {
        Http::Two
    } else {
        Http::One
    }
}

async fn serve_http1(
    mut wire: Wire,
    peer: &Arc<Peer>,
    exchanges: &mpsc::UnboundedSender<Exchange>,
) {
    loop {
        // An idle connection may wait for long, so this is not `within` anything.
        let Ok(Some(lines)) = wire.reader.next_head().await else {
            return;
        };
        let asked = Asked::of_lines(&lines);
        let framing = Framing::of_request(&asked.headers);
        let (home, returned) = oneshot::channel();
        let exchange = Exchange {
            asked,
            peer: Arc::clone(peer),
            incoming: wire.reader.body(framing),
            reply: Reply::Http1 {
                outgoing: Outgoing::Http1 {
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
            Err(_) => return, // cut
        }
    }
}

async fn serve_http2(
    stream: TlsStream<TcpStream>,
    speaks: Speaks,
    peer: &Arc<Peer>,
    mut ordered: mpsc::UnboundedReceiver<Order>,
    exchanges: &mpsc::UnboundedSender<Exchange>,
) {
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(speaks.max_streams)
        .max_header_list_size(2 << 20)
        .handshake(stream)
        .await;
    let Ok(mut connection) = handshake else {
        return;
    };
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            order = ordered.recv() => match order {
                Some(Order::GoAway) => {
                    connection.graceful_shutdown();
                    continue;
                }
                Some(Order::Cut) | None => return,
            },
        };
        let Some(Ok((request, respond))) = accepted else {
            return;
        };
        let (parts, body) = request.into_parts();
        let exchange = Exchange {
            asked: Asked::of_http2(&parts),
            peer: Arc::clone(peer),
            incoming: Incoming::http2(body),
            reply: Reply::Http2(respond, None),
        };
        if exchanges.send(exchange).is_err() {
            return;
        }
    }
}

/// A request at the upstream, waiting for the test's word. Dropping it cuts an HTTP/1.1 connection and resets a stream.
pub(crate) struct Exchange {
    pub(crate) asked: Asked,
    pub(crate) peer: Arc<Peer>,
    pub(crate) incoming: Incoming,
    reply: Reply,
}

enum Reply {
    Http1 {
        outgoing: Outgoing,
        home: Option<oneshot::Sender<Wire>>,
    },
    Http2(SendResponse<Bytes>, Option<Outgoing>),
}

impl Exchange {
    /// All of the request's body.
    pub(crate) async fn body(&mut self) -> Bytes {
        self.incoming.rest().await.unwrap()
    }

    /// Begins the answer: its head, and nothing of its body.
    pub(crate) async fn begin(&mut self, status: u16, headers: &[(&str, &str)]) {
        let bodiless = self.asked.method == "HEAD" || matches!(status, 204 | 304);
        match &mut self.reply {
            Reply::Http1 {
                outgoing: Outgoing::Http1 { writer, chunked },
                ..
            } => {
                let mut head = format!("HTTP/1.1 {status} Said\r\n");
                for (name, value) in headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                let told = headers
                    .iter()
                    .any(|(n, _)| n.eq_ignore_ascii_case("content-length"));
                *chunked = !told && !bodiless;
                if *chunked {
                    head.push_str("transfer-encoding: chunked\r\n");
                }
                head.push_str("\r\n");
                writer.send(head).await.unwrap();
            }
            Reply::Http2(respond, outgoing) => {
                let mut response = Response::new(());
                *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                *response.headers_mut() = header_map(headers.iter().copied());
                let stream = respond.send_response(response, bodiless).unwrap();
                *outgoing = Some(Outgoing::Http2(stream));
            }
            Reply::Http1 { .. } => unreachable!("HTTP/1.1 goes by HTTP/1.1"),
        }
    }

    /// Sends a piece of the answer's body.
    pub(crate) async fn send(&mut self, bytes: impl Into<Bytes>) {
        within("the answer's body to be taken", self.try_send(bytes))
            .await
            .unwrap();
    }

    /// As [`Exchange::send`], however long it takes and whatever comes of it.
    pub(crate) async fn try_send(&mut self, bytes: impl Into<Bytes>) -> Result<(), Broken> {
        self.outgoing().send(bytes).await
    }

    fn outgoing(&mut self) -> &mut Outgoing {
        match &mut self.reply {
            Reply::Http1 { outgoing, .. } | Reply::Http2(_, Some(outgoing)) => outgoing,
            Reply::Http2(_, None) => panic!("an answer begins with its head"),
        }
    }

    /// Ends the answer.
    pub(crate) async fn end(self) {
        self.end_with(&[]).await;
    }

    /// Ends the answer with these trailers.
    pub(crate) async fn end_with(mut self, trailers: &[(&str, &str)]) {
        self.outgoing().end(trailers).await.unwrap();
        self.go_home().await;
    }

    /// Answers with all of this.
    pub(crate) async fn reply(self, status: u16, body: impl Into<Bytes>) {
        self.reply_with(status, &[], body).await;
    }

    /// Answers with all of this, once the request is there whole.
    pub(crate) async fn reply_with(
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
        self.body().await;
        self.begin(status, &headers).await;
        if matches!(status, 204 | 304) || self.asked.method == "HEAD" {
            return self.go_home().await;
        }
        self.send(body).await;
        self.end().await;
    }

    /// The connection serves the next request.
    async fn go_home(mut self) {
        if let Reply::Http1 { outgoing, home } = self.reply {
            let _ = self.incoming.rest().await;
            let Outgoing::Http1 { writer, .. } = outgoing else {
                unreachable!("HTTP/1.1 goes by HTTP/1.1");
            };
            if let (Some(reader), Some(home)) = (self.incoming.into_reader(), home) {
                let _ = home.send(Wire { reader, writer });
            }
        }
    }

    /// Waits until weir has given this request up: its stream is reset, or its connection closed. Gives the reason where
    /// there is one.
    pub(crate) async fn given_up(&mut self) -> Option<Reason> {
        match &mut self.reply {
            Reply::Http1 { .. } => {
                self.incoming.reader().unwrap().ended().await;
                None
            }
            Reply::Http2(respond, None) => {
                let reset = std::future::poll_fn(|cx| respond.poll_reset(cx));
                within("the stream to be reset", reset).await.ok()
            }
            Reply::Http2(_, Some(Outgoing::Http2(stream))) => {
                let reset = std::future::poll_fn(|cx| stream.poll_reset(cx));
                within("the stream to be reset", reset).await.ok()
            }
            Reply::Http2(..) => unreachable!("HTTP/2 goes by HTTP/2"),
        }
    }

    /// Breaks off: the stream is reset for `reason`, an HTTP/1.1 connection is cut.
    pub(crate) fn reset(mut self, reason: Reason) {
        match &mut self.reply {
            Reply::Http2(respond, None) => respond.send_reset(reason),
            Reply::Http2(_, Some(Outgoing::Http2(stream))) => stream.send_reset(reason),
            Reply::Http1 { .. } | Reply::Http2(..) => {}
        }
    }

    /// Cuts the connection that it came by, without a goodbye.
    pub(crate) fn cut(self) {
        self.peer.cut();
    }

    /// Closes an HTTP/1.1 connection in order.
    pub(crate) async fn close(self) {
        let Reply::Http1 {
            outgoing: Outgoing::Http1 { mut writer, .. },
            ..
        } = self.reply
        else {
            panic!("only HTTP/1.1 is closed by hand");
        };
        writer.finish().await;
    }

    /// An HTTP/1.1 connection itself, to do with as one likes from here on.
    pub(crate) fn into_wire(self) -> Wire {
        let Reply::Http1 {
            outgoing: Outgoing::Http1 { writer, .. },
            ..
        } = self.reply
        else {
            panic!("only HTTP/1.1 is bytes");
        };
        let reader = self.incoming.into_reader().expect("no body is under way");
        Wire { reader, writer }
    }
}

/// A listener whose connections the test has in hand.
pub(crate) struct ByHand {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl ByHand {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    /// The next connection, nothing spoken on it.
    pub(crate) async fn tcp(&self) -> TcpStream {
        let (tcp, _) = within("a connection to the upstream", self.listener.accept())
            .await
            .unwrap();
        tcp
    }

    /// The next connection, after the handshake that `own` and `http` lead to.
    pub(crate) async fn tls(&self, http: Http, own: &certificates::Issued) -> Result<Io, Broken> {
        let config = certificates::upstream_config(&[http.alpn()], own);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let stream = within("the handshake", acceptor.accept(self.tcp().await)).await?;
        Ok(Box::new(stream))
    }

    /// The next connection, good and trusted.
    pub(crate) async fn next(&self, http: Http) -> Io {
        self.tls(http, &pki().server).await.unwrap()
    }
}
