//! Connections to the upstream are shared and reused. Their number follows the load, up to a limit.

use crate::support::certificates::pki;
use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream, HTTP1_ONLY, RawUpstream};
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually, fake_upstream, raw_http2, weir, within};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

async fn respond_to_open(open: Vec<(TestCall, Exchange)>) {
    for (call, exchange) in open {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn requests_share_one_http2_connection() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..60 {
        let call = client.send(TestRequest::get(LIST)).await;
        open.push((call, upstream.next_exchange().await));
    }
    assert_eq!(upstream.connection_count(), 1);
    respond_to_open(open).await;
    for _ in 0..20 {
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        call.response().await;
    }
    assert_eq!(upstream.connection_count(), 1);
    assert_eq!(
        weir.metric("weir_upstream_connections{way=\"pass-through\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn another_connection_is_opened_when_three_quarters_of_the_streams_are_used() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(4)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(2)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..3 {
        let call = client.send(TestRequest::get(LIST)).await;
        open.push((call, upstream.next_exchange().await));
    }
    assert_eq!(upstream.connection_count(), 1, "three of four");
    let call = client.send(TestRequest::get(LIST)).await;
    open.push((call, upstream.next_exchange().await));
    weir.wait_for_metric("weir_upstream_connections{way=\"pass-through\"}", 2.0)
        .await;
    // The connection with fewer streams gets the next request.
    for _ in 0..3 {
        let call = client.send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.connection.number, 1);
        open.push((call, exchange));
    }
    respond_to_open(open).await;
    assert_eq!(upstream.connection_count(), 2);
}

#[tokio::test]
async fn at_the_connection_limit_requests_wait_for_a_stream() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(2)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(2)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(TestRequest::get(LIST)).await;
        open.push((call, upstream.next_exchange().await));
    }
    let waits = "weir_upstream_stream_waits_total";
    let before = weir.metric(waits).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(client.send(TestRequest::get(LIST)).await);
    }
    weir.wait_for_metric(waits, before + 4.0).await;
    upstream.assert_no_request();
    assert_eq!(upstream.connection_count(), 2);
    // A request that is cancelled while it waits does not block the others.
    drop(waiting.pop());
    for (call, exchange) in open {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    for call in waiting {
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    upstream.assert_no_request();
    assert_eq!(upstream.connection_count(), 2);
}

#[tokio::test]
async fn a_burst_before_the_upstream_s_settings_gets_the_connections_it_needs() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(2)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(8)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut lists = Vec::new();
    for _ in 0..8 {
        lists.push(client.send(TestRequest::get(LIST)).await);
    }
    let mut listed = Vec::new();
    for _ in 0..8 {
        listed.push(upstream.next_exchange().await); // none of the others has ended
    }
    for exchange in listed {
        exchange.respond(200, "{}").await;
    }
    for list in lists {
        assert_eq!(list.response().await.status, 200);
    }
}

#[tokio::test]
async fn watches_use_separate_connections_and_as_many_as_they_need() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(2)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    for mut client in [
        weir.alice(HttpVersion::Http2),
        weir.with_certificate(HttpVersion::Http2, &pki().alice),
    ] {
        let mut open = Vec::new();
        for target in [[WATCH; 9].as_slice(), &[LIST; 2]].concat() {
            let call = client.send(TestRequest::get(target)).await;
            open.push((call, upstream.next_exchange().await));
        }
        let peers = open.iter().map(|(_, exchange)| exchange.connection.number);
        let (watched, listed): (Vec<_>, Vec<_>) =
            (peers.clone().take(9).collect(), peers.skip(9).collect());
        assert!(listed.iter().all(|peer| !watched.contains(peer)));
        respond_to_open(open).await;
    }
}

#[tokio::test]
async fn a_watch_over_the_long_running_connection_budget_is_rejected_at_once() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(2)).await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.max_connections = 8)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(TestRequest::get(WATCH)).await;
        open.push((call, upstream.next_exchange().await));
    }
    for _ in 0..3 {
        let rejected = client.get(WATCH).await;
        assert_eq!(rejected.status, 503);
        assert_eq!(rejected.kube_status().cause, "weir/upstream-connections");
        assert_eq!(rejected.headers.all("retry-after"), ["1"]);
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200, "of what is kept");
    }
    // A closed connection makes room for another one.
    let (call, mut exchange) = open.pop().unwrap();
    drop(call);
    exchange.wait_for_cancel().await;
    let again = eventually(
        "a place, once the reset is known to have been seen",
        async || {
            let mut call = client.send(TestRequest::get(WATCH)).await;
            tokio::select! {
                exchange = upstream.next_exchange() => Some((call, exchange)),
                head = call.try_head() => {
                    assert_eq!(head.unwrap().status, 503);
                    None
                }
            }
        },
    );
    open.push(again.await);
    respond_to_open(open).await;
}

#[tokio::test]
async fn the_number_of_requests_that_wait_for_a_stream_is_limited() {
    const MAX_WAITING: usize = 1024;
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(1)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let held = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    let mut clients: Vec<_> = (0..11).map(|_| weir.alice(HttpVersion::Http2)).collect();
    let mut waiting = Vec::new();
    let waits = "weir_upstream_stream_waits_total";
    let before = weir.metric(waits).await;
    for n in 0..MAX_WAITING {
        waiting.push(clients[n / 100].send(TestRequest::get(LIST)).await);
    }
    weir.wait_for_metric(waits, before + 1024.0).await;
    let response = clients[10].get(LIST).await;
    assert_eq!(response.status, 503);
    assert_eq!(response.kube_status().cause, "weir/upstream-streams");
    assert_eq!(response.headers.all("retry-after"), ["1"]);
    drop(waiting);
    exchange.respond(200, "{}").await;
    assert_eq!(held.response().await.status, 200);
}

const ONE_STREAM_SETTINGS: [(u16, u32); 1] = [(raw_http2::MAX_STREAMS, 1)];

/// An upstream whose first connection allows one stream, which a request uses.
struct SingleStream {
    upstream: RawUpstream,
    weir: Weir,
    client: TestClient,
    first: TestCall,
    server: RawHttp2,
    stream: u32,
}

async fn with_single_stream_taken(connections: usize) -> SingleStream {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(connections)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let first = client.send(TestRequest::get(LIST)).await;
    let mut server = RawHttp2::server(
        upstream.accept_trusted(HttpVersion::Http2).await,
        &ONE_STREAM_SETTINGS,
    )
    .await;
    let stream = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    SingleStream {
        upstream,
        weir,
        client,
        first,
        server,
        stream,
    }
}

#[tokio::test]
async fn a_stream_limit_that_the_upstream_raises_releases_waiting_requests() {
    let SingleStream {
        upstream: _upstream,
        weir,
        mut client,
        first,
        mut server,
        stream,
    } = with_single_stream_taken(1).await;
    // weir has read the settings when this response arrives.
    server.send(&RawFrame::ok(stream, true)).await;
    assert_eq!(first.response().await.status, 200);
    let _held = client.send(TestRequest::get(LIST)).await;
    server.next_frame_of_kind(raw_http2::HEADERS).await;
    let waiting = client.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric("weir_upstream_stream_waits_total", 2.0)
        .await;
    server
        .send(&RawFrame::settings(&[(raw_http2::MAX_STREAMS, 10)]))
        .await;
    let stream = within(
        "the waiting request",
        server.next_frame_of_kind(raw_http2::HEADERS),
    )
    .await
    .stream;
    server.send(&RawFrame::ok(stream, true)).await;
    assert_eq!(waiting.response().await.status, 200);
}

#[tokio::test]
async fn users_take_turns_for_a_stream() {
    let SingleStream {
        upstream: _upstream,
        weir,
        mut client,
        first,
        mut server,
        stream,
    } = with_single_stream_taken(1).await;
    let waits = "weir_upstream_stream_waits_total";
    let mut greedy = Vec::new();
    for _ in 0..50 {
        greedy.push(client.send(TestRequest::get(LIST)).await);
    }
    weir.wait_for_metric(waits, 51.0).await;
    let mut polite = weir.with_authorization(HttpVersion::Http2, weir::ROOT);
    let polite = polite.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric(waits, 52.0).await;
    // The held stream, one request of the other user, then the newcomer's.
    server.send(&RawFrame::ok(stream, true)).await;
    for _ in 0..2 {
        let next = server.next_frame_of_kind(raw_http2::HEADERS).await;
        server.send(&RawFrame::ok(next.stream, true)).await;
    }
    let response = within("the newcomer's response", polite.response()).await;
    assert_eq!(response.status, 200);
    assert_eq!(first.response().await.status, 200);
}

#[tokio::test]
async fn http1_connections_are_reused_one_request_at_a_time() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::with_protocols(HTTP1_ONLY).await;
        let weir = weir::builder(upstream.address).start().await;
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let before = upstream.connection_count();
            for _ in 0..10 {
                let call = client.send(TestRequest::get(LIST)).await;
                upstream.next_exchange().await.respond(200, "{}").await;
                assert_eq!(call.response().await.status, 200);
            }
            assert_eq!(upstream.connection_count(), before + 1);
            let mut open = Vec::new();
            for _ in 0..3 {
                let call = client.send(TestRequest::get(LIST)).await;
                open.push((call, upstream.next_exchange().await));
            }
            assert_eq!(upstream.connection_count(), before + 3);
            respond_to_open(open).await;
            let call = client.send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.respond(200, "{}").await;
            call.response().await;
            assert_eq!(upstream.connection_count(), before + 3);
        }
    }
}

#[tokio::test]
async fn concurrent_requests_to_an_http1_upstream_are_all_served() {
    let mut upstream = FakeUpstream::with_protocols(HTTP1_ONLY).await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut calls = Vec::new();
    for _ in 0..30 {
        calls.push(client.send(TestRequest::get(LIST)).await);
    }
    for _ in 0..30 {
        upstream.next_exchange().await.respond(200, "{}").await;
    }
    for call in calls {
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn an_http1_connection_with_an_unread_response_is_not_reused() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::with_protocols(HTTP1_ONLY).await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.alice(near);
        let mut call = client.send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        exchange.send("half").await;
        call.head().await;
        drop(call);
        exchange.wait_for_cancel().await;
        let call = client.send(TestRequest::get(LIST)).await;
        let next = upstream.next_exchange().await;
        assert_ne!(next.connection.number, exchange.connection.number);
        next.respond(200, "{}").await;
        assert_eq!(call.response().await.text(), "{}");
    }
}

#[tokio::test]
async fn an_http1_connection_that_the_upstream_closes_is_not_reused() {
    let mut upstream = FakeUpstream::with_protocols(HTTP1_ONLY).await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    let closed = exchange.connection.number;
    exchange
        .respond_with_headers(200, &[("connection", "close")], "{}")
        .await;
    call.response().await;
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    assert_ne!(exchange.connection.number, closed);
    exchange.respond(200, "{}").await;
    call.response().await;
}

#[tokio::test]
async fn a_slow_reader_does_not_block_others_on_its_upstream_connection() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut slow = weir.alice(HttpVersion::Http2);
    let mut calls = Vec::new();
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..10 {
        calls.push(slow.send(TestRequest::get(LIST)).await);
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        floods.spawn(async move { while exchange.try_send(vec![7; 64 << 10]).await.is_ok() {} });
    }
    let mut quick = weir.alice(HttpVersion::Http2);
    for _ in 0..50 {
        let call = quick.send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.connection.number, 0, "on the same connection");
        exchange.respond(200, vec![1; 64 << 10]).await;
        assert_eq!(call.response().await.body.len(), 64 << 10);
    }
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "that time has passed is what is shown, and by no clock of the program's"
)]
async fn failed_connection_attempts_for_waiting_requests_back_off() {
    let SingleStream {
        upstream,
        weir: _weir,
        mut client,
        first,
        mut server,
        stream,
    } = with_single_stream_taken(2).await;
    drop(upstream.accept_tcp().await); // with one stream of one in use, another connection is opened at once
    let began = std::time::Instant::now();
    let waiting = client.send(TestRequest::get(LIST)).await;
    for _ in 0..2 {
        drop(upstream.accept_tcp().await);
    }
    let took = began.elapsed();
    assert!(took.as_secs_f64() > 1.5, "{took:?} for two more attempts");
    // It serves as soon as it is established.
    let mut other = RawHttp2::server(
        upstream.accept_trusted(HttpVersion::Http2).await,
        &ONE_STREAM_SETTINGS,
    )
    .await;
    let taken = other.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    other.send(&RawFrame::ok(taken, true)).await;
    assert_eq!(waiting.response().await.status, 200);
    server.send(&RawFrame::ok(stream, true)).await;
    assert_eq!(first.response().await.status, 200);
}

#[tokio::test]
async fn a_failure_to_open_another_connection_does_not_fail_requests_on_an_open_one() {
    let SingleStream {
        upstream,
        weir,
        mut client,
        first,
        mut server,
        stream,
    } = with_single_stream_taken(2).await;
    let another = upstream.accept_tcp().await;
    let waiting = client.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric("weir_upstream_stream_waits_total", 2.0)
        .await;
    drop(another);
    let failed = "weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}";
    weir.wait_for_metric(failed, 1.0).await;
    server.send(&RawFrame::go_away(stream, 0)).await;
    let mut other = RawHttp2::server(
        upstream.accept_trusted(HttpVersion::Http2).await,
        &ONE_STREAM_SETTINGS,
    )
    .await;
    let taken = other.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    other.send(&RawFrame::ok(taken, true)).await;
    assert_eq!(waiting.response().await.status, 200);
    server.send(&RawFrame::ok(stream, true)).await;
    assert_eq!(first.response().await.status, 200);
}

/// Long-running requests, and responses that the API server does not write itself.
const SEPARATE_TARGETS: [&str; 4] = [
    "/api/v1/namespaces/a/pods/b/log?follow=true",
    "/api/v1/namespaces/a/pods/b/proxy/stream",
    "/api/v1/namespaces/a/services/b/proxy/",
    "/api/v1/nodes/n1/proxy/logs/",
];

#[tokio::test]
async fn responses_written_by_others_than_the_api_server_never_share_a_connection() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let shared = [WATCH, LIST];
    let mut open = Vec::new();
    for target in shared.into_iter().chain(SEPARATE_TARGETS).chain(shared) {
        let call = client.send(TestRequest::get(target)).await;
        let exchange = upstream.next_exchange().await;
        let http = if shared.contains(&target) {
            HttpVersion::Http2
        } else {
            HttpVersion::Http1
        };
        assert_eq!(exchange.connection.http, http, "{target}");
        open.push((call, exchange));
    }
    let connections = shared.len() + SEPARATE_TARGETS.len();
    assert_eq!(upstream.connection_count(), connections);
    respond_to_open(open).await;
    // A connection serves another request after its request has ended.
    for target in SEPARATE_TARGETS {
        let call = client.send(TestRequest::get(target)).await;
        upstream.next_exchange().await.respond(200, "done").await;
        assert_eq!(call.response().await.text(), "done");
    }
    assert_eq!(upstream.connection_count(), connections);
}

#[tokio::test]
async fn long_running_requests_leave_connections_to_short_ones() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.max_connections = 8)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for target in &SEPARATE_TARGETS[..2] {
        let call = client.send(TestRequest::get(target)).await;
        open.push((call, upstream.next_exchange().await));
    }
    let rejected = client.get(SEPARATE_TARGETS[2]).await;
    assert_eq!(rejected.status, 429, "half of the places for what lasts");
    assert_eq!(rejected.kube_status().cause, "weir/long-running-share");
    assert_eq!(rejected.headers.all("retry-after"), ["1"]);
    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200, "of what is kept");
    // A closed connection makes room; so does a request that ends while its connection stays.
    let (call, mut exchange) = open.pop().unwrap();
    drop(call);
    exchange.wait_for_cancel().await;
    let connections = "weir_upstream_connections{way=\"pass-through\"}";
    weir.wait_for_metric(connections, 2.0).await;
    for target in SEPARATE_TARGETS {
        let call = client.send(TestRequest::get(target)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    assert_eq!(
        weir.metric("weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}")
            .await,
        0.0,
        "none was tried in vain"
    );
    assert_eq!(upstream.connection_count(), 4);
}

#[tokio::test]
async fn an_idle_connection_of_a_long_running_request_is_not_used_by_short_ones() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(SEPARATE_TARGETS[0])).await;
    upstream.next_exchange().await.respond(200, "done").await;
    assert_eq!(call.response().await.text(), "done");
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.connection.http, HttpVersion::Http2);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn watches_of_an_http1_upstream_leave_connections_to_short_requests() {
    let mut upstream = FakeUpstream::with_protocols(HTTP1_ONLY).await;
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.max_connections = 16)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(TestRequest::get(WATCH)).await;
        open.push((call, upstream.next_exchange().await));
    }
    let rejected = client.get(WATCH).await;
    assert_eq!(rejected.kube_status().cause, "weir/long-running-share");
    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    respond_to_open(open).await;
}
