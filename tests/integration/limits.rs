//! Max-in-flight: who is refused, how a refusal looks, who is not.

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::client::Client;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::ROOT;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";

async fn limited(read_only: u32, mutating: u32) -> (Weir, Upstream) {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .limits(read_only, mutating)
        .start()
        .await;
    (weir, upstream)
}

/// A request that holds its slot until the exchange is answered.
async fn holds(client: &mut Client, upstream: &mut Upstream, ask: Ask) -> (Call, Exchange) {
    let call = client.send(ask).await;
    (call, upstream.next().await)
}

async fn served(client: &mut Client, upstream: &mut Upstream, ask: Ask) {
    let (call, exchange) = holds(client, upstream, ask).await;
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

fn assert_refused(answer: &Answer, limit: &str) {
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers.all("retry-after"), ["1"]);
    assert_eq!(answer.headers.all("content-type"), ["application/json"]);
    assert_eq!(answer.headers.all("x-content-type-options"), ["nosniff"]);
    assert_eq!(
        answer.headers.all("content-length"),
        [answer.body.len().to_string()]
    );
    assert!(
        answer.body.len() < 2048,
        "client-go reads 2 KiB to keep a connection"
    );
    let told = answer.told();
    assert_eq!(told.reason, "TooManyRequests");
    assert_eq!(told.cause, format!("weir/{limit}"));
    assert!(told.message.contains(&format!("--{limit}")), "{told:?}");
    let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(status["apiVersion"], "v1");
}

#[tokio::test]
async fn one_request_too_many_is_told_which_limit_it_met() {
    for near in Http::BOTH {
        let (weir, mut upstream) = limited(2, 1).await;
        let mut client = weir.alice(near);
        let first = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
        let second = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
        assert_refused(&client.get(LIST).await, "max-requests-inflight");
        let third = holds(&mut client, &mut upstream, Ask::post(LIST, "{}")).await;
        let refused = client.ask(Ask::post(LIST, "{}")).await;
        assert_refused(&refused, "max-mutating-requests-inflight");
        upstream.assert_nothing_came();
        for (call, exchange) in [first, second, third] {
            exchange.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200);
        }
    }
}

#[tokio::test]
async fn the_limit_holds_for_whoever_asks_and_wherever_from() {
    let (weir, mut upstream) = limited(1, 1).await;
    let mut alice = weir.alice(Http::Two);
    let _held = holds(&mut alice, &mut upstream, Ask::get(LIST)).await;
    for mut client in [
        weir.alice(Http::One),
        weir.anonymous(Http::Two),
        weir.bearing(Http::One, ("authorization", "Bearer who-knows")),
        weir.certified(Http::Two, &pki().alice),
    ] {
        assert_refused(&client.get("/version").await, "max-requests-inflight");
    }
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn a_refusal_costs_no_connection_to_the_upstream() {
    let (weir, mut upstream) = limited(1, 1).await;
    let _held = holds(
        &mut weir.anonymous(Http::One),
        &mut upstream,
        Ask::get(LIST),
    )
    .await;
    let before = upstream.connections();
    let mut certified = weir.certified(Http::Two, &pki().alice);
    for _ in 0..50 {
        assert_eq!(certified.get(LIST).await.status, 429);
    }
    assert_eq!(upstream.connections(), before);
}

#[tokio::test]
async fn who_accepts_protobuf_alone_is_refused_in_protobuf() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let (weir, mut upstream) = limited(1, 1).await;
    let mut client = weir.alice(Http::Two);
    let _held = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
    let answer = client.ask(Ask::get(LIST).header("accept", PROTOBUF)).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers.all("content-type"), [PROTOBUF]);
    assert_eq!(answer.headers.all("retry-after"), ["1"]);
    assert!(answer.body.starts_with(b"k8s\0") && answer.body.len() < 2048);
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains("TooManyRequests") && text.contains("weir/max-requests-inflight"));
    for accept in [
        "application/vnd.kubernetes.protobuf,application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "*/*",
        "text/html",
    ] {
        let answer = client.ask(Ask::get(LIST).header("accept", accept)).await;
        assert_refused(&answer, "max-requests-inflight");
    }
}

#[tokio::test]
async fn a_refused_client_keeps_its_connection() {
    let (weir, mut upstream) = limited(1, 1).await;
    let mut other = weir.alice(Http::Two);
    let (call, exchange) = holds(&mut other, &mut upstream, Ask::get(LIST)).await;
    let mut wire = weir.wire().await;
    for _ in 0..3 {
        wire.send(Ask::get(LIST).to_http1()).await;
        let (answered, _) = wire.answer("GET").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None);
    }
    exchange.reply(200, "{}").await;
    call.answer().await;
    wire.send(Ask::get(LIST).to_http1()).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(wire.answer("GET").await.0.status, 200);
}

#[tokio::test]
async fn masters_are_never_refused() {
    for near in Http::BOTH {
        let (weir, mut upstream) = limited(1, 1).await;
        let mut alice = weir.alice(near);
        let _read = holds(&mut alice, &mut upstream, Ask::get(LIST)).await;
        let _write = holds(&mut alice, &mut upstream, Ask::post(LIST, "{}")).await;
        for mut root in [weir.bearing(near, ROOT), weir.certified(near, &pki().admin)] {
            let read = holds(&mut root, &mut upstream, Ask::get(LIST)).await;
            let again = holds(&mut root, &mut upstream, Ask::get(LIST)).await;
            let write = holds(&mut root, &mut upstream, Ask::post(LIST, "{}")).await;
            for (call, exchange) in [read, again, write] {
                exchange.reply(200, "{}").await;
                assert_eq!(call.answer().await.status, 200);
            }
        }
        assert_eq!(alice.get(LIST).await.status, 429);
    }
}

#[tokio::test]
async fn whoever_claims_to_be_a_master_is_refused() {
    let (weir, mut upstream) = limited(1, 1).await;
    let _held = holds(&mut weir.alice(Http::Two), &mut upstream, Ask::get(LIST)).await;
    let ask = Ask::get(LIST)
        .header("x-remote-user", "root")
        .header("x-remote-group", "system:masters")
        .header("impersonate-user", "root")
        .header("impersonate-group", "system:masters");
    for mut client in [
        weir.anonymous(Http::Two),
        weir.certified(Http::Two, &pki().alice),
    ] {
        assert_refused(&client.ask(ask.clone()).await, "max-requests-inflight");
    }
}

#[tokio::test]
async fn long_running_requests_take_no_slot_and_need_none() {
    for near in Http::BOTH {
        let (weir, mut upstream) = limited(1, 1).await;
        let mut client = weir.alice(near);
        let long_running = [
            Ask::get("/api/v1/pods?watch=true"),
            Ask::get("/api/v1/watch/pods"),
            Ask::get("/api/v1/namespaces/a/pods/b/log?follow=true"),
            Ask::post("/api/v1/namespaces/a/pods/b/exec?command=sh", ""),
            Ask::get("/api/v1/namespaces/a/services/b/proxy/"),
        ];
        let mut open = Vec::new();
        for ask in long_running.iter().cloned() {
            open.push(holds(&mut client, &mut upstream, ask).await);
        }
        let _read = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
        let _write = holds(&mut client, &mut upstream, Ask::post(LIST, "{}")).await;
        assert_eq!(client.get(LIST).await.status, 429);
        for ask in long_running {
            open.push(holds(&mut client, &mut upstream, ask).await);
        }
    }
}

#[tokio::test]
async fn zero_is_no_limit() {
    let (weir, mut upstream) = limited(0, 0).await;
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(holds(&mut client, &mut upstream, Ask::get(LIST)).await);
        open.push(holds(&mut client, &mut upstream, Ask::post(LIST, "{}")).await);
    }
    for (call, exchange) in open {
        exchange.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn the_metrics_agree_with_what_clients_were_told() {
    let (weir, mut upstream) = limited(2, 1).await;
    let mut client = weir.alice(Http::Two);
    let pods = |verb: &str, code: u16| {
        format!(
            "{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",\
             scope=\"cluster\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}}"
        )
    };
    let total = |verb, code| format!("apiserver_request_total{}", pods(verb, code));
    let first = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
    let second = holds(&mut client, &mut upstream, Ask::get(LIST)).await;
    for _ in 0..7 {
        assert_eq!(client.get(LIST).await.status, 429);
    }
    let in_flight = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";
    weir.metric_becomes(in_flight, 2.0).await;
    let dropped = |kind| format!("apiserver_dropped_requests_total{{request_kind=\"{kind}\"}}");
    assert_eq!(weir.metric(&dropped("readOnly")).await, 7.0);
    assert_eq!(weir.metric(&dropped("mutating")).await, 0.0);
    assert_eq!(weir.metric(&total("LIST", 429)).await, 7.0);
    let terminated = pods("LIST", 429).replace("dry_run=\"\",", "");
    let terminated = format!("apiserver_request_terminations_total{terminated}");
    assert_eq!(weir.metric(&terminated).await, 7.0);
    for (call, exchange) in [first, second] {
        exchange.reply(200, "{}").await;
        call.answer().await;
    }
    served(&mut client, &mut upstream, Ask::post(LIST, "{}")).await;
    weir.metric_becomes(&total("LIST", 200), 2.0).await;
    // What is created has no name yet, and is a resource for kube-apiserver all the same.
    let posted = total("POST", 200).replace("\"cluster\"", "\"resource\"");
    weir.metric_becomes(&posted, 1.0).await;
    assert_eq!(
        weir.metric("weir_upstream_responses_total{code=\"200\"}")
            .await,
        3.0
    );
    weir.metric_becomes(in_flight, 0.0).await;
}
