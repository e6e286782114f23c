//! Flags and the `--config` file: both spellings, flags override, and all errors of settings and
//! files are reported at once with their locations.

use crate::support::certificates::pki;
use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::{ConfigDir, FinishedRun, WeirProcess, required_flags};
use crate::support::raw_http1::RawHttp1;
use crate::support::{HttpVersion, process};

const LIST: &str = "/api/v1/pods";

/// A run that is rejected before anything is served.
async fn assert_rejected(files: &ConfigDir, flags: &[&str]) -> FinishedRun {
    let all = [&["serve"], flags].concat();
    let finished = process::run(files, &all).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert_eq!(finished.stdout, "");
    finished
}

/// A run with all required flags and these in addition.
async fn assert_rejected_with_required_flags(files: &ConfigDir, flags: &[&str]) -> FinishedRun {
    let all = required_flags(([127, 0, 0, 1], 1).into());
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    // A repeated flag would be an error of its own.
    all.retain(|flag| {
        let name = flag.split('=').next();
        !flags.iter().any(|other| other.split('=').next() == name)
    });
    assert_rejected(files, &[&all, flags].concat()).await
}

#[track_caller]
fn assert_reported(finished: &FinishedRun, lines: &[&[&str]]) {
    for parts in lines {
        let reported = finished
            .stderr
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(reported, "no line holds {parts:?}:\n{}", finished.stderr);
    }
}

/// How many of ten concurrent reads, and of ten writes, are admitted.
async fn measure_limits(weir: &WeirProcess, upstream: &mut FakeUpstream) -> (usize, usize) {
    let mut client = weir.alice(HttpVersion::Http2);
    let mut open = Vec::new();
    let mut admitted = [0, 0];
    for (kind, count) in admitted.iter_mut().enumerate() {
        for _ in 0..10 {
            let request = if kind == 0 {
                TestRequest::get(LIST)
            } else {
                TestRequest::post(LIST, "{}")
            };
            let mut call = client.send(request).await;
            tokio::select! {
                exchange = upstream.next_exchange() => {
                    open.push((call, exchange));
                    *count += 1;
                }
                head = call.try_head() => assert_eq!(head.unwrap().status, 429),
            }
        }
    }
    admitted.into()
}

#[tokio::test]
async fn every_setting_can_be_in_the_file_in_either_spelling() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "weir.yaml",
        &format!(
            "# Everything that is needed.\nupstream: https://{}\nupstreamCaFile: upstream-ca.crt\n\
             bindAddress: 127.0.0.1\nsecure-port: 0\nadmin-address: 127.0.0.1:0\ntlsCertFile: tls.crt\n\
             tls-private-key-file: tls.key\nworkers: 1\nmaxRequestsInflight: 3\n\
             max-mutating-requests-inflight: 2\nenablePriorityAndFairness: false\nrejectionHold: 0s\n\
             requestTimeout: 1m30s\ntrustedProxies: [10.0.0.0/8, 192.168.0.0/16]\n\
             clientCAFile: client-ca.crt\n",
            upstream.address
        ),
    );
    let weir = WeirProcess::start(files, &["--config=weir.yaml".to_owned()]).await;
    assert_eq!(measure_limits(&weir, &mut upstream).await, (3, 2));
}

#[tokio::test]
async fn a_flag_wins_over_the_file() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "weir.yaml",
        "maxRequestsInflight: 3\nmaxMutatingRequestsInflight: 2\nenablePriorityAndFairness: false\nrejectionHold: 0s\n",
    );
    let mut flags = required_flags(upstream.address);
    flags.push("--max-requests-inflight=5".to_owned());
    flags.push("--config=weir.yaml".to_owned());
    let weir = WeirProcess::start(files, &flags).await;
    assert_eq!(measure_limits(&weir, &mut upstream).await, (5, 2));
}

#[tokio::test]
async fn all_errors_in_the_file_are_reported_with_line_and_field() {
    let files = ConfigDir::new();
    files.write(
        "weir.yaml",
        "maxRequestInflight: 7\nrequestTimeout: 60\nsecurePort: 1\nsecure-port: 2\nworkers: [1, 2]\n\
         requestTimeout: 1s\nnothingOfTheKind: x\n",
    );
    let finished = assert_rejected_with_required_flags(&files, &["--config=weir.yaml"]).await;
    assert_reported(
        &finished,
        &[
            &[
                "weir.yaml:1:",
                "maxRequestInflight",
                "unknown",
                "max-requests-inflight",
            ],
            &["weir.yaml:2:", "requestTimeout", "60"],
            &["weir.yaml:4:", "secure-port", "line 3"],
            &["weir.yaml:5:", "workers"],
            &["weir.yaml:6:", "requestTimeout", "line 2"],
            &["weir.yaml:7:", "nothingOfTheKind", "unknown"],
        ],
    );
}

#[tokio::test]
async fn a_file_that_holds_no_settings_is_an_error() {
    let files = ConfigDir::new();
    for (text, place) in [
        ("- maxRequestsInflight: 7\n", "weir.yaml:1:"),
        ("maxRequestsInflight: 7\n---\nworkers: 1\n", "weir.yaml:"),
        ("maxRequestsInflight: [7\n", "weir.yaml:"),
        ("a: &a [*a]\n", "weir.yaml:"),
    ] {
        files.write("weir.yaml", text);
        let finished = assert_rejected_with_required_flags(&files, &["--config=weir.yaml"]).await;
        assert_reported(&finished, &[&[place]]);
    }
    let finished = assert_rejected_with_required_flags(&files, &["--config=absent.yaml"]).await;
    assert_reported(&finished, &[&["--config", "absent.yaml"]]);
}

#[tokio::test]
async fn all_missing_required_flags_are_reported() {
    let finished = assert_rejected(&ConfigDir::new(), &[]).await;
    assert_reported(
        &finished,
        &[
            &["--upstream"],
            &["--tls-cert-file"],
            &["--tls-private-key-file"],
        ],
    );
}

#[tokio::test]
async fn all_missing_files_are_reported_by_flag_and_name() {
    let flags = [
        "tls-cert-file",
        "tls-private-key-file",
        "upstream-ca-file",
        "client-ca-file",
        "token-auth-file",
        "proxy-client-cert-file",
        "proxy-client-key-file",
    ];
    let named: Vec<String> = flags
        .iter()
        .map(|flag| format!("--{flag}=absent-{flag}"))
        .collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let finished = assert_rejected_with_required_flags(&ConfigDir::new(), &named).await;
    for flag in flags {
        assert_reported(
            &finished,
            &[&[&format!("--{flag}"), &format!("absent-{flag}")]],
        );
    }
}

#[tokio::test]
async fn invalid_files_are_reported_by_flag_and_never_quoted() {
    let files = ConfigDir::new();
    files.write("odd", "a secret that nobody should read in a log\n");
    for flag in [
        "tls-cert-file",
        "tls-private-key-file",
        "upstream-ca-file",
        "client-ca-file",
        "token-auth-file",
        "proxy-client-cert-file",
        "proxy-client-key-file",
    ] {
        let mut flags = vec![format!("--{flag}=odd")];
        match flag {
            "proxy-client-cert-file" => flags.push("--proxy-client-key-file=proxy.key".to_owned()),
            "proxy-client-key-file" => flags.push("--proxy-client-cert-file=proxy.crt".to_owned()),
            _ => {}
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let finished = assert_rejected_with_required_flags(&files, &flags).await;
        assert_reported(&finished, &[&[&format!("--{flag}"), "odd"]]);
        assert!(!finished.stderr.contains("secret"), "{}", finished.stderr);
    }
}

#[tokio::test]
async fn a_key_that_does_not_match_its_certificate_is_reported_with_both_flags_and_files() {
    let files = ConfigDir::new();
    for (flags, parts) in [
        (
            [
                "--tls-cert-file=tls.crt",
                "--tls-private-key-file=proxy.key",
            ],
            [
                "--tls-private-key-file",
                "proxy.key",
                "--tls-cert-file",
                "tls.crt",
            ],
        ),
        (
            [
                "--proxy-client-cert-file=proxy.crt",
                "--proxy-client-key-file=tls.key",
            ],
            [
                "--proxy-client-key-file",
                "tls.key",
                "--proxy-client-cert-file",
                "proxy.crt",
            ],
        ),
    ] {
        assert_reported(
            &assert_rejected_with_required_flags(&files, &flags).await,
            &[&parts],
        );
    }
}

#[tokio::test]
async fn half_of_a_certificate_and_key_pair_is_an_error() {
    let files = ConfigDir::new();
    for (given, missing) in [
        (
            "--proxy-client-cert-file=proxy.crt",
            "--proxy-client-key-file",
        ),
        (
            "--proxy-client-key-file=proxy.key",
            "--proxy-client-cert-file",
        ),
    ] {
        let finished = assert_rejected_with_required_flags(&files, &[given]).await;
        assert_reported(&finished, &[&[missing]]);
    }
}

#[tokio::test]
async fn an_invalid_upstream_url_is_an_error() {
    for upstream in [
        "http://127.0.0.1:6443",
        "https://127.0.0.1:6443/prefix",
        "https://127.0.0.1:6443?x=y",
        "https://user:password@127.0.0.1:6443",
        "https://",
        "127.0.0.1:6443",
        "not a url",
        "https://127.0.0.1:66666",
    ] {
        let flag = format!("--upstream={upstream}");
        let finished = assert_rejected_with_required_flags(&ConfigDir::new(), &[&flag]).await;
        assert_reported(&finished, &[&["--upstream"]]);
        assert!(!finished.stderr.contains("password"), "{}", finished.stderr);
    }
}

#[tokio::test]
async fn without_an_upstream_ca_the_system_roots_are_trusted() {
    let mut upstream = FakeUpstream::start().await;
    let mut flags = required_flags(upstream.address);
    flags.retain(|flag| !flag.starts_with("--upstream-ca-file"));
    let system = [("SSL_CERT_FILE", "upstream-ca.crt")];
    let weir = WeirProcess::start_with(ConfigDir::new(), &flags, &system).await;
    let call = weir
        .alice(HttpVersion::Http2)
        .send(TestRequest::get(LIST))
        .await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
}

#[tokio::test]
async fn invalid_flag_values_are_reported() {
    for (flag, part) in [
        ("--goaway-chance=0.5", "0.02"),
        ("--request-timeout=60", "unit"),
        ("--max-requests-inflight=-1", "--max-requests-inflight"),
        (
            "--http2-max-streams-per-connection=-1",
            "--http2-max-streams-per-connection",
        ),
        ("--trusted-proxies=10.0.0.0/33", "--trusted-proxies"),
        ("--tls-min-version=VersionTLS10", "--tls-min-version"),
        ("--tls-sni-cert-key=only.crt", "--tls-sni-cert-key"),
        (
            "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
        ("--tls-curve-preferences=25", "4588"),
        ("--log-level=weir=loud=er", "--log-level"),
        ("--no-such-flag=1", "--no-such-flag"),
    ] {
        let finished = assert_rejected_with_required_flags(&ConfigDir::new(), &[flag]).await;
        assert_reported(&finished, &[&[part]]);
    }
}

#[tokio::test]
async fn errors_in_a_token_file_are_reported_with_their_lines() {
    let files = ConfigDir::new();
    files.write("tokens.csv", "good,alice,1\nonly-a-token\nbad,bob\n");
    let finished =
        assert_rejected_with_required_flags(&files, &["--token-auth-file=tokens.csv"]).await;
    assert_reported(
        &finished,
        &[&["--token-auth-file", "tokens.csv:2:"], &["tokens.csv:3:"]],
    );
    assert!(
        !finished.stderr.contains("only-a-token"),
        "{}",
        finished.stderr
    );
}

#[tokio::test]
async fn priority_and_fairness_is_enabled_by_default() {
    let upstream = FakeUpstream::start().await;
    for (flags, there) in [
        (&[][..], true),
        (&["--enable-priority-and-fairness"][..], true),
        (&["--enable-priority-and-fairness=true"][..], true),
        (&["--enable-priority-and-fairness=false"][..], false),
    ] {
        let weir = WeirProcess::serve(upstream.address, flags).await;
        let metrics = weir.get_admin("/metrics").await;
        let levels = metrics
            .text()
            .contains("apiserver_flowcontrol_nominal_limit_seats{");
        assert_eq!(levels, there, "{flags:?}");
    }
}

#[tokio::test]
async fn errors_and_warnings_of_an_audit_policy_are_reported_with_their_locations() {
    let files = ConfigDir::new();
    files.write(
        "policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Everything\n- level: Request\n  verb: [get]\n\
         - nonResourceURLs: [metrics]\n",
    );
    let flags = ["--audit-log-path=-", "--audit-policy-file=policy.yaml"];
    let finished = assert_rejected_with_required_flags(&files, &flags).await;
    assert_reported(
        &finished,
        &[
            &[
                "--audit-policy-file: policy.yaml:4:10: rules[0].level: ",
                "Metadata",
            ],
            &[
                "--audit-policy-file: policy.yaml:5:10: ",
                "rules[1].level: ",
                "bodies",
            ],
            &["--audit-policy-file: policy.yaml:6:3: ", "rules[1].verb: "],
            &["--audit-policy-file: policy.yaml:7:3: rules[2].level: required"],
            &["--audit-policy-file: policy.yaml:7:21: rules[2].nonResourceURLs[0]: "],
        ],
    );
    let alone =
        assert_rejected_with_required_flags(&files, &["--audit-policy-file=policy.yaml"]).await;
    assert_reported(&alone, &[&["--audit-policy-file: ", "--audit-log-path"]]);
}

#[tokio::test]
async fn an_unwritable_audit_log_is_an_error_before_anything_is_served() {
    let mut flags = required_flags(([127, 0, 0, 1], 1).into());
    flags.push("--audit-log-path=tls.crt/audit.log".to_owned());
    let all: Vec<&str> = ["serve"]
        .into_iter()
        .chain(flags.iter().map(String::as_str))
        .collect();
    let finished = process::run(&ConfigDir::new(), &all).await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_reported(&finished, &[&["--audit-log-path tls.crt/audit.log: "]]);
}

#[tokio::test]
async fn an_address_in_use_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for flag in [
        format!("--secure-port={}", address.port()),
        format!("--admin-address={address}"),
        format!("--health-address={address}"),
    ] {
        let name = flag.split('=').next().unwrap().to_owned();
        let mut flags = required_flags(([127, 0, 0, 1], 1).into());
        flags.retain(|other| !other.starts_with(&format!("{name}=")));
        flags.push(flag);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let finished = process::run(&ConfigDir::new(), &all).await;
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_reported(&finished, &[&[&address.to_string()]]);
    }
}

#[tokio::test]
async fn help_and_version_are_no_errors() {
    let files = ConfigDir::new();
    let version = process::run(&files, &["--version"]).await;
    assert_eq!((version.code, version.stderr.as_str()), (Some(0), ""));
    assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")));
    let help = process::run(&files, &["serve", "--help"]).await;
    assert_eq!(help.code, Some(0));
    for flag in [
        "--bind-address",
        "--secure-port",
        "--tls-cert-file",
        "--tls-private-key-file",
        "--client-ca-file",
        "--token-auth-file",
        "--max-requests-inflight",
        "--max-mutating-requests-inflight",
        "--enable-priority-and-fairness",
        "--request-timeout",
        "--http2-max-streams-per-connection",
        "--shutdown-delay-duration",
        "--shutdown-watch-termination-grace-period",
        "--proxy-client-cert-file",
        "--proxy-client-key-file",
        "--upstream",
        "--upstream-ca-file",
        "--kubeconfig",
        "--context",
        "--trusted-proxies",
        "--admin-address",
        "--health-address",
        "--config",
    ] {
        assert!(help.stdout.contains(flag), "{flag}");
    }
    assert_eq!(process::run(&files, &[]).await.code, Some(2));
}

#[tokio::test]
async fn a_request_timeout_of_zero_is_rejected_as_a_flag_and_in_the_file() {
    let files = ConfigDir::new();
    let flag = assert_rejected_with_required_flags(&files, &["--request-timeout=0s"]).await;
    assert_reported(&flag, &[&["--request-timeout", "must be more than 0s"]]);
    files.write("weir.yaml", "workers: 1\nrequestTimeout: 0s\n");
    let file = assert_rejected_with_required_flags(&files, &["--config=weir.yaml"]).await;
    let place = "weir.yaml:2:17: requestTimeout: ";
    assert_reported(&file, &[&[place, "must be more than 0s"]]);
}

#[tokio::test]
async fn a_dangling_schema_and_an_empty_folder_are_warned_about_with_their_locations() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    std::fs::create_dir(files.path().join("empty")).unwrap();
    files.write(
        "schema.yaml",
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata:\n  name: reports\nspec:\n  \
         matchingPrecedence: 500\n  priorityLevelConfiguration:\n    name: reportz\n",
    );
    let mut flags = required_flags(upstream.address);
    flags.extend(["empty", "schema.yaml"].map(|path| format!("--flowcontrol-config={path}")));
    let weir = WeirProcess::start(files, &flags).await;
    let warned = |parts: &[&str]| {
        let found = |line: &&String| parts.iter().all(|part| line.contains(part));
        weir.startup_lines.iter().filter(found).count()
    };
    let schema = ["WARN", "\"reports\"", "\"reportz\"", "schema.yaml:8:11: "];
    assert_eq!(warned(&schema), 1, "{:#?}", weir.startup_lines);
    assert_eq!(warned(&["reports"]), 1, "once: {:#?}", weir.startup_lines);
    let folder = ["WARN", "--flowcontrol-config: empty: ", "no .yaml"];
    assert_eq!(warned(&folder), 1, "{:#?}", weir.startup_lines);
}

#[tokio::test]
async fn the_log_level_can_be_set_on_a_loopback_address() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &[]).await;
    let tcp = tokio::net::TcpStream::connect(weir.admin).await.unwrap();
    let mut wire = RawHttp1::new(tcp);
    wire.send("PUT /debug/log_level HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nwarn")
        .await;
    assert_eq!(wire.read_response_head().await.status, 200);
    let level = weir.get_admin("/debug/log_level").await;
    assert_eq!((level.status, level.text()), (200, "warn\n"));
}

#[tokio::test]
async fn expired_and_unusable_certificates_are_warned_about() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    let over = pki().client_ca.issue_expired_client("weir");
    files.write("over.crt", &over.pem);
    files.write("over.key", &over.key_pem);
    let mut flags = required_flags(upstream.address);
    flags.retain(|flag| !flag.starts_with("--tls-"));
    let others = [
        "--tls-cert-file=over.crt",
        "--tls-private-key-file=over.key",
        "--client-ca-file=client-ca.crt",
    ];
    flags.extend(others.map(str::to_owned));
    let weir = WeirProcess::start(files, &flags).await;
    for parts in [
        ["WARN", "--tls-cert-file", "expired"],
        ["WARN", "--client-ca-file", "--proxy-client-cert-file"],
    ] {
        let warned = |line: &&String| parts.iter().all(|part| line.contains(part));
        assert_eq!(
            weir.startup_lines.iter().filter(warned).count(),
            1,
            "{parts:?}: {:#?}",
            weir.startup_lines
        );
    }
    let sound = WeirProcess::serve(upstream.address, &[]).await;
    assert!(
        !sound
            .startup_lines
            .iter()
            .any(|line| line.contains("WARN") && line.contains("certificate"))
    );
}

#[tokio::test]
async fn the_startup_line_has_version_upstream_and_seats() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &["--health-address=127.0.0.1:0"]).await;
    let line = weir.startup_lines.last().unwrap();
    for part in [
        format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
        format!("upstream={}", upstream.address),
        "seats=auto".to_owned(),
        "levels=8".to_owned(),
        "health=127.0.0.1:".to_owned(),
    ] {
        assert!(line.contains(&part), "{part}: {line}");
    }
}

#[tokio::test]
async fn more_connections_than_open_files_are_not_taken() {
    let upstream = FakeUpstream::start().await;
    let weir = WeirProcess::serve(upstream.address, &["--max-connections=4294967295"]).await;
    let warning = "--max-connections: the limit of open files allows ";
    let line = weir
        .startup_lines
        .iter()
        .find(|line| line.contains(warning));
    let allowed = line.unwrap().split_once(warning).unwrap().1;
    let allowed: f64 = allowed.split(' ').next().unwrap().parse().unwrap();
    let limit = weir.metric("weir_client_connections_limit").await;
    assert_eq!(limit, allowed);
}

#[tokio::test]
async fn configz_and_flagz_show_the_effective_configuration() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write(
        "weir.yaml",
        "requestTimeout: 30s\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
         nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n",
    );
    let mut flags = required_flags(upstream.address);
    flags.extend(["--config=weir.yaml", "--token-auth-file=tokens.csv"].map(str::to_owned));
    let weir = WeirProcess::start(files, &flags).await;
    let config = weir.get_admin("/configz").await;
    assert_eq!(&config.headers["content-type"], "application/json");
    assert!(!config.text().contains("alice-token"));
    let config: serde_json::Value = serde_json::from_str(config.text()).unwrap();
    let config = &config["weir"];
    assert_eq!(config["requestTimeout"], "30s");
    assert_eq!(config["workers"], 1);
    assert_eq!(config["maxRequestsInflight"], "auto");
    assert_eq!(config["clientLimits"][0]["name"], "all");
    assert_eq!(config["upstream"], format!("https://{}", upstream.address));
    let flags = weir.get_admin("/flagz").await;
    assert_eq!(flags.status, 200);
    for line in [
        "request-timeout=30s",
        "token-auth-file=tokens.csv",
        "kubeconfig=",
    ] {
        assert!(flags.text().lines().any(|found| found == line), "{line}");
    }
    let status = weir.get_admin("/statusz").await;
    assert!(
        status
            .text()
            .contains(&format!("\nUpstream: {}\n", upstream.address))
    );
    let status_json: serde_json::Value =
        serde_json::from_str(weir.get_admin("/status.json").await.text()).unwrap();
    assert_eq!(
        status_json["upstream"]["address"],
        upstream.address.to_string()
    );
    let host = status_json["host"].as_str().unwrap();
    assert!(!host.is_empty() && status.text().contains(&format!("\nHost: {host}\n")));
}

#[tokio::test]
async fn fatal_errors_are_json_when_the_log_is() {
    let files = ConfigDir::new();
    files.write("weir.yaml", "loggingFormat: json\nworkers: many\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let admin = format!("--admin-address={address}");
    let all = required_flags(([127, 0, 0, 1], 1).into());
    let all = all
        .iter()
        .map(String::as_str)
        .filter(|flag| !flag.starts_with("--admin"));
    let start: Vec<&str> = ["serve"]
        .into_iter()
        .chain(all)
        .chain([&*admin, "--logging-format=json"])
        .collect();
    for (arguments, code, part) in [
        (&start[..], 1, &*address.to_string()),
        (
            &["serve", "--logging-format=json"],
            2,
            "--tls-cert-file: needed",
        ),
        (
            &["serve", "--logging-format=json", "--workers=x"],
            2,
            "invalid value 'x'",
        ),
        (
            &["serve", "--config=weir.yaml"],
            2,
            "weir.yaml:2:10: workers",
        ),
    ] {
        let finished = process::run(&files, arguments).await;
        assert_eq!(finished.code, Some(code), "{finished:?}");
        let lines = finished.stderr.lines();
        let lines =
            lines.map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let errors: Vec<_> = lines.filter(|line| line["level"] == "ERROR").collect();
        let is_reported = |line: &&serde_json::Value| {
            line["timestamp"].is_string()
                && line["fields"]["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(part))
        };
        assert!(
            errors.iter().any(|line| is_reported(&line)),
            "{part}: {errors:#?}"
        );
    }
}

#[tokio::test]
async fn errors_of_conflicting_settings_have_their_locations_in_the_file() {
    let files = ConfigDir::new();
    files.write(
        "weir.yaml",
        "workers: 1\nhealthMetrics: true\nclientCaFile: absent.crt\nmaxListBytesInflight: 10%\n",
    );
    let finished = assert_rejected_with_required_flags(&files, &["--config=weir.yaml"]).await;
    assert_reported(
        &finished,
        &[
            &["weir.yaml:2:16: --health-metrics: only together with --health-address"],
            &["weir.yaml:3:15: --client-ca-file: cannot read absent.crt"],
            &[
                "weir.yaml:4:23: --max-list-bytes-inflight: a share only together with --api-server-memory",
            ],
        ],
    );
}

#[tokio::test]
async fn errors_of_different_kinds_are_reported_together() {
    let files = ConfigDir::new();
    files.write("weir.yaml", "workers: many\nhealthMetrics: true\n");
    let flags = ["--config=weir.yaml", "--client-ca-file=absent.crt"];
    let finished = assert_rejected_with_required_flags(&files, &flags).await;
    assert_reported(
        &finished,
        &[
            &["weir.yaml:1:10: workers: "],
            &["weir.yaml:2:16: --health-metrics: only together"],
            &["--client-ca-file: cannot read absent.crt"],
        ],
    );
    assert_eq!(finished.stderr.lines().count(), 3, "{}", finished.stderr);
}

#[tokio::test]
async fn auto_finds_both_limits() {
    let files = ConfigDir::new();
    for (settings, error) in [
        (
            "maxRequestsInflight: auto\nmaxMutatingRequestsInflight: 7\n",
            "weir.yaml:1:22: --max-requests-inflight: auto finds both parts",
        ),
        (
            "maxRequestsInflight: 7\nmaxMutatingRequestsInflight: auto\n",
            "weir.yaml:2:30: --max-mutating-requests-inflight: auto finds both parts",
        ),
        (
            "maxRequestsInflight: many\n",
            "weir.yaml:1:22: maxRequestsInflight: ",
        ),
        (
            "maxRequestsInflight: auto\nserverLimitShare: 1.5\n",
            "weir.yaml:2:19: serverLimitShare: ",
        ),
    ] {
        files.write("weir.yaml", settings);
        let finished = assert_rejected_with_required_flags(&files, &["--config=weir.yaml"]).await;
        assert_reported(&finished, &[&[error]]);
    }
}
