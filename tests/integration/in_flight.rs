//! A slot is held to the last byte of an answer, and free when the upstream sees its client gone.

use std::collections::HashSet;
use std::time::Duration;

use h2::Reason;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

async fn one_at_a_time(far: Http) -> (Weir, Upstream) {
    let upstream = Upstream::preferring(far).await;
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .streaming()
        .start()
        .await;
    (weir, upstream)
}

#[tokio::test]
async fn a_slot_is_held_to_the_end_of_the_body() {
    for (near, far) in Http::PAIRS {
        let (weir, mut upstream) = one_at_a_time(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        assert_eq!(client.get(LIST).await.status, 429);
        exchange.begin(200, &[]).await;
        call.head().await;
        assert_eq!(
            client.get(LIST).await.status,
            429,
            "the head is not the end"
        );
        exchange.send("half").await;
        assert_eq!(call.body().text().await, "half");
        assert_eq!(client.get(LIST).await.status, 429, "half is not the end");
        exchange.end().await;
        assert!(call.body().next().await.is_none());
        let again = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(again.answer().await.status, 200, "free with the last byte");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_before_an_answer_frees_its_slot() {
    for (near, far) in Http::PAIRS {
        let (weir, mut upstream) = one_at_a_time(far).await;
        let mut client = weir.alice(near);
        let call = client.send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        drop(call);
        let reason = exchange.given_up().await;
        assert!(
            far == Http::One || reason == Some(Reason::CANCEL),
            "{reason:?}"
        );
        is_admitted(&weir, near, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_within_the_body_frees_its_slot() {
    for (near, far) in Http::PAIRS {
        let (weir, mut upstream) = one_at_a_time(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        exchange.send("half").await;
        call.head().await;
        assert_eq!(call.body().text().await, "half");
        drop(call);
        exchange.given_up().await;
        is_admitted(&weir, near, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_within_an_upload_frees_its_slot() {
    for (near, far) in Http::PAIRS {
        let (weir, mut upstream) = one_at_a_time(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(Ask::new("POST", LIST).streamed()).await;
        call.send("half").await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.incoming.text().await, "half");
        drop(call);
        assert!(
            exchange.incoming.rest().await.is_err(),
            "never a clean end: {near:?} {far:?}"
        );
        drop(exchange);
        let mut client = weir.alice(near);
        eventually("a free slot", async || {
            let ask = Ask::post(LIST, "{}");
            let mut call = client.send(ask).await;
            tokio::select! {
                exchange = upstream.next() => {
                    exchange.reply(200, "{}").await;
                    Some(())
                }
                head = call.try_head() => {
                    assert_eq!(head.unwrap().status, 429);
                    None
                }
            }
        })
        .await;
    }
}

/// Asks until a request is let through; before that the answer is 429 and nothing else.
async fn is_admitted(weir: &Weir, near: Http, upstream: &mut Upstream) {
    let mut client = weir.alice(near);
    eventually("a free slot", async || {
        let mut call = client.send(Ask::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next() => {
                exchange.reply(200, "{}").await;
                Some(())
            }
            head = call.try_head() => {
                assert_eq!(head.unwrap().status, 429);
                None
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_slot_is_not_free_before_the_upstream_s_stream_is_reset() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).limits(1, 1).start().await;
    let mut client = weir.alice(Http::Two);
    let call = client.send(Ask::get(LIST)).await;
    let mut server = Frames::server(upstream.next(Http::Two).await, &[]).await;
    let first = server.until(frames::HEADERS).await.stream;
    drop(call);
    let refused = async {
        let mut others = weir.alice(Http::Two);
        while others.get(LIST).await.status == 429 {}
    };
    let order = async {
        let mut reset = false;
        loop {
            let frame = server.next().await.unwrap();
            match frame.kind {
                frames::RST_STREAM => {
                    assert_eq!(frame.stream, first);
                    reset = true;
                }
                frames::HEADERS => {
                    assert!(reset, "a second request came while the first was under way");
                    server.send(&Frame::ok(frame.stream, true)).await;
                    return;
                }
                _ => {}
            }
        }
    };
    tokio::join!(refused, order);
}

#[tokio::test]
async fn a_client_that_opens_and_resets_a_thousand_streams_leaves_no_slot_behind() {
    let (weir, mut upstream) = one_at_a_time(Http::Two).await;
    let mut client = weir.frames().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        weir::ALICE,
    ];
    for n in 0..1000 {
        let stream = 2 * n + 1;
        // weir may have had enough of it, and may say so.
        if client
            .try_send(&Frame::request(stream, &head, true))
            .await
            .is_err()
            || client.try_send(&Frame::reset(stream, 8)).await.is_err()
        {
            break;
        }
    }
    drop(client);
    // What reached the upstream is given up; what has not will not come.
    let mut client = weir.alice(Http::Two);
    eventually("a free slot", async || {
        let mut call = client.send(Ask::get("/api/v1/nodes")).await;
        loop {
            tokio::select! {
                mut exchange = upstream.next() => {
                    if exchange.asked.target == LIST {
                        exchange.given_up().await;
                        continue;
                    }
                    exchange.reply(200, "{}").await;
                    return Some(());
                }
                head = call.try_head() => {
                    assert_eq!(head.unwrap().status, 429);
                    return None;
                }
            }
        }
    })
    .await;
    weir.metric_becomes(
        "apiserver_current_inflight_requests{request_kind=\"readOnly\"}",
        0.0,
    )
    .await;
}

/// How long the upstream takes for a list: later ones are taken to take as long.
const SERVICE_TIME: Duration = Duration::from_secs(3);

const ABANDONED: &str = "weir_abandoned_requests";
const ABORTED: &str = "weir_aborted_requests_total";

#[tokio::test]
async fn a_request_that_is_given_up_before_it_is_sent_holds_its_seat_no_longer() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).limits(9, 9).start().await;
    let mut client = weir.alice(Http::One);
    let call = client.send(Ask::get(LIST)).await;
    let mut server = Wire::new(upstream.next(Http::One).await);
    server.asked().await;
    tokio::time::sleep(SERVICE_TIME).await;
    server
        .send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    assert_eq!(call.answer().await.status, 200);

    // Sent: the server may be working on it.
    let call = weir.alice(Http::One).send(Ask::get(LIST)).await;
    let mut server = Wire::new(upstream.next(Http::One).await);
    server.asked().await;
    drop(call);
    weir.metric_becomes(ABANDONED, 1.0).await;
    weir.metric_becomes(ABANDONED, 0.0).await;
    drop(server);

    // Not sent: its connection is not there yet.
    let call = weir.alice(Http::One).send(Ask::get(LIST)).await;
    let _connecting = upstream.tcp().await;
    let before = weir.metric(ABORTED).await;
    drop(call);
    weir.metric_becomes(ABORTED, before + 1.0).await;
    assert_eq!(weir.metric(ABANDONED).await, 0.0);
}

#[tokio::test]
async fn a_request_that_is_given_up_over_http1_and_ends_soon_costs_no_connection() {
    const REQUESTS: usize = 12;
    let mut upstream = Upstream::preferring(Http::One).await;
    let weir = weir::before(upstream.address).start().await;
    let mut aborted = 0.0;
    for near in Http::BOTH {
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let mut connections = HashSet::new();
            for _ in 0..REQUESTS {
                let call = client.send(Ask::get(LIST)).await;
                let exchange = upstream.next().await;
                connections.insert(exchange.peer.number);
                drop(call);
                aborted += 1.0;
                weir.metric_becomes(ABORTED, aborted).await;
                // On a machine that stood still for a second its connection is closed by now: that costs another.
                let _ = tokio::spawn(exchange.reply(200, "{}")).await;
                weir.metric_becomes(ABANDONED, 0.0).await;
            }
            let count = connections.len();
            assert!(count <= REQUESTS / 4, "{count} for {REQUESTS}: {near:?}");
        }
    }
}
