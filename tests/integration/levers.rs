//! Levers: what an operator blocks and limits through the control socket is in force at once, on
//! requests that wait as well as on others, and ends by itself.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::weir::app::App;
use ::weir::config::{AdmissionConfig, Config, FlowcontrolConfig};
use ::weir::control::ControlConfig;
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::identity::TokenFile;
use ::weir::limits::watch_starts::MAX_STARTING;
use ::weir_kubernetes::document;
use ::weir_limits::rate::events::config::LimitType;
use ::weir_limits::throttling::token_bucket::Rate;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::rate_limits::{EVENTS, alice_rule_for_verbs, event_limit, event_limits};
use crate::support::certificates::pki;
use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::process::{ConfigDir, FinishedRun, WeirProcess, required_flags, run};
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2;
use crate::support::raw_http2::RawFrame;
use crate::support::weir::{ALICE, ROOT, Weir, WeirBuilder};
use crate::support::{HttpVersion, eventually, weir, within};

const LIST: &str = "/api/v1/pods";

const BOB: (&str, &str) = ("authorization", "Bearer bob-token");

const TOKENS: &str = "alice-token,alice,u-alice,dev\nbob-token,bob,u-bob,dev\nroot-token,root,u-root,system:masters\n\
    builder-token,system:serviceaccount:ci:builder,u-builder,\n";

/// One seat, and a queue for each user of the group.
const NARROW_MANIFEST: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: narrow}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 1
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 64, handSize: 1, queueLengthLimit: 1000}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: devs}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {name: narrow}
  distinguisherMethod: {type: ByUser}
  rules:
  - subjects: [{kind: Group, group: {name: dev}}]
    resourceRules:
    - {verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}
";

const QUEUED: &str = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"devs\",priority_level=\"narrow\"}";
const WATCHES_WAITING: &str = "weir_watch_starts_waiting";
const LEVERS: &str = "weir_levers{action=\"block\"}";
const DRY_RUN: &str = "weir_flowcontrol_dry_run";
const REJECTIONS: &str = "weir_lever_rejections_total{action=\"block\"}";

/// weir with a control socket.
struct ControlledWeir {
    weir: Weir,
    upstream: FakeUpstream,
    socket: PathBuf,
    _folder: TempDir,
}

impl ControlledWeir {
    async fn start() -> Self {
        Self::start_with(|builder| builder).await
    }

    /// With one seat for alice and bob together.
    async fn narrow() -> Self {
        Self::narrow_with(Enforcement::Enforce).await
    }

    async fn narrow_with(enforcement: Enforcement) -> Self {
        Self::start_with(|builder| {
            let mut errors = document::Diagnostics::default();
            let nodes = document::parse_all("narrow.yaml", NARROW_MANIFEST, &mut errors);
            let objects = ::weir_kubernetes::api::flowcontrol::read(&nodes, &mut errors);
            assert!(!errors.has_errors(), "{errors}");
            builder.with(|config| {
                config.admission = AdmissionConfig::Fairness {
                    config: controller::ControllerConfig {
                        server_concurrency_limit: 1,
                        request_timeout: Duration::from_secs(400),
                        enforcement,
                        consistent_reads_from_cache: true,
                    },
                    sources: FlowcontrolConfig::from_objects("test", objects),
                };
                config.request_timeout = Duration::from_secs(400);
            })
        })
        .await
    }

    async fn start_with(build: impl FnOnce(WeirBuilder) -> WeirBuilder) -> Self {
        let upstream = FakeUpstream::start().await;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let path = socket.clone();
        let builder = weir::builder(upstream.address).with(|config| {
            config.identity.tokens = TokenFile::parse(TOKENS).unwrap();
            config.control = Some(ControlConfig {
                path,
                is_required: true,
            });
        });
        Self {
            weir: build(builder).start().await,
            upstream,
            socket,
            _folder: folder,
        }
    }

    async fn control(&self, request: Value) -> Value {
        control(&self.socket, request).await
    }

    /// Puts a lever in force, and returns its id.
    async fn pull(&self, request: Value) -> u64 {
        let answer = self.control(request).await;
        assert_eq!(answer["answer"], "pulled", "{answer}");
        answer["lever"]["id"].as_u64().unwrap()
    }

    /// The data of the status page.
    async fn status(&self) -> Value {
        let status = self.weir.get_admin("/status.json").await;
        serde_json::from_str(status.text()).unwrap()
    }

    fn alice(&self) -> TestClient {
        self.weir.alice(HttpVersion::Http2)
    }

    fn bob(&self) -> TestClient {
        self.weir.with_authorization(HttpVersion::Http2, BOB)
    }

    /// A request that has reached the upstream.
    async fn hold(&mut self, client: &mut TestClient) -> (TestCall, Exchange) {
        let call = client.send(TestRequest::get(LIST)).await;
        (call, self.upstream.next_exchange().await)
    }

    async fn assert_passes(&mut self, client: &mut TestClient) {
        let (call, exchange) = self.hold(client).await;
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

/// The answer to a line.
async fn control_line(socket: &Path, line: &[u8]) -> Value {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(line).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within("an answer", stream.read_to_end(&mut answer))
        .await
        .unwrap();
    serde_json::from_slice(&answer).unwrap()
}

async fn control(socket: &Path, request: Value) -> Value {
    control_line(socket, format!("{request}\n").as_bytes()).await
}

/// A request for a lever.
fn lever(action: &str, target: Value) -> Value {
    json!({"command": "pull", "action": action, "target": target})
}

fn block_alice() -> Value {
    let mut block = lever("block", json!({"users": ["alice"]}));
    block["reason"] = "a storm".into();
    block
}

/// The lines of an error.
fn error_lines(answer: &Value) -> String {
    assert_eq!(answer["answer"], "error", "{answer}");
    let lines = answer["lines"].as_array().unwrap().iter();
    let lines: Vec<_> = lines.map(|line| line.as_str().unwrap()).collect();
    lines.join("\n")
}

async fn assert_blocked(call: TestCall) {
    let response = call.response().await;
    assert_eq!(response.status, 429);
    let status = response.kube_status();
    assert_eq!(status.cause, "weir/blocked");
    assert!(status.message.contains("a storm"), "{}", status.message);
    let retry_after = response.headers.get("retry-after").unwrap();
    let seconds: u64 = retry_after.parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn queued_requests_of_a_blocked_user_are_rejected_and_others_stay() {
    let mut weir = ControlledWeir::narrow().await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let first = weir.hold(&mut bob).await;
    let (mut of_alice, mut of_bob) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        of_alice.push(alice.send(TestRequest::get(LIST)).await);
        of_bob.push(bob.send(TestRequest::get(LIST)).await);
    }
    weir.weir.wait_for_metric(QUEUED, 16.0).await;
    weir.pull(block_alice()).await;
    for call in of_alice {
        assert_blocked(call).await;
    }
    assert_eq!(weir.weir.metric(QUEUED).await, 8.0);
    assert_eq!(weir.weir.metric(REJECTIONS).await, 8.0);
    weir.upstream.assert_no_request();
    // The seats go on to others.
    let mut next = first;
    for call in of_bob {
        next.1.respond(200, "{}").await;
        assert_eq!(next.0.response().await.status, 200);
        next = (call, weir.upstream.next_exchange().await);
    }
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;
}

/// Nothing is rejected, so a headline about rejections would show that all is well.
#[tokio::test]
async fn the_headline_names_who_waits_and_who_holds_the_seats_and_a_lever_is_marked() {
    let mut weir = ControlledWeir::narrow().await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let held = weir.hold(&mut bob).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(alice.send(TestRequest::get(LIST)).await);
    }
    weir.weir.wait_for_metric(QUEUED, 3.0).await;
    // From a wait of 0.1 s on.
    let is_headline = async || {
        let status = weir.status().await;
        let text = status["headline"]["text"].as_str().unwrap();
        text.starts_with("3 requests wait in narrow, ")
            .then_some(status)
    };
    let status = eventually("the wait as headline", is_headline).await;
    assert_eq!(status["rejections"], json!({}));
    let detail = "waiting: alice 3; seats held by: bob 1 of 1";
    assert_eq!(status["headline"]["detail"], detail);
    let levels = status["levels"].as_array().unwrap().iter();
    let narrow: Vec<_> = levels.filter(|level| level["name"] == "narrow").collect();
    let queue = &narrow[0]["queue"];
    assert_eq!(queue["waiting"], json!([{"user": "alice", "count": 3}]));
    assert_eq!(queue["seats"], json!([{"user": "bob", "count": 1}]));
    weir.pull(block_alice()).await;
    for call in waiting {
        assert_blocked(call).await;
    }
    let is_marked = async || {
        let status = weir.status().await;
        let mut marks = status["marks"].as_array().unwrap().iter();
        let text = "lever 1: block user=alice";
        let is_lever = |mark: &&Value| mark["kind"] == "lever" && mark["text"] == text;
        marks.find(is_lever).map(|_| ())
    };
    eventually("a mark of the lever", is_marked).await;
    drop(held);
}

#[tokio::test]
async fn watches_that_wait_for_their_start_are_rejected() {
    let mut weir = ControlledWeir::narrow().await;
    let mut alice = weir.alice();
    let watch = || TestRequest::get("/api/v1/pods?watch=1&resourceVersion=0");
    let first = alice.send(watch()).await;
    let _held = weir.upstream.next_exchange().await;
    let mut waiting = Vec::new();
    for _ in 0..MAX_STARTING + 8 {
        waiting.push(alice.send(watch()).await);
    }
    weir.weir.wait_for_metric(WATCHES_WAITING, 9.0).await;
    weir.pull(block_alice()).await;
    for call in waiting {
        assert_blocked(call).await;
    }
    assert_eq!(weir.weir.metric(WATCHES_WAITING).await, 0.0);
    assert_eq!(weir.weir.metric(QUEUED).await, 0.0);
    drop(first);
}

#[tokio::test]
async fn a_request_that_a_client_limit_delays_is_rejected() {
    let lines = "  limitResponse: Delay\n  maxDelay: 1m0s\n";
    let mut rates = alice_rule_for_verbs("'*'", lines);
    rates.clients[0].requests = Some(Rate::from_share(0.02, 1.0)); // one in 50 s
    let mut weir = ControlledWeir::start_with(|builder| builder.rates(rates)).await;
    let mut alice = weir.alice();
    weir.assert_passes(&mut alice).await;
    let delayed = alice.send(TestRequest::get(LIST)).await;
    // weir answers this one itself, after the one before it.
    assert_eq!(alice.get("/api/v1/watch").await.status, 500);
    weir.pull(block_alice()).await;
    assert_blocked(delayed).await;
}

#[tokio::test]
async fn a_request_whose_body_is_awaited_is_rejected() {
    let weir = ControlledWeir::start().await;
    let mut alice = weir.alice();
    let call = alice.send(TestRequest::post(LIST, "{").streamed()).await;
    // weir answers this one itself, after the one before it.
    assert_eq!(alice.get("/api/v1/watch").await.status, 500);
    weir.pull(block_alice()).await;
    assert_blocked(call).await;
}

#[tokio::test]
async fn a_rejection_of_what_waited_is_not_delayed_and_an_early_retry_is() {
    let mut weir = ControlledWeir::start_with(|builder| {
        builder
            .limits(1, 1)
            .rejection_hold(Duration::from_secs(3600))
    })
    .await;
    let mut alice = weir.alice();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(alice.send(TestRequest::post(LIST, "{").streamed()).await);
    }
    assert_eq!(alice.get("/api/v1/watch").await.status, 500);
    weir.pull(block_alice()).await;
    for call in waiting {
        assert_blocked(call).await;
    }
    let held = "weir_rejection_holds";
    assert_eq!(weir.weir.metric(held).await, 0.0);
    let mut early = Vec::new();
    for _ in 0..6 {
        early.push(alice.send(TestRequest::get(LIST)).await);
    }
    eventually("a delayed retry", async || {
        (weir.weir.metric(held).await > 0.0).then_some(())
    })
    .await;
    weir.upstream.assert_no_request();
}

#[tokio::test]
async fn a_lever_ends_by_itself() {
    let mut weir = ControlledWeir::start().await;
    let mut alice = weir.alice();
    let mut block = block_alice();
    block["forMs"] = 300.into();
    weir.pull(block).await;
    weir.weir.wait_for_metric(LEVERS, 0.0).await;
    weir.assert_passes(&mut alice).await;
    let list = weir.control(json!({"command": "list"})).await;
    assert_eq!(list["levers"], json!([]));
}

#[tokio::test]
async fn a_lever_that_is_undone_rejects_nothing_and_a_list_has_the_others() {
    let mut weir = ControlledWeir::start().await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let first = weir.pull(block_alice()).await;
    let mut other = lever("limit", json!({"users": ["bob"], "verbs": ["list"]}));
    other["inFlight"] = 1.into();
    other["claimedName"] = "carol".into();
    let second = weir.pull(other).await;
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;

    let held = weir.hold(&mut bob).await;
    let response = bob.get(LIST).await;
    assert_eq!(response.kube_status().cause, "weir/lever-limit");
    assert_eq!(response.headers.get("retry-after"), Some("1"));
    let list = weir.control(json!({"command": "list"})).await;
    let levers = list["levers"].as_array().unwrap();
    let ids: Vec<_> = levers.iter().map(|one| one["id"].as_u64()).collect();
    assert_eq!(ids, [Some(first), Some(second)]);
    assert_eq!(levers[0]["target"], "user=alice");
    assert_eq!(levers[0]["rejected"], 1);
    assert_eq!(
        (&levers[1]["inFlight"], &levers[1]["rejected"]),
        (&1.into(), &1.into())
    );
    let by = levers[1]["pulledBy"].as_str().unwrap();
    let expected = format!("pid {}, as carol", std::process::id());
    assert!(by.starts_with("uid ") && by.ends_with(&expected), "{by}");
    let status = weir.weir.get_admin("/status.json").await;
    let status: Value = serde_json::from_str(status.text()).unwrap();
    assert_eq!(status["levers"][0]["reason"], "a storm");
    assert_eq!(status["levers"][1]["qps"], Value::Null);
    assert_eq!(status["rejections"]["blocked"], 1);
    assert_eq!(status["rejections"]["lever-limit"], 1);

    held.1.respond(200, "{}").await;
    assert_eq!(held.0.response().await.status, 200);
    weir.assert_passes(&mut bob).await;
    let undo = json!({"command": "undo", "ids": [first, 77]});
    let undone = weir.control(undo).await;
    assert_eq!(undone["levers"][0]["id"], first);
    assert_eq!(undone["unknown"], json!([77]));
    weir.assert_passes(&mut alice).await;
}

#[tokio::test]
async fn a_limit_rejects_what_is_above_its_rate() {
    let mut weir = ControlledWeir::start().await;
    let mut alice = weir.alice();
    let mut limit = lever("limit", json!({"users": ["alice"]}));
    limit["qps"] = 1.into();
    weir.pull(limit).await;
    let mut rejected = None;
    for _ in 0..1000 {
        let call = alice.send(TestRequest::get(LIST)).await;
        let mut call = Box::pin(call.response());
        tokio::select! {
            response = &mut call => { rejected = Some(response); break }
            exchange = weir.upstream.next_exchange() => exchange.respond(200, "{}").await,
        }
        assert_eq!(call.await.status, 200);
    }
    let status = rejected.expect("a rejection").kube_status();
    assert_eq!(status.cause, "weir/lever-limit");
}

#[tokio::test]
async fn each_protected_target_is_refused_with_its_line_unless_it_is_forced() {
    let weir = ControlledWeir::start().await;
    for (target, expected) in [
        (
            json!({"groups": ["system:masters"]}),
            "\"system:masters\" names or covers system:masters",
        ),
        (json!({"groups": ["system:nodes"]}), "nodes"),
        (json!({"users": ["system:node:*"]}), "nodes"),
        (
            json!({"users": ["system:kube-controller-manager"]}),
            "the control plane",
        ),
        (
            json!({"serviceAccounts": ["kube-system:*"]}),
            "service accounts of kube-system",
        ),
        (
            json!({"groups": ["system:authenticated"]}),
            "every authenticated user",
        ),
        (
            json!({"groups": ["system:serviceaccounts"]}),
            "every service account",
        ),
        (json!({"users": ["*"]}), "the control plane"),
        (json!({"users": ["alice", "system:*"]}), "user \"system:*\""),
    ] {
        let mut block = lever("block", target);
        let lines = error_lines(&weir.control(block.clone()).await);
        assert!(lines.contains(expected), "{lines}");
        assert!(lines.ends_with("--force includes them"), "{lines}");
        assert_eq!(weir.weir.metric(LEVERS).await, 0.0);
        block["force"] = true.into();
        block["dryRun"] = true.into();
        assert_eq!(weir.control(block).await["answer"], "dryRun");
    }
}

#[tokio::test]
async fn a_target_without_users_spares_protected_requesters_and_says_so() {
    let mut weir = ControlledWeir::start().await;
    let mut root = weir.weir.with_authorization(HttpVersion::Http2, ROOT);
    let mut alice = weir.alice();
    let mut block = lever("block", json!({"sources": ["127.0.0.0/8"]}));
    block["reason"] = "a storm".into();
    let answer = weir.control(block.clone()).await;
    let notes = answer["notes"].to_string();
    assert!(notes.contains("spared: system:masters, nodes"), "{notes}");
    assert!(notes.contains("tokens are not verified"), "{notes}");
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;
    weir.assert_passes(&mut root).await;
    let list = weir.control(json!({"command": "list"})).await;
    assert_eq!(list["levers"][0]["spared"], 1);
    block["force"] = true.into();
    weir.pull(block).await;
    assert_blocked(root.send(TestRequest::get(LIST)).await).await;
}

#[tokio::test]
async fn a_client_whose_token_is_not_verified_is_matched_by_agent_and_namespace_only() {
    let mut weir = ControlledWeir::start().await;
    let mut stranger = weir
        .weir
        .with_authorization(HttpVersion::Http2, ("authorization", "Bearer unknown"));
    let everyone = lever("block", json!({"groups": ["system:unauthenticated"]}));
    let answer = weir.control(everyone).await;
    let notes = answer["notes"].to_string();
    assert!(
        notes.contains("matches no user, group or service account"),
        "{notes}"
    );
    weir.assert_passes(&mut stranger).await;
    let target = json!({"userAgents": ["loader/*"], "namespaces": ["web"]});
    weir.pull(lever("block", target)).await;
    weir.assert_passes(&mut stranger).await;
    let request = TestRequest::get("/api/v1/namespaces/web/pods").header("user-agent", "loader/1");
    let call = stranger.send(request).await;
    assert_eq!(call.response().await.kube_status().cause, "weir/blocked");
}

#[tokio::test]
async fn a_dry_run_tells_what_top_talkers_know() {
    let mut weir = ControlledWeir::start().await;
    let mut alice = weir.alice();
    for _ in 0..3 {
        weir.assert_passes(&mut alice).await;
    }
    let mut block = lever("block", json!({"users": ["ali*"]}));
    block["dryRun"] = true.into();
    let estimate = |answer: &Value| answer["estimate"].clone();
    eventually("three requests", async || {
        let estimated = estimate(&weir.control(block.clone()).await);
        (estimated["requests"] == 3 && estimated["rows"][0]["name"] == "alice").then_some(())
    })
    .await;
    block["target"]["verbs"] = json!(["create"]);
    let estimated = estimate(&weir.control(block).await);
    assert_eq!(
        (&estimated["requests"], &estimated["isAtMost"]),
        (&0.into(), &true.into())
    );
    assert_eq!(weir.weir.metric(LEVERS).await, 0.0);
    let talkers = json!({"command": "talkers", "by": "user"});
    let talkers = weir.control(talkers).await;
    assert_eq!(talkers["rows"][0]["name"], "alice");
}

#[tokio::test]
async fn there_are_a_hundred_levers_at_most() {
    let weir = ControlledWeir::start().await;
    for _ in 0..100 {
        weir.pull(block_alice()).await;
    }
    assert_eq!(weir.weir.metric(LEVERS).await, 100.0);
    let lines = error_lines(&weir.control(block_alice()).await);
    assert!(lines.contains("there are 100 levers already"), "{lines}");
}

#[tokio::test]
async fn what_is_no_request_gets_an_answer_that_says_why() {
    let weir = ControlledWeir::start().await;
    let with = |field: &str, value: Value| {
        let mut block = block_alice();
        block[field] = value;
        format!("{block}\n")
    };
    for (line, expected) in [
        ("\n".to_owned(), "not a request"),
        ("{}\n".to_owned(), "missing field `command`"),
        ("{\"command\":\"shoot\"}\n".to_owned(), "unknown variant"),
        ("{\"command\":\"list\"}".to_owned(), "one line"),
        ("x".repeat(256 << 10), "one line of at most"),
        (with("target", json!({})), "at least one field"),
        (with("target", json!({"users": [""]})), "a value is empty"),
        (with("target", json!({"user": ["a"]})), "unknown field"),
        (
            with("target", json!({"sources": ["10.0.0.0/33"]})),
            "no address",
        ),
        (
            with("target", json!({"serviceAccounts": ["a"]})),
            "NAMESPACE:NAME",
        ),
        (
            with("target", json!({"users": vec!["a"; 65]})),
            "at most 64 values",
        ),
        (with("forMs", json!(0)), "at most 24h"),
        (with("forMs", json!(86_400_001)), "at most 24h"),
        (with("reason", json!("a\nb")), "one line"),
        (
            with("claimedName", json!("a".repeat(200))),
            "a name is one line",
        ),
        (with("qps", json!(1)), "a block has no limits"),
        (with("action", json!("limit")), "--qps or --inflight"),
        (with("action", json!("drain")), "unknown variant"),
        (with("action", json!({"total": "0"})), "at least 1, or auto"),
        (with("action", json!({"total": "5"})), "has no target"),
    ] {
        let lines = error_lines(&control_line(&weir.socket, line.as_bytes()).await);
        assert!(lines.contains(expected), "{expected}: {lines}");
    }
    assert_eq!(weir.weir.metric(LEVERS).await, 0.0);
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_neither_another_file_nor_a_socket_that_answers() {
    let weir = ControlledWeir::start().await;
    let found = fs::symlink_metadata(&weir.socket).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);

    let start = async |path: &Path| {
        let path = path.to_owned();
        let upstream = FakeUpstream::start().await;
        let config = weir::builder(upstream.address).with(|config| {
            config.control = Some(ControlConfig {
                path,
                is_required: true,
            });
        });
        App::bind(config.into_config()).await
    };
    let folder = tempfile::tempdir().unwrap();
    let (stale, other) = (folder.path().join("stale"), folder.path().join("other"));
    drop(UnixListener::bind(&stale).unwrap()); // its file stays
    fs::write(&other, "kept").unwrap();
    let app = start(&stale).await.unwrap();
    assert!(stale.exists());
    drop(app);
    assert!(!stale.exists(), "removed with what has bound it");

    for (path, expected) in [
        (&other, "is no socket"),
        (&weir.socket, "another process answers"),
    ] {
        let why = start(path).await.err().unwrap().to_string();
        assert!(why.contains(expected), "{why}");
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    let list = weir.control(json!({"command": "list"})).await;
    assert_eq!(list["answer"], "levers");
}

const SEATS: &str = "weir_server_concurrency_limit_seats";

/// A request for a total.
fn total(total: &str) -> Value {
    json!({"command": "pull", "action": {"total": total}})
}

#[tokio::test]
async fn a_total_admits_what_waits_and_what_is_configured_is_in_force_after_it() {
    let mut weir = ControlledWeir::narrow().await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let first = weir.hold(&mut bob).await;
    let waiting = alice.send(TestRequest::get(LIST)).await;
    weir.weir.wait_for_metric(QUEUED, 1.0).await;
    let id = weir.pull(total("1000")).await;
    let second = (waiting, weir.upstream.next_exchange().await);
    assert_eq!(weir.weir.metric(SEATS).await, 1000.0);
    assert_eq!(weir.weir.metric("weir_levers{action=\"total\"}").await, 1.0);
    let status = weir.weir.get_admin("/status.json").await;
    let status: Value = serde_json::from_str(status.text()).unwrap();
    assert_eq!(status["levers"][0]["value"], "1000");

    let other = weir.pull(total("auto")).await;
    let list = weir.control(json!({"command": "list"})).await;
    let levers = list["levers"].as_array().unwrap();
    assert_eq!(levers.len(), 1, "it takes the place of the first: {list}");
    assert_eq!(weir.weir.metric(SEATS).await, 540.0, "0.9 of 600");
    let undone = weir
        .control(json!({"command": "undo", "ids": [id, other]}))
        .await;
    assert_eq!(undone["unknown"], json!([id]));
    assert_eq!(weir.weir.metric(SEATS).await, 1.0);
    let third = alice.send(TestRequest::get(LIST)).await;
    weir.weir.wait_for_metric(QUEUED, 1.0).await;
    for (call, exchange) in [first, second] {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    weir.upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(third.response().await.status, 200);

    let mut short = total("7");
    short["forMs"] = 300.into();
    weir.pull(short).await;
    weir.weir.wait_for_metric(SEATS, 1.0).await;
}

#[tokio::test]
async fn a_total_above_the_seats_of_the_api_server_is_refused_unless_it_is_forced() {
    let mut weir = ControlledWeir::start_with(|builder| {
        let poll_period = Duration::from_secs(3600);
        let with_polls = |config: &mut Config| config.object_count_poll_period = poll_period;
        builder.own_token("own").with(with_polls)
    })
    .await;
    let answer = weir.control(total("300")).await;
    let notes = answer["notes"].to_string();
    assert!(notes.contains("own seats are not known"), "{answer}");
    loop {
        let exchange = weir.upstream.next_exchange().await;
        if exchange.request.target == "/metrics" {
            let seats = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"one\"} 300\n";
            exchange.respond(200, seats).await;
            break;
        }
        exchange.respond(404, "{}").await;
    }
    let lines = eventually("a refusal", async || {
        let answer = weir.control(total("301")).await;
        (answer["answer"] == "error").then(|| error_lines(&answer))
    })
    .await;
    assert!(
        lines.contains("has 300 seats of its own: a total of 301 is more"),
        "{lines}"
    );
    assert!(lines.contains("--force"), "{lines}");
    weir.pull(total("300")).await;
    let mut forced = total("301");
    forced["force"] = true.into();
    weir.pull(forced).await;
}

fn dry_run(value: &str) -> Value {
    json!({"command": "pull", "action": {"dryRun": value}})
}

fn bypass(value: &str) -> Value {
    json!({"command": "pull", "action": {"bypass": value}})
}

#[tokio::test]
async fn in_a_dry_run_and_a_bypass_what_waits_for_a_seat_passes_and_so_does_what_comes() {
    for lever in [dry_run("on"), bypass("on")] {
        let mut weir = ControlledWeir::narrow().await;
        let (mut alice, mut bob) = (weir.alice(), weir.bob());
        let mut held = vec![weir.hold(&mut bob).await];
        let waiting = alice.send(TestRequest::get(LIST)).await;
        weir.weir.wait_for_metric(QUEUED, 1.0).await;
        let id = weir.pull(lever).await;
        held.push((waiting, weir.upstream.next_exchange().await));
        held.push(weir.hold(&mut alice).await);
        weir.control(json!({"command": "undo", "ids": [id]})).await;
        let waiting = alice.send(TestRequest::get(LIST)).await;
        eventually("a request that waits", async || {
            (weir.weir.metric(QUEUED).await >= 1.0).then_some(())
        })
        .await;
        weir.upstream.assert_no_request();
        for (call, exchange) in held {
            exchange.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
        weir.upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(waiting.response().await.status, 200);
    }
}

#[tokio::test]
async fn what_is_configured_as_a_dry_run_is_enforced_until_the_lever_ends() {
    let mut weir = ControlledWeir::narrow_with(Enforcement::DryRun).await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let first = weir.hold(&mut bob).await;
    assert_eq!(weir.weir.metric(DRY_RUN).await, 1.0);
    let id = weir.pull(dry_run("off")).await;
    assert_eq!(weir.weir.metric(DRY_RUN).await, 0.0);
    let waiting = alice.send(TestRequest::get(LIST)).await;
    weir.weir.wait_for_metric(QUEUED, 1.0).await;
    weir.upstream.assert_no_request();
    weir.control(json!({"command": "undo", "ids": [id]})).await;
    assert_eq!(weir.weir.metric(DRY_RUN).await, 1.0);
    let second = (waiting, weir.upstream.next_exchange().await);
    for (call, exchange) in [first, second] {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
}

#[tokio::test]
async fn max_in_flight_and_event_limits_only_count_in_a_dry_run() {
    let rates = event_limits(vec![event_limit(LimitType::Server, 1)], true);
    let mut weir = ControlledWeir::start_with(|builder| builder.limits(1, 1).rates(rates)).await;
    let mut alice = weir.alice();
    let held = weir.hold(&mut alice).await;
    let spent = alice.send(TestRequest::post(EVENTS, "{}")).await;
    weir.upstream.next_exchange().await.respond(201, "{}").await;
    assert_eq!(spent.response().await.status, 201);
    let causes = async |alice: &mut TestClient| {
        let list = alice.get(LIST).await.kube_status().cause;
        let event = alice.request(TestRequest::post(EVENTS, "{}")).await;
        [list, event.kube_status().cause]
    };
    let expected = ["weir/max-requests-inflight", "weir/event-rate-limit"];
    assert_eq!(causes(&mut alice).await, expected);
    let id = weir.pull(dry_run("on")).await;
    weir.assert_passes(&mut alice).await;
    let event = alice.send(TestRequest::post(EVENTS, "{}")).await;
    weir.upstream.next_exchange().await.respond(201, "{}").await;
    assert_eq!(event.response().await.status, 201);
    let status = weir.weir.get_admin("/status.json").await;
    let status: Value = serde_json::from_str(status.text()).unwrap();
    assert_eq!(status["dryRun"], true);
    assert_eq!(status["rateLimits"][0]["dryRun"], true, "{status}");
    assert_eq!(status["rateLimits"][0]["rejected"], 2, "it counts");
    weir.control(json!({"command": "undo", "ids": [id]})).await;
    assert_eq!(causes(&mut alice).await, expected);
    held.1.respond(200, "{}").await;
    assert_eq!(held.0.response().await.status, 200);
}

#[tokio::test]
async fn client_limits_follow_a_dry_run_and_end_with_a_bypass() {
    let lines = "  limitResponse: Delay\n  maxDelay: 1m0s\n";
    let mut rates = alice_rule_for_verbs("'*'", lines);
    rates.clients[0].requests = Some(Rate::from_share(0.02, 1.0)); // one in 50 s
    for lever in [dry_run("on"), bypass("on")] {
        let rates = rates.clone();
        let mut weir = ControlledWeir::start_with(|builder| builder.rates(rates)).await;
        let mut alice = weir.alice();
        weir.assert_passes(&mut alice).await;
        let delayed = alice.send(TestRequest::get(LIST)).await;
        // weir answers this one itself, after the one before it.
        assert_eq!(alice.get("/api/v1/watch").await.status, 500);
        weir.upstream.assert_no_request();
        weir.pull(lever).await;
        weir.upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(delayed.response().await.status, 200);
        weir.assert_passes(&mut alice).await;
    }
    let mut rates = alice_rule_for_verbs("'*'", "  dryRun: true\n");
    rates.clients[0].requests = Some(Rate::from_share(0.02, 1.0));
    let mut weir = ControlledWeir::start_with(|builder| builder.rates(rates)).await;
    let mut alice = weir.alice();
    for _ in 0..2 {
        weir.assert_passes(&mut alice).await;
    }
    weir.pull(dry_run("off")).await;
    let rejected = alice.get(LIST).await;
    assert_eq!(rejected.kube_status().cause, "weir/client-limit");
}

#[tokio::test]
async fn a_bypass_lifts_limits_and_nothing_else() {
    let mut weir =
        ControlledWeir::start_with(|builder| builder.limits(1, 1).max_connections(3)).await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    weir.pull(bypass("on")).await;
    let held = [weir.hold(&mut bob).await, weir.hold(&mut bob).await];

    // A block stays, and one can be set.
    let block = weir.pull(block_alice()).await;
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;
    weir.control(json!({"command": "undo", "ids": [block]}))
        .await;

    // So do authentication and the cleaning of headers.
    let spoofed = || TestRequest::get(LIST).header("x-remote-user", "root");
    let call = bob.send(spoofed()).await;
    let exchange = weir.upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.get("x-remote-user"), None);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    let own = &pki().alice;
    let mut certified = weir.weir.with_certificate(HttpVersion::Http2, own);
    let call = certified.send(spoofed()).await;
    let exchange = weir.upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.all("x-remote-user"), ["alice"]);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);

    // So do the bounds on connections and heads.
    let mut refused = RawHttp1::new(weir.weir.connect_tcp().await);
    refused.reader.wait_for_close().await;
    let refused = "weir_client_connections_refused_total";
    assert_eq!(weir.weir.metric(refused).await, 1.0);
    let large = (0..130).fold(TestRequest::get(LIST), |request, n| {
        request.header(&format!("x-{n}"), &"v".repeat(9000))
    });
    let mut call = certified.send(large).await;
    if let Ok(head) = call.try_head().await {
        assert_eq!(head.status, 431);
    }
    weir.upstream.assert_no_request();

    for (call, exchange) in held {
        exchange.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    let ended = weir.control(bypass("off")).await;
    assert_eq!(ended["levers"][0]["action"], "bypass", "{ended}");
    let held = weir.hold(&mut bob).await;
    let rejected = bob.get(LIST).await;
    assert_eq!(rejected.kube_status().cause, "weir/max-requests-inflight");
    held.1.respond(200, "{}").await;
    let lines = error_lines(&weir.control(bypass("off")).await);
    assert_eq!(lines, "no bypass is in force");
}

#[tokio::test]
async fn a_bypass_keeps_the_memory_limit() {
    let weir = ControlledWeir::start_with(|builder| {
        builder.with(|config| config.memory_limit = 1) // far exceeded
    })
    .await;
    weir.pull(bypass("on")).await;
    weir.weir.wait_for_metric("weir_memory_pressure", 2.0).await;
    let mut refused = RawHttp1::new(weir.weir.connect_tcp().await);
    refused.reader.wait_for_close().await;
    let refused = "weir_memory_limit_refused_connections_total";
    assert_eq!(weir.weir.metric(refused).await, 1.0);
}

const WATCH: &str = "/api/v1/pods?watch=1";

const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh";

/// Waits until the body of a response has broken off or ended.
async fn wait_for_end(call: &mut TestCall) {
    let body = call.body();
    within("the end of a response", async {
        while let Some(Ok(_)) = body.next_chunk().await {}
    })
    .await;
}

/// A watch that has begun.
async fn watch(weir: &mut ControlledWeir, client: &mut TestClient) -> (TestCall, Exchange) {
    let mut call = client.send(TestRequest::get(WATCH)).await;
    let mut exchange = weir.upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    assert_eq!(call.head().await.status, 200);
    (call, exchange)
}

/// Both ends of an open tunnel of alice.
async fn tunnel(weir: &mut ControlledWeir) -> (RawHttp1, RawHttp1) {
    let mut near = weir.weir.raw_http1().await;
    let request = TestRequest::post(EXEC, "")
        .header(ALICE.0, ALICE.1)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    near.send(request.to_http1()).await;
    let mut far = weir.upstream.next_exchange().await.into_raw_http1();
    far.send(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
    )
    .await;
    assert_eq!(near.read_response_head().await.status, 101);
    (near, far)
}

#[tokio::test]
async fn a_block_with_now_ends_what_is_in_flight_and_releases_its_seat() {
    let mut weir = ControlledWeir::narrow().await;
    let (mut alice, mut bob) = (weir.alice(), weir.bob());
    let (mut watching, mut of_watch) = watch(&mut weir, &mut alice).await;
    let (mut near, mut far) = tunnel(&mut weir).await;
    let (mut others, mut of_others) = watch(&mut weir, &mut bob).await;
    // They have the seat and wait for it.
    let (call, mut of_alice) = weir.hold(&mut alice).await;
    let queued = bob.send(TestRequest::get(LIST)).await;
    weir.weir.wait_for_metric(QUEUED, 1.0).await;
    let mut block = block_alice();
    block["now"] = true.into();
    weir.pull(block).await;
    let ended = call.response().await;
    assert_eq!(ended.status, 504, "it may have been executed");
    assert_eq!(ended.kube_status().cause, "weir/blocked");
    assert!(ended.kube_status().message.contains("a storm"));
    wait_for_end(&mut watching).await;
    near.reader.wait_for_close().await;
    far.reader.wait_for_close().await;
    of_watch.wait_for_cancel().await;
    // As of any request that is abandoned, when the API server knows.
    of_alice.wait_for_cancel().await;
    weir.upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(queued.response().await.status, 200);
    of_others.send("{}").await;
    assert!(matches!(others.body().next_chunk().await, Some(Ok(_))));
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;
}

#[tokio::test]
async fn a_response_that_has_begun_is_cut_off_by_a_block_with_now_only() {
    let mut weir = ControlledWeir::start().await;
    let mut alice = weir.alice();
    let (mut call, mut exchange) = weir.hold(&mut alice).await;
    exchange.send_head(200, &[]).await;
    exchange.send("part").await;
    assert_eq!(call.head().await.status, 200);
    assert!(matches!(call.body().next_chunk().await, Some(Ok(_))));
    weir.pull(block_alice()).await;
    exchange.send("part").await;
    assert!(matches!(call.body().next_chunk().await, Some(Ok(_))));
    let mut block = block_alice();
    block["now"] = true.into();
    weir.pull(block).await;
    let end = call.body().next_chunk().await;
    assert!(matches!(end, Some(Err(_))), "not complete");
    exchange.wait_for_cancel().await;
}

#[tokio::test]
async fn a_disconnect_ends_connections_watches_and_tunnels_of_its_target() {
    let mut weir = ControlledWeir::start().await;
    let mut bob = weir.bob();
    let (mut near, mut far) = tunnel(&mut weir).await;
    let (mut others, mut of_others) = watch(&mut weir, &mut bob).await;
    let mut raw = weir.weir.raw_http2().await;
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", WATCH),
        ALICE,
    ];
    raw.send(&RawFrame::request(1, &head, true)).await;
    let mut of_watch = weir.upstream.next_exchange().await;
    of_watch.send_head(200, &[]).await;
    raw.next_frame_of_kind(raw_http2::HEADERS).await;
    let mut disconnect = lever("disconnect", json!({"users": ["alice"]}));
    disconnect["forMs"] = 500.into();
    let id = weir.pull(disconnect.clone()).await;
    near.reader.wait_for_close().await;
    far.reader.wait_for_close().await;
    of_watch.wait_for_cancel().await;
    let goaway = raw.next_frame_of_kind(raw_http2::GOAWAY).await;
    assert_eq!(goaway.u32_at(4), 0, "NO_ERROR");
    raw.wait_for_close().await;
    of_others.send("{}").await;
    assert!(matches!(others.body().next_chunk().await, Some(Ok(_))));
    let is_over = async || {
        let list = weir.control(json!({"command": "list"})).await;
        (list["levers"] == json!([])).then_some(())
    };
    eventually("the end of the lever", is_over).await;
    let undo = json!({"command": "undo", "ids": [id]});
    assert_eq!(weir.control(undo).await["unknown"], json!([id]));
    // Its clients come back.
    let mut alice = weir.alice();
    weir.assert_passes(&mut alice).await;

    disconnect["target"] = json!({"groups": ["system:masters"]});
    let lines = error_lines(&weir.control(disconnect).await);
    assert!(lines.contains("system:masters"), "{lines}");
}

#[tokio::test]
async fn a_disconnect_ends_connections_without_a_request() {
    let mut weir = ControlledWeir::start().await;
    let mut http2 = weir.weir.raw_http2().await;
    let mut others = weir.weir.raw_http2().await;
    let list = |user| {
        let head = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "weir"),
            (":path", LIST),
            user,
        ];
        RawFrame::request(1, &head, true)
    };
    for (connection, user) in [(&mut http2, ALICE), (&mut others, BOB)] {
        connection.send(&list(user)).await;
        weir.upstream.next_exchange().await.respond(200, "{}").await;
        connection.next_frame_of_kind(raw_http2::HEADERS).await;
    }
    let mut http1 = weir.weir.raw_http1().await;
    let request = TestRequest::get(LIST).header(ALICE.0, ALICE.1);
    http1.send(request.to_http1()).await;
    weir.upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(http1.read_response_head().await.status, 200);
    let mut disconnect = lever("disconnect", json!({"users": ["alice"]}));
    disconnect["forMs"] = 500.into();
    weir.pull(disconnect).await;
    let goaway = http2.next_frame_of_kind(raw_http2::GOAWAY).await;
    assert_eq!(goaway.u32_at(4), 0, "NO_ERROR");
    http2.wait_for_close().await;
    http1.reader.wait_for_close().await;
    // The connection of the other user goes on.
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        BOB,
    ];
    others.send(&RawFrame::request(3, &head, true)).await;
    weir.upstream.next_exchange().await.respond(200, "{}").await;
    others.next_frame_of_kind(raw_http2::HEADERS).await;
}

/// Runs `weir ctl` beside a weir.
pub(crate) async fn ctl(weir: &WeirProcess, arguments: &[&str]) -> FinishedRun {
    let mut all = vec!["ctl", "--control-socket=control.sock"];
    all.extend(arguments);
    run(&weir.files, &all).await
}

#[tokio::test]
async fn a_lever_of_weir_ctl_stays_at_a_reload_and_is_in_the_log() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("weir.yaml", "maxRequestsInflight: 10\n");
    let mut flags = required_flags(upstream.address);
    flags.extend(
        [
            "--config=weir.yaml",
            "--token-auth-file=tokens.csv",
            "--control-socket=control.sock",
            "--audit-log-path=audit.log",
        ]
        .map(str::to_owned),
    );
    let mut weir = WeirProcess::start(files, &flags).await;
    let refused = ctl(&weir, &["block", "--user", "system:node:*"]).await;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("names or covers nodes"),
        "{}",
        refused.stderr
    );
    let block = [
        "block", "--user", "alice", "--reason", "a storm", "--as", "carol",
    ];
    let blocked = ctl(&weir, &block).await;
    assert_eq!(blocked.code, Some(0), "{}", blocked.stderr);
    let expected = "lever 1 is in force for 10m0s: block user=alice";
    assert!(blocked.stdout.starts_with(expected), "{}", blocked.stdout);
    let line = weir.next_log_line("a lever is in force").await;
    for part in [
        "id=1",
        "target=user=alice",
        "reason=a storm",
        "uid=",
        "pid=",
        "carol",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }

    weir.files.write("weir.yaml", "maxRequestsInflight: 20\n");
    weir.wait_for_metric("weir_config_generation", 2.0).await;
    let mut alice = weir.alice(HttpVersion::Http1);
    assert_blocked(alice.send(TestRequest::get(LIST)).await).await;
    let list = ctl(&weir, &["list"]).await;
    assert!(list.stdout.contains("as carol"), "{}", list.stdout);
    let total = ctl(&weir, &["total", "30", "--reason", "it is slow"]).await;
    let expected = "lever 2 is in force for 10m0s: total 30";
    assert!(total.stdout.starts_with(expected), "{}", total.stdout);
    weir.files.write("weir.yaml", "maxRequestsInflight: 40\n");
    weir.wait_for_metric("weir_config_generation", 3.0).await;
    assert_eq!(weir.metric(SEATS).await, 30.0);
    let undone = ctl(&weir, &["undo", "2"]).await;
    assert_eq!(undone.stdout, "lever 2 has ended: total 30\n");
    assert_eq!(
        weir.metric(SEATS).await,
        240.0,
        "200 are for mutating requests"
    );
    let bypass = ctl(&weir, &["bypass", "on"]).await;
    let expected = "lever 3 is in force for 10m0s: bypass on";
    assert!(bypass.stdout.starts_with(expected), "{}", bypass.stdout);
    assert!(bypass.stdout.contains("what stays:"), "{}", bypass.stdout);
    weir.files.write("weir.yaml", "maxRequestsInflight: 50\n");
    weir.wait_for_metric("weir_config_generation", 4.0).await;
    assert_eq!(weir.metric("weir_levers{action=\"bypass\"}").await, 1.0);
    let ended = ctl(&weir, &["bypass", "off"]).await;
    assert_eq!(ended.stdout, "lever 3 has ended: bypass on\n");
    assert_eq!(ctl(&weir, &["bypass", "off"]).await.code, Some(1));
    let seen = ctl(&weir, &["talkers"]).await;
    assert!(seen.stdout.contains("alice"), "{}", seen.stdout);
    let undone = ctl(&weir, &["undo", "1", "2"]).await;
    assert_eq!(undone.code, Some(1));
    assert!(
        undone.stdout.contains("lever 1 has ended"),
        "{}",
        undone.stdout
    );
    assert!(
        undone.stderr.contains("there is no lever 2"),
        "{}",
        undone.stderr
    );
    let call = alice.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);

    let brief = ctl(&weir, &["block", "--user", "dave", "--for", "1s"]).await;
    assert!(brief.stdout.starts_with("lever 4 "), "{}", brief.stdout);
    weir.wait_for_metric("weir_levers{action=\"block\"}", 0.0)
        .await;
    for total in ["30", "31"] {
        let total = ctl(&weir, &["total", total]).await;
        assert_eq!(total.code, Some(0), "{}", total.stderr);
    }

    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
    let log = fs::read_to_string(weir.files.path().join("audit.log")).unwrap();
    let events_of = |lever: &str| -> Vec<Value> {
        let events = log.lines().map(|line| serde_json::from_str(line).unwrap());
        events
            .filter(|event: &Value| event["requestURI"] == format!("/weir/levers/{lever}"))
            .collect()
    };
    for (lever, user, end) in [
        ("1", "weir:control-socket", "undone"),
        ("4", "weir:time", "in time"),
        ("5", "weir:control-socket", "replaced"),
    ] {
        let events = events_of(lever);
        let verbs: Vec<_> = events.iter().map(|event| &event["verb"]).collect();
        assert_eq!(verbs, ["create", "delete"], "{log}");
        assert_eq!(events[1]["user"]["username"], user, "{log}");
        assert_eq!(events[1]["annotations"]["weir/end"], end, "{log}");
    }
    let events = events_of("1");
    let user = &events[0]["user"];
    assert_eq!(user["username"], "weir:control-socket");
    assert_eq!(user["extra"]["weir/claimed-name"], json!(["carol"]));
    assert!(user["extra"]["weir/uid"].is_array() && user["extra"]["weir/pid"].is_array());
    let annotations = &events[0]["annotations"];
    assert_eq!(annotations["weir/lever"], "block user=alice");
    assert_eq!(annotations["weir/reason"], "a storm");
    let unanswered = ctl(&weir, &["list"]).await;
    assert_eq!(unanswered.code, Some(3), "{}", unanswered.stderr);
    assert!(!weir.files.path().join("control.sock").exists());
    for wrong in [
        &["block"][..],
        &["limit", "--user", "a"],
        &["block", "--source", "a"],
        &["total", "0"],
        &["total"],
        &["dry-run", "auto"],
        &["bypass"],
    ] {
        assert_eq!(ctl(&weir, wrong).await.code, Some(2), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_drain_ends_the_process_with_its_last_request() {
    let mut upstream = FakeUpstream::start().await;
    let mut flags = required_flags(upstream.address);
    flags.extend(
        [
            "--token-auth-file=tokens.csv",
            "--control-socket=control.sock",
            "--shutdown-delay-duration=0s",
        ]
        .map(str::to_owned),
    );
    let mut weir = WeirProcess::start(ConfigDir::new(), &flags).await;
    let mut alice = weir.alice(HttpVersion::Http1);
    let call = alice.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    let drained = ctl(&weir, &["drain", "--as", "carol"]).await;
    assert_eq!(drained.code, Some(0), "{}", drained.stderr);
    let expected = "requests and watches have ended: now 1 and 0";
    assert!(drained.stdout.contains(expected), "{}", drained.stdout);
    let line = weir.next_log_line("weir ctl drain").await;
    assert!(line.contains("uid=") && line.contains("carol"), "{line}");
    assert_eq!(weir.get_admin("/readyz").await.status, 500);
    assert!(weir.is_running());
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    assert!(weir.wait_for_exit().await.success());
}
