//! A slot is held until the last byte of a response, and released when the upstream sees the client
//! disconnect.

use std::collections::HashSet;
use std::time::Duration;

use h2::Reason;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

async fn with_one_slot(far: HttpVersion) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::preferring(far).await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .without_body_buffer()
        .start()
        .await;
    (weir, upstream)
}

#[tokio::test]
async fn a_slot_is_held_until_the_end_of_the_body() {
    for (near, far) in HttpVersion::PAIRS {
        let (weir, mut upstream) = with_one_slot(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(client.get(LIST).await.status, 429);
        exchange.send_head(200, &[]).await;
        call.head().await;
        assert_eq!(
            client.get(LIST).await.status,
            429,
            "the head is not the end"
        );
        exchange.send("half").await;
        assert_eq!(call.body().next_text().await, "half");
        assert_eq!(client.get(LIST).await.status, 429, "half is not the end");
        exchange.end().await;
        assert!(call.body().next_chunk().await.is_none());
        let again = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(
            again.response().await.status,
            200,
            "free with the last byte"
        );
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_a_response_frees_its_slot() {
    for (near, far) in HttpVersion::PAIRS {
        let (weir, mut upstream) = with_one_slot(far).await;
        let mut client = weir.alice(near);
        let call = client.send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        drop(call);
        let reason = exchange.wait_for_cancel().await;
        assert!(
            far == HttpVersion::Http1 || reason == Some(Reason::CANCEL),
            "{reason:?}"
        );
        wait_until_admitted(&weir, near, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_within_the_body_frees_its_slot() {
    for (near, far) in HttpVersion::PAIRS {
        let (weir, mut upstream) = with_one_slot(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        exchange.send("half").await;
        call.head().await;
        assert_eq!(call.body().next_text().await, "half");
        drop(call);
        exchange.wait_for_cancel().await;
        wait_until_admitted(&weir, near, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_within_an_upload_frees_its_slot() {
    for (near, far) in HttpVersion::PAIRS {
        let (weir, mut upstream) = with_one_slot(far).await;
        let mut client = weir.alice(near);
        let mut call = client.send(TestRequest::new("POST", LIST).streamed()).await;
        call.send("half").await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request_body.next_text().await, "half");
        drop(call);
        assert!(
            exchange.request_body.read_to_end().await.is_err(),
            "never a clean end: {near:?} {far:?}"
        );
        drop(exchange);
        let mut client = weir.alice(near);
        eventually("a free slot", async || {
            let request = TestRequest::post(LIST, "{}");
            let mut call = client.send(request).await;
            tokio::select! {
                exchange = upstream.next_exchange() => {
                    exchange.respond(200, "{}").await;
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

/// Retries until a request is admitted. Every other response must be 429.
async fn wait_until_admitted(weir: &Weir, near: HttpVersion, upstream: &mut FakeUpstream) {
    let mut client = weir.alice(near);
    eventually("a free slot", async || {
        let mut call = client.send(TestRequest::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next_exchange() => {
                exchange.respond(200, "{}").await;
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
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).limits(1, 1).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let mut server = RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &[]).await;
    let first = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    drop(call);
    let rejected = async {
        let mut others = weir.alice(HttpVersion::Http2);
        while others.get(LIST).await.status == 429 {}
    };
    let order = async {
        let mut reset = false;
        loop {
            let frame = server.next_frame().await.unwrap();
            match frame.kind {
                raw_http2::RST_STREAM => {
                    assert_eq!(frame.stream, first);
                    reset = true;
                }
                raw_http2::HEADERS => {
                    assert!(reset, "a second request came while the first was under way");
                    server.send(&RawFrame::ok(frame.stream, true)).await;
                    return;
                }
                _ => {}
            }
        }
    };
    tokio::join!(rejected, order);
}

#[tokio::test]
async fn a_client_that_resets_a_thousand_streams_leaks_no_slot() {
    let (weir, mut upstream) = with_one_slot(HttpVersion::Http2).await;
    let mut client = weir.raw_http2().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        weir::ALICE,
    ];
    for n in 0..1000 {
        let stream = 2 * n + 1;
        // weir may close the connection, and may respond before.
        if client
            .try_send(&RawFrame::request(stream, &head, true))
            .await
            .is_err()
            || client.try_send(&RawFrame::reset(stream, 8)).await.is_err()
        {
            break;
        }
    }
    drop(client);
    // Requests that reached the upstream are cancelled. The others do not arrive.
    let mut client = weir.alice(HttpVersion::Http2);
    eventually("a free slot", async || {
        let mut call = client.send(TestRequest::get("/api/v1/nodes")).await;
        loop {
            tokio::select! {
                mut exchange = upstream.next_exchange() => {
                    if exchange.request.target == LIST {
                        exchange.wait_for_cancel().await;
                        continue;
                    }
                    exchange.respond(200, "{}").await;
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
    weir.wait_for_metric(
        "apiserver_current_inflight_requests{request_kind=\"readOnly\"}",
        0.0,
    )
    .await;
}

/// The upstream's time for a list. weir expects later lists to take as long.
const SERVICE_TIME: Duration = Duration::from_secs(3);

const ABANDONED_METRIC: &str = "weir_abandoned_requests";
const ABORTED_METRIC: &str = "weir_aborted_requests_total";

#[tokio::test]
async fn a_request_cancelled_before_it_is_sent_releases_its_seat() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).limits(9, 9).start().await;
    let mut client = weir.alice(HttpVersion::Http1);
    let call = client.send(TestRequest::get(LIST)).await;
    let mut server = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
    server.read_request_head().await;
    tokio::time::sleep(SERVICE_TIME).await;
    server
        .send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    assert_eq!(call.response().await.status, 200);

    // Sent: the server may be executing it.
    let call = weir
        .alice(HttpVersion::Http1)
        .send(TestRequest::get(LIST))
        .await;
    let mut server = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
    server.read_request_head().await;
    drop(call);
    weir.wait_for_metric(ABANDONED_METRIC, 1.0).await;
    weir.wait_for_metric(ABANDONED_METRIC, 0.0).await;
    drop(server);

    // Not sent: its connection is not established yet.
    let call = weir
        .alice(HttpVersion::Http1)
        .send(TestRequest::get(LIST))
        .await;
    let _connecting = upstream.accept_tcp().await;
    let before = weir.metric(ABORTED_METRIC).await;
    drop(call);
    weir.wait_for_metric(ABORTED_METRIC, before + 1.0).await;
    assert_eq!(weir.metric(ABANDONED_METRIC).await, 0.0);
}

#[tokio::test]
async fn a_cancelled_http1_request_that_ends_soon_keeps_its_connection() {
    const REQUESTS: usize = 12;
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address).start().await;
    let mut aborted = 0.0;
    for near in HttpVersion::BOTH {
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let mut connections = HashSet::new();
            for _ in 0..REQUESTS {
                let call = client.send(TestRequest::get(LIST)).await;
                let exchange = upstream.next_exchange().await;
                connections.insert(exchange.connection.number);
                drop(call);
                aborted += 1.0;
                weir.wait_for_metric(ABORTED_METRIC, aborted).await;
                // If the machine pauses for a second, its connection is closed by now and another
                // one is opened.
                let _ = tokio::spawn(exchange.respond(200, "{}")).await;
                weir.wait_for_metric(ABANDONED_METRIC, 0.0).await;
            }
            let count = connections.len();
            assert!(count <= REQUESTS / 4, "{count} for {REQUESTS}: {near:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_short_response_costs_no_http1_connection() {
    const REQUESTS: usize = 12;
    // Counted when the client's part of a request is over.
    const ENDED_METRIC: &str = "apiserver_request_total{code=\"200\",component=\"apiserver\",\
        dry_run=\"\",group=\"\",resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",\
        version=\"v1\"}";
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address).start().await;
    let mut ended = 0.0;
    for (length, is_kept) in [
        (None, true),
        (Some("10000"), true),
        (Some("1000000"), false),
    ] {
        let headers: Vec<_> = length.iter().map(|l| ("content-length", *l)).collect();
        let mut client = weir.alice(HttpVersion::Http2);
        let mut connections = HashSet::new();
        for _ in 0..REQUESTS {
            let mut call = client.send(TestRequest::get(LIST)).await;
            let mut exchange = upstream.next_exchange().await;
            connections.insert(exchange.connection.number);
            exchange.send_head(200, &headers).await;
            exchange.send("some").await;
            assert_eq!(call.head().await.status, 200);
            drop(call);
            ended += 1.0;
            weir.wait_for_metric(ENDED_METRIC, ended).await;
            if is_kept {
                // If the machine pauses for a second, its connection is closed by now.
                let rest = length.map_or(5000, |length| length.parse::<usize>().unwrap() - 4);
                let _ = tokio::spawn(async move {
                    exchange.send(vec![b'x'; rest]).await;
                    exchange.end().await;
                })
                .await;
            } else {
                exchange.wait_for_cancel().await;
            }
            weir.wait_for_metric(ABANDONED_METRIC, 0.0).await;
        }
        let count = connections.len();
        let most = if is_kept { REQUESTS / 4 } else { REQUESTS };
        let least = if is_kept { 1 } else { REQUESTS };
        assert!((least..=most).contains(&count), "{count}: {length:?}");
    }
}
