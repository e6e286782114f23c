//! Changes without a restart: each kind of file takes effect, a bad one changes nothing and is
//! shown, and requests under way are untouched.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use rustls::HandshakeKind;
use serde_json::{Value, json};

use crate::authentication::{TestSigner, now};
use crate::kubeconfig::{kubeconfig_flags, kubeconfig_yaml};
use crate::servers::{healthy, next_slices_request, slices};
use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::client::{TestClient, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::process::{ConfigDir, WeirProcess, required_flags};
use crate::support::raw_http1::RawHttp1;
use crate::support::{HttpVersion, certificates, eventually};

const LIST: &str = "/api/v1/pods";
const WATCH: &str = "/api/v1/pods?watch=true";
const GENERATION: &str = "weir_config_generation";
const REFUSED: &str = "weir_config_reloads_total{result=\"refused\"}";

/// A flow schema for a user, which goes to the priority level `workload-high`.
fn flow_schema(name: &str, user: &str) -> String {
    format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {{name: {name}}}\n\
         spec:\n  matchingPrecedence: 100\n  priorityLevelConfiguration: {{name: workload-high}}\n  \
         distinguisherMethod: {{type: ByUser}}\n  rules:\n  - subjects: [{{kind: User, user: {{name: {user}}}}}]\n    \
         resourceRules: [{{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}]\n"
    )
}

/// weir with these flags besides those that it needs, in front of `upstream`.
async fn serve(upstream: &FakeUpstream, files: ConfigDir, flags: &[&str]) -> WeirProcess {
    let mut all = required_flags(upstream.address);
    all.push("--explain-responses".to_owned());
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    WeirProcess::start(files, &all).await
}

/// The request of a client at the upstream, answered with 200, and the flow schema of the response.
async fn exchange(client: &mut TestClient, upstream: &mut FakeUpstream) -> Option<String> {
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    exchange.respond(200, "{}").await;
    let response = call.response().await;
    assert_eq!(response.status, 200);
    response
        .headers
        .get("x-weir-flow-schema")
        .map(str::to_owned)
}

/// A watch that has begun, and the upstream's side of it.
async fn watch(client: &mut TestClient, upstream: &mut FakeUpstream) -> (Watch, Exchange) {
    let mut call = client.send(TestRequest::get(WATCH)).await;
    let mut exchange = upstream.next_exchange().await;
    exchange.send_head(200, &[]).await;
    assert_eq!(call.head().await.status, 200);
    (Watch(call), exchange)
}

struct Watch(crate::support::client::TestCall);

impl Watch {
    /// Fails if an event of the upstream does not arrive.
    async fn assert_alive(&mut self, upstream: &mut Exchange) {
        upstream.send("event\n").await;
        assert_eq!(self.0.body().next_text().await, "event\n");
    }
}

/// The certificate that weir shows to a new connection.
async fn shown_certificate(weir: &WeirProcess) -> Vec<u8> {
    let tls = certificates::client_tls_config(&[HttpVersion::Http1.alpn()], None);
    let stream = weir.connect_tls(Arc::new(tls)).await;
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    shown[0].to_vec()
}

#[tokio::test]
async fn new_connections_get_a_new_serving_certificate_once_both_files_are_there() {
    let mut upstream = FakeUpstream::start().await;
    let mut weir = serve(&upstream, ConfigDir::new(), &[]).await;
    let mut client = weir.anonymous(HttpVersion::Http2);
    let (mut watch, mut watched) = watch(&mut client, &mut upstream).await;
    let new = pki().server_ca.issue_server();
    weir.files.write("tls.crt", &new.pem);
    weir.next_log_line("waiting for the other file of a pair")
        .await;
    assert_eq!(
        shown_certificate(&weir).await,
        pki().server.certificate.to_vec()
    );
    weir.files.write("tls.key", &new.key_pem);
    weir.wait_for_metric(GENERATION, 2.0).await;
    assert_eq!(shown_certificate(&weir).await, new.certificate.to_vec());
    assert_eq!(weir.metric(REFUSED).await, 0.0);
    watch.assert_alive(&mut watched).await;
}

#[tokio::test]
async fn a_pair_that_stays_half_replaced_is_refused_after_a_while() {
    let upstream = FakeUpstream::start().await;
    let weir = serve(&upstream, ConfigDir::new(), &[]).await;
    let new = pki().server_ca.issue_server();
    weir.files.write("tls.crt", &new.pem);
    weir.wait_for_metric(REFUSED, 1.0).await;
    let ready = weir.get_admin("/readyz").await;
    assert!(
        ready
            .text()
            .contains("tls.key: the key does not belong to the certificate"),
        "{}",
        ready.text()
    );
    weir.files.write("tls.key", &new.key_pem);
    weir.wait_for_metric(GENERATION, 2.0).await;
}

/// Sends a request with a client certificate on a new connection. Returns the status, and whether
/// the TLS session was resumed.
async fn get_with_certificate(
    weir: &WeirProcess,
    upstream: &mut FakeUpstream,
    tls: &Arc<rustls::ClientConfig>,
) -> (u16, bool) {
    let stream = weir.connect_tls(Arc::clone(tls)).await;
    let kind = stream.get_ref().1.handshake_kind().unwrap();
    let mut wire = RawHttp1::new(stream);
    wire.send(TestRequest::get(LIST).to_http1()).await;
    let response = wire.read_response("GET");
    tokio::pin!(response);
    let (head, _) = tokio::select! {
        response = &mut response => response,
        exchange = upstream.next_exchange() => {
            exchange.respond(200, "{}").await;
            response.await
        }
    };
    (head.status, kind == HandshakeKind::Resumed)
}

#[tokio::test]
async fn a_removed_client_ca_ends_connections_identities_and_sessions() {
    let mut upstream = FakeUpstream::start().await;
    let flags = [
        "--client-ca-file=client-ca.crt",
        "--proxy-client-cert-file=proxy.crt",
        "--proxy-client-key-file=proxy.key",
    ];
    let weir = serve(&upstream, ConfigDir::new(), &flags).await;
    let alpn: [&[u8]; 1] = [HttpVersion::Http1.alpn()];
    let tls = Arc::new(certificates::client_tls_config(&alpn, Some(&pki().alice)));
    assert_eq!(
        get_with_certificate(&weir, &mut upstream, &tls).await,
        (200, false)
    );
    assert_eq!(
        get_with_certificate(&weir, &mut upstream, &tls).await,
        (200, true)
    );
    let mut idle = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    idle.send(TestRequest::get(LIST).to_http1()).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(idle.read_response("GET").await.0.status, 200);
    // Another change keeps the sessions.
    let new = pki().server_ca.issue_server();
    weir.files.write("tls.crt", &new.pem);
    weir.files.write("tls.key", &new.key_pem);
    weir.wait_for_metric(GENERATION, 2.0).await;
    assert_eq!(
        get_with_certificate(&weir, &mut upstream, &tls).await,
        (200, true)
    );
    weir.files.write("client-ca.crt", &pki().untrusted_ca.pem);
    weir.wait_for_metric(GENERATION, 3.0).await;
    assert_eq!(
        get_with_certificate(&weir, &mut upstream, &tls).await,
        (401, false)
    );
    idle.reader.wait_for_close().await;
}

#[tokio::test]
async fn a_new_front_proxy_pair_is_used_for_new_requests_and_open_ones_finish() {
    let mut upstream = FakeUpstream::start().await;
    let flags = [
        "--client-ca-file=client-ca.crt",
        "--proxy-client-cert-file=proxy.crt",
        "--proxy-client-key-file=proxy.key",
    ];
    let weir = serve(&upstream, ConfigDir::new(), &flags).await;
    let mut client = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    let (mut watch, mut watched) = watch(&mut client, &mut upstream).await;
    assert_eq!(
        watched.connection.certificate.as_deref(),
        Some("front-proxy-client")
    );
    let new = pki().front_proxy_ca.issue_client("second-proxy", &[]);
    weir.files.write("proxy.key", &new.key_pem);
    weir.files.write("proxy.crt", &new.pem);
    weir.wait_for_metric(GENERATION, 2.0).await;
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(
        exchange.connection.certificate.as_deref(),
        Some("second-proxy")
    );
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    watch.assert_alive(&mut watched).await;
}

#[tokio::test]
async fn tokens_and_flow_schemas_and_limits_are_reloaded() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    fs::create_dir(files.path().join("fairness")).unwrap();
    files.write(
        "weir.yaml",
        "eventRateLimitRetryAfter: true\nmaxRequestsInflight: 10\n",
    );
    let flags = [
        "--config=weir.yaml",
        "--token-auth-file=tokens.csv",
        "--flowcontrol-config=fairness",
    ];
    let weir = serve(&upstream, files, &flags).await;
    let bob = ("authorization", "Bearer bob-token");
    let mut client = weir.with_authorization(HttpVersion::Http2, bob);
    let (mut watch, mut watched) = watch(&mut client, &mut upstream).await;
    // The token file: bob is known.
    weir.files.write("tokens.csv", "bob-token,bob,u-bob,dev\n");
    weir.wait_for_metric(GENERATION, 2.0).await;
    let schema = exchange(&mut client, &mut upstream).await;
    assert_eq!(schema.as_deref(), Some("global-default"));
    // A FlowSchema in the folder.
    weir.files
        .write("fairness/bob.yaml", &flow_schema("of-bob", "bob"));
    weir.wait_for_metric(GENERATION, 3.0).await;
    let schema = exchange(&mut client, &mut upstream).await;
    assert_eq!(schema.as_deref(), Some("of-bob"));
    // Seats and client limits in the --config file.
    weir.files.write(
        "weir.yaml",
        "maxRequestsInflight: 30\nclientLimits:\n- name: everybody\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
         resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]\n  \
         maxReconcileRate: 1000\n",
    );
    weir.wait_for_metric(GENERATION, 4.0).await;
    assert_eq!(
        weir.metric("weir_server_concurrency_limit_seats").await,
        230.0
    );
    let status: Value = serde_json::from_str(weir.get_admin("/status.json").await.text()).unwrap();
    assert!(
        status["rateLimits"].to_string().contains("everybody"),
        "{status}"
    );
    let configz: Value = serde_json::from_str(weir.get_admin("/configz").await.text()).unwrap();
    assert_eq!(configz["weir"]["maxRequestsInflight"], 30);
    assert_eq!(configz["weir"]["clientLimits"][0]["name"], "everybody");
    watch.assert_alive(&mut watched).await;
}

#[tokio::test]
async fn event_limits_and_the_audit_policy_are_reloaded() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let policy = |level: &str| {
        format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: {level}\n")
    };
    let events = |qps: u32| {
        format!(
            "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
             limits: [{{type: Server, qps: {qps}, burst: 1}}]\n"
        )
    };
    files.write("audit.yaml", &policy("None"));
    files.write("events.yaml", &events(1000));
    let flags = [
        "--audit-log-path=audit.log",
        "--audit-policy-file=audit.yaml",
        "--event-rate-limit-config=events.yaml",
    ];
    let weir = serve(&upstream, files, &flags).await;
    let mut client = weir.anonymous(HttpVersion::Http2);
    exchange(&mut client, &mut upstream).await;
    weir.files.write("audit.yaml", &policy("Metadata"));
    weir.wait_for_metric(GENERATION, 2.0).await;
    exchange(&mut client, &mut upstream).await;
    let path = weir.files.path().join("audit.log");
    let lines = eventually("an audit event", async || {
        let lines = fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .count();
        (lines > 0).then_some(lines)
    });
    assert!(lines.await <= 2, "only the second request is logged");
    let allows = async || {
        let status = weir.get_admin("/status.json").await;
        let status: Value = serde_json::from_str(status.text()).unwrap();
        status["rateLimits"][0]["allows"]
            .as_str()
            .map(str::to_owned)
    };
    assert!(
        allows().await.unwrap().contains("1000"),
        "{:?}",
        allows().await
    );
    weir.files.write("events.yaml", &events(77));
    weir.wait_for_metric(GENERATION, 3.0).await;
    assert!(
        allows().await.unwrap().contains("77"),
        "{:?}",
        allows().await
    );
}

#[tokio::test]
async fn a_bad_configuration_changes_nothing_and_shows_everywhere_until_it_is_good() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("weir.yaml", "maxRequestsInflight: 10\n");
    let mut weir = serve(&upstream, files, &["--config=weir.yaml"]).await;
    let bad = "maxRequestsInflight: -1\nclientLimits: 7\nrequestTimeout: 30\n";
    weir.files.write("weir.yaml", bad);
    weir.wait_for_metric(REFUSED, 1.0).await;
    let mut logged = Vec::new();
    for _ in 0..3 {
        logged.push(weir.next_log_line("the configuration is refused").await);
    }
    for error in ["weir.yaml:1:", "weir.yaml:2:", "weir.yaml:3:"] {
        assert!(
            logged.iter().any(|line| line.contains(error)),
            "{logged:#?}"
        );
    }
    assert_eq!(weir.metric(GENERATION).await, 1.0);
    assert!(
        weir.metric("weir_config_last_reload_failure_timestamp_seconds")
            .await
            > 0.0
    );
    let ready = weir.get_admin("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.text());
    assert!(
        ready
            .text()
            .contains("[-]config failed, readiness not affected: refused"),
        "{}",
        ready.text()
    );
    let status: Value = serde_json::from_str(weir.get_admin("/status.json").await.text()).unwrap();
    assert_eq!(status["config"]["generation"], 1);
    assert_eq!(status["config"]["errors"].as_array().unwrap().len(), 3);
    assert!(status["config"]["lastFailureUnixMs"].as_u64() > Some(0));
    let configz: Value = serde_json::from_str(weir.get_admin("/configz").await.text()).unwrap();
    assert_eq!(configz["weir"]["maxRequestsInflight"], 10);
    // The one in force again.
    weir.files.write("weir.yaml", "maxRequestsInflight: 10\n");
    weir.wait_for_metric("weir_config_reloads_total{result=\"unchanged\"}", 1.0)
        .await;
    let status: Value = serde_json::from_str(weir.get_admin("/status.json").await.text()).unwrap();
    assert_eq!(status["config"]["errors"].as_array().unwrap().len(), 0);
    assert_eq!(weir.metric(GENERATION).await, 1.0);
}

#[tokio::test]
async fn a_file_behind_kubernetes_links_is_reloaded_when_the_folder_is_replaced() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let mount = files.path().join("mount");
    let version = |number: u32, certificate: &IssuedCertificate| {
        let folder = mount.join(format!("..{number}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("tls.crt"), &certificate.pem).unwrap();
        fs::write(folder.join("tls.key"), &certificate.key_pem).unwrap();
        symlink(format!("..{number}"), mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    };
    version(1, &pki().server);
    for name in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{name}"), mount.join(name)).unwrap();
        fs::remove_file(files.path().join(name)).unwrap();
        symlink(format!("mount/{name}"), files.path().join(name)).unwrap();
    }
    let weir = serve(&upstream, files, &[]).await;
    for number in 2..=3 {
        let new = pki().server_ca.issue_server();
        version(number, &new);
        fs::remove_dir_all(mount.join(format!("..{}", number - 1))).unwrap();
        weir.wait_for_metric(GENERATION, f64::from(number)).await;
        assert_eq!(shown_certificate(&weir).await, new.certificate.to_vec());
    }
    assert_eq!(weir.metric(REFUSED).await, 0.0);
}

#[tokio::test]
async fn sighup_reads_the_configuration_again() {
    let upstream = FakeUpstream::start().await;
    let mut weir = serve(&upstream, ConfigDir::new(), &[]).await;
    weir.send_signal("HUP").await;
    weir.wait_for_metric("weir_config_reloads_total{result=\"unchanged\"}", 1.0)
        .await;
    assert!(weir.is_running());
    assert_eq!(weir.metric(GENERATION).await, 1.0);
}

#[tokio::test]
async fn a_setting_that_needs_a_restart_is_named_and_the_others_are_applied() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("weir.yaml", "maxRequestsInflight: 10\n");
    let mut weir = serve(&upstream, files, &["--config=weir.yaml"]).await;
    weir.files.write(
        "weir.yaml",
        "maxRequestsInflight: 20\nhealthAddress: 127.0.0.1:0\n",
    );
    weir.wait_for_metric(GENERATION, 2.0).await;
    let line = weir.next_log_line("needs a restart").await;
    assert!(line.contains("weir.yaml:2:16: --health-address"), "{line}");
    let configz: Value = serde_json::from_str(weir.get_admin("/configz").await.text()).unwrap();
    assert_eq!(configz["weir"]["maxRequestsInflight"], 20);
    assert_eq!(configz["weir"].get("healthAddress"), None);
}

#[tokio::test]
async fn the_credentials_of_a_new_kubeconfig_are_used_and_another_server_is_refused() {
    let mut upstream = FakeUpstream::start().await;
    let mut other = FakeUpstream::start().await;
    other.expose_readyz(true);
    let files = ConfigDir::new();
    let kubeconfig = |server: &FakeUpstream, token: &str| {
        kubeconfig_yaml(server.address, "", &format!("token: {token}"))
    };
    files.write("kubeconfig", &kubeconfig(&upstream, "first"));
    let weir = WeirProcess::start(files, &kubeconfig_flags(&[])).await;
    weir.files
        .write("kubeconfig", &kubeconfig(&upstream, "second"));
    weir.wait_for_metric(GENERATION, 2.0).await;
    upstream.expose_readyz(true);
    let token = async |upstream: &mut FakeUpstream| {
        let probe = upstream.next_exchange().await;
        let token = probe.request.headers.get("authorization");
        let token = token.map(str::to_owned);
        probe.respond(200, "ok").await;
        token
    };
    assert_eq!(token(&mut upstream).await.as_deref(), Some("Bearer second"));
    weir.files.write("kubeconfig", &kubeconfig(&other, "third"));
    weir.wait_for_metric(REFUSED, 1.0).await;
    assert_eq!(token(&mut upstream).await.as_deref(), Some("Bearer second"));
    other.assert_no_request();
}

#[tokio::test]
async fn api_servers_are_added_and_removed_as_long_as_one_stays() {
    let first = FakeUpstream::start().await;
    let mut second = FakeUpstream::start().await;
    for server in [&first, &second] {
        server.answer_readyz(200);
    }
    let config = |servers: &[&FakeUpstream]| {
        let urls = servers.iter().map(|server| server.address);
        let urls: Vec<_> = urls.map(|at| format!("https://{at}")).collect();
        format!("upstream: [{}]\n", urls.join(", "))
    };
    let files = ConfigDir::new();
    files.write("weir.yaml", &config(&[&first]));
    let mut flags = required_flags(first.address);
    flags[0] = "--config=weir.yaml".to_owned();
    let weir = WeirProcess::start(files, &flags).await;
    weir.files.write("weir.yaml", &config(&[&first, &second]));
    weir.wait_for_metric(GENERATION, 2.0).await;
    let ready = format!("[+]upstream/{} ok", second.address);
    eventually("the second server is ready", async || {
        let report = weir.get_admin("/readyz").await;
        report.text().contains(&ready).then_some(())
    })
    .await;
    weir.files.write("weir.yaml", &config(&[&second]));
    weir.wait_for_metric(GENERATION, 3.0).await;
    let mut client = weir.anonymous(HttpVersion::Http2);
    exchange(&mut client, &mut second).await;
    weir.files.write("weir.yaml", &config(&[&first]));
    weir.wait_for_metric(REFUSED, 1.0).await;
    assert_eq!(weir.metric(GENERATION).await, 3.0);
    exchange(&mut client, &mut second).await;
}

#[tokio::test]
async fn a_removed_client_ca_ends_http2_watches_and_tunnels_from_end_to_end() {
    const EXEC: &str = "/api/v1/namespaces/a/pods/b/exec?command=sh";
    let mut upstream = FakeUpstream::start().await;
    let flags = [
        "--client-ca-file=client-ca.crt",
        "--proxy-client-cert-file=proxy.crt",
        "--proxy-client-key-file=proxy.key",
    ];
    let weir = serve(&upstream, ConfigDir::new(), &flags).await;
    let mut other = weir.alice(HttpVersion::Http2);
    let (mut kept, mut kept_far) = watch(&mut other, &mut upstream).await;
    let mut client = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    let (mut watch, mut watched) = watch(&mut client, &mut upstream).await;
    let mut tunnel = weir.raw_http1_with_certificate(Some(&pki().alice)).await;
    let request = TestRequest::new("POST", EXEC)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    tunnel.send(request.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    let mut far_end = exchange.into_raw_http1();
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    far_end.send(switching).await;
    assert_eq!(tunnel.read_response_head().await.status, 101);
    weir.files.write("client-ca.crt", &pki().untrusted_ca.pem);
    weir.wait_for_metric(GENERATION, 2.0).await;
    assert!(watch.0.body().read_to_end().await.is_err(), "it is cut");
    watched.wait_for_cancel().await;
    tunnel.reader.wait_for_close().await;
    far_end.reader.wait_for_close().await;
    // A tunnel's connection no longer speaks HTTP, and is not counted.
    let closed = "weir_client_connections_closed_total{reason=\"ca_removed\"}";
    weir.wait_for_metric(closed, 1.0).await;
    kept.assert_alive(&mut kept_far).await;
}

#[tokio::test]
async fn tokens_of_a_removed_key_of_an_issuer_name_no_user_and_those_of_a_new_one_do() {
    let mut upstream = FakeUpstream::start().await;
    let (old, new) = (TestSigner::new(), TestSigner::new());
    let files = ConfigDir::new();
    files.write("keys.json", &old.jwks());
    files.write(
        "authentication.yaml",
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n\
         - issuer: {url: 'https://issuer.example', audiences: [weir], jwksFile: keys.json}\n  \
         claimMappings: {username: {claim: sub, prefix: 'oidc:'}}\n",
    );
    files.write("schema.yaml", &flow_schema("of-ann", "oidc:ann"));
    let flags = [
        "--authentication-config=authentication.yaml",
        "--flowcontrol-config=schema.yaml",
    ];
    let weir = serve(&upstream, files, &flags).await;
    let claims = json!({
        "iss": "https://issuer.example", "aud": "weir", "exp": now() + 3600, "sub": "ann",
    });
    let [old_token, new_token] =
        [&old, &new].map(|signer| format!("Bearer {}", signer.token(&claims)));
    let mut with_old = weir.with_authorization(HttpVersion::Http2, ("authorization", &old_token));
    let mut with_new = weir.with_authorization(HttpVersion::Http2, ("authorization", &new_token));
    let of_ann = Some("of-ann".to_owned());
    assert_eq!(exchange(&mut with_old, &mut upstream).await, of_ann);
    assert_ne!(exchange(&mut with_new, &mut upstream).await, of_ann);
    weir.files.write("keys.json", &new.jwks());
    weir.wait_for_metric(GENERATION, 2.0).await;
    assert_eq!(exchange(&mut with_new, &mut upstream).await, of_ann);
    assert_ne!(exchange(&mut with_old, &mut upstream).await, of_ann);
}

/// Whether the request of a client reaches this server, which answers all others.
async fn serves_clients(weir: &WeirProcess, server: &mut FakeUpstream) {
    let mut client = weir.anonymous(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    loop {
        let exchange = server.next_exchange().await;
        let is_client_s = exchange.request.target == LIST;
        // weir may have given up a request of its own meanwhile.
        tokio::spawn(exchange.respond(200, "{}"));
        if is_client_s {
            break;
        }
    }
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn endpoint_slices_are_followed_from_a_reload_on_and_until_another_one() {
    let mut configured = FakeUpstream::start().await;
    let mut listed = FakeUpstream::start().await;
    for server in [&configured, &listed] {
        server.answer_readyz(200);
    }
    let files = ConfigDir::new();
    let kubeconfig = kubeconfig_yaml(configured.address, "", "token: t");
    files.write("kubeconfig", &kubeconfig);
    files.write("weir.yaml", "maxRequestsInflight: 400\n");
    let flags = kubeconfig_flags(&["--config=weir.yaml"]);
    let weir = WeirProcess::start(files, &flags).await;
    serves_clients(&weir, &mut configured).await;
    weir.files
        .write("weir.yaml", "upstreamEndpointSlices: true\n");
    weir.wait_for_metric(GENERATION, 2.0).await;
    let (list, is_watch) = next_slices_request(&mut configured).await;
    assert!(!is_watch);
    list.respond(200, slices(1, &[listed.address])).await;
    weir.wait_for_metric(&healthy(listed.address), 1.0).await;
    serves_clients(&weir, &mut listed).await;
    weir.files
        .write("weir.yaml", "upstreamEndpointSlices: false\n");
    weir.wait_for_metric(GENERATION, 3.0).await;
    weir.wait_for_metric(&healthy(listed.address), 0.0).await; // its series is gone
    serves_clients(&weir, &mut configured).await;
}
