//! TLS towards clients: both TLS versions, both HTTP versions, client certificates in resumed
//! sessions, and connections that weir does not serve.

use std::sync::Arc;

use rcgen::KeyUsagePurpose;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, HandshakeKind, NamedGroup, ProtocolVersion, SupportedProtocolVersion,
};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::WeirProcess;
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::{ALICE, Endpoints, Weir};
use crate::support::{HttpVersion, certificates, weir, within};
use ::weir::server::sni::NamedCertificate;

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
async fn without_a_client_ca_a_certificate_alone_gets_a_401_that_says_so() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_client_ca()
        .start()
        .await;
    for http in HttpVersion::BOTH {
        let mut client = weir.with_certificate(http, &pki().alice);
        let rejected = client.get("/api").await;
        assert_eq!(rejected.status, 401);
        assert!(rejected.text().contains("--client-ca-file"), "{http:?}");
        // The API server decides about a token.
        let mut client = weir.with_certificate_and_authorization(http, &pki().alice, ALICE);
        let call = client.send(TestRequest::get("/api")).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.headers.all("authorization"), [ALICE.1]);
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        // Clients without a certificate are anonymous, as ever.
        let call = weir.anonymous(http).send(TestRequest::get("/api")).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn the_log_says_at_the_start_how_clients_are_authenticated() {
    let upstream = FakeUpstream::start().await;
    for (flags, expected) in [
        (&[][..], "none: 401 without a token (no --client-ca-file)"),
        (
            &[
                "--client-ca-file=client-ca.crt",
                "--proxy-client-cert-file=proxy.crt",
                "--proxy-client-key-file=proxy.key",
            ],
            "of --client-ca-file",
        ),
    ] {
        let weir = WeirProcess::serve(upstream.address, flags).await;
        let mut lines = weir.startup_lines.iter();
        let line = lines.find(|line| line.contains("how clients are authenticated"));
        assert!(line.unwrap().contains(expected), "{line:?}");
    }
}

/// The first message of a handshake that asks for this server name, which no TLS library sends.
fn client_hello(name: &str) -> Vec<u8> {
    let valid = "x".repeat(name.len());
    let config = tls_config(&TLS13, &[], None);
    let server = valid.clone().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config, server).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let at = hello
        .windows(valid.len())
        .position(|w| w == valid.as_bytes());
    let at = at.unwrap();
    hello[at..at + name.len()].copy_from_slice(name.as_bytes());
    hello
}

/// What weir answers to these first bytes of a connection, until it closes it.
async fn answer_to(endpoints: &Endpoints, first: &[u8]) -> Vec<u8> {
    let mut tcp = endpoints.connect_tcp().await;
    tcp.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    // An error is a reset, since weir has not read everything.
    let _ = within("an answer", tcp.read_to_end(&mut answer)).await;
    answer
}

#[tokio::test]
async fn plain_http_gets_the_answer_of_gos_server() {
    let (weir, mut upstream) = start().await;
    let expected =
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    for request in [
        "GET / HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\n\r\n".to_owned(),
        // The client writes all before it reads.
        format!("POST /api HTTP/1.1\r\n\r\n{}", "x".repeat(5_000_000)),
    ] {
        let answer = answer_to(&weir, request.as_bytes()).await;
        assert_eq!(String::from_utf8(answer).unwrap(), expected);
    }
    weir.wait_for_metric("apiserver_tls_handshake_errors_total", 3.0)
        .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn the_log_says_why_a_handshake_failed() {
    let upstream = FakeUpstream::start().await;
    for (first, why) in [
        (
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "an HTTP request without TLS",
        ),
        (
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(),
            "a PROXY header of version 1",
        ),
        (b"\r\n\r\n\0\r\nQUIT\n".to_vec(), "--trusted-proxies only"),
        (
            b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
            "the first bytes are not TLS",
        ),
        (client_hello("localhost:6443"), "(SNI) is not a DNS name"),
    ] {
        let mut weir = WeirProcess::serve(upstream.address, &[]).await;
        let _ = answer_to(&weir, &first).await;
        let line = weir.next_log_line("TLS handshake error").await;
        assert!(line.contains(why), "{line}");
        assert!(line.contains("client=127.0.0.1:"), "{line}");
    }
    let weir = WeirProcess::serve(upstream.address, &["--tls-min-version=VersionTLS13"]);
    let mut weir = weir.await;
    assert!(!can_connect(&weir, tls_config(&TLS12, &[], None)).await);
    weir.next_log_line("TLS handshake error").await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_logged() {
    let upstream = FakeUpstream::start().await;
    let mut weir = WeirProcess::serve(upstream.address, &["--max-connections-per-address=1"]).await;
    let _open = weir.raw_http1().await;
    assert!(!can_connect(&weir, tls_config(&TLS13, &[], None)).await);
    let line = weir.next_log_line("a connection was refused").await;
    assert!(line.contains("--max-connections-per-address"), "{line}");
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

#[tokio::test]
async fn clients_see_the_certificate_of_the_name_that_they_ask_for() {
    let upstream = FakeUpstream::start().await;
    let other = pki().server_ca.issue_server_named("*.example.com");
    let named = NamedCertificate {
        names: vec!["*.example.com".to_owned()],
        are_given: true,
        certificate: other.certified_key(),
    };
    let weir = weir::builder(upstream.address)
        .with(|config| config.serving.tls.named_certificates = vec![named])
        .start()
        .await;
    let default = pki().server.certificate.clone();
    for (name, expected) in [
        ("api.example.com", &other.certificate),
        ("127.0.0.1", &default), // asks for no name
    ] {
        let tls = certificates::client_tls_config(&[b"h2"], None);
        let tcp = weir.connect_tcp().await;
        let connector = TlsConnector::from(Arc::new(tls));
        let stream = connector
            .connect(name.try_into().unwrap(), tcp)
            .await
            .unwrap();
        let seen = stream.get_ref().1.peer_certificates().unwrap();
        assert_eq!(&seen[0], expected, "{name}");
    }
}

#[tokio::test]
async fn cipher_suites_and_key_exchanges_are_the_chosen_ones_and_post_quantum_comes_first() {
    const AES128: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    let upstream = FakeUpstream::start().await;
    let default = weir::builder(upstream.address).start().await;
    let chosen = weir::builder(upstream.address)
        .with(|config| {
            config.serving.tls.cipher_suites = vec![AES128];
            config.serving.tls.curves = vec![NamedGroup::secp256r1];
        })
        .start()
        .await;
    let connect = async |weir: &Weir, version, group: NamedGroup| {
        let mut config = Arc::unwrap_or_clone(tls_config(version, &[b"h2"], None));
        let mut provider = Arc::unwrap_or_clone(certificates::provider());
        // The group of this client is the first that it offers.
        provider.kx_groups.sort_by_key(|one| one.name() != group);
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let alpn = std::mem::take(&mut config.alpn_protocols);
        config = builder
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(pki().server_ca.root_store())
            .with_no_client_auth();
        config.alpn_protocols = alpn;
        let stream = weir.connect_tls(Arc::new(config)).await;
        let connection = &stream.get_ref().1;
        let group = connection.negotiated_key_exchange_group().unwrap().name();
        (connection.negotiated_cipher_suite().unwrap().suite(), group)
    };
    let post_quantum = NamedGroup::X25519MLKEM768;
    assert_eq!(
        connect(&default, &TLS13, post_quantum).await.1,
        post_quantum
    );
    assert_eq!(
        connect(&default, &TLS13, NamedGroup::X25519).await.1,
        NamedGroup::X25519,
        "no further round trip"
    );
    assert_eq!(
        connect(&chosen, &TLS13, post_quantum).await.1,
        NamedGroup::secp256r1
    );
    let tls12 = connect(&chosen, &TLS12, NamedGroup::X25519).await;
    assert_eq!(tls12, (AES128, NamedGroup::secp256r1));
}
