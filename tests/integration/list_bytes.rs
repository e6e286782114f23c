//! `--max-list-bytes-inflight`: lists wait before they take a seat, as long as the API server works on
//! as many bytes as it may.

use std::time::Duration;

use ::weir::limits::list_bytes::{ListBudget, ListBytesConfig};

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::weir::{Weir, WeirBuilder};
use crate::support::{HttpVersion, for_each_protocol_pair, weir};

const PODS: &str = "/api/v1/pods";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const IN_FLIGHT: &str = "weir_list_bytes_inflight";
const WAITING: &str = "weir_list_bytes_waiting";

/// Lists of 800 bytes, of which 1000 may be in flight.
const LENGTH: usize = 800;

fn limited(builder: WeirBuilder) -> WeirBuilder {
    builder.with(|config| {
        config.list_bytes = ListBytesConfig {
            max_list_bytes_inflight: Some(ListBudget::Bytes(1000)),
            api_server_memory: None,
        };
    })
}

/// A list passes, and later ones are thought to be as long.
async fn learn_length(weir: &Weir, upstream: &mut FakeUpstream) {
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(PODS)).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &JSON).await;
    exchange.send(vec![b' '; LENGTH]).await;
    exchange.end().await;
    assert_eq!(call.response().await.body.len(), LENGTH);
    weir.wait_for_metric(IN_FLIGHT, 0.0).await;
}

/// A list that the API server works on.
async fn begin_list(weir: &Weir, upstream: &mut FakeUpstream) -> Exchange {
    let mut client = weir.alice(HttpVersion::Http2);
    let _call = client.send(TestRequest::get(PODS)).await;
    let exchange = upstream.next_exchange().await;
    weir.wait_for_metric(IN_FLIGHT, 800.0).await;
    exchange
}

#[tokio::test]
async fn a_list_waits_for_the_end_of_another_and_what_is_small_or_of_the_control_plane_does_not() {
    for_each_protocol_pair(async |client_http, upstream_http| {
        let mut upstream = FakeUpstream::preferring(upstream_http).await;
        let weir = limited(weir::builder(upstream.address).fairness())
            .start()
            .await;
        learn_length(&weir, &mut upstream).await;
        let mut clients = [(); 3].map(|()| weir.alice(client_http));
        let [first, second, cancelled] = &mut clients;
        let mut first = first.send(TestRequest::get(PODS)).await;
        let mut served = upstream.next_exchange().await;
        let mut second = second.send(TestRequest::get(PODS)).await;
        let waiting = cancelled.send(TestRequest::get(PODS)).await;
        weir.wait_for_metric(WAITING, 2.0).await;
        drop(waiting);
        weir.wait_for_metric(WAITING, 1.0).await;

        let node = pki()
            .client_ca
            .issue_client("system:node:a", &["system:nodes"]);
        let mut node = weir.with_certificate(client_http, &node);
        let master = pki().client_ca.issue_client("root", &["system:masters"]);
        let mut master = weir.with_certificate(client_http, &master);
        for (client, target) in [
            (&mut weir.alice(client_http), "/api/v1/namespaces/a/pods/b"),
            (&mut node, PODS),
            (&mut master, PODS),
        ] {
            let call = client.send(TestRequest::get(target)).await;
            upstream.next_exchange().await.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200, "{target}");
        }
        upstream.assert_no_request();

        served.send_head(200, &JSON).await;
        served.send(vec![b' '; LENGTH]).await;
        served.end().await;
        assert_eq!(first.head().await.status, 200);
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(second.head().await.status, 200);
        drop((first, second));
        weir.wait_for_metric(IN_FLIGHT, 0.0).await;
    })
    .await;
}

#[tokio::test]
async fn a_watch_counts_until_its_initial_events_have_been_sent() {
    const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";
    let mut upstream = FakeUpstream::start().await;
    let weir = limited(weir::builder(upstream.address).fairness())
        .start()
        .await;
    learn_length(&weir, &mut upstream).await;
    let mut clients = [(); 2].map(|()| weir.alice(HttpVersion::Http2));
    let watch = "/api/v1/pods?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut open = clients[0].send(TestRequest::get(watch)).await;
    let mut events = upstream.next_exchange().await;
    let mut list = clients[1].send(TestRequest::get(PODS)).await;
    weir.wait_for_metric(WAITING, 1.0).await;
    events.send_head(200, &JSON).await;
    assert_eq!(open.head().await.status, 200);
    events.send(BOOKMARK).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(list.head().await.status, 200);
    // A watch without initial events does not count.
    let plain = "/api/v1/pods?watch=1&resourceVersion=7";
    let _plain = clients[1].send(TestRequest::get(plain)).await;
    let _events = upstream.next_exchange().await;
    weir.wait_for_metric(IN_FLIGHT, 0.0).await;
}

#[tokio::test]
async fn a_list_that_has_waited_for_too_long_is_rejected_with_the_reason() {
    let mut upstream = FakeUpstream::start().await;
    let weir = limited(weir::builder(upstream.address).fairness())
        .request_timeout(Duration::from_secs(2)) // of which a quarter is time in a queue
        .start()
        .await;
    learn_length(&weir, &mut upstream).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let _served = client.send(TestRequest::get(PODS)).await;
    let _exchange = upstream.next_exchange().await;
    let response = weir.alice(HttpVersion::Http1).get(PODS).await;
    assert_eq!(response.status, 429);
    assert_eq!(&response.headers["retry-after"], "1");
    let text = response.text();
    assert!(
        text.contains("weir/list-bytes") && text.contains("--max-list-bytes-inflight"),
        "{text}"
    );
}

#[tokio::test]
async fn an_abandoned_list_counts_until_the_api_server_is_done_with_it() {
    let mut upstream = FakeUpstream::start().await;
    let weir = limited(weir::builder(upstream.address).fairness())
        .start()
        .await;
    learn_length(&weir, &mut upstream).await;
    let exchange = begin_list(&weir, &mut upstream).await;
    // Its client is gone; the stream is reset, and the API server has not said that it is done.
    weir.wait_for_metric("weir_abandoned_requests", 1.0).await;
    assert!(weir.metric(IN_FLIGHT).await > 0.0);
    drop(exchange);
    weir.wait_for_metric(IN_FLIGHT, 0.0).await;
}
