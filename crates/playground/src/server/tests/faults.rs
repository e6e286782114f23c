//! What a fault does to connections and requests.

use super::*;
use crate::serving::fault::Fault;
use hyper::client::conn::http2::SendRequest;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// An HTTP/2 connection, and its end.
async fn connect(
    server: &TestServer,
) -> (
    SendRequest<Full<Bytes>>,
    JoinHandle<Result<(), hyper::Error>>,
) {
    let (credential, _) = server.user("alice");
    let io = TokioIo::new(server.tls(credential.as_ref(), b"h2").await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    (sender, tokio::spawn(connection))
}

fn get(path: &str) -> Request<Full<Bytes>> {
    let uri = format!("https://localhost{path}");
    Request::get(uri).body(Full::default()).unwrap()
}

async fn status(sender: &mut SendRequest<Full<Bytes>>, path: &str) -> u16 {
    let response = sender.send_request(get(path)).await.unwrap();
    response.status().as_u16()
}

async fn ended<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, task)
        .await
        .unwrap()
        .unwrap()
}

async fn wait_until_listening(server: &TestServer, listening: bool) {
    let waiting = async {
        while TcpStream::connect(server.address).await.is_ok() != listening {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap();
}

#[tokio::test]
async fn a_server_that_refuses_closes_what_is_open_and_listens_again_afterwards() {
    let server = start(PlaygroundSettings::default()).await;
    let (mut sender, connection) = connect(&server).await;
    assert_eq!(status(&mut sender, "/livez").await, 200);
    server.server.set_fault(Some(Fault::Refuse));
    let _ = ended(connection).await;
    wait_until_listening(&server, false).await;
    server.server.set_fault(None);
    wait_until_listening(&server, true).await;
    let (mut sender, _connection) = connect(&server).await;
    assert_eq!(status(&mut sender, PODS).await, 200);
}

#[tokio::test]
async fn a_request_hangs_until_the_fault_ends_and_is_served_then() {
    let server = start(PlaygroundSettings::default()).await;
    let (mut sender, _connection) = connect(&server).await;
    assert_eq!(status(&mut sender, "/livez").await, 200);
    server.server.set_fault(Some(Fault::Hang));
    let mut hanging = std::pin::pin!(sender.send_request(get("/readyz")));
    wait_for_counters(&server.server, |counters| counters.requests == 2).await;
    assert!(hanging.as_mut().now_or_never().is_none());
    server.server.set_fault(None);
    assert_eq!(hanging.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_head_comes_without_its_body_until_the_fault_ends() {
    let server = start(PlaygroundSettings::default()).await;
    server.server.set_fault(Some(Fault::HangAfterHead));
    let (mut sender, _connection) = connect(&server).await;
    let mut response = sender.send_request(get(PODS)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.body_mut().frame().now_or_never().is_none());
    server.server.set_fault(None);
    let (_, pods) = read_response(response).await;
    assert_eq!(pods["kind"], "PodList");
}

#[tokio::test]
async fn a_stream_is_refused_and_its_connection_stays() {
    let server = start(PlaygroundSettings::default()).await;
    server.server.set_fault(Some(Fault::NoStreams));
    let (mut sender, _connection) = connect(&server).await;
    let refused = sender.send_request(get(PODS)).await.unwrap_err();
    let source = std::error::Error::source(&refused).unwrap();
    let reason = source.downcast_ref::<h2::Error>().unwrap().reason();
    assert_eq!(reason, Some(h2::Reason::REFUSED_STREAM));
    server.server.set_fault(None);
    assert_eq!(status(&mut sender, PODS).await, 200);
}

#[tokio::test]
async fn the_connection_of_a_request_is_reset() {
    let server = start(PlaygroundSettings::default()).await;
    server.server.set_fault(Some(Fault::Reset));
    let (credential, _) = server.user("alice");
    let mut stream = server.tls(credential.as_ref(), b"http/1.1").await;
    let head = format!("GET {PODS} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_u8());
    let error = read.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn garbage_is_no_http() {
    let server = start(PlaygroundSettings::default()).await;
    server.server.set_fault(Some(Fault::Garbage));
    let (credential, _) = server.user("alice");
    let mut sender = server.http1(credential.as_ref()).await;
    let error = sender.send_request(get(PODS)).await.unwrap_err();
    assert!(error.is_parse(), "{error:?}");
}

#[tokio::test]
async fn a_server_that_fails_answers_its_health_checks() {
    let server = start(PlaygroundSettings::default()).await;
    let (mut sender, _connection) = connect(&server).await;
    for (fault, code) in [(Fault::ServerError, 500), (Fault::TooManyRequests, 429)] {
        server.server.set_fault(Some(fault));
        assert_eq!(status(&mut sender, PODS).await, code);
        assert_eq!(status(&mut sender, "/readyz").await, 200);
    }
    server.server.set_fault(Some(Fault::NotReady));
    assert_eq!(status(&mut sender, "/readyz").await, 500);
    assert_eq!(status(&mut sender, "/livez").await, 200);
    assert_eq!(status(&mut sender, PODS).await, 200);
}

#[tokio::test]
async fn a_shutdown_is_announced_served_on_and_ends_gracefully() {
    let server = start(PlaygroundSettings::default()).await;
    let (mut sender, connection) = connect(&server).await;
    let mut watch = sender
        .send_request(get(&format!("{PODS}?watch=1")))
        .await
        .unwrap();
    server.server.set_fault(Some(Fault::Shutdown));
    assert_eq!(status(&mut sender, "/readyz").await, 500);
    assert_eq!(status(&mut sender, PODS).await, 200);
    // A watch ends with its last chunk, and the connection with GOAWAY.
    while let Some(frame) = watch.body_mut().frame().await {
        frame.unwrap();
    }
    ended(connection).await.unwrap();
    wait_until_listening(&server, false).await;
    server.server.set_fault(None);
    wait_until_listening(&server, true).await;
    let (mut sender, _connection) = connect(&server).await;
    assert_eq!(status(&mut sender, "/readyz").await, 200);
}

/// Whether a client that trusts this CA accepts the certificate of a new connection.
async fn is_trusted(server: &TestServer, ca: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.is_ok()
}

#[tokio::test]
async fn new_connections_show_an_expired_certificate_or_one_of_another_ca_and_open_ones_end() {
    let server = start(PlaygroundSettings::default()).await;
    let (ca, changed) = (&server.certificates.ca, &server.certificates.changed_ca);
    for (fault, trusted) in [
        (Fault::CertificateExpired, (false, false)),
        (Fault::CaChanged, (false, true)),
    ] {
        server.server.set_fault(None);
        assert!(is_trusted(&server, ca).await);
        let (_sender, connection) = connect(&server).await;
        server.server.set_fault(Some(fault));
        ended(connection).await.unwrap();
        let found = (
            is_trusted(&server, ca).await,
            is_trusted(&server, changed).await,
        );
        assert_eq!(found, trusted, "{fault:?}");
    }
}
