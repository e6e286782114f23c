//! Searches over whole logs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::objective::Objective;
use super::repeatable_log::RepeatableLog;
use super::search;
use super::search::{SearchReport, SearchRequest, search};
use super::variants::InFlightFlags;
use crate::reader::input::LogSource;
use crate::reader::merge::ReadOptions;
use crate::run::replay;
use crate::simulation::{ReplayModel, ReplayedPolicies};
use crate::tests::{assert_golden, policies, storm_log};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_limits::max_in_flight::MaxInFlightConfig;

const TODAY: InFlightFlags = InFlightFlags {
    max_requests_inflight: 400,
    max_mutating_requests_inflight: 200,
};

/// A log in a folder of its own.
pub(super) struct LogFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl LogFile {
    pub(super) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, text).unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    pub(super) fn sources(&self) -> [LogSource; 1] {
        [LogSource::File(self.path.clone())]
    }

    pub(super) fn read(&self) -> RepeatableLog {
        read(&self.sources()).unwrap()
    }
}

fn read(sources: &[LogSource]) -> Result<RepeatableLog, super::repeatable_log::RepeatError> {
    let (policies, model) = (policies("flags", 600), ReplayModel::default());
    RepeatableLog::read(sources, &options(), &policies, model, Instant::now())
}

pub(super) fn options() -> ReadOptions {
    ReadOptions {
        window_us: 60_000_000,
        strict: false,
        progress: std::sync::Arc::default(),
    }
}

/// A search with the built-in objects and 600 seats.
fn run(log: &RepeatableLog, objectives: &[&str]) -> Result<SearchReport, String> {
    run_under(&policies("flags", TODAY.total()), log, objectives)
}

fn run_under(
    policies: &ReplayedPolicies,
    log: &RepeatableLog,
    objectives: &[&str],
) -> Result<SearchReport, String> {
    let objectives = objectives.iter().map(|text| Objective::parse(text));
    let objectives: Vec<Objective> = objectives.collect::<Result<_, _>>().unwrap();
    let found = search(SearchRequest {
        log,
        policies,
        flags: TODAY,
        objectives: &objectives,
    });
    found.map_err(|why| why.to_string())
}

#[test]
fn a_replay_with_the_total_that_was_found_has_what_was_asked_for_and_one_seat_less_has_not() {
    let file = LogFile::new(&storm_log());
    let objectives = ["wait_p99(user=bob) < 20ms", "rejected = 0"];
    let report = run(&file.read(), &objectives).unwrap();
    let total = report.found.unwrap().total;
    assert!(total > 2, "{total}");
    let holds = |total| {
        let policies = [policies("found", total)];
        let (options, model) = (options(), ReplayModel::default());
        let report = replay(&file.sources(), &options, &policies, model, Instant::now());
        let run = report.unwrap().runs.remove(0);
        let mut users = run.users.top.iter();
        let bob = users.find(|user| user.name == "bob").unwrap();
        bob.wait.p99_ms < 20.0 && run.total.rejected == 0
    };
    assert!(holds(total), "{total}");
    assert!(!holds(total - 1), "{total}");
    for tried in &report.tried {
        assert_eq!(tried.holds, holds(tried.total), "{}", tried.total);
    }
}

#[test]
fn a_part_of_the_log_needs_what_a_log_of_it_alone_needs() {
    // The requests of each second are twice as many as those of the second before.
    let line = |n: u32, at: u32| {
        format!(
            r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"u{n}","service_ms":500}}"#
        ) + "\n"
    };
    let second = |number: u32| -> String {
        let requests = 0..(4 << number);
        requests.map(|n| line(n, number * 1000 + n)).collect()
    };
    let last = line(0, 4999);
    let whole = LogFile::new(&((0..5).map(second).collect::<String>() + &last));
    let report = run(&whole.read(), &["wait_max = 0s"]).unwrap();
    for number in 0..4 {
        let alone = LogFile::new(&second(number));
        let alone = run(&alone.read(), &["wait_max = 0s"]).unwrap();
        let found = alone.found.map(|found| found.total);
        let at = usize::try_from(number).unwrap();
        assert_eq!(report.parts[at], found, "{:?}", report.parts);
    }
    assert!(report.parts.is_sorted(), "{:?}", report.parts);
}

#[test]
fn a_part_without_requests_of_the_objectives_says_nothing() {
    let line = |at: u32, user: &str| {
        format!(
            r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"{user}","service_ms":5}}"#
        ) + "\n"
    };
    let log = line(0, "alice") + &line(100, "bob") + &line(1000, "alice");
    let report = run(&LogFile::new(&log).read(), &["rejected(user=bob) = 0"]).unwrap();
    assert_eq!(report.parts, [Some(1), None, None, None, None]);
    let text = search::render(&report);
    let expected = "each of 5 equal parts of the log alone: 1, -, -, -, -.";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_pipe_cannot_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    for source in [LogSource::from_path(&path), LogSource::Stdin] {
        let why = read(&[source]).unwrap_err().to_string();
        assert!(why.contains("can be read only once: give a file"), "{why}");
    }
}

#[test]
fn with_max_in_flight_no_limit_of_the_result_is_off() {
    let lines = (0..200).map(|n| {
        let at = n * 10;
        format!(
            r#"{{"at_ms":{at},"method":"POST","url":"/api/v1/pods","user":"alice","service_ms":5}}"#
        ) + "\n"
    });
    let file = LogFile::new(&lines.collect::<String>());
    let log = file.read();
    let mut configured = policies("flags", TODAY.total());
    configured.limits.concurrency = ConcurrencyPolicy::MaxInFlight(MaxInFlightConfig {
        read_only: TODAY.max_requests_inflight.into(),
        mutating: TODAY.max_mutating_requests_inflight.into(),
    });
    let report = run_under(&configured, &log, &["rejected(level=mutating) = 0"]).unwrap();
    let InFlightFlags {
        max_requests_inflight,
        max_mutating_requests_inflight,
    } = report.found.unwrap().flags;
    assert_eq!(
        (max_requests_inflight, max_mutating_requests_inflight),
        (1, 1)
    );
    assert!(report.tried.iter().all(|tried| tried.total > 1));
}

#[test]
fn what_never_holds_is_not_found() {
    let file = LogFile::new(&storm_log());
    let log = file.read();
    let report = run(&log, &["rejected = 100%"]).unwrap();
    assert_eq!(report.found, None);
    let text = search::render(&report);
    let expected = "The objectives hold at no total up to 131072";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn an_objective_about_no_request_is_an_error() {
    let file = LogFile::new(&storm_log());
    let log = file.read();
    let why = run(&log, &["rejected(schema=system-node) = 0"]).unwrap_err();
    assert_eq!(
        why,
        "--search 'rejected(schema=system-node) = 0': no request of the log has the schema \"system-node\", so it would hold \
         whatever the total; there are requests of \"global-default\", \"system-nodes\""
    );
}

#[test]
fn a_group_is_measured_by_the_requests_of_its_users() {
    let file = LogFile::new(&storm_log());
    let log = file.read();
    let same = [
        [
            "wait_p99(group=devs) < 20ms",
            "wait_p99(level=global-default) < 20ms",
        ],
        [
            "rejected(group=system:nodes) = 0",
            "rejected(user=system:node:n1) = 0",
        ],
        ["rejected(group=system:authenticated) = 0", "rejected = 0"],
    ];
    for objectives in same {
        let report = run(&log, &objectives).unwrap();
        let [by_group, other] = &report.objectives[..] else {
            panic!("{report:?}");
        };
        assert_eq!(by_group.configured, other.configured, "{objectives:?}");
        assert_eq!(by_group.found, other.found, "{objectives:?}");
    }
    let why = run(&log, &["rejected(group=dev) = 0"]).unwrap_err();
    let known = "there are requests of \"devs\", \"system:authenticated\", \"system:nodes\"";
    assert!(why.contains(known), "{why}");
}

#[test]
fn a_search_is_the_golden_one() {
    let file = LogFile::new(&storm_log());
    let log = file.read();
    let objectives = [
        "wait_p99(level=global-default) < 20ms",
        "rejected(user=bob) = 0",
    ];
    let report = run(&log, &objectives).unwrap();
    assert_golden("search.txt", &search::render(&report));
    let value: Value = serde_json::to_value(&report).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    assert_golden("search.json", &text);
}
