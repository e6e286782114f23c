//! A request holds its resources only while the server works on it or its client makes progress.
//! Tests each phase of the table in ARCHITECTURE.md ("Progress") with a client that stalls.

use std::time::Duration;

use bytes::Bytes;

use crate::support::certificates::pki;
use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::process::WeirProcess;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{
    HttpVersion, UnexpectedEnd, eventually, for_each_protocol_pair, raw_http2, weir, within,
};

const PODS: &str = "/api/v1/namespaces/a/pods";
const LIST: &str = "/api/v1/pods";

/// How far a transfer may fall behind in these tests.
const GRACE: Duration = Duration::from_secs(1);

/// The interval at which a slow client sends or takes a byte. The tests do not wait for it.
const TRICKLE_INTERVAL: Duration = Duration::from_millis(50);

/// More than is buffered before a request takes a seat.
const LARGE_LENGTH: usize = 100 << 10;

/// weir with one seat for writes and one for reads.
async fn with_one_seat(far: HttpVersion) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::preferring(far).await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .transfer_grace(GRACE)
        .start()
        .await;
    (weir, upstream)
}

/// One client of each kind: anonymous, with an unverifiable token, with a known token, with a
/// certificate.
fn clients_of_every_kind(weir: &Weir, near: HttpVersion) -> [(&'static str, TestClient); 4] {
    let made_up = ("authorization", "Bearer made-up");
    [
        ("anonymous", weir.anonymous(near)),
        ("made-up token", weir.with_authorization(near, made_up)),
        ("token", weir.alice(near)),
        ("certificate", weir.with_certificate(near, &pki().admin)),
    ]
}

/// Another client's write gets the only seat.
async fn assert_another_is_served(weir: &Weir, upstream: &mut FakeUpstream) {
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::post(PODS, "{}"))
        .await;
    upstream.next_exchange().await.respond(201, "{}").await;
    assert_eq!(call.response().await.status, 201);
}

/// Sends a byte from time to time until the response arrives. Returns its status.
async fn trickle(mut call: TestCall) -> u16 {
    loop {
        tokio::select! {
            biased;
            head = call.try_head() => return head.unwrap().status,
            () = tokio::time::sleep(TRICKLE_INTERVAL) => {}
        }
        let _ = call.outgoing.send(Bytes::from_static(b" ")).await;
    }
}

#[tokio::test]
async fn a_small_body_that_never_arrives_holds_no_seat_and_ends_with_408() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_one_seat(far).await;
        for (kind, mut client) in clients_of_every_kind(&weir, near) {
            let mut call = client.send(TestRequest::new("POST", PODS).streamed()).await;
            call.send("{").await;
            assert_another_is_served(&weir, &mut upstream).await;
            let response = call.response().await;
            assert_eq!(response.status, 408, "{kind} {near:?} {far:?}");
            assert_eq!(response.kube_status().cause, "weir/body");
        }
        upstream.assert_no_request();
    })
    .await;
}

#[tokio::test]
async fn a_small_body_that_trickles_ends_with_408() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_one_seat(far).await;
        for (kind, mut client) in clients_of_every_kind(&weir, near) {
            let call = client.send(TestRequest::new("POST", PODS).streamed()).await;
            let status = within("the end of a trickle", trickle(call)).await;
            assert_eq!(status, 408, "{kind} {near:?} {far:?}");
        }
        upstream.assert_no_request();
    })
    .await;
}

#[tokio::test]
async fn a_large_body_that_stalls_releases_its_seat_and_ends_with_408() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_one_seat(far).await;
        for (kind, mut client) in clients_of_every_kind(&weir, near) {
            let mut call = client.send(TestRequest::new("POST", PODS).streamed()).await;
            call.send(Bytes::from(vec![b' '; LARGE_LENGTH])).await;
            let mut exchange = upstream.next_exchange().await;
            let mut come = 0;
            while come < LARGE_LENGTH {
                come += exchange
                    .request_body
                    .next_chunk()
                    .await
                    .unwrap()
                    .unwrap()
                    .len();
            }
            let status = within("the end of a trickle", trickle(call)).await;
            assert_eq!(status, 408, "{kind} {near:?} {far:?}");
            assert!(
                exchange.request_body.read_to_end().await.is_err(),
                "no clean end"
            );
            drop(exchange);
            eventually("the seat, once the server is done", async || {
                let mut alice = weir.alice(HttpVersion::Http2);
                let mut call = alice.send(TestRequest::post(PODS, "{}")).await;
                let exchange = tokio::select! {
                    exchange = upstream.next_exchange() => exchange,
                    head = call.try_head() => {
                        assert_eq!(head.unwrap().status, 429);
                        return None;
                    }
                };
                exchange.respond(201, "{}").await;
                // Completely: otherwise the next request would find it cancelled.
                assert_eq!(call.response().await.status, 201);
                Some(())
            })
            .await;
        }
        let slow = "weir_slow_transfers_ended_total{phase=\"request_body\"}";
        assert_eq!(weir.metric(slow).await, 4.0);
    })
    .await;
}

#[tokio::test]
async fn on_http1_an_unfinished_body_closes_the_upstream_connection() {
    let (weir, mut upstream) = with_one_seat(HttpVersion::Http1).await;
    for (kind, mut client) in clients_of_every_kind(&weir, HttpVersion::Http2) {
        let mut call = client.send(TestRequest::new("POST", PODS).streamed()).await;
        call.send(Bytes::from(vec![b' '; LARGE_LENGTH])).await;
        let exchange = upstream.next_exchange().await;
        // Go's server responds to such a request without waiting for the rest of its body.
        assert_eq!(
            exchange.request.headers.all("connection"),
            ["close"],
            "{kind}"
        );
        drop(exchange);
        assert_eq!(call.response().await.status, 502, "{kind}"); // its seat is free
        let call = client.send(TestRequest::post(PODS, "{}")).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(
            exchange.request.headers.all("connection"),
            [""; 0],
            "{kind}"
        );
        exchange.respond(201, "{}").await;
        assert_eq!(call.response().await.status, 201, "{kind}");
    }
}

#[tokio::test]
async fn get_head_and_upgrades_carry_a_complete_body_or_none() {
    for near in HttpVersion::BOTH {
        let upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .transfer_grace(GRACE)
            .start()
            .await;
        let log = "/api/v1/namespaces/a/pods/b/log?follow=true";
        for (method, target) in [("GET", log), ("HEAD", LIST), ("GET", "/readyz")] {
            let mut upstream_seen = weir.anonymous(near);
            let mut call = upstream_seen
                .send(TestRequest::new(method, target).streamed())
                .await;
            call.send("{").await;
            let response = call.response().await;
            assert_eq!(response.status, 408, "{method} {target} {near:?}");
        }
        let mut call = weir
            .alice(near)
            .send(TestRequest::new("GET", log).streamed())
            .await;
        call.send(Bytes::from(vec![b' '; LARGE_LENGTH])).await;
        assert_eq!(call.response().await.status, 413);
        let mut upstream = upstream;
        upstream.assert_no_request();
    }
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .transfer_grace(GRACE)
        .start()
        .await;
    let mut wire = weir.raw_http1().await;
    let exec = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("content-length", "1");
    wire.send(exec.to_http1()).await;
    assert_eq!(wire.read_response_head().await.status, 408);
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_client_that_does_not_read_its_response_is_disconnected() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_one_seat(far).await;
        for target in [
            LIST,
            "/api/v1/pods?watch=1",
            "/api/v1/namespaces/a/pods/b/log",
        ] {
            // A long-running response of a proven user may pause.
            let kinds = if target == LIST { 4 } else { 2 };
            for (kind, mut client) in clients_of_every_kind(&weir, near).into_iter().take(kinds) {
                let mut call = client.send(TestRequest::get(target)).await;
                let mut exchange = upstream.next_exchange().await;
                exchange.send_head(200, &[]).await;
                call.head().await;
                // It ends only by a reset, long before the request's own deadline.
                let flood = async {
                    let piece = Bytes::from_static(&[7; 64 << 10]);
                    while exchange.try_send(piece.clone()).await.is_ok() {}
                };
                within("the flood to be broken off", flood).await;
                drop(call);
                assert_another_is_served(&weir, &mut upstream).await;
                println!("{target} {kind} {near:?} {far:?}");
            }
        }
        let slow = "weir_slow_transfers_ended_total{phase=\"response_body\"}";
        assert_eq!(weir.metric(slow).await, 8.0);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_what_is_left_of_ended_responses_is_disconnected() {
    const RESPONSES: u32 = 99;
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http2).await;
    let weir = weir::builder(upstream.address)
        .transfer_grace(GRACE)
        .start()
        .await;
    let mut client = weir.raw_http2().await;
    client.send(&RawFrame::settings(&[(4, 1 << 30)])).await; // SETTINGS_INITIAL_WINDOW_SIZE
    let window = (1_u32 << 30).to_be_bytes();
    client
        .send(&RawFrame::new(raw_http2::WINDOW_UPDATE, 0, 0, window))
        .await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        weir::ALICE,
    ];
    let body = Bytes::from_static(&[7; 60 << 10]);
    let closed = "weir_client_connections_closed_total{reason=\"stalled\"}";
    let mut closing = std::pin::pin!(weir.wait_for_metric(closed, 1.0));
    let responding = async {
        for n in 0..RESPONSES {
            // On a slow machine the client is disconnected before it has sent all of them.
            let request = RawFrame::request(2 * n + 1, &head, true);
            if client.try_send(&request).await.is_err() {
                break;
            }
            let exchange = upstream.next_exchange().await;
            let _ = tokio::spawn(exchange.respond(200, body.clone())).await;
        }
    };
    tokio::select! {
        () = &mut closing => {}
        () = responding => closing.await,
    }
    weir.wait_for_metric("weir_client_connections", 0.0).await;
    let slow = "weir_slow_transfers_ended_total{phase=\"ended_response\"}";
    assert_eq!(weir.metric(slow).await, 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_after_100_continue_costs_no_connection_to_the_upstream() {
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address).limits(1, 1).start().await;
    let expecting = TestRequest::new("POST", PODS)
        .header(weir::ALICE.0, weir::ALICE.1)
        .header("expect", "100-continue")
        .header("content-length", "2");
    for leaves in [true, false] {
        let mut wire = weir.raw_http1().await;
        wire.send(expecting.to_http1()).await;
        assert_eq!(wire.read_response_head().await.status, 100);
        if leaves {
            drop(wire);
            weir.wait_for_metric("weir_client_connections", 0.0).await;
            assert_eq!(upstream.connection_count(), 0);
            upstream.assert_no_request();
            continue;
        }
        wire.send("{}").await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.headers.get("connection"), None);
        exchange.respond(201, "{}").await;
        assert_eq!(wire.read_response_head().await.status, 201);
    }
    assert_another_is_served(&weir, &mut upstream).await;
    assert_eq!(
        upstream.connection_count(),
        1,
        "the connection is used again"
    );
}

#[tokio::test]
async fn a_client_whose_window_is_closed_from_the_start_is_disconnected() {
    let (weir, mut upstream) = with_one_seat(HttpVersion::Http2).await;
    let mut client = weir.raw_http2().await;
    client.send(&RawFrame::settings(&[(4, 0)])).await; // SETTINGS_INITIAL_WINDOW_SIZE
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        weir::ALICE,
    ];
    client.send(&RawFrame::request(1, &head, true)).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    exchange.send("an event").await;
    within("the watch to be broken off", exchange.wait_for_cancel()).await;
}

#[tokio::test]
async fn a_tunnel_whose_client_does_not_read_ends_and_an_idle_one_stays() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .transfer_grace(GRACE)
        .start()
        .await;
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut near = weir.raw_http1().await;
        let request = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec?command=sh")
            .header("connection", "upgrade")
            .header("upgrade", "SPDY/3.1");
        near.send(request.to_http1()).await;
        let mut far = upstream.next_exchange().await.into_raw_http1();
        far.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        )
        .await;
        assert_eq!(near.read_response_head().await.status, 101);
        tunnels.push((near, far));
    }
    let (near, mut far) = tunnels.pop().unwrap();
    let flood = async {
        let piece = [7; 64 << 10];
        while far.writer.send_without_timeout(&piece).await.is_ok() {}
    };
    within("the tunnel to end", flood).await;
    drop(near);
    let slow = "weir_slow_transfers_ended_total{phase=\"tunnel\"}";
    weir.wait_for_metric(slow, 1.0).await;
    let (near, far) = &mut tunnels[0];
    near.send("there").await;
    assert_eq!(far.reader.read_exactly(5).await.unwrap(), "there");
}

/// Stalls an unproven client until it is cut off. Others have stalled as long before.
async fn outlast_minimum_rate(weir: &Weir, upstream: &mut FakeUpstream) {
    let log = TestRequest::get("/api/v1/namespaces/a/pods/b/log");
    let mut call = weir.anonymous(HttpVersion::Http1).send(log).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    call.head().await;
    let flood = async { while exchange.try_send(Bytes::from_static(&PIECE)).await.is_ok() {} };
    within("the flood to be broken off", flood).await;
}

static PIECE: [u8; 64 << 10] = [7; 64 << 10];

/// More than all buffers on the way hold.
const PIECES: usize = 512;

#[tokio::test]
async fn a_long_running_response_of_a_proven_user_may_pause() {
    for_each_protocol_pair(async |near, far| {
        let upstream = FakeUpstream::preferring(far).await;
        let mut upstream = upstream;
        let weir = weir::builder(upstream.address)
            .transfer_grace(GRACE)
            .start()
            .await;
        let mut paused = Vec::new();
        for target in [
            "/api/v1/pods?watch=1",
            "/api/v1/namespaces/a/pods/b/log?follow=true",
            "/api/v1/namespaces/a/services/b/proxy/events",
        ] {
            for mut client in [weir.alice(near), weir.with_certificate(near, &pki().admin)] {
                let mut call = client.send(TestRequest::get(target)).await;
                let mut exchange = upstream.next_exchange().await;
                exchange.send_head(200, &[]).await;
                call.head().await;
                let flood = tokio::spawn(async move {
                    for _ in 0..PIECES {
                        exchange.try_send(Bytes::from_static(&PIECE)).await?;
                    }
                    exchange.end().await;
                    Ok::<_, UnexpectedEnd>(())
                });
                paused.push((target, client, call, flood));
            }
        }
        outlast_minimum_rate(&weir, &mut upstream).await;
        outlast_minimum_rate(&weir, &mut upstream).await; // a connection has twice the grace
        for (target, _client, mut call, flood) in paused {
            let mut read = 0;
            while let Some(piece) = call.body().next_chunk().await {
                read += piece.unwrap().len();
            }
            assert_eq!(read, PIECES * PIECE.len(), "{target} {near:?} {far:?}");
            flood.await.unwrap().unwrap();
        }
        let slow = "weir_slow_transfers_ended_total{phase=\"ended_response\"}";
        assert_eq!(weir.metric(slow).await, 0.0);
    })
    .await;
}

#[tokio::test]
async fn an_upload_to_a_proxied_app_may_pause() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .transfer_grace(GRACE)
        .start()
        .await;
    let upload = TestRequest::new("POST", "/api/v1/namespaces/a/services/b/proxy/upload");
    let mut call = weir.alice(HttpVersion::Http2).send(upload.streamed()).await;
    call.send("a").await;
    let mut exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request_body.next_text().await, "a");
    outlast_minimum_rate(&weir, &mut upstream).await;
    call.send("b").await;
    call.end().await;
    assert_eq!(exchange.request_body.read_to_end().await.unwrap(), "b");
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn a_tunnel_of_a_proven_user_may_pause() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .transfer_grace(GRACE)
        .start()
        .await;
    let mut near = weir.raw_http1().await;
    let request = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec?command=sh")
        .header(weir::ALICE.0, weir::ALICE.1)
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(request.to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
    let flood = tokio::spawn(async move {
        for _ in 0..PIECES {
            far.writer.send_without_timeout(&PIECE).await.unwrap();
        }
        far
    });
    outlast_minimum_rate(&weir, &mut upstream).await;
    for _ in 0..PIECES {
        near.reader.read_exactly(PIECE.len()).await.unwrap();
    }
    let mut far = flood.await.unwrap();
    near.send("there").await;
    assert_eq!(far.reader.read_exactly(5).await.unwrap(), "there");
}

#[tokio::test]
async fn a_client_that_pauses_for_too_long_is_cut_off_and_logged() {
    let mut upstream = FakeUpstream::start().await;
    let flags = [
        "--token-auth-file=tokens.csv",
        "--long-running-pause-timeout=1s",
    ];
    let mut weir = WeirProcess::serve(upstream.address, &flags).await;
    let log = "/api/v1/namespaces/a/pods/b/log?follow=true";
    let mut client = weir.alice(HttpVersion::Http2);
    let mut call = client.send(TestRequest::get(log)).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    call.head().await;
    let flood = async { while exchange.try_send(Bytes::from_static(&PIECE)).await.is_ok() {} };
    within("the flood to be broken off", flood).await;
    let line = weir.next_log_line("reads too slowly").await;
    for part in [
        "path=\"/api/v1/namespaces/a/pods/b/log\"",
        "user=\"alice\"",
        "bytes=",
        "flag=\"--long-running-pause-timeout\"",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let slow = "weir_slow_transfers_ended_total{phase=\"response_body\"}";
    assert_eq!(weir.metric(slow).await, 1.0);
}

#[tokio::test]
async fn a_reset_stream_keeps_its_slot_until_the_upstream_has_processed_it() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let settings = [(raw_http2::MAX_STREAMS, 1)];
    let mut server =
        RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &settings).await;
    server.pass_pings();
    let first = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    drop(call);
    assert_eq!(
        server
            .next_frame_of_kind(raw_http2::RST_STREAM)
            .await
            .stream,
        first
    );
    let _next = client.send(TestRequest::get(LIST)).await;
    // The PING follows the reset. The next request waits for its acknowledgement.
    let ping = server.next_frame().await.unwrap();
    assert_eq!((ping.kind, ping.flags), (raw_http2::PING, 0));
    let pong = RawFrame::new(raw_http2::PING, raw_http2::ACK, 0, ping.payload);
    server.send(&pong).await;
    let second = server.next_frame_of_kind(raw_http2::HEADERS).await;
    assert!(second.stream > first);
}

#[tokio::test]
async fn one_user_cannot_take_all_long_running_connections() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.max_connections = 32)
        .trust_test_clients()
        .start()
        .await;
    let log = "/api/v1/namespaces/a/pods/b/log?follow=true";
    let mut alice = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    let rejected = loop {
        let mut call = alice.send(TestRequest::get(log)).await;
        tokio::select! {
            exchange = upstream.next_exchange() => open.push((call, exchange)),
            head = call.try_head() => break head.unwrap(),
        }
    };
    assert_eq!((open.len(), rejected.status), (8, 429), "half of sixteen");
    let places = weir.get_admin("/debug/places").await;
    let line = "long-running\t8\t16\tuser \"alice\"";
    assert!(
        places.text().lines().any(|l| l == line),
        "{}",
        places.text()
    );
    let status = weir.get_admin("/status.json").await;
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    let budget = &status["upstream"]["places"][0];
    assert_eq!(
        (&budget["kind"], &budget["taken"]),
        (&"long-running".into(), &8.into())
    );
    let alice_holds = serde_json::json!({"by": "user", "name": "alice", "taken": 8});
    assert!(
        budget["holders"].as_array().unwrap().contains(&alice_holds),
        "{budget}"
    );
    let taken = "weir_upstream_places_taken{kind=\"long-running\"}";
    assert_eq!(weir.metric(taken).await, 8.0);
    let mut bob = weir.with_certificate(HttpVersion::Http2, &pki().admin);
    let call = bob.send(TestRequest::get(log)).await;
    upstream.next_exchange().await.respond(200, "log").await;
    assert_eq!(call.response().await.text(), "log");
    drop(open);
    eventually("a place of her own again", async || {
        let mut call = alice.send(TestRequest::get(log)).await;
        tokio::select! {
            exchange = upstream.next_exchange() => {
                exchange.respond(200, "log").await;
                Some(())
            }
            _ = call.try_head() => None,
        }
    })
    .await;
}
