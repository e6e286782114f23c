//! Limits that only count: what they would reject passes, and audit log, talkers, status and metrics say whose it was.

use ::weir::config::AdmissionConfig;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir_kubernetes::api::flowcontrol::read_with_locations;
use ::weir_kubernetes::document;
use ::weir_kubernetes::document::Diagnostics;
use ::weir_limits::rate::events::config::LimitType;
use serde_json::Value;

use crate::audit::TempAuditLog;
use crate::policies::policies;
use crate::rate_limits::{alice_rule_for_verbs, event_limit, event_limits};
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::weir::WeirBuilder;
use crate::support::{HttpVersion, eventually, weir};

const PODS: &str = "/api/v1/namespaces/web/pods";
const EVENTS: &str = "/api/v1/namespaces/web/events";

/// A level with one seat for alice's requests, with these annotations of the schema and of the level.
fn one_seat(builder: WeirBuilder, schema: &str, level: &str) -> WeirBuilder {
    let text = format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {{name: tight, annotations: {{{level}}}}}
spec: {{type: Limited, limited: {{nominalConcurrencyShares: 1, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {{type: Reject}}}}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: alice, annotations: {{{schema}}}}}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {{name: tight}}
  rules:
  - subjects: [{{kind: User, user: {{name: alice}}}}]
    resourceRules: [{{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}]
"
    );
    let mut errors = Diagnostics::default();
    let nodes = document::parse_all("flowcontrol", &text, &mut errors);
    let files = read_with_locations(&nodes, &mut errors);
    assert_eq!(errors.to_string(), "");
    builder.fairness().with(|config| {
        if let AdmissionConfig::Fairness { config, sources } = &mut config.admission {
            config.server_concurrency_limit = 10;
            sources.files = files;
        }
    })
}

/// Of two requests at a time, the limit rejects the second one. Where it only counts, both pass.
async fn second_is_spared(
    configure: impl Fn(WeirBuilder) -> WeirBuilder,
    target: &str,
    limit: &str,
    reason: &str,
) {
    let mut upstream = FakeUpstream::start().await;
    let log = TempAuditLog::new();
    let weir = configure(weir::builder(upstream.address))
        .with(|config| config.reporting.audit = Some(log.config()))
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let request = || match target {
        EVENTS => TestRequest::post(EVENTS, r#"{"metadata":{"name":"e"}}"#),
        _ => TestRequest::get(target),
    };
    let first = alice.send(request()).await;
    let held = upstream.next_exchange().await;
    let second = alice.send(request()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(second.response().await.status, 200, "{limit}");
    held.respond(200, "{}").await;
    assert_eq!(first.response().await.status, 200, "{limit}");

    let events = log.wait_for_events(4).await;
    let annotations = events
        .iter()
        .map(|event| &event["annotations"]["weir/dry-run"]);
    let annotations: Vec<_> = annotations.filter_map(Value::as_str).collect();
    assert_eq!(annotations, [limit]);
    let metric = format!("weir_dry_run_rejections_total{{limit=\"{reason}\"}}");
    assert_eq!(weir.metric(&metric).await, 1.0);
    let talkers = weir
        .get_admin("/debug/top_talkers?sort=wouldBeRejections")
        .await;
    let talkers: Value = serde_json::from_str(talkers.text()).unwrap();
    let first = &talkers["rows"][0];
    assert_eq!(
        (&first["name"], &first["wouldBeRejections"]),
        (&"alice".into(), &1.into()),
        "{limit}"
    );
    assert_eq!(first["rejections"], 0);
    let status = eventually("the status shows it", async || {
        let status = weir.get_admin("/status.json").await;
        let status: Value = serde_json::from_str(status.text()).unwrap();
        (status["wouldBeRejectedUsers"] == 1).then_some(status)
    })
    .await;
    assert_eq!(status["wouldBeRejected"][0]["key"], "alice");
    assert_eq!(status["wouldBeRejections"][reason], 1, "{status}");
    assert_eq!(status["rejections"], serde_json::json!({}));
}

#[tokio::test]
async fn each_limit_is_a_dry_run_by_itself_and_names_whom_it_would_hit() {
    let dry_run = "weir/enforcement: DryRun";
    let level = |builder| one_seat(builder, "", dry_run);
    second_is_spared(level, PODS, "fairness/alice", "concurrency-limit").await;
    let schema = |builder| one_seat(builder, dry_run, "");
    second_is_spared(schema, PODS, "fairness/alice", "concurrency-limit").await;
    let in_flight = |builder: WeirBuilder| {
        builder.limits(1, 1).with(|config| {
            if let AdmissionConfig::MaxInFlight { enforcement, .. } = &mut config.admission {
                *enforcement = Enforcement::DryRun;
            }
        })
    };
    second_is_spared(in_flight, PODS, "max-in-flight/readOnly", "max-in-flight").await;
    let events = |builder: WeirBuilder| {
        let mut rates = event_limits(vec![event_limit(LimitType::Server, 1)], true);
        if let Some(events) = &mut rates.events {
            events.dry_run = true;
        }
        builder.rates(rates)
    };
    second_is_spared(
        events,
        EVENTS,
        "event-rate-limit/events",
        "event-rate-limit",
    )
    .await;
    let clients = |builder: WeirBuilder| {
        builder.rates(alice_rule_for_verbs(
            "'*'",
            "  concurrency: 1\n  dryRun: true\n",
        ))
    };
    second_is_spared(clients, PODS, "client-limit/alice", "client-limit").await;
    let policy = |builder: WeirBuilder| {
        builder.rates(policies(
            "- name: one\n  rules:\n  - subjects: [{kind: User, user: {name: alice}}]\n    resourceRules:\n    \
             - {verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}\n  \
             limit: {key: [user], inFlight: 1}\n  enforcement: DryRun\n",
        ))
    };
    second_is_spared(policy, PODS, "policy-limit/one", "policy-limit").await;
}
