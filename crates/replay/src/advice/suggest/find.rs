//! Looks for suggestions, and replays the log under them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::limits::{EventAdvice, measure_rates, parse_rates};
use super::model::{OwnLevelReport, SuggestReport, UnusedReport};
use super::own_level::{
    Candidate, NoOwnLevel, OwnLevel, by_level, candidates, is_control_plane, own_level, subject,
};
use super::settings::KeptSettings;
use crate::advice::repeatable_log::RepeatableLog;
use crate::advice::trials::{Trial, TrialModel, run_one, run_trials};
use crate::advice::variants::{changed_objects, is_same, objects_of, without_identity};
use crate::reader::merge::ReadError;
use crate::report::loss::GroupLoss;
use crate::run::report;
use crate::simulation::measure::{GroupKind, MeasuredUsage};
use crate::simulation::{ReplayedPolicies, Simulation, SimulationOutcome};
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::bootstrap;
use weir_flowcontrol::bootstrap::BootstrapClass;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::{Object, to_manifest};

/// The most levels that are suggested: operators shall understand each.
const MAX_OWN_LEVELS: usize = 4;

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
    schemas: Vec<String>,
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
    model: TrialModel,
) -> Result<SuggestReport, ReadError> {
    let configured = run(log, policies, model)?;
    let users = users_of(log);
    let control_plane = control_plane_users(&users);
    let mut notes: Vec<String> = nameless_users(&users).into_iter().collect();
    let looked_for = OwnLevelSearch {
        log,
        model,
        users: &users,
        control_plane: &control_plane,
    };
    let (own_levels, mut suggested) = looked_for.own_levels(policies, &configured, &mut notes)?;
    "suggested".clone_into(&mut suggested.name);

    let rates = measure_rates(log, settings.event_groups)?;
    let limits = &policies.limits.rates;
    let heavy = own_levels.iter();
    let heavy: Vec<_> = heavy
        .map(|own| (own.name.as_str(), own.user.as_str()))
        .collect();
    let mut client_limits = if limits.clients.is_empty() {
        rates.client_limits(&heavy, &control_plane)
    } else {
        notes.push(
            "The configuration has clientLimits: they are kept, and none are suggested.".to_owned(),
        );
        Vec::new()
    };
    let events = if limits.events.is_none() {
        let may_have_rules = limits.clients.is_empty();
        rates.event_advice(log, settings.event_groups, &control_plane, may_have_rules)?
    } else {
        notes.push(
            "The configuration has event limits: they are kept, and none are suggested.".to_owned(),
        );
        EventAdvice::default()
    };
    client_limits.extend(events.rules);
    let event_limits = events.limits;
    notes.extend(heavy_user_agent(&configured));
    let parsed = parse_rates(event_limits.as_ref(), &client_limits, settings);
    let to = &mut suggested.limits.rates;
    if event_limits.is_some() {
        to.events = parsed.events;
    }
    if !client_limits.is_empty() {
        to.clients = parsed.clients;
    }
    let last = run(log, &suggested, model)?;
    let protected = protected_users(&configured, &last, &own_levels);
    let never_reached = never_reached(policies, &configured);
    let outcomes = vec![configured.outcome, last.outcome];
    let replayed = report(log.summary(), log.options(), model.model, outcomes);
    Ok(SuggestReport {
        input: replayed.input,
        model: replayed.model,
        own_levels,
        objects: manifests(&changed_objects(policies, &suggested)),
        unchanged: manifests(&unchanged_objects(policies, &suggested)),
        notes,
        never_reached,
        event_limits,
        event_reasons: events.reasons,
        client_limits,
        rate_costs: rates.costs(),
        protected,
        changes: replayed.changes,
    })
}

fn run(
    log: &RepeatableLog,
    policies: &ReplayedPolicies,
    model: TrialModel,
) -> Result<UsageRun, ReadError> {
    let mut simulation = run_one(log, model, policies)?;
    let usage = simulation.usage();
    Ok(UsageRun {
        usage,
        schemas: simulation.names_with_requests(GroupKind::Schema),
        outcome: simulation.finish(),
    })
}

/// Where levels of their own are looked for.
#[derive(Clone, Copy)]
struct OwnLevelSearch<'l> {
    log: &'l RepeatableLog,
    model: TrialModel,
    users: &'l [Arc<UserInfo>],
    control_plane: &'l BTreeSet<String>,
}

impl OwnLevelSearch<'_> {
    /// Levels of their own, one after the other, as long as one helps; and the policies with them.
    fn own_levels(
        &self,
        policies: &ReplayedPolicies,
        configured: &UsageRun,
        notes: &mut Vec<String>,
    ) -> Result<(Vec<OwnLevelReport>, ReplayedPolicies), ReadError> {
        let (mut reports, mut policies) = (Vec::new(), policies.clone());
        let mut usage = configured.usage.clone();
        let mut users = by_user(&configured.outcome);
        while reports.len() < MAX_OWN_LEVELS {
            let levels = by_level(&usage);
            let candidates = candidates(&levels, self.control_plane);
            let best = self.best_own_level(&policies, &candidates, &users, notes)?;
            let Some((report, better)) = best else {
                break;
            };
            reports.push(report);
            policies = better;
            let run = run(self.log, &policies, self.model)?;
            (users, usage) = (by_user(&run.outcome), run.usage);
        }
        for (name, level) in by_level(&usage) {
            let is_own = reports.iter().any(|own: &OwnLevelReport| own.name == name);
            let (rejected, wait_s) = level.loss();
            if let (Some((user, percent)), false) = (level.harmless(), is_own) {
                notes.push(format!(
                "{user} takes {percent:.0} % of the seat-seconds of {name}, and no request of others is rejected or waits \
                 there: no level of its own."
            ));
            } else if !is_own && (rejected > 0 || wait_s >= 1.0) {
                notes.push(format!(
                "In {name} {rejected} requests are rejected, and requests wait for {wait_s:.1} s together; no level of its \
                 own for a user would help the others by half. More seats may: --search 'rejected(level={name}) = 0'."
            ));
            }
        }
        Ok((reports, policies))
    }

    /// The level of its own that helps most. `None`: none helps enough.
    fn best_own_level(
        &self,
        policies: &ReplayedPolicies,
        candidates: &[Candidate],
        before: &BTreeMap<String, GroupLoss>,
        notes: &mut Vec<String>,
    ) -> Result<Option<(OwnLevelReport, ReplayedPolicies)>, ReadError> {
        let mut variants = Vec::new();
        for candidate in candidates {
            for part in PARTS {
                match own_level(objects_of(policies), candidate, self.users, part) {
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
            resample: None,
        });
        let trials: Vec<Trial<'_>> = trials.collect();
        let finish = |simulation: Simulation| by_user(&simulation.finish());
        let outcomes = run_trials(self.log, self.model, &trials, finish)?;
        drop(trials);
        let mut best: Option<(f64, OwnLevelReport, ReplayedPolicies)> = None;
        for ((candidate, own, policies), after) in variants.into_iter().zip(outcomes) {
            let effect = effect(&candidate.user, before, &after);
            let lost = weir_kubernetes::numeric::to_f64(candidate.others_rejected)
                + candidate.others_wait_s;
            let helps = effect.gain >= LEAST_GAIN * lost && effect.harm <= MOST_HARM * effect.gain;
            // What it costs the user itself counts a little, so that it keeps as much as it can.
            let score = effect.gain - effect.harm + 0.1 * effect.own_gain;
            if helps && best.as_ref().is_none_or(|(most, ..)| score > *most) {
                best = Some((score, own_level_report(candidate, &own, effect), policies));
            }
        }
        Ok(best.map(|(_, report, policies)| (report, policies)))
    }
}

/// Says so if one user agent takes most of all seat-seconds.
fn heavy_user_agent(run: &UsageRun) -> Option<String> {
    let run = &run.outcome.run;
    let agents = run.user_agents.top.iter();
    let most = agents.max_by(|a, b| a.seat_seconds.total_cmp(&b.seat_seconds))?;
    let percent = 100.0 * most.seat_seconds / run.total.seat_seconds.max(f64::MIN_POSITIVE);
    (run.user_agents.count > 1 && percent > 50.0).then(|| {
        format!(
            "The user agent {} takes {percent:.0} % of all seat-seconds. No schema matches user agents: give its clients \
             a user of their own, or limit each with client: user+userAgent in clientLimits.",
            most.name
        )
    })
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

/// The users who lost something, but for those with levels of their own, and are no worse with all that
/// is suggested. This is promised, so it is what the last replay says.
fn protected_users(before: &UsageRun, after: &UsageRun, own: &[OwnLevelReport]) -> Vec<String> {
    if own.is_empty() {
        return Vec::new();
    }
    let after = by_user(&after.outcome);
    let users = before.outcome.users.iter().filter(|(user, first)| {
        let then = after.get(user).copied().unwrap_or_default();
        let is_heavy = own.iter().any(|own| own.user == *user);
        !is_heavy
            && loss(first) > TOLERANCE_S
            && then.rejected <= first.rejected
            && loss(&then) <= loss(first)
    });
    users.map(|(user, _)| user.clone()).collect()
}

/// The schemas and levels that no request reaches.
fn never_reached(policies: &ReplayedPolicies, run: &UsageRun) -> Vec<UnusedReport> {
    let mut unused = Vec::new();
    for object in objects_of(policies) {
        let name = &object.metadata().name;
        let levels = &run.outcome.run.levels;
        let level = levels.iter().find(|level| level.requests.name == *name);
        let (is_reached, seats) = match object {
            Object::FlowSchema(_) => (run.schemas.contains(name), None),
            Object::PriorityLevelConfiguration(_) => (
                level.is_some_and(|level| level.requests.arrivals > 0),
                level.map(|level| (level.nominal_seats, level.min_seats)),
            ),
        };
        if !is_reached {
            unused.push(UnusedReport {
                kind: object.kind(),
                name: name.clone(),
                built_in: is_built_in_name(object),
                seats: seats.map(|(nominal, _)| nominal),
                lendable_seats: seats.map(|(nominal, least)| nominal.saturating_sub(least)),
            });
        }
    }
    unused.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    unused
}

fn built_in() -> impl Iterator<Item = &'static Object> {
    let classes = [BootstrapClass::Mandatory, BootstrapClass::Suggested];
    classes.into_iter().flat_map(bootstrap::objects)
}

fn is_built_in_name(object: &Object) -> bool {
    built_in().any(|other| is_same(other, object))
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
