//! The matching rules, literally, on strings and without any preparation.

use super::*;
use crate::fairqueuing::shuffle_sharding::flow_hash;

pub(super) struct ReferenceMatcher<'o> {
    pub(super) schemas: Vec<&'o FlowSchema>,
    levels: Vec<&'o PriorityLevelConfiguration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReferenceMatch<'o> {
    pub(super) index: usize,
    pub(super) level: &'o str,
    pub(super) exempt: bool,
    pub(super) flow_distinguisher: &'o str,
    pub(super) flow_hash: u64,
}

impl<'o> ReferenceMatcher<'o> {
    pub(super) fn new(schemas: &'o [FlowSchema], levels: &'o [PriorityLevelConfiguration]) -> Self {
        let levels: Vec<_> = levels
            .iter()
            .filter(|l| l.metadata.name != "broken")
            .collect();
        let mut good: Vec<_> = schemas
            .iter()
            .filter(|schema| has_level(schema, &levels))
            .collect();
        good.sort_by(|a, b| {
            let by_precedence = a.spec.matching_precedence.cmp(&b.spec.matching_precedence);
            by_precedence.then(a.metadata.name.cmp(&b.metadata.name))
        });
        if good.iter().all(|schema| schema.metadata.name != "exempt") {
            good.insert(0, mandatory::flow_schema("exempt").unwrap());
        }
        if good
            .iter()
            .all(|schema| schema.metadata.name != "catch-all")
        {
            good.push(mandatory::flow_schema("catch-all").unwrap());
        }
        Self {
            schemas: good,
            levels,
        }
    }

    pub(super) fn order(&self) -> Vec<(&String, &String)> {
        let names = self
            .schemas
            .iter()
            .map(|s| (&s.metadata.name, &s.metadata.uid));
        names.collect()
    }

    pub(super) fn dangling(&self, schemas: &[FlowSchema]) -> Vec<String> {
        let bad = schemas
            .iter()
            .filter(|schema| !has_level(schema, &self.levels));
        bad.map(|schema| schema.metadata.name.clone()).collect()
    }

    pub(super) fn matching(&self, request: &OwnedRequest) -> Vec<usize> {
        let matches = |n: &usize| {
            self.schemas[*n]
                .spec
                .rules
                .iter()
                .any(|r| rules_match(r, request))
        };
        (0..self.schemas.len()).filter(matches).collect()
    }

    /// The furthest mismatch of each schema before the first that matches.
    pub(super) fn mismatches(&self, request: &OwnedRequest) -> Vec<Mismatch> {
        let matched = self.matching(request).first().copied();
        let tried = &self.schemas[..matched.unwrap_or(self.schemas.len())];
        tried
            .iter()
            .map(|schema| {
                let rules = schema.spec.rules.iter();
                let all = rules.flat_map(|rules| rules_mismatches(rules, request));
                all.max().unwrap_or(Mismatch::NoRules)
            })
            .collect()
    }

    pub(super) fn classify<'r>(&'r self, request: &'r OwnedRequest) -> ReferenceMatch<'r> {
        let first = self.matching(request).first().copied();
        let catch_all = self
            .schemas
            .iter()
            .position(|s| s.metadata.name == "catch-all");
        let index = first.or(catch_all).unwrap();
        let schema = self.schemas[index];
        let level = &schema.spec.priority_level_configuration;
        let (mut flow_distinguisher, mut flow_hash_) = ("", 0);
        if level == "q4" {
            flow_distinguisher = match schema.spec.distinguisher_method {
                Some(FlowDistinguisherMethodType::ByNamespace) => &request.namespace,
                Some(FlowDistinguisherMethodType::ByUser) => &request.user.name,
                _ => "",
            };
            flow_hash_ = flow_hash(&schema.metadata.name, flow_distinguisher);
        }
        ReferenceMatch {
            index,
            level,
            exempt: level == "exempt",
            flow_distinguisher,
            flow_hash: flow_hash_,
        }
    }
}

fn has_level(schema: &FlowSchema, levels: &[&PriorityLevelConfiguration]) -> bool {
    levels
        .iter()
        .any(|level| level.metadata.name == schema.spec.priority_level_configuration)
}

fn rules_match(rules: &PolicyRulesWithSubjects, request: &OwnedRequest) -> bool {
    rules
        .subjects
        .iter()
        .any(|s| subject_matches(s, &request.user))
        && if request.is_resource_request {
            rules
                .resource_rules
                .iter()
                .any(|rule| resource_rule_matches(rule, request))
        } else {
            rules
                .non_resource_rules
                .iter()
                .any(|rule| non_resource_rule_matches(rule, request))
        }
}

/// The first failed check of each rule, or that of all rules together.
fn rules_mismatches(rules: &PolicyRulesWithSubjects, request: &OwnedRequest) -> Vec<Mismatch> {
    let mut subjects = rules.subjects.iter();
    if !subjects.any(|subject| subject_matches(subject, &request.user)) {
        return vec![Mismatch::Subject];
    }
    let verb = request.verb.as_str();
    if !request.is_resource_request {
        let each = rules.non_resource_rules.iter().map(|rule| {
            if list_contains(&rule.verbs, verb) {
                Mismatch::NonResourceUrl
            } else {
                Mismatch::Verb
            }
        });
        return each.chain([Mismatch::NoNonResourceRules]).collect();
    }
    let scope = match request.namespace.as_str() {
        "" => Mismatch::ClusterScope,
        _ => Mismatch::Namespace,
    };
    let each = rules.resource_rules.iter().map(|rule| {
        // A rule without a list fails at that list.
        let any = vec!["*".to_owned()];
        let relaxed = |verbs: bool, resources: bool, groups: bool| ResourcePolicyRule {
            verbs: if verbs {
                any.clone()
            } else {
                rule.verbs.clone()
            },
            resources: if resources {
                any.clone()
            } else {
                rule.resources.clone()
            },
            api_groups: if groups {
                any.clone()
            } else {
                rule.api_groups.clone()
            },
            cluster_scope: true,
            namespaces: any.clone(),
        };
        let passes = |rule: ResourcePolicyRule| resource_rule_matches(&rule, request);
        if !passes(relaxed(false, true, true)) {
            Mismatch::Verb
        } else if !passes(relaxed(true, false, true)) {
            Mismatch::Resource
        } else if !passes(relaxed(true, true, false)) {
            Mismatch::ApiGroup
        } else {
            scope
        }
    });
    each.chain([Mismatch::NoResourceRules]).collect()
}

fn subject_matches(subject: &Subject, user: &UserInfo) -> bool {
    match subject.kind.as_str() {
        "User" => subject
            .user
            .as_ref()
            .is_some_and(|name| name == "*" || *name == user.name),
        "Group" => {
            let group = subject.group.as_ref();
            group.is_some_and(|name| name == "*" || user.groups.contains(name))
        }
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|account| {
            let prefix = format!("system:serviceaccount:{}:", account.namespace);
            if account.name == "*" {
                user.name.starts_with(&prefix)
            } else {
                user.name == prefix + &account.name
            }
        }),
        _ => false,
    }
}

fn list_contains(list: &[String], name: &str) -> bool {
    list == ["*"] || list.iter().any(|listed| listed == name)
}

fn resource_rule_matches(rule: &ResourcePolicyRule, request: &OwnedRequest) -> bool {
    let mut resource = request.resource.clone();
    if !request.subresource.is_empty() {
        resource = resource + "/" + &request.subresource;
    }
    let scope = if request.namespace.is_empty() {
        rule.cluster_scope
    } else {
        list_contains(&rule.namespaces, &request.namespace)
    };
    scope
        && list_contains(&rule.verbs, request.verb.as_str())
        && list_contains(&rule.resources, &resource)
        && list_contains(&rule.api_groups, &request.api_group)
}

fn non_resource_rule_matches(rule: &NonResourcePolicyRule, request: &OwnedRequest) -> bool {
    let path = |url: &String| {
        let mut prefix = url.strip_suffix('*').unwrap_or(url).to_owned();
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        url == "*" || *url == request.path || request.path.starts_with(&prefix)
    };
    list_contains(&rule.verbs, request.verb.as_str()) && rule.non_resource_urls.iter().any(path)
}
