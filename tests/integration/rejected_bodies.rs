//! The body of a rejected request: it is not requested, it is discarded if it is small, and a large
//! one ends the connection (on HTTP/2 the stream).

use std::time::Duration;

use crate::support::client::{TestCall, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, Stopwatch, eventually, raw_http2, weir};

const PODS: &str = "/api/v1/namespaces/a/pods";

/// weir with all slots for mutating requests in use.
async fn full_weir() -> (Weir, FakeUpstream, (TestCall, Exchange)) {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .without_body_buffer()
        .start()
        .await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::post(PODS, "{}"))
        .await;
    let exchange = upstream.next_exchange().await;
    (weir, upstream, (call, exchange))
}

fn post_head(head: &str) -> String {
    format!("POST {PODS} HTTP/1.1\r\nhost: weir\r\n{head}\r\n\r\n")
}

#[tokio::test]
async fn a_small_body_is_drained_and_the_connection_is_reused() {
    let (weir, mut upstream, (call, exchange)) = full_weir().await;
    let mut wire = weir.raw_http1().await;
    let small = format!("{}{{}}", post_head("content-length: 2"));
    for request in [
        small.clone(),
        format!(
            "{}2\r\n{{}}\r\n0\r\n\r\n",
            post_head("transfer-encoding: chunked")
        ),
        format!(
            "{}0\r\nx-sum: 1\r\n\r\n",
            post_head("transfer-encoding: chunked")
        ),
        post_head("content-length: 0"),
    ] {
        wire.send(&request).await;
        let (answered, _) = wire.read_response("POST").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None, "{request:.80}");
    }
    // The next request is read from its start.
    upstream.assert_no_request();
    exchange.respond(201, "{}").await;
    call.response().await;
    wire.send(small).await;
    let mut admitted = upstream.next_exchange().await;
    assert_eq!(admitted.read_body().await, "{}");
    admitted.respond(201, "{}").await;
    assert_eq!(wire.read_response("POST").await.0.status, 201);
}

#[tokio::test]
async fn a_body_in_many_parts_is_drained_if_it_arrives_soon() {
    let (weir, mut upstream, _held) = full_weir().await;
    let whole = format!(
        "{}{}",
        post_head("content-length: 200000"),
        "x".repeat(200_000)
    );
    // Not soon, if the machine pauses.
    eventually("a body that comes soon", async || {
        let mut wire = weir.raw_http1().await;
        let began = Stopwatch::start();
        wire.send(&whole).await;
        let (answered, _) = wire.read_response("POST").await;
        assert_eq!(answered.status, 429);
        if answered.headers.get("connection").is_some() {
            assert!(began.elapsed() >= Duration::from_secs(1));
            return None;
        }
        // The next request is read from its start.
        wire.send(post_head("content-length: 0")).await;
        assert_eq!(wire.read_response("POST").await.0.status, 429);
        Some(())
    })
    .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_body_too_large_to_drain_closes_the_connection() {
    let (weir, mut upstream, _held) = full_weir().await;
    let mut wire = weir.raw_http1().await;
    // By its content length: no byte of it needs to arrive.
    wire.send(post_head("content-length: 1000000")).await;
    let (answered, body) = wire.read_response("POST").await;
    assert_eq!(answered.status, 429);
    assert_eq!(answered.headers.all("connection"), ["close"]);
    assert!(!body.is_empty());
    wire.reader.wait_for_close().await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_chunked_body_that_grows_too_large_closes_the_connection() {
    let (weir, mut upstream, _held) = full_weir().await;
    let mut wire = weir.raw_http1().await;
    let chunk = format!("{:x}\r\n{}\r\n", 30_000, "x".repeat(30_000));
    let request = post_head("transfer-encoding: chunked") + &chunk.repeat(10);
    // weir may close the connection before all of it is written.
    let _ = wire.writer.send(request).await;
    let (answered, _) = wire.read_response("POST").await;
    assert_eq!(answered.status, 429);
    assert_eq!(answered.headers.all("connection"), ["close"]);
    wire.reader.wait_for_close().await;
    upstream.assert_no_request();
}

/// How often a client sends a body of so many bytes.
const LARGE_BODIES: [(usize, usize); 3] = [(25, 900_000), (5, 2_500_000), (3, 10_000_000)];

/// A request with a body of zeros.
fn large_request(length: usize, chunked: bool) -> Vec<u8> {
    let zeros = vec![b'0'; length];
    if !chunked {
        return [
            post_head(&format!("content-length: {length}")).as_bytes(),
            &zeros,
        ]
        .concat();
    }
    let mut request = post_head("transfer-encoding: chunked").into_bytes();
    for part in zeros.chunks(50_000) {
        let size = format!("{:x}\r\n", part.len());
        request.extend([size.as_bytes(), part, b"\r\n"].concat());
    }
    request.extend(b"0\r\n\r\n");
    request
}

/// Sends each of the large bodies, over a new connection each, and reads when all is written.
async fn send_all_before_reading(
    weir: &Weir,
    chunked: bool,
    status: u16,
    mut upstream: Option<&mut FakeUpstream>,
) {
    for (times, length) in LARGE_BODIES {
        let request = large_request(length, chunked);
        for n in 0..times {
            let mut wire = weir.raw_http1().await;
            let context = format!("{n} of {length}, chunked {chunked}");
            let answering = async {
                if let Some(upstream) = &mut upstream {
                    upstream.next_exchange().await.respond(status, "{}").await;
                }
            };
            let (sent, ()) = tokio::join!(wire.writer.send(&request), answering);
            sent.unwrap_or_else(|why| panic!("{context}: {why:?}"));
            let (answered, body) = wire.read_response("POST").await;
            assert_eq!(answered.status, status, "{context}");
            assert!(!body.is_empty(), "{context}");
        }
    }
}

#[tokio::test]
async fn a_client_that_writes_all_before_it_reads_receives_an_early_rejection() {
    let (weir, mut upstream, _held) = full_weir().await;
    for chunked in [false, true] {
        send_all_before_reading(&weir, chunked, 429, None).await;
    }
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_client_that_writes_all_before_it_reads_receives_an_early_response() {
    for chunked in [false, true] {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        send_all_before_reading(&weir, chunked, 403, Some(&mut upstream)).await;
    }
}

#[tokio::test]
async fn a_rejected_request_with_expect_100_continue_sends_no_body() {
    let (weir, mut upstream, _held) = full_weir().await;
    let mut wire = weir.raw_http1().await;
    wire.send(post_head("expect: 100-continue\r\ncontent-length: 2"))
        .await;
    let (answered, _) = wire.read_response("POST").await;
    assert_eq!(answered.status, 429, "and not 100 before it");
    assert_eq!(answered.headers.all("connection"), ["close"]);
    wire.reader.wait_for_close().await;
    upstream.assert_no_request();
}

const POST_HEAD: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", PODS),
];

/// The stream of the next response. No stream may be reset before.
async fn next_response_stream(client: &mut RawHttp2) -> u32 {
    loop {
        let frame = client.next_frame().await.unwrap();
        assert_ne!(frame.kind, raw_http2::RST_STREAM, "{frame:?}");
        if frame.kind == raw_http2::HEADERS {
            assert!(!frame.is_ok());
            return frame.stream;
        }
    }
}

/// `None` if so much time has passed that weir may not wait for bodies any more.
fn within_drain_time(began: Stopwatch) -> Option<()> {
    (began.elapsed() < Duration::from_secs(1)).then_some(())
}

#[tokio::test]
async fn on_http2_a_small_body_is_drained_and_its_stream_ends_normally() {
    let (weir, mut upstream, _held) = full_weir().await;
    eventually("a body that comes soon", async || {
        let mut client = weir.raw_http2().await;
        let began = Stopwatch::start();
        client.send(&RawFrame::request(1, &POST_HEAD, false)).await;
        client.send(&RawFrame::request(3, &POST_HEAD, true)).await;
        let first = client.next_frame_of_kind(raw_http2::HEADERS).await;
        within_drain_time(began)?;
        assert_eq!(first.stream, 3, "1 is not over");
        client.send(&RawFrame::data(1, b"{}", true)).await;
        let second = client.next_frame_of_kind(raw_http2::HEADERS).await;
        within_drain_time(began)?;
        assert_eq!(second.stream, 1);
        client.send(&RawFrame::request(5, &POST_HEAD, true)).await;
        assert_eq!(
            next_response_stream(&mut client).await,
            5,
            "and 1 was not reset"
        );
        Some(())
    })
    .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn on_http2_the_number_of_bodies_drained_at_once_is_limited() {
    let (weir, mut upstream, _held) = full_weir().await;
    eventually("bodies that do not come soon", async || {
        let mut client = weir.raw_http2().await;
        let began = Stopwatch::start();
        for stream in [1, 3, 5, 7, 9] {
            client
                .send(&RawFrame::request(stream, &POST_HEAD, false))
                .await;
        }
        let fifth = client.next_frame_of_kind(raw_http2::HEADERS).await;
        let reset = client.next_frame_of_kind(raw_http2::RST_STREAM).await;
        within_drain_time(began)?;
        assert_eq!((fifth.stream, reset.stream, reset.u32_at(0)), (9, 9, 0));
        client.send(&RawFrame::data(1, b"{}", true)).await;
        let first = client.next_frame_of_kind(raw_http2::HEADERS).await;
        within_drain_time(began)?;
        assert_eq!(first.stream, 1);
        // A slot is free again.
        client.send(&RawFrame::request(11, &POST_HEAD, false)).await;
        client.send(&RawFrame::request(13, &POST_HEAD, true)).await;
        let other = client.next_frame_of_kind(raw_http2::HEADERS).await;
        within_drain_time(began)?;
        assert_eq!(other.stream, 13, "11 is waited for");
        Some(())
    })
    .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn on_http2_a_large_body_resets_its_stream_and_the_connection_stays() {
    let (weir, mut upstream, (call, exchange)) = full_weir().await;
    let mut client = weir.raw_http2().await;
    let mut head = POST_HEAD.to_vec();
    head.push(("content-length", "1000000"));
    client.send(&RawFrame::request(1, &head, false)).await;
    client.send(&RawFrame::data(1, b"{", false)).await;
    let mut over = false;
    loop {
        let frame = client.next_frame().await.unwrap();
        match frame.kind {
            raw_http2::HEADERS => assert!(!frame.is_ok()),
            raw_http2::DATA => over |= frame.ends_stream(),
            raw_http2::RST_STREAM => {
                assert!(over, "the answer is whole before the rest is declined");
                assert_eq!(frame.u32_at(0), 0, "NO_ERROR");
                break;
            }
            raw_http2::GOAWAY => panic!("the connection ends: {frame:?}"),
            _ => {}
        }
    }
    upstream.assert_no_request();
    exchange.respond(201, "{}").await;
    call.response().await;
    client.send(&RawFrame::request(3, &POST_HEAD, true)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert!(client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
}
