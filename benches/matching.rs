//! The cost of finding the flow schema, priority level and flow of a request, in nanoseconds for
//! each kind of request.
//!
//! Measured with the built-in flow schemas, and with two hundred more before them, each for a few
//! users.

#![expect(
    clippy::expect_used,
    reason = "the requests and schemas below are well-formed"
)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use weir_flowcontrol::bootstrap::{BootstrapClass, objects};
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{FlowSchema, Object};
use weir_kubernetes::request_info::RequestInfo;

struct MatchingCase {
    case: &'static str,
    schema: &'static str,
    user: &'static str,
    groups: &'static [&'static str],
    method: &'static str,
    target: &'static str,
}

const CASES: [MatchingCase; 8] = [
    MatchingCase {
        case: "masters",
        schema: "exempt",
        user: "admin",
        groups: &["system:masters", "system:authenticated"],
        method: "GET",
        target: "/api/v1/namespaces/foo/pods/bar",
    },
    MatchingCase {
        case: "probe",
        schema: "probes",
        user: "system:anonymous",
        groups: &["system:unauthenticated"],
        method: "GET",
        target: "/readyz",
    },
    MatchingCase {
        case: "leader election",
        schema: "system-leader-election",
        user: "system:kube-scheduler",
        groups: &["system:authenticated"],
        method: "PUT",
        target: "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
    },
    MatchingCase {
        case: "kubelet lease",
        schema: "system-node-high",
        user: "system:node:ip-10-0-12-34.eu-central-1.compute.internal",
        groups: &["system:nodes", "system:authenticated"],
        method: "PUT",
        target: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/ip-10-0-12-34",
    },
    MatchingCase {
        case: "node",
        schema: "system-nodes",
        user: "system:node:ip-10-0-12-34.eu-central-1.compute.internal",
        groups: &["system:nodes", "system:authenticated"],
        method: "PATCH",
        target: "/api/v1/namespaces/foo/pods/bar/status",
    },
    MatchingCase {
        case: "service account",
        schema: "service-accounts",
        user: "system:serviceaccount:default:builder",
        groups: &[
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated",
        ],
        method: "GET",
        target: "/api/v1/namespaces/foo/pods?limit=500&resourceVersion=0",
    },
    MatchingCase {
        case: "user",
        schema: "global-default",
        user: "alice",
        groups: &["devs", "ops", "system:authenticated"],
        method: "GET",
        target: "/api/v1/namespaces/foo/pods/bar",
    },
    MatchingCase {
        case: "anonymous",
        schema: "global-default",
        user: "system:anonymous",
        groups: &["system:unauthenticated"],
        method: "GET",
        target: "/version",
    },
];

/// Copies of `service-accounts` that precede it, for other service accounts.
fn tenant_schemas() -> impl Iterator<Item = Object> {
    let original = objects(BootstrapClass::Suggested)
        .iter()
        .find_map(|object| match object {
            Object::FlowSchema(schema) if schema.metadata.name == "service-accounts" => {
                Some(schema)
            }
            Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
        })
        .expect("one of the suggested schemas");
    (0..200).map(|n| {
        let mut schema: FlowSchema = original.clone();
        schema.metadata.name = format!("tenant-{n}");
        schema.spec.matching_precedence = 1000;
        for subject in schema
            .spec
            .rules
            .iter_mut()
            .flat_map(|rule| &mut rule.subjects)
        {
            subject.group = Some(format!("system:serviceaccounts:tenant-{n}"));
        }
        Object::FlowSchema(schema)
    })
}

fn classify(c: &mut Criterion) {
    let built_in = || {
        objects(BootstrapClass::Mandatory)
            .iter()
            .chain(objects(BootstrapClass::Suggested))
    };
    let tenants: Vec<Object> = tenant_schemas().collect();
    let matchers = [
        ("built_in_schemas", Matcher::new(built_in())),
        ("with_200_tenants", Matcher::new(built_in().chain(&tenants))),
    ];
    for (name, matcher) in matchers {
        let mut group = c.benchmark_group(name);
        for case in &CASES {
            let user = UserInfo {
                name: case.user.to_owned(),
                groups: case.groups.iter().map(|&group| group.to_owned()).collect(),
                ..UserInfo::default()
            };
            let info = RequestInfo::parse(case.method, case.target.as_bytes())
                .expect("a well-formed request");
            let found = matcher.classify(&RequestDigest::new(&info, &user));
            assert_eq!(found.schema.name, case.schema);
            group.bench_function(case.case, |b| {
                b.iter(|| {
                    let digest = RequestDigest::new(black_box(&info), black_box(&user));
                    black_box(&matcher).classify(&digest).flow_hash
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, classify);
criterion_main!(benches);
