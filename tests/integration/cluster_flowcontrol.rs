//! Flow schemas and priority levels from the cluster: changes take effect, the last known set stays,
//! and differences from the API server are reported. In front of the playground, which serves them
//! as kube-apiserver does, and of an upstream that the test controls.

use std::path::Path;
use std::time::Duration;

use ::weir::config::{AdmissionConfig, ClusterSourceConfig, Config, FlowcontrolConfig};
use ::weir::flowcontrol::controller::{ControllerConfig, Enforcement};
use ::weir::upstream::credentials::{BearerToken, CredentialSource};
use ::weir_flowcontrol::bootstrap;
use ::weir_kubernetes::api::flowcontrol::{Object, to_manifest};
use ::weir_tokens::bearer::bearer_header;
use serde_json::{Value, json};
use weir_playground::{Denial, PlaygroundSettings};

use crate::authentication::{PlaygroundCluster, authorization};
use crate::kubeconfig::{kubeconfig_flags, kubeconfig_yaml};
use crate::support::client::{FullResponse, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, eventually, weir};

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const SYNCED: &str = "weir_flowcontrol_cluster_synced";
const OWN_USER: &str = "system:serviceaccount:team:weir";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Fairness with the cluster's objects.
fn cluster_source(state_dir: Option<&Path>) -> AdmissionConfig {
    AdmissionConfig::Fairness {
        config: ControllerConfig {
            server_concurrency_limit: 600,
            request_timeout: Duration::from_secs(60),
            enforcement: Enforcement::Enforce,
            consistent_reads_from_cache: true,
        },
        sources: FlowcontrolConfig {
            files: Vec::new(),
            cluster: Some(ClusterSourceConfig {
                state_dir: state_dir.map(Path::to_owned),
                retry_after_denial: Duration::from_millis(1),
            }),
        },
    }
}

/// The playground, and weir with credentials of its own in front of it.
struct Harness {
    cluster: PlaygroundCluster,
    weir: Weir,
    admin: TestClient,
}

impl Harness {
    async fn start(state_dir: Option<&Path>) -> Self {
        let harness = Self::start_denied(state_dir, &[]).await;
        harness.weir.wait_for_metric(SYNCED, 1.0).await;
        harness
    }

    /// Denies weir's own user these verbs.
    async fn start_denied(state_dir: Option<&Path>, denied: &[(&str, &str)]) -> Self {
        let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
        for (verb, what) in denied {
            cluster.server.deny(Denial {
                user: OWN_USER.to_owned(),
                verb: (*verb).to_owned(),
                target: (*what).to_owned(),
            });
        }
        let own = cluster.service_account_token("weir");
        let change = |config: &mut Config| {
            config.own_credentials = CredentialSource::Configured {
                certificate: None,
                token: Some(BearerToken::Inline(bearer_header(&own).unwrap())),
            };
            config.reporting.explain = true;
            config.admission = cluster_source(state_dir);
            config.upstream.probe_interval = Some(Duration::from_millis(20));
        };
        let weir = cluster.start_weir(change).await;
        let (name, value) = authorization(cluster.token("admin"));
        let admin = weir.with_authorization(HttpVersion::Http2, (name, &value));
        Self {
            cluster,
            weir,
            admin,
        }
    }

    async fn write(&mut self, method: &str, target: &str, object: &Value) -> FullResponse {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = TestRequest::post(target, object.to_string())
            .method(method)
            .header("content-type", content_type);
        self.admin.request(request).await
    }

    async fn delete(&mut self, target: &str) {
        let request = TestRequest::new("DELETE", target);
        let response = self.admin.request(request).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }

    /// Waits until weir classifies bob's requests by this schema.
    async fn wait_for_schema_of_bob(&self, schema: &str) {
        let (name, value) = authorization(self.cluster.token("bob"));
        let mut bob = self
            .weir
            .with_authorization(HttpVersion::Http2, (name, &value));
        eventually("the flow schema of bob's requests", async || {
            let response = bob.get(PODS).await;
            (response.headers.get("x-weir-flow-schema") == Some(schema)).then_some(())
        })
        .await;
    }
}

/// The objects that weir has in force.
async fn objects(weir: &Weir) -> Value {
    let path = "/debug/api_priority_and_fairness/objects";
    serde_json::from_str(weir.get_admin(path).await.text()).unwrap()
}

/// The entry of an object that is in force.
async fn object(weir: &Weir, kind: &str, name: &str) -> Option<Value> {
    let all = objects(weir).await;
    let found = all["objects"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| (one["kind"].as_str(), one["name"].as_str()) == (Some(kind), Some(name)));
    found.cloned()
}

fn schema(name: &str, level: &str) -> Value {
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": 500,
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "bob"}}],
                "resourceRules": [{
                    "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                }],
            }],
        },
    })
}

#[tokio::test]
async fn changes_of_the_cluster_s_objects_take_effect() {
    let mut harness = Harness::start(None).await;
    let exempt = object(&harness.weir, "FlowSchema", "exempt").await.unwrap();
    assert_eq!(exempt["origin"], "cluster");
    let stored = harness
        .cluster
        .server
        .object("flowschemas", "", "exempt")
        .unwrap();
    assert_eq!(
        exempt["manifest"]["metadata"]["uid"],
        stored["metadata"]["uid"]
    );

    harness.wait_for_schema_of_bob("global-default").await;
    let created = harness
        .write("POST", SCHEMAS, &schema("crowd", "workload-high"))
        .await;
    assert_eq!(created.status, 201, "{}", created.text());
    harness.wait_for_schema_of_bob("crowd").await;

    let level = json!({
        "metadata": {"name": "own"},
        "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}},
    });
    assert_eq!(harness.write("POST", LEVELS, &level).await.status, 201);
    let moved = json!({"spec": {"priorityLevelConfiguration": {"name": "own"}}});
    let crowd = format!("{SCHEMAS}/crowd");
    assert_eq!(harness.write("PATCH", &crowd, &moved).await.status, 200);
    let (name, value) = authorization(harness.cluster.token("bob"));
    let mut bob = harness
        .weir
        .with_authorization(HttpVersion::Http2, (name, &value));
    eventually("the level of bob's requests", async || {
        let response = bob.get(PODS).await;
        (response.headers.get("x-weir-priority-level") == Some("own")).then_some(())
    })
    .await;
    let nominal = "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"own\"}";
    assert!(
        harness.weir.metric(nominal).await > 0.0,
        "30 shares by default"
    );

    harness.delete(&crowd).await;
    harness.wait_for_schema_of_bob("global-default").await;
    let report = harness.weir.get_admin("/readyz").await;
    assert!(
        report.text().contains("[+]flowcontrol-source ok\n"),
        "{}",
        report.text()
    );
}

#[tokio::test]
async fn the_playground_validates_and_defaults_as_the_server_does() {
    let mut harness = Harness::start(None).await;
    let created = harness
        .write("POST", SCHEMAS, &schema("crowd", "workload-low"))
        .await;
    let created: Value = serde_json::from_str(created.text()).unwrap();
    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
    let level = json!({
        "metadata": {"name": "own"},
        "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}},
    });
    let created = harness.write("POST", LEVELS, &level).await;
    let created: Value = serde_json::from_str(created.text()).unwrap();
    assert_eq!(
        created["spec"]["limited"],
        json!({
            "nominalConcurrencyShares": 30,
            "lendablePercent": 0,
            "limitResponse": {"type": "Queue", "queuing": {
                "queues": 64, "handSize": 8, "queueLengthLimit": 50,
            }},
        })
    );
    let raised = json!({"spec": {"limited": {"nominalConcurrencyShares": 31}}});
    let patched = harness
        .write("PATCH", &format!("{LEVELS}/own"), &raised)
        .await;
    let patched: Value = serde_json::from_str(patched.text()).unwrap();
    assert_eq!(patched["metadata"]["generation"], 2);

    let mut bad = schema("bad", "workload-low");
    bad["spec"]["matchingPrecedence"] = json!(1);
    let rejected = harness.write("POST", SCHEMAS, &bad).await;
    assert_eq!(rejected.status, 422, "{}", rejected.text());
    let status: Value = serde_json::from_str(rejected.text()).unwrap();
    assert_eq!(
        status["message"],
        "FlowSchema.flowcontrol.apiserver.k8s.io \"bad\" is invalid: spec.matchingPrecedence: \
         Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1"
    );
    bad["spec"]["matchingPrecedence"] = json!("high");
    assert_eq!(harness.write("POST", SCHEMAS, &bad).await.status, 400);
}

#[tokio::test]
async fn a_set_without_mandatory_objects_is_kept_out_until_they_are_back() {
    let mut harness = Harness::start(None).await;
    let target = format!("{SCHEMAS}/catch-all");
    let stored = harness
        .cluster
        .server
        .object("flowschemas", "", "catch-all")
        .unwrap();
    harness.delete(&target).await;
    harness.weir.wait_for_metric(SYNCED, 0.0).await;
    let report = harness.weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200);
    let line =
        "[-]flowcontrol-source failed, readiness not affected: missing: FlowSchema catch-all";
    assert!(report.text().contains(line), "{}", report.text());
    let kept = object(&harness.weir, "FlowSchema", "catch-all")
        .await
        .unwrap();
    assert_eq!(kept["origin"], "cluster");
    let again = json!({"metadata": {"name": "catch-all"}, "spec": stored["spec"]});
    assert_eq!(harness.write("POST", SCHEMAS, &again).await.status, 201);
    harness.weir.wait_for_metric(SYNCED, 1.0).await;
}

#[tokio::test]
async fn without_permission_the_built_in_objects_are_in_force_and_readiness_says_why() {
    for verb in ["list", "watch"] {
        let harness = Harness::start_denied(None, &[(verb, "flowschemas")]).await;
        let report = eventually("the reason", async || {
            let report = harness.weir.get_admin("/readyz").await;
            report.text().contains("may not").then_some(report)
        })
        .await;
        assert_eq!(report.status, 200);
        let line = format!("weir's own credentials may not {verb} flowschemas\n");
        assert!(report.text().contains(&line), "{}", report.text());
        if verb == "list" {
            let objects = objects(&harness.weir).await;
            let objects = objects["objects"].as_array().unwrap();
            assert!(objects.iter().all(|one| one["origin"] == "built-in"));
        }
        assert_eq!(harness.weir.metric(SYNCED).await, 0.0);
    }
}

#[tokio::test]
async fn the_last_known_set_survives_a_restart_while_the_api_server_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(Some(folder.path())).await;
    let created = harness
        .write("POST", SCHEMAS, &schema("crowd", "workload-high"))
        .await;
    assert_eq!(created.status, 201);
    let file = folder.path().join("flowcontrol.json");
    eventually("the file", async || {
        let text = tokio::fs::read_to_string(&file).await.ok()?;
        text.contains("\"crowd\"").then_some(())
    })
    .await;

    let cluster = harness.cluster;
    cluster.stop();
    let start =
        || cluster.start_weir(|config| config.admission = cluster_source(Some(folder.path())));
    let restarted = start().await;
    let crowd = object(&restarted, "FlowSchema", "crowd").await.unwrap();
    assert_eq!(crowd["origin"], "cluster");
    let configz = restarted.get_admin("/configz").await;
    let configz: Value = serde_json::from_str(configz.text()).unwrap();
    assert_eq!(
        configz["flowcontrol"]["objects"].as_array().unwrap().len(),
        20
    );

    // A new cluster has other CAs, whatever its addresses.
    let other = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    other.stop();
    let other = other.start_weir(|config| {
        config.upstream.servers = vec![weir::server_address(cluster.address)];
        config.admission = cluster_source(Some(folder.path()));
    });
    assert_eq!(object(&other.await, "FlowSchema", "crowd").await, None);

    tokio::fs::write(&file, "{\"version\":\"weir.st")
        .await
        .unwrap();
    let damaged = start().await;
    assert_eq!(object(&damaged, "FlowSchema", "crowd").await, None);
    assert!(object(&damaged, "FlowSchema", "exempt").await.is_some());
}

#[tokio::test]
async fn a_state_of_another_cluster_is_refused_and_the_log_says_why() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let kubeconfig = kubeconfig_yaml(upstream.address, "", "token: t");
    files.write("kubeconfig", &kubeconfig);
    std::fs::create_dir(files.path().join("state")).unwrap();
    let state = json!({
        "version": "weir.state/v1",
        "cluster": {"servers": ["192.0.2.1:6443"], "authorities": ["another"]},
        "objects": {"apiVersion": "v1", "kind": "List", "items": [schema("crowd", "workload-high")]},
    });
    files.write("state/flowcontrol.json", &state.to_string());
    let mut flags = kubeconfig_flags(&["--state-dir=state"]);
    flags.retain(|flag| !flag.starts_with("--flowcontrol-source"));
    let weir = WeirProcess::start(files, &flags).await;
    let server = upstream.address;
    let expected = format!(
        "--state-dir: state/flowcontrol.json: it is of another cluster: its API servers were \
         192.0.2.1:6443, and {server} is configured: it is ignored"
    );
    let lines = &weir.startup_lines;
    assert!(
        lines.iter().any(|line| line.contains(&expected)),
        "{lines:#?}"
    );
}

/// The built-in objects of a kind as a list, each with its name as UID.
fn list(kind: &str, version: &str) -> String {
    let objects = bootstrap::add_missing(Vec::new());
    let items = objects.iter().filter(|object| object.kind() == kind);
    let items: Value = items
        .map(|object: &Object| {
            let mut item = to_manifest(object);
            item["apiVersion"] = format!("flowcontrol.apiserver.k8s.io/{version}").into();
            item["metadata"]["uid"] = format!("{kind}-{}", object.metadata().name).into();
            item
        })
        .collect();
    json!({
        "apiVersion": format!("flowcontrol.apiserver.k8s.io/{version}"),
        "kind": format!("{kind}List"),
        "metadata": {"resourceVersion": "10"},
        "items": items,
    })
    .to_string()
}

/// The list that a request asks for.
fn list_for(target: &str, version: &str) -> String {
    match target.contains("flowschemas") {
        true => list("FlowSchema", version),
        false => list("PriorityLevelConfiguration", version),
    }
}

/// weir in front of an upstream whose responses to weir's lists and watches the test chooses.
async fn start_controlled() -> (FakeUpstream, Weir) {
    let upstream = FakeUpstream::start().await.expose_flowcontrol();
    let weir = weir::builder(upstream.address)
        .own_token("t")
        .with(|config| config.admission = cluster_source(None))
        .start()
        .await;
    (upstream, weir)
}

/// Responds to lists until both watches are open, and returns them.
async fn open_watches(upstream: &mut FakeUpstream) -> Vec<Exchange> {
    let mut watches = Vec::new();
    while watches.len() < 2 {
        let mut exchange = upstream.next_exchange().await;
        let target = exchange.request.target.clone();
        if target.contains("watch=1") {
            assert!(target.contains("resourceVersion=10&"), "{target}");
            exchange
                .send_head(200, &[("content-type", "application/json")])
                .await;
            watches.push(exchange);
        } else {
            exchange.respond(200, list_for(&target, "v1")).await;
        }
    }
    watches
}

#[tokio::test]
async fn older_versions_are_tried_where_v1_is_not_served() {
    let (mut upstream, weir) = start_controlled().await;
    let mut versions = Vec::new();
    let mut watches = Vec::new();
    while watches.len() < 2 {
        let mut exchange = upstream.next_exchange().await;
        let target = exchange.request.target.clone();
        let version = target.split('/').nth(3).unwrap().to_owned();
        if target.contains("watch=1") {
            assert_eq!(version, "v1beta3");
            exchange.send_head(200, &[]).await;
            watches.push(exchange);
        } else if version == "v1" {
            versions.push(version);
            exchange.respond(404, "404 page not found").await;
        } else {
            exchange.respond(200, list_for(&target, &version)).await;
        }
    }
    assert_eq!(versions, ["v1", "v1"], "of each resource");
    weir.wait_for_metric(SYNCED, 1.0).await;
}

#[tokio::test]
async fn missing_permissions_are_tried_again_and_found() {
    let (mut upstream, weir) = start_controlled().await;
    for _ in 0..6 {
        upstream.next_exchange().await.respond(403, "{}").await;
    }
    let _watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    let cluster = "weir_flowcontrol_objects{origin=\"cluster\"}";
    assert_eq!(weir.metric(cluster).await, 19.0);
}

/// weir in front of an upstream whose `/readyz` answers 200, which waits for an hour after it was
/// denied a right.
async fn start_patient() -> (FakeUpstream, Weir) {
    let upstream = FakeUpstream::start().await.expose_flowcontrol();
    upstream.answer_readyz(200);
    let weir = weir::builder(upstream.address)
        .own_token("t")
        .with(|config| {
            config.admission = cluster_source(None);
            if let AdmissionConfig::Fairness { sources, .. } = &mut config.admission
                && let Some(cluster) = &mut sources.cluster
            {
                cluster.retry_after_denial = Duration::from_secs(3600);
            }
            config.upstream.probe_interval = Some(Duration::from_millis(20));
        })
        .start()
        .await;
    (upstream, weir)
}

#[tokio::test]
async fn a_403_at_the_start_is_tried_again_in_seconds() {
    let (mut upstream, weir) = start_patient().await;
    for _ in 0..6 {
        upstream.next_exchange().await.respond(403, "{}").await;
    }
    let _watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
}

#[tokio::test]
async fn a_403_after_an_outage_is_tried_again_in_seconds() {
    let (mut upstream, weir) = start_patient().await;
    let watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    let place = upstream.reservation.clone();
    let healthy = format!(
        "weir_upstream_server_healthy{{server=\"{}\"}}",
        upstream.address
    );
    drop((watches, upstream));
    weir.wait_for_metric(SYNCED, 0.0).await;
    weir.wait_for_metric(&healthy, 0.0).await;
    let mut upstream = FakeUpstream::restart_at(place).await.expose_flowcontrol();
    upstream.answer_readyz(500);
    let not_ready = format!(
        "weir_upstream_server_probes_total{{result=\"not-ready\",server=\"{}\"}}",
        upstream.address
    );
    while weir.metric(&not_ready).await < 20.0 {}
    upstream.assert_no_request();
    assert_eq!(weir.metric(&healthy).await, 0.0);
    upstream.answer_readyz(200);
    for _ in 0..4 {
        upstream.next_exchange().await.respond(403, "{}").await;
    }
    let _watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
}

#[tokio::test]
async fn a_403_of_a_server_that_is_not_ready_is_no_missing_right() {
    let (mut upstream, weir) = start_patient().await;
    let mut watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    upstream.answer_readyz(500);
    let healthy = format!(
        "weir_upstream_server_healthy{{server=\"{}\"}}",
        upstream.address
    );
    weir.wait_for_metric(&healthy, 0.0).await;
    watches.remove(0).reset(h2::Reason::INTERNAL_ERROR);
    for _ in 0..4 {
        upstream.next_exchange().await.respond(403, "{}").await;
    }
    let report = weir.get_admin("/readyz?verbose").await;
    let line = "[-]flowcontrol-source failed, readiness not affected: list ";
    assert!(report.text().contains(line), "{}", report.text());
    upstream.answer_readyz(200);
    while watches.len() < 2 {
        let mut exchange = upstream.next_exchange().await;
        let target = exchange.request.target.clone();
        if target.contains("watch=1") {
            exchange.send_head(200, &[]).await;
            watches.push(exchange);
        } else {
            exchange.respond(200, list_for(&target, "v1")).await;
        }
    }
    weir.wait_for_metric(SYNCED, 1.0).await;
}

#[tokio::test]
async fn a_watch_whose_version_is_too_old_leads_to_a_new_list() {
    let (mut upstream, weir) = start_controlled().await;
    let mut watches = open_watches(&mut upstream).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    let mut expired = watches.remove(0);
    let resource = expired.request.target.split('?').next().unwrap().to_owned();
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}});
    expired.send(format!("{gone}\n")).await;
    let again = upstream.next_exchange().await;
    assert_eq!(again.request.target, resource, "a list");
    again.respond(503, "{}").await;
    weir.wait_for_metric(SYNCED, 0.0).await;
    let cluster = "weir_flowcontrol_objects{origin=\"cluster\"}";
    assert_eq!(weir.metric(cluster).await, 19.0, "the last known set stays");
    let again = upstream.next_exchange().await;
    let empty = json!({
        "kind": format!("{}List", if resource == SCHEMAS { "FlowSchema" } else { "PriorityLevelConfiguration" }),
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "metadata": {"resourceVersion": "1"},
        "items": [],
    });
    again.respond(200, empty.to_string()).await;
    let mut watch = upstream.next_exchange().await;
    assert!(
        watch.request.target.contains("watch=1"),
        "{}",
        watch.request.target
    );
    watch.send_head(200, &[]).await;
    eventually("what is missing", async || {
        let objects = objects(&weir).await;
        let message = objects["cluster"]["message"].as_str()?;
        message.starts_with("missing: ").then_some(())
    })
    .await;
    assert_eq!(
        weir.metric(cluster).await,
        19.0,
        "an empty list replaces nothing"
    );
}
