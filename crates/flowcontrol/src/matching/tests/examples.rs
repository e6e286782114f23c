//! Typical configurations of clusters, and some invalid ones.

use super::*;
use crate::bootstrap;
use crate::bootstrap::BootstrapClass;
use crate::fairqueuing::shuffle_sharding::flow_hash;

fn built_in() -> impl Iterator<Item = &'static Object> {
    let mandatory = bootstrap::objects(BootstrapClass::Mandatory);
    mandatory
        .iter()
        .chain(bootstrap::objects(BootstrapClass::Suggested))
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    }
}

/// The names of schema and level, the distinguisher, and whether the hash is that of schema and
/// distinguisher.
fn classify(
    matcher: &Matcher,
    user: &UserInfo,
    method: &str,
    target: &str,
) -> (String, String, String) {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    let digest = RequestDigest::new(&info, user);
    let found = matcher.classify(&digest);
    let distinguisher = str::from_utf8(found.flow_distinguisher).unwrap();
    let hash = match found.flow_hash {
        0 => 0,
        _ => flow_hash(&found.schema.name, distinguisher),
    };
    assert_eq!(found.flow_hash, hash);
    (
        found.schema.name.clone(),
        found.level.spec.name.clone(),
        distinguisher.to_owned(),
    )
}

/// Checks the classification by the built-in schemas. Each case is a method, a target, the schema
/// and level, and the flow distinguisher.
fn assert_built_in(user: &UserInfo, cases: &[[&str; 4]]) {
    let matcher = Matcher::new(built_in());
    for [method, target, names, distinguisher] in cases {
        let (schema, level, found) = classify(&matcher, user, method, target);
        let found = [&format!("{schema} {level}"), &*found];
        assert_eq!(found, [*names, *distinguisher], "{method} {target}");
    }
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l";
const PODS: &str = "/api/v1/namespaces/a/pods";

#[test]
fn masters_and_probes_are_exempt() {
    let masters = ["system:masters", "system:authenticated"];
    let admin = user("admin", &masters);
    assert_built_in(&admin, &[["GET", PODS, "exempt exempt", ""]]);
    let cases = [
        ["GET", "/livez/ping", "probes exempt", ""],
        [
            "GET",
            "/livezz",
            "global-default global-default",
            "system:anonymous",
        ],
        [
            "HEAD",
            "/livez",
            "global-default global-default",
            "system:anonymous",
        ],
    ];
    assert_built_in(&UserInfo::anonymous(), &cases);
}

#[test]
fn updates_of_a_nodes_own_objects_have_a_level_of_their_own() {
    let node = user("system:node:n", &["system:nodes", "system:authenticated"]);
    let cases = [
        ["PATCH", LEASE, "system-node-high node-high", &node.name],
        [
            "PUT",
            "/api/v1/nodes/n/status",
            "system-node-high node-high",
            &node.name,
        ],
        [
            "GET",
            "/api/v1/nodes/n/proxy",
            "system-nodes system",
            &node.name,
        ],
        ["GET", PODS, "system-nodes system", &node.name],
    ];
    assert_built_in(&node, &cases);
}

#[test]
fn controllers_are_distinguished_by_namespace_except_for_their_leases() {
    let manager = user("system:kube-controller-manager", &["system:authenticated"]);
    let [election, own] = [
        "system-leader-election leader-election",
        "kube-controller-manager workload-high",
    ];
    let cases = [
        ["PUT", LEASE, election, &manager.name],
        ["PATCH", LEASE, own, "kube-system"],
        ["GET", PODS, own, "a"],
        ["GET", "/api/v1/nodes", own, ""],
    ];
    assert_built_in(&manager, &cases);
}

#[test]
fn service_accounts_of_kube_system_have_a_schema_of_their_own() {
    let groups = ["system:serviceaccounts", "system:authenticated"];
    let gc = user("system:serviceaccount:kube-system:gc", &groups);
    let cases = [
        [
            "GET",
            LEASE,
            "system-leader-election leader-election",
            &gc.name,
        ],
        [
            "GET",
            PODS,
            "kube-system-service-accounts workload-high",
            "a",
        ],
    ];
    assert_built_in(&gc, &cases);
    let builder = user("system:serviceaccount:a:builder", &groups);
    let cases = [["GET", LEASE, "service-accounts workload-low", &builder.name]];
    assert_built_in(&builder, &cases);
}

#[test]
fn with_all_built_in_objects_nothing_dangles_or_is_imagined() {
    let matcher = Matcher::new(built_in());
    assert!(matcher.dangling().is_empty());
    assert!(matcher.levels().iter().all(|level| !level.imagined));
}

#[test]
fn a_user_without_groups_matches_the_catch_all() {
    let expected = (CATCH_ALL.to_owned(), CATCH_ALL.to_owned(), String::new());
    for matcher in [Matcher::new(built_in()), Matcher::new([])] {
        let found = classify(&matcher, &user("alice", &[]), "GET", "/version");
        assert_eq!(found, expected);
    }
}

#[test]
fn without_any_objects_the_mandatory_ones_are_imagined() {
    let matcher = Matcher::new([]);
    let names = matcher.schemas().iter().map(|schema| schema.name.as_str());
    assert!(names.eq([EXEMPT, CATCH_ALL]));
    let levels = matcher.levels();
    assert!(
        levels
            .iter()
            .map(|level| level.spec.name.as_str())
            .eq([CATCH_ALL, EXEMPT])
    );
    assert!(
        levels
            .iter()
            .all(|level| level.imagined && level.uid.is_empty())
    );
    let masters = user("admin", &["system:masters"]);
    assert_eq!(classify(&matcher, &masters, "GET", "/version").0, EXEMPT);
}

#[test]
fn a_schema_that_references_an_imagined_level_dangles() {
    let schema = |name: &str, level: &str| {
        let mut schema = mandatory::flow_schema(CATCH_ALL).unwrap().clone();
        schema.metadata.name = name.to_owned();
        schema.metadata.uid = format!("uid-{name}");
        schema.spec.priority_level_configuration = level.to_owned();
        Object::FlowSchema(schema)
    };
    let objects = [
        schema("a", CATCH_ALL),
        schema("b", "nowhere"),
        schema("c", "q4"),
        schema(CATCH_ALL, CATCH_ALL),
        Object::PriorityLevelConfiguration(level("q4", Some(4))),
    ];
    let matcher = Matcher::new(&objects);
    assert_eq!(matcher.dangling(), ["a", "b", CATCH_ALL]);
    let order: Vec<_> = matcher
        .schemas()
        .iter()
        .map(|s| (s.name.as_str(), s.uid.as_str()))
        .collect();
    assert_eq!(order, [(EXEMPT, ""), ("c", "uid-c"), (CATCH_ALL, "")]);
}

#[test]
fn a_configured_catch_all_is_ordered_by_its_name() {
    let mut objects: Vec<Object> = built_in().cloned().collect();
    let mut last = mandatory::flow_schema(CATCH_ALL).unwrap().clone();
    last.metadata.name = "last".to_owned();
    objects.push(Object::FlowSchema(last));
    let matcher = Matcher::new(&objects);
    let names: Vec<_> = matcher.schemas().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names[10..], [CATCH_ALL, "last"]);
    let alice = user("alice", &[]);
    assert_eq!(classify(&matcher, &alice, "GET", "/version").0, CATCH_ALL);
}
