//! What policies decide, by examples.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{PolicyRule, parse_policies};
use super::enforcer::{PolicyDecision, RequestPolicies};
use super::request::PolicyRequest;
use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use crate::enforcement::{EnforcementOverride, EnforcementSwitch};
use weir_base::metrics::Registry;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::RequestInfo;

/// Everything that is requested.
pub(super) const ANY: &str = "\n  rules: [{subjects: [{kind: Group, group: {name: '*'}}], resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}], nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]}]\n  ";

pub(super) fn parse(text: &str) -> (Vec<PolicyRule>, String) {
    let text = text.replace(" ANY ", ANY);
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all("weir.yaml", &text, &mut diagnostics);
    let found = parse_policies(&nodes[0], "policies", &mut diagnostics);
    (found, diagnostics.to_string())
}

/// The policies of a text, with a registry of their own.
pub(super) struct Fixture {
    policies: RequestPolicies,
    enforcement: Arc<EnforcementSwitch>,
    registry: Registry,
    now: Instant,
}

impl Fixture {
    pub(super) fn new(text: &str) -> Self {
        let (rules, errors) = parse(text);
        assert_eq!(errors, "");
        let (enforcement, registry) = (Arc::default(), Registry::new());
        Self {
            policies: RequestPolicies::replacing(None, &rules, &enforcement, None, &registry),
            enforcement,
            registry,
            now: Instant::now(),
        }
    }

    pub(super) fn decide_at(
        &self,
        now: Instant,
        user: &str,
        line: &str,
        agent: &str,
    ) -> Option<Box<PolicyDecision>> {
        let (method, path) = line.split_once(' ').unwrap();
        let info = RequestInfo::parse(method, path.as_bytes()).unwrap();
        let user = UserInfo {
            name: user.to_owned(),
            groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
            ..UserInfo::default()
        };
        let request = PolicyRequest {
            attributes: AdmissionAttributes {
                info: &info,
                user: &user,
            },
            source: RequestSource {
                address: IpAddr::from([10, 1, 2, 3]),
                user_agent: agent.as_bytes(),
            },
            is_verified: true,
        };
        self.policies.decide(&request, now, 1_000)
    }

    fn decide(&self, user: &str, line: &str) -> Option<Box<PolicyDecision>> {
        self.decide_at(self.now, user, line, "kubectl/v1.36.0")
    }

    /// The policy that rejects the request, its message and its `Retry-After`.
    fn rejection(&self, user: &str, line: &str) -> Option<(String, String, u32)> {
        let rejection = self.decide(user, line)?.rejection?;
        let message = rejection.message.unwrap_or_default();
        Some((rejection.policy.to_string(), message, rejection.retry_after))
    }

    pub(super) fn metric(&self, series: &str) -> String {
        let text = self.registry.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_default().trim().to_owned()
    }
}

const LIST: &str = "GET /api/v1/namespaces/web/pods";

#[test]
fn the_first_policy_that_rejects_decides_and_those_before_it_tag() {
    let fixture = Fixture::new(
        "- {name: first, ANY , tag: seen}\n- name: second ANY deny: {message: '{user} of {verb} {resource} in {namespace}'}\n\
         - name: third ANY reject: {}\n"
            .replace("first, ANY ,", "first, rules: [{subjects: [{kind: User, user: {name: bob}}], resourceRules: [{verbs: [list], apiGroups: [''], resources: [pods], namespaces: [web]}]}],")
            .as_str(),
    );
    let decision = fixture.decide("bob", LIST).unwrap();
    let rejection = decision.rejection.as_ref().unwrap();
    assert!(rejection.is_denial);
    assert_eq!(
        rejection.message.as_deref(),
        Some("bob of list pods in web")
    );
    assert_eq!(decision.notes.tags, [Arc::from("seen")]);
    assert_eq!(decision.notes.rejected_by.as_deref(), Some("second"));
    assert!(fixture.decide("alice", LIST).unwrap().notes.tags.is_empty());
    let matches =
        |policy| fixture.metric(&format!("weir_policy_matches_total{{policy=\"{policy}\"}}"));
    assert_eq!(["first", "second", "third"].map(matches), ["1", "2", "0"]);
}

#[test]
fn a_policy_that_cannot_match_is_not_asked() {
    let fixture = Fixture::new(
        "- name: secrets\n  rules: [{subjects: [{kind: Group, group: {name: dev}}], resourceRules: [{verbs: [get, list], apiGroups: [''], resources: [secrets, pods/exec], namespaces: ['*']}]}]\n  deny: {}\n",
    );
    for (line, is_denied) in [
        ("GET /api/v1/namespaces/web/secrets/x", true),
        ("GET /api/v1/namespaces/web/secrets", true),
        ("GET /api/v1/namespaces/web/secrets?watch=1", false),
        ("GET /api/v1/namespaces/web/configmaps", false),
        ("GET /api/v1/namespaces/web/pods/x", false),
        ("GET /api/v1/namespaces/web/pods/x/exec", true),
        ("POST /api/v1/namespaces/web/pods/x/exec", false),
        ("GET /api/v1/secrets", false),
        ("GET /version", false),
    ] {
        assert_eq!(fixture.decide("bob", line).is_some(), is_denied, "{line}");
    }
}

#[test]
fn a_dry_run_counts_and_names_what_it_would_do() {
    let fixture = Fixture::new(
        "- name: a ANY deny: {}\n  enforcement: DryRun\n- name: b ANY tag: x\n  enforcement: DryRun\n",
    );
    let decision = fixture.decide("bob", LIST).unwrap();
    assert_eq!(decision.rejection, None);
    let spared: Vec<_> = decision.dry_run_rejections.iter().collect();
    assert_eq!(spared.len(), 1, "a tag rejects nothing");
    assert!(&*spared[0].policy == "a" && spared[0].is_denial);
    assert!(decision.notes.tags.is_empty());
    let effects = |enforcement| {
        fixture.metric(&format!(
            "weir_policy_effects_total{{action=\"deny\",enforcement=\"{enforcement}\",policy=\"a\"}}"
        ))
    };
    assert_eq!(["DryRun", "Enforce"].map(effects), ["1", "0"]);
    let snapshot = fixture.policies.snapshot();
    assert!(snapshot[0].dry_run && snapshot[0].rejected == 1);
    assert_eq!(snapshot[0].top[0].key, "bob");
}

#[test]
fn a_bypass_lifts_rejections_and_limits_and_no_denial() {
    let fixture = Fixture::new(
        "- name: limit ANY limit: {inFlight: 1}\n- name: reject ANY reject: {}\n- name: deny ANY deny: {}\n",
    );
    let by = || fixture.rejection("bob", LIST).map(|(policy, ..)| policy);
    assert_eq!(by().as_deref(), Some("reject"));
    fixture.enforcement.set(EnforcementOverride::Lifted);
    assert_eq!(by().as_deref(), Some("deny"));
    fixture.enforcement.set(EnforcementOverride::DryRun);
    assert_eq!(by(), None);
    let decision = fixture.decide("bob", LIST).unwrap();
    assert_eq!(decision.dry_run_rejections.len(), 2);
}

#[test]
fn a_limit_counts_by_its_key() {
    let fixture = Fixture::new(
        "- name: l ANY limit: {key: [user, namespace], requests: {qps: 1, burst: 2}, message: '{user}: later'}\n",
    );
    let is_rejected = |user, namespace: &str| {
        let line = format!("GET /api/v1/namespaces/{namespace}/pods");
        fixture.rejection(user, &line).is_some()
    };
    assert_eq!(
        [(); 3].map(|()| is_rejected("bob", "a")),
        [false, false, true]
    );
    assert!(!is_rejected("bob", "b") && !is_rejected("alice", "a"));
    let rejection = fixture.rejection("bob", "GET /api/v1/namespaces/a/pods");
    assert_eq!(
        rejection,
        Some(("l".to_owned(), "bob: later".to_owned(), 1))
    );
    let later = fixture.now + Duration::from_secs(1);
    let passes = fixture.decide_at(later, "bob", "GET /api/v1/namespaces/a/pods", "");
    assert_eq!(passes.unwrap().rejection, None);
}

#[test]
fn the_keys_of_a_limit_are_bounded() {
    let fixture =
        Fixture::new("- name: l ANY limit: {key: [user], requests: {qps: 1}, maxKeys: 8}\n");
    for n in 0..100 {
        let _ = fixture.decide(&format!("user-{n}"), LIST);
    }
    assert_eq!(fixture.metric("weir_policy_keys{policy=\"l\"}"), "8");
}

#[test]
fn a_slot_is_held_until_the_permit_is_dropped() {
    let fixture = Fixture::new("- name: l ANY limit: {key: [user], inFlight: 1}\n");
    let held = fixture.decide("bob", LIST).unwrap().into_permit();
    assert!(held.is_some());
    assert!(fixture.rejection("bob", LIST).is_some());
    assert!(fixture.rejection("alice", LIST).is_none());
    drop(held);
    assert!(fixture.rejection("bob", LIST).is_none());
}

#[test]
fn a_reload_keeps_the_buckets_of_a_policy_that_stays() {
    let text = "- name: l ANY limit: {requests: {qps: 1, burst: 1}}\n";
    let mut fixture = Fixture::new(text);
    assert!(fixture.rejection("bob", LIST).is_none());
    for (text, is_rejected) in [
        (format!("- name: other ANY tag: x\n{text}"), true),
        (text.replace("burst: 1", "burst: 2"), false),
    ] {
        let (rules, _) = parse(&text);
        let earlier = Some(&fixture.policies);
        let (switch, registry) = (&fixture.enforcement, &fixture.registry);
        fixture.policies = RequestPolicies::replacing(earlier, &rules, switch, None, registry);
        assert_eq!(fixture.rejection("bob", LIST).is_some(), is_rejected);
    }
}

#[test]
fn user_agents_and_the_end_are_looked_at() {
    let fixture = Fixture::new(
        "- name: agent ANY userAgents: [kubectl/*]\n  deny: {}\n- name: ended ANY until: '1970-01-01T00:16:40Z'\n  deny: {}\n\
         - name: not-yet ANY until: 1970-01-01T01:16:41+01:00\n  tag: x\n",
    );
    let by = |agent| {
        let decision = fixture.decide_at(fixture.now, "bob", LIST, agent).unwrap();
        (
            decision.notes.rejected_by.clone(),
            decision.notes.tags.len(),
        )
    };
    assert_eq!(by("kubectl/v1.36"), (Some("agent".into()), 0));
    assert_eq!(by("curl/8"), (None, 1));
}

#[test]
fn values_in_messages_are_escaped_and_bounded() {
    let fixture =
        Fixture::new("- name: m ANY deny: {message: '{{{userAgent}}} from {sourceAddress}'}\n");
    let agent = "a\u{1b}[2J\u{202e}".to_owned() + &"x".repeat(1000);
    let decision = fixture.decide_at(fixture.now, "bob", LIST, &agent).unwrap();
    let message = decision.rejection.unwrap().message.unwrap();
    assert!(message.starts_with("{a\\x1b[2J\\u202exxx"), "{message}");
    assert!(
        message.ends_with("xxx…} from 10.1.2.3") && message.len() < 200,
        "{message}"
    );
}

#[test]
fn conditions_run_on_what_the_fields_select() {
    let text = "- name: lists\n  rules: [{subjects: [{kind: Group, group: {name: '*'}}], resourceRules: [{verbs: [list], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]}]\n  conditions:\n  - {name: whole, expression: 'request.options.limit == 0'}\n  - {name: people, expression: \"!request.user.startsWith('system:')\"}\n  deny: {}\n";
    let fixture = Fixture::new(text);
    let failing = Fixture::new(&text.replace("deny:", "failurePolicy: Fail\n  deny:"));
    for (user, line, expected) in [
        ("bob", "GET /api/v1/pods", Ok(true)),
        ("bob", "GET /api/v1/pods?limit=500", Ok(false)),
        ("system:node:a", "GET /api/v1/pods", Ok(false)),
        ("bob", "GET /api/v1/pods?limit=x", Err(())),
        ("system:node:a", "GET /api/v1/pods?limit=x", Ok(false)),
        ("bob", "GET /api/v1/namespaces/a/pods/b?limit=x", Ok(false)),
    ] {
        for (fixture, on_error) in [(&fixture, false), (&failing, true)] {
            let is_denied = fixture.rejection(user, line).is_some();
            assert_eq!(is_denied, expected.unwrap_or(on_error), "{user} {line}");
        }
    }
    let errors = "weir_policy_condition_errors_total{policy=\"lists\"}";
    assert_eq!([fixture.metric(errors), failing.metric(errors)], ["1", "1"]);
}

/// What is wrong with each, where, and what would be right.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_policies_say_where_and_what_would_be_right() {
    let mut missing = Vec::new();
    for (text, expected) in [
        (
            "- deny: {}\n  rules: []",
            ":1:3: policies[0].name: required, but not given",
        ),
        (
            "- name: a b ANY deny: {}",
            ":1:9: policies[0].name: expected 1 to 63 letters",
        ),
        (
            "- name: ''\n  rules: []\n  deny: {}",
            ":1:9: policies[0].name: expected 1 to 63",
        ),
        (
            "- name: a ANY deny: {}\n- name: a ANY deny: {}",
            ":4:9: policies[1].name: another policy is named \"a\"",
        ),
        (
            "- name: a\n  deny: {}",
            ":1:3: policies[0].rules: required, but not given",
        ),
        (
            "- name: a\n  deny: {}\n  rules: [{subjects: [{kind: User, user: {name: a}}]}]",
            ":3:11: policies[0].rules[0]: Required value: at least one",
        ),
        (
            "- name: a\n  deny: {}\n  rules: [{subjects: [{kind: Person, user: {name: a}}]}]",
            "policies[0].rules[0].subjects[0].kind: Unsupported value",
        ),
        (
            "- name: a\n  deny: {}\n  rules: [{subjects: [{kind: User, user: {name: a}}], resourceRules: [{verbs: [get], apiGroups: [''], resources: [pods]}]}]",
            "resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
        ),
        (
            "- name: a\n  deny: {}\n  rules: [{subject: []}]",
            "policies[0].rules[0].subject: unknown field; allowed here: ",
        ),
        (
            "- name: a ANY denied: {}",
            "policies[0].denied: unknown field; allowed here: name, rules, userAgents, conditions",
        ),
        (
            "- name: a ANY userAgents: []",
            ":1:3: policies[0]: an action is required: deny, reject, limit or tag",
        ),
        (
            "- name: a ANY deny: {}\n  tag: x",
            ":4:8: policies[0].tag: one action is expected, and deny, tag is given",
        ),
        (
            "- name: a ANY deny: now",
            ":3:9: policies[0].deny: expected a mapping, got a string",
        ),
        (
            "- name: a ANY deny: {message: 'no {person}'}",
            ":3:19: policies[0].deny.message: there is no field \"person\"; expected name, namespace, resource",
        ),
        (
            "- name: a ANY deny: {message: 'no {user'}",
            "policies[0].deny.message: a brace without its other one; {{ and }} are braces",
        ),
        (
            "- name: a ANY deny: {message: \"a\\nb\"}",
            "deny.message: a message is one line",
        ),
        (
            "- name: a ANY deny: {retryAfter: 5s}",
            "policies[0].deny.retryAfter: unknown field; allowed here: message",
        ),
        (
            "- name: a ANY reject: {retryAfter: 5}",
            "reject.retryAfter: expected a string, got the number 5",
        ),
        (
            "- name: a ANY reject: {retryAfter: 1500ms}",
            "reject.retryAfter: expected whole seconds from 1s to 1h",
        ),
        (
            "- name: a ANY limit: {}",
            ":3:10: policies[0].limit: a limit is expected: requests (qps, burst), inFlight, or both",
        ),
        (
            "- name: a ANY limit: {key: [user, pod], inFlight: 1}",
            ":3:23: policies[0].limit.key[1]: there is no field \"pod\"; expected name, namespace",
        ),
        (
            "- name: a ANY limit: {key: [user, user], inFlight: 1}",
            "limit.key: a field is given twice",
        ),
        (
            "- name: a ANY limit: {key: user, inFlight: 1}",
            "limit.key: expected a list, got a string",
        ),
        (
            "- name: a ANY limit: {inFlight: 0}",
            "limit.inFlight: expected a whole number from 1 to 1000000, got the number 0",
        ),
        (
            "- name: a ANY limit: {requests: {burst: 3}}",
            "limit.requests.qps: required, but not given",
        ),
        (
            "- name: a ANY limit: {requests: {qps: 0}}",
            "limit.requests.qps: expected a whole number from 1 to",
        ),
        (
            "- name: a ANY limit: {inFlight: 1, maxKeys: 0}",
            "limit.maxKeys: expected a whole number from 1",
        ),
        (
            "- name: a ANY tag: two words",
            "policies[0].tag: expected 1 to 63 letters, digits",
        ),
        (
            "- name: a ANY deny: {}\n  enforcement: Dry",
            ":4:16: policies[0].enforcement: expected Enforce or DryRun, got the string \"Dry\"",
        ),
        (
            "- name: a ANY deny: {}\n  failurePolicy: Deny",
            "policies[0].failurePolicy: expected Ignore or Fail, got the string \"Deny\"",
        ),
        (
            "- name: a ANY deny: {}\n  until: tomorrow",
            "policies[0].until: expected a time of RFC 3339, such as 2027-01-31T08:00:00Z",
        ),
        (
            "- name: a ANY deny: {}\n  userAgents: ['']",
            "policies[0].userAgents[0]: a value is empty",
        ),
        (
            "- name: a ANY deny: {}\n  conditions: [{expression: 'true'}]",
            "policies[0].conditions[0].name: required, but not given",
        ),
        (
            "- name: a ANY deny: {}\n  conditions: [{name: a, expression: 'true'}, {name: a, expression: 'true'}]",
            "conditions[1].name: another condition is named \"a\"",
        ),
        (
            "- name: a ANY deny: {}\n  conditions:\n  - name: a\n    expression: request.usr == 'a'",
            ":6:17: policies[0].conditions[0].expression: request has no field usr; expected user, groups",
        ),
        (
            "- name: a ANY deny: {}\n  conditions:\n  - name: a\n    expression: |\n      user.verified &&\n      request.user = 'a'",
            "request.user = 'a'",
        ),
        (
            "- name: a ANY deny: {}\n  conditions: [{name: a, expression: \"request.groups.all(g, g == 'a')\"}]",
            "comprehensions (all, exists, map, filter) are not allowed; use in, or several conditions (line 1, column 1 of the expression)",
        ),
    ] {
        let expected = match expected.strip_prefix("request.user = ") {
            Some(_) => "== compares (line 2, column 14 of the expression)",
            None => expected,
        };
        let (_, found) = parse(text);
        if !found.contains(expected) {
            missing.push(format!("{text}\n  found {found}\n  expected {expected}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn all_errors_of_all_policies_are_reported() {
    let (policies, found) = parse(
        "- name: a\n  tag: a b\n- name: b ANY deny: {}\n- nmae: c ANY limit: {inFlight: -1}\n",
    );
    assert_eq!(found.lines().count(), 5, "{found}");
    assert!(policies.iter().any(|policy| policy.name == "b"));
    let many = "- name: a ANY tag: x\n".repeat(1001);
    let (_, found) = parse(&many);
    assert!(found.contains("policies[1000]: there are at most 1000 policies"));
}
