use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::Request;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::DuplexStream;
use tokio_rustls::server::TlsStream as ServerTlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::upstream::connection::connector::IoStream;
use crate::upstream::tls;
use crate::upstream::tls::tests::self_signed_pair;
use weir_io::deferred_write_errors::DeferredWriteErrors;
use weir_io::tcp::ReadsAheadOfDriver;

/// weir's side and the peer's side of a TLS connection in memory.
async fn tls_pair() -> (TlsConnection, ServerTlsStream<DuplexStream>) {
    let (certificate, key) = self_signed_pair("peer");
    let roots = tls::parse_roots("ca", certificate.as_bytes()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let (near, far) = tokio::io::duplex(1 << 20);
    let near: Box<dyn IoStream> = Box::new(near);
    let client = TlsConnector::from(Arc::new(tls::client_config(roots, None)));
    let name = "localhost".try_into().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (near, far) = tokio::join!(client.connect(name, near), acceptor.accept(far));
    (
        TlsConnection {
            io: TokioIo::new(DeferredWriteErrors::new(near.unwrap())),
            reads_ahead: ReadsAheadOfDriver::default(),
        },
        far.unwrap(),
    )
}

/// The peer of a connection, with the request that it has accepted.
struct PingPeer {
    connection: h2::server::Connection<ServerTlsStream<DuplexStream>, Bytes>,
    accepted: (Request<h2::RecvStream>, h2::server::SendResponse<Bytes>),
}

/// A connection with a request in flight. The peer reads nothing unless it is polled.
async fn connection() -> (
    Arc<Http2Connection>,
    impl Future<Output = ()> + Unpin,
    PendingHttp2,
    PingPeer,
) {
    let (near, far) = tls_pair().await;
    let (mut peer, opened) = tokio::join!(
        async { h2::server::handshake(far).await.unwrap() },
        Http2Connection::handshake(near)
    );
    let (shared, driver) = opened.ok().unwrap();
    let mut driver = Box::pin(driver.run(Arc::downgrade(&shared), || ()));
    let request = Request::get("https://localhost/api")
        .body(RequestBody::empty())
        .unwrap();
    let pending = send_request(&shared, request).ok().unwrap();
    let accepted = tokio::select! {
        accepted = peer.accept() => accepted.unwrap().unwrap(),
        () = &mut driver => panic!("the peer is there"),
    };
    let peer = PingPeer {
        connection: peer,
        accepted,
    };
    (shared, driver, pending, peer)
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_peer_answers_no_ping_is_given_up_after_45_seconds() {
    let began = Clock.now();
    let (shared, driver, mut pending, _peer) = connection().await;
    assert!(shared.is_usable());
    driver.await;
    assert_eq!((Clock.now() - began).as_secs(), 45);
    assert!(!shared.is_usable(), "requests go onto another connection");
    let answer = poll_fn(|cx| pending.poll_head(cx)).await;
    assert!(answer.is_err(), "the request in flight ends, too");
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_peer_answers_stays_open() {
    let (shared, mut driver, _pending, mut peer) = connection().await;
    tokio::select! {
        () = &mut driver => panic!("the peer answers"),
        _ = peer.connection.accept() => panic!("there is no further request"),
        () = tokio::time::sleep(Duration::from_secs(600)) => {}
    }
    assert!(shared.is_usable());
}

/// Opens a stream whose body is not sent, and resets it.
async fn reset_by_weir(shared: &Http2Connection) -> PendingHttp2 {
    let request = Request::post("https://localhost/api").body(()).unwrap();
    let mut sender = shared.sender.clone().ready().await.unwrap();
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_reset(Reason::CANCEL);
    PendingHttp2 {
        response,
        body_pump: None,
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_peer_finishes_a_request_by_a_reset() {
    let (shared, mut driver, pending, mut peer) = connection().await;
    let outcomes = async {
        let by_weir = reset_by_weir(&shared).await;
        assert!(!by_weir.finish(true).await, "the peer may execute it");
        peer.accepted.1.send_reset(Reason::REFUSED_STREAM);
        tokio::select! {
            finished = pending.finish(true) => assert!(finished),
            () = async { while peer.connection.accept().await.is_some() {} } => panic!("it goes on"),
        }
    };
    tokio::select! {
        () = &mut driver => panic!("the peer is there"),
        () = outcomes => {}
    }
}
