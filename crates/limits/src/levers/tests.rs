//! Tests of the set of levers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    LeverAction, LeverCounts, LeverKey, LeverPermit, LeverRecord, LeverRejection, LeverSet,
    LeverSetting, LeverSettings, LeverSpec, LeverTarget, LimitShare, MAX_DURATION, MAX_LEVERS,
    ProtectedRequesters, TooManyLevers, TotalOverride, format_seconds,
};
use crate::admission_attributes::{AdmissionAttributes, RequestSource};
use crate::enforcement::EnforcementOverride;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

const fn limit(qps: Option<u32>, in_flight: Option<u32>) -> LeverAction {
    LeverAction::Limit { qps, in_flight }
}

fn spec(action: LeverAction, user: &str, duration: Duration) -> LeverSpec {
    LeverSpec {
        action,
        ends_in_flight: false,
        target: LeverTarget {
            users: vec![user.parse().unwrap()],
            ..LeverTarget::default()
        },
        duration,
        reason: "a storm".to_owned(),
        pulled_by: "uid 0".to_owned(),
        spared: Some(ProtectedRequesters::default()),
    }
}

fn check(
    levers: &LeverSet,
    now: Instant,
    user: &str,
    after: u64,
) -> Result<LeverPermit, LeverRejection> {
    let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
    let user = UserInfo {
        name: user.to_owned(),
        ..UserInfo::default()
    };
    let attributes = AdmissionAttributes {
        info: &info,
        user: &user,
    };
    let source = RequestSource {
        address: [10, 0, 0, 1].into(),
        user_agent: b"",
    };
    levers.check(now, &attributes, source, after)
}

#[test]
fn a_block_rejects_its_target_until_it_ends_or_is_undone() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let block = spec(LeverAction::Block, "alice", 10 * MINUTE);
    let lever = levers.pull(now, block.clone()).unwrap();
    let rejection = check(&levers, now, "alice", 0).unwrap_err();
    assert_eq!((rejection.retry_after, &*rejection.reason), (60, "a storm"));
    assert!(check(&levers, now, "bob", 0).is_ok());
    let late = now + 10 * MINUTE - SECOND / 2;
    assert_eq!(check(&levers, late, "alice", 0).unwrap_err().retry_after, 1);
    assert!(levers.expire(late).is_empty());
    let end = now + 10 * MINUTE;
    assert!(
        check(&levers, end, "alice", 0).is_ok(),
        "also if it is still there"
    );
    assert_eq!(levers.expire(end).len(), 1);
    assert!(levers.is_empty());
    assert_eq!(lever.counts().rejected, 2);

    let second = levers.pull(end, block).unwrap();
    assert_eq!((second.id, levers.latest()), (2, 2));
    assert!(levers.undo(1).is_empty());
    assert!(check(&levers, end, "alice", 2).is_ok(), "checked before");
    assert_eq!(levers.undo(2)[0].id, 2);
    assert!(check(&levers, end, "alice", 0).is_ok());
}

#[test]
fn a_rate_is_one_bucket_for_all_of_the_target() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    levers
        .pull(now, spec(limit(Some(2), None), "team-*", MINUTE))
        .unwrap();
    assert!(check(&levers, now, "team-a", 0).is_ok());
    assert!(check(&levers, now, "team-b", 0).is_ok());
    let rejection = check(&levers, now, "team-c", 0).unwrap_err();
    assert_eq!((rejection.wait, rejection.retry_after), (SECOND / 2, 1));
    assert!(rejection.is_by_rate());
    assert!(check(&levers, now + SECOND / 2, "team-c", 0).is_ok());
}

#[test]
fn requests_in_flight_count_until_their_permits_are_dropped() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let lever = levers
        .pull(now, spec(limit(None, Some(1)), "alice", MINUTE))
        .unwrap();
    let first = check(&levers, now, "alice", 0).unwrap();
    let rejection = check(&levers, now, "alice", 0).unwrap_err();
    assert_eq!((rejection.retry_after, rejection.is_by_rate()), (1, false));
    drop(first);
    let mut second = check(&levers, now, "alice", 0).unwrap();
    let other = levers
        .pull(now, spec(limit(None, Some(1)), "*", MINUTE))
        .unwrap();
    second.extend(check(&levers, now, "alice", lever.id).unwrap());
    assert_eq!(other.counts().in_flight, 1);
    assert_eq!(levers.undo(lever.id).len(), 1);
    drop(second);
    assert_eq!((lever.counts().in_flight, other.counts().in_flight), (0, 0));
}

#[test]
fn a_request_that_a_block_rejects_takes_no_token_of_a_limit() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let one = spec(limit(Some(1), Some(1)), "alice", MINUTE);
    let limit = levers.pull(now, one).unwrap();
    let block = spec(LeverAction::Block, "alice", MINUTE);
    let block = levers.pull(now, block).unwrap();
    assert_eq!(check(&levers, now, "alice", 0).unwrap_err().id, block.id);
    levers.undo(block.id);
    let admitted = check(&levers, now, "alice", 0).unwrap();
    assert_eq!(limit.counts().in_flight, 1);
    assert_eq!(check(&levers, now, "alice", 0).unwrap_err().id, limit.id);
    drop(admitted);
}

#[test]
fn a_setting_rejects_nothing_and_takes_the_place_of_its_like() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let total = |total, duration| LeverSpec {
        target: LeverTarget::default(),
        ..spec(
            LeverAction::Set(LeverSetting::Total(total)),
            "alice",
            duration,
        )
    };
    let block = levers
        .pull(now, spec(LeverAction::Block, "alice", MINUTE))
        .unwrap();
    assert!(levers.remove_overridden(block.spec.action).is_none());
    let first = total(TotalOverride::Seats(50), MINUTE);
    assert!(levers.remove_overridden(first.action).is_none());
    let first = levers.pull(now, first).unwrap();
    assert_eq!((levers.len(), levers.checked_count()), (2, 1));
    assert_eq!(levers.settings().total, Some(TotalOverride::Seats(50)));
    assert!(check(&levers, now, "bob", 0).is_ok());
    assert_eq!(first.snapshot(now).summary(), "total 50");
    assert_eq!(block.snapshot(now).summary(), "block user=alice");

    let second = total(TotalOverride::Auto, 2 * MINUTE);
    let replaced = levers.remove_overridden(second.action).unwrap();
    assert_eq!(replaced.id, first.id);
    let second = levers.pull(now, second).unwrap();
    assert_eq!(levers.settings().total, Some(TotalOverride::Auto));
    assert_eq!(levers.expire(now + MINUTE).len(), 1, "the block");
    assert_eq!(levers.expire(now + 2 * MINUTE)[0].id, second.id);
    assert_eq!(levers.settings(), LeverSettings::default());

    let mut enforcement = |setting| {
        let spec = LeverSpec {
            action: LeverAction::Set(setting),
            ..total(TotalOverride::Auto, MINUTE)
        };
        levers.remove_overridden(spec.action);
        let lever = levers.pull(now, spec).unwrap();
        (lever.snapshot(now).effect(), levers.settings().enforcement)
    };
    for (setting, effect, expected) in [
        (
            LeverSetting::DryRun(true),
            "dry-run on",
            EnforcementOverride::DryRun,
        ),
        (
            LeverSetting::DryRun(false),
            "dry-run off",
            EnforcementOverride::Enforced,
        ),
        (
            LeverSetting::Bypass,
            "bypass on",
            EnforcementOverride::Lifted,
        ),
        (
            LeverSetting::DryRun(true),
            "dry-run on",
            EnforcementOverride::Lifted,
        ),
    ] {
        assert_eq!(enforcement(setting), (effect.to_owned(), expected));
    }
    assert_eq!(levers.len(), 2);
}

#[test]
fn a_total_is_read_as_it_is_written() {
    for (text, total) in [
        ("auto", Some(TotalOverride::Auto)),
        ("1", Some(TotalOverride::Seats(1))),
        ("0", None),
        ("-1", None),
        ("Auto", None),
        ("4294967296", None),
        ("", None),
    ] {
        let read: Option<TotalOverride> = text.parse().ok();
        assert_eq!(read, total, "{text}");
        assert!(total.is_none_or(|total| total.to_string() == text));
    }
}

#[test]
fn protected_requesters_are_spared_unless_the_lever_is_forced() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let spared = levers
        .pull(now, spec(LeverAction::Block, "*", MINUTE))
        .unwrap();
    assert!(check(&levers, now, "system:kube-scheduler", 0).is_ok());
    assert!(check(&levers, now, "alice", 0).is_err());
    let counts = LeverCounts {
        rejected: 1,
        spared: 1,
        in_flight: 0,
    };
    assert_eq!(spared.counts(), counts);
    let forced = LeverSpec {
        spared: None,
        ..spec(LeverAction::Block, "*", MINUTE)
    };
    levers.pull(now, forced).unwrap();
    assert!(check(&levers, now, "system:kube-scheduler", 0).is_err());
}

#[test]
fn there_are_a_hundred_levers_at_most_and_none_lasts_longer_than_a_day() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let long = spec(LeverAction::Block, "alice", 100 * MAX_DURATION);
    for _ in 0..MAX_LEVERS {
        let lever = levers.pull(now, long.clone()).unwrap();
        assert_eq!(lever.remaining(now), MAX_DURATION);
    }
    assert_eq!(levers.pull(now, long.clone()).unwrap_err(), TooManyLevers);
    assert_eq!(levers.undo(50).len(), 1);
    assert_eq!(levers.pull(now, long).unwrap().id, 101);
}

#[test]
fn a_time_is_printed_in_whole_seconds_rounded_up() {
    for (millis, expected) in [
        (0, "0s"),
        (1, "1s"),
        (59_900, "1m0s"),
        (600_000, "10m0s"),
        (86_400_000, "24h0m0s"),
    ] {
        assert_eq!(format_seconds(Duration::from_millis(millis)), expected);
    }
}

/// What a lever should do: a plain model.
struct Model {
    spec: LeverSpec,
    ends_at: Instant,
    /// When each token was taken.
    taken: Vec<Instant>,
    in_flight: u32,
    rejected: u64,
}

impl Model {
    fn matches(&self, now: Instant, user: &str) -> bool {
        let target = self.spec.target.to_string();
        let pattern = target.strip_prefix("user=").unwrap();
        let is_named = match pattern.strip_suffix('*') {
            Some(prefix) => user.starts_with(prefix),
            None => pattern == user,
        };
        is_named && now < self.ends_at
    }

    /// Whether there is a token: simulated from the start, token by token.
    fn has_token(&self, qps: u32, from: Instant, now: Instant) -> bool {
        let (mut tokens, mut last) = (f64::from(qps), from);
        for at in self.taken.iter().copied().chain([now]) {
            let refill = at.duration_since(last).as_secs_f64() * f64::from(qps);
            tokens = (tokens + refill).min(f64::from(qps)) - 1.0;
            last = at;
        }
        tokens > -1e-6
    }
}

/// The levers that count a request, and the one that rejects it.
fn decide(
    models: &mut BTreeMap<u64, (Instant, Model)>,
    now: Instant,
    user: &str,
) -> (Vec<u64>, Option<u64>) {
    let mut order: Vec<_> = models.keys().copied().collect();
    order.sort_by_key(|id| (models[id].1.spec.action != LeverAction::Block, *id));
    let mut counted = Vec::new();
    for id in order {
        let (from, model) = models.get_mut(&id).unwrap();
        if !model.matches(now, user) {
            continue;
        }
        let admits = match model.spec.action {
            LeverAction::Block => false,
            LeverAction::Disconnect | LeverAction::Set(_) => true,
            LeverAction::Limit { qps, in_flight } => {
                in_flight.is_none_or(|most| model.in_flight < most)
                    && qps.is_none_or(|qps| model.has_token(qps, *from, now))
            }
        };
        if !admits {
            model.rejected += 1;
            return (counted, Some(id));
        }
        if let LeverAction::Limit { qps, in_flight } = model.spec.action {
            model.taken.extend(qps.map(|_| now));
            if in_flight.is_some() {
                model.in_flight += 1;
                counted.push(id);
            }
        }
    }
    (counted, None)
}

/// Random levers and requests against the model: every decision, every count, and no permit that is
/// lost.
#[test]
fn levers_decide_as_the_model_does() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let start = Instant::now();
    let (mut levers, mut now) = (LeverSet::default(), start);
    let mut models: BTreeMap<u64, (Instant, Model)> = BTreeMap::new();
    let mut permits: Vec<(LeverPermit, Vec<u64>)> = Vec::new();
    let users = ["a", "ab", "b"];
    for _ in 0..20_000 {
        now += Duration::from_millis(rng.u64(0..40) * 25);
        match rng.u8(0..20) {
            0 => {
                let action = match rng.u8(0..4) {
                    0 => LeverAction::Block,
                    1 => limit(Some(rng.u32(1..4)), None),
                    2 => limit(None, Some(rng.u32(1..4))),
                    _ => limit(Some(rng.u32(1..4)), Some(rng.u32(1..4))),
                };
                let user = ["a", "a*", "b", "*"][rng.usize(0..4)];
                let spec = spec(action, user, SECOND * rng.u32(1..20));
                let lever = levers.pull(now, spec.clone()).unwrap();
                assert!(models.keys().all(|id| *id < lever.id));
                let model = Model {
                    ends_at: now + spec.duration,
                    spec,
                    taken: Vec::new(),
                    in_flight: 0,
                    rejected: 0,
                };
                models.insert(lever.id, (now, model));
            }
            1 => {
                let id = rng.u64(1..=levers.latest() + 1);
                let is_there = models.get(&id).is_some_and(|(_, one)| one.ends_at > now);
                if levers.expire(now).iter().any(|lever| lever.id == id) {
                    assert!(!is_there);
                }
                assert_eq!(levers.undo(id).len(), usize::from(is_there));
                models.remove(&id);
            }
            2 => drop(levers.expire(now)),
            3..7 if !permits.is_empty() => {
                let (permit, counted) = permits.swap_remove(rng.usize(0..permits.len()));
                drop(permit);
                for id in counted {
                    if let Some((_, model)) = models.get_mut(&id) {
                        model.in_flight -= 1;
                    }
                }
            }
            _ => {
                let user = users[rng.usize(0..users.len())];
                let (counted, rejected_by) = decide(&mut models, now, user);
                let decided = check(&levers, now, user, 0);
                assert_eq!(decided.as_ref().err().map(|one| one.id), rejected_by);
                match decided {
                    Ok(permit) => permits.push((permit, counted)),
                    Err(rejection) => {
                        assert!((1..=60).contains(&rejection.retry_after));
                        for id in counted {
                            models.get_mut(&id).unwrap().1.in_flight -= 1;
                        }
                    }
                }
            }
        }
        models.retain(|_, (_, model)| model.ends_at > now);
        for lever in levers.by_age() {
            if let Some((_, model)) = models.get(&lever.id) {
                let counts = lever.counts();
                assert_eq!(
                    (counts.in_flight, counts.rejected),
                    (model.in_flight, model.rejected)
                );
            }
        }
    }
    let all: Vec<Arc<_>> = levers.by_age();
    drop(permits);
    assert!(all.iter().all(|lever| lever.counts().in_flight == 0));
}

/// What processes have to agree on.
fn keys(levers: &LeverSet) -> Vec<(LeverKey, LeverAction)> {
    let levers = levers.by_age().into_iter();
    let mut keys: Vec<_> = levers.map(|one| (one.key(), one.spec.action)).collect();
    keys.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    keys
}

/// Random changes of three processes, whose records arrive late, several times and in any order.
#[test]
fn processes_that_have_exchanged_their_records_have_the_same_levers() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..200 {
        let now = Instant::now();
        let mut sets = ["a", "b", "c"].map(|name| LeverSet::of_process(name.to_owned()));
        for _ in 0..rng.usize(1..30) {
            let at = rng.usize(0..3);
            match rng.u8(0..6) {
                0 => drop(sets[at].undo(rng.u64(1..12))),
                1 | 2 => {
                    let other = rng.usize(0..3);
                    let mut records = sets[other].records(now);
                    rng.shuffle(&mut records);
                    records.truncate(rng.usize(0..=records.len()));
                    for record in records {
                        assert_eq!(record.faults(), [""; 0]);
                        let text = serde_json::to_string(&record).unwrap();
                        let read = serde_json::from_str(&text).unwrap();
                        assert_eq!(record, read, "{text}");
                        sets[at].merge(now, read).unwrap();
                    }
                }
                3 => {
                    let total = LeverSetting::Total(TotalOverride::Seats(rng.u32(1..9)));
                    let spec = LeverSpec {
                        target: LeverTarget::default(),
                        ..spec(LeverAction::Set(total), "a", MINUTE)
                    };
                    sets[at].remove_overridden(spec.action);
                    sets[at].pull(now, spec).unwrap();
                }
                _ => {
                    let spec = spec(LeverAction::Block, "alice", MINUTE);
                    sets[at].pull(now, spec).unwrap();
                }
            }
        }
        // A process learns from another one what it has of the third.
        for _ in 0..3 {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                for record in sets[from].records(now) {
                    sets[to].merge(now, record).unwrap();
                }
            }
        }
        let [a, b, c] = sets.each_ref().map(keys);
        assert_eq!((&a, &a), (&b, &c));
        let totals = a.iter().filter(|(_, action)| action.setting().is_some());
        assert!(totals.count() <= 1);
    }
}

#[test]
fn a_lever_of_another_process_ends_when_it_does_there_and_is_checked_as_a_new_one() {
    let (mut one, now) = (LeverSet::of_process("one".to_owned()), Instant::now());
    let mut other = LeverSet::of_process("other".to_owned());
    one.pull(now, spec(LeverAction::Block, "alice", MINUTE))
        .unwrap();
    let own = other
        .pull(now, spec(LeverAction::Block, "bob", MINUTE))
        .unwrap();
    let later = now + MINUTE / 2;
    for record in one.records(later) {
        let merged = other.merge(later, record).unwrap();
        assert_eq!(merged.added.unwrap().remaining(later), MINUTE / 2);
    }
    // A request that was checked against its own lever waits, and has the same id.
    assert_eq!((own.id, other.latest()), (1, 2));
    assert!(check(&other, later, "alice", 1).is_err());
    assert_eq!(other.undo(1).len(), 2, "both of this id");
    let next = other
        .pull(later, spec(LeverAction::Block, "bob", MINUTE))
        .unwrap();
    assert_eq!(next.id, 2);
    for record in other.records(later) {
        one.merge(later, record).unwrap();
    }
    assert_eq!(keys(&one), keys(&other));
    let end = later + 2 * MINUTE;
    one.expire(end);
    assert_eq!(one.records(end), []);
}

#[test]
fn a_record_of_another_process_is_checked_as_a_lever_of_its_own() {
    let key = |id| LeverKey {
        id,
        origin: "one".to_owned(),
    };
    let right = spec(LeverAction::Block, "alice", MINUTE);
    let wrong = |change: fn(&mut LeverSpec)| {
        let mut spec = right.clone();
        change(&mut spec);
        let record = LeverRecord::InForce {
            key: key(1),
            spec: Box::new(spec),
        };
        record.faults().join("; ")
    };
    assert_eq!(wrong(|_| ()), "");
    for (found, expected) in [
        (wrong(|spec| spec.duration = 2 * MAX_DURATION), "24h0m0s"),
        (
            wrong(|spec| spec.target = LeverTarget::default()),
            "at least one field",
        ),
        (wrong(|spec| spec.reason = "a\nb".to_owned()), "one line"),
        (
            wrong(|spec| spec.action = limit(None, None)),
            "--qps or --inflight",
        ),
        (
            wrong(|spec| {
                spec.action = LeverAction::Set(LeverSetting::Bypass);
            }),
            "no target",
        ),
        (
            wrong(|spec| {
                spec.action = LeverAction::Disconnect;
                spec.ends_in_flight = true;
            }),
            "only a block",
        ),
    ] {
        assert!(found.contains(expected), "{found}");
    }
    for id in [0, u64::MAX] {
        let (key, remaining) = (key(id), MINUTE);
        let record = LeverRecord::Ended { key, remaining };
        assert_eq!(record.faults().len(), 1);
        let mut levers = LeverSet::default();
        levers.merge(Instant::now(), record).unwrap();
        levers.pull(Instant::now(), right.clone()).unwrap();
    }
}

#[test]
fn no_id_of_another_process_makes_the_next_ones_greater_than_all_others_take() {
    let now = Instant::now();
    let record = |id| LeverRecord::Ended {
        key: LeverKey {
            id,
            origin: "other".to_owned(),
        },
        remaining: MINUTE,
    };
    let block = || spec(LeverAction::Block, "alice", MINUTE);
    let mut levers = LeverSet::of_process("one".to_owned());
    let mut other = LeverSet::of_process("other".to_owned());
    for id in [7, 1 << 52, 1 << 40, u64::MAX] {
        levers.merge(now, record(id)).unwrap();
    }
    assert_eq!(levers.pull(now, block()).unwrap().id, 8);
    for one in levers.records(now) {
        let is_own = one.key().origin == "one";
        assert!(!is_own || one.faults().is_empty());
        other.merge(now, one).unwrap();
    }
    assert_eq!(other.pull(now, block()).unwrap().id, 9);
}

#[test]
fn the_shares_of_replicas_add_up_to_the_limit() {
    for (most, replicas) in [(1, 1), (5, 1), (5, 3), (6, 3), (7, 3), (2, 3)] {
        let shares = (0..replicas).map(|rank| LimitShare { replicas, rank });
        let sum: u32 = shares.map(|share| share.of_in_flight(most)).sum();
        assert_eq!(sum, most.max(replicas), "{most} of {replicas}");
    }
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    levers
        .pull(now, spec(limit(Some(6), Some(60)), "alice", MINUTE))
        .unwrap();
    levers.set_share(
        now,
        LimitShare {
            replicas: 3,
            rank: 1,
        },
    );
    let admitted = |levers: &LeverSet, now| {
        let checks = std::iter::repeat_with(|| check(levers, now, "alice", 0).is_ok());
        checks.take(50).filter(|is_admitted| *is_admitted).count()
    };
    assert_eq!(
        admitted(&levers, now),
        2,
        "a third of what was in the bucket"
    );
    assert_eq!(admitted(&levers, now + SECOND), 2);
    levers.set_share(now + SECOND, LimitShare::default());
    assert_eq!(admitted(&levers, now + 3 * SECOND), 6);
}

#[test]
fn a_disconnect_rejects_nothing_and_spreads_the_ends_of_what_is_open() {
    let (mut levers, now) = (LeverSet::default(), Instant::now());
    let lever = levers
        .pull(now, spec(LeverAction::Disconnect, "a*", 10 * SECOND))
        .unwrap();
    assert!(check(&levers, now, "alice", 0).is_ok());
    assert_eq!(levers.checked_count(), 0);
    let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
    let ask = |name: &str, after: u32, chance: f64| {
        let user = UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        };
        let attributes = AdmissionAttributes {
            info: &info,
            user: &user,
        };
        let source = RequestSource {
            address: [10, 0, 0, 1].into(),
            user_agent: b"",
        };
        let at = now + after * SECOND;
        (
            lever.ends_in(&attributes, source, at, chance),
            lever.disconnects(&attributes, source, at, chance),
        )
    };
    assert_eq!(ask("alice", 0, 0.5), (Some(5 * SECOND), false));
    assert_eq!(ask("alice", 0, 0.0), (Some(Duration::ZERO), true));
    // The connection of this chance has its moment after two seconds and a half.
    assert!(!ask("alice", 2, 0.5).1 && ask("alice", 3, 0.5).1);
    assert!(ask("alice", 5, 1.0).1);
    assert_eq!(ask("bob", 5, 0.0), (None, false));
    assert_eq!(ask("alice", 10, 0.0), (None, false), "it is over");
    // The same of a connection that may have no request.
    let client = |name: &str, after: u32, moment: f64| {
        let user = UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        };
        let address = [10, 0, 0, 1].into();
        lever.disconnects_client_in(&user, address, now + after * SECOND, moment)
    };
    assert_eq!(client("alice", 0, 0.5), Some(SECOND * 5 / 2));
    assert_eq!(client("alice", 3, 0.5), Some(Duration::ZERO));
    assert_eq!(client("bob", 5, 0.0), None);
    assert_eq!(client("alice", 10, 0.0), None, "it is over");
    assert!(!lever.is_undone());
    levers.undo(lever.id);
    assert!(lever.is_undone());
}

#[test]
fn a_client_is_disconnected_by_its_user_and_address_and_by_nothing_of_a_request() {
    let is_aimed = |target: serde_json::Value, groups: &[&str]| {
        let mut spec = spec(LeverAction::Disconnect, "a*", MINUTE);
        spec.target = serde_json::from_value(target).unwrap();
        let (mut levers, now) = (LeverSet::default(), Instant::now());
        let lever = levers.pull(now, spec).unwrap();
        let user = UserInfo {
            name: "alice".to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        };
        let wait = lever.disconnects_client_in(&user, [10, 0, 0, 1].into(), now, 0.0);
        wait.is_some()
    };
    for (target, expected) in [
        (serde_json::json!({"users": ["alice"]}), true),
        (serde_json::json!({"groups": ["dev"]}), true),
        (serde_json::json!({"sources": ["10.0.0.0/8"]}), true),
        (serde_json::json!({"sources": ["192.0.2.1"]}), false),
        (
            serde_json::json!({"users": ["alice"], "verbs": ["get"]}),
            false,
        ),
        (serde_json::json!({"userAgents": ["a*"]}), false),
        (serde_json::json!({"namespaces": ["web"]}), false),
        (serde_json::json!({"resources": ["pods"]}), false),
    ] {
        assert_eq!(is_aimed(target.clone(), &["dev"]), expected, "{target}");
        assert!(
            !is_aimed(target, &["dev", "system:masters"]),
            "it is spared"
        );
    }
}
