//! Configurations as clusters have them, and some that nobody should have.

use super::*;
use crate::flowcontrol::bootstrap;
use crate::flowcontrol::bootstrap::Class;
use crate::flowcontrol::shuffle_sharding::flow_hash;

fn built_in() -> impl Iterator<Item = &'static Object> {
    let mandatory = bootstrap::objects(Class::Mandatory);
    mandatory.iter().chain(bootstrap::objects(Class::Suggested))
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    }
}

/// The names of schema and level, the distinguisher, and whether the hash is that of schema and distinguisher.
fn classified(
    matcher: &Matcher,
    user: &UserInfo,
    (method, target): (&str, &str),
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

#[test]
fn the_built_in_schemas_sort_requests_as_every_cluster_does() {
    let matcher = Matcher::new(built_in());
    assert!(matcher.dangling().is_empty());
    assert!(matcher.levels().iter().all(|level| !level.imagined));
    let admin = user("admin", &["system:masters", "system:authenticated"]);
    let node = user("system:node:n", &["system:nodes", "system:authenticated"]);
    let manager = user("system:kube-controller-manager", &["system:authenticated"]);
    let gc_groups = ["system:serviceaccounts", "system:authenticated"];
    let gc = user("system:serviceaccount:kube-system:gc", &gc_groups);
    let builder = user("system:serviceaccount:a:builder", &gc_groups);
    let nobody = UserInfo::anonymous();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l";
    let pods = "/api/v1/namespaces/a/pods";
    let cases = [
        (&admin, ("GET", pods), ("exempt", "exempt", "")),
        (&nobody, ("GET", "/livez/ping"), ("probes", "exempt", "")),
        (&manager, ("PUT", lease), ("system-leader-election", "leader-election", manager.name.as_str())),
        (&manager, ("PATCH", lease), ("kube-controller-manager", "workload-high", "kube-system")),
        (&gc, ("GET", lease), ("system-leader-election", "leader-election", &gc.name)),
        (&node, ("PATCH", lease), ("system-node-high", "node-high", &node.name)),
        (&node, ("PATCH", "/api/v1/nodes/n/status"), ("system-node-high", "node-high", &node.name)),
        (&node, ("GET", "/api/v1/nodes/n/proxy"), ("system-nodes", "system", &node.name)),
        (&gc, ("GET", "/api/v1/nodes"), ("kube-system-service-accounts", "workload-high", "")),
        (&builder, ("GET", pods), ("service-accounts", "workload-low", &builder.name)),
        (&nobody, ("GET", "/version"), ("global-default", "global-default", &nobody.name)),
    ];
    for (user, request, (schema, level, distinguisher)) in cases {
        let expected = (schema.to_owned(), level.to_owned(), distinguisher.to_owned());
        assert_eq!(classified(&matcher, user, request), expected, "{user:?} {request:?}");
    }
}

#[test]
fn whoever_is_in_no_group_at_all_falls_to_the_catch_all() {
    let request = ("GET", "/version");
    let expected = (CATCH_ALL.to_owned(), CATCH_ALL.to_owned(), String::new());
    for matcher in [Matcher::new(built_in()), Matcher::new([])] {
        assert_eq!(classified(&matcher, &user("alice", &[]), request), expected);
    }
}

#[test]
fn without_any_objects_the_mandatory_ones_are_imagined() {
    let matcher = Matcher::new([]);
    let names = matcher.schemas().iter().map(|schema| schema.name.as_str());
    assert!(names.eq([EXEMPT, CATCH_ALL]));
    let levels = matcher.levels();
    assert!(levels.iter().map(|level| level.spec.name.as_str()).eq([CATCH_ALL, EXEMPT]));
    assert!(levels.iter().all(|level| level.imagined && level.uid.is_empty()));
    let masters = user("admin", &["system:masters"]);
    assert_eq!(classified(&matcher, &masters, ("GET", "/version")).0, EXEMPT);
}

#[test]
fn a_schema_to_a_level_that_is_imagined_dangles() {
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
    let order: Vec<_> = matcher.schemas().iter().map(|s| (s.name.as_str(), s.uid.as_str())).collect();
    assert_eq!(order, [(EXEMPT, ""), ("c", "uid-c"), (CATCH_ALL, "")]);
}

#[test]
fn a_catch_all_of_the_configuration_keeps_the_place_that_its_name_gives_it() {
    let mut objects: Vec<Object> = built_in().cloned().collect();
    let mut last = mandatory::flow_schema(CATCH_ALL).unwrap().clone();
    last.metadata.name = "last".to_owned();
    objects.push(Object::FlowSchema(last));
    let matcher = Matcher::new(&objects);
    let names: Vec<_> = matcher.schemas().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names[10..], [CATCH_ALL, "last"]);
    let alice = user("alice", &[]);
    assert_eq!(classified(&matcher, &alice, ("GET", "/version")).0, CATCH_ALL);
}
