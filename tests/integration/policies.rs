//! Policies as clients, operators and the API server see them.

use std::pin::pin;

use ::weir_kubernetes::document;
use ::weir_kubernetes::document::Diagnostics;
use ::weir_limits::rate;
use ::weir_limits::rate::policies::config::parse_policies;
use serde_json::Value;

use crate::audit::TempAuditLog;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process;
use crate::support::process::{ConfigDir, WeirProcess, required_flags};
use crate::support::{HttpVersion, eventually, for_each_protocol_pair, weir};

const LIST: &str = "/api/v1/namespaces/web/pods";
const GENERATION: &str = "weir_config_generation";
const EXEC: &str = "/api/v1/namespaces/web/pods/a/log?follow=true";

/// A policy for alice's requests of a resource, with these lines.
fn of_alice(name: &str, resource: &str, lines: &str) -> String {
    format!(
        "- name: {name}\n  rules:\n  - subjects: [{{kind: User, user: {{name: alice}}}}]\n    resourceRules:\n    \
         - {{verbs: ['*'], apiGroups: ['*'], resources: ['{resource}'], clusterScope: true, namespaces: ['*']}}\n  {lines}\n"
    )
}

pub(crate) fn policies(text: &str) -> rate::RateLimitsConfig {
    let mut errors = Diagnostics::default();
    let nodes = document::parse_all("policies", text, &mut errors);
    let policies = parse_policies(&nodes[0], "policies", &mut errors);
    assert_eq!(errors.to_string(), "");
    rate::RateLimitsConfig {
        policies,
        ..rate::RateLimitsConfig::default()
    }
}

#[tokio::test]
async fn clients_see_what_a_policy_says() {
    for_each_protocol_pair(async |near, far| {
        let mut upstream = FakeUpstream::preferring(far).await;
        let text = of_alice("no-secrets", "secrets", "deny: {message: 'ask the owner of {namespace}, {user}'}")
            + &of_alice("later", "pods", "reject: {retryAfter: 7s}")
            + &of_alice("plain", "configmaps", "deny: {}");
        let weir = weir::builder(upstream.address).rates(policies(&text)).start().await;
        let mut alice = weir.alice(near);
        let denied = alice.get("/api/v1/namespaces/web/secrets").await;
        assert_eq!(denied.status, 403);
        let status = denied.kube_status();
        assert_eq!((status.cause.as_str(), status.reason.as_str()), ("weir/policy", "Forbidden"));
        assert_eq!(status.message, "ask the owner of web, alice");
        assert_eq!(denied.headers.get("retry-after"), None);
        let plain = alice.get("/api/v1/namespaces/web/configmaps").await;
        assert_eq!(plain.kube_status().message, "weir's policy \"plain\" denies such requests");
        let rejected = alice.get(LIST).await;
        assert_eq!((rejected.status, &rejected.headers["retry-after"]), (429, "7"));
        assert_eq!(rejected.kube_status().cause, "weir/policy");
        // Of others, no policy is asked.
        let mut root = weir.with_authorization(near, weir::ROOT);
        let call = root.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
        upstream.assert_no_request();
        let effects = "weir_policy_effects_total{action=\"deny\",enforcement=\"Enforce\",policy=\"no-secrets\"}";
        assert_eq!(weir.metric(effects).await, 1.0);
    })
    .await;
}

#[tokio::test]
async fn a_number_in_flight_holds_until_the_stream_ends() {
    let mut upstream = FakeUpstream::start().await;
    let text = of_alice("streams", "pods/log", "limit: {key: [user], inFlight: 1}");
    let weir = weir::builder(upstream.address)
        .rates(policies(&text))
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let mut stream = alice.send(TestRequest::get(EXEC)).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    assert_eq!(stream.head().await.status, 200);
    let rejected = alice.get(EXEC).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.kube_status().cause, "weir/policy-limit");
    exchange.end().await;
    let status = eventually("the slot is free", async || {
        let call = alice.send(TestRequest::get(EXEC)).await;
        let mut response = pin!(call.response());
        tokio::select! {
            response = &mut response => (response.status != 429).then_some(response.status),
            exchange = upstream.next_exchange() => {
                exchange.respond(200, "").await;
                Some(response.await.status)
            }
        }
    })
    .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn the_audit_log_and_the_talkers_have_tags_and_policies() {
    let mut upstream = FakeUpstream::start().await;
    let log = TempAuditLog::new();
    let text = of_alice("word", "pods", "tag: reporting")
        + &of_alice("tried", "pods", "deny: {}\n  enforcement: DryRun")
        + &of_alice("secrets", "secrets", "deny: {}");
    let weir = weir::builder(upstream.address)
        .rates(policies(&text))
        .with(|config| config.reporting.audit = Some(log.config()))
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let call = alice.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    assert_eq!(alice.get("/api/v1/secrets").await.status, 403);
    let events = log.wait_for_events(4).await;
    let of = |uri: &str| {
        let mut all = events.iter();
        let event = all.find(|e| e["requestURI"] == uri && e["stage"] == "ResponseComplete");
        event.unwrap()["annotations"].clone()
    };
    assert_eq!(of(LIST)["weir/policy-tags"], "reporting");
    assert_eq!(of(LIST)["weir/dry-run"], "policy/tried");
    assert_eq!(of("/api/v1/secrets")["weir/policy"], "secrets");
    let rows = eventually("the tag is counted", async || {
        let talkers = weir.get_admin("/debug/top_talkers?by=tag").await;
        let talkers: Value = serde_json::from_str(talkers.text()).unwrap();
        talkers["rows"]
            .as_array()
            .filter(|rows| !rows.is_empty())
            .cloned()
    })
    .await;
    assert_eq!((&rows[0]["name"], rows.len()), (&"reporting".into(), 1));
}

#[tokio::test]
async fn policies_are_reloaded_and_a_wrong_one_changes_nothing() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let text = |policies: &str| format!("requestTimeout: 30s\npolicies:\n{policies}");
    files.write("weir.yaml", &text(&of_alice("a", "pods", "tag: x")));
    let mut flags = required_flags(upstream.address);
    let more = ["--config=weir.yaml", "--token-auth-file=tokens.csv"];
    flags.extend(more.map(str::to_owned));
    files.write("tokens.csv", "alice-token,alice,u-alice,dev\n");
    let weir = WeirProcess::start(files, &flags).await;
    let mut alice = weir.with_authorization(HttpVersion::Http2, weir::ALICE);
    let call = alice.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    weir.files
        .write("weir.yaml", &text(&of_alice("a", "pods", "deny: {}")));
    weir.wait_for_metric(GENERATION, 2.0).await;
    assert_eq!(alice.get(LIST).await.status, 403);
    weir.files.write(
        "weir.yaml",
        &text(&of_alice("a", "pods", "deny: {mesage: x}")),
    );
    weir.wait_for_metric("weir_config_reloads_total{result=\"refused\"}", 1.0)
        .await;
    assert_eq!(alice.get(LIST).await.status, 403);
    let status = weir.get_admin("/status.json").await;
    assert!(status.text().contains("policies/a"), "{}", status.text());
    upstream.assert_no_request();
}

#[tokio::test]
async fn weir_check_and_explain_know_policies() {
    let files = ConfigDir::new();
    let text = of_alice("by-user", "pods", "deny: {message: never}");
    files.write("weir.yaml", &format!("policies:\n{text}"));
    let all = required_flags("127.0.0.1:1".parse().unwrap());
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let flags = ["--config=weir.yaml", "-o=json"];
    let checked = process::run(&files, &[&["check"], &*all, &flags].concat()).await;
    assert!(
        checked.stdout.contains("policy-user-unverified"),
        "{checked:?}"
    );
    let request = ["explain", "GET", LIST, "--user=alice"];
    let explained = process::run(&files, &[&request[..], &flags].concat()).await;
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert_eq!(explained["policies"][0]["policy"], "by-user");
    assert_eq!(explained["at_rest"]["code"], 403, "{explained}");
    let tree = process::run(&files, &[&request[..], &flags[..1]].concat()).await;
    assert!(
        tree.stdout.contains("by-user: denies (403)"),
        "{}",
        tree.stdout
    );
}
