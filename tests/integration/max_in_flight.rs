//! Max-in-flight: the requests that it rejects, its rejection, and the exempt requests.

use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::weir::{ROOT, Weir};
use crate::support::{HttpVersion, weir};

const LIST: &str = "/api/v1/pods";

async fn with_limits(read_only: u32, mutating: u32) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(read_only, mutating)
        .start()
        .await;
    (weir, upstream)
}

/// A request that holds its slot until the exchange is answered.
async fn hold_slot(
    client: &mut TestClient,
    upstream: &mut FakeUpstream,
    request: TestRequest,
) -> (TestCall, Exchange) {
    let call = client.send(request).await;
    (call, upstream.next_exchange().await)
}

async fn assert_served(client: &mut TestClient, upstream: &mut FakeUpstream, request: TestRequest) {
    let (call, exchange) = hold_slot(client, upstream, request).await;
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

fn assert_rejected(response: &FullResponse, limit: &str) {
    assert_eq!(response.status, 429);
    assert_eq!(response.headers.all("retry-after"), ["1"]);
    assert_eq!(response.headers.all("content-type"), ["application/json"]);
    assert_eq!(response.headers.all("x-content-type-options"), ["nosniff"]);
    assert_eq!(
        response.headers.all("content-length"),
        [response.body.len().to_string()]
    );
    assert!(
        response.body.len() < 2048,
        "client-go reads 2 KiB to keep a connection"
    );
    let kube_status = response.kube_status();
    assert_eq!(kube_status.reason, "TooManyRequests");
    assert_eq!(kube_status.cause, format!("weir/{limit}"));
    assert!(
        kube_status.message.contains(&format!("--{limit}")),
        "{kube_status:?}"
    );
    let status: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(status["apiVersion"], "v1");
}

#[tokio::test]
async fn a_rejection_names_its_limit() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = with_limits(2, 1).await;
        let mut client = weir.alice(near);
        let first = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        let second = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        assert_rejected(&client.get(LIST).await, "max-requests-inflight");
        let third = hold_slot(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await;
        let rejected = client.request(TestRequest::post(LIST, "{}")).await;
        assert_rejected(&rejected, "max-mutating-requests-inflight");
        upstream.assert_no_request();
        for (call, exchange) in [first, second, third] {
            exchange.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn the_limit_applies_to_every_client_and_user() {
    let (weir, mut upstream) = with_limits(1, 1).await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let _held = hold_slot(&mut alice, &mut upstream, TestRequest::get(LIST)).await;
    for mut client in [
        weir.alice(HttpVersion::Http1),
        weir.anonymous(HttpVersion::Http2),
        weir.with_authorization(HttpVersion::Http1, ("authorization", "Bearer who-knows")),
        weir.with_certificate(HttpVersion::Http2, &pki().alice),
    ] {
        assert_rejected(&client.get("/version").await, "max-requests-inflight");
    }
    upstream.assert_no_request();
}

#[tokio::test]
async fn a_rejection_opens_no_upstream_connection() {
    let (weir, mut upstream) = with_limits(1, 1).await;
    let _held = hold_slot(
        &mut weir.anonymous(HttpVersion::Http1),
        &mut upstream,
        TestRequest::get(LIST),
    )
    .await;
    let before = upstream.connection_count();
    let mut certified = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    for _ in 0..50 {
        assert_eq!(certified.get(LIST).await.status, 429);
    }
    assert_eq!(upstream.connection_count(), before);
}

#[tokio::test]
async fn a_client_that_accepts_only_protobuf_is_rejected_in_protobuf() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let (weir, mut upstream) = with_limits(1, 1).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let _held = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
    let response = client
        .request(TestRequest::get(LIST).header("accept", PROTOBUF))
        .await;
    assert_eq!(response.status, 429);
    assert_eq!(response.headers.all("content-type"), [PROTOBUF]);
    assert_eq!(response.headers.all("retry-after"), ["1"]);
    assert!(response.body.starts_with(b"k8s\0") && response.body.len() < 2048);
    let text = String::from_utf8_lossy(&response.body);
    assert!(text.contains("TooManyRequests") && text.contains("weir/max-requests-inflight"));
    for accept in [
        "application/vnd.kubernetes.protobuf,application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
        "*/*",
        "text/html",
    ] {
        let response = client
            .request(TestRequest::get(LIST).header("accept", accept))
            .await;
        assert_rejected(&response, "max-requests-inflight");
    }
}

#[tokio::test]
async fn a_rejected_client_keeps_its_connection() {
    let (weir, mut upstream) = with_limits(1, 1).await;
    let mut other = weir.alice(HttpVersion::Http2);
    let (call, exchange) = hold_slot(&mut other, &mut upstream, TestRequest::get(LIST)).await;
    let mut wire = weir.raw_http1().await;
    for _ in 0..3 {
        wire.send(TestRequest::get(LIST).to_http1()).await;
        let (answered, _) = wire.read_response("GET").await;
        assert_eq!(answered.status, 429);
        assert_eq!(answered.headers.get("connection"), None);
    }
    exchange.respond(200, "{}").await;
    call.response().await;
    wire.send(TestRequest::get(LIST).to_http1()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(wire.read_response("GET").await.0.status, 200);
}

#[tokio::test]
async fn system_masters_are_never_rejected() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = with_limits(1, 1).await;
        let mut alice = weir.alice(near);
        let _read = hold_slot(&mut alice, &mut upstream, TestRequest::get(LIST)).await;
        let _write = hold_slot(&mut alice, &mut upstream, TestRequest::post(LIST, "{}")).await;
        for mut root in [
            weir.with_authorization(near, ROOT),
            weir.with_certificate(near, &pki().admin),
        ] {
            let read = hold_slot(&mut root, &mut upstream, TestRequest::get(LIST)).await;
            let again = hold_slot(&mut root, &mut upstream, TestRequest::get(LIST)).await;
            let write = hold_slot(&mut root, &mut upstream, TestRequest::post(LIST, "{}")).await;
            for (call, exchange) in [read, again, write] {
                exchange.respond(200, "{}").await;
                assert_eq!(call.response().await.status, 200);
            }
        }
        assert_eq!(alice.get(LIST).await.status, 429);
    }
}

#[tokio::test]
async fn claiming_system_masters_by_headers_is_rejected() {
    let (weir, mut upstream) = with_limits(1, 1).await;
    let _held = hold_slot(
        &mut weir.alice(HttpVersion::Http2),
        &mut upstream,
        TestRequest::get(LIST),
    )
    .await;
    let request = TestRequest::get(LIST)
        .header("x-remote-user", "root")
        .header("x-remote-group", "system:masters")
        .header("impersonate-user", "root")
        .header("impersonate-group", "system:masters");
    for mut client in [
        weir.anonymous(HttpVersion::Http2),
        weir.with_certificate(HttpVersion::Http2, &pki().alice),
    ] {
        assert_rejected(
            &client.request(request.clone()).await,
            "max-requests-inflight",
        );
    }
}

#[tokio::test]
async fn long_running_requests_take_no_slot_and_need_none() {
    for near in HttpVersion::BOTH {
        let (weir, mut upstream) = with_limits(1, 1).await;
        let mut client = weir.alice(near);
        let long_running = [
            TestRequest::get("/api/v1/pods?watch=true"),
            TestRequest::get("/api/v1/watch/pods"),
            TestRequest::get("/api/v1/namespaces/a/pods/b/log?follow=true"),
            TestRequest::post("/api/v1/namespaces/a/pods/b/exec?command=sh", ""),
            TestRequest::get("/api/v1/namespaces/a/services/b/proxy/"),
        ];
        let mut open = Vec::new();
        for request in long_running.iter().cloned() {
            open.push(hold_slot(&mut client, &mut upstream, request).await);
        }
        let _read = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
        let _write = hold_slot(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await;
        assert_eq!(client.get(LIST).await.status, 429);
        for request in long_running {
            open.push(hold_slot(&mut client, &mut upstream, request).await);
        }
    }
}

#[tokio::test]
async fn zero_means_no_limit() {
    let (weir, mut upstream) = with_limits(0, 0).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await);
        open.push(hold_slot(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await);
    }
    for (call, exchange) in open {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn the_metrics_agree_with_the_responses() {
    let (weir, mut upstream) = with_limits(2, 1).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let pods = |verb: &str, code: u16| {
        format!(
            "{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",\
             scope=\"cluster\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}}"
        )
    };
    let total = |verb, code| format!("apiserver_request_total{}", pods(verb, code));
    let first = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
    let second = hold_slot(&mut client, &mut upstream, TestRequest::get(LIST)).await;
    for _ in 0..7 {
        assert_eq!(client.get(LIST).await.status, 429);
    }
    let in_flight = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";
    weir.wait_for_metric(in_flight, 2.0).await;
    let dropped = |kind| format!("apiserver_dropped_requests_total{{request_kind=\"{kind}\"}}");
    assert_eq!(weir.metric(&dropped("readOnly")).await, 7.0);
    assert_eq!(weir.metric(&dropped("mutating")).await, 0.0);
    assert_eq!(weir.metric(&total("LIST", 429)).await, 7.0);
    let terminated = pods("LIST", 429).replace("dry_run=\"\",", "");
    let terminated = format!("apiserver_request_terminations_total{terminated}");
    assert_eq!(weir.metric(&terminated).await, 7.0);
    for (call, exchange) in [first, second] {
        exchange.respond(200, "{}").await;
        call.response().await;
    }
    assert_served(&mut client, &mut upstream, TestRequest::post(LIST, "{}")).await;
    weir.wait_for_metric(&total("LIST", 200), 2.0).await;
    // A created object has no name yet. For kube-apiserver it is a resource request all the same.
    let posted = total("POST", 200).replace("\"cluster\"", "\"resource\"");
    weir.wait_for_metric(&posted, 1.0).await;
    assert_eq!(
        weir.metric("weir_upstream_responses_total{code=\"200\"}")
            .await,
        3.0
    );
    weir.wait_for_metric(in_flight, 0.0).await;
}
