//! No request gets the response of another: connections to the API server are shared by users.

use std::net::SocketAddr;

use crate::support::HttpVersion;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::RawUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::weir;
use crate::support::weir::Weir;
use ::weir::upstream::UpstreamProtocol;

const LIST: &str = "/api/v1/pods";

async fn start(address: SocketAddr, protocol: UpstreamProtocol) -> Weir {
    let builder = weir::builder(address);
    let builder = builder.with(|config| config.upstream.protocol = protocol);
    builder.start().await
}

/// When bytes arrive that no request asked for.
#[derive(Clone, Copy, Debug)]
enum Surplus {
    /// In the same record as the end of the response.
    Glued,
    /// In a record of their own, right after.
    NextRecord,
    /// Once the client has the response.
    Later,
}

#[tokio::test]
async fn a_connection_with_unasked_bytes_serves_no_further_request() {
    const SURPLUS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nunasked";
    for surplus in [Surplus::Glued, Surplus::NextRecord, Surplus::Later] {
        for (status, body) in [(200, "own"), (204, "")] {
            for next in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
                let upstream = RawUpstream::start().await;
                let weir = start(upstream.address, UpstreamProtocol::Http1).await;
                let call = weir.alice(HttpVersion::Http1).send(TestRequest::get(LIST));
                let call = call.await;
                let io = upstream.accept_trusted(HttpVersion::Http1).await;
                let mut first = RawHttp1::new(io);
                first.read_request_head().await;
                let length = match status {
                    204 => String::new(),
                    _ => format!("content-length: {}\r\n", body.len()),
                };
                let answer = format!("HTTP/1.1 {status} Said\r\n{length}\r\n{body}");
                match surplus {
                    Surplus::Glued => first.send(format!("{answer}{SURPLUS}")).await,
                    Surplus::NextRecord => {
                        first.send(answer).await;
                        first.send(SURPLUS).await;
                    }
                    Surplus::Later => first.send(answer).await,
                }
                let response = call.response().await;
                assert_eq!((response.status, response.text()), (status, body));
                if matches!(surplus, Surplus::Later) {
                    first.send(SURPLUS).await;
                }
                let call = weir.alice(HttpVersion::Http1).send(next.clone()).await;
                let io = upstream.accept_trusted(HttpVersion::Http1).await;
                let mut second = RawHttp1::new(io);
                second.read_request_head().await;
                second
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nasked")
                    .await;
                assert_eq!(call.response().await.text(), "asked", "{surplus:?}");
                first.reader.wait_for_close().await;
            }
        }
    }
}
