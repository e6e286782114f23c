//! TLS towards clients: both versions, either HTTP, and a certificate that counts for as long as its session does.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::HandshakeKind;
use rustls::ProtocolVersion;
use rustls::SupportedProtocolVersion;
use rustls::version::TLS12;
use rustls::version::TLS13;
use tokio_rustls::TlsConnector;

use crate::support::Http;
use crate::support::certificates;
use crate::support::certificates::Issued;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::process::Process;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Door;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// A client that speaks this version alone.
fn speaking(
    version: &'static SupportedProtocolVersion,
    alpn: &[&[u8]],
    own: Option<&Issued>,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(certificates::provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(pki().servers.roots());
    let mut config = match own {
        Some(own) => builder
            .with_client_auth_cert(vec![own.certificate.clone()], own.key())
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

async fn serving() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

/// Sends a request on a connection of `tls`, and gives the user that the upstream is told of, and how the handshake went.
async fn user(
    door: &Door,
    upstream: &mut Upstream,
    tls: &Arc<ClientConfig>,
) -> (Option<String>, HandshakeKind) {
    let stream = door.dial(Arc::clone(tls)).await;
    let kind = stream.get_ref().1.handshake_kind().unwrap();
    let mut wire = Wire::new(stream);
    wire.send(Ask::get("/api").to_http1()).await;
    let exchange = upstream.next().await;
    let user = exchange
        .asked
        .headers
        .get("x-remote-user")
        .map(str::to_owned);
    assert_eq!(user.is_some(), exchange.peer.certificate.is_some());
    exchange.reply(200, "{}").await;
    assert_eq!(wire.answer("GET").await.0.status, 200);
    (user, kind)
}

async fn connects(door: &Door, tls: Arc<ClientConfig>) -> bool {
    let tcp = door.tcp().await;
    let name = "127.0.0.1".try_into().unwrap();
    TlsConnector::from(tls).connect(name, tcp).await.is_ok()
}

#[tokio::test]
async fn both_versions_are_spoken_and_http2_is_preferred() {
    let (weir, _upstream) = serving().await;
    for (version, expected) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let tls = speaking(version, &[b"http/1.1", b"h2"], None);
        let stream = weir.dial(tls).await;
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(expected));
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
    }
}

#[tokio::test]
async fn a_client_that_does_not_say_which_http_it_speaks_is_served_http1() {
    let (weir, mut upstream) = serving().await;
    user(&weir, &mut upstream, &speaking(&TLS13, &[], None)).await;
}

#[tokio::test]
async fn a_client_that_speaks_neither_http_is_turned_away() {
    let (weir, _upstream) = serving().await;
    assert!(!connects(&weir, speaking(&TLS13, &[b"h3"], None)).await);
    weir.metric_becomes("apiserver_tls_handshake_errors_total", 1.0)
        .await;
}

#[tokio::test]
async fn a_session_that_is_taken_up_again_is_still_its_certificate_s_user() {
    for version in [&TLS12, &TLS13] {
        let (weir, mut upstream) = serving().await;
        let alice = speaking(version, &[b"http/1.1"], Some(&pki().alice));
        let nobody = speaking(version, &[b"http/1.1"], None);
        let whole = HandshakeKind::Full;
        let again = HandshakeKind::Resumed;
        let alices = || Some("alice".to_owned());
        assert_eq!(user(&weir, &mut upstream, &alice).await, (alices(), whole));
        assert_eq!(user(&weir, &mut upstream, &nobody).await, (None, whole));
        assert_eq!(user(&weir, &mut upstream, &alice).await, (alices(), again));
        assert_eq!(user(&weir, &mut upstream, &nobody).await, (None, again));
    }
}

#[tokio::test]
async fn without_a_client_ca_nobody_is_asked_for_a_certificate() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .without_client_ca()
        .start()
        .await;
    let alice = speaking(&TLS13, &[b"http/1.1"], Some(&pki().alice));
    assert_eq!(user(&weir, &mut upstream, &alice).await.0, None);
}

#[tokio::test]
async fn the_older_version_can_be_turned_off() {
    let upstream = Upstream::start().await;
    let flags = ["--tls-min-version=VersionTLS13"];
    let weir = Process::serve(upstream.address, &flags).await;
    assert!(!connects(&weir, speaking(&TLS12, &[Http::Two.alpn()], None)).await);
    assert!(connects(&weir, speaking(&TLS13, &[Http::Two.alpn()], None)).await);
}
