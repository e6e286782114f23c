//! The HTTP version of requests that end (`--upstream-protocol`).

use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, weir, within};
use ::weir::upstream::UpstreamProtocol;
use std::time::Duration;

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

async fn start(protocol: UpstreamProtocol) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let builder = weir::builder(upstream.address);
    let weir = builder
        .with(|config| config.upstream.protocol = protocol)
        .start()
        .await;
    (weir, upstream)
}

async fn send(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    request: TestRequest,
) -> (TestCall, Exchange) {
    let call = client.send(request).await;
    (call, upstream.next_exchange().await)
}

async fn finish((call, exchange): (TestCall, Exchange)) {
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

/// Sends reads until one arrives over HTTP/1.1, and returns it. (The connection is opened in the
/// background.)
async fn read_over_http1(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
) -> (TestCall, Exchange) {
    within("a read over HTTP/1.1", async {
        loop {
            let sent = send(client, upstream, TestRequest::get(LIST)).await;
            if sent.1.connection.http == HttpVersion::Http1 {
                return sent;
            }
            finish(sent).await;
        }
    })
    .await
}

#[tokio::test]
async fn reads_use_http1_and_all_else_shares_http2() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start(UpstreamProtocol::Auto).await;
        let mut client = weir.alice(near);
        let first = send(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        assert_eq!(
            first.1.connection.http,
            HttpVersion::Http2,
            "no read waits for a handshake"
        );
        finish(first).await;
        let read = read_over_http1(&mut client, &mut upstream).await;
        finish(read).await;
        for request in [
            TestRequest::post(LIST, "{}"),
            TestRequest::new("DELETE", LIST),
            TestRequest::get(WATCH),
        ] {
            let other = send(&mut client, &mut upstream, request).await;
            assert_eq!(other.1.connection.http, HttpVersion::Http2);
            finish(other).await;
        }
    }
}

/// Sends reads, and leaves those open that arrive over HTTP/1.1, until there are `count`.
async fn open_reads_over_http1(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    count: usize,
) -> Vec<(TestCall, Exchange)> {
    let mut open = Vec::new();
    while open.len() < count {
        open.push(read_over_http1(client, upstream).await);
    }
    open
}

#[tokio::test]
async fn reads_use_http1_however_many_are_under_way() {
    let (weir, mut upstream) = start(UpstreamProtocol::Auto).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let open = open_reads_over_http1(&mut client, &mut upstream, 24).await;
    for sent in open {
        finish(sent).await;
    }
    let connections = upstream.connection_count();
    let again = open_reads_over_http1(&mut client, &mut upstream, 24).await;
    assert_eq!(upstream.connection_count(), connections, "they are kept");
    for sent in again {
        finish(sent).await;
    }
}

#[tokio::test]
async fn a_quarter_of_the_connections_at_most_is_for_reads_alone() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .with(|config| {
            config.upstream.protocol = UpstreamProtocol::Auto;
            config.upstream.max_connections = 8;
        })
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = open_reads_over_http1(&mut client, &mut upstream, 2).await;
    let connections = upstream.connection_count();
    for _ in 0..20 {
        let sent = send(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        assert_eq!(sent.1.connection.http, HttpVersion::Http2);
        open.push(sent);
    }
    assert_eq!(upstream.connection_count(), connections);
    for sent in open {
        finish(sent).await;
    }
}

#[tokio::test]
async fn goaway_closes_idle_http1_connections() {
    let (weir, mut upstream) = start(UpstreamProtocol::Auto).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let read = read_over_http1(&mut client, &mut upstream).await;
    let idle = read.1.connection.number;
    finish(read).await;
    let write = send(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await;
    let leaving = write.1.connection.number;
    write.1.connection.go_away();
    finish(write).await;
    // The next HTTP/2 connection shows that weir has read GOAWAY.
    within("another HTTP/2 connection", async {
        loop {
            let write = send(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await;
            let number = write.1.connection.number;
            finish(write).await;
            if number != leaving {
                return;
            }
        }
    })
    .await;
    let read = send(&mut client, &mut upstream, TestRequest::get(LIST)).await;
    assert_ne!(read.1.connection.number, idle);
    finish(read).await;
}

#[tokio::test]
async fn a_readyz_that_fails_closes_idle_http1_connections() {
    let mut upstream = FakeUpstream::start().await;
    upstream.answer_readyz(200);
    let weir = weir::builder(upstream.address)
        .with(|config| {
            config.upstream.protocol = UpstreamProtocol::Auto;
            config.upstream.probe_interval = Some(Duration::from_millis(20));
        })
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let read = read_over_http1(&mut client, &mut upstream).await;
    finish(read).await;
    let open = "weir_upstream_connections{way=\"pass-through\"}";
    assert!(weir.metric(open).await > 1.0);
    upstream.answer_readyz(500);
    weir.wait_for_metric(open, 1.0).await; // that of HTTP/2
}

#[tokio::test]
async fn every_request_that_ends_uses_http1_if_it_is_chosen() {
    let (weir, mut upstream) = start(UpstreamProtocol::Http1).await;
    let mut client = weir.alice(HttpVersion::Http2);
    for request in [
        TestRequest::get(LIST),
        TestRequest::post(LIST, "{}"),
        TestRequest::new("DELETE", LIST),
    ] {
        let sent = send(&mut client, &mut upstream, request).await;
        assert_eq!(sent.1.connection.http, HttpVersion::Http1);
        finish(sent).await;
    }
    assert_eq!(upstream.connection_count(), 2, "one for reads, one for all");
    let watch = send(&mut client, &mut upstream, TestRequest::get(WATCH)).await;
    assert_eq!(watch.1.connection.http, HttpVersion::Http2);
    finish(watch).await;
}

#[tokio::test]
async fn a_read_is_sent_again_if_the_server_closes_its_idle_connection() {
    let (weir, mut upstream) = start(UpstreamProtocol::Auto).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let (call, closed) = read_over_http1(&mut client, &mut upstream).await;
    drop(closed);
    let again = upstream.next_exchange().await;
    finish((call, again)).await;
    assert_eq!(weir.metric("weir_upstream_retries_total").await, 1.0);
}

#[tokio::test]
async fn a_write_is_not_sent_again_if_the_server_closes_its_connection() {
    let (weir, mut upstream) = start(UpstreamProtocol::Http1).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let first = send(&mut client, &mut upstream, TestRequest::get(LIST)).await;
    finish(first).await;
    let write = TestRequest::new("DELETE", LIST);
    let (call, closed) = send(&mut client, &mut upstream, write).await;
    drop(closed);
    let response = call.response().await;
    assert_eq!(response.status, 502);
    assert_eq!(response.kube_status().cause, "weir/upstream-reset");
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_response_of_many_fields_arrives_whatever_the_protocol_and_the_request() {
    let warnings: Vec<(String, String)> = (0..1000)
        .map(|n| ("warning".to_owned(), format!("299 - \"unknown field {n}\"")))
        .collect();
    let many: Vec<(&str, &str)> = warnings.iter().map(|(n, v)| (&**n, &**v)).collect();
    for protocol in [
        UpstreamProtocol::Auto,
        UpstreamProtocol::Http1,
        UpstreamProtocol::Http2,
    ] {
        for (method, target) in [
            ("GET", LIST),
            ("HEAD", LIST),
            ("POST", LIST),
            ("DELETE", LIST),
            ("GET", WATCH),
        ] {
            let (weir, mut upstream) = start(protocol).await;
            let mut client = weir.alice(HttpVersion::Http2);
            let is_read = matches!(method, "GET" | "HEAD");
            if protocol == UpstreamProtocol::Auto {
                let read = read_over_http1(&mut client, &mut upstream).await;
                finish(read).await;
            }
            let what = format!("{protocol:?} {method} {target}");
            let request = TestRequest::new(method, target);
            let (call, mut exchange) = send(&mut client, &mut upstream, request).await;
            if is_read && exchange.connection.http == HttpVersion::Http1 {
                let retries = weir.metric("weir_upstream_retries_total").await;
                exchange.send_head(200, &many).await;
                let again = upstream.next_exchange().await;
                assert_ne!(again.connection.number, exchange.connection.number);
                exchange = again;
                let retried = weir.metric("weir_upstream_retries_total").await;
                assert_eq!(retried, retries + 1.0, "{what}");
            }
            exchange.respond_with_headers(200, &many, "{}").await;
            let response = call.response().await;
            assert_eq!(response.status, 200, "{what}");
            assert_eq!(response.headers.all("warning").len(), many.len(), "{what}");
            upstream.assert_no_request();
        }
    }
}
