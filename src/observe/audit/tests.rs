//! The audit log as a whole: what it writes, and what it does where it cannot.

use std::fs;
use std::fs::File;
use std::io::BufRead;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use http::HeaderValue;
use http::Method;
use http::StatusCode;
use http::uri::PathAndQuery;
use serde_json::Value;

use super::*;
use crate::api::UserInfo;
use crate::flowcontrol::bootstrap;
use crate::flowcontrol::controller;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::Enforcement;
use crate::flowcontrol::controller::Times;
use crate::metrics::Registry;
use crate::observe::comes_true;
use crate::pipeline::audited::Audited;
use crate::pipeline::record::Outcome;
use crate::request_info::RequestInfo;

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
        counted: None,
        decision: None,
        rule: None,
        traced: None,
        outcome: Outcome::Answered(StatusCode::OK),
        sent: 0,
        audited: Some(Box::new(Audited {
            id: HeaderValue::from_static("an-id"),
            wish: None,
            allowed: false,
            began: false,
        })),
        written_down: false,
    }
}

fn config(path: PathBuf) -> Config {
    Config {
        policy: Policy::everything(),
        file: Some(LogFile {
            path,
            max_size: 100 << 20,
            max_backups: 0,
            max_age: Duration::ZERO,
        }),
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn value(registry: &Registry, series: &str) -> Option<f64> {
    let text = registry.render();
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.map(|value| value.trim().parse().unwrap())
}

#[tokio::test]
async fn what_happened_before_the_end_is_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("audit.log"), Registry::new());
    let log = AuditLog::start(config(path.clone()), Metrics::register(&registry)).unwrap();
    let mut watch = record("/api/v1/pods?watch=true");
    log.answering(&watch);
    watch.audited.as_mut().unwrap().began = true;
    for _ in 0..1000 {
        log.ended(&record("/api/v1/pods"), Clock.now());
    }
    log.ended(&watch, Clock.now());
    log.finish().await;
    let ends = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    let written = || fs::read(&path).is_ok_and(|text| ends(&text) >= 2003);
    assert!(comes_true(written).await);
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
        value(&registry, "apiserver_audit_event_total"),
        Some(2003.0)
    );
    let level = "apiserver_audit_level_total{level=\"Metadata\"}";
    assert_eq!(value(&registry, level), Some(1001.0));
    assert_eq!(value(&registry, "weir_audit_dropped_total"), Some(0.0));
    // Too late.
    log.ended(&record("/api/v1/pods"), Clock.now());
    assert_eq!(value(&registry, "weir_audit_dropped_total"), Some(1.0));
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn a_disk_that_takes_nothing_costs_events_and_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("pipe"), Registry::new());
    fifo(&path);
    let metrics = Metrics::register(&registry);
    let log = AuditLog::with_buffer(config(path.clone()), metrics, 10_000).unwrap();
    // Nobody reads: the thread waits for a reader, and these calls return all the same.
    for _ in 0..1000 {
        log.ended(&record("/api/v1/pods"), Clock.now());
    }
    let dropped = log.metrics.dropped.get();
    assert!((900..1000).contains(&dropped), "{dropped}");
    // Now somebody does: what was kept is all there.
    let reading = tokio::task::spawn_blocking(move || {
        let pipe = BufReader::new(File::open(path).unwrap());
        pipe.lines().count()
    });
    log.finish().await;
    drop(log);
    let read = reading.await.unwrap();
    assert_eq!(read, 2 * (1000 - usize::try_from(dropped).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_a_disk_that_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, registry) = (folder.path().join("pipe"), Registry::new());
    fifo(&path);
    let log = AuditLog::start(config(path), Metrics::register(&registry)).unwrap();
    log.ended(&record("/api/v1/pods"), Clock.now());
    log.finish().await;
}

#[tokio::test]
async fn events_that_cannot_be_written_are_counted() {
    let registry = Registry::new();
    let full = config(PathBuf::from("/dev/full"));
    let log = AuditLog::start(full, Metrics::register(&registry)).unwrap();
    log.ended(&record("/api/v1/pods"), Clock.now());
    log.finish().await;
    let errors = "apiserver_audit_error_total{plugin=\"log\"}";
    assert!(comes_true(|| value(&registry, errors) >= Some(2.0)).await);
    assert_eq!(value(&registry, errors), Some(2.0));
    assert_eq!(value(&registry, "apiserver_audit_event_total"), Some(2.0));
}

#[tokio::test]
async fn annotations_say_what_was_decided() {
    let registry = Registry::new();
    let config = controller::Config {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let controller = Controller::new(config, &bootstrap::complete(Vec::new()), &registry);
    let mut record = record("/api/v1/pods");
    let user = record.user.clone().unwrap();
    let now = Clock.now();
    let admitted = controller
        .admit(&record.info().unwrap(), &user, Times::at(now))
        .await;
    record.decision = Some(admitted.unwrap().decision());
    record.outcome = Outcome::Rejected("client-limit");
    // Whom a request counts for is no fact about who asked.
    record.counted = Some(Arc::new(UserInfo::anonymous()));
    record.rule = Some(Arc::from("ci"));
    let mut lines = Vec::new();
    let note = note(&record, Moment::Ended, now);
    note.write(&Policy::everything(), &mut lines);
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
