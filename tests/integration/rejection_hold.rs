//! Delayed rejections: a client that ignores `Retry-After` gets the next rejection late. Clients
//! that honour it, and exempt requests, are not delayed.

use std::time::Duration;

use ::weir_limits::rate;
use ::weir_limits::throttling::token_bucket::Rate;
use futures_util::future::{join_all, select_all};

use crate::rate_limits::alice_rule_for_verbs;
use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream, ReservedAddress};
use crate::support::message::Framing;
use crate::support::weir::{ALICE, ROOT, Weir};
use crate::support::{HttpVersion, Stopwatch, eventually, weir};

const LIST: &str = "/api/v1/pods";

/// The `Retry-After` of max-in-flight.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longer than any wait in these tests.
const LONG_HOLD: Duration = Duration::from_secs(3600);

const HELD_METRIC: &str = "weir_rejection_holds";
const HELD_COUNT_METRIC: &str = "weir_rejection_hold_seconds_count";
const HELD_SUM_METRIC: &str = "weir_rejection_hold_seconds_sum";

/// weir with its only slots for reads and writes in use.
struct FullWeir {
    weir: Weir,
    _upstream: FakeUpstream,
    _requests: [(TestCall, Exchange); 2],
}

async fn full_weir(longest: Duration) -> FullWeir {
    full_weir_with(rate::RateLimitsConfig::default(), longest, 100).await
}

/// weir whose rejections of reads have a very long `Retry-After`: a second could pass while the machine
/// pauses.
async fn rate_limited_weir(longest: Duration, max_streams: u32) -> FullWeir {
    let mut rates = alice_rule_for_verbs("get, list", "");
    rates.clients[0].requests = Some(Rate::new(0, 1));
    full_weir_with(rates, longest, max_streams).await
}

async fn full_weir_with(
    rates: rate::RateLimitsConfig,
    longest: Duration,
    max_streams: u32,
) -> FullWeir {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .rates(rates)
        .rejection_hold(longest)
        .max_streams(max_streams)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http1);
    let read = client.send(TestRequest::get(LIST)).await;
    let read = (read, upstream.next_exchange().await);
    let write = client.send(TestRequest::post(LIST, "{}")).await;
    let write = (write, upstream.next_exchange().await);
    FullWeir {
        weir,
        _upstream: upstream,
        _requests: [read, write],
    }
}

async fn assert_rejected(client: &mut TestClient, request: TestRequest) {
    assert_eq!(client.request(request).await.status, 429);
}

#[tokio::test]
async fn an_early_retry_is_rejected_when_its_retry_after_is_over() {
    // A request that is a second late because the machine paused is not delayed.
    eventually("one that comes early", async || {
        let full = full_weir(LONG_HOLD).await;
        let mut client = full.weir.alice(HttpVersion::Http2);
        let began = Stopwatch::start();
        assert_rejected(&mut client, TestRequest::get(LIST)).await;
        assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
        assert_rejected(&mut client, TestRequest::get(LIST)).await;
        assert!(began.elapsed() >= RETRY_AFTER);
        assert_eq!(full.weir.metric(HELD_METRIC).await, 0.0);
        let elapsed = "weir_rejection_holds_total{end=\"elapsed\"}";
        (full.weir.metric(elapsed).await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_rejection_is_held_for_its_own_flow_only() {
    let full = rate_limited_weir(LONG_HOLD, 100).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    assert_rejected(&mut client, TestRequest::get(LIST)).await;
    let held = client.send(TestRequest::get(LIST)).await;
    full.weir.wait_for_metric(HELD_METRIC, 1.0).await;
    // Requests of another limit are another flow on the same connection.
    assert_rejected(&mut client, TestRequest::post(LIST, "{}")).await;
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
    drop(held);
    full.weir.wait_for_metric(HELD_COUNT_METRIC, 1.0).await;
}

#[tokio::test]
async fn with_zero_hold_every_rejection_is_sent_at_once() {
    let full = full_weir(Duration::ZERO).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    for _ in 0..20 {
        assert_rejected(&mut client, TestRequest::get(LIST)).await;
    }
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
}

/// weir with its only slots in use, where rejections may cost this many thousandths of a core.
async fn paced_weir(max_millicores: u32) -> FullWeir {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .rejection_hold(Duration::from_millis(1))
        .max_rejection_millicores(max_millicores)
        .max_streams(PACED_REQUESTS * 2)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let read = client.send(TestRequest::get(LIST)).await;
    let read = (read, upstream.next_exchange().await);
    let write = client.send(TestRequest::post(LIST, "{}")).await;
    let write = (write, upstream.next_exchange().await);
    FullWeir {
        weir,
        _upstream: upstream,
        _requests: [read, write],
    }
}

/// A thousandth of a core pays for 33 to 42 rejections a second: these take several seconds.
const PACED_REQUESTS: u32 = 150;

/// The longest `Retry-After` of as many rejections at once.
async fn longest_retry_after(client: &mut TestClient, request: impl Fn() -> TestRequest) -> u32 {
    let mut calls = Vec::new();
    for _ in 0..PACED_REQUESTS {
        calls.push(client.send(request()).await);
    }
    let mut longest = 0;
    for response in join_all(calls.into_iter().map(TestCall::response)).await {
        assert_eq!(response.status, 429);
        let [seconds] = &response.headers.all("retry-after")[..] else {
            panic!("one Retry-After");
        };
        longest = longest.max(seconds.parse().unwrap());
    }
    longest
}

#[tokio::test]
async fn rejections_that_cost_too_much_raise_retry_after_and_the_hold() {
    // A machine that pauses for seconds between rejections makes them cheap.
    eventually("a raised Retry-After", async || {
        let full = paced_weir(1).await;
        let mut client = full.weir.alice(HttpVersion::Http2);
        let longest = longest_retry_after(&mut client, || TestRequest::get(LIST)).await;
        assert!(longest <= 16, "{longest}");
        let held_before = full.weir.metric(HELD_SUM_METRIC).await;
        assert_rejected(&mut client, TestRequest::get(LIST)).await;
        let held = full.weir.metric(HELD_SUM_METRIC).await - held_before;
        // The general limit of a hold is a millisecond here.
        (longest > 1 && held > 0.5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn retry_after_is_upstreams_without_pacing_and_for_writes_of_leases() {
    let full = paced_weir(0).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    let list = || TestRequest::get(LIST);
    assert_eq!(longest_retry_after(&mut client, list).await, 1);
    let full = paced_weir(1).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    let write = || TestRequest::new("PUT", lease);
    assert_eq!(longest_retry_after(&mut client, write).await, 1);
}

#[tokio::test]
async fn rejections_of_lease_writes_are_never_held() {
    let full = rate_limited_weir(RETRY_AFTER, 100).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    for _ in 0..20 {
        assert_rejected(&mut client, TestRequest::new("PUT", lease)).await;
    }
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
    // A read of a lease is held like other reads.
    assert_rejected(&mut client, TestRequest::get(lease)).await;
    assert_rejected(&mut client, TestRequest::get(lease)).await;
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 1.0);
}

#[tokio::test]
async fn a_held_rejection_is_dropped_when_its_client_disconnects() {
    for http in HttpVersion::BOTH {
        let full = rate_limited_weir(LONG_HOLD, 100).await;
        let mut client = full.weir.alice(http);
        let mut calls = Vec::new();
        // HTTP/1.1: each request on its own connection, so the flow must be known from more than
        // eight.
        let tries = if http == HttpVersion::Http1 { 9 } else { 2 };
        for _ in 0..tries {
            calls.push(client.send(TestRequest::get(LIST)).await);
        }
        full.weir.wait_for_metric(HELD_METRIC, 1.0).await;
        drop(calls);
        full.weir.wait_for_metric(HELD_METRIC, 0.0).await;
    }
}

#[tokio::test]
async fn at_most_half_of_a_connection_s_streams_are_held() {
    let full = rate_limited_weir(LONG_HOLD, 4).await;
    let mut client = full.weir.alice(HttpVersion::Http2);
    assert_rejected(&mut client, TestRequest::get(LIST)).await;
    let mut early = Vec::new();
    for _ in 0..3 {
        early.push(Box::pin(
            client.send(TestRequest::get(LIST)).await.response(),
        ));
    }
    full.weir.wait_for_metric(HELD_METRIC, 2.0).await;
    let (response, _, held) = select_all(early).await;
    assert_eq!(response.status, 429);
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
    drop(held);
    full.weir.wait_for_metric(HELD_COUNT_METRIC, 2.0).await;
}

#[tokio::test]
async fn a_new_connection_for_every_try_does_not_avoid_the_hold() {
    let full = rate_limited_weir(RETRY_AFTER, 100).await;
    let mut client = full.weir.alice(HttpVersion::Http1);
    for _ in 0..8 {
        assert_rejected(&mut client, TestRequest::get(LIST)).await;
    }
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 0.0);
    assert_rejected(&mut client, TestRequest::get(LIST)).await;
    assert_eq!(full.weir.metric(HELD_COUNT_METRIC).await, 1.0);
}

/// weir in front of an API server that refuses connections, and the reserved address where it can
/// return.
async fn weir_without_upstream(longest: Duration) -> (Weir, ReservedAddress) {
    let place = ReservedAddress::reserve();
    let weir = weir::builder(place.address).rejection_hold(longest);
    (weir.start().await, place)
}

async fn assert_unavailable(client: &mut TestClient, request: TestRequest) {
    let response = client.request(request).await;
    assert_eq!(response.status, 503);
    assert_eq!(response.headers.all("retry-after"), ["1"]);
}

#[tokio::test]
async fn clients_that_never_back_off_get_one_503_a_second_each_while_the_upstream_is_down() {
    const CLIENTS: u16 = 8;
    const RESPONSES_PER_CLIENT: u16 = 3;
    // A request that is a second late because the machine paused is not delayed.
    eventually("clients that come early", async || {
        let (weir, _place) = weir_without_upstream(LONG_HOLD).await;
        let clients = (0..CLIENTS).map(|_| async {
            let mut connection = weir.raw_http1().await;
            let began = Stopwatch::start();
            for _ in 0..RESPONSES_PER_CLIENT {
                let (name, value) = ALICE;
                let head = format!("GET {LIST} HTTP/1.1\r\nhost: weir\r\n{name}: {value}\r\n\r\n");
                connection.send(head).await;
                let answered = connection.read_response_head().await;
                assert_eq!(answered.status, 503);
                connection
                    .read_body(Framing::from_response(&answered, "GET"))
                    .await;
            }
            began.elapsed()
        });
        for took in join_all(clients).await {
            assert!(
                took >= RETRY_AFTER * u32::from(RESPONSES_PER_CLIENT - 1),
                "{RESPONSES_PER_CLIENT} in {took:?}"
            );
        }
        let elapsed = "weir_rejection_holds_total{end=\"elapsed\"}";
        let held = weir.metric(elapsed).await;
        (held == f64::from(CLIENTS * (RESPONSES_PER_CLIENT - 1))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_honours_the_retry_after_of_a_503_is_not_held() {
    let (weir, _place) = weir_without_upstream(LONG_HOLD).await;
    let mut client = weir.alice(HttpVersion::Http2);
    for _ in 0..3 {
        assert_unavailable(&mut client, TestRequest::get(LIST)).await;
        tokio::time::sleep(RETRY_AFTER).await; // honours `Retry-After`
    }
    assert_eq!(weir.metric(HELD_COUNT_METRIC).await, 0.0);
}

#[tokio::test]
async fn a_held_503_ends_with_its_retry_after_and_the_next_request_reaches_the_upstream_again() {
    let (weir, place) = weir_without_upstream(LONG_HOLD).await;
    let mut client = weir.alice(HttpVersion::Http2);
    assert_unavailable(&mut client, TestRequest::get(LIST)).await;
    let early = client.send(TestRequest::get(LIST)).await;
    // It has not reached the upstream, and does not later: a delayed rejection has no request any
    // more.
    let connects = "weir_upstream_connects_total{result=\"failed\",way=\"pass-through\"}";
    weir.wait_for_metric(connects, 2.0).await;
    let mut upstream = FakeUpstream::restart_at(place).await;
    assert_eq!(early.response().await.status, 503);
    upstream.assert_no_request();
    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn a_503_for_the_write_of_a_lease_a_watch_or_an_exempt_user_is_never_held() {
    let (weir, _place) = weir_without_upstream(LONG_HOLD).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    let mut alice = weir.alice(HttpVersion::Http2);
    let mut root = weir.with_authorization(HttpVersion::Http2, ROOT);
    for _ in 0..10 {
        assert_unavailable(&mut alice, TestRequest::new("PUT", lease)).await;
        assert_unavailable(&mut alice, TestRequest::get("/api/v1/pods?watch=1")).await;
        assert_unavailable(&mut root, TestRequest::get(LIST)).await;
    }
    assert_eq!(weir.metric(HELD_COUNT_METRIC).await, 0.0);
}

#[tokio::test]
async fn with_zero_hold_every_503_is_sent_at_once() {
    let (weir, _place) = weir_without_upstream(Duration::ZERO).await;
    let mut client = weir.alice(HttpVersion::Http2);
    for _ in 0..20 {
        assert_unavailable(&mut client, TestRequest::get(LIST)).await;
    }
    assert_eq!(weir.metric(HELD_COUNT_METRIC).await, 0.0);
}
