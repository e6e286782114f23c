//! Who does not wait as told hears the next no late; who waits, and what must not be held, does not.

use std::time::Duration;

use ::weir::limits::bucket::Rate;
use ::weir::limits::rates;
use futures_util::future::join_all;
use futures_util::future::select_all;

use crate::rates::rule_for;
use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::message::Framing;
use crate::support::upstream::Exchange;
use crate::support::upstream::Place;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ALICE;
use crate::support::weir::ROOT;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";

/// The `Retry-After` of max-in-flight.
const TOLD: Duration = Duration::from_secs(1);

/// Longer than anything that is waited for.
const LONG: Duration = Duration::from_secs(3600);

const HELD_NOW: &str = "weir_rejection_holds";
const EVER_HELD: &str = "weir_rejection_hold_seconds_count";

/// weir whose only slots for reading and writing are taken.
struct Full {
    weir: Weir,
    _upstream: Upstream,
    _taken: [(Call, Exchange); 2],
}

async fn full(longest: Duration) -> Full {
    full_with(rates::Config::default(), longest, 100).await
}

/// One that tells who reads to come back in a lifetime, not in a second: that is over as soon as the machine stands still.
async fn spent(longest: Duration, max_streams: u32) -> Full {
    let mut rates = rule_for("get, list", "");
    rates.clients[0].requests = Some(Rate::new(0, 1));
    full_with(rates, longest, max_streams).await
}

async fn full_with(rates: rates::Config, longest: Duration, max_streams: u32) -> Full {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .rates(rates)
        .rejection_hold(longest)
        .max_streams(max_streams)
        .start()
        .await;
    let mut client = weir.alice(Http::One);
    let read = client.send(Ask::get(LIST)).await;
    let read = (read, upstream.next().await);
    let write = client.send(Ask::post(LIST, "{}")).await;
    let write = (write, upstream.next().await);
    Full {
        weir,
        _upstream: upstream,
        _taken: [read, write],
    }
}

async fn refused(client: &mut Client, ask: Ask) {
    assert_eq!(client.ask(ask).await.status, 429);
}

#[tokio::test]
async fn who_comes_back_early_hears_no_when_its_time_is_over() {
    // Not held is who comes a second later because the machine stood still.
    eventually("one that comes early", async || {
        let full = full(LONG).await;
        let mut client = full.weir.alice(Http::Two);
        let began = Stopwatch::start();
        refused(&mut client, Ask::get(LIST)).await;
        assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
        refused(&mut client, Ask::get(LIST)).await;
        assert!(began.elapsed() >= TOLD);
        assert_eq!(full.weir.metric(HELD_NOW).await, 0.0);
        let elapsed = "weir_rejection_holds_total{end=\"elapsed\"}";
        (full.weir.metric(elapsed).await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_refusal_is_held_for_its_own_request_only() {
    let full = spent(LONG, 100).await;
    let mut client = full.weir.alice(Http::Two);
    refused(&mut client, Ask::get(LIST)).await;
    let held = client.send(Ask::get(LIST)).await;
    full.weir.metric_becomes(HELD_NOW, 1.0).await;
    // Another limit's requests are another flow, on the same connection.
    refused(&mut client, Ask::post(LIST, "{}")).await;
    assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
    drop(held);
    full.weir.metric_becomes(EVER_HELD, 1.0).await;
}

#[tokio::test]
async fn with_zero_every_no_is_said_at_once() {
    let full = full(Duration::ZERO).await;
    let mut client = full.weir.alice(Http::Two);
    for _ in 0..20 {
        refused(&mut client, Ask::get(LIST)).await;
    }
    assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
}

#[tokio::test]
async fn the_write_of_a_lease_is_never_held() {
    let full = spent(TOLD, 100).await;
    let mut client = full.weir.alice(Http::Two);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    for _ in 0..20 {
        refused(&mut client, Ask::new("PUT", lease)).await;
    }
    assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
    // Reading one is reading.
    refused(&mut client, Ask::get(lease)).await;
    refused(&mut client, Ask::get(lease)).await;
    assert_eq!(full.weir.metric(EVER_HELD).await, 1.0);
}

#[tokio::test]
async fn a_client_that_goes_away_is_forgotten_at_once() {
    for http in Http::BOTH {
        let full = spent(LONG, 100).await;
        let mut client = full.weir.alice(http);
        let mut calls = Vec::new();
        // HTTP/1.1: each on a connection of its own, so the flow has to be known by more than eight.
        let tries = if http == Http::One { 9 } else { 2 };
        for _ in 0..tries {
            calls.push(client.send(Ask::get(LIST)).await);
        }
        full.weir.metric_becomes(HELD_NOW, 1.0).await;
        drop(calls);
        full.weir.metric_becomes(HELD_NOW, 0.0).await;
    }
}

#[tokio::test]
async fn at_most_half_of_a_connection_s_streams_are_held() {
    let full = spent(LONG, 4).await;
    let mut client = full.weir.alice(Http::Two);
    refused(&mut client, Ask::get(LIST)).await;
    let mut early = Vec::new();
    for _ in 0..3 {
        early.push(Box::pin(client.send(Ask::get(LIST)).await.answer()));
    }
    full.weir.metric_becomes(HELD_NOW, 2.0).await;
    let (answer, _, held) = select_all(early).await;
    assert_eq!(answer.status, 429);
    assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
    drop(held);
    full.weir.metric_becomes(EVER_HELD, 2.0).await;
}

#[tokio::test]
async fn a_new_connection_for_every_try_does_not_help() {
    let full = spent(TOLD, 100).await;
    let mut client = full.weir.alice(Http::One);
    for _ in 0..8 {
        refused(&mut client, Ask::get(LIST)).await;
    }
    assert_eq!(full.weir.metric(EVER_HELD).await, 0.0);
    refused(&mut client, Ask::get(LIST)).await;
    assert_eq!(full.weir.metric(EVER_HELD).await, 1.0);
}

/// weir before an API server that refuses connections, and the place that it can come back to.
async fn without_upstream(longest: Duration) -> (Weir, Place) {
    let place = Place::reserve();
    let weir = weir::before(place.address).rejection_hold(longest);
    (weir.start().await, place)
}

async fn unavailable(client: &mut Client, ask: Ask) {
    let answer = client.ask(ask).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers.all("retry-after"), ["1"]);
}

#[tokio::test]
async fn clients_that_never_back_off_get_one_503_a_second_each_from_a_dead_upstream() {
    const CLIENTS: u16 = 8;
    const EACH: u16 = 3;
    // Not held is one that comes a second later because the machine stood still.
    eventually("clients that come early", async || {
        let (weir, _place) = without_upstream(LONG).await;
        let clients = (0..CLIENTS).map(|_| async {
            let mut connection = weir.wire().await;
            let began = Stopwatch::start();
            for _ in 0..EACH {
                let (name, value) = ALICE;
                let head = format!("GET {LIST} HTTP/1.1\r\nhost: weir\r\n{name}: {value}\r\n\r\n");
                connection.send(head).await;
                let answered = connection.answered().await;
                assert_eq!(answered.status, 503);
                connection.body(Framing::of_answer(&answered, "GET")).await;
            }
            began.elapsed()
        });
        for took in join_all(clients).await {
            assert!(took >= TOLD * u32::from(EACH - 1), "{EACH} in {took:?}");
        }
        let elapsed = "weir_rejection_holds_total{end=\"elapsed\"}";
        let held = weir.metric(elapsed).await;
        (held == f64::from(CLIENTS * (EACH - 1))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_honours_the_retry_after_of_a_503_is_not_held() {
    let (weir, _place) = without_upstream(LONG).await;
    let mut client = weir.alice(Http::Two);
    for _ in 0..3 {
        unavailable(&mut client, Ask::get(LIST)).await;
        tokio::time::sleep(TOLD).await; // what a client does that is told to
    }
    assert_eq!(weir.metric(EVER_HELD).await, 0.0);
}

#[tokio::test]
async fn a_held_503_ends_with_its_retry_after_and_the_next_request_reaches_the_upstream_again() {
    let (weir, place) = without_upstream(LONG).await;
    let mut client = weir.alice(Http::Two);
    unavailable(&mut client, Ask::get(LIST)).await;
    let early = client.send(Ask::get(LIST)).await;
    // It has not reached the upstream, and does not afterwards: what is held has no request any more.
    let connects = "weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}";
    weir.metric_becomes(connects, 2.0).await;
    let mut upstream = Upstream::back_at(place).await;
    assert_eq!(early.answer().await.status, 503);
    upstream.assert_nothing_came();
    let call = client.send(Ask::get(LIST)).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn a_503_for_the_write_of_a_lease_a_watch_or_an_exempt_user_is_never_held() {
    let (weir, _place) = without_upstream(LONG).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    let mut alice = weir.alice(Http::Two);
    let mut root = weir.bearing(Http::Two, ROOT);
    for _ in 0..10 {
        unavailable(&mut alice, Ask::new("PUT", lease)).await;
        unavailable(&mut alice, Ask::get("/api/v1/pods?watch=1")).await;
        unavailable(&mut root, Ask::get(LIST)).await;
    }
    assert_eq!(weir.metric(EVER_HELD).await, 0.0);
}

#[tokio::test]
async fn with_zero_every_503_is_sent_at_once() {
    let (weir, _place) = without_upstream(Duration::ZERO).await;
    let mut client = weir.alice(Http::Two);
    for _ in 0..20 {
        unavailable(&mut client, Ask::get(LIST)).await;
    }
    assert_eq!(weir.metric(EVER_HELD).await, 0.0);
}
