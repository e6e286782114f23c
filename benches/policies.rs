//! The cost that policies add to a request, in nanoseconds for 0, 10, 100 and 1,000 of them.
//!
//! `apart`: policies for other resources, users and verbs, as a platform team has them; none is for the
//! request. `user`: all are for the user's group and the verb, and for other resources. `conditions`: the
//! fields of every tenth select the request, and its condition is false. The request is that of a user with
//! ten groups.

#![expect(
    clippy::expect_used,
    reason = "the requests and policies below are well-formed"
)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::policies::config::parse_policies;
use weir_limits::rate::policies::enforcer::RequestPolicies;
use weir_limits::rate::policies::request::PolicyRequest;
use weir_limits::{AdmissionAttributes, RequestSource};

fn policies(kind: &str, count: usize) -> RequestPolicies {
    let mut text = "[]\n".to_owned();
    if count > 0 {
        text.clear();
    }
    for n in 0..count {
        let (subject, verbs, resource) = match kind {
            "apart" if n % 2 == 0 => (
                format!("kind: User, user: {{name: user-{n}}}"),
                "'*'",
                "'*'".to_owned(),
            ),
            "apart" => (group("g-5"), "create, delete", format!("things-{n}")),
            "user" => (group("g-5"), "list", format!("things-{n}")),
            _ if n % 10 == 0 => (group("g-5"), "list", "pods".to_owned()),
            _ => (group("g-5"), "list", format!("things-{n}")),
        };
        let _ = writeln!(
            text,
            "- name: p-{n}\n  rules: [{{subjects: [{{{subject}}}], resourceRules: [{{verbs: [{verbs}], apiGroups: ['*'], \
             resources: [{resource}], clusterScope: true, namespaces: ['*']}}]}}]\n  conditions:\n  - {{name: c, expression: \
             \"request.options.limit == 0 && request.user.startsWith('user-{n}-')\"}}\n  deny: {{}}"
        );
    }
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all("policies.yaml", &text, &mut diagnostics);
    let node = nodes.first().expect("one document");
    let rules = parse_policies(node, "policies", &mut diagnostics);
    assert_eq!((diagnostics.to_string().as_str(), rules.len()), ("", count));
    RequestPolicies::replacing(None, &rules, &Arc::default(), None, &Registry::new())
}

fn group(name: &str) -> String {
    format!("kind: Group, group: {{name: {name}}}")
}

#[expect(clippy::disallowed_methods, reason = "a base instant")]
fn policies_of_a_request(criterion: &mut Criterion) {
    let info = RequestInfo::parse(
        "GET",
        b"/api/v1/namespaces/web/pods?labelSelector=app%3Dweb",
    )
    .expect("a request");
    let user = UserInfo {
        name: "alice@example.com".to_owned(),
        groups: (0..10).map(|n| format!("g-{n}")).collect(),
        ..UserInfo::default()
    };
    let request = PolicyRequest {
        attributes: AdmissionAttributes {
            info: &info,
            user: &user,
        },
        source: RequestSource {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            user_agent: b"kubectl/v1.36.0 (linux/amd64) kubernetes/abcdef0",
        },
        is_verified: true,
    };
    let now = Instant::now();
    for kind in ["apart", "user", "conditions"] {
        let mut group = criterion.benchmark_group(kind);
        for count in [0, 10, 100, 1_000] {
            let policies = policies(kind, count);
            group.bench_function(count.to_string(), |bencher| {
                bencher.iter(|| black_box(policies.decide(black_box(&request), now, 0)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, policies_of_a_request);
criterion_main!(benches);
