//! Requests that change the protocol: each on an HTTP/1.1 connection of its own, opaque after 101, an ordinary answer
//! otherwise.

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true";

async fn serving() -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

fn ask(method: &str, protocol: &str) -> Ask {
    Ask::new(method, EXEC)
        .header("connection", "Upgrade")
        .header("upgrade", protocol)
}

fn switching(protocol: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    )
}

/// Both ends of a tunnel, just opened.
async fn tunnel(weir: &Weir, upstream: &mut Upstream, ask: Ask) -> (Wire, Wire) {
    let mut near = weir.wire().await;
    near.send(ask.to_http1()).await;
    let mut far = upstream.next().await.into_wire();
    far.send(switching("SPDY/3.1")).await;
    assert_eq!(near.answered().await.status, 101);
    (near, far)
}

async fn assert_echoes(from: &mut Wire, to: &mut Wire, bytes: &[u8]) {
    from.send(bytes).await;
    assert_eq!(to.reader.exactly(bytes.len()).await.unwrap(), bytes);
}

#[tokio::test]
async fn after_101_any_bytes_pass_both_ways() {
    for (method, protocol) in [
        ("GET", "websocket"),
        ("POST", "SPDY/3.1"),
        ("GET", "SPDY/3.1"),
        ("GET", "some/thing-else"),
    ] {
        let (weir, mut upstream) = serving().await;
        let mut near = weir.wire().await;
        near.send(ask(method, protocol).to_http1()).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.asked.method, method);
        assert_eq!(exchange.asked.target, EXEC);
        assert_eq!(exchange.asked.headers.all("upgrade"), [protocol]);
        let connection = exchange.asked.headers.all("connection");
        assert!(connection.len() == 1 && connection[0].eq_ignore_ascii_case("upgrade"));
        let mut far = exchange.into_wire();
        far.send(switching(protocol)).await;
        let answered = near.answered().await;
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
async fn bytes_that_come_right_behind_the_101_are_not_lost() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire().await;
    near.send(ask("GET", "websocket").to_http1()).await;
    let mut far = upstream.next().await.into_wire();
    far.send(format!("{}first", switching("websocket"))).await;
    assert_eq!(near.answered().await.status, 101);
    assert_eq!(near.reader.exactly(5).await.unwrap(), "first");
    assert_echoes(&mut near, &mut far, b"second").await;
}

#[tokio::test]
async fn bytes_that_a_client_sends_early_wait_for_the_101() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire().await;
    near.send([&ask("GET", "websocket").to_http1()[..], b"early"].concat())
        .await;
    let mut far = upstream.next().await.into_wire();
    // Many other requests later there is still nothing but the head.
    let mut others = weir.anonymous(Http::Two);
    for _ in 0..20 {
        assert_eq!(others.get("/api/v1/watch").await.status, 500);
    }
    tokio::select! {
        biased;
        early = far.reader.some(100) => panic!("before 101 came {early:?}"),
        () = std::future::ready(()) => {}
    }
    far.send(switching("websocket")).await;
    assert_eq!(near.answered().await.status, 101);
    assert_eq!(far.reader.exactly(5).await.unwrap(), "early");
}

#[tokio::test]
async fn another_answer_than_101_passes_unchanged_and_its_connection_is_done() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire().await;
    let large = "x".repeat(300_000);
    let mut seen = Vec::new();
    for (status, body) in [
        (400, "Upgrade request required"),
        (403, "{\"kind\":\"Status\"}"),
        (200, large.as_str()),
        (500, ""),
    ] {
        near.send(ask("GET", "websocket").to_http1()).await;
        let exchange = upstream.next().await;
        assert!(
            !seen.contains(&exchange.peer.number),
            "each has a connection of its own"
        );
        seen.push(exchange.peer.number);
        let headers = [
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("warning", "299 - \"w\""),
        ];
        exchange.reply_with(status, &headers, body.to_owned()).await;
        let (answered, answer) = near.answer("GET").await;
        assert_eq!(
            (answered.status, answer.as_ref()),
            (status, body.as_bytes())
        );
        for (name, value) in headers {
            assert_eq!(answered.headers.all(name), [value]);
        }
    }
    // An ordinary request has none of them either.
    near.send(Ask::get("/api").to_http1()).await;
    let exchange = upstream.next().await;
    assert!(!seen.contains(&exchange.peer.number));
    exchange.reply(200, "{}").await;
    assert_eq!(near.answer("GET").await.0.status, 200);
}

#[tokio::test]
async fn what_follows_a_failed_upgrade_is_a_request_and_not_the_tunnel_s() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire_of(Some(&pki().alice)).await;
    let smuggled = "GET /api/v1/secrets HTTP/1.1\r\nhost: weir\r\nx-remote-user: root\r\n\r\n";
    near.send([&ask("GET", "websocket").to_http1()[..], smuggled.as_bytes()].concat())
        .await;
    let exchange = upstream.next().await;
    let failed = exchange.peer.number;
    exchange.reply(403, "no").await;
    assert_eq!(near.answer("GET").await.0.status, 403);
    let exchange = upstream.next().await;
    assert_ne!(exchange.peer.number, failed);
    assert_eq!(exchange.asked.target, "/api/v1/secrets");
    assert_eq!(exchange.asked.headers.all("x-remote-user"), ["alice"]);
    exchange.reply(200, "{}").await;
    assert_eq!(near.answer("GET").await.0.status, 200);
}

#[tokio::test]
async fn protocol_versions_are_repeated_and_keep_their_order() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire().await;
    let versions = ["v4.channel.k8s.io", "v3.channel.k8s.io", "channel.k8s.io"];
    let asked = versions
        .iter()
        .fold(ask("POST", "SPDY/3.1"), |ask, version| {
            ask.header("X-Stream-Protocol-Version", version)
        });
    near.send(asked.to_http1()).await;
    let exchange = upstream.next().await;
    assert_eq!(
        exchange.asked.headers.all("x-stream-protocol-version"),
        versions
    );
    let mut far = exchange.into_wire();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: a\r\nX-Other: c\r\nX-Stream-Protocol-Version: b\r\n\r\n",
    )
    .await;
    let answered = near.answered().await;
    assert_eq!(
        answered.headers.all("x-stream-protocol-version"),
        ["a", "b"]
    );
    assert_eq!(answered.headers.all("x-other"), ["c"]);
}

/// The way of an exchange: the certificate it came with, the token, and the user asserted.
fn way(exchange: &Exchange) -> (Option<&str>, Option<&str>, Option<&str>) {
    let headers = &exchange.asked.headers;
    let certificate = exchange.peer.certificate.as_deref();
    (
        certificate,
        headers.get("authorization"),
        headers.get("x-remote-user"),
    )
}

#[tokio::test]
async fn an_upgrade_goes_the_way_of_its_credential() {
    let (weir, mut upstream) = serving().await;
    let front_proxy = Some("front-proxy-client");
    let forged = ask("GET", "websocket")
        .header("x-remote-user", "mallory")
        .header("X_Remote_Group", "system:masters");
    let token = forged.clone().header(ALICE.0, ALICE.1);
    let mut numbers = Vec::new();
    for (certificate, asked, expected) in [
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
        let mut near = weir.wire_of(certificate).await;
        near.send(asked.to_http1()).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.peer.http, Http::One);
        assert_eq!(way(&exchange), expected);
        assert!(
            !exchange
                .asked
                .headers
                .0
                .iter()
                .any(|(_, value)| value == "mallory")
        );
        assert!(
            !exchange
                .asked
                .headers
                .all("x-remote-group")
                .contains(&"system:masters")
        );
        assert_eq!(exchange.asked.headers.get("x_remote_group"), None);
        numbers.push(exchange.peer.number);
        let mut far = exchange.into_wire();
        far.send(switching("websocket")).await;
        assert_eq!(near.answered().await.status, 101);
        assert_echoes(&mut near, &mut far, b"bytes").await;
    }
    assert_eq!(numbers, [0, 1, 2, 3], "a connection each");
}

#[tokio::test]
async fn a_token_in_a_websocket_protocol_stops_at_a_certificate() {
    let (weir, mut upstream) = serving().await;
    let asked = ask("GET", "websocket")
        .header(
            "sec-websocket-protocol",
            "base64url.bearer.authorization.k8s.io.c2VjcmV0",
        )
        .header(
            "sec-websocket-protocol",
            "v5.channel.k8s.io, v4.channel.k8s.io",
        );
    let mut near = weir.wire_of(Some(&pki().alice)).await;
    near.send(asked.to_http1()).await;
    let exchange = upstream.next().await;
    let protocols = exchange
        .asked
        .headers
        .all("sec-websocket-protocol")
        .join(", ");
    assert_eq!(protocols, "v5.channel.k8s.io, v4.channel.k8s.io");
}

#[tokio::test]
async fn an_upgrade_is_refused_like_any_request() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .without_front_proxy()
        .start()
        .await;
    let mut near = weir.wire_of(Some(&pki().alice)).await;
    near.send(ask("GET", "websocket").to_http1()).await;
    assert_eq!(near.answered().await.status, 401);
    let _nobody_s = upstream.place.clone();
    drop(upstream);
    let mut near = weir.wire().await;
    near.send(ask("GET", "websocket").to_http1()).await;
    assert_eq!(near.answered().await.status, 503);
}

#[tokio::test]
async fn tunnels_do_not_disturb_each_other_or_anybody_else() {
    let (weir, mut upstream) = serving().await;
    let mut tunnels = Vec::new();
    for _ in 0..10 {
        tunnels.push(tunnel(&weir, &mut upstream, ask("GET", "SPDY/3.1")).await);
    }
    let mut client = weir.anonymous(Http::Two);
    for n in 0..3_u8 {
        for (near, far) in &mut tunnels {
            assert_echoes(near, far, &[n; 1000]).await;
        }
        let call = client.send(Ask::get("/api")).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_tunnel_holds_no_slot_whatever_its_request_was_and_is_not_waited_for() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .request_timeout(std::time::Duration::from_secs(5))
        .start()
        .await;
    let vnc = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/vnc";
    let ask = Ask::get(vnc)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    let (mut near, mut far) = tunnel(&weir, &mut upstream, ask).await;
    let mut client = weir.alice(Http::Two);
    for _ in 0..2 {
        let call = client.send(Ask::get("/api/v1/pods")).await;
        let exchange = upstream.next().await;
        // The second one's time is over when that of the tunnel's request is as well.
        let answer = call.answer().await;
        assert_eq!(answer.status, 504, "and not 429");
        drop(exchange);
    }
    eventually("nothing to be under way", async || {
        let status = weir.operator("/status.json").await;
        let status: serde_json::Value = serde_json::from_str(status.text()).unwrap();
        (status["requests"]["inFlight"] == 0).then_some(())
    })
    .await;
    assert_echoes(&mut near, &mut far, b"still there").await;
    assert_echoes(&mut far, &mut near, b"and here").await;
}

#[tokio::test]
async fn a_change_of_protocol_that_nobody_asked_for_is_one_answer_and_not_two() {
    let (weir, mut upstream) = serving().await;
    let mut near = weir.wire().await;
    near.send(Ask::get("/api/v1/pods").to_http1()).await;
    let mut far = upstream.next().await.into_wire();
    far.send(switching("SPDY/3.1")).await;
    assert_eq!(near.answer("GET").await.0.status, 502);
    let metrics = weir.operator("/metrics").await;
    let counted: Vec<&str> = metrics
        .text()
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .collect();
    assert_eq!(counted.len(), 1, "{counted:#?}");
    assert!(counted[0].contains("code=\"502\""), "{counted:#?}");
}

/// More than a loaded machine needs to come to the end of a burst that grows by one a second.
const MANY: u32 = 1000;

#[tokio::test]
async fn an_address_may_ask_for_other_protocols_so_often_without_a_proven_credential() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| config.transfers.upgrades_per_second = 1)
        .start()
        .await;
    let mut passed = 0;
    let refused = loop {
        let mut near = weir.wire().await;
        near.send(ask("GET", "websocket").to_http1()).await;
        tokio::select! {
            exchange = upstream.next() => exchange.reply(403, "no").await,
            answer = near.answer("GET") => break answer,
        }
        assert_eq!(near.answered().await.status, 403);
        passed += 1;
        assert!(passed < MANY, "it goes on for ever");
    };
    assert!(passed >= 5, "the burst: {passed}");
    let (head, body) = refused;
    assert_eq!((head.status, &head.headers["retry-after"]), (429, "1"));
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("weir/unproven-upgrades"), "{body}");
    let rejected = "weir_unproven_upgrades_rejected_total";
    assert_eq!(weir.metric(rejected).await, 1.0);
    // What asks for no other protocol, or with a credential that is proven, is not counted.
    for ask in [
        Ask::get(EXEC),
        ask("GET", "websocket").header(ALICE.0, ALICE.1),
    ] {
        for _ in 0..10 {
            let mut near = weir.wire().await;
            near.send(ask.to_http1()).await;
            upstream.next().await.reply(403, "no").await;
            assert_eq!(near.answered().await.status, 403);
        }
    }
    assert_eq!(weir.metric(rejected).await, 1.0);
}
