//! `request_info`, `flow_schema_match`, `shuffle_shard` and `work_estimate` as lines of `weir explain
//! --batch`: the explanation has the fields and values of the cases.

#![expect(
    clippy::unwrap_used,
    reason = "a test says so when a case is not as described"
)]

use std::time::Duration;

use serde_json::{Value, json};
use weir_explain::batch::explain_lines;
use weir_explain::explainer::{ConcurrencyPolicy, ExplainedPolicies, Explainer};
use weir_limits::rate::RateLimitsConfig;

use crate::flow_schema_match::objects;
use crate::support;

/// Explains `lines` with the objects of `input`.
fn explain(input: &Value, lines: &[Value]) -> Vec<Value> {
    let explainer = Explainer::new(ExplainedPolicies {
        concurrency: ConcurrencyPolicy::Fairness {
            server_concurrency_limit: 600,
            objects: objects(input),
            dry_run: false,
        },
        rates: RateLimitsConfig::default(),
        request_timeout: Duration::from_secs(60),
    });
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut output = Vec::new();
    let counts = explain_lines(&explainer, None, text.as_bytes(), &mut output).unwrap();
    assert_eq!(counts.failed, 0);
    let output = String::from_utf8(output).unwrap();
    let explained: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(explained.len(), lines.len());
    explained
}

fn nothing_configured() -> Value {
    json!({"flow_schemas": [], "priority_levels": []})
}

#[test]
fn requests_are_resolved_as_by_kubernetes() {
    let cases = support::cases("request_info");
    let lines: Vec<Value> = cases.iter().map(|case| case["input"].clone()).collect();
    for (case, explained) in cases.iter().zip(explain(&nothing_configured(), &lines)) {
        assert_eq!(
            explained["request_info"], case["expected"],
            "{}",
            case["input"]
        );
    }
}

#[test]
fn every_request_is_classified_and_the_schemas_before_its_own_do_not_match() {
    for case in support::cases("flow_schema_match") {
        let (input, expected) = (&case["input"], &case["expected"]);
        let requests = input["requests"].as_array().unwrap();
        let matches = expected["matches"].as_array().unwrap();
        for (explained, expected_match) in explain(input, requests).iter().zip(matches) {
            let mut found = explained["flow_schema_match"].clone();
            let tried = found.as_object_mut().unwrap().remove("tried").unwrap();
            assert_eq!(&found, expected_match, "{}", case["name"]);
            let tried = tried.as_array().unwrap();
            let names: Vec<&Value> = tried.iter().map(|schema| &schema["flow_schema"]).collect();
            let order = expected["matching_order"].as_array().unwrap();
            assert!(order.iter().zip(&names).all(|(a, b)| a == *b), "{names:?}");
            let (last, before) = tried.split_last().unwrap();
            assert!(before.iter().all(|schema| schema["mismatch"].is_string()));
            let own = &expected_match["flow_schema"];
            if last["mismatch"].is_null() {
                assert_eq!(&last["flow_schema"], own, "{}", case["name"]);
            } else {
                assert_eq!((own, tried.len()), (&json!("catch-all"), order.len()));
            }
        }
    }
}

#[test]
fn every_request_is_estimated_as_upstream() {
    let cases = support::cases("work_estimate");
    let lines: Vec<Value> = cases
        .iter()
        .map(|case| {
            let mut line = case["input"].clone();
            let size = line["average_object_size_bytes"].as_u64();
            line["average_object_size_bytes"] = json!(size.unwrap_or(0)); // negative: unknown
            let fields = line.as_object_mut().unwrap();
            match fields.remove("object_stats").unwrap().as_str().unwrap() {
                "ok" => {}
                "not_found" => drop(fields.remove("object_count")),
                // Upstream's values for stale counts. weir's counts do not become stale.
                _ => {
                    fields.insert("object_count".to_owned(), json!(1_000_000_000));
                    fields.insert("average_object_size_bytes".to_owned(), json!(1_500_000));
                }
            }
            line
        })
        .collect();
    for (case, explained) in cases.iter().zip(explain(&nothing_configured(), &lines)) {
        assert_eq!(
            explained["work_estimate"], case["expected"],
            "{}",
            case["input"]
        );
    }
}

#[test]
fn every_flow_is_dealt_the_hand_of_upstream() {
    let mut compared = 0;
    for case in support::cases("shuffle_shard") {
        let input = &case["input"];
        let Some(schema) = input.get("flow_schema") else {
            continue; // the hash of no flow
        };
        let line =
            json!({"method": "GET", "url": "/", "user": input["distinguisher"], "groups": []});
        for (sizes, hand) in case["expected"]["hands"].as_object().unwrap() {
            let (queues, hand_size) = sizes.split_once('/').unwrap();
            if queues == "1" {
                continue; // one queue needs no hash
            }
            let explained = explain(
                &one_level(schema, queues, hand_size),
                std::slice::from_ref(&line),
            );
            assert_eq!(
                explained[0]["shuffle_shard"],
                json!({"hash": case["expected"]["hash"], "hands": {sizes: hand}}),
                "{input}"
            );
            compared += 1;
        }
    }
    assert!(compared > 1000, "{compared}");
}

/// A schema for every request, whose level has these queues.
fn one_level(schema: &Value, queues: &str, hand_size: &str) -> Value {
    let number = |text: &str| text.parse::<i32>().unwrap();
    json!({
        "flow_schemas": [{
            "metadata": {"name": schema},
            "spec": {
                "priorityLevelConfiguration": {"name": "level"},
                "matchingPrecedence": 1,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [{
                    "subjects": [{"kind": "User", "user": {"name": "*"}}],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                }],
            },
        }],
        "priority_levels": [{
            "metadata": {"name": "level"},
            "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 30,
                "limitResponse": {"type": "Queue", "queuing": {
                    "queues": number(queues), "handSize": number(hand_size), "queueLengthLimit": 50,
                }},
            }},
        }],
    })
}
