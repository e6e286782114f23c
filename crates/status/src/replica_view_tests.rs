//! Sums of replicas, and those that are missing.

use super::*;
use crate::marks::MarkStatus;
use crate::snapshot::{FailureStatus, Headline, HeadlineSeverity, LevelKind, ProcessStatus};
use weir_limits::rate::top_keys::TopKey;
use weir_talkers::TalkerTable;

const SECOND: Duration = Duration::from_secs(1);

fn table(total: u64, entries: &[(&str, u64)]) -> TalkerTable {
    let entries = entries.iter();
    let entries: Vec<_> = entries
        .map(|(name, count)| (name, [count; 6], [0; 6]))
        .collect();
    let table = serde_json::json!({
        "by": "user", "windowSeconds": 60, "cutoff": vec![2; 6], "total": vec![total; 6],
        "entries": entries,
    });
    serde_json::from_value(table).unwrap()
}

fn level(name: &str, count: u64, limit: Option<u32>) -> LevelStatus {
    LevelStatus {
        name: name.to_owned(),
        kind: LevelKind::Queue,
        seats_in_use: count,
        executing: count,
        waiting: count,
        dispatched: count,
        current_limit: limit,
        nominal_limit: limit,
        rejected: [("queue-full".to_owned(), count)].into(),
        waits: DurationHistogram {
            count,
            seconds: 0.5,
            buckets: vec![(0.1, count), (1.0, count)],
        },
        ..LevelStatus::default()
    }
}

/// A history of three rows, of which the newest has `count` rejections a second.
fn rejected_history(count: u64) -> StatusHistory {
    StatusHistory {
        every_seconds: 5,
        unix_ms: vec![1, 2, 3],
        rejected: vec![
            0.0,
            0.0,
            f32::from(u16::try_from(count).unwrap_or_default()),
        ],
        ..StatusHistory::default()
    }
}

/// A replica of which every number is `count`.
fn replica(count: u64, talkers: &[(&str, u64)]) -> ReplicaSnapshot {
    let mut status = StatusSnapshot {
        version: format!("1.2.{count}"),
        host: "a-host".to_owned(),
        unix_ms: 1000 + count,
        levels: vec![level("system", count, Some(10))],
        rejections: [("queue-full".to_owned(), count)].into(),
        rate_limits: vec![RateLimitSnapshot {
            name: "clientLimits/x".to_owned(),
            rejected: count,
            top: vec![TopKey {
                key: format!("user-{count}"),
                rejections: count,
                error: 0,
            }],
            ..RateLimitSnapshot::default()
        }],
        ..StatusSnapshot::default()
    };
    status.readiness.ready = Some(true);
    status.requests.in_flight = count;
    status.requests.by_code = [(200, count), (429, count)].into();
    status.upstream.places = vec![SlotsStatus {
        kind: "watch".to_owned(),
        total: 100,
        taken: count,
        holders: vec![SlotHolderStatus {
            by: "user".to_owned(),
            name: "alice".to_owned(),
            taken: count,
        }],
    }];
    status.upstream.last_failure = Some(FailureStatus {
        unix_ms: count,
        why: format!("failure {count}"),
    });
    ReplicaSnapshot {
        status,
        tables: vec![table(count * 10, talkers)],
        history: Some(rejected_history(count)),
    }
}

fn known(name: &str, age: Duration, snapshot: ReplicaSnapshot) -> KnownReplica {
    KnownReplica {
        name: name.to_owned(),
        last: Some((age, snapshot)),
        failure: None,
    }
}

/// `one` is asked; `two` has answered and `four` has not.
fn others() -> [KnownReplica; 2] {
    let mut silent = known("four", 9 * SECOND, replica(400, &[("carol", 400)]));
    silent.failure = Some("no snapshot within 2s".to_owned());
    let mut two = replica(20, &[("alice", 20), ("bob", 5)]);
    two.status.levels.push(level("only-there", 3, None));
    [silent, known("two", SECOND, two)]
}

fn users(snapshot: &StatusSnapshot) -> Vec<(&str, u64, u64)> {
    let mut lists = snapshot.talkers.iter();
    let list = lists
        .find(|list| list.by == "user" && list.window_seconds == 60)
        .unwrap();
    let rows = list.rows.iter();
    rows.map(|row| (row.name.as_str(), row.requests, row.error))
        .collect()
}

#[test]
fn all_replicas_are_the_sums_of_those_that_answer() {
    let own = replica(1, &[("alice", 7)]);
    let all = view(ALL_REPLICAS, "one", &own, &others());
    assert_eq!(all.version, "1.2.1", "of the replica that is asked");
    assert_eq!((all.unix_ms, all.requests.in_flight), (1001, 21));
    assert_eq!(all.requests.by_code, [(200, 21), (429, 21)].into());
    assert_eq!(all.rejections["queue-full"], 21);
    let [system, there] = all.levels.as_slice() else {
        panic!("{:?}", all.levels);
    };
    assert_eq!((system.seats_in_use, system.current_limit), (21, Some(20)));
    assert_eq!((system.executing, system.waiting), (21, 21));
    assert_eq!(system.rejected["queue-full"], 21);
    let waits = &system.waits;
    assert_eq!((waits.count, waits.seconds), (21, 1.0));
    assert_eq!(waits.buckets, [(0.1, 21), (1.0, 21)]);
    assert_eq!((there.seats_in_use, there.current_limit), (3, None));
    let limit = &all.rate_limits[0];
    let keys: Vec<_> = limit.top.iter().map(|key| &*key.key).collect();
    assert_eq!((limit.rejected, keys), (21, vec!["user-20", "user-1"]));
    let places = &all.upstream.places[0];
    assert_eq!((places.total, places.taken), (200, 21));
    assert_eq!((places.holders.len(), places.holders[0].taken), (1, 21));
    assert_eq!(all.upstream.last_failure.as_ref().unwrap().unix_ms, 20);
    // `bob` may have used 2 at `one`, whose table lacks it.
    assert_eq!(users(&all), [("alice", 27, 0), ("bob", 5, 2)]);
    assert_eq!(all.talkers[0].requests, 210);
}

#[test]
fn a_replica_that_does_not_answer_is_missing_and_its_age_is_shown() {
    let own = replica(1, &[]);
    let mut others = Vec::from(others());
    others.push(KnownReplica {
        name: "five".to_owned(),
        last: None,
        failure: Some("refused".to_owned()),
    });
    let all = view(ALL_REPLICAS, "one", &own, &others);
    let shown = all.view.unwrap();
    assert_eq!(shown.chosen, "all");
    assert_eq!(shown.counted().collect::<Vec<_>>(), ["one", "two"]);
    let replicas = shown.replicas.iter();
    let replicas: Vec<_> = replicas
        .map(|one| (&*one.name, one.age_seconds, one.failure.as_deref()))
        .collect();
    let expected = [
        ("five", None, Some("refused")),
        ("four", Some(9.0), Some("no snapshot within 2s")),
        ("one", Some(0.0), None),
        ("two", Some(1.0), None),
    ];
    assert_eq!(replicas, expected);
}

#[test]
fn one_replica_is_picked_out_even_if_it_is_missing() {
    let own = replica(1, &[("alice", 7)]);
    let one = view("one", "one", &own, &others());
    assert_eq!((one.requests.in_flight, &*one.host), (1, "a-host"));
    assert_eq!(users(&one), [("alice", 7, 0)]);
    let two = view("two", "one", &own, &others());
    assert_eq!((two.requests.in_flight, &*two.version), (20, "1.2.20"));
    let four = view("four", "one", &own, &others());
    assert_eq!(users(&four), [("carol", 400, 0)], "its last snapshot");
    let unknown = view("nine", "one", &own, &others());
    assert_eq!((unknown.levels.len(), unknown.talkers.len()), (0, 0));
    assert_eq!(unknown.view.unwrap().replicas.len(), 3);
}

#[test]
fn all_are_ready_if_each_is_and_a_failure_has_the_name_of_its_replica() {
    let own = replica(1, &[]);
    let all = view(ALL_REPLICAS, "one", &own, &others());
    assert_eq!(all.readiness.ready, Some(true));
    let mut two = replica(20, &[]);
    two.status.readiness.ready = None;
    let unknown = [known("two", SECOND, two.clone())];
    let all = view(ALL_REPLICAS, "one", &own, &unknown);
    assert_eq!(all.readiness.ready, None);
    two.status.readiness.ready = Some(false);
    two.status.readiness.upstream_failure = Some("refused".to_owned());
    two.status.config.errors = vec!["x: wrong".to_owned()];
    let all = view(ALL_REPLICAS, "one", &own, &[known("two", SECOND, two)]);
    assert_eq!(all.readiness.ready, Some(false));
    let failure = all.readiness.upstream_failure;
    assert_eq!(failure.as_deref(), Some("two: refused"));
    assert_eq!(all.config.errors, ["two: x: wrong"]);
}

#[test]
fn sums_of_the_largest_numbers_do_not_overflow() {
    let largest = replica(MAX_COUNT, &[("alice", MAX_COUNT)]);
    let others: Vec<_> = (0..255)
        .map(|n| known(&n.to_string(), SECOND, largest.clone()))
        .collect();
    let all = view(ALL_REPLICAS, "own", &largest, &others);
    assert_eq!(all.levels[0].rejected_total(), MAX_COUNT);
    assert_eq!(all.levels[0].current_limit, Some(2560));
    assert!(serde_json::to_string(&all).is_ok());
}

#[test]
fn the_history_is_that_of_the_replicas_that_are_shown() {
    let newest = |chosen: &str| {
        let history = history(chosen, "one", rejected_history(1), &others());
        history.rejected.last().copied()
    };
    assert_eq!(newest(ALL_REPLICAS), Some(21.0), "`four` is missing");
    assert_eq!(newest("one"), Some(1.0));
    assert_eq!(newest("two"), Some(20.0));
    assert_eq!(newest("four"), Some(400.0));
    assert_eq!(newest("nine"), None);
}

#[test]
fn levers_of_all_replicas_are_listed_with_the_names_of_their_replicas() {
    let with_lever = |id| {
        let mut replica = replica(1, &[]);
        replica.status.levers = vec![LeverSnapshot {
            id,
            ..LeverSnapshot::default()
        }];
        replica
    };
    let other = KnownReplica {
        name: "b".to_owned(),
        last: Some((SECOND, with_lever(2))),
        failure: None,
    };
    let all = view(ALL_REPLICAS, "a", &with_lever(1), &[other]);
    let levers = all.levers.iter();
    let levers: Vec<_> = levers.map(|one| (one.replica.as_deref(), one.id)).collect();
    assert_eq!(levers, [(Some("a"), 1), (Some("b"), 2)]);
}

#[test]
fn the_headline_of_all_is_the_worst_and_their_processes_are_added_up() {
    let with = |count: u64, severity, server| {
        let mut replica = replica(count, &[]);
        let status = &mut replica.status;
        status.headline = Headline {
            severity,
            text: format!("{count} wait"),
            ..Headline::default()
        };
        status.seats.server = server;
        status.process = ProcessStatus {
            cpu_seconds: 1.5,
            cpus: 2,
            memory_bytes: count,
            memory_limit_bytes: 100,
        };
        status.losses = [("log".to_owned(), count)].into();
        status.expiries = vec![ExpiryStatus {
            name: "serving".to_owned(),
            unix_seconds: 1000 - i64::try_from(count).unwrap(),
            replica: None,
        }];
        status.marks = vec![MarkStatus {
            unix_ms: 1000 * count,
            text: "lever 1".to_owned(),
            ..MarkStatus::default()
        }];
        status.levels[0].queue = QueueStatus {
            waited_seconds: 0.5,
            waiting: vec![UserCount {
                user: "alice".to_owned(),
                count,
            }],
            seats: Vec::new(),
        };
        replica
    };
    let own = with(1, HeadlineSeverity::Calm, None);
    let other = with(3, HeadlineSeverity::Critical, Some(600));
    let all = view(ALL_REPLICAS, "one", &own, &[known("two", SECOND, other)]);
    assert_eq!(all.headline.text, "3 wait");
    assert_eq!(all.headline.replica.as_deref(), Some("two"));
    assert_eq!(all.seats.server, Some(600));
    let process = &all.process;
    assert_eq!((process.cpu_seconds, process.cpus), (3.0, 4));
    assert_eq!((process.memory_bytes, process.memory_limit_bytes), (4, 200));
    assert_eq!(all.losses["log"], 4);
    let expiries = all.expiries.iter();
    let expiries: Vec<_> = expiries.map(|one| one.replica.as_deref()).collect();
    assert_eq!(expiries, [Some("two"), Some("one")], "the first one first");
    assert_eq!(all.marks.len(), 1, "one lever reaches both");
    assert_eq!(all.levels[0].queue.waiting[0].count, 4);
}
