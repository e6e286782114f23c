//! A watch holds its seats no longer than the API server's watch cache needs for its initial
//! events.

use std::time::Duration;

use ::weir::config::{AdmissionConfig, FlowcontrolConfig};
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::limits::watch_starts::MAX_STARTING;
use ::weir_kubernetes::document;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, weir};

/// One seat and one queue for alice's group.
const NARROW_MANIFEST: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: narrow}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 1
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 1000}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: devs}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {name: narrow}
  rules:
  - subjects: [{kind: Group, group: {name: dev}}]
    resourceRules:
    - {verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}
";

const JSON: &str = "application/json";
const ADDED: &str = "{\"type\":\"ADDED\",\"object\":{\"kind\":\"ConfigMap\"}}\n";
const SEATS: &str =
    r#"apiserver_flowcontrol_current_executing_seats{flow_schema="devs",priority_level="narrow"}"#;

const WAITING: &str = "weir_watch_starts_waiting";

async fn start(upstream: &FakeUpstream) -> Weir {
    start_with(upstream, NARROW_MANIFEST).await
}

async fn start_with(upstream: &FakeUpstream, manifest: &str) -> Weir {
    let mut errors = document::Diagnostics::default();
    let nodes = document::parse_all("narrow.yaml", manifest, &mut errors);
    let objects = ::weir_kubernetes::api::flowcontrol::read(&nodes, &mut errors);
    assert!(!errors.has_errors(), "{errors}");
    weir::builder(upstream.address)
        .with(|config| {
            config.admission = AdmissionConfig::Fairness {
                config: controller::ControllerConfig {
                    server_concurrency_limit: 1,
                    request_timeout: Duration::from_secs(60),
                    enforcement: Enforcement::Enforce,
                    consistent_reads_from_cache: true,
                },
                sources: FlowcontrolConfig::from_objects("test", objects),
            };
        })
        .start()
        .await
}

/// With 100 ms of a seat for each, the last ones would wait for longer than the quarter of a minute
/// after which they are rejected.
#[tokio::test]
async fn of_a_burst_of_watches_for_one_seat_none_is_rejected() {
    for body in ["", ADDED] {
        let mut upstream = FakeUpstream::start().await;
        let weir = start(&upstream).await;
        let mut calls = Vec::new();
        for _ in 0..4 {
            let mut client = weir.alice(HttpVersion::Http2);
            for n in 0..80 {
                let target =
                    format!("/api/v1/namespaces/n{n}/configmaps?watch=1&resourceVersion=0");
                calls.push(client.send(TestRequest::get(&target)).await);
            }
        }
        let mut open = Vec::new();
        for _ in 0..calls.len() {
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(200, &[("content-type", JSON)]).await;
            if !body.is_empty() {
                exchange.send(body).await;
            }
            open.push(exchange);
        }
        for call in &mut calls {
            assert_eq!(call.head().await.status, 200, "{body}");
        }
        weir.wait_for_metric(SEATS, 0.0).await;
    }
}

/// The queue of the level has room for 100.
#[tokio::test]
async fn of_a_burst_of_watches_beyond_the_queue_none_is_rejected() {
    let mut upstream = FakeUpstream::start().await;
    let manifest = NARROW_MANIFEST.replace("queueLengthLimit: 1000", "queueLengthLimit: 100");
    let weir = start_with(&upstream, &manifest).await;
    let mut clients = [HttpVersion::Http2; 2].map(|http| weir.alice(http));
    let mut calls = Vec::new();
    for client in &mut clients {
        for n in 0..60 {
            let target = format!("/api/v1/namespaces/n{n}/configmaps?watch=1");
            calls.push(client.send(TestRequest::get(&target)).await);
        }
    }
    let mut open = vec![upstream.next_exchange().await];
    // All have arrived: one has the seat, and others are queued.
    let waiting = calls.len() - MAX_STARTING;
    weir.wait_for_metric(WAITING, f64::from(u32::try_from(waiting).unwrap()))
        .await;
    open[0].send_head(200, &[("content-type", JSON)]).await;
    while open.len() < calls.len() {
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[("content-type", JSON)]).await;
        open.push(exchange);
    }
    for call in &mut calls {
        assert_eq!(call.head().await.status, 200);
    }
    weir.wait_for_metric(WAITING, 0.0).await;
}

/// By each form of a watch, the head, the events or the bookmark after which its seat is free.
#[tokio::test]
async fn a_watch_gives_its_seat_to_the_next_one_when_its_initial_events_have_been_sent() {
    const WATCH_LIST: &str =
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    const BOOKMARK: &str = "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";
    const TABLE_ROW: &str =
        "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Table\",\"rows\":[{\"cells\":[\"a\"]}]}}\n";
    let marked = [ADDED, BOOKMARK].concat();
    for upstream_http in [HttpVersion::Http1, HttpVersion::Http2] {
        let mut upstream = FakeUpstream::preferring(upstream_http).await;
        let weir = start(&upstream).await;
        let mut client = weir.alice(HttpVersion::Http2);
        let mut open = Vec::new();
        for (path, query, body) in [
            ("/api/v1/configmaps", "&resourceVersion=7", ""),
            ("/api/v1/configmaps", "&resourceVersion=0", ""),
            ("/api/v1/configmaps", "&resourceVersion=0", ADDED),
            ("/api/v1/configmaps", "", ADDED),
            ("/api/v1/configmaps", "", TABLE_ROW),
            ("/api/v1/configmaps", WATCH_LIST, &*marked),
            ("/api/v1/configmaps", "&sendInitialEvents=true", ADDED),
            (
                "/api/v1/namespaces/a/configmaps",
                "&fieldSelector=metadata.name=x",
                "",
            ),
            ("/api/v1/events", "&resourceVersion=0", ""),
        ] {
            let target = format!("{path}?watch=1{query}");
            // It is queued until the one before gives its seat back.
            let mut call = client.send(TestRequest::get(&target)).await;
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(200, &[("content-type", JSON)]).await;
            assert_eq!(call.head().await.status, 200);
            if query == WATCH_LIST {
                weir.wait_for_metric(SEATS, 1.0).await;
            }
            if !body.is_empty() {
                exchange.send(body.to_owned()).await;
            }
            open.push((call, exchange));
        }
        weir.wait_for_metric(SEATS, 0.0).await;
    }
}
