//! Responses to clients with typical manifests, and the effect of a dry run.

use http::StatusCode;
use serde_json::Value;

use crate::LOAD_LOCK;
use crate::harness::HarnessBuilder;
use crate::manifests::{REJECT, level_for};

const PODS: &str = "/api/v1/namespaces/default/pods?limit=1";
const SCHEMA_HEADER: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL_HEADER: &str = "x-kubernetes-pf-prioritylevel-uid";
/// The UIDs of flow schema and priority level in all responses of the playground except a 401.
const UPSTREAM_UIDS: [&str; 2] = [
    "9693e014-120a-40d7-a8e6-6c51818ac228",
    "2d2531ee-c7e8-4185-8f13-3fdaff98eba9",
];

/// One seat for alice and bob.
fn setup_with_one_seat() -> HarnessBuilder {
    HarnessBuilder::default()
        .manifest("devs.yaml", level_for("dev", "devs", 245, REJECT))
        .flag("--max-requests-inflight=1")
        .flag("--max-mutating-requests-inflight=1")
}

#[tokio::test]
async fn a_rejection_names_weir_s_schema_and_level_and_a_forwarded_response_the_upstream_s() {
    let _others = LOAD_LOCK.read().await;
    let harness = setup_with_one_seat().start().await;
    let held = harness.client("alice").hold_seat().await;
    let rejected = harness.client("bob").get(PODS).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.header("retry-after"), ["1"]);
    assert_eq!(rejected.header(LEVEL_HEADER), ["devs-level"], "the file's");
    let derived = rejected.header(SCHEMA_HEADER);
    assert_eq!((derived.len(), derived[0].len()), (1, 36), "{derived:?}");
    let status: Value = serde_json::from_slice(&rejected.body).unwrap();
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "weir/concurrency-limit"
    );
    let message = status["message"].as_str().unwrap();
    for named in [
        "flow schema \"devs\"",
        "priority level \"devs\"",
        "concurrency-limit",
    ] {
        assert!(message.contains(named), "{message}");
    }
    let again = harness.client("bob").get(PODS).await;
    assert_eq!(again.header(SCHEMA_HEADER), derived, "the same each time");

    drop(held);
    harness
        .scrape_until("the seat to come free", |scrape| {
            scrape.level_sum("current_executing_seats", "devs") == 0.0
        })
        .await;
    let served = harness.client("bob").get(PODS).await;
    assert_eq!(served.status, StatusCode::OK);
    assert_eq!(served.header(SCHEMA_HEADER), UPSTREAM_UIDS[..1]);
    assert_eq!(served.header(LEVEL_HEADER), UPSTREAM_UIDS[1..]);
    // The API server names none in a rejection that precedes its own fairness.
    let unknown = harness.client_with_token("nobody's").get(PODS).await;
    assert_eq!(unknown.status, StatusCode::UNAUTHORIZED);
    for name in [SCHEMA_HEADER, LEVEL_HEADER] {
        assert!(unknown.header(name).is_empty(), "{name}");
    }
}

/// The output of `kubectl get flowschemas,prioritylevelconfigurations -o yaml`.
const KUBECTL_OUTPUT: &str = r#"apiVersion: v1
items:
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: FlowSchema
  metadata:
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: |
        {"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"annotations":{},"name":"devs"},"spec":{"matchingPrecedence":50}}
    creationTimestamp: "2026-11-21T02:07:47Z"
    generation: 1
    name: devs
    resourceVersion: "739"
    uid: 0b2c9bd5-3c7c-4f0c-9d0f-7a5f0d6d1a01
  spec:
    distinguisherMethod:
      type: ByUser
    matchingPrecedence: 50
    priorityLevelConfiguration:
      name: devs
    rules:
    - resourceRules:
      - apiGroups:
        - '*'
        clusterScope: true
        namespaces:
        - '*'
        resources:
        - '*'
        verbs:
        - '*'
      subjects:
      - group:
          name: dev
        kind: Group
  status:
    conditions:
    - lastTransitionTime: "2026-11-21T02:07:47Z"
      message: This FlowSchema references the PriorityLevelConfiguration object named
        "devs" and it exists
      reason: Found
      status: "False"
      type: Dangling
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: PriorityLevelConfiguration
  metadata:
    creationTimestamp: "2026-11-21T02:07:47Z"
    generation: 1
    name: devs
    resourceVersion: "740"
    uid: 5a3c2e5e-93cf-4bb0-b6f8-0f0b6f9d5c02
  spec:
    limited:
      borrowingLimitPercent: 0
      lendablePercent: 0
      limitResponse:
        type: Reject
      nominalConcurrencyShares: 245
    type: Limited
  status: {}
kind: List
metadata:
  resourceVersion: ""
"#;

#[tokio::test]
async fn objects_as_kubectl_prints_them_are_accepted() {
    let _others = LOAD_LOCK.read().await;
    let harness = HarnessBuilder::default()
        .manifest("printed.yaml", KUBECTL_OUTPUT)
        .flag("--max-requests-inflight=1")
        .flag("--max-mutating-requests-inflight=1")
        .start()
        .await;
    let _held = harness.client("alice").hold_seat().await;
    let rejected = harness.client("bob").get(PODS).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    let uids = [SCHEMA_HEADER, LEVEL_HEADER].map(|name| rejected.header(name)[0]);
    let given = [
        "0b2c9bd5-3c7c-4f0c-9d0f-7a5f0d6d1a01",
        "5a3c2e5e-93cf-4bb0-b6f8-0f0b6f9d5c02",
    ];
    assert_eq!(uids, given);
}

#[tokio::test]
async fn every_error_in_a_manifest_has_its_file_line_and_field() {
    let _others = LOAD_LOCK.read().await;
    let good = level_for("dev", "devs", 245, REJECT);
    let bad = good
        .replace("lendablePercent: 0", "lendablePercent: 101")
        .replace("matchingPrecedence: 50", "matchingPrecedence: 10001")
        .replace("kind: Group,", "kind: Crowd,");
    let line_of = |field: &str| {
        let before = bad.split(field).next().unwrap();
        before.lines().count()
    };
    let places = [
        (line_of("101"), "spec.limited.lendablePercent"),
        (line_of("10001"), "spec.matchingPrecedence"),
        (line_of("Crowd"), "spec.rules[0].subjects[0].kind"),
    ];
    let output = HarnessBuilder::default()
        .manifest("bad.yaml", bad)
        .run_to_failure()
        .await;
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    for (line, field) in places {
        let place = format!("bad.yaml:{line}:");
        let error = stderr.lines().find(|line| line.contains(&place));
        let error = error.unwrap_or_else(|| panic!("{place} is missing: {stderr}"));
        assert!(error.contains(field), "{field}: {error}");
    }
}

#[tokio::test]
async fn a_dry_run_admits_everything_and_reports_would_be_rejections() {
    let _others = LOAD_LOCK.read().await;
    let mut harness = setup_with_one_seat()
        .flag("--flowcontrol-enforcement=DryRun")
        .start()
        .await;
    let _held = harness.client("alice").hold_seat().await;
    let mut bob = harness.client("bob").connect().await;
    for _ in 0..20 {
        assert_eq!(bob.send("GET", PODS, "").await.status, StatusCode::OK);
    }
    let scrape = harness.scrape().await;
    assert_eq!(scrape.level_sum("rejected_requests_total", "devs"), 20.0);
    assert_eq!(scrape.level_sum("dispatched_requests_total", "devs"), 1.0);
    let line = harness.next_log_line("dry run").await;
    for part in [
        "flow_schema=\"devs\"",
        "priority_level=\"devs\"",
        "reason=\"concurrency-limit\"",
        "user=\"bob\"",
    ] {
        assert!(line.contains(part), "{line}");
    }
}
