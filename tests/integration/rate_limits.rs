//! EventRateLimit and client limits, as a client and the API server see them.

use std::pin::pin;
use std::time::Duration;

use ::weir_kubernetes::document;
use ::weir_kubernetes::document::Diagnostics;
use ::weir_limits::rate;
use ::weir_limits::rate::clients;
use ::weir_limits::rate::events::buckets::LimitedEventGroups;
use ::weir_limits::rate::events::config::{EventLimitConfig, LimitType};
use ::weir_limits::rate::events::enforcer;

use crate::handshakes::{connect_from, raw_http1_over};
use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestClient, TestRequest};
use crate::support::fake_upstream::FakeUpstream;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, Stopwatch, eventually, weir};

pub(crate) const EVENTS: &str = "/api/v1/namespaces/default/events";

/// A rate without any token during a test, however long: less than the configurable minimum.
const NO_TOKENS: u32 = 0;

pub(crate) fn event_limit(limit_type: LimitType, burst: u32) -> EventLimitConfig {
    EventLimitConfig {
        limit_type,
        qps: NO_TOKENS,
        burst,
        cache_size: 16,
        warning_reserve_percent: 0,
    }
}

pub(crate) fn event_limits(
    limits: Vec<EventLimitConfig>,
    retry_after: bool,
) -> rate::RateLimitsConfig {
    rate::RateLimitsConfig {
        events: Some(enforcer::EventRateLimitConfig {
            limits,
            groups: LimitedEventGroups::All,
            retry_after,
            dry_run: false,
        }),
        clients: Vec::new(),
        policies: Vec::new(),
    }
}

/// A rule for alice's requests, with these additional lines.
fn alice_rule(lines: &str) -> rate::RateLimitsConfig {
    alice_rule_for_verbs("'*'", lines)
}

/// A rule for some of alice's requests only.
pub(crate) fn alice_rule_for_verbs(verbs: &str, lines: &str) -> rate::RateLimitsConfig {
    let text = format!(
        "- name: alice\n  rules:\n  - subjects: [{{kind: User, user: {{name: alice}}}}]\n    resourceRules:\n    \
         - {{verbs: [{verbs}], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}\n{lines}"
    );
    let mut errors = Diagnostics::default();
    let nodes = document::parse_all("rule", &text, &mut errors);
    let clients = clients::config::parse_rules(&nodes[0], "clientLimits", &mut errors);
    assert_eq!(errors.to_string(), "");
    rate::RateLimitsConfig {
        events: None,
        clients,
        policies: Vec::new(),
    }
}

async fn start_with_rates(rates: rate::RateLimitsConfig) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).rates(rates).start().await;
    (weir, upstream)
}

fn event_json(source: &str) -> String {
    format!("{{\"metadata\":{{\"name\":\"e\"}} ,\n\"source\":{{\"component\":\"{source}\"}}}}")
}

/// Sends a request that must reach the upstream, which answers with `status`.
async fn assert_passes(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    request: TestRequest,
    status: u16,
) {
    let call = client.send(request).await;
    upstream.next_exchange().await.respond(status, "{}").await;
    assert_eq!(call.response().await.status, status);
}

/// Repeats a request until a bucket with this burst and one token a second rejects it. Checks how
/// many it admitted, and returns the rejection.
async fn spend_tokens(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    request: TestRequest,
    burst: u64,
) -> FullResponse {
    let (began, mut passed) = (Stopwatch::start(), 0);
    loop {
        let mut response = pin!(client.send(request.clone()).await.response());
        let response = tokio::select! {
            response = &mut response => response,
            exchange = upstream.next_exchange() => {
                exchange.respond(200, "{}").await;
                response.await
            }
        };
        if response.status == 429 {
            assert!(passed >= burst, "{passed}");
            return response;
        }
        assert_eq!(response.status, 200);
        passed += 1;
        let elapsed = began.elapsed();
        assert!(
            passed <= burst + elapsed.as_secs(),
            "{passed} in {elapsed:?}"
        );
    }
}

#[tokio::test]
async fn an_event_over_the_limit_is_rejected_with_upstream_s_message() {
    for near in HttpVersion::BOTH {
        let limits = [LimitType::User, LimitType::Namespace].map(|limit_type| EventLimitConfig {
            qps: 1,
            ..event_limit(limit_type, 1)
        });
        let (weir, mut upstream) = start_with_rates(event_limits(limits.into(), true)).await;
        let mut alice = weir.alice(near);
        let response = spend_tokens(
            &mut alice,
            &mut upstream,
            TestRequest::post(EVENTS, "{}"),
            1,
        )
        .await;
        assert_eq!(response.headers.all("retry-after"), ["1"]);
        let kube_status = response.kube_status();
        assert_eq!(kube_status.reason, "TooManyRequests");
        assert_eq!(kube_status.cause, "weir/event-rate-limit");
        assert_eq!(
            kube_status.message,
            "Too many requests: [limit reached on type User for key alice, limit reached on type Namespace for key default]"
        );
        upstream.assert_no_request();
        // Other writes, reads and dry runs are not limited.
        for request in [
            TestRequest::post("/api/v1/namespaces/default/pods", "{}"),
            TestRequest::get(EVENTS),
            TestRequest::post(&format!("{EVENTS}?dryRun=All"), "{}"),
        ] {
            assert_passes(&mut alice, &mut upstream, request, 200).await;
        }
        let top = weir.get_admin("/debug/rate_limits").await;
        assert!(
            top.text().contains("EventRateLimit/User\t1\t0\t\"alice\""),
            "{}",
            top.text()
        );
    }
}

#[tokio::test]
async fn without_retry_after_the_rejection_equals_upstream_s() {
    let (weir, mut upstream) =
        start_with_rates(event_limits(vec![event_limit(LimitType::Server, 1)], false)).await;
    let mut alice = weir.alice(HttpVersion::Http2);
    assert_passes(
        &mut alice,
        &mut upstream,
        TestRequest::post(EVENTS, "{}"),
        201,
    )
    .await;
    let response = alice.request(TestRequest::post(EVENTS, "{}")).await;
    assert_eq!(response.headers.get("retry-after"), None);
    assert_eq!(
        response.text(),
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Too many requests: \
         limit reached on type Server for key \",\"reason\":\"TooManyRequests\",\"code\":429}\n"
    );
}

#[tokio::test]
async fn a_body_that_was_read_is_forwarded_byte_for_byte() {
    for (near, far) in HttpVersion::PAIRS {
        let upstream = &mut FakeUpstream::preferring(far).await;
        let rates = event_limits(vec![event_limit(LimitType::SourceAndObject, 2)], true);
        let weir = weir::builder(upstream.address).rates(rates).start().await;
        let mut alice = weir.alice(near);
        let body = event_json("kubelet");
        let call = alice.send(TestRequest::post(EVENTS, body.clone())).await;
        let mut exchange = upstream.next_exchange().await;
        let length = body.len().to_string();
        assert_eq!(
            exchange.request.headers.all("content-length"),
            [length.as_str()]
        );
        assert_eq!(exchange.read_body().await, body);
        exchange.respond(201, "{}").await;
        assert_eq!(call.response().await.status, 201);
        // In chunks, and of unknown length.
        let mut call = alice.send(TestRequest::post(EVENTS, "").streamed()).await;
        for part in body.as_bytes().chunks(7) {
            call.send(part.to_vec()).await;
        }
        call.end().await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.read_body().await, body);
        exchange.respond(201, "{}").await;
        assert_eq!(call.response().await.status, 201);
        let rejected = alice.request(TestRequest::post(EVENTS, body)).await;
        assert!(
            rejected
                .kube_status()
                .message
                .ends_with("SourceAndObject for key kubelet")
        );
        assert_passes(
            &mut alice,
            upstream,
            TestRequest::post(EVENTS, event_json("other")),
            201,
        )
        .await;
    }
}

#[tokio::test]
async fn reading_an_event_s_body_sends_100_continue() {
    let (weir, mut upstream) = start_with_rates(event_limits(
        vec![event_limit(LimitType::SourceAndObject, 1)],
        true,
    ))
    .await;
    let mut wire = weir.raw_http1().await;
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    );
    wire.send(&head).await;
    assert_eq!(wire.read_response_head().await.status, 100);
    upstream.assert_no_request();
    wire.send("{}").await;
    let mut exchange = upstream.next_exchange().await;
    assert_eq!(exchange.read_body().await, "{}");
    exchange.respond(201, "{}").await;
    assert_eq!(wire.read_response("POST").await.0.status, 201);
    wire.send(&head).await;
    assert_eq!(wire.read_response_head().await.status, 100);
    wire.send("{}").await;
    let (rejected, _) = wire.read_response("POST").await;
    assert_eq!(
        (rejected.status, rejected.headers.get("connection")),
        (429, None)
    );
    upstream.assert_no_request();
}

#[tokio::test]
async fn an_event_over_the_server_s_size_limit_is_rejected_with_and_without_a_length() {
    const MAX_BODY: usize = 3 << 20;
    let rates = || event_limits(vec![event_limit(LimitType::SourceAndObject, 9)], true);
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = start_with_rates(rates()).await;
        let mut alice = weir.alice(near);
        let request = TestRequest::new("POST", EVENTS).streamed();
        let request = match near {
            HttpVersion::Http1 => {
                let mut wire = weir.raw_http1().await;
                wire.send(format!(
                    "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n",
                    MAX_BODY + 1
                ))
                .await;
                let (answered, body) = wire.read_response("POST").await;
                assert_eq!(answered.status, 413);
                assert!(
                    String::from_utf8_lossy(&body)
                        .contains("Request entity too large: limit is 3145728")
                );
                request
            }
            HttpVersion::Http2 => request,
        };
        let mut call = alice.send(request).await;
        for _ in 0..MAX_BODY / (64 << 10) {
            call.send(vec![b' '; 64 << 10]).await;
        }
        call.send("x").await;
        assert_eq!(call.response().await.status, 413);
        upstream.assert_no_request();
        // A body of exactly this size is not too large, and the API server decides.
        let mut whole = vec![b' '; MAX_BODY];
        whole[0] = b'{';
        let call = alice.send(TestRequest::post(EVENTS, whole)).await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.read_body().await.len(), MAX_BODY);
        exchange.respond(400, "{}").await;
        assert_eq!(call.response().await.status, 400);
    }
}

#[tokio::test]
async fn event_bodies_of_one_address_leave_memory_for_others() {
    const BODY_LENGTH: usize = (2 << 20) + 1;
    let begun = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{}",
        BODY_LENGTH + 1,
        " ".repeat(BODY_LENGTH)
    );
    for proxy in [false, true] {
        let mut upstream = FakeUpstream::start().await;
        let mut setup = weir::builder(upstream.address).rates(event_limits(
            vec![event_limit(LimitType::SourceAndObject, 9)],
            true,
        ));
        if proxy {
            setup = setup.trust_test_clients();
        }
        let weir = setup.start().await;
        // Between 2 and 3 MiB each: more than a quarter, and less than a half.
        let mut wires = Vec::new();
        for _ in 0..9 {
            let mut wire = weir.raw_http1().await;
            let _ = wire.writer.send(&begun).await; // rejected: the connection may be closed early
            wires.push(wire);
        }
        if !proxy {
            let responses = wires
                .iter_mut()
                .map(|wire| Box::pin(wire.read_response_head()));
            let (first, _, _) = futures_util::future::select_all(responses).await;
            assert_eq!(first.status, 429);
        }
        // Another client's event is read meanwhile.
        let mut other = raw_http1_over(connect_from(&weir, [127, 0, 0, 2]).await).await;
        let event = event_json("kubelet");
        other
            .send(format!(
                "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{event}",
                event.len()
            ))
            .await;
        upstream.next_exchange().await.respond(201, "{}").await;
        assert_eq!(other.read_response_head().await.status, 201);
        if proxy {
            for wire in &mut wires {
                wire.send("x").await;
                upstream.next_exchange().await.respond(201, "{}").await;
                assert_eq!(wire.read_response_head().await.status, 201);
            }
        }
    }
}

#[tokio::test]
async fn events_are_rejected_before_they_take_a_seat() {
    let upstream = &mut FakeUpstream::start().await;
    let rates = event_limits(vec![event_limit(LimitType::Server, 1)], true);
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .rates(rates)
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let held = alice.send(TestRequest::post(EVENTS, "{}")).await;
    let exchange = upstream.next_exchange().await;
    let rejected = alice.request(TestRequest::post(EVENTS, "{}")).await;
    assert_eq!(rejected.kube_status().cause, "weir/event-rate-limit");
    exchange.respond(201, "{}").await;
    assert_eq!(held.response().await.status, 201);
}

#[tokio::test]
async fn a_client_over_its_rate_is_rejected_and_others_are_not() {
    let (weir, mut upstream) =
        start_with_rates(alice_rule("  requests: {qps: 1, burst: 2}\n")).await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let rejected = spend_tokens(
        &mut alice,
        &mut upstream,
        TestRequest::get("/api/v1/pods"),
        2,
    )
    .await;
    assert_eq!(rejected.headers.all("retry-after"), ["1"]);
    let kube_status = rejected.kube_status();
    assert_eq!(kube_status.cause, "weir/client-limit");
    assert!(
        kube_status.message.contains("\"alice\"") && kube_status.message.contains("(requests)"),
        "{kube_status:?}"
    );
    assert_passes(
        &mut weir.anonymous(HttpVersion::Http2),
        &mut upstream,
        TestRequest::get("/api/v1/pods"),
        200,
    )
    .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_rate_of_zero_blocks_one_client_only() {
    let (weir, mut upstream) = start_with_rates(alice_rule("  requests: {qps: 0}\n")).await;
    for _ in 0..3 {
        let rejected = weir.alice(HttpVersion::Http2).get("/api/v1/pods").await;
        assert_eq!(rejected.headers.all("retry-after"), ["60"]);
        assert_eq!(rejected.kube_status().cause, "weir/client-limit");
    }
    let mut other = weir.anonymous(HttpVersion::Http2);
    assert_passes(
        &mut other,
        &mut upstream,
        TestRequest::get("/api/v1/pods"),
        200,
    )
    .await;
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_dry_run_rule_counts_and_admits() {
    let (weir, mut upstream) = start_with_rates(alice_rule(
        "  requests: {qps: 1, burst: 1}\n  dryRun: true\n",
    ))
    .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let began = Stopwatch::start();
    for _ in 0..3 {
        assert_passes(
            &mut alice,
            &mut upstream,
            TestRequest::get("/api/v1/pods"),
            200,
        )
        .await;
    }
    let rejected =
        "weir_client_limit_requests_total{decision=\"rejected\",limit=\"requests\",rule=\"alice\"}";
    let rejected = weir.metric(rejected).await;
    // Except one token a second.
    let came = began.elapsed().as_secs_f64().floor();
    assert!(rejected <= 2.0 && rejected + came >= 2.0, "{rejected}");
}

#[tokio::test]
async fn a_delayed_request_is_sent_with_its_token_and_rejected_beyond_the_max_delay() {
    let lines = "  requests: {qps: 20, burst: 1}\n  limitResponse: Delay\n  maxDelay: 110ms\n";
    let (weir, mut upstream) = start_with_rates(alice_rule(lines)).await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let began = Stopwatch::start();
    let mut calls = Vec::new();
    for _ in 0..12 {
        calls.push(alice.send(TestRequest::get("/api/v1/pods")).await);
    }
    let serving = async {
        loop {
            upstream.next_exchange().await.respond(200, "{}").await;
        }
    };
    let answered = futures_util::future::join_all(calls.into_iter().map(|call| call.response()));
    let responses = tokio::select! {
        responses = answered => responses,
        () = serving => unreachable!(),
    };
    let elapsed = began.elapsed();
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // One at once, two that were delayed by 50 and 100 ms, and those whose tokens were added while
    // the twelve were sent.
    assert!(
        passed >= 3 && passed <= 3 + usize::try_from(elapsed.as_millis() / 50).unwrap(),
        "{statuses:?}"
    );
    assert!(elapsed >= Duration::from_millis(99), "{elapsed:?}");
    assert_eq!(
        statuses.iter().filter(|status| **status == 429).count(),
        12 - passed
    );
    assert!(
        statuses.starts_with(&[200, 200, 200]),
        "in the order of arrival: {statuses:?}"
    );
}

#[tokio::test]
async fn a_failed_object_backs_off_and_another_does_not() {
    let (weir, mut upstream) =
        start_with_rates(alice_rule("  objectBackoff: {base: 30s, max: 60s}\n")).await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let put = |name: &str| {
        TestRequest::post(
            &format!("/apis/apps/v1/namespaces/a/deployments/{name}"),
            "{}",
        )
        .method("PUT")
    };
    let began = Stopwatch::start();
    assert_passes(&mut alice, &mut upstream, put("broken"), 422).await;
    let rejected = alice.request(put("broken")).await;
    assert!(rejected.kube_status().message.contains("(objectBackoff)"));
    let retry_after: u64 = rejected.headers["retry-after"].parse().unwrap();
    let elapsed = began.elapsed();
    assert!(
        retry_after <= 30 && retry_after + elapsed.as_secs() + 1 >= 30,
        "{retry_after} after {elapsed:?}"
    );
    upstream.assert_no_request();
    assert_passes(&mut alice, &mut upstream, put("sound"), 200).await;
    assert_passes(&mut alice, &mut upstream, put("contended"), 409).await;
    assert_passes(&mut alice, &mut upstream, put("contended"), 409).await;
    let get = TestRequest::get("/apis/apps/v1/namespaces/a/deployments/broken");
    assert_passes(&mut alice, &mut upstream, get, 200).await;
}

#[tokio::test]
async fn concurrency_of_a_resource_and_watches_are_limited() {
    let (weir, mut upstream) = start_with_rates(alice_rule(
        "  concurrency: 1\n  longRunning: {watches: 1}\n",
    ))
    .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let call = alice.send(TestRequest::get("/api/v1/pods")).await;
    let exchange = upstream.next_exchange().await;
    let rejected = alice.get("/api/v1/pods").await;
    assert!(rejected.kube_status().message.contains("(concurrency)"));
    assert_passes(
        &mut alice,
        &mut upstream,
        TestRequest::get("/api/v1/services"),
        200,
    )
    .await;
    let watch = || TestRequest::get("/api/v1/pods?watch=true");
    let mut watching = alice.send(watch()).await;
    let mut streaming = upstream.next_exchange().await;
    streaming.send_head(200, &[]).await;
    assert_eq!(watching.head().await.status, 200);
    let rejected = alice.request(watch()).await;
    assert!(rejected.kube_status().message.contains("(longRunning)"));
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    assert_passes(
        &mut alice,
        &mut upstream,
        TestRequest::get("/api/v1/pods"),
        200,
    )
    .await;
    streaming.end().await;
    watching.body().read_to_end().await.unwrap();
    assert_passes(&mut alice, &mut upstream, watch(), 200).await;
    // Seven requests, each counted once.
    let counted = |decision: &str, limit: &str| {
        let labels = format!("decision=\"{decision}\",limit=\"{limit}\",rule=\"alice\"");
        format!("weir_client_limit_requests_total{{{labels}}}")
    };
    assert_eq!(weir.metric(&counted("passed", "")).await, 5.0);
    for limit in ["concurrency", "longRunning"] {
        assert_eq!(weir.metric(&counted("rejected", limit)).await, 1.0);
    }
}

#[tokio::test]
async fn a_read_event_that_another_limit_rejects_keeps_its_connection() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .rates(event_limits(
            vec![event_limit(LimitType::SourceAndObject, 100)],
            true,
        ))
        .limits(1, 1)
        .start()
        .await;
    let held = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::post(EVENTS, "{}"))
        .await;
    let exchange = upstream.next_exchange().await;
    let mut wire = weir.raw_http1().await;
    let event = event_json("kubelet");
    let length = event.len();
    for (head, body) in [
        (format!("content-length: {length}"), event.clone()),
        (
            "transfer-encoding: chunked".to_owned(),
            format!("{length:x}\r\n{event}\r\n0\r\n\r\n"),
        ),
        (
            "expect: 100-continue\r\ntransfer-encoding: chunked".to_owned(),
            format!("{length:x}\r\n{event}\r\n0\r\n\r\n"),
        ),
    ] {
        wire.send(format!(
            "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\n{head}\r\n\r\n"
        ))
        .await;
        if head.starts_with("expect") {
            assert_eq!(wire.read_response_head().await.status, 100);
        }
        wire.send(body).await;
        let (answered, _) = wire.read_response("POST").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None, "{head}");
    }
    upstream.assert_no_request();
    exchange.respond(201, "{}").await;
    assert_eq!(held.response().await.status, 201);
}

const HELD_COUNT_METRIC: &str = "weir_rejection_hold_seconds_count";

#[tokio::test]
async fn rejections_of_exempt_users_are_never_held() {
    let upstream = FakeUpstream::start().await;
    let rates = event_limits(vec![event_limit(LimitType::Server, 1)], true);
    let weir = weir::builder(upstream.address)
        .rates(rates)
        .rejection_hold(Duration::from_secs(1))
        .start()
        .await;
    let mut admin = weir.with_certificate(HttpVersion::Http2, &pki().admin);
    let mut alice = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    let call = alice.send(TestRequest::post(EVENTS, "{}")).await; // the only token
    for _ in 0..20 {
        assert_eq!(
            admin.request(TestRequest::post(EVENTS, "{}")).await.status,
            429
        );
    }
    assert_eq!(weir.metric(HELD_COUNT_METRIC).await, 0.0);
    drop(call);
    for _ in 0..2 {
        assert_eq!(
            alice.request(TestRequest::post(EVENTS, "{}")).await.status,
            429
        );
    }
    assert_eq!(weir.metric(HELD_COUNT_METRIC).await, 1.0);
}

#[tokio::test]
async fn an_early_retry_after_a_concurrency_rejection_is_held() {
    // A request that is a second late because the machine paused is not delayed.
    eventually("one that comes early", async || {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .rates(alice_rule("  concurrency: 1\n"))
            .rejection_hold(Duration::from_secs(30))
            .start()
            .await;
        let mut alice = weir.alice(HttpVersion::Http2);
        let call = alice.send(TestRequest::get("/api/v1/pods")).await;
        let exchange = upstream.next_exchange().await;
        let began = Stopwatch::start();
        for _ in 0..2 {
            let rejected = alice.get("/api/v1/pods").await;
            assert_eq!(rejected.headers.all("retry-after"), ["1"]);
        }
        assert!(began.elapsed() >= Duration::from_secs(1));
        let held = weir.metric(HELD_COUNT_METRIC).await;
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        (held == 1.0).then_some(())
    })
    .await;
}
