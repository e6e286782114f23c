//! Upgrades: each on its own HTTP/1.1 connection, opaque after 101, an ordinary response otherwise.

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::{ALICE, Weir};
use crate::support::{HttpVersion, eventually, weir};

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true";

async fn start() -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

fn upgrade_request(method: &str, protocol: &str) -> TestRequest {
    TestRequest::new(method, EXEC)
        .header("connection", "Upgrade")
        .header("upgrade", protocol)
}

fn switching_response(protocol: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    )
}

/// Both ends of an open tunnel.
async fn open_tunnel(
    weir: &Weir,
    upstream: &mut FakeUpstream,
    request: TestRequest,
) -> (RawHttp1, RawHttp1) {
    let mut near = weir.raw_http1().await;
    near.send(request.to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(switching_response("SPDY/3.1")).await;
    assert_eq!(near.read_response_head().await.status, 101);
    (near, far)
}

async fn assert_echoes(from: &mut RawHttp1, to: &mut RawHttp1, bytes: &[u8]) {
    from.send(bytes).await;
    assert_eq!(to.reader.read_exactly(bytes.len()).await.unwrap(), bytes);
}

#[tokio::test]
async fn an_upgrade_to_a_proxied_application_has_the_host_of_its_client() {
    let (weir, mut upstream) = start().await;
    let own = upstream.address.to_string();
    for (target, host) in [
        ("/api/v1/namespaces/a/services/b/proxy/live", "weir"),
        (EXEC, &*own),
    ] {
        let request = TestRequest::get(target)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket");
        let mut near = weir.raw_http1().await;
        near.send(request.to_http1()).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.authority, host, "{target}");
        assert_eq!(exchange.request.headers.all("host"), [host], "{target}");
    }
}

#[tokio::test]
async fn bytes_pass_both_ways_after_101() {
    for (method, protocol) in [
        ("GET", "websocket"),
        ("POST", "SPDY/3.1"),
        ("GET", "SPDY/3.1"),
        ("GET", "some/thing-else"),
    ] {
        let (weir, mut upstream) = start().await;
        let mut near = weir.raw_http1().await;
        near.send(upgrade_request(method, protocol).to_http1())
            .await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.method, method);
        assert_eq!(exchange.request.target, EXEC);
        assert_eq!(exchange.request.headers.all("upgrade"), [protocol]);
        let connection = exchange.request.headers.all("connection");
        assert!(connection.len() == 1 && connection[0].eq_ignore_ascii_case("upgrade"));
        let mut far = exchange.into_raw_http1();
        far.send(switching_response(protocol)).await;
        let answered = near.read_response_head().await;
        assert_eq!(
            (answered.status, &answered.headers["upgrade"]),
            (101, protocol)
        );
        assert!(answered.headers["connection"].eq_ignore_ascii_case("upgrade"));
        assert_eq!(answered.headers.get("content-length"), None);
        assert_eq!(answered.headers.get("transfer-encoding"), None);
        for bytes in [
            &b"\x80\x03\0\x01"[..],
            b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            &[0xff; 70_000],
        ] {
            assert_echoes(&mut near, &mut far, bytes).await;
            assert_echoes(&mut far, &mut near, bytes).await;
        }
    }
}

#[tokio::test]
async fn bytes_sent_together_with_the_101_are_not_lost() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1().await;
    near.send(upgrade_request("GET", "websocket").to_http1())
        .await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(format!("{}first", switching_response("websocket")))
        .await;
    assert_eq!(near.read_response_head().await.status, 101);
    assert_eq!(near.reader.read_exactly(5).await.unwrap(), "first");
    assert_echoes(&mut near, &mut far, b"second").await;
}

#[tokio::test]
async fn early_bytes_of_a_client_wait_for_the_101() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1().await;
    near.send(
        [
            &upgrade_request("GET", "websocket").to_http1()[..],
            b"early",
        ]
        .concat(),
    )
    .await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    // After many other requests there is still nothing but the head.
    let mut others = weir.anonymous(HttpVersion::Http2);
    for _ in 0..20 {
        assert_eq!(others.get("/api/v1/watch").await.status, 500);
    }
    tokio::select! {
        biased;
        early = far.reader.read_some(100) => panic!("before 101 came {early:?}"),
        () = std::future::ready(()) => {}
    }
    far.send(switching_response("websocket")).await;
    assert_eq!(near.read_response_head().await.status, 101);
    assert_eq!(far.reader.read_exactly(5).await.unwrap(), "early");
}

#[tokio::test]
async fn a_response_other_than_101_passes_unchanged_and_closes_its_connection() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1().await;
    let large = "x".repeat(300_000);
    let mut seen = Vec::new();
    for (status, body) in [
        (400, "Upgrade request required"),
        (403, "{\"kind\":\"Status\"}"),
        (200, large.as_str()),
        (500, ""),
    ] {
        near.send(upgrade_request("GET", "websocket").to_http1())
            .await;
        let exchange = upstream.next_exchange().await;
        assert!(
            !seen.contains(&exchange.connection.number),
            "each has a connection of its own"
        );
        seen.push(exchange.connection.number);
        let headers = [
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("warning", "299 - \"w\""),
        ];
        exchange
            .respond_with_headers(status, &headers, body.to_owned())
            .await;
        let (answered, response) = near.read_response("GET").await;
        assert_eq!(
            (answered.status, response.as_ref()),
            (status, body.as_bytes())
        );
        for (name, value) in headers {
            assert_eq!(answered.headers.all(name), [value]);
        }
    }
    // An ordinary request has none of them either.
    near.send(TestRequest::get("/api").to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert!(!seen.contains(&exchange.connection.number));
    exchange.respond(200, "{}").await;
    assert_eq!(near.read_response("GET").await.0.status, 200);
}

#[tokio::test]
async fn bytes_after_a_failed_upgrade_are_a_request() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    let smuggled = "GET /api/v1/secrets HTTP/1.1\r\nhost: weir\r\nx-remote-user: root\r\n\r\n";
    near.send(
        [
            &upgrade_request("GET", "websocket").to_http1()[..],
            smuggled.as_bytes(),
        ]
        .concat(),
    )
    .await;
    let exchange = upstream.next_exchange().await;
    let failed = exchange.connection.number;
    exchange.respond(403, "no").await;
    assert_eq!(near.read_response("GET").await.0.status, 403);
    let exchange = upstream.next_exchange().await;
    assert_ne!(exchange.connection.number, failed);
    assert_eq!(exchange.request.target, "/api/v1/secrets");
    assert_eq!(exchange.request.headers.all("x-remote-user"), ["alice"]);
    exchange.respond(200, "{}").await;
    assert_eq!(near.read_response("GET").await.0.status, 200);
}

#[tokio::test]
async fn protocol_versions_are_repeated_and_keep_their_order() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1().await;
    let versions = ["v4.channel.k8s.io", "v3.channel.k8s.io", "channel.k8s.io"];
    let request_with_versions = versions
        .iter()
        .fold(upgrade_request("POST", "SPDY/3.1"), |request, version| {
            request.header("X-Stream-Protocol-Version", version)
        });
    near.send(request_with_versions.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(
        exchange.request.headers.all("x-stream-protocol-version"),
        versions
    );
    let mut far = exchange.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: a\r\nX-Other: c\r\nX-Stream-Protocol-Version: b\r\n\r\n",
    )
    .await;
    let answered = near.read_response_head().await;
    assert_eq!(
        answered.headers.all("x-stream-protocol-version"),
        ["a", "b"]
    );
    assert_eq!(answered.headers.all("x-other"), ["c"]);
}

/// The authentication of an exchange: its certificate, its token, and the asserted user.
fn auth_mode(exchange: &Exchange) -> (Option<&str>, Option<&str>, Option<&str>) {
    let headers = &exchange.request.headers;
    let certificate = exchange.connection.certificate.as_deref();
    (
        certificate,
        headers.get("authorization"),
        headers.get("x-remote-user"),
    )
}

#[tokio::test]
async fn an_upgrade_uses_the_auth_mode_of_its_credential() {
    let (weir, mut upstream) = start().await;
    let front_proxy = Some("front-proxy-client");
    let forged = upgrade_request("GET", "websocket")
        .header("x-remote-user", "mallory")
        .header("X_Remote_Group", "system:masters");
    let token = forged.clone().header(ALICE.0, ALICE.1);
    let mut numbers = Vec::new();
    for (certificate, request, expected) in [
        (
            Some(&pki().alice),
            &forged,
            (front_proxy, None, Some("alice")),
        ),
        (
            Some(&pki().alice),
            &token,
            (front_proxy, None, Some("alice")),
        ),
        (None, &token, (None, Some(ALICE.1), None)),
        (None, &forged, (None, None, None)),
    ] {
        let mut near = weir.raw_http1_with_certificate(certificate).await;
        near.send(request.to_http1()).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.connection.http, HttpVersion::Http1);
        assert_eq!(auth_mode(&exchange), expected);
        assert!(
            !exchange
                .request
                .headers
                .0
                .iter()
                .any(|(_, value)| value == "mallory")
        );
        assert!(
            !exchange
                .request
                .headers
                .all("x-remote-group")
                .contains(&"system:masters")
        );
        assert_eq!(exchange.request.headers.get("x_remote_group"), None);
        numbers.push(exchange.connection.number);
        let mut far = exchange.into_raw_http1();
        far.send(switching_response("websocket")).await;
        assert_eq!(near.read_response_head().await.status, 101);
        assert_echoes(&mut near, &mut far, b"bytes").await;
    }
    assert_eq!(numbers, [0, 1, 2, 3], "a connection each");
}

#[tokio::test]
async fn a_token_in_a_websocket_protocol_is_removed_for_a_certificate() {
    let (weir, mut upstream) = start().await;
    let upgrade = upgrade_request("GET", "websocket")
        .header(
            "sec-websocket-protocol",
            "base64url.bearer.authorization.k8s.io.c2VjcmV0",
        )
        .header(
            "sec-websocket-protocol",
            "v5.channel.k8s.io, v4.channel.k8s.io",
        );
    let mut near = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    near.send(upgrade.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    let protocols = exchange
        .request
        .headers
        .all("sec-websocket-protocol")
        .join(", ");
    assert_eq!(protocols, "v5.channel.k8s.io, v4.channel.k8s.io");
}

/// The API server reads such a token only with the `Upgrade`.
#[tokio::test]
async fn a_token_in_a_websocket_protocol_keeps_its_upgrade_on_every_path() {
    const TOKEN: &str = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
    let (weir, mut upstream) = start().await;
    for (protocols, keeps_upgrade) in [
        (format!("{TOKEN}, v5.channel.k8s.io"), true),
        (
            "base64url.bearer.authorization.k8s.io.!, b".to_owned(),
            true,
        ),
        ("v5.channel.k8s.io".to_owned(), false),
    ] {
        for path in ["/version", "/apis", "/healthz/etcd"] {
            let request = TestRequest::get(path)
                .header("connection", "Upgrade")
                .header("upgrade", "WebSocket")
                .header("sec-websocket-protocol", &protocols);
            let mut near = weir.raw_http1().await;
            near.send(request.to_http1()).await;
            let exchange = upstream.next_exchange().await;
            let headers = &exchange.request.headers;
            assert_eq!(
                headers.get("upgrade").is_some(),
                keeps_upgrade,
                "{protocols}"
            );
            assert_eq!(headers.all("sec-websocket-protocol"), [&*protocols]);
            assert_eq!(headers.get("authorization"), None);
            exchange.respond(200, "{}").await;
            let (answered, body) = near.read_response("GET").await;
            assert_eq!((answered.status, &*body), (200, &b"{}"[..]), "{path}");
        }
    }
    // Of a certificate's request the token is no credential.
    let request = TestRequest::get("/version")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header(
            "sec-websocket-protocol",
            &format!("{TOKEN}, v5.channel.k8s.io"),
        );
    let mut near = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    near.send(request.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(auth_mode(&exchange).2, Some("alice"));
    let headers = &exchange.request.headers;
    assert_eq!(headers.all("sec-websocket-protocol"), ["v5.channel.k8s.io"]);
}

#[tokio::test]
async fn an_upgrade_is_rejected_like_any_request() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .without_front_proxy()
        .start()
        .await;
    let mut near = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    near.send(upgrade_request("GET", "websocket").to_http1())
        .await;
    assert_eq!(near.read_response_head().await.status, 401);
    let _nobody_s = upstream.reservation.clone();
    drop(upstream);
    let mut near = weir.raw_http1().await;
    near.send(upgrade_request("GET", "websocket").to_http1())
        .await;
    assert_eq!(near.read_response_head().await.status, 503);
}

#[tokio::test]
async fn tunnels_do_not_affect_each_other_or_other_requests() {
    let (weir, mut upstream) = start().await;
    let mut tunnels = Vec::new();
    for _ in 0..10 {
        tunnels.push(open_tunnel(&weir, &mut upstream, upgrade_request("GET", "SPDY/3.1")).await);
    }
    let mut client = weir.anonymous(HttpVersion::Http2);
    for n in 0..3_u8 {
        for (near, far) in &mut tunnels {
            assert_echoes(near, far, &[n; 1000]).await;
        }
        let call = client.send(TestRequest::get("/api")).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn a_tunnel_holds_no_slot_and_has_no_deadline() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .request_timeout(std::time::Duration::from_secs(5))
        .start()
        .await;
    let vnc = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/vnc";
    let request = TestRequest::get(vnc)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    let (mut near, mut far) = open_tunnel(&weir, &mut upstream, request).await;
    let mut client = weir.alice(HttpVersion::Http2);
    for _ in 0..2 {
        let call = client.send(TestRequest::get("/api/v1/pods")).await;
        let exchange = upstream.next_exchange().await;
        // The deadline of the second request has passed only if that of the tunnel's request has as
        // well.
        let response = call.response().await;
        assert_eq!(response.status, 504, "and not 429");
        drop(exchange);
        // The seat is kept until the upstream has seen the end of the request.
        weir.wait_for_metric("weir_abandoned_requests", 0.0).await;
    }
    eventually("nothing to be under way", async || {
        let status = weir.get_admin("/status.json").await;
        let status: serde_json::Value = serde_json::from_str(status.text()).unwrap();
        (status["requests"]["inFlight"] == 0).then_some(())
    })
    .await;
    assert_echoes(&mut near, &mut far, b"still there").await;
    assert_echoes(&mut far, &mut near, b"and here").await;
}

#[tokio::test]
async fn an_unrequested_protocol_switch_is_one_response() {
    let (weir, mut upstream) = start().await;
    let mut near = weir.raw_http1().await;
    near.send(TestRequest::get("/api/v1/pods").to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(switching_response("SPDY/3.1")).await;
    assert_eq!(near.read_response("GET").await.0.status, 502);
    let metrics = weir.get_admin("/metrics").await;
    let counted: Vec<&str> = metrics
        .text()
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .collect();
    assert_eq!(counted.len(), 1, "{counted:#?}");
    assert!(counted[0].contains("code=\"502\""), "{counted:#?}");
}

/// More than a loaded machine needs to exhaust a burst that grows by one a second.
const MAX_TRIES: u32 = 1000;

#[tokio::test]
async fn upgrades_with_unverified_credentials_are_limited_by_address() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.transfers.unproven_upgrades_per_second = 1)
        .start()
        .await;
    let mut passed = 0;
    let refused = loop {
        let mut near = weir.raw_http1().await;
        near.send(upgrade_request("GET", "websocket").to_http1())
            .await;
        tokio::select! {
            exchange = upstream.next_exchange() => exchange.respond(403, "no").await,
            response = near.read_response("GET") => break response,
        }
        assert_eq!(near.read_response_head().await.status, 403);
        passed += 1;
        assert!(passed < MAX_TRIES, "it goes on for ever");
    };
    assert!(passed >= 5, "the burst: {passed}");
    let (head, body) = refused;
    assert_eq!((head.status, &head.headers["retry-after"]), (429, "1"));
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("weir/unproven-upgrades"), "{body}");
    let rejected = "weir_unproven_upgrades_rejected_total";
    assert_eq!(weir.metric(rejected).await, 1.0);
    // Requests without an upgrade, and those with an accepted credential, are not counted.
    for request in [
        TestRequest::get(EXEC),
        upgrade_request("GET", "websocket").header(ALICE.0, ALICE.1),
    ] {
        for _ in 0..10 {
            let mut near = weir.raw_http1().await;
            near.send(request.to_http1()).await;
            upstream.next_exchange().await.respond(403, "no").await;
            assert_eq!(near.read_response_head().await.status, 403);
        }
    }
    assert_eq!(weir.metric(rejected).await, 1.0);
}
