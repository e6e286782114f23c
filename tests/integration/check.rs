//! `weir check`: what a start would say, without binding an address.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::net::TcpListener;

use crate::kubeconfig::{kubeconfig_flags, kubeconfig_yaml};
use crate::support::certificates::pki;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process;
use crate::support::process::{ConfigDir, FinishedRun, WeirProcess, required_flags};

const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Runs `weir check` with all required flags, and these in their place or in addition.
async fn check(files: &ConfigDir, upstream: SocketAddr, flags: &[&str]) -> FinishedRun {
    let required = required_flags(upstream);
    let mut all: Vec<&str> = required.iter().map(String::as_str).collect();
    all.retain(|flag| {
        let name = flag.split('=').next();
        !flags.iter().any(|other| other.split('=').next() == name)
    });
    let arguments = [&["check"], &*all, flags].concat();
    process::run(files, &arguments).await
}

/// The report of `weir check -o json`.
async fn check_json(files: &ConfigDir, upstream: SocketAddr, flags: &[&str]) -> Value {
    let finished = check(files, upstream, &[flags, &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let code = if report["valid"] == true { 0 } else { 1 };
    assert_eq!(finished.code, Some(code), "{finished:?}");
    report
}

fn texts(findings: &Value) -> Vec<String> {
    let findings = findings.as_array().unwrap();
    let message = |finding: &Value| finding["message"].as_str().unwrap().to_owned();
    findings.iter().map(message).collect()
}

#[tokio::test]
async fn a_good_configuration_is_valid_and_names_its_certificate() {
    let finished = check(
        &ConfigDir::new(),
        NOWHERE,
        &["--token-reviews-per-second=0"],
    )
    .await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.stderr, "");
    for line in [
        "serving certificate: for 127.0.0.1; until 4096-01-01",
        "\nvalid: 0 errors, ",
    ] {
        assert!(finished.stdout.contains(line), "{finished:?}");
    }
}

#[tokio::test]
async fn each_bad_input_is_reported_with_its_place_field_and_hint() {
    let limits = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n";
    let flow = "apiVersion: flowcontrol.apiserver.k8s.io/v1\n";
    let cases = [
        // Flag, its file, line, column, field, and a part of the hint.
        (
            "config",
            "maxRequestInflight: 7\n",
            1,
            21,
            "maxRequestInflight",
            "did you mean max-requests-inflight",
        ),
        (
            "config",
            "workers: many\n",
            1,
            10,
            "workers",
            "invalid digit",
        ),
        (
            "config",
            "online: true\n",
            1,
            9,
            "online",
            "unknown setting",
        ),
        (
            "config",
            "clientLimits:\n- nmae: x\n",
            2,
            3,
            "clientLimits[0].nmae",
            "allowed here: name",
        ),
        (
            "config",
            "policies:\n- nmae: x\n",
            2,
            3,
            "policies[0].nmae",
            "allowed here: name",
        ),
        (
            "config",
            "workers: 1\nhealthMetrics: true\n",
            2,
            16,
            "",
            "only together with --health-address",
        ),
        (
            "event-rate-limit-config",
            &*format!("{limits}limits: [{{type: Server, qps: -5, burst: 7}}]\n"),
            3,
            30,
            "limits[0].qps",
            "must be positive",
        ),
        (
            "flowcontrol-config",
            &*format!(
                "{flow}kind: FlowSchema\nmetadata: {{name: a}}\nspec: {{matchingPrecedence: x}}\n"
            ),
            4,
            28,
            "spec.matchingPrecedence",
            "expected",
        ),
        (
            "audit-policy-file",
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n",
            3,
            17,
            "rules[0].level",
            "Metadata",
        ),
        (
            "authentication-config",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: Whatever\n",
            2,
            7,
            "kind",
            "AuthenticationConfiguration",
        ),
        (
            "tracing-config-file",
            "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: many\n",
            3,
            25,
            "samplingRatePerMillion",
            "whole number",
        ),
        (
            "token-auth-file",
            "token,alice,1\nonly-a-token\n",
            2,
            0,
            "",
            "expected at least token,user,uid",
        ),
        (
            "client-ca-file",
            "no PEM\n",
            0,
            0,
            "",
            "no certificate in it (PEM)",
        ),
        (
            "proxy-client-cert-file",
            "no PEM\n",
            0,
            0,
            "",
            "no certificate in it (PEM)",
        ),
    ];
    let mut wrong = Vec::new();
    for (flag, text, line, column, field, hint) in cases {
        let files = ConfigDir::new();
        files.write("bad", text);
        let bad = format!("--{flag}=bad");
        let mut flags = vec![&*bad];
        if flag == "proxy-client-cert-file" {
            flags.push("--proxy-client-key-file=proxy.key");
        }
        if flag == "audit-policy-file" {
            flags.push("--audit-log-path=-");
        }
        let report = check_json(&files, NOWHERE, &flags).await;
        let number = |n: u64| if n == 0 { Value::Null } else { n.into() };
        let is_expected = |finding: &Value| {
            finding["file"] == "bad"
                && finding["line"] == number(line)
                && finding["column"] == number(column)
                && finding["field"].as_str().unwrap_or_default() == field
                && finding["flag"].is_string()
                && finding["message"].as_str().unwrap().contains(hint)
        };
        let errors = report["errors"].as_array().unwrap();
        if !errors.iter().any(is_expected) {
            wrong.push(format!("{flag} {text:?}: {errors:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_kubeconfig_and_its_credentials_are_checked() {
    let kubeconfig = |user: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: 'https://127.0.0.1:1', certificate-authority: upstream-ca.crt}}\n\
             contexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{{user}}}\n"
        )
    };
    let files = ConfigDir::new();
    let over = pki().client_ca.issue_expired_client("weir");
    files.write("over.crt", &over.pem);
    files.write("over.key", &over.key_pem);
    files.write("empty", "");
    let cases = [
        ("tokenFile: absent", None, "cannot read absent"),
        ("tokenFile: empty", Some("empty"), "it is empty"),
        (
            "client-certificate: over.crt, client-key: over.key",
            Some("over.crt"),
            "expired",
        ),
        (
            "client-certificate: over.crt, client-key: tls.key",
            Some("tls.key"),
            "does not belong to the certificate",
        ),
        ("password: x", Some("kubeconfig"), "no basic authentication"),
    ];
    for (user, file, message) in cases {
        files.write("kubeconfig", &kubeconfig(user));
        let arguments = [
            "check",
            "--kubeconfig=kubeconfig",
            "--tls-cert-file=tls.crt",
            "--tls-private-key-file=tls.key",
            "-o=json",
        ];
        let finished = process::run(&files, &arguments).await;
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let is_expected = |finding: &Value| {
            finding["file"].as_str() == file
                && finding["flag"] == "kubeconfig"
                && finding["message"].as_str().unwrap().contains(message)
        };
        let errors = report["errors"].as_array().unwrap();
        assert!(errors.iter().any(is_expected), "{user}: {errors:#?}");
    }
}

#[tokio::test]
async fn errors_of_settings_and_files_are_reported_together() {
    let files = ConfigDir::new();
    files.write("weir.yaml", "workers: many\nhealthMetrics: true\n");
    let flags = [
        "--config=weir.yaml",
        "--client-ca-file=absent.crt",
        "--log-level=weir=loud",
    ];
    let all: Vec<String> = required_flags(NOWHERE)
        .into_iter()
        .filter(|flag| !flag.starts_with("--workers"))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let started = process::run(&files, &[&["serve"], &*all, &flags].concat()).await;
    assert_eq!(started.code, Some(2), "{started:?}");
    let checked = process::run(&files, &[&["check"], &*all, &flags].concat()).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for line in [
        "weir.yaml:1:10: error: workers: invalid value 'many'",
        "weir.yaml:2:16: error: --health-metrics: only together",
        "error: --client-ca-file: cannot read absent.crt",
        "error: --log-level: ",
        "not valid: 4 errors",
    ] {
        assert!(checked.stdout.contains(line), "{line}: {checked:#?}");
    }
    assert_eq!(started.stderr.lines().count(), 4, "{started:#?}");
}

#[tokio::test]
async fn the_first_invalid_argument_is_reported_alone() {
    let files = ConfigDir::new();
    let flags = ["--request-timeout=60", "--no-such-flag=1", "-o", "json"];
    let checked = process::run(&files, &[&["check"], &flags[..]].concat()).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!(report["errors"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["errors"][0]["flag"], "request-timeout");
    let started = process::run(&files, &[&["serve"], &flags[..2]].concat()).await;
    assert_eq!((started.code, started.stdout.as_str()), (Some(2), ""));
    let error = "error: invalid value '60' for '--request-timeout";
    assert!(started.stderr.starts_with(error), "{started:#?}");
    assert!(!started.stderr.contains("no-such-flag"), "{started:#?}");
}

/// Both are one code path: a warning that only a start logs, or only a check prints, fails this
/// test.
#[tokio::test]
async fn a_check_prints_what_a_start_warns_of() {
    let upstream = FakeUpstream::start().await;
    let over = pki().client_ca.issue_expired_client("weir");
    let schema = "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {name: reports}\n\
                  spec: {matchingPrecedence: 500, priorityLevelConfiguration: {name: absent}}\n";
    let write = |files: &ConfigDir| {
        files.write("over.crt", &over.pem);
        files.write("over.key", &over.key_pem);
        files.write("reports.yaml", schema);
        std::fs::create_dir(files.path().join("empty")).unwrap();
    };
    let flags = [
        "--tls-cert-file=over.crt",
        "--tls-private-key-file=over.key",
        "--client-ca-file=client-ca.crt",
        "--flowcontrol-config=reports.yaml",
        "--flowcontrol-config=empty",
    ];
    let files = ConfigDir::new();
    write(&files);
    let report = check_json(&files, upstream.address, &flags).await;
    let mut said = texts(&report["errors"]);
    said.extend(texts(&report["warnings"]));
    for part in [
        "expired",
        "no subject alternative name",
        "cannot assert",
        "\"absent\"",
        "no .yaml",
        "unverified",
    ] {
        assert!(
            said.iter().any(|text| text.contains(part)),
            "{part}: {said:#?}"
        );
    }

    write_flags_and_start(upstream.address, &flags, write, &said).await;
}

async fn write_flags_and_start(
    upstream: SocketAddr,
    flags: &[&str],
    write: impl Fn(&ConfigDir),
    said: &[String],
) {
    let files = ConfigDir::new();
    write(&files);
    let mut all = required_flags(upstream);
    all.retain(|flag| !flag.starts_with("--tls-"));
    all.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let weir = WeirProcess::start(files, &all).await;
    let logged: Vec<_> = weir
        .startup_lines
        .iter()
        .filter(|line| line.contains("WARN"))
        .collect();
    for text in said {
        assert!(
            logged.iter().any(|line| line.contains(text)),
            "not logged: {text}: {logged:#?}"
        );
    }
    assert_eq!(logged.len(), said.len(), "{logged:#?} {said:#?}");
}

#[tokio::test]
async fn nothing_is_bound() {
    let [clients, admin] = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let secure_port = format!("--secure-port={}", clients.local_addr().unwrap().port());
    let admin_address = format!("--admin-address={}", admin.local_addr().unwrap());
    let flags = [&*secure_port, &*admin_address, "--audit-log-path=audit.log"];
    let files = ConfigDir::new();
    let finished = check(&files, NOWHERE, &flags).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(!files.path().join("audit.log").exists());
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_an_error() {
    let files = ConfigDir::new();
    for path in [".", "tls.crt/audit.log"] {
        let flag = format!("--audit-log-path={path}");
        let report = check_json(&files, NOWHERE, &[&flag]).await;
        assert_eq!(report["errors"][0]["flag"], "audit-log-path", "{report:#}");
    }
}

#[tokio::test]
async fn a_wrong_value_of_its_own_flags_is_a_usage_error() {
    let finished = check(&ConfigDir::new(), NOWHERE, &["-o=yaml"]).await;
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert_eq!(finished.stdout, "");
    assert!(finished.stderr.contains("'--output"), "{finished:?}");
}

#[tokio::test]
async fn an_api_server_that_never_answers_costs_ten_seconds_at_most() {
    // Connections are accepted by the kernel, and nothing reads them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let report = check_json(
        &ConfigDir::new(),
        silent.local_addr().unwrap(),
        &["--online"],
    )
    .await;
    assert_eq!(report["errors"][0]["flag"], "upstream", "{report:#}");
}

/// Answers weir's own requests; the reviews of these groups' resources say no.
fn spawn_reviewer(mut upstream: FakeUpstream, denied: &'static [&'static str]) {
    tokio::spawn(async move {
        loop {
            let mut exchange = upstream.next_exchange_without_timeout().await;
            if !exchange
                .request
                .target
                .ends_with("/selfsubjectaccessreviews")
            {
                exchange.respond(200, "{}").await;
                continue;
            }
            let review: Value = serde_json::from_slice(&exchange.read_body().await).unwrap();
            let attributes = &review["spec"]["resourceAttributes"];
            let group = attributes["group"].as_str().unwrap_or_default();
            let expected = match (group, attributes["resource"].as_str()) {
                ("discovery.k8s.io", _) | ("", Some("namespaces")) => "default",
                ("coordination.k8s.io", _) => "kube-system",
                _ => "",
            };
            assert_eq!(
                attributes["namespace"].as_str().unwrap_or_default(),
                expected
            );
            let answer = serde_json::json!({"status": {"allowed": !denied.contains(&group)}});
            exchange.respond(201, answer.to_string()).await;
        }
    });
}

#[tokio::test]
async fn rights_that_the_cluster_s_flow_schemas_and_endpoint_slices_need_are_asked_for() {
    const DENIED: &[&str] = &["flowcontrol.apiserver.k8s.io", "discovery.k8s.io"];
    for (denied, reads, rules) in [
        (
            DENIED,
            true,
            &[
                "{apiGroups: [flowcontrol.apiserver.k8s.io], resources: [flowschemas, prioritylevelconfigurations], verbs: [list, watch]}",
                "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}",
            ][..],
        ),
        (&[], true, &[]),
        (DENIED, false, &[]),
    ] {
        let upstream = FakeUpstream::start().await.expose_self_checks();
        let files = ConfigDir::new();
        let kubeconfig = kubeconfig_yaml(upstream.address, "", "token: t");
        files.write("kubeconfig", &kubeconfig);
        spawn_reviewer(upstream, denied);
        let mut flags = kubeconfig_flags(&[]);
        if reads {
            flags.retain(|flag| flag != "--flowcontrol-source=files");
            flags.push("--upstream-endpoint-slices".to_owned());
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let arguments = [&["check"], &*flags, &["--online", "-o=json"]].concat();
        let finished = process::run(&files, &arguments).await;
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let said = texts(&report["warnings"]);
        let rights: Vec<_> = said
            .iter()
            .filter(|text| text.contains("It is the rule"))
            .collect();
        assert_eq!(rights.len(), rules.len(), "{said:#?}");
        for (text, rule) in rights.iter().zip(rules) {
            assert!(text.ends_with(rule), "{text}");
        }
    }
}
