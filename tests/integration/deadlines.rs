//! No request except a long-running one exceeds its deadline, whichever side is slow, and its seat
//! is released.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, RawUpstream};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually, for_each_protocol_pair, weir};

const LIST: &str = "/api/v1/pods";

/// Short, but long enough for a request to be in flight when it ends, even if the machine pauses.
const SHORT_TIMEOUT: Duration = Duration::from_secs(4);

async fn with_short_timeout(far: HttpVersion) -> (Weir, FakeUpstream) {
    let upstream = FakeUpstream::preferring(far).await;
    let weir = weir::builder(upstream.address)
        .request_timeout(SHORT_TIMEOUT)
        .limits(1, 1)
        .without_body_buffer()
        .start()
        .await;
    (weir, upstream)
}

/// Retries until a request is admitted.
async fn wait_for_free_slot(weir: &Weir, upstream: &mut FakeUpstream) {
    let mut client = weir.alice(HttpVersion::Http2);
    eventually("a free slot", async || {
        let mut call = client.send(TestRequest::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next_exchange() => {
                exchange.respond(200, "{}").await;
                // A client that leaves before the end would hold the slot for longer.
                assert_eq!(call.response().await.status, 200);
                Some(())
            }
            head = call.try_head() => {
                assert_eq!(head.unwrap().status, 429);
                None
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_response_that_is_late_is_a_504_and_the_upstream_request_is_cancelled() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        let reason = exchange.wait_for_cancel().await;
        assert!(
            far == HttpVersion::Http1 || reason == Some(Reason::CANCEL),
            "{reason:?}"
        );
        let response = call.response().await;
        let kube_status = response.kube_status();
        assert_eq!((response.status, kube_status.reason.as_str()), (504, "Timeout"));
        assert_eq!(kube_status.cause, "weir/request-timeout");
        assert!(kube_status.message.contains(" 4s "), "{kube_status:?}");
        assert_eq!(response.headers.get("retry-after"), None);
        wait_for_free_slot(&weir, &mut upstream).await;
        let terminated = "apiserver_request_terminations_total{code=\"504\",component=\"apiserver\",\
             group=\"\",resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"}";
        weir.wait_for_metric(terminated, 1.0).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_can_shorten_its_deadline() {
    for_each_protocol_pair(async |near, far| {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address).start().await;
        let call = weir
            .alice(near)
            .send(TestRequest::get("/api/v1/pods?timeout=3.9s"))
            .await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.target, "/api/v1/pods?timeout=3.9s");
        exchange.wait_for_cancel().await;
        let response = call.response().await;
        let kube_status = response.kube_status();
        assert_eq!(response.status, 504);
        assert!(kube_status.message.contains("3.9s"), "{kube_status:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_cannot_extend_its_deadline() {
    let (weir, mut upstream) = with_short_timeout(HttpVersion::Http2).await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get("/api/v1/pods?timeout=1h"))
        .await;
    upstream.next_exchange().await.wait_for_cancel().await;
    assert_eq!(call.response().await.status, 504);
}

#[tokio::test]
async fn a_response_body_that_exceeds_its_deadline_is_aborted() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let mut call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        exchange.send("half").await;
        assert_eq!(call.head().await.status, 200);
        assert_eq!(call.body().next_text().await, "half");
        exchange.wait_for_cancel().await;
        let rest = call.body().next_chunk().await;
        assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        wait_for_free_slot(&weir, &mut upstream).await;
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_exceeds_its_deadline_is_aborted() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let mut call = weir
            .alice(near)
            .send(TestRequest::new("POST", LIST).streamed())
            .await;
        call.send("half").await;
        let mut exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request_body.next_text().await, "half");
        assert!(
            exchange.request_body.read_to_end().await.is_err(),
            "never a clean end"
        );
        assert_eq!(call.head().await.status, 504, "{near:?} {far:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_its_slot_beyond_its_deadline() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let mut call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        call.head().await;
        // More than weir buffers for a client that does not read: the response ends only by a
        // reset.
        let flood = async {
            while exchange
                .try_send(Bytes::from_static(&[7; 64 << 10]))
                .await
                .is_ok()
            {}
        };
        crate::support::within("the flood to be broken off", flood).await;
        wait_for_free_slot(&weir, &mut upstream).await;
        drop(call);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_handshake_that_never_ends_is_a_504_in_time() {
    for_each_protocol_pair(async |near, far| {
        let upstream = RawUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .request_timeout(SHORT_TIMEOUT)
            .start()
            .await;
        // One waits for a shared connection, one for a connection of its own.
        let mut client = match far {
            HttpVersion::Http1 => weir.anonymous(near),
            HttpVersion::Http2 => weir.alice(near),
        };
        let (response, _silent) = tokio::join!(client.get(LIST), upstream.accept_tcp());
        assert_eq!(response.status, 504);
    })
    .await;
}

#[tokio::test]
async fn long_running_requests_have_no_deadline() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let mut client = weir.alice(near);
        let mut watch = client
            .send(TestRequest::get("/api/v1/pods?watch=1&timeout=1s"))
            .await;
        let mut watched = upstream.next_exchange().await;
        let mut logs = client
            .send(TestRequest::get("/api/v1/namespaces/a/pods/b/log"))
            .await;
        let mut logged = upstream.next_exchange().await;
        watched.send_head(200, &[]).await;
        logged.send_head(200, &[]).await;
        // Another request exceeds its deadline meanwhile.
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.wait_for_cancel().await;
        assert_eq!(call.response().await.status, 504);
        for (call, mut exchange) in [(&mut watch, watched), (&mut logs, logged)] {
            exchange.send("late").await;
            call.head().await;
            assert_eq!(call.body().next_text().await, "late");
            exchange.end().await;
            assert!(call.body().next_chunk().await.is_none());
        }
    })
    .await;
}

/// Long-running requests whose head the API server sends when it has something to say.
const LATE_HEADS: [&str; 5] = [
    "/api/v1/pods?watch=1",
    "/api/v1/namespaces/a/pods/b/log?follow=true",
    "/api/v1/namespaces/a/pods/b/proxy/",
    "/api/v1/namespaces/a/services/b/proxy/slow",
    "/debug/pprof/profile?seconds=65",
];

#[tokio::test]
async fn the_response_head_of_a_long_running_request_without_a_proven_user_has_a_deadline() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let made_up = ("authorization", "Bearer made-up");
        let clients = [weir.anonymous(near), weir.with_authorization(near, made_up)];
        for (mut client, target) in clients.into_iter().zip(LATE_HEADS) {
            let call = client.send(TestRequest::get(target)).await;
            upstream.next_exchange().await.wait_for_cancel().await;
            let response = call.response().await;
            assert_eq!(response.status, 504, "{target} {near:?} {far:?}");
            assert_eq!(response.kube_status().cause, "weir/request-timeout");
        }
    })
    .await;
}

#[tokio::test]
async fn a_long_running_request_of_a_proven_user_waits_for_its_head() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let clients = [weir.alice(near), weir.with_certificate(near, &pki().admin)];
        let mut waiting = Vec::new();
        for mut client in clients {
            for target in LATE_HEADS {
                let call = client.send(TestRequest::get(target)).await;
                waiting.push((target, call, upstream.next_exchange().await));
                if near == HttpVersion::Http1 {
                    break; // a connection has one request at a time
                }
            }
        }
        wait_for_deadline(&weir, &mut upstream).await;
        for (target, mut call, mut exchange) in waiting {
            exchange.send_head(200, &[]).await;
            exchange.send("late").await;
            let status = call.head().await.status;
            assert_eq!(status, 200, "{target} {near:?} {far:?}");
            assert_eq!(call.body().next_text().await, "late");
        }
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_of_a_proven_user_waits_for_its_101() {
    let (weir, mut upstream) = with_short_timeout(HttpVersion::Http2).await;
    let mut near = weir.raw_http1().await;
    let exec = TestRequest::new("POST", "/api/v1/namespaces/a/pods/b/exec?command=sh")
        .header(weir::ALICE.0, weir::ALICE.1)
        .header("connection", "upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(exec.to_http1()).await;
    let mut far = upstream.next_exchange().await.into_raw_http1();
    wait_for_deadline(&weir, &mut upstream).await;
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
}

#[tokio::test]
async fn a_watch_that_waits_for_its_head_keeps_its_seat_until_the_request_timeout() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .request_timeout(SHORT_TIMEOUT)
        .fairness()
        .start()
        .await;
    let watch = TestRequest::get("/api/v1/pods?watch=1");
    let mut call = weir.alice(HttpVersion::Http2).send(watch).await;
    let mut exchange = upstream.next_exchange().await;
    let seats = "apiserver_flowcontrol_current_executing_seats{flow_schema=\"global-default\",priority_level=\"global-default\"}";
    assert!(weir.metric(seats).await > 0.0);
    weir.wait_for_metric(seats, 0.0).await;
    exchange.send_head(200, &[]).await;
    assert_eq!(call.head().await.status, 200);
}

/// Waits until a request that is sent now exceeds its deadline: those before it would have, too.
async fn wait_for_deadline(weir: &Weir, upstream: &mut FakeUpstream) {
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.wait_for_cancel().await;
    assert_eq!(call.response().await.status, 504);
}

/// More than is buffered on the way without reading ahead.
const LARGE_LIST: usize = 24 << 20;

#[tokio::test]
async fn a_list_outlasts_its_deadline_and_frees_its_seat_once_the_api_server_has_sent_it() {
    for_each_protocol_pair(async |near, far| {
        let (weir, mut upstream) = with_short_timeout(far).await;
        let mut call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        call.head().await;
        // Its client reads nothing.
        for _ in 0..LARGE_LIST >> 16 {
            exchange.send(Bytes::from_static(&[7; 64 << 10])).await;
        }
        exchange.end().await;
        wait_for_free_slot(&weir, &mut upstream).await;
        wait_for_deadline(&weir, &mut upstream).await;
        let mut read = 0;
        while let Some(piece) = call.body().next_chunk().await {
            read += piece.unwrap().len();
        }
        assert_eq!(read, LARGE_LIST, "{near:?} {far:?}");
        weir.wait_for_metric("weir_memory_read_ahead_bytes", 0.0)
            .await;
    })
    .await;
}

#[tokio::test]
async fn an_invalid_timeout_is_rejected_as_by_kube_apiserver() {
    let (weir, mut upstream) = with_short_timeout(HttpVersion::Http2).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let response = client.get("/api/v1/pods?timeout=soon").await;
    assert_eq!(response.status, 400);
    assert_eq!(
        response.kube_status().message,
        "invalid timeout specified in the request URL - time: invalid duration \"soon\""
    );
    // A long-running request has no deadline: it is the first that the upstream sees.
    let call = client
        .send(TestRequest::get("/api/v1/pods?watch=1&timeout=soon"))
        .await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.target, "/api/v1/pods?watch=1&timeout=soon");
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}
