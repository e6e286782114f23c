//! Clients over TLS: HTTP/1.1 and HTTP/2 by hyper, and raw uploads, which hold their seats.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::within;

/// A client of weir: its address and its credentials.
#[derive(Clone)]
pub(crate) struct TokenClient {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    token: String,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct CollectedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl CollectedResponse {
    async fn read(response: hyper::Result<Response<Incoming>>) -> Self {
        let (head, body) = response.expect("an answer").into_parts();
        let body = body.collect().await.expect("all of the answer");
        Self {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        }
    }

    /// The values of a header.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let values = self.headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap()).collect()
    }
}

impl TokenClient {
    pub(crate) fn new(address: SocketAddr, ca: &str, token: &str) -> Self {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            address,
            tls: Arc::new(tls),
            token: token.to_owned(),
        }
    }

    async fn connect_tls(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut tls = (*self.tls).clone();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("127.0.0.1").unwrap();
        within("a connection", async {
            let tcp = TcpStream::connect(self.address).await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let tls = TlsConnector::from(Arc::new(tls));
            tls.connect(name, tcp).await.unwrap()
        })
        .await
    }

    /// A request of this client.
    pub(crate) fn request(&self, method: &str, target: &str, body: &str) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, "weir")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap()
    }

    /// An HTTP/1.1 connection, for one request at a time.
    pub(crate) async fn connect(&self) -> Http1Connection {
        let io = TokioIo::new(self.connect_tls(b"http/1.1").await);
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Http1Connection {
            client: self.clone(),
            sender,
        }
    }

    /// An HTTP/2 connection.
    pub(crate) async fn connect_http2(&self) -> http2::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.connect_tls(b"h2").await);
        let executor = TokioExecutor::new();
        let (sender, connection) = http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Sends one request on its own connection.
    pub(crate) async fn send(&self, method: &str, target: &str, body: &str) -> CollectedResponse {
        self.connect().await.send(method, target, body).await
    }

    /// Sends one GET on its own connection.
    pub(crate) async fn get(&self, target: &str) -> CollectedResponse {
        self.send("GET", target, "").await
    }

    /// An upload that was admitted and waits for its body. It holds its seats until it is dropped.
    pub(crate) async fn hold_seat(&self) -> SeatHolder {
        let mut stream = BufReader::new(self.connect_tls(b"http/1.1").await);
        let head = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: weir\r\n\
             Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: 100\r\nExpect: 100-continue\r\n\r\n",
            self.token
        );
        within("a seat", async {
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            // Sent to admitted requests only.
            assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
        })
        .await;
        SeatHolder { _stream: stream }
    }
}

/// Holds the seats of an admitted request.
pub(crate) struct SeatHolder {
    _stream: BufReader<TlsStream<TcpStream>>,
}

/// An HTTP/1.1 connection.
pub(crate) struct Http1Connection {
    client: TokenClient,
    sender: http1::SendRequest<Full<Bytes>>,
}

impl Http1Connection {
    /// Sends a request and waits for the complete response.
    pub(crate) async fn send(
        &mut self,
        method: &str,
        target: &str,
        body: &str,
    ) -> CollectedResponse {
        let request = self.client.request(method, target, body);
        within("an answer", async {
            self.sender.ready().await.expect("a connection that lasts");
            CollectedResponse::read(self.sender.send_request(request).await).await
        })
        .await
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send_for_head(&mut self, target: &str) -> Response<Incoming> {
        let request = self.client.request("GET", target, "");
        let response = within("the head of an answer", self.sender.send_request(request));
        response.await.expect("an answer")
    }
}

/// Sends a request on a shared connection.
pub(crate) async fn send_http2(
    mut sender: http2::SendRequest<Full<Bytes>>,
    mut request: Request<Full<Bytes>>,
) -> CollectedResponse {
    request.headers_mut().remove(header::HOST);
    let target = format!("https://weir{}", request.uri());
    *request.uri_mut() = target.parse().unwrap();
    within("an answer", async {
        sender.ready().await.expect("a connection that lasts");
        CollectedResponse::read(sender.send_request(request).await).await
    })
    .await
}

/// The response of an admin listener.
pub(crate) async fn get_admin(address: SocketAddr, target: &str) -> String {
    within("an operator's answer", async {
        let tcp = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder()
            .uri(target)
            .header(header::HOST, "localhost")
            .body(Full::<Bytes>::default())
            .unwrap();
        let response = CollectedResponse::read(sender.send_request(request).await).await;
        assert_eq!(response.status, StatusCode::OK, "{target}");
        String::from_utf8(response.body.to_vec()).unwrap()
    })
    .await
}
