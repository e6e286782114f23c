//! Changes of a mode without a restart: of limiting, of asserting users, of reading flow schemas,
//! of logging. Requests under way finish as they began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;
#[cfg(feature = "playground")]
use weir_playground::PlaygroundSettings;

#[cfg(feature = "playground")]
use crate::authentication::PlaygroundCluster;
use crate::kubeconfig::{kubeconfig_flags, kubeconfig_yaml};
use crate::support::certificates::pki;
use crate::support::client::{TestCall, TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::process::{ConfigDir, WeirProcess, required_flags};
use crate::support::weir::Endpoints;
use crate::support::{HttpVersion, eventually};

const LIST: &str = "/api/v1/pods";
const GENERATION: &str = "weir_config_generation";
const SEATS: &str = "weir_server_concurrency_limit_seats";
const SLOTS: &str = "weir_requests_inflight_limit{request_kind=\"readOnly\"}";
const IN_FLIGHT: &str = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";

/// The requests of alice that wait.
const WAITING: &str = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"of-alice\",priority_level=\"single\"}";

/// One seat and one slot.
const ONE: &str = "maxRequestsInflight: 1\nmaxMutatingRequestsInflight: 0\n";

/// The setting of a file with a priority level of one seat for the requests of alice.
const SINGLE: &str = "flowcontrolConfig: [single.yaml]\n";

/// The file of [`SINGLE`].
const SINGLE_YAML: &str = "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: single}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 1
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 10}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: of-alice}
spec:
  matchingPrecedence: 100
  priorityLevelConfiguration: {name: single}
  rules:
  - subjects: [{kind: User, user: {name: alice}}]
    resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]
";

/// A request may wait in a queue for a quarter of this.
const LONG_WAIT: &str = "--request-timeout=4m";

/// Clients of the test under load.
const CLIENTS: usize = 6;

/// weir with this `--config` file, in front of `upstream`.
async fn serve(upstream: &FakeUpstream, files: ConfigDir, config: &str) -> WeirProcess {
    files.write("weir.yaml", config);
    upstream.answer_readyz(200);
    let mut flags = required_flags(upstream.address);
    flags.extend(
        [
            "--config=weir.yaml",
            "--token-auth-file=tokens.csv",
            "--explain-responses",
            LONG_WAIT,
        ]
        .map(str::to_owned),
    );
    WeirProcess::start(files, &flags).await
}

/// Replaces the `--config` file, and waits until it is in force as this generation.
async fn reload(weir: &WeirProcess, config: &str, generation: u32) {
    weir.files.write("weir.yaml", config);
    weir.wait_for_metric(GENERATION, f64::from(generation))
        .await;
}

/// A request that is at the upstream.
async fn hold(client: &mut TestClient, upstream: &mut FakeUpstream) -> (TestCall, Exchange) {
    let call = client.send(TestRequest::get(LIST)).await;
    (call, upstream.next_exchange().await)
}

async fn finish((call, exchange): (TestCall, Exchange)) {
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

async fn json(weir: &WeirProcess, target: &str) -> Value {
    serde_json::from_str(weir.get_admin(target).await.text()).unwrap()
}

/// The seats in use, of all priority levels that are shown.
async fn executing_seats(weir: &WeirProcess) -> f64 {
    let metrics = weir.get_admin("/metrics").await;
    let seats = metrics.text().lines().filter_map(|line| {
        let rest = line.strip_prefix("apiserver_flowcontrol_current_executing_seats{")?;
        rest.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    seats.sum()
}

fn mode(fairness: bool) -> String {
    format!("enablePriorityAndFairness: {fairness}\n")
}

#[tokio::test]
async fn the_mode_of_limiting_changes_twenty_times_under_load_and_no_request_fails() {
    let mut upstream = FakeUpstream::start().await;
    let weir = serve(&upstream, ConfigDir::new(), &mode(true)).await;
    let (served, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let responses = tokio::spawn(async move {
        loop {
            let exchange = upstream.next_exchange_without_timeout().await;
            tokio::spawn(exchange.respond(200, "{}"));
        }
    });
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let http = HttpVersion::BOTH[number % 2];
        let mut client = weir.alice(http);
        let (served, stop) = (Arc::clone(&served), Arc::clone(&stop));
        clients.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let response = client.get(LIST).await;
                assert_eq!(response.status, 200, "{}", response.text());
                served.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for flip in 1..=20 {
        let before = served.load(Ordering::SeqCst);
        let fairness = flip % 2 == 0;
        reload(&weir, &mode(fairness), flip + 1).await;
        let seats = if fairness { 540.0 } else { 0.0 };
        assert_eq!(weir.metric(SEATS).await, seats);
        eventually("requests in the new mode", async || {
            let more = served.load(Ordering::SeqCst) > before + CLIENTS;
            more.then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    responses.abort();
    weir.wait_for_metric(IN_FLIGHT, 0.0).await;
    eventually("no seat is in use", async || {
        (executing_seats(&weir).await == 0.0).then_some(())
    })
    .await;
    let status = json(&weir, "/status.json").await;
    for level in status["levels"].as_array().unwrap() {
        assert_eq!(level["seatsInUse"], 0, "{level}");
    }
}

#[tokio::test]
async fn all_pages_and_metrics_show_the_mode_in_force() {
    let upstream = FakeUpstream::start().await;
    let weir = serve(&upstream, ConfigDir::new(), &mode(true)).await;
    let dump = "/debug/api_priority_and_fairness/dump_priority_levels";
    for round in 0..2 {
        let metrics = weir.get_admin("/metrics").await;
        assert!(!metrics.text().contains("weir_requests_inflight_limit{"));
        assert!(
            metrics
                .text()
                .contains("apiserver_flowcontrol_nominal_limit_seats{")
        );
        assert_eq!(weir.metric(SEATS).await, 540.0);
        assert!(
            weir.metric("weir_flowcontrol_objects{origin=\"built-in\"}")
                .await
                > 0.0
        );
        assert_eq!(weir.get_admin(dump).await.status, 200);
        let status = json(&weir, "/status.json").await;
        assert_eq!(status["mode"], "PriorityAndFairness");
        assert!(json(&weir, "/configz").await["flowcontrol"].is_object());

        let limits = "maxRequestsInflight: 7\n";
        reload(&weir, &(mode(false) + limits), 2 * round + 2).await;
        assert_eq!(weir.metric(SLOTS).await, 7.0);
        assert_eq!(weir.metric(SEATS).await, 0.0);
        eventually("the next second", async || {
            let metrics = weir.get_admin("/metrics").await;
            let old = ["apiserver_flowcontrol_", "inqueue", "objects{"];
            // Requests in flight are measured in both modes.
            let mut lines = metrics.text().lines().filter(|line| {
                !line.starts_with('#') && !line.contains("read_vs_write_current_requests")
            });
            let is_old = |line: &str| old.iter().any(|part| line.contains(part));
            (!lines.any(is_old)).then_some(())
        })
        .await;
        assert_eq!(weir.get_admin(dump).await.status, 404);
        let status = json(&weir, "/status.json").await;
        assert_eq!(status["mode"], "MaxInFlight");
        assert_eq!(status["levels"].as_array().unwrap().len(), 2);
        let configz = json(&weir, "/configz").await;
        assert_eq!(configz["flowcontrol"], Value::Null);
        assert_eq!(configz["weir"]["enablePriorityAndFairness"], false);
        reload(&weir, &mode(true), 2 * round + 3).await;
    }
}

#[tokio::test]
async fn requests_keep_the_seats_and_queues_of_the_mode_that_they_arrived_in() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("single.yaml", SINGLE_YAML);
    let fairness = mode(true) + ONE + SINGLE;
    let max_in_flight = mode(false) + ONE;
    let weir = serve(&upstream, files, &fairness).await;
    let mut client = weir.alice(HttpVersion::Http2);
    // One seat for the level of these requests: the second one waits.
    let with_seat = hold(&mut client, &mut upstream).await;
    let queued = client.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric(WAITING, 1.0).await;
    reload(&weir, &max_in_flight, 2).await;
    // The other mode has a slot of its own, and no more.
    let with_slot = hold(&mut client, &mut upstream).await;
    assert_eq!(client.get(LIST).await.status, 429);
    upstream.assert_no_request();
    assert_eq!(executing_seats(&weir).await, 1.0);
    weir.wait_for_metric(IN_FLIGHT, 2.0).await;
    // The request in the queue gets the seat.
    finish(with_seat).await;
    let dispatched = upstream.next_exchange().await;
    // Back in the first mode: its seat is still in use, so the next request waits.
    reload(&weir, &fairness, 3).await;
    let next = client.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric(WAITING, 1.0).await;
    finish(with_slot).await;
    upstream.assert_no_request();
    finish((queued, dispatched)).await;
    let exchange = upstream.next_exchange().await;
    finish((next, exchange)).await;
    eventually("no seat is in use", async || {
        (executing_seats(&weir).await == 0.0).then_some(())
    })
    .await;
    reload(&weir, &max_in_flight, 4).await;
    finish(hold(&mut client, &mut upstream).await).await;
}

#[tokio::test]
async fn the_format_of_the_log_is_that_of_the_configuration() {
    let upstream = FakeUpstream::start().await;
    let format = |name: &str| format!("loggingFormat: {name}\nlogLevel: 'h2=trace,info'\n");
    let mut weir = serve(&upstream, ConfigDir::new(), &format("text")).await;
    for round in 0..2 {
        // With the spans of connections that are open meanwhile.
        let mut client = weir.alice(HttpVersion::Http2);
        assert_eq!(client.get("/api/v1/watch").await.status, 500);
        reload(&weir, &format("json"), 2 * round + 2).await;
        let line = weir.next_log_line("a new configuration is in force").await;
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["fields"]["generation"], 2 * round + 2);
        assert_eq!(client.get("/api/v1/watch").await.status, 500);
        reload(&weir, &format("text"), 2 * round + 3).await;
        let line = weir.next_log_line("a new configuration is in force").await;
        assert!(line.contains("generation="), "{line}");
        assert_eq!(client.get("/api/v1/watch").await.status, 500);
    }
    assert!(weir.is_running());
}

#[tokio::test]
async fn the_listener_for_probes_serves_metrics_as_long_as_the_configuration_says_so() {
    let upstream = FakeUpstream::start().await;
    let config = |metrics: bool| format!("healthAddress: 127.0.0.1:0\nhealthMetrics: {metrics}\n");
    let weir = serve(&upstream, ConfigDir::new(), &config(false)).await;
    let health = weir.startup_lines.iter().find_map(|line| {
        let (_, rest) = line.split_once("health=")?;
        rest.split_whitespace().next()?.parse().ok()
    });
    let probes = Endpoints {
        admin: health.expect("the address is logged"),
        ..*weir
    };
    assert_eq!(probes.get_admin("/metrics").await.status, 404);
    reload(&weir, &config(true), 2).await;
    assert_eq!(probes.metric(GENERATION).await, 2.0);
    for path in ["/configz", "/status.json", "/debug/rate_limits"] {
        assert_eq!(probes.get_admin(path).await.status, 404, "{path}");
    }
    reload(&weir, &config(false), 3).await;
    assert_eq!(probes.get_admin("/metrics").await.status, 404);
    assert_eq!(weir.metric(GENERATION).await, 3.0);
}

/// The number of flow schemas and priority levels of the cluster that are in force.
#[cfg(feature = "playground")]
async fn cluster_objects(weir: &WeirProcess) -> f64 {
    weir.metric("weir_flowcontrol_objects{origin=\"cluster\"}")
        .await
}

#[cfg(feature = "playground")]
#[tokio::test]
async fn the_source_of_flow_schemas_and_the_state_folder_change() {
    const SYNCED: &str = "weir_flowcontrol_cluster_synced";
    let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    let files = cluster.config_dir(&cluster.service_account_token("weir"));
    let source = |name: &str, state: &str| {
        let mode = mode(true);
        format!("{mode}flowcontrolSource: {name}\nstateDir: {state}\n")
    };
    files.write("weir.yaml", &source("files", "first"));
    let mut flags = kubeconfig_flags(&["--config=weir.yaml"]);
    flags.retain(|flag| !flag.starts_with("--flowcontrol-source"));
    let weir = WeirProcess::start(files, &flags).await;
    let saved = async |folder: &str| {
        let path = weir.files.path().join(folder).join("flowcontrol.json");
        eventually("the objects are saved", async || {
            path.exists().then_some(())
        })
        .await;
    };
    assert_eq!(cluster_objects(&weir).await, 0.0);
    reload(&weir, &source("cluster", "first"), 2).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    let all = cluster_objects(&weir).await;
    assert!(all > 0.0);
    saved("first").await;
    // Another folder: the objects stay, and are saved there.
    reload(&weir, &source("cluster", "second"), 3).await;
    assert_eq!(cluster_objects(&weir).await, all);
    saved("second").await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    // Without priority and fairness nothing is read; with it, the known ones are there at once.
    reload(&weir, &mode(false), 4).await;
    assert_eq!(weir.metric(SYNCED).await, 0.0);
    assert_eq!(cluster_objects(&weir).await, 0.0);
    reload(&weir, &source("cluster", "second"), 5).await;
    assert_eq!(cluster_objects(&weir).await, all);
    weir.wait_for_metric(SYNCED, 1.0).await;
    // The cluster is no source any more, also after a change of the mode.
    reload(&weir, &mode(false), 6).await;
    reload(&weir, &source("files", "second"), 7).await;
    assert_eq!(cluster_objects(&weir).await, 0.0);
    reload(&weir, &source("cluster", "second"), 8).await;
    weir.wait_for_metric(SYNCED, 1.0).await;
    reload(&weir, &source("files", "second"), 9).await;
    assert_eq!(cluster_objects(&weir).await, 0.0);
    assert_eq!(weir.metric(SYNCED).await, 0.0);
    let configz = json(&weir, "/configz").await;
    assert_eq!(configz["flowcontrol"]["cluster"]["state"], "not-read");
}

const FRONT_PROXY: &str = "proxyClientCertFile: proxy.crt\nproxyClientKeyFile: proxy.key\n";
const IMPERSONATION: &str = "assertBy: impersonation\n";

/// weir with weir's own token, in front of `upstream`.
async fn serve_with_credentials(upstream: &FakeUpstream, config: &str) -> WeirProcess {
    let files = ConfigDir::new();
    files.write("weir.yaml", config);
    files.write("single.yaml", SINGLE_YAML);
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: weirs-own"),
    );
    upstream.answer_readyz(200);
    let flags = [
        "--config=weir.yaml",
        "--client-ca-file=client-ca.crt",
        LONG_WAIT,
    ];
    WeirProcess::start(files, &kubeconfig_flags(&flags)).await
}

/// The request asserts alice by the front-proxy certificate and a header of this name.
fn assert_by_front_proxy(exchange: &Exchange, name: &str) {
    let headers = &exchange.request.headers;
    let certificate = exchange.connection.certificate.as_deref();
    assert_eq!(certificate, Some("front-proxy-client"));
    assert_eq!(headers.all(name), ["alice"]);
    assert_eq!(headers.get("authorization"), None);
    assert_eq!(headers.get("impersonate-user"), None);
}

fn assert_by_impersonation(exchange: &Exchange) {
    let headers = &exchange.request.headers;
    assert_eq!(exchange.connection.certificate, None);
    assert_eq!(headers.all("authorization"), ["Bearer weirs-own"]);
    assert_eq!(headers.all("impersonate-user"), ["alice"]);
    assert_eq!(headers.get("x-remote-user"), None);
}

#[tokio::test]
async fn a_request_that_waits_asserts_its_user_as_when_it_arrived() {
    let mut upstream = FakeUpstream::start().await;
    let (proxy, impersonation) = (
        format!("{FRONT_PROXY}{ONE}{SINGLE}"),
        format!("{IMPERSONATION}{ONE}{SINGLE}"),
    );
    let weir = serve_with_credentials(&upstream, &proxy).await;
    let mut client = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    for round in 0..2 {
        let first = hold(&mut client, &mut upstream).await;
        assert_by_front_proxy(&first.1, "x-remote-user");
        let second = client.send(TestRequest::get(LIST)).await;
        weir.wait_for_metric(WAITING, 1.0).await;
        reload(&weir, &impersonation, 2 * round + 2).await;
        let third = client.send(TestRequest::get(LIST)).await;
        weir.wait_for_metric(WAITING, 2.0).await;
        finish(first).await;
        let exchange = upstream.next_exchange().await;
        assert_by_front_proxy(&exchange, "x-remote-user");
        finish((second, exchange)).await;
        let exchange = upstream.next_exchange().await;
        assert_by_impersonation(&exchange);
        let fourth = client.send(TestRequest::get(LIST)).await;
        weir.wait_for_metric(WAITING, 1.0).await;
        reload(&weir, &proxy, 2 * round + 3).await;
        finish((third, exchange)).await;
        let exchange = upstream.next_exchange().await;
        assert_by_impersonation(&exchange);
        finish((fourth, exchange)).await;
    }
}

#[tokio::test]
async fn names_of_identity_headers_change_and_clients_can_never_send_a_former_one() {
    let mut upstream = FakeUpstream::start().await;
    let config =
        |name: &str| format!("{FRONT_PROXY}{ONE}{SINGLE}requestheaderUsernameHeaders: [{name}]\n");
    let weir = serve_with_credentials(&upstream, &config("X-First-User")).await;
    let mut client = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    let first = hold(&mut client, &mut upstream).await;
    assert_by_front_proxy(&first.1, "x-first-user");
    let second = client.send(TestRequest::get(LIST)).await;
    weir.wait_for_metric(WAITING, 1.0).await;
    reload(&weir, &config("X-Second-User"), 2).await;
    finish(first).await;
    let exchange = upstream.next_exchange().await;
    assert_by_front_proxy(&exchange, "x-first-user");
    finish((second, exchange)).await;
    // The API server may read the former name still.
    let forged = ["x-first-user", "X_First_User", "x-second-user"];
    let forged = forged.iter().fold(TestRequest::get(LIST), |request, name| {
        request.header(name, "root")
    });
    let call = client.send(forged).await;
    let exchange = upstream.next_exchange().await;
    assert_by_front_proxy(&exchange, "x-second-user");
    for name in ["x-first-user", "x_first_user"] {
        assert_eq!(exchange.request.headers.get(name), None, "{name}");
    }
    finish((call, exchange)).await;
}
