//! What concerns one connection stops at weir, and a message ends where its head says, for everybody alike.

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::wire::Wire;

#[tokio::test]
async fn headers_of_the_client_s_connection_stop_at_weir() {
    for far in Http::BOTH {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).start().await;
        let mut wire = weir.wire().await;
        wire.send(
            "GET /api HTTP/1.1\r\nhost: weir\r\nauthorization: Bearer alice-token\r\n\
             Connection: keep-alive ,X-Private\r\nConnection:\t x-other,, TE\r\n\
             x-private: 1\r\nX-Other: 2\r\nx-kept: 3\r\nKeep-Alive: timeout=5\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nte: gzip, trailers\r\n\r\n",
        )
        .await;
        let exchange = upstream.next().await;
        let mut names: Vec<&str> = exchange
            .asked
            .headers
            .0
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        let host: &[&str] = if far == Http::One { &["host"] } else { &[] };
        let named = ["te", "x-forwarded-for", "x-kept", "x-other", "x-private"];
        let expected = [&["authorization", "cdn-loop"], host, &named].concat();
        assert_eq!(
            names, expected,
            "what else is named goes on, as to the API server"
        );
        exchange.reply(200, "{}").await;
        assert_eq!(wire.answer("GET").await.0.status, 200);
    }
}

#[tokio::test]
async fn headers_of_the_upstream_s_connection_stop_at_weir() {
    for near in Http::BOTH {
        let upstream = ByHand::start().await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.anonymous(near);
        let call = client.send(Ask::get("/api")).await;
        let mut wire = Wire::new(upstream.next(Http::One).await);
        wire.asked().await;
        wire.send(
            "HTTP/1.1 200 OK\r\nConnection: X-Internal, close\r\nx-internal: 1\r\nKeep-Alive: 5\r\n\
             Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nx-kept: 2\r\nContent-Length: 2\r\n\r\n{}",
        )
        .await;
        let answer = call.answer().await;
        let mut names: Vec<&str> = answer
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
async fn a_connection_header_cannot_take_off_what_frames_a_message() {
    let mut upstream = Upstream::preferring(Http::One).await;
    let weir = weir::before(upstream.address).start().await;
    let mut wire = weir.wire().await;
    wire.send(
        "POST /api HTTP/1.1\r\nhost: weir\r\nconnection: content-length, host, x-forwarded-for\r\n\
         content-length: 4\r\n\r\nbody",
    )
    .await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body().await, "body");
    assert_eq!(exchange.asked.headers.all("content-length"), ["4"]);
    assert_eq!(exchange.asked.headers.all("x-forwarded-for"), ["127.0.0.1"]);
    exchange.reply(200, "{}").await;
    assert_eq!(wire.answer("POST").await.0.status, 200);
}

#[tokio::test]
async fn two_framings_at_once_never_reach_the_upstream() {
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
        let mut upstream = Upstream::preferring(Http::One).await;
        let weir = weir::before(upstream.address).start().await;
        let mut wire = weir.wire().await;
        wire.send(format!(
            "POST /first HTTP/1.1\r\nhost: weir\r\n{head}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ))
        .await;
        tokio::select! {
            // `Exchange` fails for two framings, and for bytes that are no request where one should begin.
            mut exchange = upstream.next() => {
                let body = exchange.body().await;
                assert!(body == "abc" || body == "3\r\n", "{head:?}: {body:?}");
                exchange.reply(200, "{}").await;
                assert_eq!(wire.answer("POST").await.0.status, 200);
            }
            head = wire.reader.head() => {
                let head = head.unwrap().expect("an answer");
                let code = head[0].split(' ').nth(1).unwrap();
                assert!(code.starts_with('4') || code == "501", "{head:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_is_served() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut wire = weir.wire().await;
    wire.send(format!(
        "GET /version HTTP/1.0\r\n{}: {}\r\n\r\n",
        ALICE.0, ALICE.1
    ))
    .await;
    let mut exchange = upstream.next().await;
    exchange.begin(200, &[]).await;
    exchange.send("by and ").await;
    exchange.send("by").await;
    exchange.end().await;
    let answered = wire.answered().await;
    assert_eq!(answered.headers.get("transfer-encoding"), None);
    let mut body = wire
        .reader
        .body(crate::support::message::Framing::UntilClose);
    assert_eq!(body.rest().await.unwrap(), "by and by");
}

#[tokio::test]
async fn what_an_upstream_says_in_advance_does_not_confuse_the_answer() {
    for near in Http::BOTH {
        let upstream = ByHand::start().await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.anonymous(near);
        let call = client.send(Ask::get("/api")).await;
        let mut wire = Wire::new(upstream.next(Http::One).await);
        wire.asked().await;
        wire.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
            .await;
        wire.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            .await;
        let answer = call.answer().await;
        assert_eq!((answer.status, answer.text()), (200, "{}"));
    }
}
