//! Looks for suggestions, and replays the log under them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::limits;
use super::limits::LoggedRates;
use super::output::{OwnLevelReport, SuggestReport};
use super::own_level::{
    Candidate, NoOwnLevel, OwnLevel, by_level, candidates, is_control_plane, own_level, subject,
};
use super::settings::KeptSettings;
use crate::advice::repeatable_log::{RepeatableLog, Trial};
use crate::advice::variants::{changed_objects, is_same, objects_of, without_identity};
use crate::reader::merge::ReadError;
use crate::report::model::GroupLoss;
use crate::simulation::measure::MeasuredUsage;
use crate::simulation::{ReplayedPolicies, SimulationOutcome};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{Object, to_manifest};

/// The parts of a level's shares that a level of a user's own is tried with.
const PARTS: [i32; 3] = [2, 4, 8];

/// A user is worse off by more than this: a rejection counts as a second.
const TOLERANCE_S: f64 = 1e-3;

/// A level must take this part of the others' loss in the level away.
const LEAST_GAIN: f64 = 0.5;

/// What users lose by a level may be this part of what others gain.
const MOST_HARM: f64 = 0.1;

/// A run with the usage of schemas.
struct UsageRun {
    usage: Vec<MeasuredUsage>,
    outcome: SimulationOutcome,
}

/// What users other than one gain and lose by a change, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Effect {
    gain: f64,
    harm: f64,
    own_gain: f64,
    rejected: [u64; 2],
    wait_s: [f64; 2],
}

/// Looks for objects and limits that would have served the log better, and replays it under them.
///
/// # Errors
/// The log cannot be read again.
pub fn suggest(
    log: &RepeatableLog,
    policies: &ReplayedPolicies,
    settings: &KeptSettings,
) -> Result<SuggestReport, ReadError> {
    let configured = run(log, policies)?;
    let users = users_of(log);
    let control_plane = control_plane_users(&users);
    let mut notes: Vec<String> = nameless_users(&users).into_iter().collect();
    let candidates = candidates(&by_level(&configured.usage), &control_plane);
    let before = by_user(&configured.outcome);
    let best = best_own_level(log, policies, &candidates, &users, &before, &mut notes)?;
    let (own_level, mut suggested) = match best {
        Some((own_level, policies)) => (Some(own_level), policies),
        None => (None, policies.clone()),
    };
    "suggested".clone_into(&mut suggested.name);
    notes.extend(losing_levels(&configured, own_level.as_ref()));

    let limits = &policies.limits.rates;
    let mut client_limits = Vec::new();
    if limits.clients.is_empty() {
        let rates = LoggedRates::measure(log, settings.event_groups, &control_plane)?;
        let culprit = own_level.as_ref().map(|own| &*own.user);
        client_limits = rates.client_rules(culprit);
        if limits.events.is_none() {
            let (rules, reasons) = rates.event_rules();
            client_limits.extend(rules);
            notes.extend(reasons);
        }
        suggested.limits.rates.clients = limits::parse(&client_limits);
    }
    let kept = [
        (!limits.clients.is_empty(), "clientLimits"),
        (limits.events.is_some(), "event limits"),
    ];
    let kept = kept.into_iter().filter(|(is_kept, _)| *is_kept);
    notes.extend(kept.map(|(_, what)| {
        format!("The configuration has {what}: they are kept, and none are suggested.")
    }));
    let last = run(log, &suggested)?;
    let protected = match &own_level {
        None => Vec::new(),
        Some(own) => protected_users(&configured, &last, &own.user),
    };
    let replayed = log.report(vec![configured.outcome, last.outcome]);
    Ok(SuggestReport {
        input: replayed.input,
        model: replayed.model,
        own_level,
        objects: manifests(&changed_objects(policies, &suggested)),
        unchanged: manifests(&unchanged_objects(policies, &suggested)),
        notes,
        client_limits,
        protected,
        changes: replayed.changes,
    })
}

fn run(log: &RepeatableLog, policies: &ReplayedPolicies) -> Result<UsageRun, ReadError> {
    let mut simulation = log.run_one(policies)?;
    Ok(UsageRun {
        usage: simulation.usage(),
        outcome: simulation.finish(),
    })
}

/// The level of its own that helps most. `None`: none helps enough.
fn best_own_level(
    log: &RepeatableLog,
    policies: &ReplayedPolicies,
    candidates: &[Candidate],
    users: &[Arc<UserInfo>],
    before: &BTreeMap<String, GroupLoss>,
    notes: &mut Vec<String>,
) -> Result<Option<(OwnLevelReport, ReplayedPolicies)>, ReadError> {
    let mut variants = Vec::new();
    for candidate in candidates {
        for part in PARTS {
            match own_level(objects_of(policies), candidate, users, part) {
                Ok(own) => {
                    let with = with_objects(policies, own.objects.clone());
                    variants.push((candidate, own, with));
                }
                Err(why) => {
                    let note = no_own_level(candidate, why);
                    notes.extend(note.filter(|note| !notes.contains(note)));
                }
            }
        }
    }
    let trials = variants.iter().map(|(_, _, policies)| Trial {
        policies,
        part: None,
    });
    let trials: Vec<Trial<'_>> = trials.collect();
    let outcomes = log.run(&trials, |simulation| by_user(&simulation.finish()))?;
    drop(trials);
    let mut best: Option<(f64, OwnLevelReport, ReplayedPolicies)> = None;
    for ((candidate, own, policies), after) in variants.into_iter().zip(outcomes) {
        let effect = effect(&candidate.user, before, &after);
        let lost =
            weir_kubernetes::numeric::to_f64(candidate.others_rejected) + candidate.others_wait_s;
        let helps = effect.gain >= LEAST_GAIN * lost && effect.harm <= MOST_HARM * effect.gain;
        // What it costs the user itself counts a little, so that it keeps as much as it can.
        let score = effect.gain - effect.harm + 0.1 * effect.own_gain;
        if helps && best.as_ref().is_none_or(|(most, ..)| score > *most) {
            best = Some((score, own_level_report(candidate, &own, effect), policies));
        }
    }
    Ok(best.map(|(_, report, policies)| (report, policies)))
}

/// The levels in which requests wait or are rejected, and that keep all of their shares.
fn losing_levels(run: &UsageRun, own: Option<&OwnLevelReport>) -> Vec<String> {
    let levels = by_level(&run.usage).into_iter();
    let notes = levels.filter_map(|(name, level)| {
        let (rejected, wait_s) = level.loss();
        let is_helped = own.is_some_and(|own| own.level == name);
        (!is_helped && (rejected > 0 || wait_s >= 1.0)).then(|| {
            format!(
                "In {name} {rejected} requests are rejected, and requests wait for {wait_s:.1} s together. No level of its \
                 own for a user there is suggested. More seats may help: --search 'rejected(level={name}) = 0'."
            )
        })
    });
    notes.collect()
}

fn by_user(outcome: &SimulationOutcome) -> BTreeMap<String, GroupLoss> {
    outcome.users.iter().cloned().collect()
}

fn effect(
    user: &str,
    before: &BTreeMap<String, GroupLoss>,
    after: &BTreeMap<String, GroupLoss>,
) -> Effect {
    let mut effect = Effect::default();
    for (name, then) in after {
        let first = before.get(name).copied().unwrap_or_default();
        let gain = loss(&first) - loss(then);
        if name == user {
            effect.own_gain = gain;
            continue;
        }
        effect.gain += gain.max(0.0);
        effect.harm += (-gain).max(0.0);
        let ([rejected, rejected_after], [wait_s, wait_after]) =
            (&mut effect.rejected, &mut effect.wait_s);
        *rejected += first.rejected;
        *rejected_after += then.rejected;
        *wait_s += first.wait_s;
        *wait_after += then.wait_s;
    }
    effect
}

/// In seconds: a rejection counts as one.
fn loss(loss: &GroupLoss) -> f64 {
    weir_kubernetes::numeric::to_f64(loss.rejected) + loss.wait_s
}

fn own_level_report(candidate: &Candidate, own: &OwnLevel, effect: Effect) -> OwnLevelReport {
    let rounded = |number: f64| (number * 1e6).round() / 1e6;
    OwnLevelReport {
        name: own.name.clone(),
        user: candidate.user.clone(),
        schema: candidate.schema.clone(),
        level: candidate.level.clone(),
        percent_of_seat_seconds: rounded(candidate.percent),
        shares: own.shares,
        level_shares: own.level_shares,
        others_rejected: candidate.others_rejected,
        others_wait_s: rounded(candidate.others_wait_s),
        rejected: effect.rejected,
        wait_s: effect.wait_s.map(rounded),
    }
}

fn with_objects(policies: &ReplayedPolicies, objects: Vec<Object>) -> ReplayedPolicies {
    let mut policies = policies.clone();
    if let ConcurrencyPolicy::Fairness { objects: all, .. } = &mut policies.limits.concurrency {
        *all = objects;
    }
    policies
}

/// The users who lost something, but for the one with a level of its own, and are no worse with all that
/// is suggested. This is promised, so it is what the last replay says.
fn protected_users(before: &UsageRun, after: &UsageRun, own: &str) -> Vec<String> {
    let after = by_user(&after.outcome);
    let users = before.outcome.users.iter().filter(|(user, first)| {
        let then = after.get(user).copied().unwrap_or_default();
        user != own
            && loss(first) > TOLERANCE_S
            && then.rejected <= first.rejected
            && loss(&then) <= loss(first)
    });
    users.map(|(user, _)| user.clone()).collect()
}

fn built_in() -> impl Iterator<Item = &'static Object> {
    let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    classes.into_iter().flat_map(bootstrap::objects)
}

/// The objects of the configuration that stay as they are and are not as kube-apiserver makes them
/// itself: weir has those.
fn unchanged_objects(policies: &ReplayedPolicies, suggested: &ReplayedPolicies) -> Vec<Object> {
    let changed = changed_objects(policies, suggested);
    let kept = objects_of(policies).iter().filter(|object| {
        let is_changed = changed.iter().any(|changed| is_same(changed, object));
        let is_built_in = built_in().any(|own| is_same(own, object) && own.has_equal_spec(object));
        !is_changed && !is_built_in
    });
    kept.cloned().map(without_identity).collect()
}

fn manifests(objects: &[Object]) -> Vec<serde_json::Value> {
    objects.iter().map(to_manifest).collect()
}

/// The users of a log. A name is there once for each set of groups, at least.
fn users_of(log: &RepeatableLog) -> Vec<Arc<UserInfo>> {
    let mut clients = Vec::new();
    log.table().extend(&mut clients);
    let users = clients.iter().map(|client| Arc::clone(&client.user));
    let mut users: Vec<Arc<UserInfo>> = users.collect();
    users.sort_by(|a, b| (&a.name, &a.groups).cmp(&(&b.name, &b.groups)));
    users.dedup_by(|a, b| (&a.name, &a.groups) == (&b.name, &b.groups));
    users
}

/// The names of users that belong to the control plane, with any of their groups.
fn control_plane_users(users: &[Arc<UserInfo>]) -> BTreeSet<String> {
    let own = users.iter().filter(|user| is_control_plane(user));
    own.map(|user| user.name.clone()).collect()
}

/// Says so if no rule can be about some users.
fn nameless_users(users: &[Arc<UserInfo>]) -> Option<String> {
    let names = users.iter().filter(|user| subject(&user.name).is_none());
    let names: BTreeSet<String> = names.map(|user| format!("'{}'", user.name)).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(" and ");
    (!names.is_empty()).then(|| {
        format!(
            "Nothing is suggested for the user {names}: no subject is this user and nobody else."
        )
    })
}

/// Why a user has no level of its own, where an operator can do something about it.
fn no_own_level(candidate: &Candidate, why: NoOwnLevel) -> Option<String> {
    let Candidate {
        user,
        schema,
        level,
        percent,
        ..
    } = candidate;
    let advice = match why {
        NoOwnLevel::ControlPlaneLevel => format!(
            "No shares are taken from it, since it serves the control plane: give the schema {schema} another level."
        ),
        NoOwnLevel::NoPrecedence => format!(
            "It gets no level of its own, since no precedence is free just before the schema {schema}."
        ),
        NoOwnLevel::NoShares | NoOwnLevel::NoSubject => return None,
    };
    Some(format!(
        "{user} takes {percent:.0} % of the seat-seconds of {level}, where others lose. {advice}"
    ))
}
