//! Flags and the `--config` file: either spelling, flags win, and every fault is told at once with its place.

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::process;
use crate::support::process::Files;
use crate::support::process::Finished;
use crate::support::process::Process;
use crate::support::process::needed;
use crate::support::upstream::Upstream;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

/// A run that is refused before anything is served.
async fn refused(files: &Files, flags: &[&str]) -> Finished {
    let all = [&["serve"], flags].concat();
    let finished = process::run(files, &all).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert_eq!(finished.stdout, "");
    finished
}

/// A run with all that is needed, and these flags besides.
async fn refused_besides(files: &Files, flags: &[&str]) -> Finished {
    let all = needed(([127, 0, 0, 1], 1).into());
    let mut all: Vec<&str> = all.iter().map(String::as_str).collect();
    // What is given twice would be a fault of its own.
    all.retain(|flag| {
        let name = flag.split('=').next();
        !flags.iter().any(|other| other.split('=').next() == name)
    });
    refused(files, &[&all, flags].concat()).await
}

#[track_caller]
fn assert_told(finished: &Finished, lines: &[&[&str]]) {
    for parts in lines {
        let told = finished
            .stderr
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(told, "no line holds {parts:?}:\n{}", finished.stderr);
    }
}

/// How many of ten reads, and of ten writes, are let through at a time.
async fn limits(weir: &Process, upstream: &mut Upstream) -> (usize, usize) {
    let mut client = weir.alice(Http::Two);
    let mut open = Vec::new();
    let mut admitted = [0, 0];
    for (kind, count) in admitted.iter_mut().enumerate() {
        for _ in 0..10 {
            let ask = if kind == 0 {
                Ask::get(LIST)
            } else {
                Ask::post(LIST, "{}")
            };
            let mut call = client.send(ask).await;
            tokio::select! {
                exchange = upstream.next_but_readyz() => {
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
async fn everything_can_stand_in_the_file_in_either_spelling() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
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
    let weir = Process::start(files, &["--config=weir.yaml".to_owned()]).await;
    assert_eq!(limits(&weir, &mut upstream).await, (3, 2));
}

#[tokio::test]
async fn a_flag_wins_over_the_file() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    files.write(
        "weir.yaml",
        "maxRequestsInflight: 3\nmaxMutatingRequestsInflight: 2\nenablePriorityAndFairness: false\nrejectionHold: 0s\n",
    );
    let mut flags = needed(upstream.address);
    flags.push("--max-requests-inflight=5".to_owned());
    flags.push("--config=weir.yaml".to_owned());
    let weir = Process::start(files, &flags).await;
    assert_eq!(limits(&weir, &mut upstream).await, (5, 2));
}

#[tokio::test]
async fn faults_of_the_file_are_told_all_at_once_each_with_its_line_and_field() {
    let files = Files::new();
    files.write(
        "weir.yaml",
        "maxRequestInflight: 7\nrequestTimeout: 60\nsecurePort: 1\nsecure-port: 2\nworkers: [1, 2]\n\
         requestTimeout: 1s\nnothingOfTheKind: x\n",
    );
    let finished = refused_besides(&files, &["--config=weir.yaml"]).await;
    assert_told(
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
async fn a_file_that_is_no_settings_is_told_so() {
    let files = Files::new();
    for (text, place) in [
        ("- maxRequestsInflight: 7\n", "weir.yaml:1:"),
        ("maxRequestsInflight: 7\n---\nworkers: 1\n", "weir.yaml:"),
        ("maxRequestsInflight: [7\n", "weir.yaml:"),
        ("a: &a [*a]\n", "weir.yaml:"),
    ] {
        files.write("weir.yaml", text);
        let finished = refused_besides(&files, &["--config=weir.yaml"]).await;
        assert_told(&finished, &[&[place]]);
    }
    let finished = refused_besides(&files, &["--config=absent.yaml"]).await;
    assert_told(&finished, &[&["--config", "absent.yaml"]]);
}

#[tokio::test]
async fn what_is_needed_and_missing_is_told_all_at_once() {
    let finished = refused(&Files::new(), &[]).await;
    assert_told(
        &finished,
        &[
            &["--upstream"],
            &["--tls-cert-file"],
            &["--tls-private-key-file"],
        ],
    );
}

#[tokio::test]
async fn files_that_are_missing_are_told_all_at_once_by_flag_and_name() {
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
    let finished = refused_besides(&Files::new(), &named).await;
    for flag in flags {
        assert_told(
            &finished,
            &[&[&format!("--{flag}"), &format!("absent-{flag}")]],
        );
    }
}

#[tokio::test]
async fn files_that_hold_something_else_are_told_by_flag_and_never_quoted() {
    let files = Files::new();
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
        let finished = refused_besides(&files, &flags).await;
        assert_told(&finished, &[&[&format!("--{flag}"), "odd"]]);
        assert!(!finished.stderr.contains("secret"), "{}", finished.stderr);
    }
}

#[tokio::test]
async fn a_key_that_is_not_its_certificate_s_is_told_by_both_flags_and_both_files() {
    let files = Files::new();
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
        assert_told(&refused_besides(&files, &flags).await, &[&parts]);
    }
}

#[tokio::test]
async fn half_of_a_pair_is_told() {
    let files = Files::new();
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
        let finished = refused_besides(&files, &[given]).await;
        assert_told(&finished, &[&[missing]]);
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_be_one_is_told() {
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
        let finished = refused_besides(&Files::new(), &[&flag]).await;
        assert_told(&finished, &[&["--upstream"]]);
        assert!(!finished.stderr.contains("password"), "{}", finished.stderr);
    }
}

#[tokio::test]
async fn without_an_upstream_ca_the_system_s_are_trusted() {
    let mut upstream = Upstream::start().await;
    let mut flags = needed(upstream.address);
    flags.retain(|flag| !flag.starts_with("--upstream-ca-file"));
    let system = [("SSL_CERT_FILE", "upstream-ca.crt")];
    let weir = Process::start_with(Files::new(), &flags, &system).await;
    let call = weir.alice(Http::Two).send(Ask::get(LIST)).await;
    upstream.next().await.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}

#[tokio::test]
async fn values_that_cannot_be_are_told() {
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
        ("--log-level=weir=loud=er", "--log-level"),
        ("--no-such-flag=1", "--no-such-flag"),
    ] {
        let finished = refused_besides(&Files::new(), &[flag]).await;
        assert_told(&finished, &[&[part]]);
    }
}

#[tokio::test]
async fn faults_of_a_token_file_are_told_with_their_lines() {
    let files = Files::new();
    files.write("tokens.csv", "good,alice,1\nonly-a-token\nbad,bob\n");
    let finished = refused_besides(&files, &["--token-auth-file=tokens.csv"]).await;
    assert_told(
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
async fn priority_and_fairness_is_there_unless_it_is_turned_off() {
    let upstream = Upstream::start().await;
    for (flags, there) in [
        (&[][..], true),
        (&["--enable-priority-and-fairness"][..], true),
        (&["--enable-priority-and-fairness=true"][..], true),
        (&["--enable-priority-and-fairness=false"][..], false),
    ] {
        let weir = Process::serve(upstream.address, flags).await;
        let metrics = weir.operator("/metrics").await;
        let levels = metrics
            .text()
            .contains("apiserver_flowcontrol_nominal_limit_seats{");
        assert_eq!(levels, there, "{flags:?}");
    }
}

#[tokio::test]
async fn faults_of_an_audit_policy_are_told_with_their_places_and_what_is_only_odd_is_warned_of() {
    let files = Files::new();
    files.write(
        "policy.yaml",
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Everything\n- level: Request\n  verb: [get]\n\
         - nonResourceURLs: [metrics]\n",
    );
    let flags = ["--audit-log-path=-", "--audit-policy-file=policy.yaml"];
    let finished = refused_besides(&files, &flags).await;
    assert_told(
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
    let alone = refused_besides(&files, &["--audit-policy-file=policy.yaml"]).await;
    assert_told(&alone, &[&["--audit-policy-file: ", "--audit-log-path"]]);
}

#[tokio::test]
async fn an_audit_log_that_cannot_be_written_is_told_before_anything_is_served() {
    let mut flags = needed(([127, 0, 0, 1], 1).into());
    flags.push("--audit-log-path=tls.crt/audit.log".to_owned());
    let all: Vec<&str> = ["serve"]
        .into_iter()
        .chain(flags.iter().map(String::as_str))
        .collect();
    let finished = process::run(&Files::new(), &all).await;
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert_told(&finished, &[&["--audit-log-path tls.crt/audit.log: "]]);
}

#[tokio::test]
async fn an_address_that_is_taken_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for flag in [
        format!("--secure-port={}", address.port()),
        format!("--admin-address={address}"),
        format!("--health-address={address}"),
    ] {
        let name = flag.split('=').next().unwrap().to_owned();
        let mut flags = needed(([127, 0, 0, 1], 1).into());
        flags.retain(|other| !other.starts_with(&format!("{name}=")));
        flags.push(flag);
        let all: Vec<&str> = ["serve"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let finished = process::run(&Files::new(), &all).await;
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert_told(&finished, &[&[&address.to_string()]]);
    }
}

#[tokio::test]
async fn help_and_version_are_no_faults() {
    let files = Files::new();
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
async fn a_request_timeout_of_zero_is_refused_as_a_flag_and_in_the_file() {
    let files = Files::new();
    let flag = refused_besides(&files, &["--request-timeout=0s"]).await;
    assert_told(&flag, &[&["--request-timeout", "must be more than 0s"]]);
    files.write("weir.yaml", "workers: 1\nrequestTimeout: 0s\n");
    let file = refused_besides(&files, &["--config=weir.yaml"]).await;
    let place = "weir.yaml:2:17: requestTimeout: ";
    assert_told(&file, &[&[place, "must be more than 0s"]]);
}

#[tokio::test]
async fn a_schema_without_its_level_and_an_empty_folder_are_warned_of_with_their_places() {
    let upstream = Upstream::start().await;
    let files = Files::new();
    std::fs::create_dir(files.path().join("empty")).unwrap();
    files.write(
        "schema.yaml",
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata:\n  name: reports\nspec:\n  \
         matchingPrecedence: 500\n  priorityLevelConfiguration:\n    name: reportz\n",
    );
    let mut flags = needed(upstream.address);
    flags.extend(["empty", "schema.yaml"].map(|path| format!("--flowcontrol-config={path}")));
    let weir = Process::start(files, &flags).await;
    let warned = |parts: &[&str]| {
        let found = |line: &&String| parts.iter().all(|part| line.contains(part));
        weir.opening.iter().filter(found).count()
    };
    let schema = ["WARN", "\"reports\"", "\"reportz\"", "schema.yaml:8:11: "];
    assert_eq!(warned(&schema), 1, "{:#?}", weir.opening);
    assert_eq!(warned(&["reports"]), 1, "once: {:#?}", weir.opening);
    let folder = ["WARN", "--flowcontrol-config: empty: ", "no file"];
    assert_eq!(warned(&folder), 1, "{:#?}", weir.opening);
}

#[tokio::test]
async fn an_admin_address_off_the_loopback_is_warned_of_and_changes_nothing() {
    let upstream = Upstream::start().await;
    for (address, local) in [("127.0.0.1:0", true), ("0.0.0.0:0", false)] {
        let mut flags = needed(upstream.address);
        flags.retain(|flag| !flag.starts_with("--admin-address="));
        flags.push(format!("--admin-address={address}"));
        let weir = Process::start(Files::new(), &flags).await;
        let warned = |line: &String| line.contains("--admin-address is not a loopback address");
        assert_eq!(!weir.opening.iter().any(warned), local);
        let tcp = tokio::net::TcpStream::connect(weir.admin).await.unwrap();
        let mut wire = Wire::new(tcp);
        wire.send(
            "PUT /debug/log_level HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nwarn",
        )
        .await;
        assert_eq!(wire.answered().await.status, if local { 200 } else { 403 });
        let level = weir.operator("/debug/log_level").await;
        let expected = if local { "warn\n" } else { "info\n" };
        assert_eq!((level.status, level.text()), (200, expected));
    }
}

#[tokio::test]
async fn certificates_that_are_over_or_of_no_use_are_warned_of() {
    let upstream = Upstream::start().await;
    let files = Files::new();
    let over = pki().clients.expired_client("weir");
    files.write("over.crt", &over.pem);
    files.write("over.key", &over.key_pem);
    let mut flags = needed(upstream.address);
    flags.retain(|flag| !flag.starts_with("--tls-"));
    let others = [
        "--tls-cert-file=over.crt",
        "--tls-private-key-file=over.key",
        "--client-ca-file=client-ca.crt",
    ];
    flags.extend(others.map(str::to_owned));
    let weir = Process::start(files, &flags).await;
    for parts in [
        ["WARN", "--tls-cert-file", "expired"],
        ["WARN", "--client-ca-file", "--proxy-client-cert-file"],
    ] {
        let warned = |line: &&String| parts.iter().all(|part| line.contains(part));
        assert_eq!(
            weir.opening.iter().filter(warned).count(),
            1,
            "{parts:?}: {:#?}",
            weir.opening
        );
    }
    let sound = Process::serve(upstream.address, &[]).await;
    assert!(
        !sound
            .opening
            .iter()
            .any(|line| line.contains("WARN") && line.contains("certificate"))
    );
}

#[tokio::test]
async fn the_start_is_logged_with_what_tells_one_weir_from_another() {
    let upstream = Upstream::start().await;
    let weir = Process::serve(upstream.address, &["--health-address=127.0.0.1:0"]).await;
    let line = weir.opening.last().unwrap();
    for part in [
        format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
        format!("upstream={}", upstream.address),
        "seats=600".to_owned(),
        "levels=8".to_owned(),
        "health=127.0.0.1:".to_owned(),
    ] {
        assert!(line.contains(&part), "{part}: {line}");
    }
}

#[tokio::test]
async fn operators_see_what_weir_was_started_with() {
    let upstream = Upstream::start().await;
    let files = Files::new();
    files.write(
        "weir.yaml",
        "requestTimeout: 30s\nclientLimits:\n- name: all\n  rules:\n  - subjects: [{kind: Group, group: {name: '*'}}]\n    \
         nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n",
    );
    let mut flags = needed(upstream.address);
    flags.extend(["--config=weir.yaml", "--token-auth-file=tokens.csv"].map(str::to_owned));
    let weir = Process::start(files, &flags).await;
    let config = weir.operator("/configz").await;
    assert_eq!(&config.headers["content-type"], "application/json");
    assert!(!config.text().contains("alice-token"));
    let config: serde_json::Value = serde_json::from_str(config.text()).unwrap();
    let config = &config["weir"];
    assert_eq!(config["requestTimeout"], "30s");
    assert_eq!(config["workers"], 1);
    assert_eq!(config["maxRequestsInflight"], 400);
    assert_eq!(config["clientLimits"][0]["name"], "all");
    assert_eq!(config["upstream"], format!("https://{}", upstream.address));
    let flags = weir.operator("/flagz").await;
    assert_eq!(flags.status, 200);
    for line in [
        "request-timeout=30s",
        "token-auth-file=tokens.csv",
        "kubeconfig=",
    ] {
        assert!(flags.text().lines().any(|found| found == line), "{line}");
    }
    let status = weir.operator("/statusz").await;
    assert!(
        status
            .text()
            .contains(&format!("\nUpstream: {}\n", upstream.address))
    );
    let shown: serde_json::Value =
        serde_json::from_str(weir.operator("/status.json").await.text()).unwrap();
    assert_eq!(shown["upstream"]["address"], upstream.address.to_string());
    let host = shown["host"].as_str().unwrap();
    assert!(!host.is_empty() && status.text().contains(&format!("\nHost: {host}\n")));
}

#[tokio::test]
async fn what_ends_weir_is_json_where_the_log_is() {
    let files = Files::new();
    files.write("weir.yaml", "loggingFormat: json\nworkers: many\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let admin = format!("--admin-address={address}");
    let all = needed(([127, 0, 0, 1], 1).into());
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
        let told = |line: &&serde_json::Value| {
            line["timestamp"].is_string()
                && line["fields"]["message"]
                    .as_str()
                    .is_some_and(|text| text.contains(part))
        };
        assert!(errors.iter().any(|line| told(&line)), "{part}: {errors:#?}");
    }
}

#[tokio::test]
async fn faults_of_settings_that_do_not_go_together_have_their_places_in_the_file() {
    let files = Files::new();
    files.write(
        "weir.yaml",
        "workers: 1\nhealthMetrics: true\nclientCaFile: absent.crt\n",
    );
    let finished = refused_besides(&files, &["--config=weir.yaml"]).await;
    assert_told(
        &finished,
        &[
            &["weir.yaml:2:16: --health-metrics: only together with --health-address"],
            &["weir.yaml:3:15: --client-ca-file: cannot read absent.crt"],
        ],
    );
}

#[tokio::test]
async fn no_fault_hides_another_of_another_kind() {
    let files = Files::new();
    files.write("weir.yaml", "workers: many\nhealthMetrics: true\n");
    let flags = [
        "--config=weir.yaml",
        "--request-timeout=60",
        "--no-such-flag=1",
        "--client-ca-file=absent.crt",
    ];
    let finished = refused_besides(&files, &flags).await;
    assert_told(
        &finished,
        &[
            &["invalid value '60' for '--request-timeout"],
            &["unexpected argument '--no-such-flag'"],
            &["weir.yaml:1:10: workers: "],
            &["weir.yaml:2:16: --health-metrics: only together"],
            &["--client-ca-file: cannot read absent.crt"],
        ],
    );
    assert_eq!(finished.stderr.lines().count(), 5, "{}", finished.stderr);
}
