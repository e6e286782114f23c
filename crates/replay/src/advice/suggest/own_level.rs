//! A priority level for one user: its objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::simulation::measure::MeasuredUsage;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_flowcontrol::matching::Subjects;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{
    CATCH_ALL, EXEMPT, FlowDistinguisherMethodType, FlowSchema, FlowSchemaSpec, Object, ObjectMeta,
    PolicyRulesWithSubjects, PriorityLevelConfiguration, ServiceAccountSubject, Subject,
    SubjectKind, check_dns_label, check_dns_subdomain,
};

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
    const GROUPS: [&str; 4] = [
        "kubeadm:cluster-admins",
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
    control_plane: &BTreeSet<String>,
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

/// Why a user cannot have a level of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoOwnLevel {
    /// A built-in schema leads the control plane to the level: on another day it needs all of its seats.
    ControlPlaneLevel,
    /// No precedence is free just before the schema.
    NoPrecedence,
    /// The level has too few shares, or its spec is fixed (`catch-all`).
    NoShares,
    /// No subject can name this user alone, or no rule of the schema matches the user.
    NoSubject,
}

/// The objects with a level for the candidate, which takes the `part`th part of the shares of its level.
/// `users` are those of the log.
pub(super) fn own_level(
    objects: &[Object],
    candidate: &Candidate,
    users: &[Arc<UserInfo>],
    part: i32,
) -> Result<OwnLevel, NoOwnLevel> {
    if candidate.level == CATCH_ALL {
        return Err(NoOwnLevel::NoShares);
    }
    let schema = find_schema(objects, &candidate.schema).ok_or(NoOwnLevel::NoSubject)?;
    let level = find_level(objects, &candidate.level).ok_or(NoOwnLevel::NoShares)?;
    if serves_control_plane(objects, &candidate.level) {
        return Err(NoOwnLevel::ControlPlaneLevel);
    }
    let mut spec = level.spec.clone();
    let limited = spec.limited.as_mut().ok_or(NoOwnLevel::NoShares)?;
    let before = limited.nominal_concurrency_shares;
    let shares = before / part;
    if shares < 1 || before - shares < 1 {
        return Err(NoOwnLevel::NoShares);
    }
    limited.nominal_concurrency_shares = shares;
    let is_taken = |name: &str| objects.iter().any(|object| object.metadata().name == name);
    let name = free_name("own", is_taken, &candidate.user);
    // A name may have other groups in other requests.
    let named = users.iter().filter(|user| user.name == candidate.user);
    let named: Vec<&UserInfo> = named.map(|user| &**user).collect();
    let new_spec = FlowSchemaSpec {
        priority_level_configuration: name.clone(),
        matching_precedence: precedence_before(objects, schema, &name, &named)
            .ok_or(NoOwnLevel::NoPrecedence)?,
        distinguisher_method: Some(FlowDistinguisherMethodType::ByUser),
        rules: rules_for(&schema.spec, &candidate.user, &named).ok_or(NoOwnLevel::NoSubject)?,
    };
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
        spec: new_spec,
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
    Ok(OwnLevel {
        name,
        shares,
        level_shares: [before, before - shares],
        objects,
    })
}

/// Whether a built-in schema of the control plane leads to the level.
fn serves_control_plane(objects: &[Object], level: &str) -> bool {
    let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    let mut built_in = classes.into_iter().flat_map(bootstrap::objects);
    built_in.any(|object| {
        let name = &*object.metadata().name;
        let is_own = name == EXEMPT
            || name == "probes"
            || name.starts_with("kube-")
            || name.starts_with("system-");
        let schema = find_schema(objects, name).filter(|_| is_own);
        schema.is_some_and(|schema| schema.spec.priority_level_configuration == level)
    })
}

/// Whether a rule is about one of the users.
fn is_about(rule: &PolicyRulesWithSubjects, users: &[&UserInfo]) -> bool {
    let subjects = Subjects::new([&*rule.subjects]);
    users.iter().any(|user| subjects.lists_of(user) != 0)
}

/// A precedence at which a schema of this name is tried just before `schema`, with none in between that
/// is about the users: that would lose requests. Schemas of the same precedence are tried by their names.
fn precedence_before(
    objects: &[Object],
    schema: &FlowSchema,
    name: &str,
    users: &[&UserInfo],
) -> Option<i32> {
    fn order(schema: &FlowSchema) -> (i32, &str) {
        (schema.spec.matching_precedence, &schema.metadata.name)
    }
    let before = order(schema);
    let others = objects.iter().filter_map(|object| match object {
        Object::FlowSchema(schema) => Some(schema),
        Object::PriorityLevelConfiguration(_) => None,
    });
    let others = others.filter(|other| other.spec.rules.iter().any(|rule| is_about(rule, users)));
    let others: Vec<(i32, &str)> = others.map(order).collect();
    let mut precedences = [before.0.saturating_sub(1), before.0].into_iter();
    precedences.find(|precedence| {
        let own = (*precedence, name);
        let is_between = |other: &(i32, &str)| own < *other && *other < before;
        *precedence >= LEAST_PRECEDENCE && own < before && !others.iter().any(is_between)
    })
}

/// The rules of a schema that are about the user (`named`), for this user only. `None`: there are none,
/// or no subject is this user.
fn rules_for(
    spec: &FlowSchemaSpec,
    user: &str,
    named: &[&UserInfo],
) -> Option<Vec<PolicyRulesWithSubjects>> {
    let subject = subject(user)?;
    let rules = spec.rules.iter().filter(|rule| is_about(rule, named));
    let rules = rules.map(|rule| PolicyRulesWithSubjects {
        subjects: vec![subject.clone()],
        ..rule.clone()
    });
    let mut rules: Vec<PolicyRulesWithSubjects> = rules.collect();
    rules.dedup();
    (!rules.is_empty()).then_some(rules)
}

/// The subject that names this user alone. `None` for `*`, which names every user, and for an empty name,
/// which is not valid.
pub(super) fn subject(user: &str) -> Option<Subject> {
    if user.is_empty() || user == "*" {
        return None;
    }
    let account = user.strip_prefix(ACCOUNT_PREFIX);
    let account = account.and_then(|account| account.split_once(':'));
    // Others are no accounts of a cluster. As users they are matched by the whole name.
    let account = account.filter(|(namespace, name)| {
        check_dns_label(namespace).is_empty() && check_dns_subdomain(name).is_empty()
    });
    Some(match account {
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
    })
}

/// A name for the objects or the rule of a user that is not taken: a word, and letters, digits and
/// dashes of its name.
pub(super) fn free_name(word: &str, is_taken: impl Fn(&str) -> bool, user: &str) -> String {
    let short = user.strip_prefix(ACCOUNT_PREFIX).unwrap_or(user);
    let lower = short.to_ascii_lowercase();
    let dashed = lower.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let mut name = word.to_owned();
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
    use weir_kubernetes::encoding::printable::HOSTILE_NAMES;

    fn user(name: &str, groups: &[&str]) -> Arc<UserInfo> {
        Arc::new(UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        })
    }

    fn candidate(user: &str, schema: &str, level: &str) -> Candidate {
        Candidate {
            user: user.to_owned(),
            schema: schema.to_owned(),
            level: level.to_owned(),
            percent: 80.0,
            others_rejected: 1,
            others_wait_s: 0.0,
        }
    }

    #[test]
    fn a_subject_is_its_user_and_nobody_else() {
        const OTHERS: [&str; 4] = [
            "alice",
            "system:kube-controller-manager",
            "system:serviceaccount:ci:other",
            "system:serviceaccount:kube-system:job-controller",
        ];
        for name in HOSTILE_NAMES.into_iter().chain(OTHERS) {
            let subject = subject(name);
            assert_eq!(
                subject.is_none(),
                name == "*" || name.is_empty(),
                "{name:?}"
            );
            let Some(subject) = subject else {
                continue;
            };
            let subjects = Subjects::new([&[subject][..]]);
            for other in HOSTILE_NAMES.into_iter().chain(OTHERS) {
                let found = subjects.lists_of(&user(other, &["system:authenticated"]));
                assert_eq!(found != 0, other == name, "{name:?}: {other:?}");
            }
        }
    }

    #[test]
    fn names_are_made_of_the_users_and_are_free() {
        for (user, name) in [
            ("alice", "own-alice"),
            ("Alice@example.org", "own-alice-example-org"),
            ("system:serviceaccount:ci:runner", "own-ci-runner"),
            ("***", "own"),
            ("ä", "own"),
        ] {
            assert_eq!(free_name("own", |_| false, user), name);
            let second = free_name("own", |taken| taken == name, user);
            assert_eq!(second, format!("{name}-2"));
        }
        let long = free_name("own", |_| false, &"x-".repeat(200));
        assert!(long.len() <= MAX_NAME && !long.ends_with('-'), "{long}");
    }

    #[test]
    fn the_control_plane_is_known_by_names_and_groups() {
        for own in [
            user("system:kube-scheduler", &[]),
            user("system:node:n1", &["system:nodes"]),
            user("system:serviceaccount:kube-system:job-controller", &[]),
            user("system:anonymous", &[]),
            user("admin", &["system:masters"]),
            user("kubernetes-admin", &["kubeadm:cluster-admins"]),
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
        let users = [user("alice", &["system:authenticated"])];
        let mut candidate = candidate("alice", "global-default", "global-default");
        // Before 3 is `probes`, which is about all users.
        for (precedence, is_suggested) in [(1, false), (2, false), (3, false), (4, true)] {
            for object in &mut objects {
                if let Object::FlowSchema(schema) = object
                    && schema.metadata.name == "global-default"
                {
                    schema.spec.matching_precedence = precedence;
                }
            }
            let own = own_level(&objects, &candidate, &users, 2);
            let expected = is_suggested.then_some(()).ok_or(NoOwnLevel::NoPrecedence);
            assert_eq!(own.map(drop), expected, "{precedence}");
        }
        "catch-all".clone_into(&mut candidate.level);
        "catch-all".clone_into(&mut candidate.schema);
        let own = own_level(&objects, &candidate, &users, 2);
        assert_eq!(own.map(drop), Err(NoOwnLevel::NoShares));
    }

    /// The built-in objects, and a schema of level `global-default` for each name, precedence and group
    /// or groups of its rules.
    fn with_schemas(schemas: &[(&str, i32, &[&str])]) -> Vec<Object> {
        let mut objects = bootstrap::add_missing(Vec::new());
        for (name, precedence, groups) in schemas {
            let mut schema = find_schema(&objects, "global-default").unwrap().clone();
            schema.metadata.name = (*name).to_owned();
            schema.spec.matching_precedence = *precedence;
            let rule = schema.spec.rules[0].clone();
            let rules = groups.iter().map(|group| PolicyRulesWithSubjects {
                subjects: vec![Subject {
                    kind: SubjectKind::Group,
                    group: Some((*group).to_owned()),
                    ..Subject::default()
                }],
                resource_rules: rule.resource_rules[..usize::from(*group != "readers")].to_vec(),
                ..rule.clone()
            });
            schema.spec.rules = rules.collect();
            objects.push(Object::FlowSchema(schema));
        }
        objects
    }

    #[test]
    fn an_own_schema_takes_only_what_its_schema_would_have_taken() {
        let users = [user("carol", &["readers", "system:authenticated"])];
        for (others, expected) in [
            (&[][..], Ok(699)),
            // One in between, which has the user's requests today.
            (
                &[("writes", 699, &["readers"][..])],
                Err(NoOwnLevel::NoPrecedence),
            ),
            (
                &[("a", 700, &["readers"][..])],
                Err(NoOwnLevel::NoPrecedence),
            ),
            // Before the own one, and about other users.
            (&[("a", 699, &["readers"][..])], Ok(699)),
            (&[("writes", 699, &["writers"][..])], Ok(699)),
        ] {
            let mut schemas = vec![("ops", 700, &["readers", "secret-ops"][..])];
            schemas.extend_from_slice(others);
            let objects = with_schemas(&schemas);
            let own = own_level(
                &objects,
                &candidate("carol", "ops", "global-default"),
                &users,
                2,
            );
            let spec = own.map(|own| find_schema(&own.objects, "own-carol").unwrap().spec.clone());
            if let Ok(spec) = &spec {
                assert_eq!(spec.rules.len(), 1, "the rule of readers");
                assert_eq!(spec.rules[0].resource_rules, []);
            }
            assert_eq!(
                spec.map(|spec| spec.matching_precedence),
                expected,
                "{others:?}"
            );
        }
        // At the same precedence, by the name.
        let objects = with_schemas(&[("team", 700, &["readers"]), ("p", 699, &["readers"])]);
        let own = own_level(
            &objects,
            &candidate("carol", "team", "global-default"),
            &users,
            2,
        );
        let own = own.unwrap();
        let schema = find_schema(&own.objects, "own-carol").unwrap();
        assert_eq!(schema.spec.matching_precedence, 700);
        for name in ["*", ""] {
            let candidate = candidate(name, "ops", "global-default");
            let objects = with_schemas(&[("ops", 700, &["readers"])]);
            let own = own_level(&objects, &candidate, &[user(name, &["readers"])], 2);
            assert_eq!(own.map(drop), Err(NoOwnLevel::NoSubject), "{name:?}");
        }
    }

    #[test]
    fn no_shares_are_taken_from_the_control_plane() {
        for (level, is_suggested) in [
            ("system", false),
            ("node-high", false),
            ("leader-election", false),
            ("workload-high", false),
            ("workload-low", true),
            ("global-default", true),
        ] {
            let mut objects = with_schemas(&[("ops", 700, &["ops"])]);
            if let Some(Object::FlowSchema(schema)) = objects.last_mut() {
                level.clone_into(&mut schema.spec.priority_level_configuration);
            }
            let users = [user("carol", &["ops"])];
            let own = own_level(&objects, &candidate("carol", "ops", level), &users, 2);
            let expected = is_suggested
                .then_some(())
                .ok_or(NoOwnLevel::ControlPlaneLevel);
            assert_eq!(own.map(drop), expected, "{level}");
        }
    }

    #[test]
    fn a_level_of_its_own_takes_its_shares_from_the_level_of_the_user() {
        let objects = bootstrap::add_missing(Vec::new());
        let name = "system:serviceaccount:ci:runner";
        let users = [user(name, &["system:serviceaccounts"])];
        let candidate = candidate(name, "service-accounts", "workload-low");
        let own = own_level(&objects, &candidate, &users, 4).unwrap();
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
            own_level(&objects, &candidate, &users, 200).is_err(),
            "no share is left"
        );
    }
}
