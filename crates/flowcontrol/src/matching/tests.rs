//! Whole configurations: by example, and at random against a slow reference matcher.

use std::iter::repeat_with;

use fastrand::Rng;

use super::*;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{
    CATCH_ALL, EXEMPT, FlowDistinguisherMethodType, FlowSchema, FlowSchemaSpec, LimitResponse,
    LimitResponseType, LimitedPriorityLevelConfiguration, NonResourcePolicyRule, Object,
    ObjectMeta, PolicyRulesWithSubjects, PriorityLevelConfiguration,
    PriorityLevelConfigurationSpec, PriorityLevelEnablement, QueuingConfiguration,
    ResourcePolicyRule, ServiceAccountSubject, Subject, SubjectKind, mandatory,
};
use weir_kubernetes::request_info::{RequestInfo, Verb};

mod examples;
mod reference;

const USERS: [&str; 8] = [
    "",
    "*",
    "alice",
    "bob",
    "system:serviceaccount:a:x",
    "system:serviceaccount:a:",
    "system:serviceaccount:b:x:y",
    "system:serviceaccount:",
];
const GROUPS: [&str; 5] = ["*", "devs", "ops", "system:serviceaccounts", "system:nodes"];
const NAMESPACES: [&str; 5] = ["", "*", "a", "b", "b:x"];
const NAMES: [&str; 4] = ["*", "x", "y", ""];
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "", "post", "purge", "*"];
const API_GROUPS: [&str; 4] = ["", "apps", "batch", "*"];
const RESOURCES: [&str; 9] = [
    "pods",
    "pods/log",
    "pods/*",
    "*/log",
    "nodes",
    "nodes/log",
    "*",
    "pods/",
    "",
];
const SUBRESOURCES: [&str; 4] = ["", "", "log", "*"];
const PATHS: [&str; 10] = [
    "/", "/a", "/a/", "/a/*", "/a/b", "/ab", "*", "", "/a*", "/a/b/c",
];

struct RandomRules(Rng);

impl RandomRules {
    fn one(&mut self, of: &[&str]) -> String {
        of[self.0.usize(..of.len())].to_owned()
    }

    /// Mostly a few names, sometimes only a wildcard, and sometimes more than are compared one by
    /// one.
    fn some(&mut self, of: &[&str]) -> Vec<String> {
        match self.0.u8(..8) {
            0 => vec!["*".to_owned()],
            1 => {
                let others = (0..12).map(|n| format!("other-{n}"));
                others.chain([self.one(of), self.one(of)]).collect()
            }
            _ => self.several(|random| random.one(of)),
        }
    }

    fn several<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.0.usize(..4);
        repeat_with(|| make(self)).take(count).collect()
    }

    fn subject(&mut self) -> Subject {
        let kind = self.one(&["User", "Group", "ServiceAccount", "user"]);
        let mut has = |likely: &str| kind == likely || self.0.u8(..8) == 0;
        let (user, group, account) = (has("User"), has("Group"), has("ServiceAccount"));
        Subject {
            user: user.then(|| self.one(&USERS)),
            group: group.then(|| self.one(&GROUPS)),
            service_account: account.then(|| ServiceAccountSubject {
                namespace: self.one(&NAMESPACES),
                name: self.one(&NAMES),
            }),
            kind: SubjectKind::from(kind),
        }
    }

    fn rules(&mut self) -> PolicyRulesWithSubjects {
        PolicyRulesWithSubjects {
            subjects: self.several(Self::subject),
            resource_rules: self.several(|random| ResourcePolicyRule {
                verbs: random.some(&VERBS),
                api_groups: random.some(&API_GROUPS),
                resources: random.some(&RESOURCES),
                cluster_scope: random.0.bool(),
                namespaces: random.some(&NAMESPACES),
            }),
            non_resource_rules: self.several(|random| NonResourcePolicyRule {
                verbs: random.some(&VERBS),
                non_resource_urls: random.some(&PATHS),
            }),
        }
    }

    fn schema(&mut self, n: usize) -> FlowSchema {
        let names = [EXEMPT.to_owned(), CATCH_ALL.to_owned(), format!("s-{n}")];
        let mut schema = FlowSchema::default();
        schema.metadata.name = names[self.0.usize(..40).min(2)].clone();
        schema.metadata.uid = format!("uid-{n}");
        schema.spec = FlowSchemaSpec {
            priority_level_configuration: self.one(&["q1", "q4", "r", "broken", EXEMPT, CATCH_ALL]),
            matching_precedence: self.0.i32(1..5),
            distinguisher_method: match self.0.u8(..3) {
                0 => None,
                1 => Some(FlowDistinguisherMethodType::ByNamespace),
                _ => Some(FlowDistinguisherMethodType::ByUser),
            },
            rules: self.several(Self::rules),
        };
        schema
    }

    fn request(&mut self) -> OwnedRequest {
        let verb = self.one(&VERBS);
        OwnedRequest {
            is_resource_request: self.0.bool(),
            verb: match verb.to_uppercase().as_str() {
                "" => Verb::None,
                method => RequestInfo::parse(method, b"/").unwrap().verb().clone(),
            },
            path: self.one(&PATHS),
            api_group: self.one(&API_GROUPS),
            resource: self.one(&RESOURCES),
            subresource: self.one(&SUBRESOURCES),
            namespace: self.one(&NAMESPACES),
            user: UserInfo {
                name: self.one(&USERS),
                groups: self.several(|random| random.one(&GROUPS)),
                ..UserInfo::default()
            },
        }
    }
}

/// Owns the strings that a digest borrows.
#[derive(Debug)]
struct OwnedRequest {
    is_resource_request: bool,
    verb: Verb,
    path: String,
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    user: UserInfo,
}

impl OwnedRequest {
    fn digest(&self) -> RequestDigest<'_> {
        RequestDigest {
            is_resource_request: self.is_resource_request,
            verb: &self.verb,
            path: self.path.as_bytes(),
            api_group: self.api_group.as_bytes(),
            resource: self.resource.as_bytes(),
            subresource: self.subresource.as_bytes(),
            namespace: self.namespace.as_bytes(),
            user: &self.user,
        }
    }
}

/// A limited level with this many queues. `None`: it rejects.
fn level(name: &str, queues: Option<i32>) -> PriorityLevelConfiguration {
    let queuing = queues.map(|queues| QueuingConfiguration {
        queues,
        hand_size: 2.min(queues),
        queue_length_limit: 50,
    });
    PriorityLevelConfiguration {
        metadata: ObjectMeta {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            ..ObjectMeta::default()
        },
        spec: PriorityLevelConfigurationSpec {
            enablement: PriorityLevelEnablement::Limited,
            limited: Some(LimitedPriorityLevelConfiguration {
                nominal_concurrency_shares: 30,
                limit_response: LimitResponse {
                    kind: match queuing {
                        None => LimitResponseType::Reject,
                        Some(_) => LimitResponseType::Queue,
                    },
                    queuing,
                },
                ..LimitedPriorityLevelConfiguration::default()
            }),
            exempt: None,
        },
        ..PriorityLevelConfiguration::default()
    }
}

impl RandomRules {
    /// Some of the levels that schemas refer to.
    fn levels(&mut self) -> Vec<PriorityLevelConfiguration> {
        let mut levels = vec![
            level("q1", Some(1)),
            level("q4", Some(4)),
            level("r", None),
            level("broken", Some(0)),
        ];
        let mandatory = [EXEMPT, CATCH_ALL].map(mandatory::priority_level);
        levels.extend(mandatory.into_iter().flatten().cloned());
        levels.retain(|_| self.0.u8(..6) > 0);
        self.0.shuffle(&mut levels);
        levels
    }
}

#[test]
fn requests_are_classified_as_by_the_reference_matcher() {
    let origin = 0x5eed;
    let mut matched = 0;
    for seed in origin..origin + 400 {
        let mut random = RandomRules(Rng::with_seed(seed));
        let levels = random.levels();
        // Sometimes more rules than one block holds.
        let count = if seed % 8 == 0 {
            120
        } else {
            random.0.usize(..8)
        };
        let schemas: Vec<_> = (0..count).map(|n| random.schema(n)).collect();
        let matcher = Matcher::compile(schemas.iter().collect(), levels.iter().collect());
        let slow = reference::ReferenceMatcher::new(&schemas, &levels);
        let order: Vec<_> = matcher
            .schemas()
            .iter()
            .map(|s| (&s.name, &s.uid))
            .collect();
        assert_eq!(order, slow.order(), "seed {seed}");
        assert_eq!(matcher.dangling(), slow.dangling(&schemas), "seed {seed}");
        let entries = slow.schemas.iter().map(|schema| &schema.spec.rules[..]);
        let policies = Policies::new(entries);
        for _ in 0..100 {
            let request = random.request();
            let digest = request.digest();
            let found = matcher.classify(&digest);
            let outcome = reference::ReferenceMatch {
                index: found.index,
                level: &found.level.spec.name,
                exempt: found.level.is_exempt(),
                flow_distinguisher: str::from_utf8(found.flow_distinguisher).unwrap(),
                flow_hash: found.flow_hash,
            };
            assert_eq!(outcome, slow.classify(&request), "seed {seed}, {request:?}");
            let reasons = slow.mismatches(&request);
            assert_eq!(
                matcher.explain(&digest),
                reasons,
                "seed {seed}, {request:?}"
            );
            let all: Vec<usize> = policies.matching_entries(&digest).collect();
            assert_eq!(all, slow.matching(&request), "seed {seed}, {request:?}");
            matched += all.len();
        }
    }
    assert!(
        matched > 10_000,
        "the random rules match hardly anything: {matched}"
    );
}
