//! weir with a kubeconfig: it finds the API server as kubectl does, and uses its credentials for no
//! client.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream, RawUpstream};
use crate::support::message::ReceivedRequest;
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::ALICE;
use crate::support::{HttpVersion, eventually, process};

const LIST: &str = "/api/v1/pods";

/// A kubeconfig with these lines for the cluster and the user.
pub(crate) fn kubeconfig_yaml(server: SocketAddr, cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         contexts:\n- name: here\n  context: {{cluster: c, user: u}}\n\
         - name: elsewhere\n  context: {{cluster: other, user: u}}\n\
         clusters:\n- name: c\n  cluster:\n    server: https://{server}\n    \
         certificate-authority: upstream-ca.crt\n{cluster}\
         - name: other\n  cluster: {{server: 'https://127.0.0.1:1'}}\n\
         users:\n- name: u\n  user:\n    {user}\n"
    )
}

pub(crate) fn kubeconfig_flags(others: &[&str]) -> Vec<String> {
    let mut flags = process::required_flags(([127, 0, 0, 1], 1).into());
    flags.retain(|flag| !flag.starts_with("--upstream"));
    flags.push("--kubeconfig=kubeconfig".to_owned());
    // No requests of its own to the upstream.
    flags.push("--object-count-poll-period=0s".to_owned());
    flags.push("--flowcontrol-source=files".to_owned());
    flags.push("--control-socket=off".to_owned());
    flags.extend(others.iter().map(|flag| (*flag).to_owned()));
    flags
}

async fn serve(files: ConfigDir) -> WeirProcess {
    let others = [
        "--token-auth-file=tokens.csv",
        "--client-ca-file=client-ca.crt",
        "--proxy-client-cert-file=proxy.crt",
        "--proxy-client-key-file=proxy.key",
    ];
    WeirProcess::start(files, &kubeconfig_flags(&others)).await
}

/// weir's own request to the upstream, answered.
async fn readiness_probe(weir: &WeirProcess, upstream: &mut FakeUpstream) -> Exchange {
    // The probes at the start are over: only one comes now.
    eventually("the server to be ready", async || {
        let metrics = weir.get_admin("/metrics").await;
        let mut lines = metrics.text().lines();
        let ready =
            |line: &str| line.starts_with("weir_upstream_server_healthy{") && line.ends_with(" 1");
        lines.any(ready).then_some(())
    })
    .await;
    upstream.expose_readyz(true);
    let (report, exchange) = tokio::join!(weir.get_admin("/readyz"), async {
        let mut exchange = upstream.next_exchange().await;
        upstream.expose_readyz(false);
        exchange.send_head(200, &[("content-length", "0")]).await;
        exchange
    });
    assert_eq!(report.status, 200, "{}", report.text());
    exchange
}

/// Fails if a client's request carries a credential of weir.
async fn assert_own_credentials_unused(weir: &WeirProcess, upstream: &mut FakeUpstream) {
    for http in HttpVersion::BOTH {
        for (mut client, token, certificate) in [
            (weir.anonymous(http), None, None),
            (weir.alice(http), Some(ALICE.1), None),
            (
                weir.with_certificate(http, &pki().alice),
                None,
                Some("front-proxy-client"),
            ),
        ] {
            let call = client.send(TestRequest::get(LIST)).await;
            let exchange = upstream.next_exchange().await;
            assert_eq!(exchange.request.headers.get("authorization"), token);
            assert_eq!(exchange.connection.certificate.as_deref(), certificate);
            exchange.respond(200, "{}").await;
            assert_eq!(call.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn the_kubeconfig_s_token_is_used_for_weir_s_own_calls_only() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: weirs-own"),
    );
    let weir = serve(files).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(
        exchange.request.headers.all("authorization"),
        ["Bearer weirs-own"]
    );
    assert_own_credentials_unused(&weir, &mut upstream).await;
}

#[tokio::test]
async fn the_kubeconfig_s_certificate_is_used_for_weir_s_own_calls_only() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    // The fake upstream accepts certificates of this CA only. The common name is what counts here.
    let own = pki().front_proxy_ca.issue_client("weirs-own", &[]);
    files.write("own.crt", &own.pem);
    files.write("own.key", &own.key_pem);
    let user = "client-certificate: own.crt\n    client-key: own.key";
    files.write("kubeconfig", &kubeconfig_yaml(upstream.address, "", user));
    let weir = serve(files).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(
        exchange.connection.certificate.as_deref(),
        Some("weirs-own")
    );
    assert_own_credentials_unused(&weir, &mut upstream).await;
}

#[tokio::test]
async fn an_exec_plugin_s_token_is_used_for_weir_s_own_calls_only() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "plugin.sh",
        "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{\"token\":\"from-the-plugin\"}}'\n",
    );
    let plugin = files.path().join("plugin.sh");
    std::fs::set_permissions(plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin.sh, interactiveMode: Never}";
    files.write("kubeconfig", &kubeconfig_yaml(upstream.address, "", user));
    let weir = serve(files).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(
        exchange.request.headers.all("authorization"),
        ["Bearer from-the-plugin"]
    );
    assert_own_credentials_unused(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_failing_exec_plugin_is_reported_at_startup() {
    let files = ConfigDir::new();
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./absent, interactiveMode: Never,\
                installHint: get it from the shelf}";
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(([127, 0, 0, 1], 1).into(), "", user),
    );
    let flags = kubeconfig_flags(&[]);
    let all: Vec<&str> = ["serve"]
        .into_iter()
        .chain(flags.iter().map(String::as_str))
        .collect();
    let finished = process::run(&files, &all).await;
    assert!(matches!(finished.code, Some(1 | 2)), "{finished:?}");
    for part in ["absent", "get it from the shelf"] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
}

#[tokio::test]
async fn the_upstream_is_verified_by_its_tls_server_name() {
    let upstream = RawUpstream::start().await;
    let files = ConfigDir::new();
    let cluster = "    tls-server-name: kube.internal\n";
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, cluster, "token: t"),
    );
    let weir = serve(files).await;
    let mut client = weir.anonymous(HttpVersion::Http2);
    let named = pki().server_ca.issue_server_named("kube.internal");
    let call = client.send(TestRequest::get(LIST)).await;
    let mut wire = loop {
        let mut wire = RawHttp1::new(
            upstream
                .accept_tls(HttpVersion::Http1, &named)
                .await
                .unwrap(),
        );
        let head = wire.read_request_head().await;
        if head.is_readiness_probe() {
            wire.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
                .await;
        } else if head.self_check_response().is_none() {
            assert_eq!(head.authority, upstream.address.to_string());
            break wire;
        }
    };
    wire.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    assert_eq!(call.response().await.status, 200);
    drop(wire);
    // The host name of its address is not used any more.
    let other_name = async {
        loop {
            let _ = upstream.accept_tls(HttpVersion::Http1, &pki().server).await;
        }
    };
    let response = tokio::select! {
        response = client.get(LIST) => response,
        () = other_name => unreachable!(),
    };
    assert_eq!(
        (response.status, response.kube_status().cause.as_str()),
        (503, "weir/upstream-tls")
    );
}

/// The user and the password of the proxy, as in its URL and in its header.
const PROXY_USER: &str = "user:pass%20word";
const PROXY_AUTHORIZATION: &str = "Basic dXNlcjpwYXNzIHdvcmQ=";

/// A proxy that connects to `upstream` where it is asked for `target`.
async fn start_proxy(target: &str, upstream: SocketAddr) -> SocketAddr {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let expected = target.to_owned();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = proxy.accept().await {
            let mut wire = RawHttp1::new(tcp);
            let ReceivedRequest {
                method,
                target,
                headers,
                ..
            } = wire.read_request_head().await;
            let allowed = headers.get("proxy-authorization") == Some(PROXY_AUTHORIZATION);
            if method != "CONNECT" || target != expected || !allowed {
                wire.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                    .await;
                continue;
            }
            let mut far = TcpStream::connect(upstream).await.unwrap();
            wire.send("HTTP/1.1 200 Connected\r\n\r\n").await;
            tokio::spawn(
                async move { copy_bidirectional(&mut wire.into_stream(), &mut far).await },
            );
        }
    });
    address
}

#[tokio::test]
async fn the_upstream_is_reached_through_the_proxy_url() {
    let mut upstream = FakeUpstream::start().await;
    let address = start_proxy(&upstream.address.to_string(), upstream.address).await;
    let files = ConfigDir::new();
    let cluster = format!("    proxy-url: http://{PROXY_USER}@{address}\n");
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, &cluster, "token: t"),
    );
    let weir = serve(files).await;
    assert_own_credentials_unused(&weir, &mut upstream).await;
    let mut near = weir.raw_http1().await;
    let request = TestRequest::get("/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "websocket");
    near.send(request.to_http1()).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.headers.get("proxy-authorization"), None);
    let mut far = exchange.into_raw_http1();
    far.send("HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    assert_eq!(near.read_response_head().await.status, 101);
    near.send("bytes").await;
    assert_eq!(far.reader.read_exactly(5).await.unwrap(), "bytes");
}

/// A name that only the proxy knows: Go connects directly to loopback addresses.
const BEHIND_THE_PROXY: &str = "api.weir.invalid:6443";

#[tokio::test]
async fn the_upstream_is_reached_through_the_proxy_of_the_environment() {
    let mut upstream = FakeUpstream::start().await;
    let address = start_proxy(BEHIND_THE_PROXY, upstream.address).await;
    let files = ConfigDir::new();
    let text = kubeconfig_yaml(
        upstream.address,
        "    tls-server-name: 127.0.0.1\n",
        "token: t",
    );
    let text = text.replace(&upstream.address.to_string(), BEHIND_THE_PROXY);
    files.write("kubeconfig", &text);
    let proxy = format!("http://{PROXY_USER}@{address}");
    let environment = [("HTTPS_PROXY", &*proxy), ("NO_PROXY", "10.0.0.0/8")];
    let flags = kubeconfig_flags(&["--token-auth-file=tokens.csv"]);
    let weir = WeirProcess::start_with(files, &flags, &environment).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(
        exchange.request.headers.get("authorization"),
        Some("Bearer t")
    );
    let mut client = weir.alice(HttpVersion::Http2);
    let call = client.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn a_proxy_of_the_environment_that_cannot_be_used_prevents_the_start() {
    let files = ConfigDir::new();
    let text = kubeconfig_yaml(([10, 0, 0, 1], 6443).into(), "", "token: t");
    files.write("kubeconfig", &text);
    let flags = kubeconfig_flags(&[]);
    let all: Vec<&str> = ["serve"]
        .into_iter()
        .chain(flags.iter().map(String::as_str))
        .collect();
    let environment = [("HTTPS_PROXY", "socks5://hidden@proxy:1080")];
    let finished = process::run_with(&files, &all, &environment).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("HTTPS_PROXY: only http:// proxies"),
        "{}",
        finished.stderr
    );
    assert!(!finished.stderr.contains("hidden"), "{}", finished.stderr);
}

#[tokio::test]
async fn the_files_of_the_variable_kubeconfig_are_merged() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let whole = kubeconfig_yaml(upstream.address, "", "token: of-the-second");
    files.write("second", &whole);
    files.write(
        "first",
        "users:\n- {name: u, user: {token: of-the-first}}\n",
    );
    let mut flags = kubeconfig_flags(&["--token-auth-file=tokens.csv"]);
    flags.retain(|flag| flag != "--kubeconfig=kubeconfig");
    let environment = [("KUBECONFIG", "absent:first:second")];
    let weir = WeirProcess::start_with(files, &flags, &environment).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(
        exchange.request.headers.get("authorization"),
        Some("Bearer of-the-first")
    );
    drop(weir);
    // An --upstream is one by itself.
    let mut flags = process::required_flags(upstream.address);
    flags.push("--token-auth-file=tokens.csv".to_owned());
    let weir = WeirProcess::start_with(ConfigDir::new(), &flags, &environment).await;
    let exchange = readiness_probe(&weir, &mut upstream).await;
    assert_eq!(exchange.request.headers.get("authorization"), None);
}

#[tokio::test]
async fn a_proxy_that_refuses_the_connection_is_a_503_with_its_cause() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let files = ConfigDir::new();
    let cluster = format!("    proxy-url: http://{}\n", proxy.local_addr().unwrap());
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(([127, 0, 0, 1], 1).into(), &cluster, "token: t"),
    );
    let weir = serve(files).await;
    let mut client = weir.alice(HttpVersion::Http2);
    let refuses = async {
        loop {
            let (tcp, _) = proxy.accept().await.unwrap();
            let mut wire = RawHttp1::new(tcp);
            wire.read_request_head().await;
            wire.send("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    };
    let response = tokio::select! {
        response = client.get(LIST) => response,
        () = refuses => unreachable!(),
    };
    let kube_status = response.kube_status();
    assert_eq!(
        (response.status, kube_status.cause.as_str()),
        (503, "weir/upstream-proxy")
    );
    assert!(kube_status.message.contains("407"), "{kube_status:?}");
}

#[tokio::test]
async fn errors_in_a_kubeconfig_are_reported() {
    let files = ConfigDir::new();
    let good = kubeconfig_yaml(([127, 0, 0, 1], 1).into(), "", "token: t");
    let proxy = "    proxy-url: http://127.0.0.1:1\n";
    let proxied = kubeconfig_yaml(([127, 0, 0, 1], 1).into(), proxy, "token: t");
    let cases: [(&str, &[&str], &[&str]); 7] = [
        (&good, &["--context=nowhere"], &["--kubeconfig", "nowhere"]),
        (
            &good,
            &["--upstream-ca-file=upstream-ca.crt"],
            &["--upstream-ca-file"],
        ),
        (
            "nothing: [of, the kind\n",
            &[],
            &["--kubeconfig", "kubeconfig:"],
        ),
        (
            &good.replace("https://127.0.0.1:1\n", "http://127.0.0.1:1\n"),
            &[],
            &["--kubeconfig", "https"],
        ),
        (
            &good.replace("token: t", "tokenFile: absent-token"),
            &[],
            &["absent-token"],
        ),
        (
            &good.replace("upstream-ca.crt", "absent-ca"),
            &[],
            &["--kubeconfig", "absent-ca"],
        ),
        (
            &proxied,
            &["--upstream-endpoint-slices"],
            &["--upstream-endpoint-slices", "proxy-url"],
        ),
    ];
    for (text, others, parts) in cases {
        files.write("kubeconfig", text);
        let flags = kubeconfig_flags(others);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let finished = process::run(&files, &all).await;
        assert!(matches!(finished.code, Some(1 | 2)), "{finished:?}");
        let reported = finished
            .stderr
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(reported, "{parts:?}: {}", finished.stderr);
    }
}

#[tokio::test]
async fn shutdown_waits_for_a_request_whose_token_is_under_review() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: weirs-own"),
    );
    let mut weir = serve(files).await;
    let mut client =
        weir.with_authorization(HttpVersion::Http2, ("authorization", "Bearer opaque"));
    let call = client.send(TestRequest::get(LIST)).await;
    let review = upstream.next_exchange().await;
    assert_eq!(review.request.method, "POST");
    weir.send_signal("TERM").await;
    // The review takes longer than the idle timeout of connections.
    let exchange = upstream.next_exchange().await;
    assert_eq!(exchange.request.target, LIST);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    assert_eq!(weir.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn several_servers_are_used_with_the_credentials_and_the_ca_of_a_kubeconfig() {
    let named = |name| pki().server_ca.issue_server_named(name);
    let mut servers = [
        FakeUpstream::with_certificate(&named("api.example")).await,
        FakeUpstream::with_certificate(&named("api.example")).await,
    ];
    let files = ConfigDir::new();
    let nowhere = ([127, 0, 0, 1], 1).into();
    let cluster = "    tls-server-name: api.example\n";
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(nowhere, cluster, "token: weirs-own"),
    );
    let [first, second] = servers.each_ref().map(|server| server.address);
    let more = format!("--upstream=https://{first},https://{second}");
    let flags = kubeconfig_flags(&[&more, "--token-auth-file=tokens.csv"]);
    let weir = WeirProcess::start(files, &flags);
    servers.iter().for_each(|server| server.expose_readyz(true));
    let probes = async {
        for server in &mut servers {
            let exchange = server.next_exchange().await;
            assert_eq!(exchange.request.target, "/readyz");
            let own = exchange.request.headers.get("authorization");
            assert_eq!(own, Some("Bearer weirs-own"));
            exchange.respond(200, "ok").await;
            server.answer_readyz(200);
        }
    };
    let (weir, ()) = tokio::join!(weir, probes);
    for address in [first, second] {
        let healthy = format!("weir_upstream_server_healthy{{server=\"{address}\"}}");
        weir.wait_for_metric(&healthy, 1.0).await;
    }
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    let [one, other] = &mut servers;
    let exchange = tokio::select! {
        exchange = one.next_exchange() => exchange,
        exchange = other.next_exchange() => exchange,
    };
    assert_eq!(exchange.request.headers.get("authorization"), Some(ALICE.1));
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}
