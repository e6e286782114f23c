//! `weir replay --search` and `--suggest`: what they print is what `weir check` and `--compare` take.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::support::process;
use crate::support::process::{ConfigDir, FinishedRun};

const LOG: &str = "log.jsonl";

/// A service account that sends without an end, and three others that send now and then.
fn logged() -> ConfigDir {
    let files = ConfigDir::new();
    let mut text = String::new();
    for n in 0..1500 {
        let at = n * 5;
        let mut line = |name: &str, service_ms: u32| {
            writeln!(
                text,
                r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/namespaces/a/pods/p","user":"system:serviceaccount:{name}","service_ms":{service_ms}}}"#
            )
            .unwrap();
        };
        line("ci:runner", 400);
        if n % 20 == 0 {
            line(&format!("apps:app-{}", n / 20 % 3), 20);
        }
    }
    fs::write(files.path().join(LOG), text).unwrap();
    files
}

async fn run(files: &ConfigDir, arguments: &[&str]) -> FinishedRun {
    process::run(files, arguments).await
}

async fn json(files: &ConfigDir, arguments: &[&str]) -> Value {
    let finished = run(files, &[&["replay", LOG, "-o=json"], arguments].concat()).await;
    serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}"))
}

const FEW: [&str; 2] = [
    "--max-requests-inflight=80",
    "--max-mutating-requests-inflight=40",
];

#[tokio::test]
async fn a_suggestion_passes_the_check_and_those_whom_it_protects_are_no_worse() {
    let files = logged();
    let report = json(
        &files,
        &[&FEW[..], &["--suggest", "--suggest-dir=out"]].concat(),
    )
    .await;
    assert_eq!(
        report["own_level"]["user"], "system:serviceaccount:ci:runner",
        "{report:#}"
    );
    let protected: Vec<&str> = report["protected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| user.as_str().unwrap())
        .collect();
    assert!(!protected.is_empty(), "{report:#}");

    let checked = run(&files, &["check", "--strict", "-o=json", "out"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(
        checked["files"]["skipped"].as_array().unwrap().len(),
        0,
        "{checked:#}"
    );

    let compared = json(&files, &[&FEW[..], &["--compare=out/weir.yaml"]].concat()).await;
    assert_eq!(compared["changes"]["after"], "out/weir.yaml");
    for loser in compared["changes"]["losers"].as_array().unwrap() {
        let user = loser["user"].as_str().unwrap();
        assert!(!protected.contains(&user), "{loser:#}");
    }
    let winners = compared["changes"]["winners"].as_array().unwrap();
    assert!(!winners.is_empty(), "{compared:#}");

    // The stream that is printed passes, too.
    let printed = run(&files, &[&["replay", LOG, "--suggest"], &FEW[..]].concat()).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    fs::write(files.path().join("printed.yaml"), &printed.stdout).unwrap();
    let checked = run(&files, &["check", "--strict", "printed.yaml"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// The users who fare worse and better.
fn changes(report: &Value) -> [&Value; 2] {
    ["losers", "winners"].map(|who| &report["changes"][who])
}

#[tokio::test]
async fn a_suggestion_keeps_the_other_limits_and_a_replay_with_its_file_is_the_same() {
    const LIMITS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n\
        kind: Configuration\nlimits: [{type: Server, qps: 5, burst: 10}]\n";
    const CLIENTS: &str = "clientLimits:\n- name: ci\n  client: user\n  requests: {qps: 20, burst: 20}\n  \
        concurrency: 'off'\n  rules:\n  - subjects: [{kind: Group, group: {name: 'system:serviceaccounts:ci'}}]\n    \
        resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*']}]\n";
    let total = "maxRequestsInflight: 80\nmaxMutatingRequestsInflight: 40\n";
    for (settings, limit, kept) in [
        (
            "enablePriorityAndFairness: false\nrequestTimeout: 30s\n",
            "max-in-flight",
            &[
                "enablePriorityAndFairness: false",
                "requestTimeout: \"30s\"",
            ][..],
        ),
        (
            CLIENTS,
            "client-limit",
            &["clientLimits:", "name: ci", "qps: 20"],
        ),
        (
            "eventRateLimitConfig: events.yaml\neventRateLimitGroups: core\n",
            "event-rate-limit",
            &["/events.yaml", "eventRateLimitGroups: core"],
        ),
        (
            "eventRateLimitRetryAfter: false\nrejectionHold: 0s\nflowcontrolEnforcement: DryRun\n",
            "",
            &[
                "eventRateLimitRetryAfter: false",
                "rejectionHold: \"0s\"",
                "flowcontrolEnforcement: DryRun",
            ],
        ),
    ] {
        let files = logged();
        let mut log = fs::read_to_string(files.path().join(LOG)).unwrap();
        for n in 0..300 {
            let (group, at) = (["api/v1", "apis/events.k8s.io/v1"][n % 2], n * 25);
            writeln!(
                log,
                r#"{{"at_ms":{at},"method":"POST","url":"/{group}/namespaces/a/events","user":"system:node:n","service_ms":5}}"#
            )
            .unwrap();
        }
        files.write(LOG, &log);
        files.write("events.yaml", LIMITS);
        files.write("today.yaml", &format!("{total}{settings}"));
        let clients = "--clients=client-go";
        let arguments = ["--config=today.yaml", "--suggest", "--suggest-dir=out"];
        let suggested = json(&files, &[&arguments[..], &[clients]].concat()).await;
        let text = fs::read_to_string(files.path().join("out/weir.yaml")).unwrap();
        for kept in kept {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let arguments = ["--config=today.yaml", "--compare=out/weir.yaml", clients];
        let compared = json(&files, &arguments).await;
        assert_eq!(changes(&compared), changes(&suggested), "{text}");
        let [before, after] = [0, 1].map(|run| &compared["runs"][run]);
        assert_eq!(after["limiter"], before["limiter"], "{text}");
        for run in [before, after] {
            let rejected_by = run["total"]["rejected_by"].as_object().unwrap();
            let is_there = limit.is_empty() || rejected_by.contains_key(limit);
            assert!(is_there, "{settings}: {rejected_by:?}");
        }
    }
}

#[tokio::test]
async fn a_search_prints_flags_with_which_a_replay_holds() {
    let files = logged();
    let objective = "--search=wait_max(user=system:serviceaccount:apps:app-1) < 50ms";
    let report = json(&files, &[objective]).await;
    let found = &report["found"];
    let [read_only, mutating] = ["max_requests_inflight", "max_mutating_requests_inflight"]
        .map(|flag| found[flag].as_u64().unwrap());
    assert_eq!(report["parts"].as_array().unwrap().len(), 5, "{report:#}");
    let replayed = json(
        &files,
        &[
            &format!("--max-requests-inflight={read_only}"),
            &format!("--max-mutating-requests-inflight={mutating}"),
        ],
    )
    .await;
    let users = replayed["runs"][0]["users"]["top"].as_array().unwrap();
    let user = users
        .iter()
        .find(|user| user["name"] == "system:serviceaccount:apps:app-1")
        .unwrap();
    assert!(user["wait"]["max_ms"].as_f64().unwrap() < 50.0, "{user:#}");
    assert_eq!(user["rejected"], 0);
}

#[tokio::test]
async fn flags_that_do_not_go_together_are_errors() {
    let files = logged();
    for (arguments, why) in [
        (
            &["--search=rejected(host=a) = 0"][..],
            "\"host\" is no selector: expected level=NAME, schema=NAME, user=NAME, group=NAME, user-agent=NAME",
        ),
        (
            &["--search=rejected(user=nobody) = 0"],
            "no request of the log has the user \"nobody\"",
        ),
        (&["--search=rejected = 0", "-o=html"], "--output html"),
        (
            &["--search=rejected = 0", "--suggest"],
            "cannot be used with",
        ),
        (&["-o=yaml"], "--output yaml: expected --suggest"),
        (&["--suggest-dir=out"], "--suggest"),
        (&["--search=rejected = 0", "-o=yaml"], "--output yaml"),
    ] {
        let finished = run(&files, &[&["replay", LOG], arguments].concat()).await;
        assert_ne!(finished.code, Some(0), "{arguments:?}");
        assert!(
            finished.stderr.contains(why),
            "{arguments:?}: {}",
            finished.stderr
        );
    }
}
