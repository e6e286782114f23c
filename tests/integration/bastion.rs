//! weir by a kubeconfig: it finds the API server as kubectl would, and what the file lets weir itself do is lent to nobody.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::message::Asked;
use crate::support::process;
use crate::support::process::Files;
use crate::support::process::Process;
use crate::support::upstream::ByHand;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir::ALICE;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

/// A kubeconfig with these lines about the cluster and the user.
pub(crate) fn kubeconfig(server: SocketAddr, cluster: &str, user: &str) -> String {
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

pub(crate) fn flags(others: &[&str]) -> Vec<String> {
    let mut flags = process::needed(([127, 0, 0, 1], 1).into());
    flags.retain(|flag| !flag.starts_with("--upstream"));
    flags.push("--kubeconfig=kubeconfig".to_owned());
    flags.push("--object-count-poll-period=0s".to_owned()); // what reaches the upstream is the test's
    flags.extend(others.iter().map(|flag| (*flag).to_owned()));
    flags
}

async fn serve(files: Files) -> Process {
    let others = [
        "--token-auth-file=tokens.csv",
        "--client-ca-file=client-ca.crt",
        "--proxy-client-cert-file=proxy.crt",
        "--proxy-client-key-file=proxy.key",
    ];
    Process::start(files, &flags(&others)).await
}

/// weir's own question to the upstream, asked and answered.
async fn own_call(weir: &Process, upstream: &mut Upstream) -> Exchange {
    let (report, exchange) = tokio::join!(weir.operator("/readyz"), async {
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[("content-length", "0")]).await;
        exchange
    });
    assert_eq!(report.status, 200, "{}", report.text());
    exchange
}

/// Fails if a client's request carries anything that is weir's own.
async fn assert_lends_nothing(weir: &Process, upstream: &mut Upstream) {
    for http in Http::BOTH {
        for (mut client, token, certificate) in [
            (weir.anonymous(http), None, None),
            (weir.alice(http), Some(ALICE.1), None),
            (
                weir.certified(http, &pki().alice),
                None,
                Some("front-proxy-client"),
            ),
        ] {
            let call = client.send(Ask::get(LIST)).await;
            let exchange = upstream.next().await;
            assert_eq!(exchange.asked.headers.get("authorization"), token);
            assert_eq!(exchange.peer.certificate.as_deref(), certificate);
            exchange.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200);
        }
    }
}

#[tokio::test]
async fn a_token_of_the_kubeconfig_is_for_weir_s_own_calls_alone() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    files.write(
        "kubeconfig",
        &kubeconfig(upstream.address, "", "token: weirs-own"),
    );
    let weir = serve(files).await;
    let exchange = own_call(&weir, &mut upstream).await;
    assert_eq!(
        exchange.asked.headers.all("authorization"),
        ["Bearer weirs-own"]
    );
    assert_lends_nothing(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_certificate_of_the_kubeconfig_is_for_weir_s_own_calls_alone() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    // The fake upstream takes certificates of this CA only; which name they carry is what counts here.
    let own = pki().front_proxy.client("weirs-own", &[]);
    files.write("own.crt", &own.pem);
    files.write("own.key", &own.key_pem);
    let user = "client-certificate: own.crt\n    client-key: own.key";
    files.write("kubeconfig", &kubeconfig(upstream.address, "", user));
    let weir = serve(files).await;
    let exchange = own_call(&weir, &mut upstream).await;
    assert_eq!(exchange.peer.certificate.as_deref(), Some("weirs-own"));
    assert_lends_nothing(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_plugin_s_token_is_for_weir_s_own_calls_alone() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    files.write(
        "plugin.sh",
        "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{\"token\":\"from-the-plugin\"}}'\n",
    );
    let plugin = files.path().join("plugin.sh");
    std::fs::set_permissions(plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin.sh, interactiveMode: Never}";
    files.write("kubeconfig", &kubeconfig(upstream.address, "", user));
    let weir = serve(files).await;
    let exchange = own_call(&weir, &mut upstream).await;
    assert_eq!(
        exchange.asked.headers.all("authorization"),
        ["Bearer from-the-plugin"]
    );
    assert_lends_nothing(&weir, &mut upstream).await;
}

#[tokio::test]
async fn a_plugin_that_fails_is_told_at_the_start() {
    let files = Files::new();
    let user = "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./absent, interactiveMode: Never,\
                installHint: get it from the shelf}";
    files.write(
        "kubeconfig",
        &kubeconfig(([127, 0, 0, 1], 1).into(), "", user),
    );
    let flags = flags(&[]);
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
async fn the_upstream_is_believed_by_its_tls_server_name() {
    let upstream = ByHand::start().await;
    let files = Files::new();
    let cluster = "    tls-server-name: kube.internal\n";
    files.write(
        "kubeconfig",
        &kubeconfig(upstream.address, cluster, "token: t"),
    );
    let weir = serve(files).await;
    let mut client = weir.anonymous(Http::Two);
    let named = pki().servers.server_named("kube.internal");
    let call = client.send(Ask::get(LIST)).await;
    let mut wire = loop {
        let mut wire = Wire::new(upstream.tls(Http::One, &named).await.unwrap());
        let asked = wire.asked().await;
        if asked.good_self_check().is_none() {
            assert_eq!(asked.authority, upstream.address.to_string());
            break wire;
        }
    };
    wire.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        .await;
    assert_eq!(call.answer().await.status, 200);
    drop(wire);
    // The name it is reached by does not count any more.
    let other_name = async {
        loop {
            let _ = upstream.tls(Http::One, &pki().server).await;
        }
    };
    let answer = tokio::select! {
        answer = client.get(LIST) => answer,
        () = other_name => unreachable!(),
    };
    assert_eq!(
        (answer.status, answer.told().cause.as_str()),
        (503, "weir/upstream-tls")
    );
}

#[tokio::test]
async fn the_upstream_is_reached_by_the_proxy_url() {
    let mut upstream = Upstream::start().await;
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let files = Files::new();
    let cluster = format!("    proxy-url: http://user:pass%20word@{address}\n");
    files.write(
        "kubeconfig",
        &kubeconfig(upstream.address, &cluster, "token: t"),
    );
    let weir = serve(files).await;
    let to = upstream.address.to_string();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = proxy.accept().await {
            let mut wire = Wire::new(tcp);
            let Asked {
                method,
                target,
                headers,
                ..
            } = wire.asked().await;
            let allowed = headers.get("proxy-authorization") == Some("Basic dXNlcjpwYXNzIHdvcmQ=");
            if method != "CONNECT" || target != to || !allowed {
                wire.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                    .await;
                continue;
            }
            let mut far = TcpStream::connect(&to).await.unwrap();
            wire.send("HTTP/1.1 200 Connected\r\n\r\n").await;
            tokio::spawn(async move { copy_bidirectional(&mut wire.into_io(), &mut far).await });
        }
    });
    assert_lends_nothing(&weir, &mut upstream).await;
    let mut near = weir.wire().await;
    let ask = Ask::get("/api/v1/namespaces/a/pods/b/exec")
        .header("connection", "upgrade")
        .header("upgrade", "websocket");
    near.send(ask.to_http1()).await;
    let exchange = upstream.next().await;
    assert_eq!(exchange.asked.headers.get("proxy-authorization"), None);
    let mut far = exchange.into_wire();
    far.send("HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    assert_eq!(near.answered().await.status, 101);
    near.send("bytes").await;
    assert_eq!(far.reader.exactly(5).await.unwrap(), "bytes");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_a_503_that_says_so() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let files = Files::new();
    let cluster = format!("    proxy-url: http://{}\n", proxy.local_addr().unwrap());
    files.write(
        "kubeconfig",
        &kubeconfig(([127, 0, 0, 1], 1).into(), &cluster, "token: t"),
    );
    let weir = serve(files).await;
    let mut client = weir.alice(Http::Two);
    let refuses = async {
        loop {
            let (tcp, _) = proxy.accept().await.unwrap();
            let mut wire = Wire::new(tcp);
            wire.asked().await;
            wire.send("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    };
    let answer = tokio::select! {
        answer = client.get(LIST) => answer,
        () = refuses => unreachable!(),
    };
    let told = answer.told();
    assert_eq!(
        (answer.status, told.cause.as_str()),
        (503, "weir/upstream-proxy")
    );
    assert!(told.message.contains("407"), "{told:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig_is_told() {
    let files = Files::new();
    let good = kubeconfig(([127, 0, 0, 1], 1).into(), "", "token: t");
    let cases: [(&str, &[&str], &[&str]); 7] = [
        (&good, &["--context=nowhere"], &["--kubeconfig", "nowhere"]),
        (
            &good,
            &["--upstream=https://127.0.0.1:1"],
            &["--kubeconfig", "--upstream"],
        ),
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
    ];
    for (text, others, parts) in cases {
        files.write("kubeconfig", text);
        let flags = flags(others);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let finished = process::run(&files, &all).await;
        assert!(matches!(finished.code, Some(1 | 2)), "{finished:?}");
        let told = finished
            .stderr
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(told, "{parts:?}: {}", finished.stderr);
    }
}

#[tokio::test]
async fn weir_s_end_waits_for_a_request_whose_token_is_still_being_reviewed() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    files.write(
        "kubeconfig",
        &kubeconfig(upstream.address, "", "token: weirs-own"),
    );
    let mut weir = serve(files).await;
    let mut client = weir.bearing(Http::Two, ("authorization", "Bearer opaque"));
    let call = client.send(Ask::get(LIST)).await;
    let review = upstream.next_but_readyz().await;
    assert_eq!(review.asked.method, "POST");
    weir.signal("TERM").await;
    // It waits for the review longer than connections have that nothing is under way on.
    let exchange = upstream.next_but_readyz().await;
    assert_eq!(exchange.asked.target, LIST);
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
    assert_eq!(weir.ended().await.code(), Some(0));
}
