//! Connections to the upstream are shared and reused, and there are as many as the load asks for, up to a limit.

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream;
use crate::support::upstream::ByHand;
use crate::support::upstream::Exchange;
use crate::support::upstream::HTTP1;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::within;

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=1";

async fn answer_all(open: Vec<(Call, Exchange)>) {
    for (call, exchange) in open {
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn requests_share_one_http2_connection() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..60 {
        let call = client.send(Ask::get(LIST)).await;
        open.push((call, upstream.next().await));
    }
    assert_eq!(upstream.connections(), 1);
    answer_all(open).await;
    for _ in 0..20 {
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(200, "{}").await;
        call.answer().await;
    }
    assert_eq!(upstream.connections(), 1);
    assert_eq!(
        weir.metric("weir_upstream_connections{way=\"pass-through\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn another_connection_is_opened_when_three_quarters_of_the_streams_are_taken() {
    let mut upstream = Upstream::speaking(upstream::streams(4)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(2)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..3 {
        let call = client.send(Ask::get(LIST)).await;
        open.push((call, upstream.next().await));
    }
    assert_eq!(upstream.connections(), 1, "three of four");
    let call = client.send(Ask::get(LIST)).await;
    open.push((call, upstream.next().await));
    weir.metric_becomes("weir_upstream_connections{way=\"pass-through\"}", 2.0)
        .await;
    // The emptier one takes what comes.
    for _ in 0..3 {
        let call = client.send(Ask::get(LIST)).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.peer.number, 1);
        open.push((call, exchange));
    }
    answer_all(open).await;
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn beyond_the_last_connection_requests_wait_and_go_on_when_a_stream_ends() {
    let mut upstream = Upstream::speaking(upstream::streams(2)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(2)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(Ask::get(LIST)).await;
        open.push((call, upstream.next().await));
    }
    let waits = "weir_upstream_stream_waits_total";
    let before = weir.metric(waits).await;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(client.send(Ask::get(LIST)).await);
    }
    weir.metric_becomes(waits, before + 4.0).await;
    upstream.assert_nothing_came();
    assert_eq!(upstream.connections(), 2);
    // One that gives up waiting leaves its turn to the others.
    drop(waiting.pop());
    for (call, exchange) in open {
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
    for call in waiting {
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
    upstream.assert_nothing_came();
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn a_burst_that_comes_before_the_upstream_s_settings_gets_the_connections_it_needs() {
    let mut upstream = Upstream::speaking(upstream::streams(2)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(8)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut lists = Vec::new();
    for _ in 0..8 {
        lists.push(client.send(Ask::get(LIST)).await);
    }
    let mut listed = Vec::new();
    for _ in 0..8 {
        listed.push(upstream.next().await); // none of the others has ended
    }
    for exchange in listed {
        exchange.reply(200, "{}").await;
    }
    for list in lists {
        assert_eq!(list.answer().await.status, 200);
    }
}

#[tokio::test]
async fn watches_take_no_stream_of_what_ends_and_have_as_many_connections_as_they_need() {
    let mut upstream = Upstream::speaking(upstream::streams(2)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    for mut client in [
        weir.alice(Http::Two),
        weir.certified(Http::Two, &pki().alice),
    ] {
        let mut open = Vec::new();
        for target in [[WATCH; 9].as_slice(), &[LIST; 2]].concat() {
            let call = client.send(Ask::get(target)).await;
            open.push((call, upstream.next().await));
        }
        let peers = open.iter().map(|(_, exchange)| exchange.peer.number);
        let (watched, listed): (Vec<_>, Vec<_>) =
            (peers.clone().take(9).collect(), peers.skip(9).collect());
        assert!(listed.iter().all(|peer| !watched.contains(peer)));
        answer_all(open).await;
    }
}

#[tokio::test]
async fn a_watch_beyond_the_room_for_what_lasts_is_refused_and_does_not_wait() {
    let mut upstream = Upstream::speaking(upstream::streams(2)).await;
    let weir = weir::before(upstream.address)
        .with(|config| config.upstream.room = 8)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(Ask::get(WATCH)).await;
        open.push((call, upstream.next().await));
    }
    for _ in 0..3 {
        let refused = client.get(WATCH).await;
        assert_eq!(refused.status, 503);
        assert_eq!(refused.told().cause, "weir/upstream-connections");
        assert_eq!(refused.headers.all("retry-after"), ["1"]);
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200, "of what is kept");
    }
    // One that goes away makes room for another.
    let (call, mut exchange) = open.pop().unwrap();
    drop(call);
    exchange.given_up().await;
    let again = eventually(
        "a place, once the reset is known to have been seen",
        async || {
            let mut call = client.send(Ask::get(WATCH)).await;
            tokio::select! {
                exchange = upstream.next() => Some((call, exchange)),
                head = call.try_head() => {
                    assert_eq!(head.unwrap().status, 503);
                    None
                }
            }
        },
    );
    open.push(again.await);
    answer_all(open).await;
}

#[tokio::test]
async fn only_so_many_requests_wait_for_a_stream() {
    const MOST_WAITING: usize = 1024;
    let mut upstream = Upstream::speaking(upstream::streams(1)).await;
    let weir = weir::before(upstream.address)
        .upstream_connections(1)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let held = client.send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    let mut clients: Vec<_> = (0..11).map(|_| weir.alice(Http::Two)).collect();
    let mut waiting = Vec::new();
    let waits = "weir_upstream_stream_waits_total";
    let before = weir.metric(waits).await;
    for n in 0..MOST_WAITING {
        waiting.push(clients[n / 100].send(Ask::get(LIST)).await);
    }
    weir.metric_becomes(waits, before + 1024.0).await;
    let answer = clients[10].get(LIST).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.told().cause, "weir/upstream-streams");
    assert_eq!(answer.headers.all("retry-after"), ["1"]);
    drop(waiting);
    exchange.reply(200, "{}").await;
    assert_eq!(held.answer().await.status, 200);
}

const ONE_STREAM: [(u16, u32); 1] = [(frames::MAX_STREAMS, 1)];

/// An upstream whose first connection allows one stream, which a request has.
struct One {
    upstream: ByHand,
    weir: Weir,
    client: Client,
    first: Call,
    server: Frames,
    stream: u32,
}

async fn one_stream_and_taken(connections: usize) -> One {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address)
        .upstream_connections(connections)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let first = client.send(Ask::get(LIST)).await;
    let mut server = Frames::server(upstream.next(Http::Two).await, &ONE_STREAM).await;
    let stream = server.until(frames::HEADERS).await.stream;
    One {
        upstream,
        weir,
        client,
        first,
        server,
        stream,
    }
}

#[tokio::test]
async fn a_limit_that_the_upstream_raises_lets_the_waiting_go_on() {
    let One {
        upstream: _upstream,
        weir,
        mut client,
        first,
        mut server,
        stream,
    } = one_stream_and_taken(1).await;
    // By the answer to this one weir has read the settings.
    server.send(&Frame::ok(stream, true)).await;
    assert_eq!(first.answer().await.status, 200);
    let _held = client.send(Ask::get(LIST)).await;
    server.until(frames::HEADERS).await;
    let waiting = client.send(Ask::get(LIST)).await;
    weir.metric_becomes("weir_upstream_stream_waits_total", 2.0)
        .await;
    server
        .send(&Frame::settings(&[(frames::MAX_STREAMS, 10)]))
        .await;
    let stream = within("the waiting request", server.until(frames::HEADERS))
        .await
        .stream;
    server.send(&Frame::ok(stream, true)).await;
    assert_eq!(waiting.answer().await.status, 200);
}

#[tokio::test]
async fn http1_connections_are_reused_one_request_at_a_time() {
    for near in Http::BOTH {
        let mut upstream = Upstream::speaking(HTTP1).await;
        let weir = weir::before(upstream.address).start().await;
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let before = upstream.connections();
            for _ in 0..10 {
                let call = client.send(Ask::get(LIST)).await;
                upstream.next().await.reply(200, "{}").await;
                assert_eq!(call.answer().await.status, 200);
            }
            assert_eq!(upstream.connections(), before + 1);
            let mut open = Vec::new();
            for _ in 0..3 {
                let call = client.send(Ask::get(LIST)).await;
                open.push((call, upstream.next().await));
            }
            assert_eq!(upstream.connections(), before + 3);
            answer_all(open).await;
            let call = client.send(Ask::get(LIST)).await;
            upstream.next().await.reply(200, "{}").await;
            call.answer().await;
            assert_eq!(upstream.connections(), before + 3);
        }
    }
}

#[tokio::test]
async fn many_at_once_before_an_upstream_of_http1_are_all_served() {
    let mut upstream = Upstream::speaking(HTTP1).await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    let mut calls = Vec::new();
    for _ in 0..30 {
        calls.push(client.send(Ask::get(LIST)).await);
    }
    for _ in 0..30 {
        upstream.next().await.reply(200, "{}").await;
    }
    for call in calls {
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn an_http1_connection_whose_answer_was_not_read_to_its_end_serves_nobody_else() {
    for near in Http::BOTH {
        let mut upstream = Upstream::speaking(HTTP1).await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let mut call = client.send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        exchange.send("half").await;
        call.head().await;
        drop(call);
        exchange.given_up().await;
        let call = client.send(Ask::get(LIST)).await;
        let next = upstream.next().await;
        assert_ne!(next.peer.number, exchange.peer.number);
        next.reply(200, "{}").await;
        assert_eq!(call.answer().await.text(), "{}");
    }
}

#[tokio::test]
async fn an_http1_connection_that_the_upstream_wants_to_close_serves_nobody_else() {
    let mut upstream = Upstream::speaking(HTTP1).await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    let call = client.send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    let closed = exchange.peer.number;
    exchange
        .reply_with(200, &[("connection", "close")], "{}")
        .await;
    call.answer().await;
    let call = client.send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    assert_ne!(exchange.peer.number, closed);
    exchange.reply(200, "{}").await;
    call.answer().await;
}

#[tokio::test]
async fn a_slow_reader_does_not_stop_the_others_on_its_connection() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut slow = weir.alice(Http::Two);
    let mut calls = Vec::new();
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..10 {
        calls.push(slow.send(Ask::get(LIST)).await);
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        floods.spawn(async move { while exchange.try_send(vec![7; 64 << 10]).await.is_ok() {} });
    }
    let mut quick = weir.alice(Http::Two);
    for _ in 0..50 {
        let call = quick.send(Ask::get(LIST)).await;
        let exchange = upstream.next().await;
        assert_eq!(exchange.peer.number, 0, "on the same connection");
        exchange.reply(200, vec![1; 64 << 10]).await;
        assert_eq!(call.answer().await.body.len(), 64 << 10);
    }
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "that time has passed is what is shown, and by no clock of the program's"
)]
async fn while_no_other_connection_can_be_had_the_waiting_do_not_try_without_a_pause() {
    let One {
        upstream,
        weir: _weir,
        mut client,
        first,
        mut server,
        stream,
    } = one_stream_and_taken(2).await;
    drop(upstream.tcp().await); // with one stream of one taken the pool is crowded at once
    let began = std::time::Instant::now();
    let waiting = client.send(Ask::get(LIST)).await;
    for _ in 0..2 {
        drop(upstream.tcp().await);
    }
    let took = began.elapsed();
    assert!(took.as_secs_f64() > 1.5, "{took:?} for two more attempts");
    // As soon as it is had, it serves.
    let mut other = Frames::server(upstream.next(Http::Two).await, &ONE_STREAM).await;
    let taken = other.until(frames::HEADERS).await.stream;
    other.send(&Frame::ok(taken, true)).await;
    assert_eq!(waiting.answer().await.status, 200);
    server.send(&Frame::ok(stream, true)).await;
    assert_eq!(first.answer().await.status, 200);
}

#[tokio::test]
async fn a_failure_to_open_another_connection_is_not_told_to_those_whose_own_goes_away_later() {
    let One {
        upstream,
        weir,
        mut client,
        first,
        mut server,
        stream,
    } = one_stream_and_taken(2).await;
    let another = upstream.tcp().await;
    let waiting = client.send(Ask::get(LIST)).await;
    weir.metric_becomes("weir_upstream_stream_waits_total", 2.0)
        .await;
    drop(another);
    let failed = "weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}";
    weir.metric_becomes(failed, 1.0).await;
    server.send(&Frame::go_away(stream, 0)).await;
    let mut other = Frames::server(upstream.next(Http::Two).await, &ONE_STREAM).await;
    let taken = other.until(frames::HEADERS).await.stream;
    other.send(&Frame::ok(taken, true)).await;
    assert_eq!(waiting.answer().await.status, 200);
    server.send(&Frame::ok(stream, true)).await;
    assert_eq!(first.answer().await.status, 200);
}

/// What lasts, and what somebody else than the API server writes.
const APART: [&str; 4] = [
    "/api/v1/namespaces/a/pods/b/log?follow=true",
    "/api/v1/namespaces/a/pods/b/proxy/stream",
    "/api/v1/namespaces/a/services/b/proxy/",
    "/api/v1/nodes/n1/proxy/logs/",
];

#[tokio::test]
async fn what_others_than_the_api_server_write_never_shares_a_connection() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    let shared = [WATCH, LIST];
    let mut open = Vec::new();
    for target in shared.into_iter().chain(APART).chain(shared) {
        let call = client.send(Ask::get(target)).await;
        let exchange = upstream.next().await;
        let http = if shared.contains(&target) {
            Http::Two
        } else {
            Http::One
        };
        assert_eq!(exchange.peer.http, http, "{target}");
        open.push((call, exchange));
    }
    let connections = shared.len() + APART.len();
    assert_eq!(upstream.connections(), connections);
    answer_all(open).await;
    // A connection whose request has come to its end serves another.
    for target in APART {
        let call = client.send(Ask::get(target)).await;
        upstream.next().await.reply(200, "done").await;
        assert_eq!(call.answer().await.text(), "done");
    }
    assert_eq!(upstream.connections(), connections);
}

#[tokio::test]
async fn what_lasts_leaves_connections_to_what_ends() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .with(|config| config.upstream.room = 8)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for target in &APART[..2] {
        let call = client.send(Ask::get(target)).await;
        open.push((call, upstream.next().await));
    }
    let refused = client.get(APART[2]).await;
    assert_eq!(refused.status, 429, "half of the places for what lasts");
    assert_eq!(refused.told().cause, "weir/long-running-share");
    assert_eq!(refused.headers.all("retry-after"), ["1"]);
    let call = client.send(Ask::get(LIST)).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200, "of what is kept");
    // One that goes away makes room; so does one that ends, though its connection stays.
    let (call, mut exchange) = open.pop().unwrap();
    drop(call);
    exchange.given_up().await;
    let connections = "weir_upstream_connections{way=\"pass-through\"}";
    weir.metric_becomes(connections, 2.0).await;
    for target in APART {
        let call = client.send(Ask::get(target)).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
    assert_eq!(
        weir.metric("weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}")
            .await,
        0.0,
        "none was tried in vain"
    );
    assert_eq!(upstream.connections(), 4);
}

#[tokio::test]
async fn an_idle_connection_of_what_lasted_is_not_taken_for_the_rest_s() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    let call = client.send(Ask::get(APART[0])).await;
    upstream.next().await.reply(200, "done").await;
    assert_eq!(call.answer().await.text(), "done");
    let call = client.send(Ask::get(LIST)).await;
    let exchange = upstream.next().await;
    assert_eq!(exchange.peer.http, Http::Two);
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn watches_of_an_upstream_of_http1_leave_connections_to_what_ends() {
    let mut upstream = Upstream::speaking(HTTP1).await;
    let weir = weir::before(upstream.address)
        .with(|config| config.upstream.room = 16)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..4 {
        let call = client.send(Ask::get(WATCH)).await;
        open.push((call, upstream.next().await));
    }
    let refused = client.get(WATCH).await;
    assert_eq!(refused.told().cause, "weir/long-running-share");
    let call = client.send(Ask::get(LIST)).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
    answer_all(open).await;
}
