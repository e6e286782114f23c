//! Suggestions over whole logs.

use std::collections::BTreeSet;
use std::time::Instant;

use super::suggest::find::suggest;
use super::suggest::model::SuggestReport;
use super::suggest::output;
use super::suggest::settings::KeptSettings;
use super::tests::LogFile;
use super::tests::options;
use super::tests::trial_model;
use super::trials::run_one;
use super::variants::InFlightFlags;
use crate::api::flowcontrol;
use crate::document;
use crate::document::Diagnostics;
use crate::explain::explainer::ConcurrencyPolicy;
use crate::flowcontrol::bootstrap;
use crate::replay::run::replay;
use crate::replay::simulation::ReplayModel;
use crate::replay::simulation::ReplayedPolicies;
use crate::replay::tests::assert_golden;
use crate::replay::tests::policies;

/// A pipeline's service account lists without an end, and nine others send a request now and then.
/// A node writes events.
pub(super) fn pipeline_log() -> String {
    let mut lines = Vec::new();
    for n in 0..2400_u32 {
        lines.push((n * 5, format!(
            r#""method":"GET","url":"/api/v1/namespaces/ci/pods/p{n}","user":"system:serviceaccount:ci:runner","service_ms":400"#
        )));
    }
    for n in 0..300_u32 {
        let (at, user) = (n * 40 + 7, n % 9);
        lines.push((at, format!(
            r#""method":"GET","url":"/api/v1/namespaces/a/pods/q{n}","user":"system:serviceaccount:apps:app-{user}","service_ms":20"#
        )));
        if n % 10 == 0 {
            lines.push((at, r#""method":"POST","url":"/api/v1/namespaces/a/events","user":"system:node:n1","groups":["system:nodes","system:authenticated"],"service_ms":5"#.to_owned()));
        }
    }
    lines.sort();
    let lines = lines.into_iter();
    lines
        .map(|(at, fields)| format!("{{\"at_ms\":{at},{fields}}}\n"))
        .collect()
}

const MANY: InFlightFlags = InFlightFlags {
    max_requests_inflight: 4000,
    max_mutating_requests_inflight: 2000,
};

const FEW: InFlightFlags = InFlightFlags {
    max_requests_inflight: 80,
    max_mutating_requests_inflight: 40,
};

fn run(file: &LogFile, flags: InFlightFlags) -> SuggestReport {
    suggest(
        &file.read(),
        &policies("flags", flags.total()),
        &KeptSettings::new(flags),
        trial_model(),
    )
    .unwrap()
}

/// The policies with the objects of a suggestion, as they are printed.
fn with_suggestion(report: &SuggestReport, flags: InFlightFlags) -> ReplayedPolicies {
    let mut diagnostics = Diagnostics::default();
    let files = output::files(report, &KeptSettings::new(flags), &str::to_owned);
    let (_, text) = files
        .iter()
        .find(|(name, _)| *name == output::OBJECTS_FILE)
        .unwrap();
    let documents = document::parse_all("flowcontrol.yaml", text, &mut diagnostics);
    let read = flowcontrol::read(&documents, &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "", "{text}");
    let mut policies = policies("suggested", flags.total());
    let ConcurrencyPolicy::Fairness { objects, .. } = &mut policies.limits.concurrency else {
        unreachable!("they are fair");
    };
    *objects = bootstrap::add_missing(read);
    policies
}

#[test]
fn a_user_whose_requests_make_others_wait_gets_a_level_and_the_protected_are_no_worse() {
    let file = LogFile::new(&pipeline_log());
    let report = run(&file, FEW);
    let own: Vec<_> = report
        .own_levels
        .iter()
        .map(|own| own.user.as_str())
        .collect();
    assert_eq!(own, ["system:serviceaccount:ci:runner"], "{report:#?}");
    assert_eq!(report.protected.len(), 9, "{:?}", report.protected);

    let both = [
        policies("flags", FEW.total()),
        with_suggestion(&report, FEW),
    ];
    let model = ReplayModel::default();
    let compared = replay(&file.sources(), &options(), &both, model, Instant::now()).unwrap();
    let losers = compared.changes.losers.iter();
    let losers: BTreeSet<_> = losers.map(|change| change.user.as_str()).collect();
    for user in &report.protected {
        assert!(
            !losers.contains(user.as_str()),
            "{user}: {:#?}",
            compared.changes
        );
    }
    let [before, after] = [0, 1].map(|run| {
        let users = compared.runs[run].users.top.iter();
        let users = users.filter(|user| report.protected.contains(&user.name));
        users.map(|user| user.wait.total_s).sum::<f64>()
    });
    assert!(after < before / 2.0, "{before} s, then {after} s");
}

#[test]
fn where_no_request_waits_no_level_is_suggested() {
    let report = run(&LogFile::new(&pipeline_log()), MANY);
    assert_eq!(report.own_levels, []);
    assert!(report.objects.is_empty(), "{:?}", report.objects);
    let note = report
        .notes
        .iter()
        .find(|note| note.contains("no level of its own"));
    let note = note.unwrap();
    assert!(
        note.contains("takes 99 % of the seat-seconds of workload-low"),
        "{note}"
    );
    let unused: Vec<_> = report
        .never_reached
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert!(unused.contains(&"leader-election"), "{unused:?}");
    assert!(!unused.contains(&"service-accounts"), "{unused:?}");
}

#[test]
fn limits_that_the_log_stays_below_reject_nothing() {
    let file = LogFile::new(&pipeline_log());
    let log = file.read();
    let report = run(&file, MANY);
    assert_eq!(report.client_limits.len(), 1);
    assert!(report.event_limits.is_some());
    assert_eq!(report.changes.losers, []);
    // The bucket of the rule and its rate are those of the proxy: with less, requests are rejected.
    let mut policies = policies("less", MANY.total());
    let mut rules = report.client_limits;
    *rules[0].pointer_mut("/requests/qps").unwrap() = 100.into();
    policies.limits.rates = super::suggest::parse_rates_for_tests(&rules, &KeptSettings::new(MANY));
    let less = run_one(&log, trial_model(), &policies).unwrap().finish();
    assert!(less.run.total.rejected > 0);
}

#[test]
fn a_suggestion_is_the_golden_one() {
    let report = run(&LogFile::new(&pipeline_log()), FEW);
    assert_golden(
        "suggest.yaml",
        &output::render(&report, &KeptSettings::new(FEW)),
    );
    let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
    assert_golden("suggest.json", &json);
}
