//! `weir check FILE|DIR...`: what is wrong in files, and what is surely unwanted.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::certificates::pki;
use crate::support::process;
use crate::support::process::{ConfigDir, FinishedRun};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with a copy of `tests/check`.
fn cases() -> ConfigDir {
    let files = ConfigDir::new();
    for folder in ["warnings", "silent", "errors"] {
        let (from, to) = (
            Path::new(ROOT).join("tests/check").join(folder),
            files.path().join(folder),
        );
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    files
}

async fn check(files: &ConfigDir, arguments: &[&str]) -> FinishedRun {
    process::run(files, &[&["check"], arguments].concat()).await
}

async fn report(files: &ConfigDir, arguments: &[&str]) -> Value {
    let finished = check(files, &[arguments, &["-o=json"]].concat()).await;
    serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}"))
}

/// The rules of errors and warnings, sorted.
fn rules(report: &Value) -> Vec<&str> {
    let findings = ["errors", "warnings"].map(|kind| report[kind].as_array().unwrap());
    let mut rules: Vec<_> = findings
        .into_iter()
        .flatten()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    rules.sort_unstable();
    rules
}

/// Compares with a file of `tests/check/expected`. `WEIR_WRITE_DOCS=1` writes it.
fn compare(name: &str, found: &str) {
    let path: PathBuf = [ROOT, "tests/check/expected", name].iter().collect();
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(found, expected, "{name}; WEIR_WRITE_DOCS=1 writes it");
}

#[tokio::test]
async fn every_finding_of_the_cases_is_as_expected_in_every_format() {
    let files = cases();
    for (folder, code) in [("warnings", 0), ("errors", 1), ("silent", 0)] {
        for (format, extension) in [("text", "txt"), ("json", "json")] {
            let finished = check(&files, &["-o", format, folder]).await;
            assert_eq!(finished.code, Some(code), "{finished:?}");
            assert_eq!(finished.stderr, "");
            compare(&format!("{folder}.{extension}"), &finished.stdout);
        }
    }
}

#[tokio::test]
async fn a_near_miss_of_each_warning_is_silent() {
    let files = cases();
    let report = report(&files, &["--strict", "silent"]).await;
    assert_eq!(rules(&report), [""; 0], "{report:#}");
    assert_eq!(report["valid"], true);
    // The template is counted, and is none of weir's business.
    let count = |kind: &str| report["files"][kind].as_array().unwrap().len();
    assert_eq!(
        (count("skipped"), count("unparsable")),
        (1, 1),
        "{report:#}"
    );
}

/// Cut files of a folder, each with what it is found to be.
const CUT: [(&str, &str, &str); 8] = [
    (
        "weir.yaml",
        "bindAddress: 192.0.2.1\ntlsCertFile: [tls.crt\n",
        "syntax",
    ),
    (
        "weir.json",
        "{\"bindAddress\": \"::\", \"securePort\": 6443",
        "syntax",
    ),
    (
        "kubeconfig",
        "kind: Config\ncurrent-context: [a\n",
        "syntax",
    ),
    (
        "admission.json",
        "{\"kind\" : \"AdmissionConfiguration\", \"plugins\": [",
        "syntax",
    ),
    ("other.YAML", "a: [1\n", "unparsable-file"),
    ("utf-16.yml", "a: [1\n", "unparsable-file"),
    ("nginx.conf", "http { server { listen 80; } }\n: [", ""),
    (
        "chart.yaml",
        "maxRequestsInflight: {{ .Values.total }}\n",
        "",
    ),
];

#[tokio::test]
async fn files_of_a_folder_that_cannot_be_parsed_are_reported() {
    for (name, text, rule) in CUT {
        let files = ConfigDir::new();
        fs::create_dir(files.path().join("cut")).unwrap();
        files.write(&format!("cut/{name}"), text);
        let found = report(&files, &["cut"]).await;
        let expected: &[&str] = if rule.is_empty() { &[] } else { &[rule] };
        assert_eq!(rules(&found), expected, "{name}: {found:#}");
        assert_eq!(found["valid"], rule != "syntax", "{name}");
    }
    let files = ConfigDir::new();
    fs::create_dir(files.path().join("cut")).unwrap();
    for (name, text, _) in CUT {
        files.write(&format!("cut/{name}"), text);
    }
    fs::write(files.path().join("cut/utf-16.yml"), b"\xff\xfea\0").unwrap();
    let found = report(&files, &["cut"]).await;
    let names = |kind: &str| found["files"][kind].as_array().unwrap().len();
    assert_eq!(
        ["checked", "skipped", "unparsable"].map(names),
        [4, 1, 3],
        "{found:#}"
    );
    let said = check(&files, &["cut"]).await.stdout;
    let summary = "files: 4 checked, 1 skipped (nothing that weir knows), 3 that cannot be parsed";
    assert!(said.contains(summary), "{said}");
    assert!(
        said.contains("cut/other.YAML:") && said.contains("not checked, since it cannot be parsed"),
        "{said}"
    );
}

#[tokio::test]
async fn every_file_of_a_folder_is_counted() {
    let files = ConfigDir::new();
    fs::create_dir_all(files.path().join("many/below")).unwrap();
    for name in [
        "weir.yaml.bak",
        "below/old.kubeconf",
        "notes.txt",
        ".hidden.yaml",
    ] {
        files.write(&format!("many/{name}"), "requestTimeout: 30\n");
    }
    let large = "#".repeat((8 << 20) + 1);
    files.write("many/large.yaml", &large);
    files.write("many/weir.YML", "requestTimeout: 30\n");
    let found = report(&files, &["many"]).await;
    assert_eq!(rules(&found), ["configuration"], "{found:#}");
    let skipped = found["files"]["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 4, "{found:#}");
}

#[tokio::test]
async fn a_configuration_with_more_misspelled_than_known_settings_is_one() {
    let files = ConfigDir::new();
    fs::create_dir(files.path().join("folder")).unwrap();
    let text = "maxRequestsInflight: 4\nupstreem: a\ntlsCertFil: b\nworkerz: 3\n";
    files.write("folder/weir.yaml", text);
    files.write(
        "folder/values.yaml",
        "logLevel: info\nimage: x\nreplicas: 3\n",
    );
    let found = report(&files, &["folder"]).await;
    let errors = found["errors"].as_array().unwrap();
    assert!(errors.len() >= 3, "{found:#}");
    assert!(
        errors
            .iter()
            .all(|error| error["file"] == "folder/weir.yaml"),
        "{found:#}"
    );
}

/// A key without its certificate, and PEM that is something else.
#[tokio::test]
async fn every_section_of_pem_is_read_or_unknown() {
    let files = ConfigDir::new();
    let pem = |label: &str, base64: &str| {
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
    };
    files.write("damaged.key", &pem("PRIVATE KEY", "bm90IGEga2V5"));
    files.write(
        "encrypted.key",
        &pem("ENCRYPTED PRIVATE KEY", "bm90IGEga2V5"),
    );
    files.write("damaged.pub", &pem("PUBLIC KEY", "bm90IGEga2V5"));
    files.write("request.pem", &pem("CERTIFICATE REQUEST", "bm90IGEga2V5"));
    files.write("foo.pem", &pem("FOO", "bm90IGEga2V5"));
    files.write("ssh.pem", &pem("OPENSSH PRIVATE KEY", "bm90IGEga2V5"));
    for (file, expected) in [
        ("tls.key", &[][..]),
        ("damaged.key", &["certificate"]),
        ("encrypted.key", &["certificate"]),
        ("damaged.pub", &["certificate"]),
        ("request.pem", &["unknown-file"]),
        ("foo.pem", &["unknown-file"]),
        ("ssh.pem", &["unknown-file"]),
    ] {
        let found = report(&files, &[file]).await;
        assert_eq!(rules(&found), expected, "{file}: {found:#}");
    }
    let found = report(&files, &["request.pem"]).await;
    let message = found["errors"][0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("PEM with \"CERTIFICATE REQUEST\""),
        "{message}"
    );
    // In a folder they may belong to something else, but a key is one.
    let found = report(&files, &["."]).await;
    assert_eq!(rules(&found), ["certificate", "certificate"], "{found:#}");
}

/// In a Pod, and with `KUBECONFIG`, a configuration names no API server.
#[tokio::test]
async fn where_weir_reads_the_cluster_s_objects_they_are_not_known_here() {
    let files = ConfigDir::new();
    let base = Path::new(ROOT).join("deploy/kustomize/base/config.yaml");
    let base = fs::read_to_string(base).unwrap();
    files.write("objects.yaml", CLUSTER_LEVEL);
    files.write("kubeconfig", KUBECONFIG);
    let anonymous = "upstream: https://127.0.0.1:1\nupstreamCaFile: upstream-ca.crt\n";
    for (config, is_known) in [
        (base.clone(), false),
        (format!("{base}flowcontrolConfig: objects.yaml\n"), false),
        (format!("{base}kubeconfig: kubeconfig\n"), false),
        (format!("{base}flowcontrolSource: files\n"), true),
        (format!("{base}{anonymous}"), true),
    ] {
        files.write("config.yaml", &config);
        let found = report(&files, &["config.yaml", "objects.yaml"]).await;
        let rules = rules(&found);
        for rule in ["flowschema-dangling", "level-unreferenced"] {
            assert_eq!(
                rules.contains(&rule),
                is_known,
                "{rule} {config}: {found:#}"
            );
        }
    }
    // The environment has the credentials.
    files.write(
        "config.yaml",
        "tlsCertFile: tls.crt\ntlsPrivateKeyFile: tls.key\n",
    );
    let arguments = ["check", "-o=json", "--config=config.yaml", "objects.yaml"];
    let finished = process::run_with(&files, &arguments, &[("KUBECONFIG", "kubeconfig")]).await;
    let found: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(rules(&found), [""; 0], "{found:#}");
}

/// A schema for a level of the cluster, and a level for a schema of the cluster.
const CLUSTER_LEVEL: &str = "\
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: reports}
spec:
  matchingPrecedence: 500
  priorityLevelConfiguration: {name: reports-of-the-cluster}
  rules:
  - subjects: [{kind: User, user: {name: reporter}}]
    nonResourceRules: [{verbs: [get], nonResourceURLs: [/version]}]
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: batch}
spec: {type: Limited, limited: {nominalConcurrencyShares: 5, limitResponse: {type: Reject}}}
";

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: c
clusters:
- {name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: upstream-ca.crt}}
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: secret}}]
";

#[tokio::test]
async fn warnings_fail_a_strict_check_unless_they_are_silenced() {
    let files = cases();
    let events = "warnings/events.yaml";
    for (arguments, code) in [
        (&[events][..], 0),
        (&["--strict", events], 1),
        (&["--warnings-as-errors", events], 1),
        (&["--strict", "--ignore=event-reserve", events], 1),
        (
            &[
                "--strict",
                "--ignore=event-reserve,event-limit-unreachable",
                events,
            ],
            0,
        ),
        (&["--ignore=syntax", events], 2),
        (&["--ignore=nothing", events], 2),
    ] {
        let finished = check(&files, arguments).await;
        assert_eq!(finished.code, Some(code), "{arguments:?} {finished:?}");
    }
    let path = files.path().join(events);
    let text = fs::read_to_string(&path).unwrap();
    let text = text
        .replace(
            "qps: 100, burst: 100}",
            "qps: 100, burst: 100} # weir-check: ignore event-limit-unreachable",
        )
        .replace(
            "- {type: Namespace",
            "# weir-check: ignore event-reserve\n- {type: Namespace",
        );
    fs::write(&path, text).unwrap();
    let finished = check(&files, &["--strict", events]).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

#[tokio::test]
async fn a_named_file_must_be_something_that_weir_knows() {
    let files = cases();
    let unknown = report(&files, &["silent/deployment.yaml"]).await;
    assert_eq!(rules(&unknown), ["unknown-file"], "{unknown:#}");
    let malformed = report(&files, &["silent/template.yaml"]).await;
    assert_eq!(rules(&malformed), ["syntax"], "{malformed:#}");
    let absent = report(&files, &["absent.yaml", "silent"]).await;
    assert_eq!(rules(&absent), ["unreadable"], "{absent:#}");
}

#[tokio::test]
async fn pairs_of_certificates_and_keys_are_checked() {
    let files = ConfigDir::new();
    let good = report(
        &files,
        &[
            "tls.crt",
            "tls.key",
            "proxy.crt",
            "proxy.key",
            "client-ca.crt",
        ],
    )
    .await;
    assert_eq!(rules(&good), [""; 0], "{good:#}");
    files.write("tls.key", &pki().front_proxy_client.key_pem);
    for arguments in [&["."][..], &["tls.crt", "tls.key"]] {
        let mismatch = report(&files, arguments).await;
        assert_eq!(rules(&mismatch), ["key-mismatch"], "{mismatch:#}");
        assert!(
            mismatch["errors"][0]["file"]
                .as_str()
                .unwrap()
                .ends_with("tls.key"),
            "{mismatch:#}"
        );
    }
    let other_names = report(&files, &["tls.crt", "proxy.key"]).await;
    assert_eq!(rules(&other_names), ["key-mismatch"], "{other_names:#}");
}

#[tokio::test]
async fn users_that_no_authenticator_yields_are_found_where_that_is_certain() {
    let files = ConfigDir::new();
    files.write("tokens.csv", "secret,alice,1,devs\n");
    files.write(
        "schemas.yaml",
        "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {name: a}\nspec:\n  \
         matchingPrecedence: 50\n  priorityLevelConfiguration: {name: system}\n  rules:\n  - subjects:\n    \
         - {kind: User, user: {name: alice}}\n    - {kind: Group, group: {name: devs}}\n    \
         - {kind: User, user: {name: bob}}\n    - {kind: Group, group: {name: ops}}\n    \
         nonResourceRules: [{verbs: [get], nonResourceURLs: [/a]}]\n",
    );
    let config = "upstream: [https://127.0.0.1:1]\nupstreamCaFile: upstream-ca.crt\ntlsCertFile: tls.crt\n\
                  tlsPrivateKeyFile: tls.key\nflowcontrolConfig: [schemas.yaml]\ntokenAuthFile: tokens.csv\n";
    files.write("weir.yaml", config);
    for arguments in [&["weir.yaml"][..], &["--config=weir.yaml"]] {
        let found = report(&files, arguments).await;
        let unknown: Vec<_> = found["warnings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|warning| warning["rule"] == "subject-unknown")
            .map(|warning| warning["field"].as_str().unwrap())
            .collect();
        assert_eq!(
            unknown,
            ["spec.rules[0].subjects[2]", "spec.rules[0].subjects[3]"],
            "{found:#}"
        );
    }
    // A certificate may name any user.
    files.write(
        "weir.yaml",
        &format!("{config}clientCaFile: client-ca.crt\n"),
    );
    let found = report(&files, &["weir.yaml"]).await;
    assert!(!rules(&found).contains(&"subject-unknown"), "{found:#}");
}

#[tokio::test]
async fn flags_and_files_are_one_check() {
    let files = cases();
    let found = report(
        &files,
        &[
            "--flowcontrol-config=warnings/levels.json",
            "silent/flow-schemas.yaml",
        ],
    )
    .await;
    let rules = rules(&found);
    assert!(
        rules.contains(&"hand-size") && rules.contains(&"configuration"),
        "{found:#}"
    );
    let needed = found["errors"].as_array().unwrap();
    assert!(
        needed.iter().any(|error| error["flag"] == "upstream"),
        "{found:#}"
    );
}

#[tokio::test]
async fn mangled_files_never_end_the_check() {
    let files = cases();
    let seed = 20_261_123;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut originals = Vec::new();
    for folder in ["warnings", "silent", "errors"] {
        for entry in fs::read_dir(files.path().join(folder)).unwrap() {
            originals.push(fs::read(entry.unwrap().path()).unwrap());
        }
    }
    fs::create_dir(files.path().join("mangled")).unwrap();
    for n in 0..400 {
        let mut bytes = originals[random.usize(..originals.len())].clone();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len().max(1)).min(bytes.len());
            match random.u8(..4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.u8(..)),
                2 => drop(bytes.drain(at..(at + random.usize(..20)).min(bytes.len()))),
                _ => {
                    let other = &originals[random.usize(..originals.len())];
                    let from = random.usize(..other.len());
                    bytes.splice(at..at, other[from..].iter().copied().take(40));
                }
            }
        }
        fs::write(files.path().join(format!("mangled/{n}.yaml")), bytes).unwrap();
    }
    let finished = check(&files, &["-o=json", "mangled"]).await;
    assert!(matches!(finished.code, Some(0 | 1)), "{finished:?}");
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert!(rules(&report).len() > 100);
}
