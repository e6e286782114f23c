//! A client that cancels too many requests loses its HTTP/2 connection. Other clients keep theirs.

use std::time::Duration;

use ::weir::limits::abandoned_backlog::MAX_EXECUTING;
use ::weir::server::settings::AddressLimit;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::{ALICE, ROOT, Weir, WeirBuilder};
use crate::support::{HttpVersion, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 0xb;

const DELAYED_METRIC: &str = "weir_client_handshakes_delayed_total";

/// The burst for a rate of one a second.
const BURST: u32 = 4;

/// More than a loaded machine needs to exhaust a burst that grows by one a second.
const MAX_TRIES: u32 = 1000;

const CLOSED_METRIC: &str = "weir_client_connections_closed_total{reason=\"resets\"}";

fn with_one_reset_per_second(upstream: &FakeUpstream) -> WeirBuilder {
    weir::builder(upstream.address)
        .with(|config| config.serving.connections.http2_max_resets_per_second = 1)
}

fn request_head(path: &'static str) -> [(&'static str, &'static str); 5] {
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", path),
        ALICE,
    ]
}

async fn assert_served(client: &mut RawHttp2, stream: u32, upstream: &mut FakeUpstream) {
    client
        .send(&RawFrame::request(stream, &request_head(LIST), true))
        .await;
    upstream.next_exchange().await.respond(200, "{}").await;
    loop {
        let frame = client.next_frame().await.unwrap();
        assert_ne!(frame.kind, raw_http2::GOAWAY);
        if frame.ends_stream() {
            return;
        }
    }
}

#[tokio::test]
async fn a_client_that_resets_too_often_loses_its_connection_only() {
    // Exempt paths count as well.
    for path in [LIST, "/readyz", "/api/v1/pods?watch=1"] {
        let mut upstream = FakeUpstream::start().await;
        let weir = with_one_reset_per_second(&upstream).start().await;
        let mut other = weir.raw_http2().await;
        let mut client = weir.raw_http2().await;
        let mut stream = 1;
        let mut given_up = Vec::new(); // the upstream answers none of them
        for _ in 0..BURST {
            client
                .send(&RawFrame::request(stream, &request_head(path), true))
                .await;
            given_up.push(upstream.next_exchange().await);
            client.send(&RawFrame::reset(stream, CANCEL)).await;
            stream += 2;
        }
        assert_served(&mut client, stream, &mut upstream).await;
        assert_eq!(weir.metric(CLOSED_METRIC).await, 0.0);
        let goaway = loop {
            stream += 2;
            let request = RawFrame::request(stream, &request_head(path), true);
            if client.try_send(&request).await.is_err() {
                break client.next_frame_of_kind(raw_http2::GOAWAY).await;
            }
            tokio::select! {
                exchange = upstream.next_exchange() => {
                    let _ = client.try_send(&RawFrame::reset(stream, CANCEL)).await;
                    given_up.push(exchange);
                }
                frame = client.next_frame() => {
                    let frame = frame.unwrap();
                    if frame.kind == raw_http2::GOAWAY {
                        break frame;
                    }
                }
            }
            assert!(stream < 2 * MAX_TRIES, "it goes on for ever");
        };
        assert_eq!(goaway.u32_at(4), ENHANCE_YOUR_CALM, "{path}");
        assert!((1..=stream).contains(&goaway.u32_at(0)), "the last stream");
        client.wait_for_close().await;
        weir.wait_for_metric(CLOSED_METRIC, 1.0).await;
        other
            .send(&RawFrame::new(raw_http2::PING, 0, 0, [0; 8]))
            .await;
        other.wait_for_ping_ack().await;
    }
}

#[tokio::test]
async fn cancelled_held_rejections_count_as_resets() {
    let mut upstream = FakeUpstream::start().await;
    let weir = with_one_reset_per_second(&upstream)
        .limits(1, 1)
        .rejection_hold(Duration::from_secs(60))
        .start()
        .await;
    let mut busy = weir.alice(HttpVersion::Http1);
    let _taken = (
        busy.send(TestRequest::get(LIST)).await,
        upstream.next_exchange().await,
    );
    let mut client = weir.raw_http2().await;
    let mut stream = 1;
    loop {
        let request = RawFrame::request(stream, &request_head(LIST), true);
        let sent = client.try_send(&request).await.is_ok()
            && client
                .try_send(&RawFrame::reset(stream, CANCEL))
                .await
                .is_ok();
        stream += 2;
        assert!(stream < 2 * MAX_TRIES, "it goes on for ever");
        if !sent || was_closed_for_resets(&weir).await {
            break;
        }
    }
    let goaway = client.next_frame_of_kind(raw_http2::GOAWAY).await;
    assert_eq!(goaway.u32_at(4), ENHANCE_YOUR_CALM);
}

#[tokio::test]
async fn an_address_that_resets_too_often_connects_again_more_slowly() {
    const ATTEMPTS: u32 = 50;
    let upstream = FakeUpstream::start().await;
    let weir = with_one_reset_per_second(&upstream)
        .with(|config| {
            config.serving.connections.max_connections_per_address =
                Some(AddressLimit::DynamicShare)
        })
        .start()
        .await;
    // The delay ends after a second, which may pass before the next attempt.
    for attempt in 0..ATTEMPTS {
        let mut client = weir.raw_http2().await;
        if weir.metric(DELAYED_METRIC).await > 0.0 {
            assert!(attempt > 0, "there is a violation before each delay");
            return;
        }
        for n in 0..MAX_TRIES {
            let stream = 2 * n + 1;
            let request = RawFrame::request(stream, &request_head("/readyz"), true);
            if client.try_send(&request).await.is_err()
                || client
                    .try_send(&RawFrame::reset(stream, CANCEL))
                    .await
                    .is_err()
            {
                break;
            }
        }
        client.wait_for_close().await;
    }
    panic!("no connection is delayed");
}

async fn was_closed_for_resets(weir: &Weir) -> bool {
    weir.metric(CLOSED_METRIC).await > 0.0
}

#[tokio::test]
async fn resets_of_ended_streams_are_not_counted() {
    let mut upstream = FakeUpstream::start().await;
    let weir = with_one_reset_per_second(&upstream).start().await;
    let mut client = weir.raw_http2().await;
    for n in 0..10 * BURST {
        let stream = 2 * n + 1;
        assert_served(&mut client, stream, &mut upstream).await;
        client.send(&RawFrame::reset(stream, CANCEL)).await;
    }
    assert_served(&mut client, 1001, &mut upstream).await;
    assert_eq!(weir.metric(CLOSED_METRIC).await, 0.0);
}

#[tokio::test]
async fn without_a_limit_resets_are_not_counted() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.serving.connections.http2_max_resets_per_second = 0)
        .start()
        .await;
    let mut client = weir.raw_http2().await;
    let mut given_up = Vec::new(); // the upstream answers none of them
    for n in 0..300 {
        client
            .send(&RawFrame::request(2 * n + 1, &request_head(LIST), true))
            .await;
        given_up.push(upstream.next_exchange().await);
        client.send(&RawFrame::reset(2 * n + 1, CANCEL)).await;
    }
    assert_served(&mut client, 1001, &mut upstream).await;
    assert_eq!(weir.metric(CLOSED_METRIC).await, 0.0);
}

#[tokio::test]
async fn exempt_requests_wait_for_those_that_their_user_abandoned_and_others_do_not() {
    const READYZ: &str = "/readyz";
    let abandoned = u32::try_from(MAX_EXECUTING).unwrap();
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).fairness().start().await;
    let mut alice = weir.raw_http2().await;
    let head = request_head(READYZ);
    for n in 0..abandoned {
        let request = RawFrame::request(2 * n + 1, &head, true);
        alice.send(&request).await;
    }
    let mut server = RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &[]).await;
    server.pass_pings();
    for _ in 0..abandoned {
        server.next_frame_of_kind(raw_http2::HEADERS).await;
    }
    for n in 0..abandoned {
        alice.send(&RawFrame::reset(2 * n + 1, CANCEL)).await;
    }
    weir.wait_for_metric("weir_abandoned_requests", f64::from(abandoned))
        .await;
    let request = RawFrame::request(2 * abandoned + 1, &head, true);
    alice.send(&request).await;
    weir.wait_for_metric("weir_abandoned_backlog_waiting", 1.0)
        .await;
    // Requests of another user are not behind it.
    let mut root = weir.raw_http2().await;
    let mut others = request_head(READYZ);
    others[4] = ROOT;
    root.send(&RawFrame::request(1, &others, true)).await;
    let served = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    server.send(&RawFrame::ok(served, true)).await;
    assert!(root.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
    // The answer to the PING shows that the resets were seen.
    let (mut pinged, mut requested) = (false, None);
    while requested.is_none() {
        let frame = server.next_frame().await.unwrap();
        match frame.kind {
            raw_http2::PING if frame.flags == 0 => {
                let answer = RawFrame::new(raw_http2::PING, raw_http2::ACK, 0, frame.payload);
                server.send(&answer).await;
                pinged = true;
            }
            raw_http2::HEADERS => requested = Some(frame.stream),
            _ => {}
        }
    }
    assert!(pinged);
    server.send(&RawFrame::ok(requested.unwrap(), true)).await;
    assert!(alice.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
}
