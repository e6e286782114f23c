//! What pseudonyms hide and what they keep.

use crate::observe::logging::recording::pseudonyms::{KeptNames, PseudonymKey, Pseudonyms};
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::read;
use weir_kubernetes::document;
use weir_kubernetes::request_info::RequestInfo;

const SCHEMA: &str = "
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: builders}
spec:
  matchingPrecedence: 500
  priorityLevelConfiguration: {name: global-default}
  rules:
  - subjects:
    - {kind: Group, group: {name: builders}}
    - {kind: User, user: {name: carol}}
    - {kind: ServiceAccount, serviceAccount: {namespace: ci, name: runner}}
    resourceRules:
    - {verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: [builds]}
    nonResourceRules:
    - {verbs: ['*'], nonResourceURLs: ['/custom/health/*', /plain, /plain/a]}
";

fn pseudonyms(key: &[u8]) -> Pseudonyms {
    let mut errors = document::Diagnostics::default();
    let nodes = document::parse_all("schema.yaml", SCHEMA, &mut errors);
    let objects = read(&nodes, &mut errors);
    assert!(!errors.has_errors(), "{errors}");
    let objects = bootstrap::add_missing(objects);
    Pseudonyms::new(&PseudonymKey::parse(key).unwrap(), KeptNames::of(&objects))
}

fn ours() -> Pseudonyms {
    pseudonyms(b"0123456789abcdef\n")
}

#[test]
fn a_key_is_long_enough_and_the_end_of_its_line_is_not_part_of_it() {
    assert!(PseudonymKey::parse(b" 0123456789abcde \n").is_err());
    assert!(PseudonymKey::parse(b"").is_err());
    assert_eq!(
        ours().user("alice"),
        pseudonyms(b"0123456789abcdef").user("alice")
    );
}

#[test]
fn a_pseudonym_is_the_same_for_the_same_key_only() {
    let name = ours().user("alice");
    assert!(name.starts_with("user-") && name.len() == 21, "{name}");
    assert_eq!(ours().user("alice"), name);
    assert_ne!(pseudonyms(b"another key of 16").user("alice"), name);
    assert_ne!(ours().user("bob"), name);
    assert_ne!(ours().group("alice")[6..], name[5..]);
}

#[test]
fn names_that_flow_schemas_decide_by_are_kept() {
    for user in [
        "carol",
        "system:kube-scheduler",
        "system:anonymous",
        "system:serviceaccount:ci:runner",
    ] {
        assert_eq!(ours().user(user), user);
    }
    for group in [
        "builders",
        "system:masters",
        "system:nodes",
        "system:serviceaccounts",
        "system:serviceaccounts:kube-system",
        "system:authenticated",
    ] {
        assert_eq!(ours().group(group), group);
    }
    for kept in [
        "/api/v1/namespaces/builds/pods",
        "/api/v1/namespaces/kube-system/pods?limit=500&resourceVersion=0",
        "/plain",
        "/custom/health/",
        "/readyz?verbose=",
        "/openapi/v3/apis/apps/v1",
        "/apis/apps/v1/deployments",
    ] {
        assert_eq!(ours().target("GET", kept), kept);
    }
}

#[test]
fn a_system_name_keeps_its_kind_but_not_the_object_in_it() {
    let node = ours().user("system:node:secret-1");
    assert!(node.starts_with("system:node:name-"), "{node}");
    let account = ours().user("system:serviceaccount:secret:hidden");
    assert!(
        account.starts_with("system:serviceaccount:ns-"),
        "{account}"
    );
    let group = ours().group("system:serviceaccounts:secret");
    let namespace = group.strip_prefix("system:serviceaccounts:").unwrap();
    let url = ours().target("GET", "/api/v1/namespaces/secret/serviceaccounts/hidden");
    let name = url.rsplit('/').next().unwrap();
    assert_eq!(account, format!("system:serviceaccount:{namespace}:{name}"));
    assert_eq!(
        url,
        format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
    );
}

#[test]
fn user_agents_keep_well_known_programs_only() {
    let agent = |agent| ours().user_agent(agent);
    assert_eq!(
        agent("kubectl/v1.36.0 (linux/amd64) kubernetes/1"),
        "kubectl/v1.36.0"
    );
    assert!(agent("kubectl-secret/1").starts_with("agent-"));
}

#[test]
fn addresses_stay_in_their_networks() {
    let address = |text: &str| ours().address(text.parse().unwrap());
    assert_eq!(address("192.0.2.1"), address("::ffff:192.0.2.1"));
    assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    let network = |text: &str| match address(text) {
        std::net::IpAddr::V6(address) => address.segments()[..4].to_vec(),
        std::net::IpAddr::V4(address) => panic!("{address}"),
    };
    assert_eq!(network("2001:db8::1"), network("2001:db8::2"));
    assert_ne!(address("2001:db8::1"), address("2001:db8::2"));
    assert_ne!(network("2001:db8::1"), network("2001:db8:1::1"));
}

#[test]
fn a_path_matches_the_schemas_that_it_matched_and_hides_what_is_below_their_paths() {
    let mut errors = document::Diagnostics::default();
    let nodes = document::parse_all("schema.yaml", SCHEMA, &mut errors);
    let matcher = Matcher::new(&bootstrap::add_missing(read(&nodes, &mut errors)));
    let carol = UserInfo {
        name: "carol".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        ..UserInfo::default()
    };
    let schema = |target: &str| {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let classified = matcher.classify(&RequestDigest::new(&info, &carol));
        classified.schema.name.clone()
    };
    for (target, expected) in [
        ("/plain", "builders"),
        ("/plain/", "builders"),
        ("/plain/secret/secret", "builders"),
        ("/plain/a/secret", "builders"),
        ("/custom/health/secret?x=secret", "builders"),
        ("/custom/health", "global-default"),
        ("/plainsecret", "global-default"),
        ("/custom/secret", "global-default"),
    ] {
        assert_eq!(schema(target), expected, "{target}");
        let replaced = ours().target("GET", target);
        assert_eq!(schema(&replaced), expected, "{target}: {replaced}");
        assert!(!replaced.contains("secret"), "{target}: {replaced}");
    }
    let replaced = ours().target("GET", "/plain/a/secret");
    assert!(replaced.starts_with("/plain/a/name-"), "{replaced}");
}

/// What decides about schema, cost and limits.
fn attributes(method: &str, target: &str) -> Vec<String> {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    vec![
        info.verb().as_str().to_owned(),
        text(info.api_group()),
        text(info.api_version()),
        text(info.resource()),
        text(info.subresource()),
        info.namespace().is_empty().to_string(),
        info.name().is_empty().to_string(),
        info.is_resource_request().to_string(),
        info.long_running().to_string(),
    ]
}

#[test]
fn a_target_keeps_its_attributes_and_hides_its_names() {
    for target in [
        "/api/v1/namespaces/secret",
        "/api/v1/namespaces/secret/status",
        "/api/v1/namespaces/secret/pods",
        "/api/v1/namespaces/secret/pods/secret",
        "/api/v1/namespaces/secret/pods/secret/log?container=secret&follow=true",
        "/api/v1/namespaces/secret/pods/secret/exec?command=secret&stdin=true",
        "/api/v1/namespaces/secret/pods/https:secret:8443/proxy/a/secret?x=secret",
        "/api/v1/namespaces/%73ecret/pods/s%65cret",
        "/api/v1/nodes/secret/proxy/metrics/secret",
        "/api/v1/watch/namespaces/secret/pods",
        "/api/v1/watch/pods",
        "/api/v1/proxy/namespaces/secret/services/secret/x",
        "/apis/example.com/v1/widgets/secret/scale",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/secret",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dsecret,status.phase!%3Dsecret&limit=500",
        "/api/v1/namespaces/secret/pods?fieldSelector=metadata.name%3Dsecret",
        "/api/v1/namespaces/secret/pods?watch=true&fieldSelector=metadata.name=secret",
        "/api/v1/pods?labelSelector=app%3Dsecret&continue=secret&watch=1&timeoutSeconds=5",
        "/api/v1/pods?secret%20parameter=1&limit=secret&watch=",
        "/secret/of/an/extension?secret",
    ] {
        let replaced = ours().target("GET", target);
        assert_eq!(
            attributes("GET", &replaced),
            attributes("GET", target),
            "{replaced}"
        );
        assert!(!replaced.contains("secret"), "{target}: {replaced}");
        assert!(!replaced.contains("%73"), "{replaced}");
    }
}

#[test]
fn any_target_keeps_its_attributes() {
    let pieces = [
        "/",
        "/",
        "/",
        "api",
        "apis",
        "v1",
        "namespaces",
        "watch",
        "proxy",
        "pods",
        "nodes",
        "a",
        "%2F",
        "..",
        "?",
        "&",
        "=",
        ",",
        "fieldSelector",
        "metadata.name",
        "watch",
        "1",
        "%",
        "é",
        "+",
    ];
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..20_000 {
        let mut target = random
            .choice(["/", "/api/v1/", "/apis/g/v1/"])
            .unwrap()
            .to_owned();
        for _ in 0..random.usize(0..9) {
            target.push_str(random.choice(pieces).unwrap());
        }
        let Ok(info) = RequestInfo::parse("GET", target.as_bytes()) else {
            let _ = ours_cached().target("GET", &target);
            continue;
        };
        let replaced = ours_cached().target("GET", &target);
        let again = RequestInfo::parse("GET", replaced.as_bytes());
        let again = again.unwrap_or_else(|_| panic!("{target}: {replaced}"));
        assert_eq!(
            again.is_resource_request(),
            info.is_resource_request(),
            "{target}: {replaced}"
        );
        if info.is_resource_request() {
            let kind = |info: &RequestInfo<'_>| {
                (
                    info.verb().as_str().to_owned(),
                    String::from_utf8_lossy(info.resource()).into_owned(),
                    String::from_utf8_lossy(info.subresource()).into_owned(),
                )
            };
            assert_eq!(kind(&again), kind(&info), "{target}: {replaced}");
        }
    }
}

fn ours_cached() -> &'static Pseudonyms {
    static PSEUDONYMS: std::sync::LazyLock<Pseudonyms> = std::sync::LazyLock::new(ours);
    &PSEUDONYMS
}
