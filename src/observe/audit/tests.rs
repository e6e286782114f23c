//! Tests of the whole audit log: its output, and its behaviour when writing fails.

use std::fs;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use super::*;
use crate::flowcontrol::controller;
use crate::flowcontrol::controller::{Controller, Enforcement, RequestTimes};
use crate::observe::wait_tests::eventually;
use crate::pipeline::trace::audit_id::AuditContext;
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_base::metrics::Registry;
use weir_flowcontrol::bootstrap;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

fn record(target: &'static str) -> Record {
    let target = PathAndQuery::from_static(target);
    let info = RequestInfo::parse("GET", target.as_str().as_bytes()).unwrap();
    Record {
        method: Method::GET,
        long_running: info.long_running(),
        target: target.clone(),
        peer: SocketAddr::from(([192, 0, 2, 1], 1)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_static("curl/8")),
        arrived: Clock.now(),
        arrived_wall: Clock.wall(),
        user: Some(Arc::new(UserInfo {
            name: "alice".to_owned(),
            ..UserInfo::default()
        })),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        trace_context: None,
        outcome: RequestOutcome::Responded(StatusCode::OK),
        sent_bytes: 0,
        audit: Some(Box::new(AuditContext {
            id: HeaderValue::from_static("an-id"),
            impersonation_target: None,
            impersonation_allowed: false,
            response_started: false,
        })),
        is_logged: false,
    }
}

fn config(path: PathBuf) -> AuditConfig {
    AuditConfig {
        policy: AuditPolicy::log_all(),
        file: Some(LogFileConfig {
            path,
            max_size: 100 << 20,
            max_backups: 0,
            max_age: Duration::ZERO,
            compress: false,
        }),
    }
}

fn prepared(path: PathBuf) -> PreparedAudit {
    PreparedAudit::open(config(path)).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn series_value(registry: &Registry, series: &str) -> Option<f64> {
    let text = registry.render();
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.map(|value| value.trim().parse().unwrap())
}

#[tokio::test]
async fn events_before_shutdown_are_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("audit.log"), Registry::new());
    let log = AuditLog::start(prepared(path.clone()), AuditMetrics::register(&registry)).unwrap();
    let mut watch = record("/api/v1/pods?watch=true");
    log.on_response_started(&watch);
    watch.audit.as_mut().unwrap().response_started = true;
    for _ in 0..1000 {
        log.on_ended(&record("/api/v1/pods"), Clock.now());
    }
    log.on_ended(&watch, Clock.now());
    log.finish().await;
    let count_lines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    let written = || fs::read(&path).is_ok_and(|text| count_lines(&text) >= 2003);
    assert!(eventually(written).await);
    let lines = lines(&path);
    assert_eq!(lines.len(), 2003);
    let stages = |lines: &[Value]| -> Vec<_> {
        lines
            .iter()
            .map(|line| line["stage"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(stages(&lines[..2]), ["RequestReceived", "ResponseStarted"]);
    assert_eq!(stages(&lines[2002..]), ["ResponseComplete"]);
    assert!(lines.iter().all(|line| line["auditID"] == "an-id"));
    assert_eq!(
        series_value(&registry, "apiserver_audit_event_total"),
        Some(2003.0)
    );
    let level = "apiserver_audit_level_total{level=\"Metadata\"}";
    assert_eq!(series_value(&registry, level), Some(1001.0));
    assert_eq!(
        series_value(&registry, "weir_audit_dropped_total"),
        Some(0.0)
    );
    // Too late.
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    assert_eq!(
        series_value(&registry, "weir_audit_dropped_total"),
        Some(1.0)
    );
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn a_stalled_disk_drops_events_and_blocks_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("pipe"), Registry::new());
    make_fifo(&path);
    let metrics = AuditMetrics::register(&registry);
    let log = AuditLog::with_capacity(prepared(path.clone()), metrics, 10_000).unwrap();
    // The pipe has no reader: the thread blocks, and these calls return nevertheless.
    for _ in 0..1000 {
        log.on_ended(&record("/api/v1/pods"), Clock.now());
    }
    let dropped = log.metrics.dropped.get();
    assert!((900..1000).contains(&dropped), "{dropped}");
    // The pipe has a reader now: all queued entries arrive.
    let reader = tokio::task::spawn_blocking(move || {
        let pipe = BufReader::new(File::open(path).unwrap());
        pipe.lines().count()
    });
    log.finish().await;
    drop(log);
    let read = reader.await.unwrap();
    assert_eq!(read, 2 * (1000 - usize::try_from(dropped).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_stalled_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("pipe"), Registry::new());
    make_fifo(&path);
    let log = AuditLog::start(prepared(path), AuditMetrics::register(&registry)).unwrap();
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    log.finish().await;
}

#[tokio::test]
async fn events_that_cannot_be_written_are_counted() {
    let registry = Registry::new();
    let full_device = prepared(PathBuf::from("/dev/full"));
    let log = AuditLog::start(full_device, AuditMetrics::register(&registry)).unwrap();
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    log.finish().await;
    let errors = "apiserver_audit_error_total{plugin=\"log\"}";
    assert!(eventually(|| series_value(&registry, errors) >= Some(2.0)).await);
    assert_eq!(series_value(&registry, errors), Some(2.0));
    assert_eq!(
        series_value(&registry, "apiserver_audit_event_total"),
        Some(2.0)
    );
}

#[tokio::test]
async fn annotations_carry_the_decision() {
    let registry = Registry::new();
    let config = controller::ControllerConfig {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let controller = Controller::new(config, &bootstrap::add_missing(Vec::new()), &registry);
    let mut record = record("/api/v1/pods");
    let user = record.user.clone().unwrap();
    let now = Clock.now();
    let admission = controller
        .admit(&record.info().unwrap(), &user, RequestTimes::at(now))
        .await;
    record.decision = Some(admission.unwrap().decision().clone());
    record.outcome = RequestOutcome::Rejected("client-limit");
    // The user that a request counts for is not part of the audited identity.
    record.counted_as = Some(Arc::new(UserInfo::anonymous()));
    record.rule = Some(Arc::from("ci"));
    let mut lines = Vec::new();
    let entry = audit_entry(&record, AuditPhase::RequestEnded, now);
    entry.append_events(&AuditPolicy::log_all(), &mut lines);
    let last = lines.split(|b| *b == b'\n').nth(1).unwrap();
    let event: Value = serde_json::from_slice(last).unwrap();
    let expected = serde_json::json!({
        "weir/client-limit": "ci",
        "weir/flow-schema": "catch-all",
        "weir/priority-level": "catch-all",
        "weir/queue-wait": "0s",
        "weir/rejected-by": "client-limit",
        "weir/seats": "1",
    });
    assert_eq!(event["annotations"], expected);
    assert_eq!(event["responseStatus"]["code"], 429);
    assert_eq!(event["user"]["username"], "alice");
    assert_eq!(event["sourceIPs"], serde_json::json!(["192.0.2.1"]));
}

#[tokio::test]
async fn no_event_is_lost_while_the_destination_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::new();
    let path = |n: usize| folder.path().join(format!("audit-{}.log", n % 3));
    let metrics = AuditMetrics::register(&registry);
    let log = AuditLog::start(prepared(path(0)), metrics).unwrap();
    for n in 0..300 {
        for _ in 0..10 {
            log.on_ended(&record("/api/v1/pods"), Clock.now());
        }
        log.replace(prepared(path(n)));
    }
    log.finish().await;
    let written = || -> usize {
        let files = (0..3).map(|n| fs::read_to_string(path(n)).unwrap_or_default());
        files.map(|text| text.lines().count()).sum()
    };
    assert!(eventually(|| written() == 6000).await, "{}", written());
    (0..3).for_each(|n| drop(lines(&path(n)))); // whole lines only
}

#[tokio::test]
async fn a_policy_that_is_replaced_applies_to_later_events() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("audit.log"), Registry::new());
    let metrics = AuditMetrics::register(&registry);
    let log = AuditLog::start(prepared(path.clone()), metrics).unwrap();
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    let text = || fs::read_to_string(&path).unwrap_or_default();
    assert!(eventually(|| text().lines().count() == 2).await);
    // Another process has moved the file: the new one is opened at its path.
    fs::rename(&path, folder.path().join("moved.log")).unwrap();
    log.replace(prepared(path.clone()));
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    assert!(eventually(|| text().lines().count() == 2).await);
    log.replace(PreparedAudit {
        policy: AuditPolicy::default(), // logs nothing
        ..prepared(path.clone())
    });
    log.on_ended(&record("/api/v1/pods"), Clock.now());
    log.finish().await;
    let none = "apiserver_audit_level_total{level=\"None\"}";
    assert!(eventually(|| series_value(&registry, none) == Some(1.0)).await);
    assert_eq!(text().lines().count(), 2);
}
