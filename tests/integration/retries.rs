//! A request is sent again only where it cannot have been executed, and then it is executed once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

const REFUSED_STREAM: u32 = 7;

const RETRIES: &str = "weir_upstream_retries_total";

async fn serving() -> (Weir, ByHand) {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

/// The next HTTP/2 connection.
async fn connection(upstream: &ByHand) -> Frames {
    Frames::server(upstream.next(Http::Two).await, &[]).await
}

#[tokio::test]
async fn a_refused_stream_is_tried_again_and_executed_once() {
    for near in Http::BOTH {
        for ask in [
            Ask::get(LIST),
            Ask::new("DELETE", LIST),
            Ask::post(LIST, ""),
        ] {
            let (weir, upstream) = serving().await;
            let call = weir.alice(near).send(ask).await;
            let mut server = connection(&upstream).await;
            let first = server.until(frames::HEADERS).await;
            server
                .send(&Frame::reset(first.stream, REFUSED_STREAM))
                .await;
            let second = server.until(frames::HEADERS).await;
            assert!(second.stream > first.stream && second.ends());
            server.send(&Frame::ok(second.stream, true)).await;
            assert_eq!(call.answer().await.status, 200);
            assert_eq!(weir.metric(RETRIES).await, 1.0);
        }
    }
}

#[tokio::test]
async fn a_stream_beyond_the_last_that_a_goaway_names_is_tried_elsewhere_and_executed_once() {
    for near in Http::BOTH {
        let (weir, upstream) = serving().await;
        let mut client = weir.alice(near);
        let first = client.send(Ask::get(LIST)).await;
        let mut leaving = connection(&upstream).await;
        let begun = leaving.until(frames::HEADERS).await.stream;
        let second = client.send(Ask::get(LIST)).await;
        let late = leaving.until(frames::HEADERS).await.stream;
        assert!(late > begun);
        leaving.send(&Frame::go_away(begun, 0)).await;
        let mut other = connection(&upstream).await;
        let again = other.until(frames::HEADERS).await.stream;
        other.send(&Frame::ok(again, true)).await;
        assert_eq!(second.answer().await.status, 200);
        // What was begun is served where it began.
        leaving.send(&Frame::ok(begun, true)).await;
        assert_eq!(first.answer().await.status, 200);
        assert!(weir.metric(RETRIES).await >= 1.0);
    }
}

#[tokio::test]
async fn a_stream_that_a_goaway_counts_as_processed_is_not_tried_again() {
    for near in Http::BOTH {
        let (weir, upstream) = serving().await;
        let call = weir.alice(near).send(Ask::get(LIST)).await;
        let mut leaving = connection(&upstream).await;
        let begun = leaving.until(frames::HEADERS).await.stream;
        leaving.send(&Frame::go_away(begun, 0)).await;
        drop(leaving);
        let answer = call.answer().await;
        assert_eq!(answer.status, 502);
        assert_eq!(answer.told().cause, "weir/upstream-reset");
        assert_eq!(weir.metric(RETRIES).await, 0.0);
    }
}

#[tokio::test]
async fn a_stream_under_way_survives_a_goaway_and_new_requests_go_elsewhere() {
    for near in Http::BOTH {
        let (weir, upstream) = serving().await;
        let mut client = weir.alice(near);
        let mut watch = client.send(Ask::get(WATCH)).await;
        let mut leaving = connection(&upstream).await;
        let watched = leaving.until(frames::HEADERS).await.stream;
        leaving.send(&Frame::ok(watched, false)).await;
        watch.head().await;
        leaving.send(&Frame::go_away(0x7fff_ffff, 0)).await;
        leaving.send(&Frame::data(watched, b"event", false)).await;
        assert_eq!(watch.body().text().await, "event");
        let call = client.send(Ask::get(WATCH)).await;
        let mut other = connection(&upstream).await;
        let stream = other.until(frames::HEADERS).await.stream;
        other.send(&Frame::ok(stream, true)).await;
        assert_eq!(call.answer().await.status, 200);
        leaving.send(&Frame::data(watched, b"another", true)).await;
        assert_eq!(watch.body().text().await, "another");
        assert!(watch.body().next().await.is_none());
    }
}

#[tokio::test]
async fn a_request_whose_body_has_gone_out_is_not_tried_again() {
    for near in Http::BOTH {
        let (weir, upstream) = serving().await;
        let call = weir.alice(near).send(Ask::post(LIST, "{}")).await;
        let mut server = connection(&upstream).await;
        let stream = server.until(frames::HEADERS).await.stream;
        server.until(frames::DATA).await;
        server.send(&Frame::reset(stream, REFUSED_STREAM)).await;
        let answer = call.answer().await;
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
        assert_eq!(weir.metric(RETRIES).await, 0.0);
        // The next frame of a request is the next request's.
        let call = weir.alice(near).send(Ask::get(LIST)).await;
        let next = server.until(frames::HEADERS).await;
        assert!(next.ends());
        server.send(&Frame::ok(next.stream, true)).await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_again_and_again_is_given_up() {
    let (weir, upstream) = serving().await;
    let call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let mut server = connection(&upstream).await;
    let refusing = async {
        let mut tries = 0;
        loop {
            let stream = server.until(frames::HEADERS).await.stream;
            tries += 1;
            assert!(tries <= 3, "and no end of it");
            server.send(&Frame::reset(stream, REFUSED_STREAM)).await;
        }
    };
    let answer = tokio::select! {
        answer = call.answer() => answer,
        () = refusing => unreachable!("it goes on as long as weir does"),
    };
    assert!(matches!(answer.status, 502 | 503), "{answer:?}");
    assert_eq!(weir.metric(RETRIES).await, 2.0);
}

#[tokio::test]
async fn a_goaway_before_any_stream_is_no_failure() {
    let (weir, upstream) = serving().await;
    let call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    let mut leaving = connection(&upstream).await;
    leaving.send(&Frame::go_away(0, 0)).await;
    let mut other = connection(&upstream).await;
    let stream = other.until(frames::HEADERS).await.stream;
    other.send(&Frame::ok(stream, true)).await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn an_upstream_that_says_goaway_on_every_connection_loses_no_request() {
    let mut upstream = Upstream::speaking(upstream::streams(4)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(6)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    // Six connections, each with room for more.
    let mut lists = Vec::new();
    let mut peers = HashMap::new();
    while peers.len() < 6 {
        assert!(lists.len() < 24, "there is no more room");
        let mut list = client.send(Ask::get(LIST)).await;
        let mut listed = upstream.next().await;
        listed.begin(200, &[]).await;
        list.head().await;
        peers.insert(listed.peer.number, Arc::clone(&listed.peer));
        lists.push((list, listed));
    }
    for peer in peers.values() {
        peer.go_away();
    }
    for _ in 0..20 {
        let mut call = client.send(Ask::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next() => exchange.reply(200, "{}").await,
            head = call.try_head() => panic!("{head:?}"),
        }
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_connection_that_is_leaving_and_full_does_not_keep_requests_waiting() {
    let mut upstream = Upstream::speaking(upstream::streams(1)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut list = client.send(Ask::get(LIST)).await;
    let mut listed = upstream.next().await;
    listed.begin(200, &[]).await;
    list.head().await;
    listed.peer.go_away();
    // The item comes behind the GOAWAY, so weir has read that by then.
    listed.send("item").await;
    assert_eq!(list.body().text().await, "item");
    let call = client.send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    assert_ne!(exchange.peer.number, listed.peer.number);
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
    listed.send("another").await;
    assert_eq!(list.body().text().await, "another");
}
