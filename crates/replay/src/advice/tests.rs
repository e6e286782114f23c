//! Searches over whole logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::objective::Objective;
use super::repeatable_log::RepeatableLog;
use super::search::find::{SearchRequest, SharesSearch, search};
use super::search::model::{SearchReport, SeatsChange};
use super::search::output;
use super::trials::{TrialModel, run_one};
use super::variants::{InFlightFlags, with_shares};
use crate::reader::input::LogSource;
use crate::reader::merge::ReadOptions;
use crate::run::replay;
use crate::simulation::ReplayModel;
use crate::tests::{assert_golden, policies, storm_log};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::bootstrap;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
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
        RepeatableLog::read(&self.sources(), &options(), &policies("flags", 600)).unwrap()
    }
}

pub(super) fn options() -> ReadOptions {
    ReadOptions {
        window_us: 60_000_000,
        strict: false,
        progress: std::sync::Arc::default(),
    }
}

pub(super) fn trial_model() -> TrialModel {
    TrialModel {
        model: ReplayModel::default(),
        base: Instant::now(),
    }
}

/// A search with the built-in objects and 600 seats.
fn run(
    log: &RepeatableLog,
    objectives: &[&str],
    shares: SharesSearch,
    resamples: u32,
) -> SearchReport {
    run_at(TODAY, log, objectives, shares, resamples)
}

fn run_at(
    flags: InFlightFlags,
    log: &RepeatableLog,
    objectives: &[&str],
    shares: SharesSearch,
    resamples: u32,
) -> SearchReport {
    let objectives = objectives.iter().map(|text| Objective::parse(text));
    let objectives: Vec<Objective> = objectives.collect::<Result<_, _>>().unwrap();
    let request = SearchRequest {
        policies: &policies("flags", flags.total()),
        flags,
        objectives: &objectives,
        shares,
        resamples,
        model: trial_model(),
    };
    search(log, &request).unwrap()
}

#[test]
fn a_replay_with_the_total_that_was_found_has_what_was_asked_for_and_one_seat_less_has_not() {
    let file = LogFile::new(&storm_log());
    let found = run(
        &file.read(),
        &["wait_p99(user=bob) < 20ms", "rejected = 0"],
        SharesSearch::Configured,
        0,
    );
    let total = found.found.as_ref().unwrap().totals.total;
    assert!(total > 2, "{total}");
    let holds = |total| {
        let policies = [policies("found", total)];
        let model = ReplayModel::default();
        let report = replay(
            &file.sources(),
            &options(),
            &policies,
            model,
            Instant::now(),
        );
        let run = report.unwrap().runs.remove(0);
        let bob = run
            .users
            .top
            .iter()
            .find(|user| user.name == "bob")
            .unwrap();
        bob.wait.p99_ms < 20.0 && run.total.rejected == 0
    };
    assert!(holds(total), "{total}");
    assert!(!holds(total - 1), "{total}");
    for tried in &found.tried {
        assert_eq!(tried.holds, holds(tried.total), "{}", tried.total);
    }
}

#[test]
fn a_log_that_is_read_again_gives_what_a_log_in_memory_gives() {
    let file = LogFile::new(&storm_log());
    let kept = run(&file.read(), &["rejected = 0"], SharesSearch::Configured, 3);
    assert!(kept.kept_in_memory);
    let again =
        RepeatableLog::read_keeping(&file.sources(), &options(), &policies("flags", 600), 0);
    let again = again.unwrap();
    let again = run(&again, &["rejected = 0"], SharesSearch::Configured, 3);
    assert!(!again.kept_in_memory);
    let expected = SearchReport {
        kept_in_memory: false,
        ..kept
    };
    assert_eq!(again, expected);
}

#[test]
fn a_pipe_with_more_than_is_kept_cannot_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let source = LogSource::from_path(&path);
    let writer = std::thread::spawn(move || fs::write(path, storm_log()));
    let policies = policies("flags", 600);
    let read = RepeatableLog::read_keeping(&[source], &options(), &policies, 0);
    writer.join().unwrap().unwrap();
    let why = read.unwrap_err().to_string();
    assert!(why.contains("pipe: more than 128 MiB"), "{why}");
}

#[test]
fn other_shares_need_a_smaller_total_and_are_printed_as_objects_that_are_read_again() {
    let log = LogFile::new(&storm_log()).read();
    let objectives = ["wait_p99(level=global-default) < 20ms", "rejected = 0"];
    let same = run(&log, &objectives, SharesSearch::Configured, 0)
        .found
        .unwrap();
    let report = run(&log, &objectives, SharesSearch::ForSmallerTotal, 0);
    let other = report.found.as_ref().unwrap();
    assert!(other.totals.total < same.totals.total, "{other:?}");
    let changed: Vec<&str> = other.shares.iter().map(|one| one.level.as_str()).collect();
    assert!(changed.contains(&"global-default"), "{changed:?}");

    let text = output::render_yaml(&report);
    let mut diagnostics = Diagnostics::default();
    let documents = document::parse_all("search.yaml", &text, &mut diagnostics);
    let objects = flowcontrol::read(&documents, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "", "{text}");
    assert_eq!(objects.len(), changed.len(), "{text}");
    assert!(
        text.contains("apf.kubernetes.io/autoupdate-spec: \"false\""),
        "{text}"
    );
    // With these objects and this total the objectives hold.
    let mut applied = policies("applied", other.totals.total);
    let ConcurrencyPolicy::Fairness { objects: all, .. } = &mut applied.limits.concurrency else {
        unreachable!("they are fair");
    };
    *all = bootstrap::add_missing(objects);
    let file = LogFile::new(&storm_log());
    let model = ReplayModel::default();
    let report = replay(
        &file.sources(),
        &options(),
        &[applied],
        model,
        Instant::now(),
    );
    let run = report.unwrap().runs.remove(0);
    let levels = run.levels.iter();
    let mut level = levels.filter(|level| level.requests.name == "global-default");
    assert!(level.next().unwrap().requests.wait.p99_ms < 20.0);
    assert_eq!(run.total.rejected, 0);
}

const FEW: InFlightFlags = InFlightFlags {
    max_requests_inflight: 100,
    max_mutating_requests_inflight: 50,
};

/// Whether objectives hold over a log with these shares.
fn hold_with_shares(
    log: &RepeatableLog,
    flags: InFlightFlags,
    objectives: &[&str],
    shares: &BTreeMap<String, i32>,
) -> bool {
    let policies = with_shares(&policies("shares", flags.total()), shares);
    let mut simulation = run_one(log, trial_model(), &policies).unwrap();
    let objectives = objectives.iter().map(|text| Objective::parse(text));
    let objectives: Vec<Objective> = objectives.collect::<Result<_, _>>().unwrap();
    let selectors = objectives.iter();
    let selectors = selectors.map(|objective| objective.selector().cloned());
    let measured = simulation.measure(&selectors.collect::<Vec<_>>());
    let mut judged = objectives.iter().zip(&measured);
    judged.all(|(objective, measured)| objective.judge(measured).holds)
}

#[test]
fn at_the_same_total_the_shares_that_are_found_are_enough_and_one_share_less_is_not() {
    let log = LogFile::new(&storm_log()).read();
    let objective = "wait_p99(level=global-default) < 20ms";
    let report = run_at(FEW, &log, &[objective], SharesSearch::AtSameTotal, 4);
    assert!(!report.objectives[0].configured.holds, "{report:?}");
    let found = report.found.as_ref().unwrap();
    assert_eq!((found.totals.total, found.totals.flags), (FEW.total(), FEW));
    let [change] = &found.shares[..] else {
        panic!("{:?}", found.shares);
    };
    assert_eq!(change.level, "global-default");
    let holds = |shares: i32| {
        let shares = BTreeMap::from([(change.level.clone(), shares)]);
        hold_with_shares(&log, FEW, &[objective], &shares)
    };
    assert!(holds(change.found), "{change:?}");
    assert!(!holds(change.found - 1), "{change:?}");
    assert_eq!(found.objects.len(), 1, "{:?}", found.objects);
    let level = |seats: &&SeatsChange| seats.level == change.level;
    let seats = found.seats.iter().find(level).unwrap();
    assert!(seats.configured < seats.found, "{seats:?}");
    // Others have less by the same seats, but for rounding.
    let sum = |of: fn(&SeatsChange) -> u32| found.seats.iter().map(of).sum::<u32>();
    let [before, after] = [sum(|one| one.configured), sum(|one| one.found)];
    assert!(before.abs_diff(after) <= 10, "{:?}", found.seats);
    assert!((1..=4).contains(&found.resampled.unwrap().of));
    if let Some(surer) = found.surer {
        assert!(surer.held * 10 >= surer.of * 9, "{surer:?}");
        assert!(found.surer_shares[0].found >= change.found);
    }
}

#[test]
fn at_the_same_total_shares_that_are_enough_stay() {
    let log = LogFile::new(&storm_log()).read();
    let report = run(&log, &["rejected = 100%"], SharesSearch::AtSameTotal, 2);
    assert_eq!(report.found, None);
    let text = output::render_table(&report);
    assert!(text.contains("do the objectives hold at 600."), "{text}");

    let objective = "rejected(level=workload-low) <= 100%";
    let file = LogFile::new(&storm_log().replace("devs", "system:serviceaccounts"));
    let report = run(&file.read(), &[objective], SharesSearch::AtSameTotal, 2);
    let found = report.found.as_ref().unwrap();
    assert_eq!((&found.shares[..], &found.objects[..]), (&[][..], &[][..]));
    assert_eq!((report.tried_shares, &found.seats[..]), (Some(1), &[][..]));
    let text = output::render_table(&report);
    assert!(text.contains("hold with the configured shares"), "{text}");
}

#[test]
fn at_the_same_total_several_levels_may_change() {
    let log = LogFile::new(&storm_log()).read();
    let objectives = [
        "wait_p99(level=global-default) < 20ms",
        "wait_max(level=system) < 1ms",
    ];
    let flags = InFlightFlags {
        max_requests_inflight: 70,
        max_mutating_requests_inflight: 30,
    };
    let report = run_at(flags, &log, &objectives, SharesSearch::AtSameTotal, 0);
    let found = report.found.as_ref().unwrap();
    let shares = found.shares.iter();
    let shares: BTreeMap<String, i32> = shares
        .map(|change| (change.level.clone(), change.found))
        .collect();
    let holds = |shares: &BTreeMap<String, i32>| hold_with_shares(&log, flags, &objectives, shares);
    assert!(holds(&shares), "{shares:?}");
    for (level, found) in &shares {
        let mut less = shares.clone();
        less.insert(level.clone(), found - 1);
        assert!(!holds(&less), "{level} of {shares:?}");
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
    let log = LogFile::new(&lines.collect::<String>()).read();
    let mut configured = policies("flags", TODAY.total());
    configured.limits.concurrency = ConcurrencyPolicy::MaxInFlight(MaxInFlightConfig {
        read_only: TODAY.max_requests_inflight.into(),
        mutating: TODAY.max_mutating_requests_inflight.into(),
    });
    let request = SearchRequest {
        policies: &configured,
        flags: TODAY,
        objectives: &[Objective::parse("rejected(level=mutating) = 0").unwrap()],
        shares: SharesSearch::Configured,
        resamples: 0,
        model: trial_model(),
    };
    let report = search(&log, &request).unwrap();
    let flags = report.found.unwrap().totals.flags;
    assert_eq!(
        (
            flags.max_requests_inflight,
            flags.max_mutating_requests_inflight
        ),
        (1, 1)
    );
    assert!(report.tried.iter().all(|tried| tried.total > 1));
}

#[test]
fn drawn_logs_without_requests_of_the_objectives_say_nothing() {
    // The only minute of a user is left out of some drawn logs.
    let reports = (0..20).map(|n| {
        let line = format!(
            r#"{{"at_ms":1,"method":"GET","url":"/api/v1/pods","user":"u{n}","service_ms":5}}"#
        );
        let log = LogFile::new(&(line + "\n")).read();
        run(
            &log,
            &[&format!("rejected(user=u{n}) = 0")],
            SharesSearch::Configured,
            1,
        )
    });
    let is_unknown = |report: &SearchReport| {
        let resampled = report.found.as_ref().unwrap().resampled.unwrap();
        resampled.of == 0
    };
    let report = reports.into_iter().find(is_unknown).unwrap();
    assert_eq!(report.found.as_ref().unwrap().surer, None);
    let text = output::render_table(&report);
    assert!(text.contains("not known how sure: "), "{text}");
    assert!(!text.contains("nine of ten"), "{text}");
    // One run for the only drawn log, besides those of the search.
    let searched = u64::try_from(report.tried.len()).unwrap() + 2;
    assert_eq!(report.runs, searched + 1);
}

#[test]
fn what_never_holds_is_not_found() {
    let log = LogFile::new(&storm_log()).read();
    let report = run(&log, &["rejected = 100%"], SharesSearch::Configured, 20);
    assert_eq!(report.found, None);
    let text = output::render_table(&report);
    assert!(
        text.contains("The objectives hold at no total up to 131072"),
        "{text}"
    );
    assert!(
        output::render_yaml(&report)
            .lines()
            .all(|line| line.starts_with('#'))
    );
}

#[test]
fn an_objective_about_no_request_is_an_error() {
    let log = LogFile::new(&storm_log()).read();
    let objectives = [Objective::parse("rejected(schema=system-node) = 0").unwrap()];
    let request = SearchRequest {
        policies: &policies("flags", 600),
        flags: TODAY,
        objectives: &objectives,
        shares: SharesSearch::Configured,
        resamples: 0,
        model: trial_model(),
    };
    let why = search(&log, &request).unwrap_err().to_string();
    assert_eq!(
        why,
        "--search 'rejected(schema=system-node) = 0': no request of the log has the schema \"system-node\", so it would hold \
         whatever the total; there are requests of \"global-default\", \"system-nodes\""
    );
}

#[test]
fn a_group_is_measured_by_the_requests_of_its_users() {
    let log = LogFile::new(&storm_log()).read();
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
        let report = run(&log, &objectives, SharesSearch::Configured, 0);
        let [by_group, other] = &report.objectives[..] else {
            panic!("{report:?}");
        };
        assert_eq!(by_group.configured, other.configured, "{objectives:?}");
        assert_eq!(by_group.found, other.found, "{objectives:?}");
    }
    let request = SearchRequest {
        policies: &policies("flags", 600),
        flags: TODAY,
        objectives: &[Objective::parse("rejected(group=dev) = 0").unwrap()],
        shares: SharesSearch::Configured,
        resamples: 0,
        model: trial_model(),
    };
    let why = search(&log, &request).unwrap_err().to_string();
    let known = "there are requests of \"devs\", \"system:authenticated\", \"system:nodes\"";
    assert!(why.contains(known), "{why}");
}

#[test]
fn searches_are_the_golden_ones() {
    let log = LogFile::new(&storm_log()).read();
    let objectives = [
        "wait_p99(level=global-default) < 20ms",
        "rejected(user=bob) = 0",
    ];
    let report = run(&log, &objectives, SharesSearch::ForSmallerTotal, 6);
    assert_golden("search.txt", &output::render_table(&report));
    assert_golden("search.yaml", &output::render_yaml(&report));
    let value: Value = serde_json::to_value(&report).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
    assert_golden("search.json", &text);
    let report = run_at(FEW, &log, &objectives, SharesSearch::AtSameTotal, 6);
    assert_golden("shares.txt", &output::render_table(&report));
    assert_golden("shares.yaml", &output::render_yaml(&report));
}
