//! Whole records: what is in them, their limits, and their gaps.

mod pseudonyms;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::advance;

use super::*;
use crate::flowcontrol::controller;
use crate::flowcontrol::controller::{Enforcement, RequestTimes};
use crate::flowcontrol::sources::FlowcontrolSources;
use crate::observe::wait_tests::eventually;
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::encoding::printable::{HOSTILE_NAMES, is_printable};
use weir_kubernetes::request_info::RequestInfo;
use weir_replay::arrival::ArrivalLine;

const LIST: &str = "/api/v1/namespaces/shop/pods?limit=5&access_token=s3cr3t";

fn record(target: &'static str) -> Record {
    let target = PathAndQuery::from_static(target);
    let info = RequestInfo::parse("GET", target.as_str().as_bytes()).unwrap();
    Record {
        method: Method::GET,
        long_running: info.long_running(),
        target: target.clone(),
        peer: SocketAddr::from(([192, 0, 2, 1], 1)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_static("kubectl/v1.36.0 (linux/amd64)")),
        arrived: Clock.now(),
        arrived_wall: Clock.wall(),
        user: Some(Arc::new(alice())),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        trace_context: None,
        outcome: RequestOutcome::Responded(StatusCode::OK),
        sent_bytes: 42,
        audit: None,
        is_logged: false,
    }
}

fn alice() -> UserInfo {
    UserInfo {
        name: "alice".to_owned(),
        groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
        ..UserInfo::default()
    }
}

/// A record in its own folder.
struct TempRecord(TempDir);

impl TempRecord {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("record.jsonl")
    }

    fn config(&self) -> RecordingConfig {
        RecordingConfig {
            path: self.path(),
            max_size: 1 << 20,
            max_duration: Duration::ZERO,
            pseudonym_key: None,
            source_addresses: false,
        }
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn recorder(config: RecordingConfig) -> Arc<Recorder> {
    let recorder = Recorder::new(RecordingMetrics::register(&Registry::new()), None);
    let prepared = PreparedRecording::open(config).unwrap();
    recorder.replace(Some(prepared)).unwrap();
    recorder
}

/// Ends the record, and waits until all of it is written, however long that takes.
async fn finish(recorder: &Recorder) {
    recorder.finish().await;
    assert!(eventually(|| !recorder.control.is_active()).await);
}

#[tokio::test]
async fn a_record_has_a_beginning_its_requests_and_an_end() {
    let file = TempRecord::new();
    let recorder = recorder(file.config());
    let mut long = record("/api/v1/pods?watch=1");
    recorder.on_response_started(&long);
    recorder.on_ended(&long, Clock.now()); // it is recorded already
    recorder.on_ended(&record(LIST), Clock.now());
    long.outcome = RequestOutcome::Rejected("client-limit");
    long.rule = Some("per-user".into());
    recorder.on_ended(&long, Clock.now());
    let mut unauthenticated = record(LIST);
    unauthenticated.user = None;
    recorder.on_ended(&unauthenticated, Clock.now());
    finish(&recorder).await;
    let lines = lines(&file.path());
    let [begin, watch, list, rejected, end] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(begin["record"]["version"], 1);
    assert_eq!(begin["record"]["pseudonyms"], false);
    assert_eq!(watch["url"], "/api/v1/pods?watch=1");
    assert!(watch.get("service_ms").is_none(), "it goes on");
    assert_eq!(
        list["url"],
        "/api/v1/namespaces/shop/pods?limit=5&access_token=redacted"
    );
    assert_eq!(list["user"], "alice");
    assert_eq!(
        list["groups"],
        serde_json::json!(["dev", "system:authenticated"])
    );
    assert_eq!((&list["code"], &list["bytes"]), (&200.into(), &42.into()));
    assert!(list["service_ms"].as_f64().unwrap() >= 0.0);
    assert!(list.get("source").is_none(), "only on request");
    assert_eq!(rejected["rejected_by"], "client-limit");
    assert_eq!(rejected["rule"], "per-user");
    assert_eq!(rejected["code"], 429);
    assert!(rejected.get("service_ms").is_none());
    assert_eq!(
        end["record"],
        serde_json::json!({"end": "stopped", "lines": 3, "dropped": 0})
    );
}

#[tokio::test]
async fn names_are_only_printable_characters_in_a_record() {
    let file = TempRecord::new();
    let recorder = recorder(file.config());
    for name in HOSTILE_NAMES {
        let mut hostile = record(LIST);
        hostile.user = Some(Arc::new(UserInfo {
            name: name.to_owned(),
            ..alice()
        }));
        recorder.on_ended(&hostile, Clock.now());
    }
    finish(&recorder).await;
    let text = fs::read_to_string(file.path()).unwrap();
    assert!(
        text.lines().flat_map(str::chars).all(is_printable),
        "{text}"
    );
    let lines = lines(&file.path());
    let users: Vec<_> = lines
        .iter()
        .filter_map(|line| line["user"].as_str())
        .collect();
    assert_eq!(users, HOSTILE_NAMES);
}

#[tokio::test]
async fn flows_of_unverified_users_are_distinguished_without_their_addresses() {
    let file = TempRecord::new();
    let recorder = recorder(file.config());
    for network in ["192.0.2.1", "192.0.2.2", "192.0.2.1"] {
        let mut anonymous = record(LIST);
        anonymous.user = Some(Arc::new(UserInfo::unverified(format!("network:{network}"))));
        recorder.on_ended(&anonymous, Clock.now());
    }
    finish(&recorder).await;
    let text = fs::read_to_string(file.path()).unwrap();
    assert!(!text.contains("192.0.2"), "{text}");
    let lines = lines(&file.path());
    let flows: Vec<_> = lines
        .iter()
        .filter_map(|line| line["uid"].as_str())
        .collect();
    assert_eq!(flows.len(), 3);
    assert!(flows[0] == flows[2] && flows[0] != flows[1], "{flows:?}");
}

#[tokio::test]
async fn a_record_ends_before_its_size_is_exceeded_and_says_so() {
    let file = TempRecord::new();
    let config = RecordingConfig {
        max_size: 5000,
        ..file.config()
    };
    let recorder = recorder(config.clone());
    for _ in 0..100 {
        recorder.on_ended(&record(LIST), Clock.now());
    }
    assert!(eventually(|| !recorder.control.is_active()).await);
    recorder.on_ended(&record(LIST), Clock.now());
    finish(&recorder).await;
    let size = fs::metadata(file.path()).unwrap().len();
    assert!((4000..=5000).contains(&size), "{size}");
    let lines = lines(&file.path());
    let end = &lines[lines.len() - 1]["record"];
    assert_eq!(end["end"], "max-size");
    assert_eq!(end["lines"], lines.len() - 2);
    assert!(
        recorder.is_in_force(Some(&config)),
        "a reload does not begin it again"
    );
}

#[tokio::test]
async fn a_record_is_compressed_by_its_name_and_continued_and_ends_within_its_size() {
    let file = TempRecord::new();
    let path = file.0.path().join("record.jsonl.gz");
    let config = |max_size| RecordingConfig {
        path: path.clone(),
        max_size,
        ..file.config()
    };
    let decompressed = || {
        let compressed = fs::File::open(&path).unwrap();
        let text = io::read_to_string(flate2::read::MultiGzDecoder::new(compressed)).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    for runs in 1..=2 {
        let recorder = recorder(config(1 << 20));
        for _ in 0..10 {
            recorder.on_ended(&record(LIST), Clock.now());
        }
        finish(&recorder).await;
        let lines = decompressed();
        assert_eq!(lines.len(), runs * 12, "the begin and the end, too");
        assert_eq!(lines[lines.len() - 1]["record"]["end"], "stopped");
    }
    let before = fs::metadata(&path).unwrap().len();
    let recorder = recorder(config(before + 3000));
    // One request: how much is compressed does not depend on the digits of different times.
    let (request, ended) = (record(LIST), Clock.now());
    for _ in 0..3000 {
        recorder.on_ended(&request, ended);
    }
    assert!(eventually(|| !recorder.control.is_active()).await);
    finish(&recorder).await;
    let size = fs::metadata(&path).unwrap().len();
    assert!((before + 2000..=before + 3000).contains(&size), "{size}");
    let lines = decompressed();
    let text: usize = lines[24..].iter().map(|line| line.to_string().len()).sum();
    assert!(text > 2 * 3000, "{text} bytes of lines are not compressed");
    assert_eq!(lines[lines.len() - 1]["record"]["end"], "max-size");
}

#[tokio::test]
async fn a_full_file_is_not_written_to() {
    let file = TempRecord::new();
    fs::write(file.path(), [b'x'; 4999]).unwrap();
    let config = RecordingConfig {
        max_size: 5000,
        ..file.config()
    };
    let recorder = recorder(config);
    assert!(eventually(|| !recorder.control.is_active()).await);
    finish(&recorder).await;
    assert_eq!(fs::read(file.path()).unwrap(), [b'x'; 4999]);
}

#[tokio::test]
async fn a_record_ends_after_its_duration_without_a_request() {
    let file = TempRecord::new();
    let config = RecordingConfig {
        max_duration: Duration::from_millis(1),
        ..file.config()
    };
    let recorder = recorder(config);
    assert!(eventually(|| !recorder.control.is_active()).await);
    let lines = lines(&file.path());
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_eq!(lines[1]["record"]["end"], "max-duration");
    finish(&recorder).await;
}

#[tokio::test]
async fn dropped_requests_are_counted_in_the_metric_and_in_the_record() {
    let (file, registry) = (TempRecord::new(), Registry::new());
    let recorder = Recorder::with_capacity(RecordingMetrics::register(&registry), None, 0);
    let prepared = PreparedRecording::open(file.config()).unwrap();
    recorder.replace(Some(prepared)).unwrap();
    for _ in 0..3 {
        recorder.on_ended(&record(LIST), Clock.now());
    }
    finish(&recorder).await;
    let lines = lines(&file.path());
    let noted = lines
        .iter()
        .filter_map(|line| line["record"]["dropped"].as_u64());
    let end = &lines[lines.len() - 1]["record"];
    assert_eq!(
        (noted.sum(), end["end"].as_str()),
        (6_u64, Some("stopped")),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| line.get("at_ms").is_none()));
    assert!(registry.render().contains("weir_record_dropped_total 3\n"));
}

#[tokio::test]
async fn another_record_begins_where_one_ends() {
    let (first, second) = (TempRecord::new(), TempRecord::new());
    let recorder = recorder(first.config());
    recorder.on_ended(&record(LIST), Clock.now());
    let prepared = PreparedRecording::open(second.config()).unwrap();
    recorder.replace(Some(prepared)).unwrap();
    assert!(eventually(|| first.path().exists() && lines(&first.path()).len() >= 2).await);
    recorder.on_ended(&record(LIST), Clock.now());
    recorder.replace(None).unwrap();
    assert!(recorder.is_in_force(None));
    assert!(eventually(|| !recorder.control.is_active()).await);
    recorder.on_ended(&record(LIST), Clock.now());
    finish(&recorder).await;
    let ends = [first, second].map(|file| lines(&file.path()));
    let arrivals = |lines: &[Value]| {
        lines
            .iter()
            .filter(|line| line["at_ms"].is_number())
            .count()
    };
    assert_eq!(
        ends.each_ref()
            .map(|lines| arrivals(lines))
            .iter()
            .sum::<usize>(),
        2
    );
    for lines in ends {
        assert_eq!(lines[0]["record"]["version"], 1);
        assert_eq!(lines[lines.len() - 1]["record"]["end"], "stopped");
    }
}

fn live_objects(registry: &Registry) -> Arc<LiveObjects> {
    let config = controller::ControllerConfig {
        server_concurrency_limit: 600,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    LiveObjects::start(config, FlowcontrolSources::default(), registry)
}

#[tokio::test]
async fn a_stream_begins_with_the_names_that_its_reader_keeps() {
    let registry = Registry::new();
    let live = live_objects(&registry);
    let metrics = RecordingMetrics::register(&registry);
    let recorder = Recorder::new(metrics, Some(live));
    let mut streams: Vec<_> = (0..MAX_STREAMS)
        .map(|_| recorder.subscribe(true).unwrap())
        .collect();
    assert!(recorder.subscribe(true).is_none(), "too many");
    recorder.on_ended(&record(LIST), Clock.now());
    let mut lines = streams.pop().unwrap();
    let mut text = String::new();
    while text.lines().count() < 2 {
        let batch = lines.recv().await.unwrap();
        text.push_str(std::str::from_utf8(&batch).unwrap());
    }
    let mut parsed = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kept = &parsed.next().unwrap()["record"]["kept"];
    assert!(
        kept["groups"]
            .as_array()
            .unwrap()
            .contains(&"system:nodes".into())
    );
    assert_eq!(parsed.next().unwrap()["source"], "192.0.2.1");
    drop((lines, streams));
    assert!(eventually(|| !recorder.control.is_active()).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_recorded_with_its_decision_and_the_times_that_follow_from_it() {
    let (registry, file) = (Registry::new(), TempRecord::new());
    let live = live_objects(&registry);
    let controller = Arc::clone(live.controller());
    let recorder = Recorder::new(RecordingMetrics::register(&registry), Some(live));
    let prepared = PreparedRecording::open(file.config()).unwrap();
    recorder.replace(Some(prepared)).unwrap();
    for (target, service_ms) in [(LIST, 500), ("/api/v1/pods?watch=1", 20)] {
        let mut request = record(target);
        // It waits for a rate limit first, which is not service.
        advance(Duration::from_secs(2)).await;
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let times = RequestTimes::at(Clock.now());
        let permit = controller.admit(&info, &alice(), times).await.unwrap();
        request.decision = Some(permit.decision().clone());
        advance(Duration::from_millis(service_ms)).await;
        if request.long_running {
            recorder.on_response_started(&request);
        } else {
            recorder.on_ended(&request, Clock.now());
        }
    }
    tokio::time::resume();
    finish(&recorder).await;
    let lines = lines(&file.path());
    let [_, list, watch, _] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(
        (&list["service_ms"], &watch["service_ms"]),
        (&500.0.into(), &20.0.into())
    );
    let between = watch["at_ms"].as_f64().unwrap() - list["at_ms"].as_f64().unwrap();
    assert!((between - 2500.0).abs() < 1.0, "{between}");
    assert_eq!(list["flow_schema"], "global-default");
    assert_eq!(list["priority_level"], "global-default");
    assert_eq!(list["seats"], 1);
    let text = fs::read(file.path()).unwrap();
    let lines = text.split(|byte| *byte == b'\n');
    for line in lines.filter(|line| !line.is_empty()) {
        let line = ArrivalLine::parse(line).unwrap();
        assert_eq!(line.unknown_fields, 0, "replay knows every field");
    }
}
