//! What a request holds it holds only while the server works on it or its client goes on: each phase of the table in
//! ARCHITECTURE.md ("Progress"), from the side of a client that does not.

use std::time::Duration;

use bytes::Bytes;

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::in_every_pair;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::within;

const PODS: &str = "/api/v1/namespaces/a/pods";
const LIST: &str = "/api/v1/pods";

/// How far behind a transfer may fall here.
const GRACE: Duration = Duration::from_secs(1);

/// How often a client sends or takes a byte that goes on and does not get on: its pace, and nothing that is waited for.
const TRICKLE: Duration = Duration::from_millis(50);

/// More than is awaited before a request takes a seat.
const LARGE: usize = 100 << 10;

/// weir with one seat for writes and one for reads.
async fn one_seat(far: Http) -> (Weir, Upstream) {
    let upstream = Upstream::preferring(far).await;
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .grace(GRACE)
        .start()
        .await;
    (weir, upstream)
}

/// One client of each kind: anonymous, with a token that nothing vouches for, with a known token, with a certificate.
fn everyone(weir: &Weir, near: Http) -> [(&'static str, Client); 4] {
    let made_up = ("authorization", "Bearer made-up");
    [
        ("anonymous", weir.anonymous(near)),
        ("made-up token", weir.bearing(near, made_up)),
        ("token", weir.alice(near)),
        ("certificate", weir.certified(near, &pki().admin)),
    ]
}

/// A write of somebody else gets the one seat.
async fn another_is_served(weir: &Weir, upstream: &mut Upstream) {
    let call = weir.alice(Http::Two).send(Ask::post(PODS, "{}")).await;
    upstream.next().await.reply(201, "{}").await;
    assert_eq!(call.answer().await.status, 201);
}

/// Sends a byte now and then until the answer has come, and gives its status.
async fn trickle(mut call: Call) -> u16 {
    loop {
        tokio::select! {
            biased;
            head = call.try_head() => return head.unwrap().status,
            () = tokio::time::sleep(TRICKLE) => {}
        }
        let _ = call.outgoing.send(Bytes::from_static(b" ")).await;
    }
}

#[tokio::test]
async fn a_small_body_that_does_not_come_holds_no_seat_and_ends_with_408() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = one_seat(far).await;
        for (who, mut client) in everyone(&weir, near) {
            let mut call = client.send(Ask::new("POST", PODS).streamed()).await;
            call.send("{").await;
            another_is_served(&weir, &mut upstream).await;
            let answer = call.answer().await;
            assert_eq!(answer.status, 408, "{who} {near:?} {far:?}");
            assert_eq!(answer.told().cause, "weir/body");
        }
        upstream.assert_nothing_came();
    })
    .await;
}

#[tokio::test]
async fn a_small_body_that_trickles_ends_with_408() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = one_seat(far).await;
        for (who, mut client) in everyone(&weir, near) {
            let call = client.send(Ask::new("POST", PODS).streamed()).await;
            let status = within("the end of a trickle", trickle(call)).await;
            assert_eq!(status, 408, "{who} {near:?} {far:?}");
        }
        upstream.assert_nothing_came();
    })
    .await;
}

#[tokio::test]
async fn a_large_body_that_stalls_gives_its_seat_back_and_ends_with_408() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = one_seat(far).await;
        for (who, mut client) in everyone(&weir, near) {
            let mut call = client.send(Ask::new("POST", PODS).streamed()).await;
            call.send(Bytes::from(vec![b' '; LARGE])).await;
            let mut exchange = upstream.next().await;
            let mut come = 0;
            while come < LARGE {
                come += exchange.incoming.next().await.unwrap().unwrap().len();
            }
            let status = within("the end of a trickle", trickle(call)).await;
            assert_eq!(status, 408, "{who} {near:?} {far:?}");
            assert!(exchange.incoming.rest().await.is_err(), "no clean end");
            drop(exchange);
            eventually("the seat, once the server is done", async || {
                let mut alice = weir.alice(Http::Two);
                let mut call = alice.send(Ask::post(PODS, "{}")).await;
                let exchange = tokio::select! {
                    exchange = upstream.next() => exchange,
                    head = call.try_head() => {
                        assert_eq!(head.unwrap().status, 429);
                        return None;
                    }
                };
                exchange.reply(201, "{}").await;
                // To its end, or the next request would meet it given up.
                assert_eq!(call.answer().await.status, 201);
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
async fn by_http1_an_unfinished_body_costs_the_upstream_s_connection() {
    let (weir, mut upstream) = one_seat(Http::One).await;
    for (who, mut client) in everyone(&weir, Http::Two) {
        let mut call = client.send(Ask::new("POST", PODS).streamed()).await;
        call.send(Bytes::from(vec![b' '; LARGE])).await;
        let exchange = upstream.next().await;
        // Go's server answers such a request without waiting for the rest of its body.
        assert_eq!(exchange.asked.headers.all("connection"), ["close"], "{who}");
        drop(exchange);
        let call = client.send(Ask::post(PODS, "{}")).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.asked.headers.all("connection"), [""; 0], "{who}");
        exchange.reply(201, "{}").await;
        assert_eq!(call.answer().await.status, 201, "{who}");
    }
}

#[tokio::test]
async fn get_head_and_upgrades_carry_a_whole_body_or_none() {
    for near in Http::BOTH {
        let upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).grace(GRACE).start().await;
        let log = "/api/v1/namespaces/a/pods/b/log?follow=true";
        for (method, target) in [("GET", log), ("HEAD", LIST), ("GET", "/readyz")] {
            let mut upstream_seen = weir.anonymous(near);
            let mut call = upstream_seen
                .send(Ask::new(method, target).streamed())
                .await;
            call.send("{").await;
            let answer = call.answer().await;
            assert_eq!(answer.status, 408, "{method} {target} {near:?}");
        }
        let mut call = weir.alice(near).send(Ask::new("GET", log).streamed()).await;
        call.send(Bytes::from(vec![b' '; LARGE])).await;
        assert_eq!(call.answer().await.status, 413);
        let mut upstream = upstream;
        upstream.assert_nothing_came();
    }
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).grace(GRACE).start().await;
    let mut wire = weir.wire().await;
    let exec = Ask::new("POST", "/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("content-length", "1");
    wire.send(exec.to_http1()).await;
    assert_eq!(wire.answered().await.status, 408);
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answer_is_cut_off() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = one_seat(far).await;
        for target in [
            LIST,
            "/api/v1/pods?watch=1",
            "/api/v1/namespaces/a/pods/b/log",
        ] {
            for (who, mut client) in everyone(&weir, near) {
                let mut call = client.send(Ask::get(target)).await;
                let mut exchange = upstream.next().await;
                exchange.begin(200, &[]).await;
                call.head().await;
                // It ends only by being broken off, long before the request's own time.
                let flood = async {
                    let piece = Bytes::from_static(&[7; 64 << 10]);
                    while exchange.try_send(piece.clone()).await.is_ok() {}
                };
                within("the flood to be broken off", flood).await;
                drop(call);
                another_is_served(&weir, &mut upstream).await;
                println!("{target} {who} {near:?} {far:?}");
            }
        }
        let slow = "weir_slow_transfers_ended_total{phase=\"response_body\"}";
        assert_eq!(weir.metric(slow).await, 12.0);
    })
    .await;
}

#[tokio::test]
async fn a_client_whose_window_is_closed_from_the_start_is_cut_off() {
    let (weir, mut upstream) = one_seat(Http::Two).await;
    let mut client = weir.frames().await;
    client.send(&Frame::settings(&[(4, 0)])).await; // SETTINGS_INITIAL_WINDOW_SIZE
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", "/api/v1/pods?watch=1"),
        weir::ALICE,
    ];
    client.send(&Frame::request(1, &head, true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin(200, &[]).await;
    exchange.send("an event").await;
    within("the watch to be broken off", exchange.given_up()).await;
}

#[tokio::test]
async fn a_tunnel_whose_client_does_not_read_ends_and_a_silent_one_stays() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).grace(GRACE).start().await;
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut near = weir.wire().await;
        let ask = Ask::new("POST", "/api/v1/namespaces/a/pods/b/exec?command=sh")
            .header("connection", "upgrade")
            .header("upgrade", "SPDY/3.1");
        near.send(ask.to_http1()).await;
        let mut far = upstream.next().await.into_wire();
        far.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        )
        .await;
        assert_eq!(near.answered().await.status, 101);
        tunnels.push((near, far));
    }
    let (near, mut far) = tunnels.pop().unwrap();
    let flood = async {
        let piece = [7; 64 << 10];
        while far.writer.send_patiently(&piece).await.is_ok() {}
    };
    within("the tunnel to end", flood).await;
    drop(near);
    let slow = "weir_slow_transfers_ended_total{phase=\"tunnel\"}";
    weir.metric_becomes(slow, 1.0).await;
    let (near, far) = &mut tunnels[0];
    near.send("there").await;
    assert_eq!(far.reader.exactly(5).await.unwrap(), "there");
}

#[tokio::test]
async fn a_stream_that_was_reset_keeps_its_slot_until_the_server_has_seen_it() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let call = client.send(Ask::get(LIST)).await;
    let settings = [(frames::MAX_STREAMS, 1)];
    let mut server = Frames::server(upstream.next(Http::Two).await, &settings).await;
    server.hold_pings();
    let first = server.until(frames::HEADERS).await.stream;
    drop(call);
    assert_eq!(server.until(frames::RST_STREAM).await.stream, first);
    let _next = client.send(Ask::get(LIST)).await;
    // The PING stands behind the reset; the next request waits for its answer.
    let ping = server.next().await.unwrap();
    assert_eq!((ping.kind, ping.flags), (frames::PING, 0));
    let pong = Frame::new(frames::PING, frames::ACK, 0, ping.payload);
    server.send(&pong).await;
    let second = server.until(frames::HEADERS).await;
    assert!(second.stream > first);
}

#[tokio::test]
async fn one_user_cannot_have_all_places_for_what_lasts() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| config.upstream.room = 32)
        .trusting_its_clients()
        .start()
        .await;
    let log = "/api/v1/namespaces/a/pods/b/log?follow=true";
    let mut alice = weir.alice(Http::Two);
    let mut open = Vec::new();
    let refused = loop {
        let mut call = alice.send(Ask::get(log)).await;
        tokio::select! {
            exchange = upstream.next() => open.push((call, exchange)),
            head = call.try_head() => break head.unwrap(),
        }
    };
    assert_eq!((open.len(), refused.status), (8, 429), "half of sixteen");
    let places = weir.operator("/debug/places").await;
    let line = "long-running\t8\t16\tuser \"alice\"";
    assert!(
        places.text().lines().any(|l| l == line),
        "{}",
        places.text()
    );
    // The page asks whether the upstream is ready.
    let (status, ()) = tokio::join!(weir.operator("/status.json"), async {
        upstream.next().await.reply(200, "ok").await;
    });
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    let shown = &status["upstream"]["places"][0];
    assert_eq!(
        (&shown["kind"], &shown["taken"]),
        (&"long-running".into(), &8.into())
    );
    let alice_holds = serde_json::json!({"by": "user", "name": "alice", "taken": 8});
    assert!(
        shown["holders"].as_array().unwrap().contains(&alice_holds),
        "{shown}"
    );
    let taken = "weir_upstream_places_taken{kind=\"long-running\"}";
    assert_eq!(weir.metric(taken).await, 8.0);
    let mut bob = weir.certified(Http::Two, &pki().admin);
    let call = bob.send(Ask::get(log)).await;
    upstream.next().await.reply(200, "log").await;
    assert_eq!(call.answer().await.text(), "log");
    drop(open);
    eventually("a place of her own again", async || {
        let mut call = alice.send(Ask::get(log)).await;
        tokio::select! {
            exchange = upstream.next() => {
                exchange.reply(200, "log").await;
                Some(())
            }
            _ = call.try_head() => None,
        }
    })
    .await;
}
