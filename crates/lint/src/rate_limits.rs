//! Warnings about rate limits and policies: EventRateLimit, `clientLimits` and `policies`.

use std::net::Ipv4Addr;

use super::authenticators::Authenticators;
use super::flow_schemas::lint_rules;
use super::rule::{LintFinding, Rule};
use weir_flowcontrol::matching::{Policies, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;
use weir_kubernetes::api::user::GROUP_AUTHENTICATED;
use weir_kubernetes::document::Node;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::clients::config::ClientLimitRule;
use weir_limits::rate::events::config::{EventLimitConfig, LimitType};
use weir_limits::rate::policies::config::{PolicyAction, PolicyRule};
use weir_limits::rate::policies::request::PolicyRequest;
use weir_limits::{AdmissionAttributes, RequestSource};

/// A list in a document, and its path.
#[derive(Clone, Copy, Debug)]
pub struct ListPlace<'n> {
    /// The value whose fields are located.
    pub node: &'n Node,
    /// What stands before the field in messages. Empty for the document.
    pub prefix: &'n str,
}

impl ListPlace<'_> {
    fn finding(&self, rule: Rule, field: &str, message: String) -> LintFinding {
        let separator = match (self.prefix, field.starts_with('[')) {
            ("", _) | (_, true) => "",
            _ => ".",
        };
        LintFinding {
            rule,
            // A path that begins with an index is located without its first bracket.
            location: self.node.locate(field.trim_start_matches('[')).clone(),
            field: format!("{}{separator}{field}", self.prefix),
            message,
        }
    }
}

/// All warnings about the limits of a configuration of EventRateLimit, which `place` has in its
/// field `limits`.
pub fn lint_events(limits: &[EventLimitConfig], place: ListPlace<'_>) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (n, limit) in limits.iter().enumerate() {
        let is_not_above = |server: &&EventLimitConfig| {
            server.limit_type == LimitType::Server
                && server.qps <= limit.qps
                && server.burst <= limit.burst
        };
        if limit.limit_type != LimitType::Server
            && limit.warning_reserve_percent == 0
            && let Some(server) = limits.iter().find(is_not_above)
        {
            let message = format!(
                "the limit of type {} (qps {}, burst {}) is not below that of type Server (qps {}, burst {}): it never \
                 rejects first, but while the server's bucket is empty it is charged for events that are rejected \
                 anyway, and then rejects others; remove it, or set it below",
                limit.limit_type.name(),
                limit.qps,
                limit.burst,
                server.qps,
                server.burst
            );
            findings.push(place.finding(
                Rule::EventLimitUnreachable,
                &format!("limits[{n}].qps"),
                message,
            ));
        }
        if limit.warning_reserve_percent == 100 {
            let message =
                "all tokens are reserved for events of type Warning: another event is admitted only while its bucket \
                 is full"
                    .to_owned();
            findings.push(place.finding(
                Rule::EventReserve,
                &format!("limits[{n}].warningReservePercent"),
                message,
            ));
        }
    }
    findings
}

/// All warnings about the rules of `clientLimits`, which `place` is the list of.
pub fn lint_clients(
    rules: &[ClientLimitRule],
    place: ListPlace<'_>,
    authenticators: Option<&Authenticators>,
) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (n, rule) in rules.iter().enumerate() {
        for (lint, field, message) in lint_rules(&rule.rules, authenticators) {
            findings.push(place.finding(lint, &format!("[{n}].rules{field}"), message));
        }
        let all = &rule.rules;
        let mut add = |field: &str, message: &str| {
            let field = format!("[{n}].{field}");
            findings.push(place.finding(Rule::ClientLimitUnreachable, &field, message.to_owned()));
        };
        if rule.long_running.watches.is_some() && !has_verb(all, &["watch"]) {
            add(
                "longRunning.watches",
                "never reached: no rule has the verb \"watch\"",
            );
        }
        if rule.long_running.streams.is_some() && !matches_streams(all) {
            add(
                "longRunning.streams",
                "never reached: no rule matches a stream; name its subresource, such as \"pods/exec\" or \
                 \"pods/log\": \"pods\" does not match it",
            );
        }
    }
    findings
}

/// All warnings about policies, which `place` is the list of. `unix_second` is the time.
pub fn lint_policies(
    policies: &[PolicyRule],
    place: ListPlace<'_>,
    authenticators: Option<&Authenticators>,
    verifies_tokens: bool,
    unix_second: i64,
) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (n, policy) in policies.iter().enumerate() {
        for (lint, field, message) in lint_rules(&policy.rules, authenticators) {
            // Policies apply to streams, which FlowSchemas do not.
            if lint != Rule::LongRunningOnly {
                findings.push(place.finding(lint, &format!("[{n}].rules{field}"), message));
            }
        }
        if matches!(policy.action, PolicyAction::Deny(_))
            && policy.names_users()
            && !verifies_tokens
        {
            let message = "it denies by user, and a client with a token that weir cannot verify is system:anonymous to it: \
                           weir has no credentials for TokenReviews";
            let (rule, field) = (Rule::PolicyUserUnverified, format!("[{n}].deny"));
            findings.push(place.finding(rule, &field, message.to_owned()));
        }
        let hit = control_plane_hits(policy, unix_second);
        if !hit.is_empty() {
            let (does, key) = match policy.action {
                PolicyAction::Deny(_) => ("denies", "deny"),
                PolicyAction::Reject { .. } => ("rejects", "reject"),
                PolicyAction::Limit(_) | PolicyAction::Tag(_) => ("limits", "limit"),
            };
            let message = format!("it {does} what keeps the cluster alive: {}", hit.join(", "));
            let field = format!("[{n}].{key}");
            findings.push(place.finding(Rule::PolicyHitsControlPlane, &field, message));
        }
        if policy.until.is_some_and(|until| until <= unix_second) {
            let message = "the time has passed: the policy does nothing".to_owned();
            findings.push(place.finding(Rule::PolicyEnded, &format!("[{n}].until"), message));
        }
    }
    findings
}

/// What keeps a cluster alive: what it is, method, target, user and groups.
const CONTROL_PLANE: [(&str, &str, &str, &str, &[&str]); 9] = [
    (
        "heartbeats of nodes",
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1",
        "system:node:node-1",
        &["system:nodes"],
    ),
    (
        "status of nodes",
        "PATCH",
        "/api/v1/nodes/node-1/status?timeout=10s",
        "system:node:node-1",
        &["system:nodes"],
    ),
    (
        "reviews of tokens",
        "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "system:node:node-1",
        &["system:nodes"],
    ),
    (
        "reviews of accesses",
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        "system:node:node-1",
        &["system:nodes"],
    ),
    (
        "watches of nodes",
        "GET",
        "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dnode-1&watch=true",
        "system:node:node-1",
        &["system:nodes"],
    ),
    (
        "leader election of the controller manager",
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager",
        "system:kube-controller-manager",
        &[],
    ),
    (
        "bindings of the scheduler",
        "POST",
        "/api/v1/namespaces/default/pods/a/binding",
        "system:kube-scheduler",
        &[],
    ),
    (
        "controllers of kube-system",
        "GET",
        "/api/v1/pods?limit=500&resourceVersion=0",
        "system:serviceaccount:kube-system:replicaset-controller",
        &[
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
        ],
    ),
    (
        "administrators of system:masters",
        "GET",
        "/api/v1/namespaces/kube-system",
        "kubernetes-super-admin",
        &["system:masters"],
    ),
];

/// Which requests of [`CONTROL_PLANE`] a policy stops or limits.
fn control_plane_hits(policy: &PolicyRule, unix_second: i64) -> Vec<&'static str> {
    if matches!(policy.action, PolicyAction::Tag(_)) {
        return Vec::new();
    }
    let rules = Policies::new([&policy.rules[..]]);
    let is_hit = |method: &str, target: &str, name: &str, groups: &[&str]| {
        let groups = [GROUP_AUTHENTICATED]
            .into_iter()
            .chain(groups.iter().copied());
        let user = UserInfo {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            ..UserInfo::default()
        };
        let Ok(info) = RequestInfo::parse(method, target.as_bytes()) else {
            return false; // never: they are constants, and a test reads them
        };
        let request = PolicyRequest {
            attributes: AdmissionAttributes {
                info: &info,
                user: &user,
            },
            source: RequestSource {
                address: Ipv4Addr::LOCALHOST.into(),
                user_agent: b"kubelet/v1.36.2",
            },
            is_verified: true,
        };
        let digest = RequestDigest::new(&info, &user);
        rules.matching_entries(&digest).next().is_some()
            && policy
                .matches(&request, unix_second)
                .unwrap_or(policy.applies_on_error)
    };
    CONTROL_PLANE
        .iter()
        .filter(|(_, method, target, user, groups)| is_hit(method, target, user, groups))
        .map(|(what, ..)| *what)
        .collect()
}

fn has_verb(rules: &[PolicyRulesWithSubjects], verbs: &[&str]) -> bool {
    let is_wanted = |verb: &String| verb == "*" || verbs.contains(&verb.as_str());
    rules.iter().any(|rules| {
        let resource = rules.resource_rules.iter().flat_map(|rule| &rule.verbs);
        let other = rules.non_resource_rules.iter().flat_map(|rule| &rule.verbs);
        resource.chain(other).any(is_wanted)
    })
}

/// Whether a request that opens a stream may match: `RequestInfo::connects`, the verb `proxy`, or a
/// profile.
fn matches_streams(rules: &[PolicyRulesWithSubjects]) -> bool {
    let is_stream = |name: &String| {
        name == "*"
            || name.split_once('/').is_some_and(|(_, subresource)| {
                ["attach", "exec", "log", "portforward", "proxy"].contains(&subresource)
            })
    };
    let is_profile = |url: &String| url.contains('*') || url.starts_with("/debug") || url == "/";
    has_verb(rules, &["proxy"])
        && rules.iter().any(|rules| {
            rules
                .resource_rules
                .iter()
                .any(|rule| rule.verbs.iter().any(|verb| verb == "proxy" || verb == "*"))
        })
        || rules.iter().any(|rules| {
            let resources = rules.resource_rules.iter().flat_map(|rule| &rule.resources);
            let urls = rules
                .non_resource_rules
                .iter()
                .flat_map(|rule| &rule.non_resource_urls);
            resources.into_iter().any(is_stream) || urls.into_iter().any(is_profile)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::document;
    use weir_kubernetes::document::Diagnostics;
    use weir_limits::rate::policies::config::parse_policies;

    fn lint(policy: &str, verifies_tokens: bool, now: i64) -> Vec<Rule> {
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("weir.yaml", policy, &mut diagnostics);
        let policies = parse_policies(&nodes[0], "policies", &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "");
        let place = ListPlace {
            node: &nodes[0],
            prefix: "policies",
        };
        let findings = lint_policies(&policies, place, None, verifies_tokens, now);
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn a_policy_that_stops_the_control_plane_is_found_whether_it_is_named_or_not() {
        let policy = |subject: &str, resources: &str, does: &str| {
            format!(
                "- name: a\n  rules: [{{subjects: [{subject}], resourceRules: [{{verbs: ['*'], apiGroups: ['*'], resources: [{resources}], clusterScope: true, namespaces: ['*']}}]}}]\n  {does}"
            )
        };
        let all = "{kind: Group, group: {name: 'system:authenticated'}}";
        let alice = "{kind: User, user: {name: alice}}";
        let spared = "conditions: [{name: a, expression: \"!('system:nodes' in request.groups) && !request.user.startsWith('system:') && !('system:masters' in request.groups)\"}]\n  deny: {}";
        for (policy, hits) in [
            (policy(all, "'*'", "deny: {}"), CONTROL_PLANE.len()),
            (
                policy(all, "'*'", "limit: {requests: {qps: 1, burst: 1}}"),
                CONTROL_PLANE.len(),
            ),
            (policy(all, "leases", "reject: {}"), 2),
            (
                policy(
                    "{kind: Group, group: {name: 'system:masters'}}",
                    "'*'",
                    "deny: {}",
                ),
                1,
            ),
            (policy(all, "'*'", "tag: x"), 0),
            (policy(all, "'*'", spared), 0),
            (policy(alice, "'*'", "deny: {}"), 0),
            (policy(all, "secrets", "deny: {}"), 0),
        ] {
            let mut diagnostics = Diagnostics::default();
            let nodes = document::parse_all("weir.yaml", &policy, &mut diagnostics);
            let policies = parse_policies(&nodes[0], "policies", &mut diagnostics);
            assert_eq!(diagnostics.to_string(), "", "{policy}");
            let found = control_plane_hits(&policies[0], 0);
            assert_eq!(found.len(), hits, "{policy}: {found:?}");
            let is_reported = lint(&policy, true, 0).contains(&Rule::PolicyHitsControlPlane);
            assert_eq!(is_reported, hits > 0, "{policy}");
        }
    }

    #[test]
    fn a_denial_by_user_needs_verified_tokens() {
        let rules = |subject: &str| {
            format!(
                "- name: a\n  rules: [{{subjects: [{{{subject}}}], resourceRules: [{{verbs: [list], apiGroups: [''], resources: [pods/exec], namespaces: ['*']}}]}}]\n  "
            )
        };
        let alice = rules("kind: User, user: {name: alice}");
        let all = rules("kind: Group, group: {name: 'system:authenticated'}");
        let by_condition =
            "conditions: [{name: a, expression: \"request.user == 'alice'\"}]\n  deny: {}";
        let of_path =
            "conditions: [{name: a, expression: \"request.userAgent == 'a'\"}]\n  deny: {}";
        for (policy, expected) in [
            (format!("{alice}deny: {{}}"), true),
            (format!("{alice}reject: {{}}"), false),
            (format!("{all}deny: {{}}"), false),
            (format!("{all}{by_condition}"), true),
            (format!("{all}{of_path}"), false),
        ] {
            let found = lint(&policy, false, 0);
            assert_eq!(
                found.contains(&Rule::PolicyUserUnverified),
                expected,
                "{policy}"
            );
            assert!(lint(&policy, true, 0).is_empty(), "{policy}");
        }
        let ended = format!("{all}until: 1970-01-01T00:00:05Z\n  tag: x");
        assert_eq!(lint(&ended, true, 5), [Rule::PolicyEnded]);
        assert!(lint(&ended, true, 4).is_empty());
    }
}
