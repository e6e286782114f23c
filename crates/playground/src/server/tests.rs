//! The whole server over real sockets: TLS, HTTP/1.1 and HTTP/2, WebSocket.

mod abandoned;
mod connect;
mod fairness;
mod faults;
mod object_counts;

use super::PlaygroundServer;
use crate::Fairness;
use crate::auth::pki::{CertificateAndKey, Certificates};
use crate::serving::request_log::ServerCounters;
use crate::settings::PlaygroundSettings;
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// Far longer than any step here takes; a test that reaches it has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

struct TestServer {
    server: PlaygroundServer,
    certificates: Certificates,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(settings: PlaygroundSettings) -> TestServer {
    start_with(settings, None).await
}

async fn start_with(
    settings: PlaygroundSettings,
    fairness: Option<Arc<dyn Fairness>>,
) -> TestServer {
    let certificates = Certificates::generate().unwrap();
    let server = PlaygroundServer::with_fairness(settings, &certificates, fairness).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn({
        let server = server.clone();
        async move {
            let stopped = async { drop(stopped.await) };
            server.run(listener, stopped).await;
        }
    });
    TestServer {
        server,
        certificates,
        address,
        stop,
        task,
    }
}

impl TestServer {
    fn user(&self, name: &str) -> (Option<CertificateAndKey>, String) {
        let user = self
            .certificates
            .users
            .iter()
            .find(|user| user.name == name)
            .unwrap();
        (Some(user.client_certificate.clone()), user.token.clone())
    }

    async fn tls(
        &self,
        credential: Option<&CertificateAndKey>,
        protocol: &[u8],
    ) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.certificates.ca.as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match credential {
            Some(CertificateAndKey { certificate, key }) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.unwrap()
    }

    async fn http1(
        &self,
        credential: Option<&CertificateAndKey>,
    ) -> http1::SendRequest<Full<Bytes>> {
        let io = TokioIo::new(self.tls(credential, b"http/1.1").await);
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    /// Sends a request as `user`, over a new HTTP/1.1 connection.
    async fn send(
        &self,
        user: &str,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let (credential, _) = self.user(user);
        let mut sender = self.http1(credential.as_ref()).await;
        let response = sender
            .send_request(request(method, path, body))
            .await
            .unwrap();
        read_response(response).await
    }

    async fn websocket(&self, path: &str, protocol: &str) -> WebSocketStream<TlsStream<TcpStream>> {
        let (credential, _) = self.user("alice");
        let stream = self.tls(credential.as_ref(), b"http/1.1").await;
        let mut request = format!("wss://localhost{path}")
            .into_client_request()
            .unwrap();
        let protocol = protocol.parse().unwrap();
        request
            .headers_mut()
            .insert("sec-websocket-protocol", protocol);
        let (socket, _) = tokio_tungstenite::client_async(request, stream)
            .await
            .unwrap();
        socket
    }
}

fn request(method: Method, path: &str, body: &Value) -> Request<Full<Bytes>> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::from(body))
        .unwrap()
}

async fn read_response(response: Response<Incoming>) -> (StatusCode, Value) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    (
        status,
        serde_json::from_slice(&body).unwrap_or(Value::String(text)),
    )
}

/// The next line of a watch or a log.
async fn read_line(body: &mut Incoming, rest: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            return Some(String::from_utf8(line).unwrap());
        }
        let frame = tokio::time::timeout(TEST_TIMEOUT, body.frame())
            .await
            .unwrap()?;
        if let Ok(data) = frame.unwrap().into_data() {
            rest.extend_from_slice(&data);
        }
    }
}

async fn first_pod(test_server: &TestServer) -> String {
    let path = "/api/v1/namespaces/default/pods?limit=1";
    let (_, pods) = test_server
        .send("alice", Method::GET, path, &Value::Null)
        .await;
    pods["items"][0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_front_proxy_asserts_users_over_http2() {
    let test_server = start(PlaygroundSettings::default()).await;
    let front = test_server.certificates.front_proxy_client.clone();
    let io = TokioIo::new(test_server.tls(Some(&front), b"h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let ask = |headers: &[(&'static str, &str)]| {
        let mut request = Request::get("https://localhost/api/v1/namespaces/kube-system/pods");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::<Bytes>::default()).unwrap()
    };
    let asserted = [("x-remote-user", "alice"), ("audit-id", "a-1")];
    let response = sender.send_request(ask(&asserted)).await.unwrap();
    assert_eq!(response.headers()["audit-id"], "a-1");
    let (status, body) = read_response(response).await;
    assert_eq!(
        (status, &body["reason"]),
        (StatusCode::FORBIDDEN, &json!("Forbidden"))
    );
    let response = sender
        .send_request(ask(&[("x-remote-user", "carol")]))
        .await
        .unwrap();
    assert_eq!(read_response(response).await.1["kind"], "PodList");
    let records = test_server.server.requests();
    let users: Vec<_> = records.iter().map(|r| r.user.clone().unwrap()).collect();
    assert_eq!(
        (users[0].name.as_str(), users[1].name.as_str()),
        ("alice", "carol")
    );
    assert_eq!(users[1].groups, ["system:authenticated"]);
    assert_eq!(records[1].headers["x-remote-user"], "carol");
    let counters = test_server.server.counters();
    assert_eq!(
        (
            counters.requests,
            counters.in_flight,
            counters.max_in_flight
        ),
        (2, 0, 1)
    );
    assert_eq!((counters.by_code[&200], counters.by_code[&403]), (1, 1));
}

#[tokio::test]
async fn an_anonymous_request_closes_its_http2_connection() {
    let test_server = start(PlaygroundSettings::default()).await;
    let io = TokioIo::new(test_server.tls(None, b"h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://localhost/livez")
        .body(Full::<Bytes>::default())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(
        read_response(response).await,
        (StatusCode::OK, Value::String("ok".into()))
    );
    tokio::time::timeout(TEST_TIMEOUT, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_rejected_token_closes_its_http2_connection() {
    let test_server = start(PlaygroundSettings::default()).await;
    let io = TokioIo::new(test_server.tls(None, b"h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://localhost/livez")
        .header("authorization", "Bearer made-up")
        .body(Full::<Bytes>::default())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(read_response(response).await.0, StatusCode::UNAUTHORIZED);
    tokio::time::timeout(TEST_TIMEOUT, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

/// Waits until the counters are as expected.
async fn wait_for_counters(server: &PlaygroundServer, expected: impl Fn(&ServerCounters) -> bool) {
    let counted = async {
        while !expected(&server.counters()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, counted).await.unwrap();
}

/// The head of a response, as far as it arrives.
async fn read_head(stream: &mut TlsStream<TcpStream>) -> String {
    let mut head = Vec::new();
    let reading = async {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.unwrap();
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

async fn h2_client(
    test_server: &TestServer,
) -> (h2::client::SendRequest<Bytes>, h2::PingPong, ConnectionTask) {
    let (credential, _) = test_server.user("alice");
    let stream = test_server.tls(credential.as_ref(), b"h2").await;
    let (client, mut connection) = h2::client::handshake(stream).await.unwrap();
    let ping = connection.ping_pong().unwrap();
    (client, ping, tokio::spawn(connection))
}

type ConnectionTask = JoinHandle<Result<(), h2::Error>>;

#[tokio::test]
async fn a_head_response_over_http2_ends_with_its_headers() {
    let test_server = start(PlaygroundSettings::default()).await;
    let (credential, _) = test_server.user("alice");
    let io = TokioIo::new(test_server.tls(credential.as_ref(), b"h2").await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut ask = async |method: &Method, path: &str| {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .body(Full::<Bytes>::default())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let headers = (response.status(), response.headers().clone());
        let whole = response.body().is_end_stream();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (headers, whole, body)
    };
    for (path, code, measured) in [
        ("/version", 200, true),
        ("/api/v1/namespaces/default/pods", 200, false),
        ("/api/v1/nodes/nowhere", 404, true),
        ("/api/v1/namespaces/kube-system/pods", 403, true),
        ("/nowhere", 404, true),
        ("/api/v1/nodes?watch=1", 200, false),
    ] {
        let ((status, headers), whole, body) = ask(&Method::HEAD, path).await;
        assert_eq!(
            (status.as_u16(), whole, body.len()),
            (code, true, 0),
            "{path}"
        );
        assert_eq!(headers.contains_key("content-length"), measured, "{path}");
        if measured {
            let (_, _, body) = ask(&Method::GET, path).await;
            assert_eq!(headers["content-length"], body.len().to_string(), "{path}");
        }
    }
    assert_eq!(test_server.server.counters().long_running, 0);
}

#[tokio::test]
async fn a_watch_receives_the_changes_of_others_and_ends_with_the_server() {
    let test_server = start(PlaygroundSettings::default()).await;
    let (credential, _) = test_server.user("alice");
    let mut sender = test_server.http1(credential.as_ref()).await;
    let path = "/api/v1/namespaces/team-a/configmaps";
    let watch = format!("{path}?watch=true&fieldSelector=metadata.name%3Dmine");
    let response = sender
        .send_request(request(Method::GET, &watch, &Value::Null))
        .await
        .unwrap();
    let mut body = response.into_body();
    let mut rest = Vec::new();
    let mine = json!({"metadata": {"name": "mine"}, "data": {"a": "b"}});
    let other = json!({"metadata": {"name": "other"}});
    test_server.send("alice", Method::POST, path, &other).await;
    let (status, made) = test_server.send("alice", Method::POST, path, &mine).await;
    assert_eq!(status, StatusCode::CREATED);
    let event: Value =
        serde_json::from_str(&read_line(&mut body, &mut rest).await.unwrap()).unwrap();
    assert_eq!(event, json!({"type": "ADDED", "object": made}));
    assert_eq!(test_server.server.counters().long_running, 1);
    test_server
        .send(
            "alice",
            Method::DELETE,
            &format!("{path}/mine"),
            &Value::Null,
        )
        .await;
    let event: Value =
        serde_json::from_str(&read_line(&mut body, &mut rest).await.unwrap()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["data"]),
        (&json!("DELETED"), &mine["data"])
    );
    test_server.stop.send(()).unwrap();
    assert_eq!(read_line(&mut body, &mut rest).await, None);
    tokio::time::timeout(TEST_TIMEOUT, test_server.task)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(test_server.server.counters().long_running, 0);
}

#[tokio::test]
async fn events_are_stored_as_accepted_and_counted() {
    let test_server = start(PlaygroundSettings::default()).await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"generateName": "e-"},
        "note": "m", "reason": "Test", "regarding": {"kind": "Pod", "name": "x"},
    });
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let (status, made) = test_server.send("bob", Method::POST, path, &event).await;
    assert_eq!((status, &made["note"]), (StatusCode::CREATED, &json!("m")));
    let name = made["metadata"]["name"].as_str().unwrap();
    let stored = test_server
        .server
        .object("events", "default", name)
        .unwrap();
    assert_eq!(stored["message"], "m");
    assert_eq!(stored["involvedObject"], event["regarding"]);
    let core = format!("/api/v1/namespaces/default/events/{name}");
    let (_, shown) = test_server
        .send("bob", Method::GET, &core, &Value::Null)
        .await;
    assert_eq!(
        (&shown["message"], &shown["apiVersion"]),
        (&json!("m"), &json!("v1"))
    );
    let counters = test_server.server.counters();
    assert_eq!(counters.accepted_writes[&("create", "events")], 1);
    assert_eq!(test_server.server.object_count("events"), Some(1));
}

#[tokio::test]
async fn requests_over_the_limit_are_rejected_at_once() {
    let settings = PlaygroundSettings {
        max_in_flight: Some(0),
        ..PlaygroundSettings::default()
    };
    let test_server = start(settings).await;
    let (credential, _) = test_server.user("admin");
    let mut sender = test_server.http1(credential.as_ref()).await;
    let response = sender
        .send_request(request(Method::GET, "/api/v1/nodes", &Value::Null))
        .await
        .unwrap();
    let retry_after = response.headers()["retry-after"].clone();
    let (status, body) = read_response(response).await;
    assert_eq!(
        (status, retry_after),
        (StatusCode::TOO_MANY_REQUESTS, "1".parse().unwrap())
    );
    assert_eq!(body, "Too many requests, please try again later.\n");
    assert_eq!(test_server.server.counters().rejected, 1);
    let watch = request(Method::GET, "/api/v1/nodes?watch=1", &Value::Null);
    let response = sender.send_request(watch).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn writes_are_checked() {
    let test_server = start(PlaygroundSettings::default()).await;
    let path = "/api/v1/namespaces/team-a/configmaps";
    let one = json!({"metadata": {"name": "one"}, "data": {"a": "b"}});
    let (_, made) = test_server.send("alice", Method::POST, path, &one).await;
    let again = test_server.send("alice", Method::POST, path, &one).await;
    assert_eq!(
        (again.0, &again.1["reason"]),
        (StatusCode::CONFLICT, &json!("AlreadyExists"))
    );
    let named = format!("{path}/one");
    let mut changed = made.clone();
    changed["data"]["a"] = json!("c");
    let (status, _) = test_server
        .send("alice", Method::PUT, &named, &changed)
        .await;
    assert_eq!(status, StatusCode::OK);
    let late = test_server
        .send("alice", Method::PUT, &named, &changed)
        .await;
    assert_eq!(
        (late.0, &late.1["reason"]),
        (StatusCode::CONFLICT, &json!("Conflict"))
    );
    let dry_run = test_server
        .send(
            "alice",
            Method::DELETE,
            &format!("{named}?dryRun=All"),
            &Value::Null,
        )
        .await;
    assert_eq!(
        (dry_run.0, &dry_run.1["status"]),
        (StatusCode::OK, &json!("Success"))
    );
    assert!(
        test_server
            .server
            .object("configmaps", "team-a", "one")
            .is_some()
    );
    let large = json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(3 << 20)}});
    let (status, error) = test_server.send("alice", Method::POST, path, &large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(
        error["message"],
        "Request entity too large: limit is 3145728"
    );
    let other_path = "/api/v1/namespaces/nowhere/configmaps";
    let (status, _) = test_server
        .send("alice", Method::POST, other_path, &one)
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
