//! The HTTP version of requests that end (`--upstream-protocol`).

use crate::support::HttpVersion;
use crate::support::client::TestCall;
use crate::support::client::TestClient;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::Exchange;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::within;
use ::weir::upstream::UpstreamProtocol;

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
async fn few_reads_use_http1_and_all_else_shares_http2() {
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

#[tokio::test]
async fn with_many_reads_the_others_share_http2() {
    let (weir, mut upstream) = start(UpstreamProtocol::Auto).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    let mut over_http1 = 0;
    // Each read that finds no idle connection opens one for the next.
    for _ in 0..40 {
        let sent = send(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        over_http1 += usize::from(sent.1.connection.http == HttpVersion::Http1);
        open.push(sent);
    }
    assert!(over_http1 <= 16, "{over_http1}");
    assert!(upstream.connection_count() <= 16 + 2);
    for sent in open {
        finish(sent).await;
    }
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
    assert_eq!(upstream.connection_count(), 1, "it is kept");
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
