//! Responses that arrive before their request has been sent in full.

use crate::support::client::TestRequest;
use crate::support::fake_upstream::RawUpstream;
use crate::support::raw_http1::RawHttp1;
use crate::support::{HttpVersion, weir};
use ::weir::upstream::UpstreamProtocol;

const LIST: &str = "/api/v1/namespaces/a/configmaps";

/// As a server does that finds a token expired: it answers, does not read the body, and closes,
/// which resets the connection.
#[tokio::test]
async fn a_response_wins_over_the_failed_write_of_its_request() {
    for protocol in [UpstreamProtocol::Auto, UpstreamProtocol::Http1] {
        for size in [200_000, 900_000] {
            for _ in 0..20 {
                let upstream = RawUpstream::start().await;
                let builder = weir::builder(upstream.address);
                let builder = builder.with(|config| config.upstream.protocol = protocol);
                let weir = builder.start().await;
                let expired = ("authorization", "Bearer expired");
                let mut client = weir.with_authorization(HttpVersion::Http2, expired);
                let upload = TestRequest::post(LIST, vec![b'u'; size]);
                let call = client.send(upload).await;
                let io = upstream.accept_trusted(HttpVersion::Http1).await;
                let mut server = RawHttp1::new(io);
                server.read_request_head().await;
                server
                    .send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 7\r\n\r\nexpired")
                    .await;
                drop(server);
                let response = call.response().await;
                assert_eq!(response.status, 401, "{protocol:?} {size}");
                assert_eq!(response.text(), "expired");
            }
        }
    }
}
