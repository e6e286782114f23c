//! The audit log and the explaining headers. No request waits for the log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ::weir::config::{AdmissionConfig, FlowcontrolConfig, ReportingConfig};
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::observe::audit;
use ::weir_audit::policy::AuditPolicy;
use ::weir_audit::rotation::LogFileConfig;
use ::weir_kubernetes::document;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, ReservedAddress};
use crate::support::process::WeirProcess;
use crate::support::weir::WeirBuilder;
use crate::support::{HttpVersion, eventually, weir};

const LIST: &str = "/api/v1/namespaces/a/pods";

/// The priority level of alice's group has one seat and no queues.
const ONE_SEAT_MANIFEST: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: few}
spec: {type: Limited, limited: {nominalConcurrencyShares: 1, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: devs}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {name: few}
  rules:
  - subjects: [{kind: Group, group: {name: dev}}]
    resourceRules:
    - {verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}
";

/// An audit log of all requests, in its own folder.
pub(crate) struct TempAuditLog(TempDir);

impl TempAuditLog {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("audit.log")
    }

    pub(crate) fn config(&self) -> audit::AuditConfig {
        audit::AuditConfig {
            policy: AuditPolicy::log_all(),
            file: Some(LogFileConfig {
                path: self.path(),
                max_size: 1 << 20,
                max_backups: 0,
                max_age: Duration::ZERO,
                compress: false,
            }),
        }
    }

    /// The lines, as soon as there are this many.
    pub(crate) async fn wait_for_events(&self, count: usize) -> Vec<Value> {
        let read = async || Some(read_events(&self.path())).filter(|events| events.len() >= count);
        eventually("the events in the log", read).await
    }
}

/// The complete lines of a log.
fn read_events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The files of a log in its folder, in the order of their names.
pub(crate) fn log_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The events in all files of a folder. A file that is renamed meanwhile may be missing.
pub(crate) fn read_all_events(folder: &Path) -> Vec<Value> {
    let files = log_files(folder);
    files.iter().flat_map(|file| read_events(file)).collect()
}

fn with_one_seat(setup: WeirBuilder) -> WeirBuilder {
    let mut errors = document::Diagnostics::default();
    let nodes = document::parse_all("few.yaml", ONE_SEAT_MANIFEST, &mut errors);
    let objects = ::weir_kubernetes::api::flowcontrol::read(&nodes, &mut errors);
    assert!(!errors.has_errors(), "{errors}");
    setup.with(|config| {
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
}

#[tokio::test]
async fn a_response_of_weir_s_own_carries_the_explain_headers() {
    let reserved = ReservedAddress::reserve();
    let explaining = |config: &mut ::weir::config::Config| config.reporting.explain = true;
    let weir = with_one_seat(weir::builder(reserved.address))
        .with(explaining)
        .start()
        .await;
    let response = weir.alice(HttpVersion::Http1).get(LIST).await;
    assert_eq!(response.status, 503);
    let header = |name| response.headers.get(name).map(str::to_owned);
    assert_eq!(header("x-weir-flow-schema").as_deref(), Some("devs"));
    assert_eq!(header("x-weir-priority-level").as_deref(), Some("few"));
}

#[tokio::test]
async fn a_rejected_request_is_audited_with_the_limit_that_rejected_it() {
    for http in HttpVersion::BOTH {
        let (mut upstream, log) = (FakeUpstream::start().await, TempAuditLog::new());
        let telling = ReportingConfig {
            audit: Some(log.config()),
            explain: true,
            ..ReportingConfig::default()
        };
        let setup = with_one_seat(weir::builder(upstream.address));
        let weir = setup
            .with(|config| config.reporting = telling)
            .start()
            .await;
        let mut alice = weir.alice(http);
        let call = alice.send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;
        let rejected = alice.get("/api/v1/namespaces/a/pods?limit=1").await;
        assert_eq!(rejected.status, 429);
        let explained = |headers: &crate::support::message::Headers| {
            let names = ["flow-schema", "priority-level", "queue-wait", "seats"];
            names.map(|name| headers.get(&format!("x-weir-{name}")).map(str::to_owned))
        };
        let expected = ["devs", "few", "0s", "1"].map(|text| Some(text.to_owned()));
        assert_eq!(explained(&rejected.headers), expected);
        exchange
            .respond_with_headers(
                200,
                &[("x-weir-seats", "9"), ("x-weir-flow-schema", "forged")],
                "{}",
            )
            .await;
        let response = call.response().await;
        assert_eq!(explained(&response.headers), expected);

        let events = log.wait_for_events(4).await;
        let complete: Vec<_> = events
            .iter()
            .filter(|event| event["stage"] == "ResponseComplete")
            .collect();
        let of = |response: &crate::support::client::FullResponse| {
            let id = response.headers.get("audit-id").unwrap();
            let of = |event: &&&Value| event["auditID"] == id;
            (*complete.iter().find(of).unwrap()).clone()
        };
        let (no, yes) = (of(&rejected), of(&response));
        assert_eq!(no["responseStatus"]["code"], 429);
        assert_eq!(no["annotations"]["weir/rejected-by"], "concurrency-limit");
        assert_eq!(yes["responseStatus"]["code"], 200);
        assert_eq!(yes["annotations"].get("weir/rejected-by"), None);
        for event in [no, yes] {
            assert_eq!(event["user"]["username"], "alice");
            assert_eq!(event["verb"], "list");
            assert_eq!(event["objectRef"]["resource"], "pods");
            assert_eq!(event["sourceIPs"], serde_json::json!(["127.0.0.1"]));
            assert_eq!(event["annotations"]["weir/flow-schema"], "devs");
            assert_eq!(event["annotations"]["weir/priority-level"], "few");
            assert_eq!(event["annotations"]["weir/seats"], "1");
        }
    }
}

#[tokio::test]
async fn without_the_flags_no_header_is_added() {
    for http in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = with_one_seat(weir::builder(upstream.address)).start().await;
        let mut alice = weir.alice(http);
        let call = alice.send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;
        assert_eq!(exchange.request.headers.get("audit-id"), None);
        let rejected = alice.get(LIST).await;
        assert_eq!(rejected.status, 429);
        exchange
            .respond_with_headers(200, &[("x-weir-seats", "9")], "{}")
            .await;
        let response = call.response().await;
        // weir explains nothing here; the upstream's own headers pass.
        assert_eq!(response.headers.all("x-weir-seats"), ["9"]);
        for headers in [&rejected.headers, &response.headers] {
            assert_eq!(headers.get("audit-id"), None);
            assert_eq!(headers.get("x-weir-flow-schema"), None);
        }
    }
}

#[tokio::test]
async fn a_client_s_audit_id_reaches_the_api_server_whatever_its_connection_header_names() {
    let (mut upstream, log) = (FakeUpstream::start().await, TempAuditLog::new());
    let telling = ReportingConfig {
        audit: Some(log.config()),
        explain: false,
        ..ReportingConfig::default()
    };
    let weir = weir::builder(upstream.address)
        .with(|config| config.reporting = telling)
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http1);
    let request = TestRequest::get(LIST)
        .header("Audit-ID", "mine")
        .header("Connection", "audit-id");
    let call = alice.send(request).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.all("audit-id"), ["mine"]);
    exchange
        .respond_with_headers(200, &[("audit-id", "the server's")], "{}")
        .await;
    let response = call.response().await;
    assert_eq!(response.headers.all("audit-id"), ["the server's"]);
    let events = log.wait_for_events(2).await;
    assert!(events.iter().all(|event| event["auditID"] == "mine"));
}

/// A target close to the maximum length.
pub(crate) fn long_target() -> String {
    format!("{LIST}?limit=500&continue={}", "x".repeat(60_000))
}

/// Responds to all requests.
pub(crate) async fn spawn_ok_responder(upstream: FakeUpstream) -> std::net::SocketAddr {
    let address = upstream.address;
    tokio::spawn(async move {
        let mut upstream = upstream;
        loop {
            let exchange = upstream.next_exchange_without_timeout().await;
            // weir may have given up a request of its own meanwhile.
            tokio::spawn(exchange.respond(200, "{}"));
        }
    });
    address
}

#[tokio::test]
async fn a_blocked_audit_log_delays_no_request_and_drops_events() {
    let log = TempAuditLog::new();
    assert!(
        Command::new("mkfifo")
            .arg(log.path())
            .status()
            .unwrap()
            .success()
    );
    let telling = ReportingConfig {
        audit: Some(log.config()),
        explain: false,
        ..ReportingConfig::default()
    };
    let upstream = spawn_ok_responder(FakeUpstream::start().await).await;
    let weir = weir::builder(upstream)
        .with(|config| config.reporting = telling)
        .start()
        .await;
    let (mut alice, target) = (weir.alice(HttpVersion::Http1), long_target());
    // Twice the capacity of the queue.
    for _ in 0..(64 << 20) / 60_000 {
        assert_eq!(alice.get(&target).await.status, 200);
    }
    let dropped = weir.metric("weir_audit_dropped_total").await;
    assert!((400.0..700.0).contains(&dropped), "{dropped}");
}

#[tokio::test]
async fn the_log_is_rotated_by_size_and_complete_at_exit() {
    let upstream = spawn_ok_responder(FakeUpstream::start().await).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = [
        format!("--audit-log-path={}", path.display()),
        "--audit-log-maxsize=1".to_owned(),
        "--token-auth-file=tokens.csv".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut weir = WeirProcess::serve(upstream, &flags).await;
    let (mut alice, target) = (weir.alice(HttpVersion::Http2), long_target());
    for _ in 0..30 {
        assert_eq!(alice.get(&target).await.status, 200);
    }
    // weir waits at its end, but no longer than 2 s, which is too short for all on a slow machine.
    eventually("all but a few of the events", async || {
        (read_all_events(folder.path()).len() > 55).then_some(())
    })
    .await;
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
    let files = log_files(folder.path());
    // A little more than 60 events of 60 kB.
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(
        files
            .iter()
            .all(|file| fs::metadata(file).unwrap().len() <= 1 << 20)
    );
    let all = read_all_events(folder.path());
    let complete = all
        .iter()
        .filter(|event| event["stage"] == "ResponseComplete");
    assert_eq!((all.len(), complete.count()), (60, 30));
}

#[tokio::test]
async fn a_long_running_request_beyond_its_share_is_audited_with_that_limit() {
    const LOG: &str = "/api/v1/namespaces/a/pods/b/log?follow=true";
    let (mut upstream, log) = (FakeUpstream::start().await, TempAuditLog::new());
    let reporting = ReportingConfig {
        audit: Some(log.config()),
        ..ReportingConfig::default()
    };
    let weir = weir::builder(upstream.address)
        .with(|config| {
            config.upstream.max_connections = 8;
            config.reporting = reporting;
        })
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    for _ in 0..2 {
        let call = alice.send(TestRequest::get(LOG)).await;
        open.push((call, upstream.next_exchange().await));
    }
    let rejected = alice.get(LOG).await;
    assert_eq!(rejected.status, 429);
    let id = rejected.headers.get("audit-id").unwrap();
    let event = eventually("the event of the rejection", async || {
        let mut events = read_events(&log.path()).into_iter();
        events.find(|event| event["auditID"] == id && event["stage"] == "ResponseComplete")
    })
    .await;
    assert_eq!(event["responseStatus"]["code"], 429);
    assert_eq!(
        event["annotations"]["weir/rejected-by"],
        "long-running-share"
    );
    let failures = "weir_unanswered_requests_total{cause=\"weir/long-running-share\",code=\"429\"}";
    assert_eq!(weir.metric(failures).await, 0.0, "a limit of weir's own");
}
