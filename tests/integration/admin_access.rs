//! Access to the admin address: TLS, client certificates, tokens of a file, and the API server's
//! decisions. The API server is the playground, which decides by itself.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_playground::Denial;
use weir_playground::PlaygroundSettings;

use crate::authentication::{PlaygroundCluster, authorization};
use crate::kubeconfig::kubeconfig_flags;
use crate::support::certificates::{client_tls_config, pki};
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::{FakeUpstream, ReservedAddress};
use crate::support::process::{ConfigDir, WeirProcess, required_flags, run, run_activated};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::Endpoints;
use crate::support::{HttpVersion, eventually, yaml};

const OVERLAY: &str =
    include_str!("../../deploy/kustomize/overlays/prometheus-operator/deployment.yaml");

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER_TOKEN: &str = "fedcba9876543210fedcba9876543210";
const TLS: [&str; 2] = [
    "--admin-tls-cert-file=tls.crt",
    "--admin-tls-private-key-file=tls.key",
];

/// The admin address, as clients' TLS connections find it.
fn admin(weir: &WeirProcess) -> Endpoints {
    Endpoints {
        clients: weir.admin,
        admin: weir.admin,
    }
}

async fn get_with_token(weir: &WeirProcess, token: &str, path: &str) -> FullResponse {
    let (name, value) = authorization(token);
    let admin = admin(weir);
    let mut client = admin.with_authorization(HttpVersion::Http1, (name, &value));
    client.get(path).await
}

/// The responses to a client without a credential.
async fn assert_only_probes_are_open(weir: &WeirProcess) {
    let mut anonymous = admin(weir).anonymous(HttpVersion::Http1);
    for path in ["/livez", "/readyz", "/readyz?verbose"] {
        let code = anonymous.get(path).await.status;
        assert!([200, 500].contains(&code), "{path}: {code}");
    }
    for path in [
        "/",
        "/metrics",
        "/status.json",
        "/configz",
        "/livez/",
        "/none",
    ] {
        let response = anonymous.get(path).await;
        assert_eq!(response.status, 401, "{path}: {}", response.text());
        assert_eq!(&response.headers["www-authenticate"], "Bearer");
        assert!(response.text().contains("there is no credential: send "));
    }
}

/// weir whose admin address accepts the tokens of the file `admin-tokens`.
async fn with_token_file(upstream: &FakeUpstream, files: ConfigDir) -> WeirProcess {
    let mut flags = required_flags(upstream.address);
    flags.extend(TLS.map(str::to_owned));
    flags.push("--admin-token-file=admin-tokens".to_owned());
    WeirProcess::start(files, &flags).await
}

/// weir in front of the cluster, with its own token and these flags.
async fn in_front_of(cluster: &PlaygroundCluster, flags: &[&str]) -> WeirProcess {
    let files = cluster.config_dir(&cluster.service_account_token("weir"));
    files.write("admin-tokens", TOKEN);
    let all = [&TLS, flags].concat();
    WeirProcess::start(files, &kubeconfig_flags(&all)).await
}

#[tokio::test]
async fn the_admin_address_speaks_tls_and_shows_a_renewed_certificate() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &TLS).await;
    let metrics = admin(&weir)
        .anonymous(HttpVersion::Http1)
        .get("/metrics")
        .await;
    assert_eq!(metrics.status, 200);
    let mut plain = RawHttp1::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
    plain
        .send("GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    assert!(plain.reader.read_head().await.is_err(), "no plain HTTP");
    let renewed = pki().server_ca.issue_server();
    weir.files.write("tls.crt", &renewed.pem);
    weir.files.write("tls.key", &renewed.key_pem);
    eventually("the renewed certificate", async || {
        let tls = client_tls_config(&[HttpVersion::Http1.alpn()], None);
        let stream = admin(&weir).connect_tls(Arc::new(tls)).await;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        (shown == renewed.certificate).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_of_the_admin_ca_may_read_and_no_other() {
    let upstream = FakeUpstream::start().await;
    let flags = [&TLS[..], &["--admin-client-ca-file=client-ca.crt"]].concat();
    let weir = WeirProcess::serve(upstream.address, &flags).await;
    assert_only_probes_are_open(&weir).await;
    let mut alice = admin(&weir).with_certificate(HttpVersion::Http1, &pki().alice);
    assert_eq!(alice.get("/metrics").await.status, 200);
    let stranger = pki().untrusted_ca.issue_client("alice", &[]);
    let expired = pki().client_ca.issue_expired_client("alice");
    for (certificate, why) in [(&stranger, "not trusted"), (&expired, "expired")] {
        let mut client = admin(&weir).with_certificate(HttpVersion::Http1, certificate);
        let response = client.get("/metrics").await;
        assert_eq!(response.status, 401);
        assert!(response.text().contains(why), "{}", response.text());
    }
    assert_eq!(get_with_token(&weir, TOKEN, "/metrics").await.status, 401);
}

#[tokio::test]
async fn a_token_of_the_file_may_read_until_it_is_removed() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", &format!("{TOKEN}\n\n{OTHER_TOKEN}\n"));
    let mut weir = with_token_file(&upstream, files).await;
    assert_only_probes_are_open(&weir).await;
    for token in [TOKEN, OTHER_TOKEN] {
        assert_eq!(get_with_token(&weir, token, "/metrics").await.status, 200);
    }
    let wrong = get_with_token(&weir, &TOKEN[1..], "/metrics").await;
    assert_eq!(
        (wrong.status, wrong.headers.get("www-authenticate")),
        (401, Some("Bearer"))
    );
    let line = weir
        .next_log_line("a request to the admin address was rejected")
        .await;
    assert!(!line.contains(&TOKEN[1..]), "{line}");
    // A certificate that nothing accepts does not stand in the way.
    let (name, value) = authorization(TOKEN);
    let mut both = admin(&weir).with_certificate_and_authorization(
        HttpVersion::Http1,
        &pki().alice,
        (name, &value),
    );
    assert_eq!(both.get("/metrics").await.status, 200);
    weir.files.write("admin-tokens", OTHER_TOKEN);
    eventually("the token to be void", async || {
        let code = get_with_token(&weir, TOKEN, "/metrics").await.status;
        (code == 401).then_some(())
    })
    .await;
    let shown = get_with_token(&weir, OTHER_TOKEN, "/configz").await;
    assert_eq!(shown.status, 200);
    assert!(!shown.text().contains(OTHER_TOKEN));
}

#[tokio::test]
async fn a_probe_without_a_credential_gets_no_reasons() {
    let gone = ReservedAddress::reserve();
    let mut flags = required_flags(gone.address);
    flags.extend(TLS.map(str::to_owned));
    flags.push("--admin-token-file=admin-tokens".to_owned());
    flags.push("--health-address=127.0.0.1:0".to_owned());
    let files = ConfigDir::new();
    files.write("admin-tokens", TOKEN);
    let weir = WeirProcess::start(files, &flags).await;
    eventually("the reason", async || {
        let report = get_with_token(&weir, TOKEN, "/readyz").await;
        let has_reason = report.text().contains("[-]upstream failed: cannot connect");
        has_reason.then_some(())
    })
    .await;
    let line = weir.startup_lines.last().unwrap();
    let health = line.split_once("health=").unwrap().1;
    let health = health.split_whitespace().next().unwrap();
    let mut probe = RawHttp1::new(tokio::net::TcpStream::connect(health).await.unwrap());
    let head = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    probe.send(head).await;
    let (answered, text) = probe.read_response("GET").await;
    let mut reports = vec![(answered.status, String::from_utf8_lossy(&text).into_owned())];
    for path in ["/readyz", "/readyz?verbose"] {
        let mut anonymous = admin(&weir).anonymous(HttpVersion::Http1);
        let wrong = get_with_token(&weir, OTHER_TOKEN, path).await;
        for report in [anonymous.get(path).await, wrong] {
            reports.push((report.status, report.text().to_owned()));
        }
    }
    for (code, text) in reports {
        assert_eq!(code, 500, "{text}");
        assert!(text.contains("[+]shutdown ok\n"), "{text}");
        assert!(
            text.contains("[-]upstream failed: reason withheld\n"),
            "{text}"
        );
        assert!(!text.contains("cannot connect"), "{text}");
    }
}

/// An event stream that has begun.
async fn events(weir: &WeirProcess, token: &str) -> RawHttp1 {
    let tls = client_tls_config(&[HttpVersion::Http1.alpn()], None);
    let mut stream = RawHttp1::new(admin(weir).connect_tls(Arc::new(tls)).await);
    let head = format!(
        "GET /status/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.send(head).await;
    assert_eq!(stream.read_response_head().await.status, 200);
    stream
}

/// Whether the stream, which is chunked, has ended with what comes next.
async fn has_ended(stream: &mut RawHttp1) -> bool {
    let next = stream.reader.read_some(1 << 20).await.unwrap();
    next.is_none_or(|bytes| bytes.ends_with(b"\r\n0\r\n\r\n") || &*bytes == b"0\r\n\r\n")
}

#[tokio::test]
async fn a_stream_ends_when_its_client_may_no_longer_read_it() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", &format!("{TOKEN}\n{OTHER_TOKEN}\n"));
    let weir = with_token_file(&upstream, files).await;
    let (mut void, mut valid) = (events(&weir, TOKEN).await, events(&weir, OTHER_TOKEN).await);
    weir.files.write("admin-tokens", OTHER_TOKEN);
    while !has_ended(&mut void).await {
        assert!(!has_ended(&mut valid).await);
    }
    assert!(!has_ended(&mut valid).await);
}

#[tokio::test]
async fn a_method_that_is_never_served_is_answered_before_anybody_is_asked() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", TOKEN);
    let weir = with_token_file(&upstream, files).await;
    for method in ["DELETE", "POST", &*"X".repeat(100_000)] {
        let tls = client_tls_config(&[HttpVersion::Http1.alpn()], None);
        let mut client = RawHttp1::new(admin(&weir).connect_tls(Arc::new(tls)).await);
        let head =
            format!("{method} /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
        client.send(head).await;
        assert_eq!(client.read_response_head().await.status, 405);
    }
}

#[tokio::test]
async fn weir_status_asks_over_tls_with_a_token() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", TOKEN);
    files.write("ca.crt", &pki().server_ca.pem);
    let weir = with_token_file(&upstream, files).await;
    let url = format!("--admin=https://localhost:{}", weir.admin.port());
    let ask = async |flags: &[&str]| {
        let all = [&["status", "-o=json", &url], flags].concat();
        run(&weir.files, &all).await
    };
    let ca = "--certificate-authority=ca.crt";
    let (name, token) = ("--tls-server-name=127.0.0.1", "--token-file=admin-tokens");
    let answered = ask(&[ca, name, token]).await;
    let status: Value = serde_json::from_str(&answered.stdout).expect(&answered.stderr);
    assert!(status["version"].is_string());
    for (flags, why) in [
        (
            &[ca, name][..],
            "it answers 401 Unauthorized: there is no credential",
        ),
        (&[ca, token], "NotValidForName"),
        (
            &["--certificate-authority=client-ca.crt", name, token],
            "UnknownIssuer",
        ),
    ] {
        let failed = ask(flags).await;
        assert_eq!(failed.code, Some(3));
        assert!(failed.stderr.contains(why), "{why}: {}", failed.stderr);
    }
    let plain = format!("--admin=http://{}", weir.admin);
    let refused = run(&weir.files, &["status", &plain, token]).await;
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("--token-file: only with an https address")
    );
}

/// The flags of the Pod that Prometheus scrapes, with the files of a test.
fn overlay_flags() -> Vec<String> {
    let patch = &yaml::documents(OVERLAY)[0];
    let container = &patch["spec"]["template"]["spec"]["containers"][0];
    let flags = container["args"].as_array().unwrap().iter();
    let flags = flags.map(|flag| flag.as_str().unwrap());
    let flags = flags.filter(|flag| flag.starts_with("--admin-") || flag.starts_with("--health-"));
    let local = |flag: &str| {
        flag.replace("/etc/weir/tls/", "")
            .replace("0.0.0.0:6480", "127.0.0.1:0")
    };
    flags.map(local).collect()
}

#[tokio::test]
async fn the_api_server_decides_who_may_read_in_webhook_mode() {
    let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    cluster.server.deny(Denial {
        user: "bob".to_owned(),
        verb: "get".to_owned(),
        target: "/metrics".to_owned(),
    });
    let mut flags = kubeconfig_flags(&[]);
    flags.retain(|flag| !flag.starts_with("--admin-address="));
    flags.extend(overlay_flags());
    let files = cluster.config_dir(&cluster.service_account_token("weir"));
    let weir = WeirProcess::start(files, &flags).await;
    assert_only_probes_are_open(&weir).await;
    let prometheus = cluster.service_account_token("prometheus");
    for path in ["/metrics", "/metrics?x=1", "/status.json"] {
        assert_eq!(
            get_with_token(&weir, &prometheus, path).await.status,
            200,
            "{path}"
        );
    }
    let reviewed = |path: &str| {
        let attributes = json!({"verb": "get", "path": path});
        let reviews = cluster.server.reviews();
        let mut specs = reviews.into_iter().map(|review| review.spec);
        specs.find(|spec| spec["nonResourceAttributes"] == attributes)
    };
    let spec = reviewed("/metrics").unwrap();
    assert_eq!(spec["user"], "system:serviceaccount:team:prometheus");
    assert!(
        spec["groups"]
            .to_string()
            .contains("system:serviceaccounts:team"),
        "{spec}"
    );
    let bob = get_with_token(&weir, cluster.token("bob"), "/metrics").await;
    assert_eq!(bob.status, 403);
    let why = "forbidden: User \"bob\" cannot get path \"/metrics\"";
    assert!(bob.text().starts_with(why), "{}", bob.text());
    assert_eq!(
        get_with_token(&weir, cluster.token("bob"), "/statusz")
            .await
            .status,
        200
    );
    let made_up = get_with_token(&weir, TOKEN, "/metrics").await;
    assert_eq!(made_up.status, 401, "{}", made_up.text());
    let count = async |series: &str| {
        let metrics = get_with_token(&weir, &prometheus, "/metrics").await;
        let line = format!("weir_admin_reviews_total{{{series}}} ");
        metrics.text().contains(&line)
    };
    assert!(count("kind=\"SubjectAccessReview\",result=\"denied\"").await);
    assert!(count("kind=\"TokenReview\",result=\"denied\"").await);
}

#[tokio::test]
async fn users_of_certificates_are_reviewed_too_but_for_system_masters() {
    let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    cluster.server.deny(Denial {
        user: "alice".to_owned(),
        verb: "get".to_owned(),
        target: "/metrics".to_owned(),
    });
    let flags = [
        "--admin-authorization-mode=Webhook",
        "--admin-client-ca-file=client-ca.crt",
    ];
    let weir = in_front_of(&cluster, &flags).await;
    let mut alice = admin(&weir).with_certificate(HttpVersion::Http1, &pki().alice);
    assert_eq!(alice.get("/metrics").await.status, 403);
    assert_eq!(alice.get("/statusz").await.status, 200);
    let reviews = cluster.server.reviews();
    let of_paths = reviews
        .iter()
        .filter(|review| review.spec["nonResourceAttributes"].is_object());
    let groups: Vec<&Value> = of_paths.map(|review| &review.spec["groups"]).collect();
    let expected = json!(["dev", "ops", "system:authenticated"]);
    assert!(groups.contains(&&expected), "{groups:?}");
    cluster.stop();
    let mut root = admin(&weir).with_certificate(HttpVersion::Http1, &pki().admin);
    assert_eq!(root.get("/metrics").await.status, 200, "without a review");
}

#[tokio::test]
async fn without_an_answer_of_the_api_server_only_the_tokens_of_the_file_may_read() {
    let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    cluster.server.deny(Denial {
        user: "system:serviceaccount:team:weir".to_owned(),
        verb: "create".to_owned(),
        target: "subjectaccessreviews".to_owned(),
    });
    let flags = [
        "--admin-authorization-mode=Webhook",
        "--admin-token-file=admin-tokens",
    ];
    let mut weir = in_front_of(&cluster, &flags).await;
    let line = weir
        .next_log_line("system:auth-delegator gives: until then users get 503 on the admin address")
        .await;
    assert!(
        line.contains("create subjectaccessreviews.authorization.k8s.io"),
        "{line}"
    );
    let prometheus = cluster.service_account_token("prometheus");
    assert_eq!(
        get_with_token(&weir, &prometheus, "/metrics").await.status,
        503
    );
    assert_eq!(get_with_token(&weir, TOKEN, "/metrics").await.status, 200);
    cluster.stop();
    let other = cluster.service_account_token("other");
    let response = get_with_token(&weir, &other, "/metrics").await;
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(get_with_token(&weir, TOKEN, "/metrics").await.status, 200);
}

#[tokio::test]
async fn beyond_the_loopback_nothing_can_be_changed_and_a_reload_does_not_open_it() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", TOKEN);
    let closed = |address: &str| {
        format!(
            "adminAddress: {address}\nadminTlsCertFile: tls.crt\nadminTlsPrivateKeyFile: tls.key\n\
             adminTokenFile: admin-tokens\n"
        )
    };
    files.write("config.yaml", &closed("0.0.0.0:0"));
    let mut flags = required_flags(upstream.address);
    flags.retain(|flag| !flag.starts_with("--admin-address="));
    flags.push("--config=config.yaml".to_owned());
    let weir = WeirProcess::start(files, &flags).await;
    assert_only_probes_are_open(&weir).await;
    let (name, value) = authorization(TOKEN);
    let put = TestRequest::new("PUT", "/debug/log_level").header(name, &value);
    let mut client = admin(&weir).anonymous(HttpVersion::Http1);
    assert_eq!(client.request(put).await.status, 403);
    weir.files
        .write("config.yaml", "adminAddress: 127.0.0.1:0\n");
    let refused = "weir_config_reloads_total{result=\"refused\"} 1\n";
    eventually("the reload to be refused", async || {
        let metrics = get_with_token(&weir, TOKEN, "/metrics").await;
        metrics.text().contains(refused).then_some(())
    })
    .await;
    assert_only_probes_are_open(&weir).await;
}

#[tokio::test]
async fn a_socket_of_the_service_manager_beyond_the_loopback_is_not_open_either() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let flags = required_flags(upstream.address); // --admin-address=127.0.0.1:0
    let ended = run_activated(&files, &flags, listener, "admin").await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let why = "the admin address would be open to others";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

#[tokio::test]
async fn on_the_loopback_a_client_with_a_token_may_set_the_log_level_but_no_page_of_another_site() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("admin-tokens", TOKEN);
    let weir = with_token_file(&upstream, files).await;
    let mut client = admin(&weir).anonymous(HttpVersion::Http1);
    let (name, value) = authorization(TOKEN);
    let put = || {
        let mut put = TestRequest::post("/debug/log_level", "warn").method("PUT");
        put = put.header(name, &value);
        put
    };
    let foreign = put().header("origin", "https://evil.example");
    assert_eq!(client.request(foreign).await.status, 403);
    let unproven = TestRequest::post("/debug/log_level", "warn").method("PUT");
    assert_eq!(client.request(unproven).await.status, 401);
    assert_eq!(client.request(put()).await.status, 200);
    for path in ["/status/events", "/debug/record"] {
        let stream = TestRequest::get(path).header(name, &value);
        let foreign = stream.header("sec-fetch-site", "cross-site");
        assert_eq!(client.request(foreign).await.status, 403, "{path}");
    }
}

/// The errors of `weir check` with these flags, by flag.
async fn errors(files: &ConfigDir, flags: &[&str]) -> Vec<(String, String)> {
    let upstream = "--upstream=https://127.0.0.1:1";
    let serving = ["--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key"];
    let all = [&["check", "-o", "json", upstream][..], &serving, flags].concat();
    let report: Value = serde_json::from_str(&run(files, &all).await.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let errors = report["errors"].as_array().unwrap().iter();
    errors
        .map(|error| (text(&error["flag"]), text(&error["message"])))
        .collect()
}

#[tokio::test]
async fn an_open_address_and_credentials_over_plain_http_are_errors_all_at_once() {
    let files = ConfigDir::new();
    files.write("admin-tokens", &format!("short\n{TOKEN}\nno token\n"));
    let credentials = [
        "--admin-client-ca-file=client-ca.crt",
        "--admin-token-file=admin-tokens",
        "--admin-authorization-mode=Webhook",
        "--admin-tls-private-key-file=tls.key",
    ];
    let found = errors(&files, &credentials).await;
    for (flag, part) in [
        ("admin-client-ca-file", "over plain HTTP"),
        ("admin-token-file", "over plain HTTP"),
        ("admin-token-file", "can be guessed"),
        ("admin-token-file", "not a bearer token"),
        ("admin-authorization-mode", "over plain HTTP"),
        ("admin-authorization-mode", "needs a --kubeconfig"),
        ("admin-tls-cert-file", "needed"),
    ] {
        let is_it = |(named, text): &(String, String)| named == flag && text.contains(part);
        assert!(found.iter().any(is_it), "{flag} {part}: {found:#?}");
    }
    files.write("admin-tokens", TOKEN);
    let open = ["--admin-address=0.0.0.0:6480"];
    for flags in [&open[..], &[&open[..], &TLS].concat()] {
        let found = errors(&files, flags).await;
        let [(flag, text)] = &*found else {
            panic!("{found:#?}");
        };
        assert!(
            flag == "admin-address" && text.contains("not a loopback address"),
            "{text}"
        );
    }
    let closed = [&open[..], &TLS, &["--admin-token-file=admin-tokens"]].concat();
    assert_eq!(errors(&files, &closed).await, []);
    assert_eq!(errors(&files, &["--admin-address=[::1]:6480"]).await, []);
}
