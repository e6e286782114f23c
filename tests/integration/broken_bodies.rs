//! Bodies that break off: what was received of one is sent before its end.

use bytes::Bytes;
use futures_util::FutureExt;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::RawUpstream;
use crate::support::message::{Framing, ReceivedBody};
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::{DATA, HEADERS, RST_STREAM, RawFrame, RawHttp2};
use crate::support::{HttpVersion, weir};

const LIST: &str = "/api/v1/pods";

/// Bytes of which each shows its position.
fn marked(length: usize) -> Bytes {
    (0..length)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect()
}

/// All that arrives of a body that breaks off. After each read, other tasks run this often.
async fn received(body: &mut ReceivedBody, slowness: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match body.next_chunk().await {
            Some(Ok(chunk)) => {
                all.extend_from_slice(&chunk);
                for _ in 0..slowness {
                    tokio::task::yield_now().await;
                }
            }
            Some(Err(_)) => return all,
            None => panic!("the body seems complete"),
        }
    }
}

/// Answers the next request with a body that breaks off after these bytes.
async fn answer_and_break_off(upstream: &RawUpstream, far: HttpVersion, body: &[u8]) {
    let io = upstream.accept_trusted(far).await;
    match far {
        HttpVersion::Http1 => {
            let mut server = RawHttp1::new(io);
            server.read_request_head().await;
            server
                .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            for part in body.chunks(16 << 10) {
                server.send(format!("{:x}\r\n", part.len())).await;
                server.send(part).await;
                server.send("\r\n").await;
            }
        }
        HttpVersion::Http2 => {
            let mut server = RawHttp2::server(io, &[]).await;
            let stream = server.next_frame_of_kind(HEADERS).await.stream;
            server.send(&RawFrame::ok(stream, false)).await;
            for part in body.chunks(16 << 10) {
                server.send(&RawFrame::data(stream, part, false)).await;
            }
        }
    }
    // It is dropped here, without the end of TLS.
}

#[tokio::test]
async fn what_was_received_of_a_response_that_breaks_off_arrives() {
    for (near, far) in HttpVersion::PAIRS {
        // More than the client's socket takes, or as much as a stream's window has room for.
        let length = match far {
            HttpVersion::Http1 => 16 << 20,
            HttpVersion::Http2 => 200 << 10,
        };
        let body = marked(length);
        for _ in 0..10 {
            let upstream = RawUpstream::start().await;
            let weir = weir::builder(upstream.address).start().await;
            let mut call = weir.alice(near).send(TestRequest::get(LIST)).await;
            let answered = answer_and_break_off(&upstream, far, &body);
            let read = async {
                assert_eq!(call.head().await.status, 200);
                received(call.body(), 0).await
            };
            let ((), got) = tokio::join!(answered, read);
            assert_eq!(got.len(), body.len(), "{near:?} {far:?}");
            assert!(got == body);
        }
    }
}

/// A server with this is slower than its client.
const SLOWNESS: usize = 200;

/// All of the body of the next request, which breaks off.
async fn receive_broken_request(upstream: &RawUpstream, far: HttpVersion) -> Vec<u8> {
    let io = upstream.accept_trusted(far).await;
    match far {
        HttpVersion::Http1 => {
            let mut server = RawHttp1::new(io);
            let request = server.read_request_head().await;
            let framing = Framing::from_request(&request.headers);
            received(&mut server.reader.into_body(framing), SLOWNESS).await
        }
        HttpVersion::Http2 => {
            let mut server = RawHttp2::server(io, &[]).await;
            let mut all = Vec::new();
            loop {
                let frame = server.next_frame().await.unwrap();
                match frame.kind {
                    DATA if frame.ends_stream() => panic!("the body seems complete"),
                    DATA => all.extend_from_slice(&frame.payload),
                    RST_STREAM => return all,
                    _ => {}
                }
            }
        }
    }
}

/// (Over HTTP/2 a client that leaves resets its stream, which cancels the request.)
#[tokio::test]
async fn what_was_received_of_a_request_that_breaks_off_arrives() {
    for far in HttpVersion::BOTH {
        // More than the sockets take, or as much as a stream's window has room for.
        let length = match far {
            HttpVersion::Http1 => 8 << 20,
            HttpVersion::Http2 => 60_000,
        };
        let body = marked(length);
        for _ in 0..10 {
            let upstream = RawUpstream::start().await;
            let builder = weir::builder(upstream.address).without_body_buffer();
            let weir = builder.start().await;
            let mut client = weir.alice(HttpVersion::Http1);
            let send = async {
                let mut call = client.send(TestRequest::new("POST", LIST).streamed()).await;
                call.send(body.clone()).await;
                // Closing a socket that has not been read (the tickets of TLS) would discard what is
                // still to be sent.
                assert!(call.try_head().now_or_never().is_none());
                // It is dropped here.
            };
            let ((), got) = tokio::join!(send, receive_broken_request(&upstream, far));
            assert_eq!(got.len(), body.len(), "{far:?}");
            assert!(got == body);
        }
    }
}
