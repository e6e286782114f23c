use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::*;
use crate::upstream::credentials::BearerToken;
use crate::upstream::credentials::exec_credential::ExecApiVersion;
use crate::upstream::credentials::exec_plugin::ExecPlugin;

const FILE: &str = "/etc/weir/kubeconfig";

fn file(path: &str, text: &str) -> KubeconfigFile {
    KubeconfigFile {
        path: path.into(),
        text: text.to_owned(),
    }
}

fn read(text: &str, context: Option<&str>) -> (Option<Kubeconfig>, String) {
    let mut faults = Diagnostics::default();
    let config = parse(&[file(FILE, text)], context, &mut faults);
    assert_eq!(config.is_none(), faults.has_errors(), "{faults}");
    (config, faults.to_string())
}

fn parse_usable(text: &str) -> Kubeconfig {
    let (config, faults) = read(text, None);
    config.unwrap_or_else(|| panic!("{faults}"))
}

/// The diagnostics, without the file's name.
fn faults(text: &str) -> Vec<String> {
    let (config, faults) = read(text, None);
    assert_eq!(config, None);
    faults
        .lines()
        .map(|line| line.trim_start_matches("/etc/weir/kubeconfig:").to_owned())
        .collect()
}

/// A kubeconfig with one context, of a cluster (beside the server) and a user.
fn single_context(cluster: &str, user: &str) -> String {
    let indented = |text: &str| {
        text.lines()
            .map(|line| format!("    {line}\n"))
            .collect::<String>()
    };
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\ncontexts:\n- name: here\n  context:\n    \
         cluster: k\n    user: u\nclusters:\n- name: k\n  cluster:\n{}users:\n- name: u\n  user:\n{}",
        indented(&format!("server: https://10.0.0.1:6443\n{cluster}")),
        if user.is_empty() {
            "    {}\n".to_owned()
        } else {
            indented(user)
        },
    )
}

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn pem_data(line: u32, column: u32, field: &str, text: &str) -> Pem {
    Pem::Data {
        location: SourceLocation {
            file: FILE.into(),
            line,
            column,
        },
        field: field.to_owned(),
        bytes: text.into(),
    }
}

fn exec_plugin(config: Kubeconfig) -> ExecPlugin {
    match config.source {
        CredentialSource::Plugin(plugin) => plugin,
        CredentialSource::Configured { .. } => panic!("no plugin: {config:?}"),
    }
}

#[test]
fn an_admin_conf_of_kubeadm_gives_a_certificate() {
    let text = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://cp:6443\n  \
         name: kubernetes\ncontexts:\n- context:\n    cluster: kubernetes\n    user: kubernetes-admin\n  \
         name: admin\ncurrent-context: admin\nkind: Config\npreferences: {{}}\nusers:\n- name: kubernetes-admin\n  \
         user:\n    client-certificate-data: {}\n    client-key-data: |\n      {}\n      {}\n",
        encoded("ca"),
        encoded("cert"),
        &encoded("a key in lines")[..8],
        &encoded("a key in lines")[8..],
    );
    let config = parse_usable(&text);
    assert_eq!(config.context, "admin");
    assert_eq!(config.address.authority, "cp:6443");
    assert_eq!(
        config.address.server_name,
        address::parse_server_name("cp").unwrap()
    );
    assert_eq!(config.address.proxy, None);
    assert_eq!(
        config.ca,
        Some(pem_data(
            4,
            33,
            "clusters[0].cluster.certificate-authority-data",
            "ca"
        ))
    );
    let CredentialSource::Configured {
        certificate: Some(pair),
        token: None,
    } = config.source
    else {
        panic!("{:?}", config.source)
    };
    assert_eq!(
        pair.certificate,
        pem_data(18, 30, "users[0].user.client-certificate-data", "cert")
    );
    let Pem::Data { bytes, .. } = pair.key else {
        panic!("{:?}", pair.key)
    };
    assert_eq!(bytes, b"a key in lines");
}

#[test]
fn json_is_read_as_well() {
    let text = json!({
        "current-context": "here",
        "contexts": [{ "name": "here", "context": { "cluster": "k", "user": "u" } }],
        "clusters": [{ "name": "k", "cluster": { "server": "https://10.0.0.1" } }],
        "users": [{ "name": "u", "user": { "token": "t" } }],
    });
    let config = parse_usable(&serde_json::to_string_pretty(&text).unwrap());
    let token = Some(BearerToken::Inline("Bearer t".parse().unwrap()));
    assert_eq!(
        config.source,
        CredentialSource::Configured {
            certificate: None,
            token
        }
    );
}

#[test]
fn paths_are_relative_to_the_file() {
    let config = parse_usable(&single_context(
        "certificate-authority: pki/ca.crt\ntls-server-name: kubernetes.default\nproxy-url: http://proxy:3128",
        "client-certificate: ../weir.crt\nclient-key: /pki/weir.key\ntokenFile: token",
    ));
    assert_eq!(config.ca, Some(Pem::File("/etc/weir/pki/ca.crt".into())));
    assert_eq!(
        config.address.server_name,
        address::parse_server_name("kubernetes.default").unwrap()
    );
    assert_eq!(config.address.proxy.unwrap().authority, "proxy:3128");
    let CredentialSource::Configured {
        certificate: Some(pair),
        token,
    } = config.source
    else {
        panic!()
    };
    assert_eq!(pair.certificate, Pem::File("/etc/weir/../weir.crt".into()));
    assert_eq!(pair.key, Pem::File("/pki/weir.key".into()));
    let path = "/etc/weir/token".into();
    assert_eq!(
        token,
        Some(BearerToken::File {
            path,
            fallback: None
        })
    );
}

#[test]
fn a_token_beside_a_token_file_is_used_until_the_file_is_read() {
    let config = parse_usable(&single_context("", "token: first\ntokenFile: token"));
    let CredentialSource::Configured {
        token: Some(BearerToken::File { fallback, .. }),
        ..
    } = config.source
    else {
        panic!()
    };
    assert_eq!(fallback.unwrap(), "Bearer first");
}

#[test]
fn a_plugin_is_read_with_all_its_fields() {
    let config = parse_usable(&single_context(
        "certificate-authority: ca.crt\ntls-server-name: k8s\nproxy-url: http://u:p@proxy\n\
         disable-compression: true\nextensions:\n- name: client.authentication.k8s.io/exec\n  extension:\n    \
         audience: x\n    depth: 3\n    big: 18446744073709551615\n    half: 0.5\n    list: [true, null]",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: ./bin/login\n  args: [get-token, '-i']\n  \
         env:\n  - name: PROFILE\n    value: prod\n  - {name: EMPTY}\n  installHint: |\n    ask the platform team\n  \
         interactiveMode: IfAvailable\n  provideClusterInfo: true",
    ));
    let plugin = exec_plugin(config);
    assert_eq!(plugin.api_version, ExecApiVersion::V1);
    assert_eq!(plugin.command, Path::new("/etc/weir/./bin/login"));
    assert_eq!(plugin.args, ["get-token", "-i"]);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(plugin.env, [pair("PROFILE", "prod"), pair("EMPTY", "")]);
    assert_eq!(
        plugin.install_hint.as_deref(),
        Some("ask the platform team\n")
    );
    let cluster = plugin.cluster.unwrap();
    assert_eq!(cluster.server, "https://10.0.0.1:6443");
    assert_eq!(cluster.tls_server_name.as_deref(), Some("k8s"));
    assert_eq!(cluster.ca, Some(Pem::File("/etc/weir/ca.crt".into())));
    assert_eq!(cluster.proxy_url.as_deref(), Some("http://u:p@proxy"));
    assert!(cluster.disable_compression);
    assert_eq!(
        cluster.config,
        json!({ "audience": "x", "depth": 3, "big": u64::MAX, "half": 0.5, "list": [true, null] })
    );
}

#[test]
fn what_the_cloud_tools_write_is_understood() {
    // `aws eks update-kubeconfig`
    let eks = parse_usable(&single_context(
        "",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1beta1\n  args:\n  - --region\n  - eu-west-1\n  - eks\n  \
         - get-token\n  - --cluster-name\n  - prod\n  - --output\n  - json\n  command: aws\n  env:\n  - name: AWS_PROFILE\n    \
         value: prod",
    ));
    let eks = exec_plugin(eks);
    assert_eq!(
        (eks.api_version, eks.command.as_path()),
        (ExecApiVersion::V1Beta1, Path::new("aws"))
    );
    assert_eq!(eks.cluster, None);
    // `gcloud container clusters get-credentials`
    let gke = parse_usable(&single_context(
        "",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1beta1\n  command: gke-gcloud-auth-plugin\n  installHint: |\n    \
         Install gke-gcloud-auth-plugin\n  provideClusterInfo: true",
    ));
    assert_eq!(exec_plugin(gke).cluster.unwrap().config, Json::Null);
    // `kubelogin convert-kubeconfig`
    let aks = parse_usable(&single_context(
        "",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1beta1\n  args: [get-token, --login, msi]\n  command: kubelogin\n  \
         env: null\n  provideClusterInfo: false",
    ));
    assert_eq!(exec_plugin(aks).env, []);
}

#[test]
fn a_configured_credential_makes_a_plugin_unnecessary() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: login}";
    let config = parse_usable(&single_context("", &format!("token: t\n{exec}")));
    assert!(
        matches!(
            config.source,
            CredentialSource::Configured { token: Some(_), .. }
        ),
        "{config:?}"
    );
}

#[test]
fn a_user_without_a_credential_is_anonymous_with_a_warning() {
    let (config, faults) = read(&single_context("", ""), None);
    assert_eq!(
        config.unwrap().source,
        CredentialSource::Configured {
            certificate: None,
            token: None
        }
    );
    assert_eq!(
        faults,
        "/etc/weir/kubeconfig:16:5: warning: users[0].user: no credential: weir's own calls will be anonymous"
    );
}

#[test]
fn only_the_named_context_is_read() {
    let text = "current-context: gone\ncontexts:\n- {name: a, context: {cluster: x, user: x}}\n\
                - {name: b, context: {cluster: k, user: u}}\nclusters:\n- name: bad\n  cluster: {server: ''}\n\
                - name: k\n  cluster: {server: 'https://k'}\nusers:\n- {name: u, user: {token: t}}\n\
                - {name: bad, user: {username: root, password: secret}}\n";
    let (config, faults) = read(text, Some("b"));
    assert_eq!(config.unwrap().context, "b", "{faults}");
    let (none, faults) = read(text, Some("c"));
    assert_eq!(none, None);
    assert_eq!(
        faults,
        "/etc/weir/kubeconfig:3:3: contexts: there is no context \"c\"; there are: a, b"
    );
    let (_, faults) = read(text, None);
    assert_eq!(
        faults,
        "/etc/weir/kubeconfig:1:18: current-context: there is no context \"gone\"; there are: a, b"
    );
    let (_, faults) = read(text, Some("a"));
    assert_eq!(
        faults,
        "/etc/weir/kubeconfig:3:32: contexts[0].context.cluster: there is no cluster \"x\"; there are: bad, k\n\
         /etc/weir/kubeconfig:3:41: contexts[0].context.user: there is no user \"x\"; there are: u, bad"
    );
}

/// The kubeconfig of several files.
fn merge(files: &[(&str, &str)], context: Option<&str>) -> (Option<Kubeconfig>, String) {
    let files: Vec<_> = files.iter().map(|(path, text)| file(path, text)).collect();
    let mut faults = Diagnostics::default();
    let config = parse(&files, context, &mut faults);
    (config, faults.to_string())
}

#[test]
fn the_first_file_with_an_entry_or_a_current_context_wins() {
    let first = "contexts:\n- {name: a, context: {cluster: k, user: u}}\n\
                 clusters:\n- {name: k, cluster: {server: 'https://first', certificate-authority: ca.crt}}\n";
    let second = "current-context: a\ncontexts:\n- {name: a, context: {cluster: x, user: x}}\n\
                  - {name: b, context: {cluster: k, user: u}}\n\
                  clusters:\n- {name: k, cluster: {server: 'https://second', tls-server-name: second}}\n\
                  users:\n- {name: u, user: {tokenFile: token}}\n";
    let third = "current-context: b\nusers:\n- {name: u, user: {token: third}}\n";
    let files = [("/a/1", first), ("/b/2", second), ("/c/3", third)];
    let (config, faults) = merge(&files, None);
    let config = config.unwrap_or_else(|| panic!("{faults}"));
    assert_eq!(
        config.context, "a",
        "of the second file; the first has none"
    );
    assert_eq!(config.address.authority, "first");
    assert_eq!(
        config.address.server_name,
        address::parse_server_name("first").unwrap(),
        "an entry is taken as a whole"
    );
    assert_eq!(config.ca, Some(Pem::File("/a/ca.crt".into())));
    let token = BearerToken::File {
        path: "/b/token".into(),
        fallback: None,
    };
    assert_eq!(
        config.source,
        CredentialSource::Configured {
            certificate: None,
            token: Some(token)
        }
    );
    assert_eq!(config.user_file, Path::new("/b/2"));
    let (config, _) = merge(&files, Some("b"));
    assert_eq!(config.unwrap().context, "b");
}

#[test]
fn an_error_names_the_file_that_has_it() {
    let context = "current-context: a\ncontexts:\n- {name: a, context: {cluster: k, user: u}}\n";
    let cluster = "clusters:\n- {name: k, cluster: {server: 'http://k'}}\n";
    let user = "users:\n- {name: u, user: {token: t}}\n- {name: u, user: {token: t}}\n";
    let files = [
        ("/1", context),
        ("/2", cluster),
        ("/3", user),
        ("/4", "kind: Pod\n"),
        ("/5", "[]\n"),
        ("/6", ""),
    ];
    let (config, faults) = merge(&files, None);
    assert_eq!(config, None);
    let lines: Vec<_> = faults.lines().collect();
    for expected in [
        "/2:2:31: clusters[0].cluster.server: credentials go by https only",
        "/3:3:10: users[1].name: there are two of the name \"u\"",
        "/4:1:7: kind: expected Config: this is not a kubeconfig",
        "/5:1:1: expected a mapping, got a list",
    ] {
        assert!(lines.contains(&expected), "{expected}: {faults}");
    }
    assert_eq!(lines.len(), 4, "an empty file is none: {faults}");
    let (_, faults) = merge(&[("/1", ""), ("/2", "")], None);
    assert_eq!(faults, "/1: there is no kubeconfig in it");
    let (_, faults) = merge(&[("/1", "contexts: []\n"), ("/2", context)], Some("b"));
    assert!(
        faults.contains("there is no context \"b\"; there are: a"),
        "{faults}"
    );
}

#[test]
fn a_service_account_has_a_token_file_and_a_ca() {
    let dir = Path::new("/run/account");
    let config = of_service_account("10.96.0.1", "443", dir).unwrap();
    assert_eq!(config.address.authority, "10.96.0.1:443");
    assert_eq!(config.ca, Some(Pem::File("/run/account/ca.crt".into())));
    let CredentialSource::Configured {
        certificate: None,
        token: Some(BearerToken::File { path, fallback }),
    } = config.source
    else {
        panic!("{:?}", config.source)
    };
    assert_eq!((path.as_path(), fallback), (&*dir.join("token"), None));
    let config = of_service_account("fd00::1", "6443", dir).unwrap();
    assert_eq!(config.address.authority, "[fd00::1]:6443");
    assert!(of_service_account("10.96.0.1", "https", dir).is_err());
}

#[test]
fn the_list_of_names_in_an_error_is_bounded() {
    let contexts: String = (1..=23).map(|n| format!("- name: c{n}\n")).collect();
    let listed = &faults(&format!("contexts:\n{contexts}"))[0];
    assert!(
        listed.starts_with("1:1: current-context: not given, so name a context; there are: c1,")
    );
    assert!(listed.ends_with(", c20 and 3 more"), "{listed}");
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = single_context(
        "insecure-skip-tls-verify: true\ncertificate-authority: ca.crt\ncertificate-authority-data: '!'\n\
         proxy-url: socks5://u:hidden@proxy:1080\ntls-server-name: 'a b'\ndisable-compression: maybe",
        "username: hidden\npassword: 12345\nclient-key-data: aGlkZGVu\nauth-provider: {name: oidc}\nas: root\n\
         as-groups: [a]\ntoken: [hidden]",
    )
    .replace("https://10.0.0.1:6443", "https://10.0.0.1/k8s/clusters/local");
    let faults = faults(&text);
    let expected = [
        "13:31: clusters[0].cluster.insecure-skip-tls-verify: refused: anybody on the way",
        "14:28: clusters[0].cluster.certificate-authority: given together with certificate-authority-data",
        "15:33: clusters[0].cluster.certificate-authority-data: not base64",
        "16:16: clusters[0].cluster.proxy-url: only http:// proxies are supported",
        "17:22: clusters[0].cluster.tls-server-name: \"a b\" is neither",
        "18:26: clusters[0].cluster.disable-compression: expected true or false",
        "12:13: clusters[0].cluster.server: weir forwards request targets byte for byte",
        "22:15: users[0].user.username: kube-apiserver has no basic authentication since Kubernetes 1.19",
        "23:15: users[0].user.password: kube-apiserver has no basic authentication",
        "25:20: users[0].user.auth-provider: removed from Kubernetes in 1.26; use exec",
        "26:9: users[0].user.as: weir does not impersonate",
        "27:16: users[0].user.as-groups: weir does not impersonate",
        "22:5: users[0].user.client-certificate: this or client-certificate-data is required",
        "28:12: users[0].user.token: expected a string; quote it",
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\nexpected {expected}");
        assert!(
            !fault.contains("hidden") && !fault.contains("12345"),
            "{fault}"
        );
    }
}

#[test]
fn plugin_errors_are_reported_at_once_and_quote_no_arguments() {
    let faults = faults(&single_context(
        "",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1alpha1\n  command: ''\n  args: [a, 12345]\n  \
         env:\n  - {value: 12345}\n  - {name: 'A=B', value: hidden}\n  interactiveMode: Always",
    ));
    let expected = [
        "17:19: users[0].user.exec.apiVersion: expected client.authentication.k8s.io/v1 or ",
        "23:24: users[0].user.exec.interactiveMode: the plugin needs a terminal",
        "18:16: users[0].user.exec.command: required, but not given",
        "19:17: users[0].user.exec.args[1]: expected a string; quote it",
        "21:9: users[0].user.exec.env[0].name: required, but not given",
        "21:17: users[0].user.exec.env[0].value: expected a string; quote it",
        "22:16: users[0].user.exec.env[1].name: no environment variable can have this name",
    ];
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    for (fault, expected) in faults.iter().zip(expected) {
        assert!(fault.starts_with(expected), "{fault}\nexpected {expected}");
        assert!(
            !fault.contains("hidden") && !fault.contains("12345"),
            "{fault}"
        );
    }
}

#[test]
fn interactive_mode_is_required_in_version_one() {
    let exec = |rest: &str| single_context("", &format!("exec:\n  command: login\n{rest}"));
    let v1 = "  apiVersion: client.authentication.k8s.io/v1\n";
    assert!(faults(&exec(v1))[0].contains("interactiveMode: required in client"));
    assert!(
        faults(&exec(&format!("{v1}  interactiveMode: Never2")))[0].contains("expected Never,")
    );
    parse_usable(&exec(&format!("{v1}  interactiveMode: Never")));
    assert!(
        faults(&exec(""))[0].ends_with("users[0].user.exec.apiVersion: required, but not given")
    );
}

#[test]
fn a_file_that_is_no_kubeconfig_is_an_error() {
    let cases = [
        ("", "/etc/weir/kubeconfig: there is no kubeconfig in it"),
        (
            "--- \n# nothing\n",
            "/etc/weir/kubeconfig: there is no kubeconfig in it",
        ),
        ("- a\n", "expected a mapping, got a list"),
        ("a: [", "/etc/weir/kubeconfig:"),
        (
            "apiVersion: v1\nkind: Pod\n",
            "2:7: kind: expected Config: this is not a kubeconfig",
        ),
        ("apiVersion: v2\n", "1:13: apiVersion: expected v1"),
        (
            "current-context: a\n",
            "there is no context \"a\"; there are none",
        ),
        (
            "current-context: a\ncontexts: {}\n",
            "contexts: expected a list, got a mapping",
        ),
        (
            "current-context: a\ncontexts:\n- name: a\n",
            "contexts[0].context: required, but not given",
        ),
        (
            "current-context: a\ncontexts:\n- context: {}\n",
            "contexts[0].name: required, but not given",
        ),
        (
            "current-context: a\ncontexts:\n- {name: a}\n- {name: a}\n",
            "4:10: contexts[1].name: there are two",
        ),
        (
            "current-context: a\ncontexts:\n- {name: a, context: {user: u}}\nclusters: [{name: k}]\nusers: [{name: u}]\n",
            "contexts[0].context.cluster: required, but not given; there are: k",
        ),
    ];
    for (text, expected) in cases {
        let (config, faults) = read(text, None);
        assert_eq!(config, None);
        assert!(faults.contains(expected), "{text:?}: {faults}");
    }
}

#[test]
fn mutated_input_never_panics() {
    let whole = single_context(
        "certificate-authority-data: Y2E=\nproxy-url: http://u:p@proxy\nextensions: [{name: e, extension: {}}]",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1\n  command: login\n  args: [a]\n  env: [{name: a, value: b}]\n  \
         interactiveMode: Never\n  provideClusterInfo: true",
    );
    parse_usable(&whole);
    let words = [
        "[", "{", "}", ":", "-", "null", "'", "\n", "  ", "0", "a: b", "&x", "*x", "é", "%", "@",
        "//",
    ];
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for n in 0..2000 {
        let mut text = whole.clone();
        for _ in 0..random.usize(1..4) {
            let from = random.usize(..text.len());
            let to = random.usize(from..=text.len().min(from + 12));
            if text.is_char_boundary(from) && text.is_char_boundary(to) {
                text.replace_range(from..to, words[random.usize(..words.len())]);
            }
        }
        let mut faults = Diagnostics::default();
        let config = parse(&[file(FILE, &text)], None, &mut faults);
        assert_eq!(
            config.is_none(),
            faults.has_errors(),
            "seed {seed}, round {n}:\n{text}\n{faults}"
        );
    }
}

#[test]
fn debug_output_holds_no_secrets() {
    let config = parse_usable(&single_context(
        "proxy-url: http://u:hidden@proxy",
        &format!(
            "token: hidden\nclient-certificate: c\nclient-key-data: {}",
            encoded("hidden")
        ),
    ));
    assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
    let config = parse_usable(&single_context(
        "proxy-url: http://u:hidden@proxy",
        "exec:\n  apiVersion: client.authentication.k8s.io/v1beta1\n  command: login\n  args: [hidden]\n  \
         env: [{name: A, value: hidden}]\n  provideClusterInfo: true",
    ));
    assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
}
