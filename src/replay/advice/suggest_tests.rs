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
use crate::api::flowcontrol::Object;
use crate::document;
use crate::document::Diagnostics;
use crate::encoding::printable::HOSTILE_NAMES;
use crate::encoding::printable::is_printable;
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
    let limited: Vec<_> = report.client_limits.iter().collect();
    let [limited] = &*limited else {
        panic!("{limited:?}");
    };
    let account = limited.pointer("/rules/0/subjects/0/serviceAccount/name");
    assert_eq!(account, Some(&"runner".into()), "others send too little");
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

/// The built-in objects as a cluster has them, and one of an operator's own.
fn exported() -> Vec<Object> {
    let mut objects = bootstrap::add_missing(Vec::new());
    for (n, object) in objects.iter_mut().enumerate() {
        object.metadata_mut().uid = format!("uid-{n}");
        object.metadata_mut().resource_version = n.to_string();
    }
    let mut own = objects
        .iter()
        .find(|object| object.metadata().name == "service-accounts")
        .unwrap()
        .clone();
    own.metadata_mut().name = "operators-own".to_owned();
    own.metadata_mut().annotations.clear();
    objects.push(own);
    objects
}

#[test]
fn only_objects_that_change_are_to_be_applied() {
    let mut before = policies("flags", FEW.total());
    let ConcurrencyPolicy::Fairness { objects, .. } = &mut before.limits.concurrency else {
        unreachable!("they are fair");
    };
    *objects = exported();
    let settings = KeptSettings::new(FEW);
    let log = LogFile::new(&pipeline_log()).read();
    let report = suggest(&log, &before, &settings, trial_model()).unwrap();
    let names = |objects: &[serde_json::Value]| -> Vec<String> {
        let name =
            |object: &serde_json::Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        objects.iter().map(name).collect()
    };
    assert_eq!(
        names(&report.objects),
        ["workload-low", "own-ci-runner", "own-ci-runner"]
    );
    assert_eq!(names(&report.unchanged), ["operators-own"]);
    let of_cluster = |object: &&serde_json::Value| {
        object["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] == "false"
    };
    assert_eq!(report.objects.iter().filter(of_cluster).count(), 1);
    // weir.yaml still has all objects: the unchanged ones of the configuration, too.
    let files = output::files(&report, &settings, &|name| format!("/suggested/{name}"));
    let config = &files.last().unwrap().1;
    assert!(
        config.contains(
            "flowcontrolConfig:\n  - \"/suggested/flowcontrol.yaml\"\n  - \"/suggested/flowcontrol-unchanged.yaml\"\n"
        ),
        "{config}"
    );
}

/// A user that floods, one of the control plane that does, too, and some others.
fn flood_log(flooding: &str, own: &str) -> String {
    let mut lines = Vec::new();
    let mut request = |at: u32, user: &str| {
        let user = serde_json::Value::from(user);
        lines.push((at, format!(
            r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/namespaces/a/pods/p","user":{user},"groups":["devs","system:authenticated"],"service_ms":3}}"#
        )));
    };
    for n in 0..6000 {
        request(n * 2, flooding);
        request(n * 2 + 1, own);
    }
    for n in 0..300 {
        request(n * 40, "alice");
        request(n * 40, "bob");
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

#[test]
fn no_limit_is_another_users_rate_and_none_is_for_the_control_plane() {
    let file = LogFile::new(&flood_log("flood", "system:kube-controller-manager"));
    let report = run(&file, MANY);
    let limits: Vec<_> = report
        .client_limits
        .iter()
        .map(|rule| {
            let subjects = rule["rules"][0]["subjects"].as_array().unwrap();
            assert_eq!(subjects.len(), 1, "{rule}");
            let user = subjects[0]["user"]["name"].as_str().unwrap();
            (user.to_owned(), rule["requests"]["qps"].as_u64().unwrap())
        })
        .collect();
    let limit = |user: &str, qps| (user.to_owned(), qps);
    assert_eq!(
        limits,
        [limit("flood", 500), limit("alice", 25), limit("bob", 25)]
    );
    assert_eq!(report.changes.losers, []);
}

#[test]
fn names_stay_in_the_files_of_a_suggestion() {
    // Two of the names in a log: a suggestion lists those with most requests.
    for names in HOSTILE_NAMES.chunks(2) {
        let log = flood_log(names[0], names[names.len() - 1]);
        let report = run(&LogFile::new(&log), MANY);
        let settings = KeptSettings::new(MANY);
        let mut texts = vec![output::render(&report, &settings)];
        let files = output::files(&report, &settings, &str::to_owned);
        texts.extend(files.into_iter().map(|(_, text)| text));
        for text in texts {
            let is_plain = |c: char| c == '\n' || is_printable(c);
            assert!(text.chars().all(is_plain), "{names:?}: {text:?}");
            let mut diagnostics = Diagnostics::default();
            let _ = document::parse_all("suggested", &text, &mut diagnostics);
            assert_eq!(diagnostics.to_string(), "", "{text}");
        }
    }
}
