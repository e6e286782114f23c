//! Shadowing at random, against the matcher; and event limits, against their buckets.

use std::borrow::Cow;
use std::iter::repeat_with;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::flow_schemas;
use super::objects::{ObjectSet, Scope};
use super::rate_limits::{ListPlace, lint_events};
use super::rule::Rule;
use weir_flowcontrol::matching::RequestDigest;
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::Verb;
use weir_limits::rate::events::buckets::{EventBucketKeys, EventLimits, LimitedEvent};
use weir_limits::rate::events::config::{EventLimitConfig, parse_limits};
use weir_limits::rate::lru_key::LruKeyHasher;

const SCOPE: Scope = Scope {
    server_concurrency_limit: 600,
    has_unknown_objects: false,
};

const USERS: [&str; 7] = [
    "alice",
    "bob",
    "system:anonymous",
    "system:serviceaccount:a:x",
    "system:serviceaccount:a:y",
    "system:serviceaccount:b:x",
    "system:node:n",
];
const GROUPS: [&str; 7] = [
    "devs",
    "ops",
    "system:authenticated",
    "system:unauthenticated",
    "system:serviceaccounts",
    "system:serviceaccounts:a",
    "system:nodes",
];
const VERBS: [&str; 4] = ["get", "list", "create", "watch"];
const API_GROUPS: [&str; 3] = ["''", "apps", "batch"];
const RESOURCES: [&str; 4] = ["pods", "pods/log", "nodes", "deployments"];
const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const PATHS: [&str; 6] = ["/a", "/a/", "/a/*", "/a/b", "/ab", "/b/c/*"];

struct RandomSchemas(Rng);

impl RandomSchemas {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.0.usize(..of.len())]
    }

    /// A list in YAML: a wildcard, or one to three names.
    fn list(&mut self, of: &[&str]) -> String {
        if self.0.u8(..3) == 0 {
            return "['*']".to_owned();
        }
        let count = self.0.usize(1..4);
        let names: Vec<_> = repeat_with(|| self.one(of)).take(count).collect();
        format!("[{}]", names.join(", "))
    }

    fn subject(&mut self) -> String {
        match self.0.u8(..8) {
            0 => "{kind: Group, group: {name: '*'}}".to_owned(),
            1 => "{kind: ServiceAccount, serviceAccount: {namespace: a, name: '*'}}".to_owned(),
            2 => "{kind: ServiceAccount, serviceAccount: {namespace: a, name: x}}".to_owned(),
            3 | 4 => format!("{{kind: User, user: {{name: {:?}}}}}", self.one(&USERS)),
            _ => format!("{{kind: Group, group: {{name: {:?}}}}}", self.one(&GROUPS)),
        }
    }

    fn schema(&mut self, n: usize) -> String {
        let subjects: Vec<_> = (0..self.0.usize(1..3)).map(|_| self.subject()).collect();
        let mut rules = String::new();
        if self.0.u8(..4) > 0 {
            rules.push_str("    resourceRules:\n");
            for _ in 0..self.0.usize(1..3) {
                let (verbs, groups) = (self.list(&VERBS), self.list(&API_GROUPS));
                let (resources, namespaces) = (self.list(&RESOURCES), self.list(&NAMESPACES));
                let cluster = self.0.bool();
                rules.push_str(&format!(
                    "    - {{verbs: {verbs}, apiGroups: {groups}, resources: {resources}, namespaces: {namespaces}, clusterScope: {cluster}}}\n"
                ));
            }
        }
        if rules.is_empty() || self.0.bool() {
            let (verbs, paths) = (self.list(&VERBS), self.list(&PATHS));
            rules.push_str(&format!(
                "    nonResourceRules: [{{verbs: {verbs}, nonResourceURLs: {paths}}}]\n"
            ));
        }
        let precedence = self.0.usize(2..9999);
        format!(
            "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {{name: s-{n}}}\nspec:\n  \
             matchingPrecedence: {precedence}\n  priorityLevelConfiguration: {{name: workload-low}}\n  rules:\n  \
             - subjects: [{}]\n{rules}---\n",
            subjects.join(", ")
        )
    }

    /// Any user in any groups, or one as authenticators yield it.
    fn user(&mut self, authenticated: bool) -> UserInfo {
        let name = self.one(&USERS);
        let mut groups: Vec<String> = (0..self.0.usize(..3))
            .map(|_| self.one(&GROUPS).to_owned())
            .collect();
        if !authenticated {
            return UserInfo {
                name: name.to_owned(),
                groups,
                ..UserInfo::default()
            };
        }
        if name == "system:anonymous" {
            return UserInfo::anonymous();
        }
        groups.retain(|group| !group.starts_with("system:"));
        if let Some(account) = name.strip_prefix("system:serviceaccount:") {
            let namespace = account.split(':').next().unwrap();
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        let user = UserInfo {
            name: name.to_owned(),
            groups,
            ..UserInfo::default()
        };
        user.with_authenticated_group()
    }
}

fn parse_verb(text: &str) -> Verb {
    match text {
        "get" => Verb::Get,
        "list" => Verb::List,
        "create" => Verb::Create,
        "watch" => Verb::Watch,
        other => Verb::Other(other.into()),
    }
}

/// Classifies random requests, and returns the names of the schemas that received one.
fn receivers(set: &ObjectSet<'_>, random: &mut RandomSchemas, authenticated: bool) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..400 {
        let user = random.user(authenticated);
        let verb = parse_verb(random.one(&["get", "list", "create", "watch", "purge"]));
        let resource = random.one(&["pods", "pods/log", "nodes", "deployments", "others"]);
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let request = RequestDigest {
            is_resource_request: random.0.u8(..3) > 0,
            verb: &verb,
            path: random
                .one(&["/a", "/a/", "/a/b", "/ab", "/b/c", "/b/c/d", "/", "/z"])
                .as_bytes(),
            api_group: random.one(&["", "apps", "batch", "x"]).as_bytes(),
            resource: resource.as_bytes(),
            subresource: subresource.as_bytes(),
            namespace: random.one(&["", "a", "b", "c", "d"]).as_bytes(),
            user: &user,
        };
        names.push(set.matcher().classify(&request).schema.name.clone());
    }
    names
}

#[test]
fn no_request_reaches_a_schema_that_is_reported_as_shadowed() {
    let seed = std::env::var("WEIR_SEED").map_or_else(|_| 20_261_123, |seed| seed.parse().unwrap());
    println!("WEIR_SEED={seed}");
    let mut random = RandomSchemas(Rng::with_seed(seed));
    let (mut shadowed, mut by_groups) = (0, 0);
    for round in 0..600 {
        let count = random.0.usize(2..8);
        let text: String = (0..count).map(|n| random.schema(n)).collect();
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("s.yaml", &text, &mut diagnostics);
        let objects = flowcontrol::read_located(&nodes, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{diagnostics}\n{text}");
        let set = ObjectSet::new(objects, SCOPE);
        let findings = flow_schemas::lint(&set, None);
        let names = |rule: Rule| -> Vec<String> {
            let found = findings.iter().filter(|found| found.rule == rule);
            let name = |message: &str| message.split('"').nth(1).unwrap().to_owned();
            found.map(|found| name(&found.message)).collect()
        };
        for (rule, authenticated, counted) in [
            (Rule::FlowSchemaShadowed, false, &mut shadowed),
            (Rule::FlowSchemaShadowedByGroups, true, &mut by_groups),
        ] {
            let reported = names(rule);
            *counted += reported.len();
            let received = receivers(&set, &mut random, authenticated);
            for name in &reported {
                assert!(
                    !received.contains(name),
                    "WEIR_SEED={seed}, round {round}: {name} receives a request\n{text}"
                );
            }
        }
    }
    assert!(
        shadowed > 50 && by_groups > 50,
        "too few: {shadowed}, {by_groups}"
    );
}

#[test]
fn a_schema_that_covers_exactly_what_another_matches_is_found_and_one_part_less_is_not() {
    let seed = 7;
    println!("seed {seed}");
    let mut random = RandomSchemas(Rng::with_seed(seed));
    for _ in 0..200 {
        let own = random
            .schema(1)
            .replace("matchingPrecedence: ", "matchingPrecedence: 9");
        let first = own.replace("name: s-1", "name: s-0");
        let precedence = first.split("matchingPrecedence: ").nth(1).unwrap();
        let precedence = precedence.lines().next().unwrap();
        let first = first.replacen(precedence, "2", 1);
        let own = own.replacen(precedence, "3", 1);
        let mut diagnostics = Diagnostics::default();
        let text = format!("{first}{own}");
        let nodes = document::parse_all("s.yaml", &text, &mut diagnostics);
        let objects = flowcontrol::read_located(&nodes, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{diagnostics}\n{text}");
        let findings = flow_schemas::lint(&ObjectSet::new(objects, SCOPE), None);
        let is_found = |name: &str| {
            findings
                .iter()
                .any(|found| found.rule == Rule::FlowSchemaShadowed && found.message.contains(name))
        };
        assert!(is_found("FlowSchema \"s-1\""), "{findings:#?}\n{text}");
        assert!(!is_found("FlowSchema \"s-0\""), "{findings:#?}\n{text}");
    }
}

/// Events that are admitted in a minute, while one user sends 1000 a second.
fn admitted_events(limits: &[EventLimitConfig]) -> u32 {
    let (mut buckets, keys) = (EventLimits::default(), LruKeyHasher::default());
    let ids: Vec<_> = limits.iter().map(|limit| buckets.add(limit)).collect();
    let event = LimitedEvent {
        namespace: b"a",
        user: b"flood",
        source_and_object: Cow::default(),
        warning: false,
    };
    let (keys, start) = (EventBucketKeys::from_event(&event, &keys), Instant::now());
    let mut admitted = 0;
    for n in 0..60_000 {
        let mut is_admitted = true;
        let now = start + Duration::from_millis(n);
        buckets.charge(&ids, &keys, now, |_, result| {
            is_admitted &= result.token.is_ok();
        });
        admitted += u32::from(is_admitted);
    }
    admitted
}

#[test]
fn a_limit_that_is_not_below_the_server_s_is_reported_and_rejects_events_for_which_it_has_tokens() {
    let admitted = |user: Option<&str>| {
        let user = user.map_or_else(String::new, |user| format!(", {{type: User, {user}}}"));
        let text = format!(
            "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
             limits: [{{type: Server, qps: 50, burst: 100}}{user}]\n"
        );
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("events.yaml", &text, &mut diagnostics);
        let limits = parse_limits(&nodes[0], "", &mut diagnostics).unwrap();
        assert!(!diagnostics.has_errors(), "{diagnostics}");
        let place = ListPlace {
            node: &nodes[0],
            prefix: "",
        };
        let is_reported = !lint_events(&limits, place).is_empty();
        (admitted_events(&limits), is_reported)
    };
    let (alone, _) = admitted(None);
    assert!((3090..=3110).contains(&alone), "{alone}");
    for user in [
        "qps: 60, burst: 100",
        "qps: 70, burst: 100",
        "qps: 75, burst: 150",
    ] {
        let (both, is_reported) = admitted(Some(user));
        assert!(is_reported, "{user}");
        assert!(both < alone * 6 / 10, "{user}: {both} of {alone}");
    }
    // Below it, the limit admits what it says.
    let (both, is_reported) = admitted(Some("qps: 10, burst: 20"));
    assert!(!is_reported);
    assert!((615..=625).contains(&both), "{both}");
}
