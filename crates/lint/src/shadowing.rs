//! Whether schemas that are tried first match every request that a schema matches.
//!
//! The requests of a schema are split into parts: one subject, one verb, one API group, one resource
//! and one scope (or one path), where a wildcard stays a wildcard. A finite list never equals a
//! wildcard, since a request may have a name that is on no list. So a part is covered if and only if
//! one subject and one rule of an earlier schema include all of it: parts need no further division,
//! and different parts may be covered by different schemas. A rule that includes another as a whole
//! includes all its parts, which is tried first.
//!
//! Requests are those of the matcher: any user with any groups. Real users are fewer, since
//! authenticators add groups. [`UserAssumption::Authenticated`] takes this into account.

use std::collections::BTreeSet;

use super::subject_set::SubjectSet;
use weir_kubernetes::api::flowcontrol::{
    NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule,
};

/// The most comparisons for one schema. With more, nothing is said. Schemas that people write need
/// some thousands.
const MAX_COMPARISONS: usize = 2_000_000;

/// What is known about users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserAssumption {
    /// A user may have any groups.
    Any,
    /// An authenticator has identified the user and added groups.
    Authenticated,
}

/// The earlier entries that together match every request that `rules` match, by index. `None` if a
/// request may be left, or if `rules` match no request.
pub(super) fn covering_entries(
    rules: &[PolicyRulesWithSubjects],
    earlier: &[&[PolicyRulesWithSubjects]],
    users: UserAssumption,
) -> Option<BTreeSet<usize>> {
    let mut comparisons = MAX_COMPARISONS;
    let mut used = BTreeSet::new();
    for rules in rules {
        for subject in rules.subjects.iter().filter_map(SubjectSet::new) {
            let mut cover = Cover {
                alternatives: alternatives(&subject, earlier, users),
                comparisons: &mut comparisons,
                used: &mut used,
            };
            let is_covered = rules
                .resource_rules
                .iter()
                .all(|rule| cover.covers_resource_rule(rule))
                && rules
                    .non_resource_rules
                    .iter()
                    .all(|rule| cover.covers_non_resource_rule(rule));
            if !is_covered {
                return None;
            }
        }
    }
    (!used.is_empty()).then_some(used)
}

/// The rules of an earlier entry that apply to a subject.
#[derive(Clone, Copy)]
struct EarlierRules<'r> {
    entry: usize,
    rules: &'r PolicyRulesWithSubjects,
}

/// Rules that apply to every user of a subject: one list, or several of which one applies to each
/// user.
type Alternative<'r> = Vec<Vec<EarlierRules<'r>>>;

fn alternatives<'r>(
    subject: &SubjectSet,
    earlier: &[&'r [PolicyRulesWithSubjects]],
    users: UserAssumption,
) -> Vec<Alternative<'r>> {
    let including = |wanted: &SubjectSet| -> Vec<EarlierRules<'r>> {
        let all = earlier.iter().enumerate();
        let all = all.flat_map(|(entry, rules)| {
            rules.iter().map(move |rules| EarlierRules { entry, rules })
        });
        all.filter(|earlier| {
            let mut subjects = earlier.rules.subjects.iter().filter_map(SubjectSet::new);
            subjects.any(|subject| subject.includes(wanted))
        })
        .collect()
    };
    let mut alternatives = vec![vec![including(subject)]];
    if users == UserAssumption::Authenticated {
        let implied = subject.implied_groups();
        alternatives.extend(
            implied
                .iter()
                .map(|groups| groups.iter().map(including).collect()),
        );
    }
    alternatives
}

struct Cover<'c, 'r> {
    alternatives: Vec<Alternative<'r>>,
    comparisons: &'c mut usize,
    used: &'c mut BTreeSet<usize>,
}

impl Cover<'_, '_> {
    /// Whether every user of the subject has earlier rules that pass the test. Records the entries.
    fn any(&mut self, test: impl Fn(&PolicyRulesWithSubjects) -> bool) -> bool {
        for alternative in &self.alternatives {
            let mut entries = Vec::with_capacity(alternative.len());
            for list in alternative {
                let compared = list.iter().map(|one| {
                    one.rules.resource_rules.len() + one.rules.non_resource_rules.len() + 1
                });
                let Some(left) = self.comparisons.checked_sub(compared.sum()) else {
                    return false;
                };
                *self.comparisons = left;
                let Some(found) = list.iter().find(|one| test(one.rules)) else {
                    break;
                };
                entries.push(found.entry);
            }
            if entries.len() == alternative.len() {
                self.used.extend(entries);
                return true;
            }
        }
        false
    }

    fn covers_resource_rule(&mut self, rule: &ResourcePolicyRule) -> bool {
        let whole = |earlier: &ResourcePolicyRule| {
            includes_all(&earlier.verbs, &rule.verbs)
                && includes_all(&earlier.api_groups, &rule.api_groups)
                && includes_all(&earlier.resources, &rule.resources)
                && (earlier.cluster_scope || !rule.cluster_scope)
                && (rule.namespaces.is_empty()
                    || includes_all(&earlier.namespaces, &rule.namespaces))
        };
        if self.any(|earlier| earlier.resource_rules.iter().any(whole)) {
            return true;
        }
        let scopes: Vec<Option<Name<'_>>> = rule
            .cluster_scope
            .then_some(None)
            .into_iter()
            .chain(names(&rule.namespaces).map(Some))
            .collect();
        for verb in names(&rule.verbs) {
            for group in names(&rule.api_groups) {
                for resource in names(&rule.resources) {
                    for scope in &scopes {
                        let part = |earlier: &ResourcePolicyRule| {
                            verb.is_in(&earlier.verbs)
                                && group.is_in(&earlier.api_groups)
                                && resource.is_in(&earlier.resources)
                                && scope.map_or(earlier.cluster_scope, |namespace| {
                                    namespace.is_in(&earlier.namespaces)
                                })
                        };
                        if !self.any(|earlier| earlier.resource_rules.iter().any(part)) {
                            return false;
                        }
                    }
                }
            }
        }
        true
    }

    fn covers_non_resource_rule(&mut self, rule: &NonResourcePolicyRule) -> bool {
        for verb in names(&rule.verbs) {
            for paths in PathSet::all(&rule.non_resource_urls) {
                let part = |earlier: &NonResourcePolicyRule| {
                    verb.is_in(&earlier.verbs) && paths.is_in(&earlier.non_resource_urls)
                };
                if !self.any(|earlier| earlier.non_resource_rules.iter().any(part)) {
                    return false;
                }
            }
        }
        true
    }
}

/// A name of a list, or `*`.
#[derive(Clone, Copy)]
enum Name<'n> {
    Any,
    One(&'n str),
}

impl Name<'_> {
    fn is_in(self, list: &[String]) -> bool {
        is_wildcard(list)
            || match self {
                Self::Any => false,
                Self::One(name) => list.iter().any(|one| one == name),
            }
    }
}

fn names(list: &[String]) -> impl Iterator<Item = Name<'_>> {
    let is_wildcard = is_wildcard(list);
    list.iter().map(move |name| {
        if is_wildcard {
            Name::Any
        } else {
            Name::One(name)
        }
    })
}

fn includes_all(list: &[String], others: &[String]) -> bool {
    names(others).all(|name| name.is_in(list))
}

/// Among other elements `*` stands for itself, as in the matcher.
fn is_wildcard(list: &[String]) -> bool {
    matches!(list, [only] if only == "*")
}

/// Paths that one element of `nonResourceURLs` matches, or a part of them.
enum PathSet {
    Any,
    Exact(String),
    /// Everything that begins so.
    Prefix(String),
}

impl PathSet {
    fn all(urls: &[String]) -> Vec<Self> {
        if urls.iter().any(|url| url == "*") {
            return vec![Self::Any];
        }
        let parts = urls.iter();
        parts
            .flat_map(|url| [Self::Exact(url.clone()), Self::Prefix(path_prefix(url))])
            .collect()
    }

    fn is_in(&self, urls: &[String]) -> bool {
        urls.iter().any(|url| {
            url == "*"
                || match self {
                    Self::Any => false,
                    Self::Exact(path) => path == url || path.starts_with(&path_prefix(url)),
                    Self::Prefix(prefix) => prefix.starts_with(&path_prefix(url)),
                }
        })
    }
}

/// The beginning of the paths below a URL.
fn path_prefix(url: &str) -> String {
    let stem = url.strip_suffix('*').unwrap_or(url);
    let slash = if stem.ends_with('/') { "" } else { "/" };
    format!("{stem}{slash}")
}
