//! TLS towards clients: both TLS versions, both HTTP versions, and client certificates in resumed
//! sessions.

use std::sync::Arc;

use rcgen::KeyUsagePurpose;
use rustls::ClientConfig;
use rustls::HandshakeKind;
use rustls::ProtocolVersion;
use rustls::SupportedProtocolVersion;
use rustls::version::TLS12;
use rustls::version::TLS13;
use rustls_pki_types::CertificateDer;
use tokio_rustls::TlsConnector;

use crate::support::HttpVersion;
use crate::support::certificates;
use crate::support::certificates::IssuedCertificate;
use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::WeirProcess;
use crate::support::raw_http1::RawHttp1;
use crate::support::weir;
use crate::support::weir::Endpoints;
use crate::support::weir::Weir;

/// A client of this TLS version only.
fn tls_config(
    version: &'static SupportedProtocolVersion,
    alpn: &[&[u8]],
    own: Option<&IssuedCertificate>,
) -> Arc<ClientConfig> {
    tls_config_with_chain(version, alpn, own.map(|own| (own, &[][..])))
}

/// As [`tls_config`], with certificates after the client's own.
fn tls_config_with_chain(
    version: &'static SupportedProtocolVersion,
    alpn: &[&[u8]],
    own: Option<(&IssuedCertificate, &[CertificateDer<'static>])>,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(certificates::provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(pki().server_ca.root_store());
    let mut config = match own {
        Some((own, rest)) => builder
            .with_client_auth_cert(
                [std::slice::from_ref(&own.certificate), rest].concat(),
                own.key(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

async fn start() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

/// Sends a request on a connection of `tls`. Returns the asserted user, and the kind of handshake.
async fn connect_and_get_user(
    endpoints: &Endpoints,
    upstream: &mut FakeUpstream,
    tls: &Arc<ClientConfig>,
) -> (Option<String>, HandshakeKind) {
    let stream = endpoints.connect_tls(Arc::clone(tls)).await;
    let kind = stream.get_ref().1.handshake_kind().unwrap();
    let mut wire = RawHttp1::new(stream);
    wire.send(TestRequest::get("/api").to_http1()).await;
    let exchange = upstream.next_exchange().await;
    let user = exchange
        .request
        .headers
        .get("x-remote-user")
        .map(str::to_owned);
    assert_eq!(user.is_some(), exchange.connection.certificate.is_some());
    exchange.respond(200, "{}").await;
    assert_eq!(wire.read_response("GET").await.0.status, 200);
    (user, kind)
}

async fn can_connect(endpoints: &Endpoints, tls: Arc<ClientConfig>) -> bool {
    let tcp = endpoints.connect_tcp().await;
    let name = "127.0.0.1".try_into().unwrap();
    TlsConnector::from(tls).connect(name, tcp).await.is_ok()
}

#[tokio::test]
async fn both_tls_versions_are_served_and_http2_is_preferred() {
    let (weir, _upstream) = start().await;
    for (version, expected) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let tls = tls_config(version, &[b"http/1.1", b"h2"], None);
        let stream = weir.connect_tls(tls).await;
        let session = stream.get_ref().1;
        assert_eq!(session.protocol_version(), Some(expected));
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
    }
}

#[tokio::test]
async fn an_intermediate_that_may_not_sign_certificates_authenticates_no_user() {
    let (weir, mut upstream) = start().await;
    for (usage, accepted) in [
        (KeyUsagePurpose::KeyCertSign, true),
        (KeyUsagePurpose::DigitalSignature, false),
        (KeyUsagePurpose::CrlSign, false),
    ] {
        let intermediate = pki().client_ca.issue_ca("intermediate", &[usage]);
        let root = intermediate.issue_client("root", &["system:masters"]);
        let chain = [intermediate.certificate.clone()];
        for version in [&TLS12, &TLS13] {
            let tls = tls_config_with_chain(version, &[b"http/1.1"], Some((&root, &chain)));
            if accepted {
                let (user, _) = connect_and_get_user(&weir, &mut upstream, &tls).await;
                assert_eq!(user.as_deref(), Some("root"));
                continue;
            }
            let mut wire = RawHttp1::new(weir.connect_tls(tls).await);
            wire.send(TestRequest::get("/api").to_http1()).await;
            assert_eq!(wire.read_response("GET").await.0.status, 401, "{usage:?}");
        }
    }
}

#[tokio::test]
async fn a_client_certificate_may_be_a_ca() {
    let (weir, mut upstream) = start().await;
    let own = pki().client_ca.issue_client_that_is_a_ca("alice");
    for version in [&TLS12, &TLS13] {
        let tls = tls_config(version, &[b"http/1.1"], Some(&own));
        let (user, _) = connect_and_get_user(&weir, &mut upstream, &tls).await;
        assert_eq!(user.as_deref(), Some("alice"));
    }
}

#[tokio::test]
async fn a_client_without_alpn_is_served_http1() {
    let (weir, mut upstream) = start().await;
    connect_and_get_user(&weir, &mut upstream, &tls_config(&TLS13, &[], None)).await;
}

#[tokio::test]
async fn a_client_without_a_common_alpn_protocol_is_rejected() {
    let (weir, _upstream) = start().await;
    assert!(!can_connect(&weir, tls_config(&TLS13, &[b"h3"], None)).await);
    weir.wait_for_metric("apiserver_tls_handshake_errors_total", 1.0)
        .await;
}

#[tokio::test]
async fn a_resumed_session_keeps_its_certificate_s_user() {
    for version in [&TLS12, &TLS13] {
        let (weir, mut upstream) = start().await;
        let alice = tls_config(version, &[b"http/1.1"], Some(&pki().alice));
        let without_certificate = tls_config(version, &[b"http/1.1"], None);
        let whole = HandshakeKind::Full;
        let again = HandshakeKind::Resumed;
        let alices = || Some("alice".to_owned());
        assert_eq!(
            connect_and_get_user(&weir, &mut upstream, &alice).await,
            (alices(), whole)
        );
        assert_eq!(
            connect_and_get_user(&weir, &mut upstream, &without_certificate).await,
            (None, whole)
        );
        assert_eq!(
            connect_and_get_user(&weir, &mut upstream, &alice).await,
            (alices(), again)
        );
        assert_eq!(
            connect_and_get_user(&weir, &mut upstream, &without_certificate).await,
            (None, again)
        );
    }
}

#[tokio::test]
async fn without_a_client_ca_no_certificate_is_requested() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_client_ca()
        .start()
        .await;
    let alice = tls_config(&TLS13, &[b"http/1.1"], Some(&pki().alice));
    assert_eq!(
        connect_and_get_user(&weir, &mut upstream, &alice).await.0,
        None
    );
}

#[tokio::test]
async fn tls_1_2_can_be_disabled() {
    let upstream = FakeUpstream::start().await;
    let flags = ["--tls-min-version=VersionTLS13"];
    let weir = WeirProcess::serve(upstream.address, &flags).await;
    assert!(
        !can_connect(
            &weir,
            tls_config(&TLS12, &[HttpVersion::Http2.alpn()], None)
        )
        .await
    );
    assert!(
        can_connect(
            &weir,
            tls_config(&TLS13, &[HttpVersion::Http2.alpn()], None)
        )
        .await
    );
}
