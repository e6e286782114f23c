//! Which rules may match a request, by its verb and resource: a bit for each, as [`Subjects`] has them.
//!
//! [`Subjects`]: super::subjects::Subjects

use std::collections::HashMap;

use super::names::{NameMap, boxed_bytes, is_wildcard};
use super::rules::{RequestDigest, VERB_COUNT, verb_index};
use super::subjects::ListBits;
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;
use weir_kubernetes::request_info::Verb;

/// An index of as many rules as there are bits.
#[derive(Clone, Debug)]
pub(super) struct RuleIndex {
    resource_verbs: [ListBits; VERB_COUNT],
    non_resource_verbs: [ListBits; VERB_COUNT],
    any_resource: ListBits,
    /// By resource, without a subresource.
    resources: NameMap<ListBits>,
}

impl RuleIndex {
    /// The n-th rules become the n-th bit.
    pub(super) fn new<'p>(all: impl IntoIterator<Item = &'p PolicyRulesWithSubjects>) -> Self {
        let mut resource_verbs = [0; VERB_COUNT];
        let mut non_resource_verbs = [0; VERB_COUNT];
        let mut any_resource = 0;
        let mut resources: HashMap<Box<[u8]>, ListBits> = HashMap::new();
        for (n, rules) in all.into_iter().enumerate() {
            let bit = 1 << n;
            for rule in &rules.resource_rules {
                add_verbs(&mut resource_verbs, &rule.verbs, bit);
                if is_wildcard(&rule.resources) {
                    any_resource |= bit;
                }
                for name in &rule.resources {
                    // Every slash may be the one before the subresource.
                    let ends = name.match_indices('/').map(|(at, _)| at);
                    for resource in ends.chain([name.len()]).filter_map(|end| name.get(..end)) {
                        *resources.entry(boxed_bytes(resource)).or_default() |= bit;
                    }
                }
            }
            for rule in &rules.non_resource_rules {
                add_verbs(&mut non_resource_verbs, &rule.verbs, bit);
            }
        }
        Self {
            resource_verbs,
            non_resource_verbs,
            any_resource,
            resources: resources.into(),
        }
    }

    /// The rules that may match, and some that do not.
    pub(super) fn candidates(&self, request: &RequestDigest<'_>) -> ListBits {
        let by_verb = |verbs: &[ListBits; VERB_COUNT]| {
            let bits = verbs.get(verb_index(request.verb));
            bits.copied().unwrap_or_default()
        };
        if !request.is_resource_request {
            return by_verb(&self.non_resource_verbs);
        }
        match by_verb(&self.resource_verbs) {
            0 => 0,
            verbs => {
                let listed = self.resources.get(request.resource);
                verbs & (self.any_resource | listed.copied().unwrap_or_default())
            }
        }
    }
}

fn add_verbs(table: &mut [ListBits; VERB_COUNT], verbs: &[String], bit: ListBits) {
    for (n, bits) in table.iter_mut().enumerate() {
        let mut indices = verbs.iter().map(|text| verb_index(&Verb::from_text(text)));
        if is_wildcard(verbs) || indices.any(|index| index == n) {
            *bits |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use crate::matching::Policies;
    use crate::matching::RequestDigest;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::api::flowcontrol::{
        NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject, SubjectKind,
    };
    use weir_kubernetes::request_info::RequestInfo;

    fn some(random: &mut Rng, names: &[&str]) -> Vec<String> {
        let count = random.usize(1..=2);
        let names = (0..count).map(|_| (*random.choice(names).unwrap()).to_owned());
        names.collect()
    }

    fn entry(random: &mut Rng) -> Vec<PolicyRulesWithSubjects> {
        let user = some(random, &["*", "alice", "bob"]).remove(0);
        let resource = ResourcePolicyRule {
            verbs: some(random, &["*", "get", "list", "delete", "proxy", "search"]),
            api_groups: vec!["*".to_owned()],
            resources: some(random, &["*", "pods", "pods/log", "pods/", "nodes", "a/b"]),
            cluster_scope: true,
            namespaces: vec!["*".to_owned()],
        };
        let other = NonResourcePolicyRule {
            verbs: some(random, &["*", "get", "search"]),
            non_resource_urls: some(random, &["*", "/version", "/x"]),
        };
        let has_resource = random.bool();
        vec![PolicyRulesWithSubjects {
            subjects: vec![Subject {
                kind: SubjectKind::User,
                user: Some(user),
                ..Subject::default()
            }],
            resource_rules: has_resource.then_some(resource).into_iter().collect(),
            non_resource_rules: (!has_resource).then_some(other).into_iter().collect(),
        }]
    }

    #[test]
    fn an_index_finds_what_the_rules_find() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        for _ in 0..50 {
            let entries: Vec<_> = (0..random.usize(0..150))
                .map(|_| entry(&mut random))
                .collect();
            let plain = Policies::new(entries.iter().map(|entry| &entry[..]));
            let indexed = Policies::indexed(entries.iter().map(|entry| &entry[..]));
            for method in ["GET", "DELETE", "SEARCH"] {
                for path in [
                    "/api/v1/pods",
                    "/api/v1/namespaces/a/pods/p",
                    "/api/v1/namespaces/a/pods/p/log",
                    "/api/v1/nodes/n/proxy/x",
                    "/api/v1/a%2Fb/c",
                    "/version",
                    "/y",
                ] {
                    let info = RequestInfo::parse(method, path.as_bytes()).unwrap();
                    let user = UserInfo {
                        name: "alice".to_owned(),
                        ..UserInfo::default()
                    };
                    let digest = RequestDigest::new(&info, &user);
                    let [plain, indexed] = [&plain, &indexed]
                        .map(|policies| policies.matching_entries(&digest).collect::<Vec<_>>());
                    assert_eq!(indexed, plain, "{method} {path}");
                }
            }
        }
    }
}
