//! Who does not wait as told hears the next no late; who waits, and what must not be held, does not.

use std::time::Duration;

use ::weir::limits::bucket::Rate;
use ::weir::limits::rates;
use futures_util::future::select_all;

use crate::rates::rule_for;
use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir;
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
