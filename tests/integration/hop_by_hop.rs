//! Hop-by-hop headers end at weir, and the framing of a message is the same for every hop.

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::ALICE;
use crate::support::{HttpVersion, weir};

#[tokio::test]
async fn hop_by_hop_headers_of_the_client_are_removed() {
    for far in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address).start().await;
        let mut wire = weir.raw_http1().await;
        wire.send(
            "GET /api HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer alice-token\r\n\
             Connection: keep-alive ,X-Private\r\nConnection:\t x-other,, TE\r\n\
             x-private: 1\r\nX-Other: 2\r\nx-kept: 3\r\nKeep-Alive: timeout=5\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nte: gzip, trailers\r\n\r\n",
        )
        .await;
        let exchange = upstream.next_exchange().await;
        let mut names: Vec<&str> = exchange
            .request
            .headers
            .0
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        let host: &[&str] = if far == HttpVersion::Http1 {
            &["host"]
        } else {
            &[]
        };
        let named = ["te", "x-forwarded-for", "x-kept", "x-other", "x-private"];
        let expected = [&["authorization", "cdn-loop"], host, &named].concat();
        assert_eq!(
            names, expected,
            "what else is named goes on, as to the API server"
        );
        exchange.respond(200, "{}").await;
        assert_eq!(wire.read_response("GET").await.0.status, 200);
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_the_upstream_are_removed() {
    for near in HttpVersion::BOTH {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.anonymous(near);
        let call = client.send(TestRequest::get("/api")).await;
        let mut wire = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
        wire.read_request_head().await;
        wire.send(
            "HTTP/1.1 200 OK\r\nConnection: X-Internal, close\r\nx-internal: 1\r\nKeep-Alive: 5\r\n\
             Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nx-kept: 2\r\nContent-Length: 2\r\n\r\n{}",
        )
        .await;
        let response = call.response().await;
        let mut names: Vec<&str> = response
            .headers
            .0
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        let kept = ["content-length", "date", "x-internal", "x-kept"];
        assert_eq!(names, kept, "{near:?}");
    }
}

#[tokio::test]
async fn a_connection_header_cannot_remove_framing_headers() {
    let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
    let weir = weir::builder(upstream.address).start().await;
    let mut wire = weir.raw_http1().await;
    wire.send(
        "POST /api HTTP/1.1\r\nhost: weir\r\nconnection: content-length, host, x-forwarded-for\r\n\
         content-length: 4\r\n\r\nbody",
    )
    .await;
    let mut exchange = upstream.next_exchange().await;
    assert_eq!(exchange.read_body().await, "body");
    assert_eq!(exchange.request.headers.all("content-length"), ["4"]);
    assert_eq!(
        exchange.request.headers.all("x-forwarded-for"),
        ["127.0.0.1"]
    );
    exchange.respond(200, "{}").await;
    assert_eq!(wire.read_response("POST").await.0.status, 200);
}

#[tokio::test]
async fn requests_with_conflicting_framing_never_reach_the_upstream() {
    for head in [
        "content-length: 3\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 3",
        "content-length: 3\r\ncontent-length: 30",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        "transfer-encoding: identity\r\ncontent-length: 3",
        "content-length: +3",
        "content-length: 3, 3",
    ] {
        let mut upstream = FakeUpstream::preferring(HttpVersion::Http1).await;
        let weir = weir::builder(upstream.address).start().await;
        let mut wire = weir.raw_http1().await;
        wire.send(format!(
            "POST /first HTTP/1.1\r\nhost: weir\r\n{head}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ))
        .await;
        tokio::select! {
            // `Exchange` fails on two framings, and on bytes that are no request where one should
            // start.
            mut exchange = upstream.next_exchange() => {
                let body = exchange.read_body().await;
                assert!(body == "abc" || body == "3\r\n", "{head:?}: {body:?}");
                exchange.respond(200, "{}").await;
                assert_eq!(wire.read_response("POST").await.0.status, 200);
            }
            head = wire.reader.read_head() => {
                let head = head.unwrap().expect("an answer");
                let code = head[0].split(' ').nth(1).unwrap();
                assert!(code.starts_with('4') || code == "501", "{head:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_is_served() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut wire = weir.raw_http1().await;
    wire.send(format!(
        "GET /version HTTP/1.0\r\n{}: {}\r\n\r\n",
        ALICE.0, ALICE.1
    ))
    .await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    exchange.send("by and ").await;
    exchange.send("by").await;
    exchange.end().await;
    let answered = wire.read_response_head().await;
    assert_eq!(answered.headers.get("transfer-encoding"), None);
    let mut body = wire
        .reader
        .into_body(crate::support::message::Framing::UntilClose);
    assert_eq!(body.read_to_end().await.unwrap(), "by and by");
}

#[tokio::test]
async fn informational_responses_do_not_confuse_the_final_response() {
    for near in HttpVersion::BOTH {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.anonymous(near);
        let call = client.send(TestRequest::get("/api")).await;
        let mut wire = RawHttp1::new(upstream.accept_trusted(HttpVersion::Http1).await);
        wire.read_request_head().await;
        wire.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
            .await;
        wire.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            .await;
        let response = call.response().await;
        assert_eq!((response.status, response.text()), (200, "{}"));
    }
}
