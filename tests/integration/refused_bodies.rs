//! What becomes of the body of a request that is refused: it is not asked for, skipped if it is small, and costs the
//! connection (on HTTP/2 the stream) if it is not.

use std::time::Duration;

use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const PODS: &str = "/api/v1/namespaces/a/pods";

/// weir, full of mutating requests.
async fn full() -> (Weir, Upstream, (Call, Exchange)) {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .streaming()
        .start()
        .await;
    let call = weir.alice(Http::Two).send(Ask::post(PODS, "{}")).await;
    let exchange = upstream.next().await;
    (weir, upstream, (call, exchange))
}

fn post(head: &str) -> String {
    format!("POST {PODS} HTTP/1.1\r\nhost: weir\r\n{head}\r\n\r\n")
}

#[tokio::test]
async fn a_small_body_is_skipped_and_the_connection_goes_on() {
    let (weir, mut upstream, (call, exchange)) = full().await;
    let mut wire = weir.wire().await;
    let small = format!("{}{{}}", post("content-length: 2"));
    for request in [
        small.clone(),
        format!(
            "{}2\r\n{{}}\r\n0\r\n\r\n",
            post("transfer-encoding: chunked")
        ),
        format!(
            "{}0\r\nx-sum: 1\r\n\r\n",
            post("transfer-encoding: chunked")
        ),
        post("content-length: 0"),
    ] {
        wire.send(&request).await;
        let (answered, _) = wire.answer("POST").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None, "{request:.80}");
    }
    // What follows is read from where it begins.
    upstream.assert_nothing_came();
    exchange.reply(201, "{}").await;
    call.answer().await;
    wire.send(small).await;
    let mut admitted = upstream.next().await;
    assert_eq!(admitted.body().await, "{}");
    admitted.reply(201, "{}").await;
    assert_eq!(wire.answer("POST").await.0.status, 201);
}

#[tokio::test]
async fn a_body_that_comes_in_many_parts_is_skipped_if_it_comes_soon() {
    let (weir, mut upstream, _held) = full().await;
    let whole = format!("{}{}", post("content-length: 200000"), "x".repeat(200_000));
    // It does not come soon where the machine stands still.
    eventually("a body that comes soon", async || {
        let mut wire = weir.wire().await;
        let began = Stopwatch::start();
        wire.send(&whole).await;
        let (answered, _) = wire.answer("POST").await;
        assert_eq!(answered.status, 429);
        if answered.headers.get("connection").is_some() {
            assert!(began.elapsed() >= Duration::from_secs(1));
            return None;
        }
        // What follows is read from where it begins.
        wire.send(post("content-length: 0")).await;
        assert_eq!(wire.answer("POST").await.0.status, 429);
        Some(())
    })
    .await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_body_too_large_to_skip_costs_the_connection() {
    let (weir, mut upstream, _held) = full().await;
    let mut wire = weir.wire().await;
    // Its length alone says so: not a byte of it need come.
    wire.send(post("content-length: 1000000")).await;
    let (answered, body) = wire.answer("POST").await;
    assert_eq!(answered.status, 429);
    assert_eq!(answered.headers.all("connection"), ["close"]);
    assert!(!body.is_empty());
    wire.reader.ended().await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_body_that_turns_out_too_large_costs_the_connection() {
    let (weir, mut upstream, _held) = full().await;
    let mut wire = weir.wire().await;
    let chunk = format!("{:x}\r\n{}\r\n", 30_000, "x".repeat(30_000));
    wire.send(format!(
        "{}{}",
        post("transfer-encoding: chunked"),
        chunk.repeat(10)
    ))
    .await;
    let (answered, _) = wire.answer("POST").await;
    assert_eq!(answered.status, 429);
    assert_eq!(answered.headers.all("connection"), ["close"]);
    wire.reader.ended().await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_is_told_no_and_sends_nothing() {
    let (weir, mut upstream, _held) = full().await;
    let mut wire = weir.wire().await;
    wire.send(post("expect: 100-continue\r\ncontent-length: 2"))
        .await;
    let (answered, _) = wire.answer("POST").await;
    assert_eq!(answered.status, 429, "and not 100 before it");
    assert_eq!(answered.headers.all("connection"), ["close"]);
    wire.reader.ended().await;
    upstream.assert_nothing_came();
}

const POST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "weir"),
    (":path", PODS),
];

/// The stream whose answer comes next; none may have been reset before.
async fn answered(client: &mut Frames) -> u32 {
    loop {
        let frame = client.next().await.unwrap();
        assert_ne!(frame.kind, frames::RST_STREAM, "{frame:?}");
        if frame.kind == frames::HEADERS {
            assert!(!frame.is_ok());
            return frame.stream;
        }
    }
}

/// `None` where so much time has gone by that bodies are perhaps not waited for any more.
fn in_time(began: Stopwatch) -> Option<()> {
    (began.elapsed() < Duration::from_secs(1)).then_some(())
}

#[tokio::test]
async fn by_http2_a_small_body_is_waited_for_and_the_stream_ends_of_itself() {
    let (weir, mut upstream, _held) = full().await;
    eventually("a body that comes soon", async || {
        let mut client = weir.frames().await;
        let began = Stopwatch::start();
        client.send(&Frame::request(1, &POST, false)).await;
        client.send(&Frame::request(3, &POST, true)).await;
        let first = client.until(frames::HEADERS).await;
        in_time(began)?;
        assert_eq!(first.stream, 3, "1 is not over");
        client.send(&Frame::data(1, b"{}", true)).await;
        let second = client.until(frames::HEADERS).await;
        in_time(began)?;
        assert_eq!(second.stream, 1);
        client.send(&Frame::request(5, &POST, true)).await;
        assert_eq!(answered(&mut client).await, 5, "and 1 was not reset");
        Some(())
    })
    .await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn by_http2_few_bodies_of_a_connection_are_waited_for_at_once() {
    let (weir, mut upstream, _held) = full().await;
    eventually("bodies that do not come soon", async || {
        let mut client = weir.frames().await;
        let began = Stopwatch::start();
        for stream in [1, 3, 5, 7, 9] {
            client.send(&Frame::request(stream, &POST, false)).await;
        }
        let fifth = client.until(frames::HEADERS).await;
        let reset = client.until(frames::RST_STREAM).await;
        in_time(began)?;
        assert_eq!((fifth.stream, reset.stream, reset.number(0)), (9, 9, 0));
        client.send(&Frame::data(1, b"{}", true)).await;
        let first = client.until(frames::HEADERS).await;
        in_time(began)?;
        assert_eq!(first.stream, 1);
        // A place has come free.
        client.send(&Frame::request(11, &POST, false)).await;
        client.send(&Frame::request(13, &POST, true)).await;
        let other = client.until(frames::HEADERS).await;
        in_time(began)?;
        assert_eq!(other.stream, 13, "11 is waited for");
        Some(())
    })
    .await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn by_http2_a_large_body_costs_the_stream_and_the_connection_goes_on() {
    let (weir, mut upstream, (call, exchange)) = full().await;
    let mut client = weir.frames().await;
    let mut head = POST.to_vec();
    head.push(("content-length", "1000000"));
    client.send(&Frame::request(1, &head, false)).await;
    client.send(&Frame::data(1, b"{", false)).await;
    let mut over = false;
    loop {
        let frame = client.next().await.unwrap();
        match frame.kind {
            frames::HEADERS => assert!(!frame.is_ok()),
            frames::DATA => over |= frame.ends(),
            frames::RST_STREAM => {
                assert!(over, "the answer is whole before the rest is declined");
                assert_eq!(frame.number(0), 0, "NO_ERROR");
                break;
            }
            frames::GOAWAY => panic!("the connection ends: {frame:?}"),
            _ => {}
        }
    }
    upstream.assert_nothing_came();
    exchange.reply(201, "{}").await;
    call.answer().await;
    client.send(&Frame::request(3, &POST, true)).await;
    upstream.next().await.reply(200, "{}").await;
    assert!(client.until(frames::HEADERS).await.is_ok());
}
