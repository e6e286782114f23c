//! A request is retried only if it cannot have been executed, and it is executed once.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::support::certificates;
use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::{RawFrame, RawHttp2};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, fake_upstream, raw_http2, weir};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

const REFUSED_STREAM: u32 = 7;

const EXEC_SPDY: &str = "POST /api/v1/namespaces/a/pods/b/exec?command=sh HTTP/1.1\r\nHost: weir\r\n\
    Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n";
const EXEC_WEBSOCKET: &str = "GET /api/v1/namespaces/a/pods/b/exec?command=sh HTTP/1.1\r\nHost: weir\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const RETRIES_METRIC: &str = "weir_upstream_retries_total";

async fn start() -> (Weir, RawUpstream) {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    (weir, upstream)
}

/// The next HTTP/2 connection.
async fn accept_http2(upstream: &RawUpstream) -> RawHttp2 {
    RawHttp2::server(upstream.accept_trusted(HttpVersion::Http2).await, &[]).await
}

#[tokio::test]
async fn a_refused_stream_is_retried_and_executed_once() {
    for near in HttpVersion::BOTH {
        for request in [
            TestRequest::get(LIST),
            TestRequest::new("DELETE", LIST),
            TestRequest::post(LIST, ""),
        ] {
            let (weir, upstream) = start().await;
            let call = weir.alice(near).send(request).await;
            let mut server = accept_http2(&upstream).await;
            let first = server.next_frame_of_kind(raw_http2::HEADERS).await;
            server
                .send(&RawFrame::reset(first.stream, REFUSED_STREAM))
                .await;
            let second = server.next_frame_of_kind(raw_http2::HEADERS).await;
            assert!(second.stream > first.stream && second.ends_stream());
            server.send(&RawFrame::ok(second.stream, true)).await;
            assert_eq!(call.response().await.status, 200);
            assert_eq!(weir.metric(RETRIES_METRIC).await, 1.0);
        }
    }
}

#[tokio::test]
async fn a_stream_above_goaway_s_last_stream_id_is_retried_elsewhere_and_executed_once() {
    for near in HttpVersion::BOTH {
        let (weir, upstream) = start().await;
        let mut client = weir.alice(near);
        let first = client.send(TestRequest::get(LIST)).await;
        let mut leaving = accept_http2(&upstream).await;
        let begun = leaving.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        let second = client.send(TestRequest::get(LIST)).await;
        let late = leaving.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        assert!(late > begun);
        leaving.send(&RawFrame::go_away(begun, 0)).await;
        let mut other = accept_http2(&upstream).await;
        let again = other.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        other.send(&RawFrame::ok(again, true)).await;
        assert_eq!(second.response().await.status, 200);
        // Requests in flight are completed on their connection.
        leaving.send(&RawFrame::ok(begun, true)).await;
        assert_eq!(first.response().await.status, 200);
        assert!(weir.metric(RETRIES_METRIC).await >= 1.0);
    }
}

#[tokio::test]
async fn a_stream_that_goaway_counts_as_processed_is_not_retried() {
    for near in HttpVersion::BOTH {
        let (weir, upstream) = start().await;
        let call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut leaving = accept_http2(&upstream).await;
        let begun = leaving.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        leaving.send(&RawFrame::go_away(begun, 0)).await;
        drop(leaving);
        let response = call.response().await;
        assert_eq!(response.status, 502);
        assert_eq!(response.kube_status().cause, "weir/upstream-reset");
        assert_eq!(weir.metric(RETRIES_METRIC).await, 0.0);
    }
}

#[tokio::test]
async fn a_stream_in_flight_survives_a_goaway_and_new_requests_go_elsewhere() {
    for near in HttpVersion::BOTH {
        let (weir, upstream) = start().await;
        let mut client = weir.alice(near);
        let mut watch = client.send(TestRequest::get(WATCH)).await;
        let mut leaving = accept_http2(&upstream).await;
        let watched = leaving.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        leaving.send(&RawFrame::ok(watched, false)).await;
        watch.head().await;
        leaving.send(&RawFrame::go_away(0x7fff_ffff, 0)).await;
        leaving
            .send(&RawFrame::data(watched, b"event", false))
            .await;
        assert_eq!(watch.body().next_text().await, "event");
        let call = client.send(TestRequest::get(WATCH)).await;
        let mut other = accept_http2(&upstream).await;
        let stream = other.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        other.send(&RawFrame::ok(stream, true)).await;
        assert_eq!(call.response().await.status, 200);
        leaving
            .send(&RawFrame::data(watched, b"another", true))
            .await;
        assert_eq!(watch.body().next_text().await, "another");
        assert!(watch.body().next_chunk().await.is_none());
    }
}

/// What of a request has arrived when the server says that it has not begun.
#[derive(Clone, Copy, Debug)]
enum Arrived {
    Head,
    Body,
}

/// How the server says so.
#[derive(Clone, Copy, Debug)]
enum NotBegun {
    GoAway,
    RefusedStream,
}

#[tokio::test]
async fn a_request_that_was_not_begun_is_sent_again_with_its_body_from_memory() {
    const BODY: &[u8] = &[b'u'; 20_000]; // twice within the connection's window
    for near in HttpVersion::BOTH {
        for arrived in [Arrived::Head, Arrived::Body] {
            for said in [NotBegun::GoAway, NotBegun::RefusedStream] {
                let (weir, upstream) = start().await;
                let call = weir.alice(near).send(TestRequest::post(LIST, BODY)).await;
                let mut server = accept_http2(&upstream).await;
                let stream = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
                if matches!(arrived, Arrived::Body) {
                    assert_eq!(read_data(&mut server).await, BODY);
                }
                let mut server = match said {
                    NotBegun::GoAway => {
                        server.send(&RawFrame::go_away(0, 0)).await;
                        accept_http2(&upstream).await
                    }
                    NotBegun::RefusedStream => {
                        server.send(&RawFrame::reset(stream, REFUSED_STREAM)).await;
                        server
                    }
                };
                let again = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
                assert_eq!(read_data(&mut server).await, BODY, "{arrived:?} {said:?}");
                server.send(&RawFrame::ok(again, true)).await;
                assert_eq!(call.response().await.status, 200);
                assert_eq!(weir.metric(RETRIES_METRIC).await, 1.0);
            }
        }
    }
}

/// The body of the only stream with one.
async fn read_data(server: &mut RawHttp2) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let frame = server.next_frame_of_kind(raw_http2::DATA).await;
        body.extend_from_slice(&frame.payload);
        if frame.ends_stream() {
            return body;
        }
    }
}

#[tokio::test]
async fn a_request_whose_body_is_not_in_memory_is_not_retried() {
    for near in HttpVersion::BOTH {
        let upstream = RawUpstream::start().await;
        let builder = weir::builder(upstream.address).without_body_buffer();
        let weir = builder.start().await;
        let call = weir.alice(near).send(TestRequest::post(LIST, "{}")).await;
        let mut server = accept_http2(&upstream).await;
        let stream = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
        server.next_frame_of_kind(raw_http2::DATA).await;
        server.send(&RawFrame::reset(stream, REFUSED_STREAM)).await;
        let response = call.response().await;
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(weir.metric(RETRIES_METRIC).await, 0.0);
        // The next frame of the stream belongs to the next request.
        let call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let next = server.next_frame_of_kind(raw_http2::HEADERS).await;
        assert!(next.ends_stream());
        server.send(&RawFrame::ok(next.stream, true)).await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_repeatedly_fails() {
    let (weir, upstream) = start().await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut server = accept_http2(&upstream).await;
    let refusing = async {
        let mut tries = 0;
        loop {
            let stream = server.next_frame_of_kind(raw_http2::HEADERS).await.stream;
            tries += 1;
            assert!(tries <= 3, "and no end of it");
            server.send(&RawFrame::reset(stream, REFUSED_STREAM)).await;
        }
    };
    let response = tokio::select! {
        response = call.response() => response,
        () = refusing => unreachable!("it goes on as long as weir does"),
    };
    assert!(matches!(response.status, 502 | 503), "{response:?}");
    assert_eq!(weir.metric(RETRIES_METRIC).await, 2.0);
}

#[tokio::test]
async fn a_goaway_before_any_stream_is_no_failure() {
    let (weir, upstream) = start().await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let mut leaving = accept_http2(&upstream).await;
    leaving.send(&RawFrame::go_away(0, 0)).await;
    let mut other = accept_http2(&upstream).await;
    let stream = other.next_frame_of_kind(raw_http2::HEADERS).await.stream;
    other.send(&RawFrame::ok(stream, true)).await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn an_upstream_that_sends_goaway_on_every_connection_loses_no_request() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(4)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(6)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    // Six connections with free streams.
    let mut lists = Vec::new();
    let mut peers = HashMap::new();
    while peers.len() < 6 {
        assert!(lists.len() < 24, "there is no more room");
        let mut list = client.send(TestRequest::get(LIST)).await;
        let mut listed = upstream.next_exchange().await;
        listed.send_head(200, &[]).await;
        list.head().await;
        peers.insert(listed.connection.number, Arc::clone(&listed.connection));
        lists.push((list, listed));
    }
    for peer in peers.values() {
        peer.go_away();
    }
    for _ in 0..20 {
        let mut call = client.send(TestRequest::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next_exchange() => exchange.respond(200, "{}").await,
            head = call.try_head() => panic!("{head:?}"),
        }
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn a_full_connection_after_goaway_does_not_block_requests() {
    let mut upstream = FakeUpstream::with_protocols(fake_upstream::with_max_streams(1)).await;
    let weir = weir::builder(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut list = client.send(TestRequest::get(LIST)).await;
    let mut listed = upstream.next_exchange().await;
    listed.send_head(200, &[]).await;
    list.head().await;
    listed.connection.go_away();
    // The item arrives after the GOAWAY, so weir has read that by then.
    listed.send("item").await;
    assert_eq!(list.body().next_text().await, "item");
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    assert_ne!(exchange.connection.number, listed.connection.number);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    listed.send("another").await;
    assert_eq!(list.body().next_text().await, "another");
}

/// A TLS server that ends each connection before it has read a request: behind its own part of the
/// handshake.
fn close_after_handshake(mut tcp: std::net::TcpStream) {
    let config = certificates::upstream_tls_config(&[HttpVersion::Http1.alpn()], &pki().server);
    let mut tls = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    while !tls.wants_write() {
        tls.read_tls(&mut tcp).unwrap();
        tls.process_new_packets().unwrap();
    }
    tls.send_close_notify();
    let mut flight = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut flight).unwrap();
    }
    tcp.write_all(&flight).unwrap();
    let _ = tcp.read_to_end(&mut Vec::new()); // until weir closes it
}

#[tokio::test]
async fn an_upgrade_that_never_left_is_sent_again_on_a_new_connection() {
    for near in [EXEC_SPDY, EXEC_WEBSOCKET] {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.raw_http1_with_certificate(Some(&pki().admin)).await;
        client.send(near).await;
        let closing = upstream.accept_tcp().await.into_std().unwrap();
        closing.set_nonblocking(false).unwrap();
        let closed = tokio::task::spawn_blocking(|| close_after_handshake(closing));
        let mut server = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
        let request = server.read_request_head().await;
        assert!(request.headers.get("upgrade").is_some(), "{request:?}");
        assert_eq!(request.headers.all("cdn-loop").len(), 1);
        server
            .send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
            .await;
        assert_eq!(client.read_response_head().await.status, 101);
        closed.await.unwrap();
        assert_eq!(weir.metric(RETRIES_METRIC).await, 1.0);
    }
}

#[tokio::test]
async fn an_upgrade_of_which_a_byte_has_left_is_not_sent_again() {
    let upstream = RawUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut client = weir.raw_http1_with_certificate(Some(&pki().admin)).await;
    client.send(EXEC_SPDY).await;
    let mut server = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
    server.read_request_head().await;
    server.close().await;
    assert_eq!(client.read_response_head().await.status, 502);
    assert_eq!(weir.metric(RETRIES_METRIC).await, 0.0);
}
