//! A priority level for one user: its objects. Pure.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::api::UserInfo;
use crate::api::flowcontrol::CATCH_ALL;
use crate::api::flowcontrol::FlowDistinguisherMethodType;
use crate::api::flowcontrol::FlowSchema;
use crate::api::flowcontrol::FlowSchemaSpec;
use crate::api::flowcontrol::Object;
use crate::api::flowcontrol::ObjectMeta;
use crate::api::flowcontrol::PolicyRulesWithSubjects;
use crate::api::flowcontrol::PriorityLevelConfiguration;
use crate::api::flowcontrol::ServiceAccountSubject;
use crate::api::flowcontrol::Subject;
use crate::api::flowcontrol::SubjectKind;
use crate::replay::simulation::measure::MeasuredUsage;

/// The user name of a service account begins with this.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// The longest name that is made of a user's name: with the prefix it is one of an object.
const MAX_NAME: usize = 40;

/// The least part of a level's seat-seconds, in percent, of a user who may get a level.
const LEAST_PERCENT: f64 = 10.0;

/// The users of a level that are tried: those with most seat-seconds.
const MAX_TRIED: usize = 3;

/// Others have lost something if they waited for so many seconds together, or were rejected.
const LEAST_LOSS_S: f64 = 0.1;

/// The least precedence that a schema may have, but for `exempt`.
const LEAST_PRECEDENCE: i32 = 2;

/// Whether a user belongs to the control plane, which no suggestion limits: names of Kubernetes' own,
/// nodes, administrators, and the controllers of kube-system.
pub(super) fn is_control_plane(user: &UserInfo) -> bool {
    const GROUPS: [&str; 3] = [
        "system:masters",
        "system:nodes",
        "system:serviceaccounts:kube-system",
    ];
    let account = user.name.strip_prefix(ACCOUNT_PREFIX);
    let is_own = match account {
        Some(account) => account.starts_with("kube-system:"),
        None => user.name.starts_with("system:"),
    };
    is_own
        || GROUPS
            .iter()
            .any(|own| user.groups.iter().any(|group| group == own))
}

/// A user who may get a level of its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) user: String,
    /// The schema of most of its requests in the level.
    pub(super) schema: String,
    pub(super) level: String,
    pub(super) percent: f64,
    /// What the requests of others lost in the level.
    pub(super) others_rejected: u64,
    pub(super) others_wait_s: f64,
}

/// The usage of one level.
#[derive(Debug, Default)]
pub(super) struct LevelUsage<'u> {
    /// By user.
    users: BTreeMap<&'u str, UserUsage<'u>>,
    seat_seconds: f64,
    rejected: u64,
    wait_s: f64,
}

#[derive(Debug, Default)]
struct UserUsage<'u> {
    seat_seconds: f64,
    rejected: u64,
    wait_s: f64,
    /// The schema with most seat-seconds.
    schema: &'u str,
    schema_seat_seconds: f64,
}

/// The usage by level.
pub(super) fn by_level(usage: &[MeasuredUsage]) -> BTreeMap<&str, LevelUsage<'_>> {
    let mut levels: BTreeMap<&str, LevelUsage<'_>> = BTreeMap::new();
    for one in usage {
        let requests = &one.requests;
        let level = levels.entry(&one.level).or_default();
        level.seat_seconds += requests.seat_seconds;
        level.rejected += requests.rejected;
        level.wait_s += requests.wait.total_s;
        let user = level.users.entry(&requests.name).or_default();
        user.seat_seconds += requests.seat_seconds;
        user.rejected += requests.rejected;
        user.wait_s += requests.wait.total_s;
        if user.schema.is_empty() || requests.seat_seconds > user.schema_seat_seconds {
            user.schema = &one.schema;
            user.schema_seat_seconds = requests.seat_seconds;
        }
    }
    levels
}

impl LevelUsage<'_> {
    /// The users with most seat-seconds and their part in percent, at least [`LEAST_PERCENT`].
    fn heaviest(&self) -> Vec<(&str, f64)> {
        let users = self.users.iter();
        let parts = users.map(|(user, usage)| {
            let part = 100.0 * usage.seat_seconds / self.seat_seconds.max(f64::MIN_POSITIVE);
            (*user, part)
        });
        let mut parts: Vec<_> = parts.filter(|(_, part)| *part >= LEAST_PERCENT).collect();
        // A stable sort: users of the same part stay in the order of their names.
        parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        parts.truncate(MAX_TRIED);
        parts
    }

    /// The user with most of the seat-seconds, if others have lost nothing.
    pub(super) fn harmless(&self) -> Option<(&str, f64)> {
        let (user, part) = *self.heaviest().first()?;
        let (rejected, wait_s) = self.loss_of_others(user);
        let lost = rejected > 0 || wait_s >= LEAST_LOSS_S;
        (part > 50.0 && self.users.len() > 1 && !lost).then_some((user, part))
    }

    /// Rejected requests and seconds of waiting of all users.
    pub(super) const fn loss(&self) -> (u64, f64) {
        (self.rejected, self.wait_s)
    }

    fn loss_of_others(&self, user: &str) -> (u64, f64) {
        let own = self.users.get(user);
        own.map_or((self.rejected, self.wait_s), |own| {
            let wait_s = (self.wait_s - own.wait_s).max(0.0);
            (self.rejected.saturating_sub(own.rejected), wait_s)
        })
    }
}

/// The users who may get levels of their own: they have a good part of a level in which the requests of
/// others wait or are rejected, and are none of `control_plane`.
pub(super) fn candidates(
    levels: &BTreeMap<&str, LevelUsage<'_>>,
    control_plane: &BTreeSet<&str>,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (name, level) in levels {
        for (user, percent) in level.heaviest() {
            if control_plane.contains(user) {
                continue;
            }
            let (others_rejected, others_wait_s) = level.loss_of_others(user);
            let Some(usage) = level.users.get(user) else {
                continue; // unreachable: it is one of them
            };
            if others_rejected > 0 || others_wait_s >= LEAST_LOSS_S {
                candidates.push(Candidate {
                    user: user.to_owned(),
                    schema: usage.schema.to_owned(),
                    level: (*name).to_owned(),
                    percent,
                    others_rejected,
                    others_wait_s,
                });
            }
        }
    }
    candidates
}

/// The objects with a level for a user, which gets `shares` of those that its level has.
#[derive(Clone, Debug)]
pub(super) struct OwnLevel {
    pub(super) name: String,
    pub(super) shares: i32,
    pub(super) level_shares: [i32; 2],
    pub(super) objects: Vec<Object>,
}

/// The objects with a level for the candidate, which takes the `part`th part of the shares of its level.
/// `None` if there is none: the level has too few shares, its spec is fixed (`catch-all`), or no
/// precedence is free before the schema (1 is that of `exempt`).
pub(super) fn own_level(objects: &[Object], candidate: &Candidate, part: i32) -> Option<OwnLevel> {
    if candidate.level == CATCH_ALL {
        return None;
    }
    let schema = find_schema(objects, &candidate.schema)?;
    let level = find_level(objects, &candidate.level)?;
    let mut spec = level.spec.clone();
    let limited = spec.limited.as_mut()?;
    let before = limited.nominal_concurrency_shares;
    let shares = before / part;
    if shares < 1 || before - shares < 1 || schema.spec.matching_precedence <= LEAST_PRECEDENCE {
        return None;
    }
    limited.nominal_concurrency_shares = shares;
    let is_taken = |name: &str| objects.iter().any(|object| object.metadata().name == name);
    let name = free_name(is_taken, &candidate.user);
    let metadata = ObjectMeta {
        name: name.clone(),
        ..ObjectMeta::default()
    };
    let mut objects = objects.to_vec();
    for object in &mut objects {
        if let Object::PriorityLevelConfiguration(level) = object
            && level.metadata.name == candidate.level
            && let Some(limited) = &mut level.spec.limited
        {
            limited.nominal_concurrency_shares = before - shares;
        }
    }
    let new_schema = FlowSchema {
        metadata: metadata.clone(),
        spec: schema_for(&schema.spec, &candidate.user, &name),
        ..FlowSchema::default()
    };
    objects.push(Object::PriorityLevelConfiguration(
        PriorityLevelConfiguration {
            metadata,
            spec,
            ..PriorityLevelConfiguration::default()
        },
    ));
    objects.push(Object::FlowSchema(new_schema));
    Some(OwnLevel {
        name,
        shares,
        level_shares: [before, before - shares],
        objects,
    })
}

/// The requests of a schema, but of one user only, tried just before it.
fn schema_for(spec: &FlowSchemaSpec, user: &str, level: &str) -> FlowSchemaSpec {
    let rules = spec.rules.iter().map(|rule| PolicyRulesWithSubjects {
        subjects: vec![subject(user)],
        ..rule.clone()
    });
    let mut rules: Vec<PolicyRulesWithSubjects> = rules.collect();
    rules.dedup();
    FlowSchemaSpec {
        priority_level_configuration: level.to_owned(),
        matching_precedence: spec.matching_precedence - 1,
        distinguisher_method: Some(FlowDistinguisherMethodType::ByUser),
        rules,
    }
}

/// The subject that is this user.
pub(super) fn subject(user: &str) -> Subject {
    let account = user.strip_prefix(ACCOUNT_PREFIX);
    match account.and_then(|account| account.split_once(':')) {
        Some((namespace, name)) => Subject {
            kind: SubjectKind::ServiceAccount,
            service_account: Some(ServiceAccountSubject {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            ..Subject::default()
        },
        None => Subject {
            kind: SubjectKind::User,
            user: Some(user.to_owned()),
            ..Subject::default()
        },
    }
}

/// A name for the objects or the rule of a user that is not taken: letters, digits and dashes of its
/// name.
pub(super) fn free_name(is_taken: impl Fn(&str) -> bool, user: &str) -> String {
    let short = user.strip_prefix(ACCOUNT_PREFIX).unwrap_or(user);
    let lower = short.to_ascii_lowercase();
    let dashed = lower.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let mut name = String::from("own");
    for word in dashed.split('-').filter(|word| !word.is_empty()) {
        let left = MAX_NAME.saturating_sub(name.len() + 1);
        if left == 0 {
            break;
        }
        name.push('-');
        name.push_str(word.get(..left.min(word.len())).unwrap_or_default());
    }
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or(name)
}

fn find_schema<'o>(objects: &'o [Object], name: &str) -> Option<&'o FlowSchema> {
    objects.iter().find_map(|object| match object {
        Object::FlowSchema(schema) if schema.metadata.name == name => Some(schema),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

fn find_level<'o>(objects: &'o [Object], name: &str) -> Option<&'o PriorityLevelConfiguration> {
    objects.iter().find_map(|object| match object {
        Object::PriorityLevelConfiguration(level) if level.metadata.name == name => Some(level),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::bootstrap;

    #[test]
    fn names_are_made_of_the_users_and_are_free() {
        for (user, name) in [
            ("alice", "own-alice"),
            ("Alice@example.org", "own-alice-example-org"),
            ("system:serviceaccount:ci:runner", "own-ci-runner"),
            ("***", "own"),
            ("ä", "own"),
        ] {
            assert_eq!(free_name(|_| false, user), name);
            let second = free_name(|taken| taken == name, user);
            assert_eq!(second, format!("{name}-2"));
        }
        let long = free_name(|_| false, &"x-".repeat(200));
        assert!(long.len() <= MAX_NAME && !long.ends_with('-'), "{long}");
    }

    #[test]
    fn the_control_plane_is_known_by_names_and_groups() {
        let user = |name: &str, groups: &[&str]| UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        };
        for own in [
            user("system:kube-scheduler", &[]),
            user("system:node:n1", &["system:nodes"]),
            user("system:serviceaccount:kube-system:job-controller", &[]),
            user("system:anonymous", &[]),
            user("admin", &["system:masters"]),
            user("n1", &["system:nodes"]),
        ] {
            assert!(is_control_plane(&own), "{own:?}");
        }
        for other in [
            user("alice", &["system:authenticated", "devs"]),
            user(
                "system:serviceaccount:ci:runner",
                &["system:serviceaccounts"],
            ),
            user("system:serviceaccount:kube-system-tools:a", &[]),
        ] {
            assert!(!is_control_plane(&other), "{other:?}");
        }
    }

    #[test]
    fn no_object_is_suggested_that_kube_apiserver_rejects() {
        let mut objects = bootstrap::add_missing(Vec::new());
        let mut candidate = Candidate {
            user: "alice".to_owned(),
            schema: "global-default".to_owned(),
            level: "global-default".to_owned(),
            percent: 80.0,
            others_rejected: 1,
            others_wait_s: 0.0,
        };
        for (precedence, is_suggested) in [(1, false), (2, false), (3, true)] {
            for object in &mut objects {
                if let Object::FlowSchema(schema) = object
                    && schema.metadata.name == "global-default"
                {
                    schema.spec.matching_precedence = precedence;
                }
            }
            let own = own_level(&objects, &candidate, 2);
            assert_eq!(own.is_some(), is_suggested, "{precedence}");
        }
        "catch-all".clone_into(&mut candidate.level);
        "catch-all".clone_into(&mut candidate.schema);
        assert!(own_level(&objects, &candidate, 2).is_none());
    }

    #[test]
    fn a_level_of_its_own_takes_its_shares_from_the_level_of_the_user() {
        let objects = bootstrap::add_missing(Vec::new());
        let candidate = Candidate {
            user: "system:serviceaccount:ci:runner".to_owned(),
            schema: "service-accounts".to_owned(),
            level: "workload-low".to_owned(),
            percent: 80.0,
            others_rejected: 1,
            others_wait_s: 0.0,
        };
        let own = own_level(&objects, &candidate, 4).unwrap();
        assert_eq!((own.shares, own.level_shares), (25, [100, 75]));
        let schema = find_schema(&own.objects, "own-ci-runner").unwrap();
        assert_eq!(schema.spec.matching_precedence, 8999);
        assert_eq!(schema.spec.rules.len(), 1);
        let subjects = &schema.spec.rules[0].subjects;
        assert_eq!(subjects[0].kind, SubjectKind::ServiceAccount);
        let shares = |name| {
            find_level(&own.objects, name)
                .unwrap()
                .spec
                .limited
                .clone()
                .unwrap()
        };
        assert_eq!(shares("workload-low").nominal_concurrency_shares, 75);
        assert_eq!(shares("own-ci-runner").nominal_concurrency_shares, 25);
        assert!(
            own_level(&objects, &candidate, 200).is_none(),
            "no share is left"
        );
    }
}
