//! EventRateLimit and client limits: what a client and the API server see of them.

use std::pin::pin;
use std::time::Duration;

use ::weir::document;
use ::weir::document::Faults;
use ::weir::limits::clients;
use ::weir::limits::events::Groups;
use ::weir::limits::events::config::Limit;
use ::weir::limits::events::config::LimitType;
use ::weir::limits::events::enforce;
use ::weir::limits::rates;

use crate::doors::from;
use crate::doors::wire_over;
use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::client::Client;
use crate::support::eventually;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const EVENTS: &str = "/api/v1/namespaces/default/events";

/// No token ever comes, however long a test takes: less than can be configured.
const NONE: u32 = 0;

fn limit(limit_type: LimitType, burst: u32) -> Limit {
    Limit {
        limit_type,
        qps: NONE,
        burst,
        cache_size: 16,
        warning_reserve_percent: 0,
    }
}

fn events(limits: Vec<Limit>, retry_after: bool) -> rates::Config {
    rates::Config {
        events: Some(enforce::Config {
            limits,
            groups: Groups::All,
            retry_after,
        }),
        clients: Vec::new(),
    }
}

/// A rule for alice's requests, with these further lines.
fn rule(lines: &str) -> rates::Config {
    rule_for("'*'", lines)
}

/// A rule for such requests of alice's only.
pub(crate) fn rule_for(verbs: &str, lines: &str) -> rates::Config {
    let text = format!(
        "- name: alice\n  rules:\n  - subjects: [{{kind: User, user: {{name: alice}}}}]\n    resourceRules:\n    \
         - {{verbs: [{verbs}], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}\n{lines}"
    );
    let mut faults = Faults::default();
    let nodes = document::parse_all("rule", &text, &mut faults);
    let clients = clients::config::rules(&nodes[0], "clientLimits", &mut faults);
    assert_eq!(faults.to_string(), "");
    rates::Config {
        events: None,
        clients,
    }
}

async fn before(rates: rates::Config) -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).rates(rates).start().await;
    (weir, upstream)
}

fn event(source: &str) -> String {
    format!("{{\"metadata\":{{\"name\":\"e\"}} ,\n\"source\":{{\"component\":\"{source}\"}}}}")
}

/// Sends a request that is to reach the upstream, which answers with `status`.
async fn passes(client: &mut Client, upstream: &mut Upstream, ask: Ask, status: u16) {
    let call = client.send(ask).await;
    upstream.next().await.reply(status, "{}").await;
    assert_eq!(call.answer().await.status, status);
}

/// Asks what a bucket lets through that holds so many tokens and gets one a second, until that refuses.
async fn spend(client: &mut Client, upstream: &mut Upstream, ask: Ask, burst: u64) -> Answer {
    let (began, mut passed) = (Stopwatch::start(), 0);
    loop {
        let mut answer = pin!(client.send(ask.clone()).await.answer());
        let answer = tokio::select! {
            answer = &mut answer => answer,
            exchange = upstream.next() => {
                exchange.reply(200, "{}").await;
                answer.await
            }
        };
        if answer.status == 429 {
            assert!(passed >= burst, "{passed}");
            return answer;
        }
        assert_eq!(answer.status, 200);
        passed += 1;
        let elapsed = began.elapsed();
        assert!(
            passed <= burst + elapsed.as_secs(),
            "{passed} in {elapsed:?}"
        );
    }
}

#[tokio::test]
async fn an_event_too_many_is_refused_in_upstream_s_words() {
    for near in Http::BOTH {
        let limits = [LimitType::User, LimitType::Namespace].map(|limit_type| Limit {
            qps: 1,
            ..limit(limit_type, 1)
        });
        let (weir, mut upstream) = before(events(limits.into(), true)).await;
        let mut alice = weir.alice(near);
        let answer = spend(&mut alice, &mut upstream, Ask::post(EVENTS, "{}"), 1).await;
        assert_eq!(answer.headers.all("retry-after"), ["1"]);
        let told = answer.told();
        assert_eq!(told.reason, "TooManyRequests");
        assert_eq!(told.cause, "weir/event-rate-limit");
        assert_eq!(
            told.message,
            "Too many requests: [limit reached on type User for key alice, limit reached on type Namespace for key default]"
        );
        upstream.assert_nothing_came();
        // Neither other writes nor reads nor dry runs are concerned.
        for ask in [
            Ask::post("/api/v1/namespaces/default/pods", "{}"),
            Ask::get(EVENTS),
            Ask::post(&format!("{EVENTS}?dryRun=All"), "{}"),
        ] {
            passes(&mut alice, &mut upstream, ask, 200).await;
        }
        let top = weir.operator("/debug/rate_limits").await;
        assert!(
            top.text().contains("EventRateLimit/User\t1\t0\t\"alice\""),
            "{}",
            top.text()
        );
    }
}

#[tokio::test]
async fn without_retry_after_the_refusal_is_upstream_s_to_the_byte() {
    let (weir, mut upstream) = before(events(vec![limit(LimitType::Server, 1)], false)).await;
    let mut alice = weir.alice(Http::Two);
    passes(&mut alice, &mut upstream, Ask::post(EVENTS, "{}"), 201).await;
    let answer = alice.ask(Ask::post(EVENTS, "{}")).await;
    assert_eq!(answer.headers.get("retry-after"), None);
    assert_eq!(
        answer.text(),
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Too many requests: \
         limit reached on type Server for key \",\"reason\":\"TooManyRequests\",\"code\":429}\n"
    );
}

#[tokio::test]
async fn a_body_that_is_read_goes_on_byte_for_byte() {
    for (near, far) in Http::PAIRS {
        let upstream = &mut Upstream::preferring(far).await;
        let rates = events(vec![limit(LimitType::SourceAndObject, 2)], true);
        let weir = weir::before(upstream.address).rates(rates).start().await;
        let mut alice = weir.alice(near);
        let body = event("kubelet");
        let call = alice.send(Ask::post(EVENTS, body.clone())).await;
        let mut exchange = upstream.next().await;
        let length = body.len().to_string();
        assert_eq!(
            exchange.asked.headers.all("content-length"),
            [length.as_str()]
        );
        assert_eq!(exchange.body().await, body);
        exchange.reply(201, "{}").await;
        assert_eq!(call.answer().await.status, 201);
        // In parts, and of unknown length.
        let mut call = alice.send(Ask::post(EVENTS, "").streamed()).await;
        for part in body.as_bytes().chunks(7) {
            call.send(part.to_vec()).await;
        }
        call.end().await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.body().await, body);
        exchange.reply(201, "{}").await;
        assert_eq!(call.answer().await.status, 201);
        let refused = alice.ask(Ask::post(EVENTS, body)).await;
        assert!(
            refused
                .told()
                .message
                .ends_with("SourceAndObject for key kubelet")
        );
        passes(&mut alice, upstream, Ask::post(EVENTS, event("other")), 201).await;
    }
}

#[tokio::test]
async fn a_client_is_told_to_continue_when_its_event_is_read() {
    let (weir, mut upstream) =
        before(events(vec![limit(LimitType::SourceAndObject, 1)], true)).await;
    let mut wire = weir.wire().await;
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    );
    wire.send(&head).await;
    assert_eq!(wire.answered().await.status, 100);
    upstream.assert_nothing_came();
    wire.send("{}").await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body().await, "{}");
    exchange.reply(201, "{}").await;
    assert_eq!(wire.answer("POST").await.0.status, 201);
    wire.send(&head).await;
    assert_eq!(wire.answered().await.status, 100);
    wire.send("{}").await;
    let (refused, _) = wire.answer("POST").await;
    assert_eq!(
        (refused.status, refused.headers.get("connection")),
        (429, None)
    );
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn what_is_larger_than_the_server_takes_is_refused_with_and_without_a_length() {
    const LARGEST: usize = 3 << 20;
    let rates = || events(vec![limit(LimitType::SourceAndObject, 9)], true);
    for near in Http::BOTH {
        let (weir, mut upstream) = before(rates()).await;
        let mut alice = weir.alice(near);
        let told = Ask::new("POST", EVENTS).streamed();
        let told = match near {
            Http::One => {
                let mut wire = weir.wire().await;
                wire.send(format!(
                    "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n",
                    LARGEST + 1
                ))
                .await;
                let (answered, body) = wire.answer("POST").await;
                assert_eq!(answered.status, 413);
                assert!(
                    String::from_utf8_lossy(&body)
                        .contains("Request entity too large: limit is 3145728")
                );
                told
            }
            Http::Two => told,
        };
        let mut call = alice.send(told).await;
        for _ in 0..LARGEST / (64 << 10) {
            call.send(vec![b' '; 64 << 10]).await;
        }
        call.send("x").await;
        assert_eq!(call.answer().await.status, 413);
        upstream.assert_nothing_came();
        // One of just that size is none, and the API server's to judge.
        let mut whole = vec![b' '; LARGEST];
        whole[0] = b'{';
        let call = alice.send(Ask::post(EVENTS, whole)).await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.body().await.len(), LARGEST);
        exchange.reply(400, "{}").await;
        assert_eq!(call.answer().await.status, 400);
    }
}

#[tokio::test]
async fn who_sends_many_events_at_a_time_leaves_room_for_others() {
    const LONG: usize = (2 << 20) + 1;
    let begun = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{}",
        LONG + 1,
        " ".repeat(LONG)
    );
    for proxy in [false, true] {
        let mut upstream = Upstream::start().await;
        let mut setup = weir::before(upstream.address)
            .rates(events(vec![limit(LimitType::SourceAndObject, 9)], true));
        if proxy {
            setup = setup.trusting_its_clients();
        }
        let weir = setup.start().await;
        // Between 2 and 3 MiB each: more than a quarter, and less than a half.
        let mut wires = Vec::new();
        for _ in 0..9 {
            let mut wire = weir.wire().await;
            let _ = wire.writer.send(&begun).await; // refused, it may be cut short
            wires.push(wire);
        }
        if !proxy {
            let answers = wires.iter_mut().map(|wire| Box::pin(wire.answered()));
            let (first, _, _) = futures_util::future::select_all(answers).await;
            assert_eq!(first.status, 429);
        }
        // Another's event is read meanwhile.
        let mut other = wire_over(from(&weir, [127, 0, 0, 2]).await).await;
        let event = event("kubelet");
        other
            .send(format!(
                "POST {EVENTS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{event}",
                event.len()
            ))
            .await;
        upstream.next().await.reply(201, "{}").await;
        assert_eq!(other.answered().await.status, 201);
        if proxy {
            for wire in &mut wires {
                wire.send("x").await;
                upstream.next().await.reply(201, "{}").await;
                assert_eq!(wire.answered().await.status, 201);
            }
        }
    }
}

#[tokio::test]
async fn events_are_refused_before_they_take_a_seat() {
    let upstream = &mut Upstream::start().await;
    let rates = events(vec![limit(LimitType::Server, 1)], true);
    let weir = weir::before(upstream.address)
        .limits(1, 1)
        .rates(rates)
        .start()
        .await;
    let mut alice = weir.alice(Http::Two);
    let held = alice.send(Ask::post(EVENTS, "{}")).await;
    let exchange = upstream.next().await;
    let refused = alice.ask(Ask::post(EVENTS, "{}")).await;
    assert_eq!(refused.told().cause, "weir/event-rate-limit");
    exchange.reply(201, "{}").await;
    assert_eq!(held.answer().await.status, 201);
}

#[tokio::test]
async fn a_client_that_asks_too_much_is_refused_and_others_are_not() {
    let (weir, mut upstream) = before(rule("  requests: {qps: 1, burst: 2}\n")).await;
    let mut alice = weir.alice(Http::Two);
    let refused = spend(&mut alice, &mut upstream, Ask::get("/api/v1/pods"), 2).await;
    assert_eq!(refused.headers.all("retry-after"), ["1"]);
    let told = refused.told();
    assert_eq!(told.cause, "weir/client-limit");
    assert!(
        told.message.contains("\"alice\"") && told.message.contains("(requests)"),
        "{told:?}"
    );
    passes(
        &mut weir.anonymous(Http::Two),
        &mut upstream,
        Ask::get("/api/v1/pods"),
        200,
    )
    .await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_rate_of_zero_blocks_a_client_and_nobody_else() {
    let (weir, mut upstream) = before(rule("  requests: {qps: 0}\n")).await;
    for _ in 0..3 {
        let refused = weir.alice(Http::Two).get("/api/v1/pods").await;
        assert_eq!(refused.headers.all("retry-after"), ["60"]);
        assert_eq!(refused.told().cause, "weir/client-limit");
    }
    let mut other = weir.anonymous(Http::Two);
    passes(&mut other, &mut upstream, Ask::get("/api/v1/pods"), 200).await;
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_dry_rule_counts_and_lets_through() {
    let (weir, mut upstream) =
        before(rule("  requests: {qps: 1, burst: 1}\n  dryRun: true\n")).await;
    let mut alice = weir.alice(Http::Two);
    let began = Stopwatch::start();
    for _ in 0..3 {
        passes(&mut alice, &mut upstream, Ask::get("/api/v1/pods"), 200).await;
    }
    let rejected =
        "weir_client_limit_requests_total{decision=\"rejected\",limit=\"requests\",rule=\"alice\"}";
    let rejected = weir.metric(rejected).await;
    // But for one token a second.
    let came = began.elapsed().as_secs_f64().floor();
    assert!(rejected <= 2.0 && rejected + came >= 2.0, "{rejected}");
}

#[tokio::test]
async fn a_delayed_request_comes_when_its_token_does_and_one_too_late_is_refused() {
    let lines = "  requests: {qps: 20, burst: 1}\n  limitResponse: Delay\n  maxDelay: 110ms\n";
    let (weir, mut upstream) = before(rule(lines)).await;
    let mut alice = weir.alice(Http::Two);
    let began = Stopwatch::start();
    let mut calls = Vec::new();
    for _ in 0..12 {
        calls.push(alice.send(Ask::get("/api/v1/pods")).await);
    }
    let serving = async {
        loop {
            upstream.next().await.reply(200, "{}").await;
        }
    };
    let answered = futures_util::future::join_all(calls.into_iter().map(|call| call.answer()));
    let answers = tokio::select! {
        answers = answered => answers,
        () = serving => unreachable!(),
    };
    let elapsed = began.elapsed();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    // One at once and two that waited 50 and 100 ms, and those whose tokens came while the twelve were sent.
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
async fn an_object_that_failed_waits_and_another_does_not() {
    let (weir, mut upstream) = before(rule("  objectBackoff: {base: 30s, max: 60s}\n")).await;
    let mut alice = weir.alice(Http::Two);
    let put = |name: &str| {
        Ask::post(
            &format!("/apis/apps/v1/namespaces/a/deployments/{name}"),
            "{}",
        )
        .method("PUT")
    };
    let began = Stopwatch::start();
    passes(&mut alice, &mut upstream, put("broken"), 422).await;
    let refused = alice.ask(put("broken")).await;
    assert!(refused.told().message.contains("(objectBackoff)"));
    let told: u64 = refused.headers["retry-after"].parse().unwrap();
    let elapsed = began.elapsed();
    assert!(
        told <= 30 && told + elapsed.as_secs() + 1 >= 30,
        "{told} after {elapsed:?}"
    );
    upstream.assert_nothing_came();
    passes(&mut alice, &mut upstream, put("sound"), 200).await;
    passes(&mut alice, &mut upstream, put("contended"), 409).await;
    passes(&mut alice, &mut upstream, put("contended"), 409).await;
    let get = Ask::get("/apis/apps/v1/namespaces/a/deployments/broken");
    passes(&mut alice, &mut upstream, get, 200).await;
}

#[tokio::test]
async fn so_many_at_a_time_of_a_resource_and_so_many_watches() {
    let (weir, mut upstream) =
        before(rule("  concurrency: 1\n  longRunning: {watches: 1}\n")).await;
    let mut alice = weir.alice(Http::Two);
    let call = alice.send(Ask::get("/api/v1/pods")).await;
    let exchange = upstream.next().await;
    let refused = alice.get("/api/v1/pods").await;
    assert!(refused.told().message.contains("(concurrency)"));
    passes(&mut alice, &mut upstream, Ask::get("/api/v1/services"), 200).await;
    let watch = || Ask::get("/api/v1/pods?watch=true");
    let mut watching = alice.send(watch()).await;
    let mut streaming = upstream.next().await;
    streaming.begin(200, &[]).await;
    assert_eq!(watching.head().await.status, 200);
    let refused = alice.ask(watch()).await;
    assert!(refused.told().message.contains("(longRunning)"));
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
    passes(&mut alice, &mut upstream, Ask::get("/api/v1/pods"), 200).await;
    streaming.end().await;
    watching.body().rest().await.unwrap();
    passes(&mut alice, &mut upstream, watch(), 200).await;
    // Seven asked; each is counted once.
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
async fn an_event_that_was_read_and_is_refused_by_another_limit_does_not_cost_the_connection() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .rates(events(vec![limit(LimitType::SourceAndObject, 100)], true))
        .limits(1, 1)
        .start()
        .await;
    let held = weir.alice(Http::Two).send(Ask::post(EVENTS, "{}")).await;
    let exchange = upstream.next().await;
    let mut wire = weir.wire().await;
    let event = event("kubelet");
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
            assert_eq!(wire.answered().await.status, 100);
        }
        wire.send(body).await;
        let (answered, _) = wire.answer("POST").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None, "{head}");
    }
    upstream.assert_nothing_came();
    exchange.reply(201, "{}").await;
    assert_eq!(held.answer().await.status, 201);
}

const EVER_HELD: &str = "weir_rejection_hold_seconds_count";

#[tokio::test]
async fn what_is_exempt_is_never_held_whatever_refuses_it() {
    let upstream = Upstream::start().await;
    let rates = events(vec![limit(LimitType::Server, 1)], true);
    let weir = weir::before(upstream.address)
        .rates(rates)
        .rejection_hold(Duration::from_secs(1))
        .start()
        .await;
    let mut admin = weir.certified(Http::Two, &pki().admin);
    let mut alice = weir.certified(Http::Two, &pki().alice);
    let call = alice.send(Ask::post(EVENTS, "{}")).await; // the only token
    for _ in 0..20 {
        assert_eq!(admin.ask(Ask::post(EVENTS, "{}")).await.status, 429);
    }
    assert_eq!(weir.metric(EVER_HELD).await, 0.0);
    drop(call);
    for _ in 0..2 {
        assert_eq!(alice.ask(Ask::post(EVENTS, "{}")).await.status, 429);
    }
    assert_eq!(weir.metric(EVER_HELD).await, 1.0);
}

#[tokio::test]
async fn who_does_not_wait_for_a_place_as_told_hears_no_when_the_time_is_over() {
    // Not held is who comes a second later because the machine stood still.
    eventually("one that comes early", async || {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address)
            .rates(rule("  concurrency: 1\n"))
            .rejection_hold(Duration::from_secs(30))
            .start()
            .await;
        let mut alice = weir.alice(Http::Two);
        let call = alice.send(Ask::get("/api/v1/pods")).await;
        let exchange = upstream.next().await;
        let began = Stopwatch::start();
        for _ in 0..2 {
            let refused = alice.get("/api/v1/pods").await;
            assert_eq!(refused.headers.all("retry-after"), ["1"]);
        }
        assert!(began.elapsed() >= Duration::from_secs(1));
        let held = weir.metric(EVER_HELD).await;
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
        (held == 1.0).then_some(())
    })
    .await;
}
