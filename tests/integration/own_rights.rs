//! The rights of weir's own user: those of `deploy/kustomize/base/rbac.yaml` are what weir uses with the
//! settings beside them. In front of the playground, which records requests.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::authentication::{PlaygroundCluster, authorization};
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::{HttpVersion, eventually, yaml};
use weir_playground::{PlaygroundSettings, RequestRecord};

const RBAC: &str = include_str!("../../deploy/kustomize/base/rbac.yaml");
const SETTINGS: &str = include_str!("../../deploy/kustomize/base/config.yaml");
const OWN_USER: &str = "system:serviceaccount:team:weir";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// What every authenticated user may do: the ClusterRoles `system:public-info-viewer` and
/// `system:basic-user`.
const RIGHTS_OF_ALL: [&str; 6] = [
    "get /livez",
    "get /readyz",
    "get /version",
    "create authentication.k8s.io/selfsubjectreviews",
    "create authorization.k8s.io/selfsubjectaccessreviews",
    "create authorization.k8s.io/selfsubjectrulesreviews",
];

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|item| item.as_str().unwrap())
}

/// The rights of the ClusterRole `weir`: a verb, and a group with a resource or a path.
fn granted() -> BTreeSet<String> {
    let objects = yaml::documents(RBAC);
    let role = objects
        .iter()
        .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == "weir");
    let rules = role.unwrap()["rules"].as_array().unwrap().clone();
    let mut rights = BTreeSet::new();
    for rule in &rules {
        for verb in strings(&rule["verbs"]) {
            for path in strings(&rule["nonResourceURLs"]) {
                rights.insert(format!("{verb} {path}"));
            }
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    rights.insert(format!("{verb} {group}/{resource}"));
                }
            }
        }
    }
    rights
}

/// The right that a request of weir needs. It names no object.
fn needed(request: &RequestRecord) -> String {
    let path = request.uri.path();
    let method = request.method.as_str();
    if path == "/api/v1/namespaces/default" {
        assert_eq!(method, "GET");
        return "get /namespaces".to_owned();
    }
    let Some(rest) = path.strip_prefix("/apis/") else {
        assert!(method == "GET" && !path.starts_with("/api/"), "{request:?}");
        return format!("get {path}");
    };
    let parts: Vec<_> = rest.split('/').collect();
    let [group, _version, resource] = *parts else {
        panic!("{request:?}");
    };
    let is_watch = request
        .uri
        .query()
        .is_some_and(|query| query.contains("watch="));
    let verb = match method {
        "POST" => "create",
        "GET" if is_watch => "watch",
        "GET" => "list",
        _ => panic!("{request:?}"),
    };
    format!("{verb} {group}/{resource}")
}

#[tokio::test]
async fn weir_uses_every_right_of_its_role_and_no_other() {
    let cluster = PlaygroundCluster::start_with(PlaygroundSettings::default()).await;
    let files = ConfigDir::new();
    files.write("config.yaml", SETTINGS);
    files.write("cluster-ca.crt", &cluster.certificates.ca);
    let (server, token) = (cluster.address, cluster.service_account_token("weir"));
    files.write(
        "kubeconfig",
        &format!(
            "current-context: a\ncontexts:\n- {{name: a, context: {{cluster: k, user: u}}}}\n\
             clusters:\n- name: k\n  cluster: {{server: 'https://{server}', certificate-authority: cluster-ca.crt}}\n\
             users:\n- {{name: u, user: {{token: {token}}}}}\n"
        ),
    );
    let flags = [
        "--config=config.yaml",
        "--kubeconfig=kubeconfig",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--admin-address=127.0.0.1:0",
        "--health-address=127.0.0.1:0",
        "--tls-cert-file=tls.crt",
        "--tls-private-key-file=tls.key",
        "--logging-format=text",
        "--workers=1",
    ];
    let weir = WeirProcess::start(files, &flags.map(str::to_owned)).await;
    let account = cluster.service_account_token("other");
    for token in [cluster.token("bob"), &account] {
        let (name, value) = authorization(token);
        let mut client = weir.with_authorization(HttpVersion::Http2, (name, &value));
        assert_eq!(client.get(PODS).await.status, 200);
    }
    let granted = granted();
    assert!(granted.len() > 6, "{granted:?}");
    eventually("requests that need every right", async || {
        let requests = cluster.server.requests().into_iter();
        let own = requests.filter(|request| {
            let user = request.user.as_ref();
            user.is_some_and(|user| user.name == OWN_USER)
        });
        let mut needed: BTreeSet<_> = own.map(|request| needed(&request)).collect();
        needed.retain(|right| !RIGHTS_OF_ALL.contains(&right.as_str()));
        assert!(needed.is_subset(&granted), "{needed:?} of {granted:?}");
        (needed == granted).then_some(())
    })
    .await;
}
