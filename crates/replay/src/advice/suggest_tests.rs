//! Suggestions over whole logs.

use std::collections::BTreeSet;
use std::time::Instant;

use super::suggest::find::suggest;
use super::suggest::limits;
use super::suggest::output;
use super::suggest::output::SuggestReport;
use super::suggest::settings::KeptSettings;
use super::tests::{LogFile, options};
use super::variants::InFlightFlags;
use crate::run::replay;
use crate::simulation::{ReplayModel, ReplayedPolicies};
use crate::tests::{assert_golden, policies};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::matching::Subjects;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::encoding::printable::{HOSTILE_NAMES, is_printable};

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
    let own = report.own_level.as_ref().map(|own| own.user.as_str());
    assert_eq!(own, Some("system:serviceaccount:ci:runner"), "{report:#?}");
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
    assert_eq!(report.own_level, None);
    assert!(report.objects.is_empty(), "{:?}", report.objects);
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
    assert_eq!(report.changes.losers, []);
    // A dry run is replayed as if it were none. The bucket of the rule and its rate are those of the proxy: with less, requests are rejected.
    let mut policies = policies("less", MANY.total());
    let mut rules = report.client_limits;
    *rules[0].pointer_mut("/requests/qps").unwrap() = 100.into();
    policies.limits.rates.clients = limits::parse(&rules);
    let less = log.run_one(&policies).unwrap().finish();
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
    // Written by hand. The object in the cluster has the annotation.
    for object in &mut objects {
        if object.metadata().name == "workload-low" {
            object.metadata_mut().annotations.clear();
        }
    }
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
    let file = LogFile::new(&pipeline_log());
    let log = file.read();
    let report = suggest(&log, &before, &settings).unwrap();
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
    let kept = "The annotation keeps kube-apiserver from setting them back";
    assert!(
        output::render(&report, &settings)
            .replace("\n# ", " ")
            .contains(kept)
    );
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

#[test]
fn a_level_of_an_operators_own_has_no_annotation_and_no_comment_about_one() {
    let mut before = policies("flags", FEW.total());
    let ConcurrencyPolicy::Fairness { objects, .. } = &mut before.limits.concurrency else {
        unreachable!("they are fair");
    };
    for object in objects {
        match object {
            Object::FlowSchema(schema) if schema.metadata.name == "service-accounts" => {
                "team".clone_into(&mut schema.spec.priority_level_configuration);
            }
            Object::PriorityLevelConfiguration(level) if level.metadata.name == "workload-low" => {
                level.metadata.annotations.clear();
                "team".clone_into(&mut level.metadata.name);
            }
            Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => {}
        }
    }
    let settings = KeptSettings::new(FEW);
    let file = LogFile::new(&pipeline_log());
    let log = file.read();
    let report = suggest(&log, &before, &settings).unwrap();
    let text = output::render(&report, &settings);
    assert!(
        text.contains("of its 100 shares go to own-ci-runner"),
        "{text}"
    );
    assert!(!text.contains("The annotation keeps"), "{text}");
    assert!(!text.contains(r#"autoupdate-spec: "false""#), "{text}");
}

/// Users and the events that they write a second.
type Writers<'w> = &'w [(&'w str, u32)];

/// Users write events at these rates for ten seconds.
fn event_log(writers: Writers<'_>) -> LogFile {
    let mut lines = Vec::new();
    for (user, rate) in writers {
        for n in 0..rate * 10 {
            let at = n * 1000 / rate;
            lines.push((at, format!(
                r#"{{"at_ms":{at},"method":"POST","url":"/api/v1/namespaces/a/events","user":"{user}","service_ms":1}}"#
            )));
        }
    }
    lines.sort();
    let lines: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
    LogFile::new(&lines)
}

const QUIET: [(&str, u32); 3] = [
    ("system:node:n1", 6),
    ("system:kube-scheduler", 4),
    ("system:serviceaccount:apps:web", 2),
];

fn rules_of_events(report: &SuggestReport) -> Vec<&serde_json::Value> {
    let rules = report.client_limits.iter();
    let of_events =
        |rule: &&serde_json::Value| rule["name"].as_str().unwrap().starts_with("events");
    rules.filter(of_events).collect()
}

#[test]
fn a_flood_of_events_is_limited_for_its_user_alone() {
    let mut writers = QUIET.to_vec();
    writers.push(("system:serviceaccount:ci:noisy", 60));
    let log = event_log(&writers);
    let report = run(&log, MANY);
    let [rule] = rules_of_events(&report)[..] else {
        panic!("{:?}", report.client_limits);
    };
    assert_eq!(rule["name"], "events-ci-noisy");
    assert_eq!(rule["requests"]["qps"], 60);
    let account = &rule["rules"][0]["subjects"][0]["serviceAccount"];
    assert_eq!(
        (&account["namespace"], &account["name"]),
        (&"ci".into(), &"noisy".into())
    );
    assert_eq!(report.changes.losers, []);

    // Where the configuration has rules, these are kept, and no others are suggested.
    let mut before = policies("flags", MANY.total());
    before.limits.rates.clients = limits::parse(&report.client_limits[..1]);
    let report = suggest(&log.read(), &before, &KeptSettings::new(MANY)).unwrap();
    assert!(report.client_limits.is_empty(), "{report:#?}");
    let note = "The configuration has clientLimits: they are kept";
    assert!(report.notes.iter().any(|one| one.starts_with(note)));
}

#[test]
fn events_are_not_limited_where_no_user_floods() {
    let cases: [Writers<'_>; 4] = [
        &[],
        &[("system:node:n2", 500)],
        &[("alice", 60), ("system:kube-controller-manager", 50)],
        &[("alice", 40), ("bob", 40)],
    ];
    for writers in cases {
        let report = run(&event_log(&[&QUIET[..], writers].concat()), MANY);
        assert!(rules_of_events(&report).is_empty(), "{report:#?}");
        let is_why = |note: &String| note.starts_with("No user outside of the control plane");
        assert!(report.notes.iter().any(is_why), "{:?}", report.notes);
    }
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
        // A start reads them all, and none is about more than its user.
        let rules = limits::parse(&report.client_limits);
        assert_eq!(rules.len(), report.client_limits.len(), "{names:?}");
        let others = [
            "system:kube-controller-manager",
            "system:serviceaccount:ci:other",
        ];
        for subjects in rules
            .iter()
            .flat_map(|rule| &rule.rules)
            .map(|rule| &*rule.subjects)
        {
            let subjects = Subjects::new([subjects]);
            for name in others {
                let other = UserInfo {
                    name: name.to_owned(),
                    ..UserInfo::default()
                };
                assert_eq!(subjects.lists_of(&other), 0, "{names:?}: {name}");
            }
        }
        let is_note = |note: &String| note.starts_with("Nothing is suggested for the user");
        let is_nameless = names.iter().any(|name| matches!(*name, "" | "*"));
        assert_eq!(report.notes.iter().any(is_note), is_nameless, "{names:?}");
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
