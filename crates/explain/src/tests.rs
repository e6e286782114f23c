//! Explanations as an operator reads them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::batch::{BatchCounts, explain_lines};
use crate::explainer::{ConcurrencyPolicy, ExplainedPolicies, Explainer, ResolvedRequest};
use crate::now::LevelsNow;
use crate::request::ExplainRequest;
use crate::tree;
use weir_flowcontrol::bootstrap;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_limits::max_in_flight::MaxInFlightConfig;
use weir_limits::rate::events::buckets::LimitedEventGroups;
use weir_limits::rate::events::config;
use weir_limits::rate::events::enforcer::EventRateLimitConfig;
use weir_limits::rate::policies::config::{PolicyRule, parse_policies};
use weir_limits::rate::{RateLimitsConfig, clients};

const EVENTS: &str = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n\
    - {type: Server, qps: 5, burst: 7}\n- {type: Namespace, qps: 1, burst: 2}\n\
    - {type: User, qps: 1, burst: 2}\n- {type: SourceAndObject, qps: 1, burst: 2}\n";

const CLIENTS: &str = "- name: all\n  rules: &rules\n  - subjects: [{kind: Group, group: {name: system:authenticated}}]\n    \
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]\n    \
    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n";

fn fairness() -> ConcurrencyPolicy {
    ConcurrencyPolicy::Fairness {
        server_concurrency_limit: 600,
        objects: bootstrap::add_missing(Vec::new()),
        dry_run: false,
    }
}

fn client_rules(changes: &str) -> Vec<clients::config::ClientLimitRule> {
    let text = CLIENTS.replace(" &rules", "") + changes;
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all("weir.yaml", &text, &mut diagnostics);
    let rules = clients::config::parse_rules(&nodes[0], "clientLimits", &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    rules
}

/// Two policies for deletions of alice's.
fn policies() -> Vec<PolicyRule> {
    let rules = "[{subjects: [{kind: User, user: {name: alice}}], resourceRules: [{verbs: [delete, deletecollection], apiGroups: ['*'], resources: ['*'], namespaces: [prod]}]}]";
    let text = format!(
        "- name: tried\n  rules: {rules}\n  enforcement: DryRun\n  reject: {{}}\n- name: all\n  rules: {rules}\n  conditions: [{{name: all, expression: \"request.resourceAttributes.verb == 'deletecollection'\"}}]\n  deny: {{}}\n"
    );
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all("weir.yaml", &text, &mut diagnostics);
    let found = parse_policies(&nodes[0], "policies", &mut diagnostics);
    assert_eq!(diagnostics.to_string(), "");
    found
}

#[test]
fn policies_are_those_whose_fields_select_the_request() {
    let delete = |url: &str| explain(&json!({"method": "DELETE", "url": url, "user": "alice"}));
    let all = delete("/api/v1/namespaces/prod/pods");
    assert_eq!(column(&all["policies"], "policy"), ["tried", "all"]);
    assert_eq!(column(&all["policies"], "applies"), [true, true]);
    assert_eq!(all["policies"][0]["dry_run"], true);
    assert_eq!(all["at_rest"]["code"], 403, "{}", all["at_rest"]);
    let one = delete("/api/v1/namespaces/prod/pods/a");
    assert_eq!(column(&one["policies"], "applies"), [true, false]);
    assert!(
        one["policies"][1]["why"]
            .as_str()
            .unwrap()
            .contains("does not match")
    );
    assert_eq!(one["at_rest"]["outcome"], "execute");
    let other = delete("/api/v1/namespaces/web/pods");
    assert_eq!(other["policies"], json!([]));
}

fn explainer(concurrency: ConcurrencyPolicy, changes: &str) -> Explainer {
    let limits = config::parse_configuration("e", EVENTS, &mut Diagnostics::default()).unwrap();
    Explainer::new(ExplainedPolicies {
        concurrency,
        rates: RateLimitsConfig {
            events: Some(EventRateLimitConfig {
                limits,
                groups: LimitedEventGroups::All,
                retry_after: true,
                dry_run: false,
            }),
            clients: client_rules(changes),
            policies: policies(),
        },
        request_timeout: Duration::from_secs(60),
    })
}

fn explain_with(explainer: &Explainer, now: Option<&LevelsNow>, line: &Value) -> Value {
    let mut output = Vec::new();
    explain_lines(explainer, now, line.to_string().as_bytes(), &mut output).unwrap();
    serde_json::from_slice(&output).unwrap()
}

fn explain(line: &Value) -> Value {
    explain_with(&explainer(fairness(), ""), None, line)
}

/// The values of a field of each item.
fn column<'v>(items: &'v Value, field: &str) -> Vec<&'v Value> {
    let items = items.as_array().unwrap().iter();
    items.map(|item| &item[field]).collect()
}

#[test]
fn an_event_s_key_is_known_with_its_body_only() {
    let url = "/api/v1/namespaces/ns/events";
    let without = explain(&json!({"method": "POST", "url": url, "user": "alice"}));
    let limits = &without["event_limits"];
    assert_eq!(
        column(limits, "key"),
        ["", "ns", "alice"]
            .map(Value::from)
            .iter()
            .chain([&Value::Null])
            .collect::<Vec<_>>()
    );
    assert_eq!(limits[3]["needs"], "body");
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "ns"},
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": "web-0"}, "source": {"component": "kubelet"},
    });
    let line = json!({"method": "POST", "url": url, "user": "alice", "body": event.to_string()});
    let with = explain(&line);
    assert_eq!(with["event_limits"][3]["key"], "kubeletPodnsweb-0");
    let patch = explain(&json!({"method": "PATCH", "url": format!("{url}/e"), "user": "alice"}));
    assert_eq!(
        patch["event_limits"][3]["needs"],
        "the event that is patched"
    );
    let other = explain(&json!({"method": "GET", "url": url, "user": "alice"}));
    assert_eq!(other["event_limits"], json!([]));
}

#[test]
fn client_limits_are_those_that_a_request_is_charged_to() {
    let limits = |method: &str, url: &str, changes: &str| {
        let line = json!({"method": method, "url": url, "user": "alice"});
        let found = explain_with(&explainer(fairness(), changes), None, &line);
        let rule = &found["client_limits"][0];
        assert_eq!(
            (&rule["rule"], &rule["client"]),
            (&json!("all"), &json!("alice"))
        );
        let names = column(&rule["limits"], "limit")
            .into_iter()
            .map(|name| name.as_str().unwrap());
        names.collect::<Vec<_>>().join(" ")
    };
    let pod = "/api/v1/namespaces/ns/pods/p";
    assert_eq!(limits("GET", pod, ""), "requests concurrency");
    assert_eq!(
        limits("PUT", pod, ""),
        "requests writes objectBackoff concurrency"
    );
    assert_eq!(
        limits("POST", "/api/v1/namespaces/ns/pods", ""),
        "requests writes concurrency"
    );
    assert_eq!(limits("GET", "/api/v1/pods?watch=1", ""), "requests");
    let running = "  longRunning: {watches: 5, streams: 2}\n";
    assert_eq!(
        limits("GET", "/api/v1/pods?watch=1", running),
        "requests longRunning"
    );
    assert_eq!(
        limits("POST", &format!("{pod}/exec"), running),
        "requests longRunning"
    );
    let anonymous = explain(&json!({"method": "GET", "url": pod}));
    assert_eq!(anonymous["client_limits"], json!([]));
}

#[test]
fn a_client_that_cannot_be_told_apart_is_not_known() {
    for (distinguisher, field, value, client) in [
        (
            "sourceAddress",
            "source_address",
            "::ffff:10.0.0.1",
            "10.0.0.1",
        ),
        ("user+userAgent", "user_agent", "kubectl", "alice kubectl"),
    ] {
        let explainer = explainer(fairness(), &format!("  client: {distinguisher}\n"));
        let mut line = json!({"method": "GET", "url": "/version", "user": "alice"});
        let unknown = explain_with(&explainer, None, &line);
        assert_eq!(unknown["client_limits"][0]["client"], Value::Null);
        assert_eq!(unknown["client_limits"][0]["needs"], field);
        line[field] = value.into();
        let known = explain_with(&explainer, None, &line);
        assert_eq!(known["client_limits"][0]["client"], client);
    }
}

#[test]
fn at_rest_only_blocked_and_invalid_requests_are_rejected() {
    let at_rest = |explainer: &Explainer, method: &str, url: &str| {
        let line = json!({"method": method, "url": url, "user": "alice"});
        let outcome = explain_with(explainer, None, &line)["at_rest"].clone();
        format!(
            "{} {}",
            outcome["outcome"].as_str().unwrap(),
            outcome["code"]
        )
    };
    let usual = explainer(fairness(), "");
    assert_eq!(at_rest(&usual, "GET", "/api/v1/pods"), "execute null");
    assert_eq!(at_rest(&usual, "GET", "/a b"), "reject 400");
    assert_eq!(at_rest(&usual, "GET", "/api/v1/watch"), "reject 500");
    assert_eq!(at_rest(&usual, "GET", "/version?timeout=x"), "reject 400");
    let blocking = explainer(fairness(), "  writes: {qps: 0}\n");
    assert_eq!(at_rest(&blocking, "GET", "/api/v1/pods"), "execute null");
    assert_eq!(at_rest(&blocking, "DELETE", "/api/v1/pods"), "reject 429");
    let dry = explainer(fairness(), "  writes: {qps: 0}\n  dryRun: true\n");
    assert_eq!(at_rest(&dry, "DELETE", "/api/v1/pods"), "execute null");
}

#[test]
fn max_in_flight_has_a_counter_in_place_of_levels() {
    let policy = ConcurrencyPolicy::MaxInFlight(MaxInFlightConfig {
        read_only: 400.into(),
        mutating: 0.into(),
    });
    let explainer = explainer(policy, "");
    let explain = |method: &str, group: &str| {
        let line = json!({"method": method, "url": "/api/v1/pods", "user": "a", "groups": [group]});
        explain_with(&explainer, None, &line)
    };
    let list = explain("GET", "g");
    assert_eq!(list["flow_schema_match"], Value::Null);
    assert_eq!(
        list["max_in_flight"],
        json!({"kind": "readOnly", "limit": 400, "exempt": false})
    );
    let create = explain("POST", "system:masters");
    assert_eq!(
        create["max_in_flight"],
        json!({"kind": "mutating", "limit": null, "exempt": true})
    );
}

#[test]
fn a_full_level_queues_or_rejects_now() {
    let now = |seats_in_use: u64, waiting_in_queues: u64| {
        let status = json!({"levels": [{
            "name": "global-default", "kind": "Queue", "currentLimit": 20, "seatsInUse": seats_in_use,
            "executing": seats_in_use, "waiting": waiting_in_queues * 128, "queueLengthLimit": 50,
        }]});
        let mut dump =
            "PriorityLevelName, Index, PendingRequests, ExecutingRequests, SeatsInUse\n".to_owned();
        for index in 0..128 {
            dump += &format!("global-default,    {index},       {waiting_in_queues},   0, 0\n");
        }
        let levels = LevelsNow::new(serde_json::from_value(status).unwrap(), &dump);
        let line = json!({"method": "GET", "url": "/api/v1/pods", "user": "alice"});
        explain_with(&explainer(fairness(), ""), Some(&levels), &line)["now"].clone()
    };
    assert_eq!(now(19, 0)["outcome"], "execute");
    let queued = now(20, 3);
    assert_eq!(
        (&queued["outcome"], &queued["queues"][0]["waiting"]),
        (&json!("queue"), &json!(3))
    );
    assert_eq!(queued["queues"].as_array().unwrap().len(), 6);
    assert_eq!(now(20, 50)["code"], 429);
    let status = json!({"levels": [], "rateLimits": [{
        "name": "clientLimits/all", "rejected": 9, "top": [{"key": "alice", "rejections": 8}],
    }]});
    let other = LevelsNow::new(serde_json::from_value(status).unwrap(), "");
    let line = json!({"method": "GET", "url": "/api/v1/pods", "user": "alice"});
    let unknown = explain_with(&explainer(fairness(), ""), Some(&other), &line);
    assert_eq!(unknown["now"]["outcome"], "unknown");
    let limit = json!({"name": "clientLimits/all", "rejected": 9, "rejected_of_key": 8});
    assert_eq!(unknown["now"]["rate_limits"], json!([limit]));
}

#[test]
fn a_line_that_is_no_request_gives_its_number_and_the_others_are_explained() {
    let good = r#"{"method":"GET","url":"/version"}"#;
    let input = format!("{good}\r\n\n{{\n{{\"method\":\"GET\"}}\n{{\"methd\":1}}\n\u{7f}\n{good}");
    let input = [input.as_bytes(), b"\n\"\xff\"\n"].concat();
    let mut output = Vec::new();
    let counts = explain_lines(&explainer(fairness(), ""), None, &*input, &mut output).unwrap();
    assert_eq!(
        counts,
        BatchCounts {
            explained: 2,
            failed: 5
        }
    );
    let text = String::from_utf8(output).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<Option<u64>> = lines.iter().map(|line| line["line"].as_u64()).collect();
    assert_eq!(
        numbers,
        [None, Some(3), Some(4), Some(5), Some(6), None, Some(8)]
    );
    assert_eq!(
        lines[2]["error"],
        "method and url are expected, or request_info"
    );
    assert!(
        lines[3]["error"]
            .as_str()
            .unwrap()
            .contains("unknown field `methd`")
    );
}

#[test]
fn a_tree_has_every_part_and_fits_a_terminal() {
    let explainer = explainer(fairness(), "");
    let url = format!(
        "/api/v1/namespaces/ns/pods?labelSelector={}",
        "x".repeat(300)
    );
    let text = json!({"method": "GET", "url": url, "user": "alice\u{1b}[2J", "object_count": 9})
        .to_string();
    let request: ExplainRequest<'_> = serde_json::from_str(&text).unwrap();
    let resolved = ResolvedRequest::new(&request).unwrap();
    let explanation = explainer.explain(&resolved);
    let tree = tree::render(&resolved, &explanation, &["lost".to_owned()], None);
    assert!(
        tree.lines().all(|line| line.chars().count() <= tree::WIDTH),
        "{tree}"
    );
    for part in [
        "├─ request: list pods, namespace ns (core/v1)",
        "│  └─ read-only, not long-running",
        r#"├─ user: "alice\x1b[2J""#,
        "│  ├─ exempt: no subject is this user",
        "│  ├─ global-default: matches",
        "│  └─ lost: left out, its priority level does not exist",
        "├─ priority level: global-default",
        "│  └─ by the number of pods, given as 9",
        "├─ event limits: none, it writes no event that is limited",
        r#"│  └─ all: client "alice\x1b[2J""#,
        "└─ at rest: executes: the level has free seats",
    ] {
        assert!(tree.contains(part), "{part}\n{tree}");
    }
}
