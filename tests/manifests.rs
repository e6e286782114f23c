//! The manifests of `deploy/`: valid by Kubernetes' own types, complete, and in agreement with each
//! other and with the configurations beside them. `WEIR_WRITE_DOCS=1` writes the PrometheusRule.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

#[path = "integration/support/yaml.rs"]
mod yaml;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const BASE: &str = "deploy/kustomize/base";
const OVERLAYS: &str = "deploy/kustomize/overlays";
const KUBEADM: &str = "deploy/kubeadm";
const PROMETHEUS_RULE: &str = "deploy/kustomize/overlays/prometheus-operator/prometheus-rule.yaml";

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read_file(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The documents of a YAML file, as JSON.
fn documents(path: impl AsRef<Path>) -> Vec<Value> {
    yaml::documents(&read_file(&path))
}

fn document(path: &str) -> Value {
    let documents = documents(checkout(path));
    let [document] = &*documents else {
        panic!("{path} has {} documents", documents.len());
    };
    document.clone()
}

/// All YAML files of a folder and its folders.
fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .flat_map(|path| {
            if path.is_dir() {
                yaml_files(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    files
}

/// What of `given` is missing or different in `kept`, by its path.
fn lost(given: &Value, kept: &Value, path: &str, found: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (name, value) in given {
                let path = format!("{path}.{name}");
                match kept.get(name) {
                    Some(kept) => lost(value, kept, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (n, (given, kept)) in given.iter().zip(kept).enumerate() {
                lost(given, kept, &format!("{path}[{n}]"), found);
            }
        }
        _ if given == kept => {}
        _ => found.push(format!("{path}: {given} became {kept}")),
    }
}

/// The faults of an object by Kubernetes' own type: a field of another type, and one that it does not
/// have.
fn faults<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(object.clone()) {
        Err(why) => vec![why.to_string()],
        Ok(typed) => {
            let mut found = Vec::new();
            lost(
                object,
                &serde_json::to_value(typed).unwrap(),
                "",
                &mut found,
            );
            found
        }
    }
}

fn object_faults(object: &Value) -> Vec<String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        ("v1", "Namespace") => faults::<Namespace>(object),
        ("v1", "Pod") => faults::<Pod>(object),
        ("v1", "Service") => faults::<Service>(object),
        ("v1", "ServiceAccount") => faults::<ServiceAccount>(object),
        ("apps/v1", "Deployment") => faults::<Deployment>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => faults::<NetworkPolicy>(object),
        ("policy/v1", "PodDisruptionBudget") => faults::<PodDisruptionBudget>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => faults::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            faults::<ClusterRoleBinding>(object)
        }
        ("rbac.authorization.k8s.io/v1", "Role") => faults::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => faults::<RoleBinding>(object),
        // No types of these are at hand: tests below look at their form.
        ("monitoring.coreos.com/v1", "ServiceMonitor" | "PrometheusRule")
        | ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        | ("kubeadm.k8s.io/v1beta4", "ClusterConfiguration" | "InitConfiguration") => Vec::new(),
        (version, kind) => vec![format!("unknown: {version} {kind}")],
    }
}

/// Files that are settings of weir, and no objects.
fn is_settings(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "config.yaml")
}

#[test]
fn every_object_is_valid_by_kubernetes_own_types() {
    let mut kinds = BTreeSet::new();
    let mut found = Vec::new();
    for folder in ["deploy/kustomize", KUBEADM] {
        for file in yaml_files(&checkout(folder)) {
            if is_settings(&file) {
                continue;
            }
            for object in documents(&file) {
                kinds.insert(object["kind"].as_str().unwrap_or_default().to_owned());
                let faults = object_faults(&object).into_iter();
                found.extend(faults.map(|fault| format!("{}: {fault}", file.display())));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert_eq!(kinds.len(), 16, "{kinds:?}");
}

#[test]
fn a_misspelt_field_and_a_wrong_type_are_faults() {
    let pod = |field: &str, value: Value| {
        let mut container = json!({"name": "weir"});
        container[field] = value;
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [container]}})
    };
    assert_eq!(object_faults(&pod("image", "weir".into())), [""; 0]);
    assert_eq!(
        object_faults(&pod("imagePullPolice", "Always".into())),
        [".spec.containers[0].imagePullPolice"]
    );
    assert_eq!(object_faults(&pod("args", "serve".into())).len(), 1);
    assert_eq!(object_faults(&json!({"kind": "Pot"})).len(), 1);
}

/// The strings of a list.
fn strings(list: &Value) -> Vec<&str> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn every_file_of_a_kustomization_is_there_and_is_used() {
    let mut folders = vec![checkout(BASE)];
    let overlays = fs::read_dir(checkout(OVERLAYS)).unwrap();
    folders.extend(overlays.map(|entry| entry.unwrap().path()));
    assert!(folders.len() > 4, "{folders:?}");
    for folder in folders {
        let kustomization = documents(folder.join("kustomization.yaml")).remove(0);
        let mut named: Vec<String> = strings(&kustomization["resources"])
            .into_iter()
            .map(str::to_owned)
            .collect();
        for patch in kustomization["patches"].as_array().into_iter().flatten() {
            named.push(patch["path"].as_str().unwrap().to_owned());
        }
        for map in kustomization["configMapGenerator"]
            .as_array()
            .into_iter()
            .flatten()
        {
            named.extend(strings(&map["files"]).into_iter().map(str::to_owned));
        }
        for name in &named {
            assert!(folder.join(name).exists(), "{}: {name}", folder.display());
        }
        for file in yaml_files(&folder) {
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(
                name == "kustomization.yaml" || named.iter().any(|named| named == name),
                "{} is in no list",
                file.display()
            );
        }
    }
}

/// The duration of a setting in seconds.
fn seconds(settings: &Value, name: &str) -> i64 {
    let text = settings[name].as_str().unwrap();
    let (number, unit) = text.split_at(text.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        _ => panic!("{text}"),
    };
    number.parse::<i64>().unwrap() * unit
}

/// How long a shutdown takes with these settings, and a few seconds.
fn shutdown_seconds(settings: &Value) -> i64 {
    let parts = [
        "shutdownDelayDuration",
        "requestTimeout",
        "shutdownWatchTerminationGracePeriod",
    ];
    parts
        .iter()
        .map(|part| seconds(settings, part))
        .sum::<i64>()
        + 5
}

#[test]
fn pods_have_the_time_that_their_settings_need_and_no_rights() {
    let deployment = document("deploy/kustomize/base/deployment.yaml");
    assert_eq!(
        deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"],
        0
    );
    assert_eq!(deployment["spec"]["replicas"], 2);
    let template = deployment["spec"]["template"].clone();
    assert_eq!(template["spec"]["securityContext"]["runAsNonRoot"], true);
    for (pod, settings) in [
        (template, document("deploy/kustomize/base/config.yaml")),
        (
            document("deploy/kubeadm/weir.yaml"),
            document("deploy/kubeadm/config.yaml"),
        ),
    ] {
        let spec = &pod["spec"];
        let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap();
        assert!(grace >= shutdown_seconds(&settings), "{grace}");
        assert_eq!(
            spec["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let container = &spec["containers"][0];
        assert_eq!(
            container["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            })
        );
        for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
            assert_eq!(container[probe]["httpGet"]["path"], path);
        }
        for mount in container["volumeMounts"].as_array().unwrap() {
            // Only the folder of the control socket is written to.
            let is_written = mount["mountPath"] == "/run/weir";
            assert_eq!(mount["readOnly"] == true, !is_written, "{mount}");
        }
    }
}

#[test]
fn the_static_pod_mounts_every_file_that_its_settings_name() {
    let pod = document("deploy/kubeadm/weir.yaml");
    let mounts = pod["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let mut folders = Vec::new();
    for mount in mounts {
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"]);
        let volume = volume.unwrap();
        if volume["emptyDir"].is_object() {
            continue; // for the control socket
        }
        // Paths are the same inside and outside.
        let path = &volume["hostPath"]["path"];
        assert_eq!(path, &mount["mountPath"]);
        folders.push(path.as_str().unwrap());
    }
    let settings = document("deploy/kubeadm/config.yaml");
    let files = settings
        .as_object()
        .unwrap()
        .values()
        .flat_map(|value| match value {
            Value::Array(_) => strings(value),
            Value::String(text) => vec![text.as_str()],
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        });
    let files: Vec<_> = files.filter(|text| text.starts_with('/')).collect();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        assert!(
            folders
                .iter()
                .any(|folder| file.starts_with(&format!("{folder}/"))),
            "{file} is in no volume"
        );
    }
}

/// The API server rejects later than weir in every priority level, and its probes pass weir by.
#[test]
fn kubeadm_s_api_server_has_half_as_many_seats_more_and_probes_on_the_loopback() {
    let settings = document("deploy/kubeadm/config.yaml");
    let cluster = document("deploy/kubeadm/cluster-configuration.yaml");
    let argument = |name: &str| {
        let arguments = cluster["apiServer"]["extraArgs"].as_array().unwrap();
        let argument = arguments.iter().find(|argument| argument["name"] == name);
        argument.unwrap()["value"]
            .as_str()
            .expect("a quoted value")
            .to_owned()
    };
    for (setting, flag) in [
        ("maxRequestsInflight", "max-requests-inflight"),
        (
            "maxMutatingRequestsInflight",
            "max-mutating-requests-inflight",
        ),
    ] {
        let weir = settings[setting].as_i64().unwrap();
        assert_eq!(
            argument(flag).parse::<i64>().unwrap(),
            weir + weir / 2,
            "{flag}"
        );
    }
    assert_eq!(argument("bind-address"), "127.0.0.1");
    let patch = document("deploy/kubeadm/patches/kube-apiserver+strategic.yaml");
    let container = patch["spec"]["containers"][0].as_object().unwrap();
    assert_eq!(container["name"], "kube-apiserver");
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        assert_eq!(
            container[probe],
            json!({"httpGet": {"host": "127.0.0.1"}}),
            "the port and the rest stay as kubeadm writes them"
        );
    }
}

/// The page and the files beside it.
fn kubeadm_page() -> String {
    read_file(checkout("docs/deployment-kubeadm.md"))
}

/// By the form of `kubeadm.k8s.io/v1beta4`: no type of it is at hand.
#[test]
fn kubeadm_gets_the_node_s_address_and_the_patches_from_a_file() {
    let init = document("deploy/kubeadm/init-configuration.yaml");
    let cluster = document("deploy/kubeadm/cluster-configuration.yaml");
    let settings = document("deploy/kubeadm/config.yaml");
    assert_eq!(
        init,
        json!({
            "apiVersion": cluster["apiVersion"],
            "kind": "InitConfiguration",
            "localAPIEndpoint": {
                "advertiseAddress": settings["bindAddress"],
                "bindPort": settings["securePort"],
            },
            "patches": {"directory": "/etc/kubernetes/patches"},
        })
    );
    let page = kubeadm_page();
    for line in [
        "patches/kube-apiserver+strategic.yaml /etc/kubernetes/patches/\n",
        "    cat deploy/kubeadm/init-configuration.yaml\n",
        "    grep -v '^patches:' deploy/kubeadm/init-configuration.yaml\n",
    ] {
        assert!(page.contains(line), "{line}");
    }
    // v1beta4 is that of kubeadm 1.31.
    assert_eq!(cluster["apiVersion"], "kubeadm.k8s.io/v1beta4");
    assert!(page.contains("kubeadm 1.31 or newer"));
}

/// The flags that kubeadm accepts together with `--config` (`isAllowedFlag` of its validation,
/// Kubernetes 1.36).
const BESIDE_CONFIG: [&str; 11] = [
    "config",
    "dry-run",
    "ignore-preflight-errors",
    "kubeconfig",
    "kubeconfig-dir",
    "log-file",
    "node-name",
    "print-join-command",
    "rootfs",
    "upload-certs",
    "v",
];

/// The commands of kubeadm with `--config` in a text, each with the flags that are refused there.
fn mixed_commands(text: &str) -> Vec<(String, Vec<String>)> {
    let joined = text.replace("\\\n", " ");
    let commands = joined.split(['\n', '`']).map(str::trim);
    let commands = commands.filter(|command| command.starts_with("kubeadm "));
    let with_flags = commands.map(|command| {
        let words = command.split_whitespace();
        let flags = words.filter_map(|word| word.strip_prefix("--"));
        let flags = flags.map(|flag| flag.split('=').next().unwrap().to_owned());
        (command.to_owned(), flags.collect::<Vec<_>>())
    });
    with_flags
        .filter(|(_, flags)| flags.iter().any(|flag| flag == "config"))
        .map(|(command, mut flags)| {
            flags.retain(|flag| !BESIDE_CONFIG.contains(&&**flag) && !flag.starts_with("skip-"));
            (command, flags)
        })
        .collect()
}

#[test]
fn no_command_of_kubeadm_has_flags_that_it_refuses_beside_a_file() {
    let example = "`kubeadm init --config a --v 2`:\n  kubeadm init --config=a \\\n --patches b\n";
    let flags: Vec<_> = mixed_commands(example)
        .into_iter()
        .map(|(_, flags)| flags)
        .collect();
    assert_eq!(flags, [vec![], vec!["patches".to_owned()]]);

    let mut count = 0;
    let pages = fs::read_dir(checkout("docs")).unwrap();
    let pages = pages.map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let others = ["README.md", "CHANGELOG.md"].map(checkout);
    for file in pages.chain(others).chain(yaml_files(&checkout(KUBEADM))) {
        for (command, refused) in mixed_commands(&read_file(&file)) {
            count += 1;
            assert!(
                refused.is_empty(),
                "{}: {command}: {refused:?}",
                file.display()
            );
        }
    }
    assert!(count > 0, "no command with --config");
}

/// Without weir and with the API server on the loopback kubectl reaches nothing.
#[test]
fn the_undo_reads_from_the_cluster_before_it_removes_weir() {
    let page = kubeadm_page();
    let (_, undo) = page.split_once("\n## Undo\n").unwrap();
    let (undo, _) = undo.split_once("\n## ").unwrap();
    let removal = undo.find("/etc/kubernetes/manifests/weir.yaml").unwrap();
    let (before, after) = undo.split_at(removal);
    assert!(before.contains("edit configmap kubeadm-config"), "{undo}");
    assert!(before.contains("get configmap kubeadm-config"), "{undo}");
    assert!(!after.contains("configmap"), "{undo}");
    let written = after.find("kubeadm init phase").unwrap();
    let rights = after.find("kubectl delete").unwrap();
    assert!(written < rights, "{undo}");
}

#[test]
fn the_page_says_how_long_a_static_pod_s_address_is_closed() {
    const MEASURED: &str = "0.4 and 0.5 s";
    const BOUND: &str = "above 30 s";
    for page in [kubeadm_page(), read_file(checkout("docs/changes.md"))] {
        let words: Vec<_> = page.split_whitespace().collect();
        let page = words.join(" ");
        for text in [MEASURED, BOUND, "not measured"] {
            assert!(page.contains(text), "{text}");
        }
    }
    let script = read_file(checkout("tests/tools/restart.sh"));
    assert!(script.contains(" 1 30000 \"$took\""));
}

/// systemd before 252 does not know `--kill-whom`, and without either all processes get the signal.
#[test]
fn every_hand_over_by_systemctl_is_one_that_old_versions_of_systemd_know() {
    let mut count = 0;
    let files = [
        "docs/changes.md",
        "deploy/weir.service",
        "README.md",
        "CHANGELOG.md",
    ];
    for file in files {
        for line in read_file(checkout(file)).lines() {
            if line.contains("systemctl kill") {
                count += 1;
                assert!(
                    line.contains("systemctl kill --kill-who=main"),
                    "{file}: {line}"
                );
            }
        }
    }
    assert!(count > 2, "{count}");
}

#[test]
fn weir_has_the_same_rights_on_a_control_plane_and_in_a_pod() {
    let role = |path: &str| {
        let objects = documents(checkout(path));
        let is_role = |object: &&Value| {
            object["kind"] == "ClusterRole" && object["metadata"]["name"] == "weir"
        };
        objects.iter().find(is_role).unwrap()["rules"].clone()
    };
    assert_eq!(
        role("deploy/kubeadm/rbac.yaml"),
        role("deploy/kustomize/base/rbac.yaml")
    );
}

#[test]
fn the_images_have_the_version_of_this_crate() {
    let version = env!("CARGO_PKG_VERSION");
    let kustomization = document("deploy/kustomize/base/kustomization.yaml");
    assert_eq!(
        kustomization["images"],
        json!([{"name": "weir", "newTag": version}])
    );
    let pod = document("deploy/kubeadm/weir.yaml");
    assert_eq!(
        pod["spec"]["containers"][0]["image"],
        format!("weir:{version}")
    );
}

#[test]
fn the_prometheus_rule_has_the_rules_of_the_rules_file() {
    let text = read_file(checkout("deploy/prometheus-rules.yaml"));
    let at = text.find("groups:\n").expect("groups");
    let groups: String = text[at..]
        .lines()
        .map(|line| match line {
            "" => "\n".to_owned(),
            line => format!("  {line}\n"),
        })
        .collect();
    let generated = format!(
        "# Made by tests/manifests.rs from deploy/prometheus-rules.yaml (WEIR_WRITE_DOCS=1).\n\
         apiVersion: monitoring.coreos.com/v1\n\
         kind: PrometheusRule\n\
         metadata:\n  name: weir\n  namespace: weir-system\n  labels:\n    app.kubernetes.io/name: weir\n\
         spec:\n{groups}"
    );
    let path = checkout(PROMETHEUS_RULE);
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    assert_eq!(
        read_file(&path),
        generated,
        "not of the rules file; run this with WEIR_WRITE_DOCS=1"
    );
    let rule = document(PROMETHEUS_RULE);
    let mut alerts = 0;
    for group in rule["spec"]["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            assert!(rule["expr"].is_string(), "{rule}");
            assert!(
                rule["alert"].is_string() != rule["record"].is_string(),
                "{rule}"
            );
            if rule["alert"].is_string() {
                alerts += 1;
                assert!(rule["labels"]["severity"].is_string(), "{rule}");
                assert!(rule["annotations"]["summary"].is_string(), "{rule}");
            }
        }
    }
    assert!(alerts > 10, "{alerts} alerts");
}

/// By the form of `monitoring.coreos.com/v1`: no type of it is at hand.
#[test]
fn the_service_monitor_finds_the_metrics_by_the_job_weir() {
    const FOLDER: &str = "deploy/kustomize/overlays/prometheus-operator";
    let monitor = document(&format!("{FOLDER}/service-monitor.yaml"));
    let service = document(&format!("{FOLDER}/service.yaml"));
    let base = document("deploy/kustomize/base/deployment.yaml");
    let deployment = document(&format!("{FOLDER}/deployment.yaml"));
    let spec = monitor["spec"].as_object().unwrap();
    let fields: Vec<_> = spec.keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        ["endpoints", "jobLabel", "namespaceSelector", "selector"]
    );
    let labels = service["metadata"]["labels"].as_object().unwrap();
    for (name, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels.get(name), Some(value), "{name}");
    }
    assert_eq!(labels[spec["jobLabel"].as_str().unwrap()], "weir");
    let [endpoint] = spec["endpoints"].as_array().unwrap().as_slice() else {
        panic!("{monitor}");
    };
    let port = &service["spec"]["ports"][0];
    assert_eq!(endpoint["port"], port["name"]);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap();
    assert!(
        ports
            .iter()
            .any(|named| named["name"] == port["targetPort"])
    );
    assert_eq!(
        service["spec"]["selector"],
        base["spec"]["selector"]["matchLabels"]
    );
    // A token is sent to weir alone.
    assert_eq!(endpoint["scheme"], "https");
    let tls = &endpoint["tlsConfig"];
    assert_eq!(tls["ca"]["configMap"]["key"], "ca.crt");
    let page = read_file(checkout("docs/deployment.md"));
    let name = tls["serverName"].as_str().unwrap();
    assert!(page.contains(&format!("subjectAltName=DNS:{name},")));
}

#[test]
fn replicas_that_share_limits_have_the_key_and_the_password_of_their_valkey() {
    const FOLDER: &str = "deploy/kustomize/overlays/shared-limits";
    let weir = document(&format!("{FOLDER}/deployment.yaml"));
    let args = strings(&weir["spec"]["template"]["spec"]["containers"][0]["args"]);
    let value = |flag: &str| {
        let at = args.iter().position(|arg| *arg == flag);
        args[at.unwrap_or_else(|| panic!("no {flag}")) + 1]
    };
    assert_eq!(
        value("--shared-limits-replicas"),
        weir["spec"]["replicas"].to_string()
    );
    assert_eq!(value("--shared-key-file"), "/etc/weir/shared/key");
    assert_eq!(
        value("--shared-limits-password-file"),
        "/etc/weir/shared/password"
    );
    let [valkey, service] = &documents(checkout(&format!("{FOLDER}/valkey.yaml")))[..] else {
        panic!("a Deployment and a Service")
    };
    let name = service["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        value("--shared-limits"),
        format!("redis://{name}.weir-system.svc:6379")
    );
    let secret = |deployment: &Value| {
        let spec = &deployment["spec"]["template"]["spec"];
        let volumes = spec["volumes"].as_array().unwrap();
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts[0]["mountPath"], "/etc/weir/shared");
        volumes[0]["secret"]["secretName"].clone()
    };
    assert_eq!(secret(&weir), secret(valkey));
    let labels = &valkey["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    let policies = documents(checkout(&format!("{FOLDER}/network-policy.yaml")));
    assert_eq!(&policies[0]["spec"]["podSelector"]["matchLabels"], labels);
    let target = &policies[1]["spec"]["egress"][0]["to"][0];
    assert_eq!(&target["podSelector"]["matchLabels"], labels);
}

/// Named ports of egress are not known to every network plugin.
#[test]
fn rules_for_egress_have_numbers_of_ports() {
    let mut count = 0;
    for file in yaml_files(&checkout("deploy/kustomize")) {
        for policy in documents(&file) {
            let rules = policy["spec"]["egress"].as_array().into_iter().flatten();
            for port in rules.filter_map(|rule| rule["ports"].as_array()).flatten() {
                count += 1;
                assert!(port["port"].is_number(), "{}: {port}", file.display());
            }
        }
    }
    assert!(count > 1, "{count}");
}

/// A shell that stays process 1 of the container would ignore SIGTERM.
#[test]
fn valkey_takes_the_place_of_its_shell_and_gets_its_settings() {
    let path = "deploy/kustomize/overlays/shared-limits/valkey.yaml";
    let deployment = documents(checkout(path)).remove(0);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(strings(&container["command"]), ["sh", "-c"]);
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    let program = folder.path().join("valkey-server");
    fs::write(&program, "#!/bin/sh\necho \"$$ $*\"\ncat\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let script = strings(&container["args"])[0]
        .replace("/etc/weir/shared/password", password.to_str().unwrap());
    let child = Command::new("sh")
        .args(["-c", &script])
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let expected = format!(
        "{} -\nrequirepass secret\nsave \"\"\nmaxmemory 96mb\nmaxmemory-policy noeviction\n",
        child.id()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
