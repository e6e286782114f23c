//! Warnings about FlowSchemas.

use super::authenticators::Authenticators;
use super::objects::{ObjectSet, finding_at};
use super::rule::{LintFinding, Rule};
use super::shadowing::{UserAssumption, covering_entries};
use super::subject_set::{ACCOUNT_PREFIX, ACCOUNTS};
use weir_kubernetes::api::flowcontrol::{
    FlowSchema, LocatedObject, PolicyRulesWithSubjects, ResourcePolicyRule, Subject, SubjectKind,
};
use weir_kubernetes::api::user::ANONYMOUS;

/// The most schemas that a message names.
const MAX_NAMED: usize = 5;

/// The subresources whose requests are long-running.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// A subresource, the resource that it is commonly meant of, and its verbs.
struct CommonSubresource {
    name: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    /// Words in the name of a schema that is about it.
    words: &'static [&'static str],
}

const SUBRESOURCES: &[CommonSubresource] = &[
    CommonSubresource {
        name: "log",
        resource: "pods",
        verbs: &["get"],
        words: &["log", "logs"],
    },
    CommonSubresource {
        name: "exec",
        resource: "pods",
        verbs: &["create", "get"],
        words: &["exec"],
    },
    CommonSubresource {
        name: "attach",
        resource: "pods",
        verbs: &["create", "get"],
        words: &["attach"],
    },
    CommonSubresource {
        name: "portforward",
        resource: "pods",
        verbs: &["create", "get"],
        words: &["portforward", "portforwards"],
    },
    CommonSubresource {
        name: "eviction",
        resource: "pods",
        verbs: &["create"],
        words: &["eviction", "evictions"],
    },
    CommonSubresource {
        name: "binding",
        resource: "pods",
        verbs: &["create"],
        words: &["binding", "bindings"],
    },
    CommonSubresource {
        name: "token",
        resource: "serviceaccounts",
        verbs: &["create"],
        words: &["token", "tokens"],
    },
    CommonSubresource {
        name: "status",
        resource: "pods",
        verbs: &["get", "patch", "update"],
        // Schemas are named for the status or the scale that the resource itself shows.
        words: &[],
    },
    CommonSubresource {
        name: "scale",
        resource: "deployments",
        verbs: &["get", "patch", "update"],
        words: &[],
    },
];

/// All warnings about the schemas of files. `authenticators`: who can be authenticated, if the
/// configuration says so.
pub fn lint(set: &ObjectSet<'_>, authenticators: Option<&Authenticators>) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (file, schema) in set.own_schemas() {
        findings.extend(dangling(set, file, schema));
        findings.extend(shadowed(set, file, schema));
        let mut add = |(rule, field, message): RuleFinding| {
            findings.push(finding_at(
                file,
                rule,
                &format!("spec.rules{field}"),
                message,
            ));
        };
        for found in lint_rules(&schema.spec.rules, authenticators) {
            add(found);
        }
        for found in misnamed_resources(schema) {
            add(found);
        }
        for found in long_running_rules(&schema.spec.rules) {
            add(found);
        }
    }
    findings
}

fn dangling(
    set: &ObjectSet<'_>,
    file: &LocatedObject<'_>,
    schema: &FlowSchema,
) -> Option<LintFinding> {
    let name = &schema.metadata.name;
    if !set.is_complete() || !set.matcher().dangling().contains(name) {
        return None;
    }
    let level = &schema.spec.priority_level_configuration;
    let levels = set.matcher().levels().iter();
    let closest = levels
        .map(|other| {
            (
                strsim::jaro_winkler(level, &other.spec.name),
                &other.spec.name,
            )
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity > 0.8);
    let hint = closest.map_or_else(String::new, |(_, name)| format!("; did you mean {name:?}?"));
    Some(finding_at(
        file,
        Rule::FlowSchemaDangling,
        "spec.priorityLevelConfiguration.name",
        format!("FlowSchema {name:?} is left out: there is no priority level {level:?}{hint}"),
    ))
}

fn shadowed(
    set: &ObjectSet<'_>,
    file: &LocatedObject<'_>,
    schema: &FlowSchema,
) -> Option<LintFinding> {
    let FlowSchema { metadata, spec, .. } = schema;
    let name = &metadata.name;
    let before = set.schemas_before(name)?;
    if spec.rules.is_empty() {
        let message = format!("FlowSchema {name:?} has no rules and matches no request");
        return Some(finding_at(
            file,
            Rule::FlowSchemaWithoutRules,
            "spec",
            message,
        ));
    }
    let earlier: Vec<_> = before.iter().map(|schema| &schema.spec.rules[..]).collect();
    let cases = [
        (Rule::FlowSchemaShadowed, UserAssumption::Any),
        (
            Rule::FlowSchemaShadowedByGroups,
            UserAssumption::Authenticated,
        ),
    ];
    let (rule, entries) = cases
        .into_iter()
        .find_map(|(rule, users)| Some((rule, covering_entries(&spec.rules, &earlier, users)?)))?;
    let mut named: Vec<String> = entries
        .iter()
        .filter_map(|entry| before.get(*entry))
        .map(|schema| {
            let precedence = schema.spec.matching_precedence;
            format!("{:?} (precedence {precedence})", schema.metadata.name)
        })
        .collect();
    let more = named.len().saturating_sub(MAX_NAMED);
    named.truncate(MAX_NAMED);
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let who = if rule == Rule::FlowSchemaShadowed {
        "every request"
    } else {
        "every request of an authenticated or anonymous user"
    };
    let lowest = entries.first().and_then(|entry| before.get(*entry));
    let hint = match lowest.map(|schema| schema.spec.matching_precedence) {
        // 1 is for the exempt schema only.
        Some(lowest @ 3..) => format!("give it a precedence below {lowest}, or remove it"),
        _ => "remove it".to_owned(),
    };
    let message = format!(
        "FlowSchema {name:?} never receives a request: {who} that it matches is matched before \
         by {}{more}; {hint}",
        named.join(", "),
    );
    Some(finding_at(file, rule, "spec.matchingPrecedence", message))
}

/// The rule, the path of the field below the list of rules, and the message.
pub(super) type RuleFinding = (Rule, String, String);

/// Warnings about rules with subjects, of a FlowSchema or of `clientLimits`.
pub(super) fn lint_rules(
    rules: &[PolicyRulesWithSubjects],
    authenticators: Option<&Authenticators>,
) -> Vec<RuleFinding> {
    let mut findings = Vec::new();
    for (n, rules) in rules.iter().enumerate() {
        for (m, subject) in rules.subjects.iter().enumerate() {
            let at = format!("[{n}].subjects[{m}]");
            let found = misplaced_subject(subject)
                .or_else(|| misspelled_group(subject, authenticators))
                .or_else(|| {
                    let message = authenticators?.unknown_subject(subject)?;
                    Some((Rule::SubjectUnknown, message))
                });
            findings.extend(found.map(|(rule, message)| (rule, at, message)));
        }
        for (m, rule) in rules.resource_rules.iter().enumerate() {
            let at = format!("[{n}].resourceRules[{m}]");
            findings.extend(unmatched_resources(rule, &at));
        }
    }
    findings
}

/// A name of another kind.
fn misplaced_subject(subject: &Subject) -> Option<(Rule, String)> {
    let message = match subject.kind {
        SubjectKind::User => {
            let name = subject.user.as_deref()?;
            let is_group = GROUPS.contains(&name)
                || name
                    .strip_prefix(ACCOUNTS)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
            is_group.then(|| {
                format!("{name:?} is the name of a group, not of a user: use kind: Group, group: {{name: {name:?}}}")
            })
        }
        SubjectKind::Group => {
            let name = subject.group.as_deref()?;
            let is_user = USERS.contains(&name)
                || [ACCOUNT_PREFIX, "system:node:"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix));
            is_user.then(|| {
                format!("{name:?} is the name of a user, not of a group: use kind: User, user: {{name: {name:?}}}")
            })
        }
        SubjectKind::ServiceAccount | SubjectKind::Other(_) => None,
    };
    message.map(|message| (Rule::SubjectKind, message))
}

/// A group that resembles a reserved one. Other groups of `system:` may be in certificates, as
/// those of components are by some installers.
fn misspelled_group(
    subject: &Subject,
    authenticators: Option<&Authenticators>,
) -> Option<(Rule, String)> {
    let name = subject.group.as_deref()?;
    let own = name.strip_prefix(RESERVED)?;
    if authenticators.is_some_and(|known| known.yields_group(name)) {
        return None;
    }
    let (first, below) = match own.split_once(':') {
        Some((first, below)) => (first, Some(below)),
        None => (own, None),
    };
    let groups = GROUPS.iter().filter(|group| {
        below.is_none() || [BOOTSTRAPPERS, ACCOUNTS].contains(group) // groups below it
    });
    let known: Vec<&str> = groups
        .filter_map(|group| group.strip_prefix(RESERVED))
        .collect();
    if known.contains(&first) {
        return None;
    }
    let lower = first.to_ascii_lowercase();
    let (distance, meant) = known
        .into_iter()
        .map(|known| (strsim::osa_distance(&lower, known), known))
        .min()?;
    let tolerance = if meant.len() < 7 { 1 } else { 2 };
    let below = below.map_or_else(String::new, |below| format!(":{below}"));
    (distance <= tolerance).then(|| {
        let message = format!(
            "{name:?} is none of the groups that Kubernetes defines under the reserved name \
             \"system:\"; did you mean \"{RESERVED}{meant}{below}\"?"
        );
        (Rule::SubjectMisspelled, message)
    })
}

/// What the names of users and groups begin with that Kubernetes reserves.
const RESERVED: &str = "system:";

/// The group of bootstrap tokens, and what the names of their further groups begin with.
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Groups that kube-apiserver defines.
const GROUPS: [&str; 7] = [
    "system:authenticated",
    BOOTSTRAPPERS,
    "system:masters",
    "system:monitoring",
    "system:nodes",
    ACCOUNTS,
    "system:unauthenticated",
];

/// Users that kube-apiserver defines. Those of its components are groups, too, in certificates of
/// some installers.
const USERS: [&str; 2] = [ANONYMOUS, "system:apiserver"];

/// Resources of a rule that match nothing.
fn unmatched_resources(rule: &ResourcePolicyRule, at: &str) -> Vec<RuleFinding> {
    let mut findings = Vec::new();
    for (n, name) in rule.resources.iter().enumerate() {
        let at = format!("{at}.resources[{n}]");
        if name != "*" && name.contains('*') {
            let message = format!(
                "{name:?} matches nothing: only \"*\" by itself is a wildcard, for all resources \
                 and subresources; name each, such as \"pods\" and \"pods/log\""
            );
            findings.push((Rule::ResourcePattern, at, message));
        } else if is_core(rule)
            && let Some(meant) = SUBRESOURCES.iter().find(|one| one.name == name)
        {
            let message = format!(
                "{name:?} is a subresource, and no resource has this name: name both, such as \
                 \"{}/{name}\"",
                meant.resource
            );
            findings.push((Rule::SubresourceMissing, at, message));
        } else if matches!(&rule.verbs[..], [only] if only == "proxy")
            && name != "*"
            && !name.contains('/')
        {
            let message = format!(
                "{name:?} with the verb \"proxy\" matches nothing that is served: name \
                 \"{name}/proxy\", with the verbs of its requests (get, create, ...)"
            );
            findings.push((Rule::SubresourceMissing, at, message));
        }
    }
    findings
}

/// Whether the rule is about API groups of Kubernetes itself only, whose resources are known.
fn is_core(rule: &ResourcePolicyRule) -> bool {
    rule.api_groups
        .iter()
        .all(|group| ["", "apps", "batch"].contains(&group.as_str()))
}

/// Resources in the place of a subresource that the schema's name is about.
fn misnamed_resources(schema: &FlowSchema) -> Vec<RuleFinding> {
    let words: Vec<&str> = schema.metadata.name.split(['-', '.']).collect();
    let mut findings = Vec::new();
    for one in SUBRESOURCES {
        if !one.words.iter().any(|word| words.contains(word)) {
            continue;
        }
        let rules = &schema.spec.rules;
        let all = rules.iter().flat_map(|rules| &rules.resource_rules);
        let mut resources = all.flat_map(|rule| &rule.resources);
        if resources.any(|name| name == "*" || name.contains('/')) {
            continue; // it names subresources
        }
        for (n, rules) in rules.iter().enumerate() {
            for (m, rule) in rules.resource_rules.iter().enumerate() {
                let verbs_fit = rule
                    .verbs
                    .iter()
                    .all(|verb| one.verbs.contains(&verb.as_str()));
                if !verbs_fit || !is_core(rule) {
                    continue;
                }
                for (k, name) in rule.resources.iter().enumerate() {
                    if name != one.resource {
                        continue;
                    }
                    let at = format!("[{n}].resourceRules[{m}].resources[{k}]");
                    let subresource = one.name;
                    let message = format!(
                        "{name:?} does not match requests for \"{name}/{subresource}\", which the name {:?} says \
                         and the verbs fit: name \"{name}/{subresource}\"",
                        schema.metadata.name
                    );
                    findings.push((Rule::SubresourceMissing, at, message));
                }
            }
        }
    }
    findings
}

/// Rules whose requests are all long-running.
fn long_running_rules(rules: &[PolicyRulesWithSubjects]) -> Vec<RuleFinding> {
    let mut findings = Vec::new();
    for (n, rules) in rules.iter().enumerate() {
        for (m, rule) in rules.resource_rules.iter().enumerate() {
            let is_stream = |name: &String| {
                let subresource = name.split_once('/').map(|(_, subresource)| subresource);
                subresource.is_some_and(|subresource| STREAMS.contains(&subresource))
            };
            if rule.resources.is_empty() || !rule.resources.iter().all(is_stream) {
                continue;
            }
            let message = format!(
                "requests for {} are long-running: priority and fairness does not apply to them; \
                 limit them by clientLimits (longRunning.streams), or remove the rule",
                rule.resources.join(", ")
            );
            let at = format!("[{n}].resourceRules[{m}].resources");
            findings.push((Rule::LongRunningOnly, at, message));
        }
    }
    findings
}
