//! Tests of reports against an exact count.

#![expect(
    clippy::as_conversions,
    reason = "the numbers are small, and compared with others of their kind"
)]

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::heavy_hitters::{HeavyHitters, MIN_KEPT_PER_MEASURE};
use super::weights::MEASURES;
use super::*;
use weir_base::hash_keys::HashKey;

fn seeded_rng() -> fastrand::Rng {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

/// A few names have much usage, in one measure or another; many names have little.
fn random_request(random: &mut fastrand::Rng, names: u64) -> (u64, Weights) {
    let id = match random.u8(0..4) {
        0 => random.u64(0..20),
        1 => random.u64(0..200),
        _ => random.u64(0..names),
    };
    let has_much = id % 7 == 0;
    let weights = Weights([
        if has_much {
            random.u64(0..1 << 30)
        } else {
            random.u64(0..1000)
        },
        if random.u8(0..10) == 0 {
            random.u64(0..1_000_000)
        } else {
            0
        },
        u64::from(id % 11 == 0),
        1,
        random.u64(0..50_000_000) * (1 + id % 3),
        u64::from(id % 13 == 0),
    ]);
    (id, weights)
}

/// Counts every name exactly.
#[derive(Clone, Default)]
struct ExactCounts {
    by_name: HashMap<u64, Weights>,
    total: Weights,
}

impl ExactCounts {
    fn add(&mut self, id: u64, weights: Weights) {
        self.by_name.entry(id).or_default().add(weights);
        self.total.add(weights);
    }

    fn merge(&mut self, other: &Self) {
        for (id, weights) in &other.by_name {
            self.add(*id, *weights);
        }
    }

    /// Asserts all bounds that a table promises.
    fn assert_bounds(&self, table: &HeavyHitters, note: &str) {
        assert_eq!(table.total(), self.total, "{note}");
        let entries: HashMap<u64, _> = table
            .entries()
            .map(|e| (e.name.parse().unwrap(), e))
            .collect();
        for measure in 0..MEASURES {
            let cutoff = table.cutoff().get(measure);
            let bound = self.total.get(measure) / u64::try_from(MIN_KEPT_PER_MEASURE).unwrap();
            assert!(cutoff <= bound, "{note}: cut-off {cutoff} is above {bound}");
            for (id, usage) in &self.by_name {
                let usage = usage.get(measure);
                let Some(entry) = entries.get(id) else {
                    assert!(
                        usage <= cutoff,
                        "{note}: {id} used {usage}, and the cut-off is {cutoff}"
                    );
                    continue;
                };
                let (count, error) = (entry.count.get(measure), entry.error.get(measure));
                assert!(
                    count <= usage && usage <= count + error && error <= cutoff,
                    "{note}: {id} used {usage}: {entry:?}"
                );
            }
        }
    }
}

fn add_request(table: &mut HeavyHitters, id: u64, weights: Weights) {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    table.add(HashKey::of(&*SECRET, id), id.to_string().into(), weights);
}

#[test]
fn a_count_is_never_too_high_and_too_low_by_at_most_its_error() {
    let mut random = seeded_rng();
    for round in 0..30 {
        let names = 1 << random.u32(4..16);
        let (mut table, mut exact) = (
            HeavyHitters::new(random.usize(500..900)),
            ExactCounts::default(),
        );
        for _ in 0..random.u32(1..40_000) {
            let (id, weights) = random_request(&mut random, names);
            if random.u16(..) == 0 {
                table.add_unattributed(weights);
                exact.add(id, weights);
            } else {
                add_request(&mut table, id, weights);
                exact.add(id, weights);
            }
        }
        exact.assert_bounds(&table, &format!("round {round}"));
        let compacted = table.compact();
        exact.assert_bounds(&compacted, &format!("round {round}, closed"));
        assert!(compacted.entries().count() <= MEASURES * MIN_KEPT_PER_MEASURE);
    }
}

#[test]
fn merged_tables_keep_the_error_bound() {
    let mut random = seeded_rng();
    for round in 0..20 {
        let max_entries = if random.bool() { usize::MAX } else { 500 };
        let (mut merged, mut exact_merged) =
            (HeavyHitters::new(max_entries), ExactCounts::default());
        for _ in 0..random.u32(1..10) {
            let names = 1 << random.u32(4..16);
            let (mut table, mut exact) = (HeavyHitters::new(500), ExactCounts::default());
            for _ in 0..random.u32(1..10_000) {
                let (id, weights) = random_request(&mut random, names);
                add_request(&mut table, id, weights);
                exact.add(id, weights);
            }
            exact_merged.merge(&exact);
            merged.merge(&if random.bool() {
                table.compact()
            } else {
                table
            });
            exact_merged.assert_bounds(&merged, &format!("round {round}"));
        }
    }
}

#[test]
fn few_names_are_counted_exactly() {
    let (mut table, mut exact) = (
        HeavyHitters::new(heavy_hitters::MAX_ENTRIES),
        ExactCounts::default(),
    );
    let mut random = seeded_rng();
    for _ in 0..100_000 {
        let (id, weights) = random_request(
            &mut random,
            u64::try_from(heavy_hitters::MAX_ENTRIES).unwrap(),
        );
        add_request(&mut table, id, weights);
        exact.add(id, weights);
    }
    exact.assert_bounds(&table, "few");
    assert_eq!(table.cutoff(), Weights::ZERO);
}

fn talker_name<'a>(parts: &'a [&'a [u8]]) -> Option<TalkerName<'a>> {
    Some(TalkerName::new(parts))
}

fn one_request() -> Weights {
    Weights::from_request(
        100,
        Duration::from_millis(2),
        false,
        3,
        Duration::from_millis(500),
    )
}

fn user_query(window: Window, sort: UsageMeasure) -> TopTalkersQuery {
    TopTalkersQuery {
        window,
        by: Dimension::User,
        sort,
        limit: 10,
    }
}

fn user_name(user: &[u8]) -> Vec<u8> {
    user.to_vec()
}

fn count_user(shard: &WorkerShard, user: &str, weights: Weights) {
    let user = user_name(user.as_bytes());
    shard.count(
        None,
        [None, None, None, None, None, talker_name(&[&user]), None],
        weights,
    );
}

#[test]
fn windows_cover_their_duration_and_nothing_older() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let mut random = seeded_rng();
    let mut ticks = Vec::new();
    let mut now = Duration::ZERO;
    for _ in 0..4000 {
        now += Duration::from_millis(random.u64(1..5000));
        count_user(
            &shard,
            if random.bool() { "alice" } else { "bob" },
            one_request(),
        );
        let at = start + now;
        talkers.flush_shards(at);
        // Usage flushed at a new tick was counted before it.
        ticks.push(now.as_secs() / 5);
        if random.u8(0..50) > 0 {
            continue;
        }
        for window in Window::ALL {
            let top = talkers.top_at(&user_query(window, UsageMeasure::Requests), at);
            let covered = Duration::from_secs_f64(top.covered_seconds);
            let length = window.duration().min(now);
            assert!(
                covered >= length && covered <= length.mul_f64(1.1),
                "{window:?} {covered:?} of {now:?}"
            );
            // Buckets start at whole ticks; the covered time is a fraction of a second.
            let start_tick = (now.saturating_sub(covered) + Duration::from_millis(1)).as_secs() / 5;
            // A count belongs to the tick before its flush if the flush was the first of its tick.
            let count = top.rows.iter().map(|row| row.usage.requests).sum::<u64>();
            let min = ticks.iter().filter(|tick| **tick > start_tick).count() as u64;
            let max = ticks.iter().filter(|tick| **tick >= start_tick).count() as u64;
            assert!(
                (min..=max + 1).contains(&count),
                "{window:?} at {now:?}: {count}, not {min} to {max}"
            );
            assert_eq!(
                (top.total.requests, top.max_error),
                (count, Usage::default())
            );
        }
    }
}

#[test]
fn windows_are_empty_after_a_long_idle_time() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    count_user(&shard, "alice", one_request());
    let at = |seconds| start + Duration::from_secs(seconds);
    let requests = |window, now| {
        talkers
            .top_at(&user_query(window, UsageMeasure::Requests), now)
            .total
            .requests
    };
    assert_eq!(Window::ALL.map(|window| requests(window, at(1))), [1, 1, 1]);
    assert_eq!(
        Window::ALL.map(|window| requests(window, at(64))),
        [1, 1, 1]
    );
    assert_eq!(
        Window::ALL.map(|window| requests(window, at(65))),
        [0, 1, 1]
    );
    assert_eq!(
        Window::ALL.map(|window| requests(window, at(330))),
        [0, 0, 1]
    );
    assert_eq!(
        Window::ALL.map(|window| requests(window, at(3600))),
        [0, 0, 1]
    );
    assert_eq!(
        Window::ALL.map(|window| requests(window, at(90_000))),
        [0, 0, 0]
    );
    // A clock that steps back, and one that stands still.
    assert_eq!(Window::ALL.map(|window| requests(window, at(5))), [0, 0, 0]);
}

/// Each name with much usage has it in one measure only; the noise comes from fifty thousand names.
fn noise_and_leaders(
    talkers: &TopTalkers,
    start: Instant,
) -> [(UsageMeasure, &'static str, Weights); 6] {
    let short = Duration::from_millis(1);
    let long = Duration::from_secs(30);
    let none = Duration::ZERO;
    let leaders = [
        (
            UsageMeasure::Bytes,
            "reader",
            5000,
            Weights::from_request(1 << 30, none, false, 1, short),
        ),
        (
            UsageMeasure::QueueWait,
            "waiter",
            5000,
            Weights::from_request(10, long, false, 1, short),
        ),
        (
            UsageMeasure::Rejections,
            "refused",
            5000,
            Weights::from_request(10, none, true, 0, none),
        ),
        (
            UsageMeasure::Requests,
            "asker",
            50,
            Weights::from_request(10, none, false, 1, short),
        ),
        (
            UsageMeasure::SeatSeconds,
            "holder",
            5000,
            Weights::from_request(10, none, false, 10, long),
        ),
        (
            UsageMeasure::WouldBeRejections,
            "spared",
            5000,
            Weights::from_dry_run_rejection(),
        ),
    ];
    let shard = talkers.new_shard();
    let noise = Weights::from_request(10, none, false, 1, short);
    let mut usage = leaders.map(|(sort, name, _, _)| (sort, name, Weights::ZERO));
    for n in 0..50_000_u32 {
        count_user(&shard, &format!("noise-{n}"), noise);
        for ((_, name, every, weights), (_, _, usage)) in leaders.iter().zip(&mut usage) {
            if n % every == 0 {
                count_user(&shard, name, *weights);
                usage.add(*weights);
            }
        }
        if n % 1000 == 0 {
            talkers.flush_shards(start + Duration::from_millis(n.into()));
        }
    }
    usage
}

#[test]
fn the_first_name_of_each_measure_is_kept() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    let now = start + Duration::from_secs(50);
    for (sort, name, exact) in noise_and_leaders(&talkers, start) {
        let top = talkers.top_at(&user_query(Window::OneMinute, sort), now);
        let first = &top.rows[0];
        assert_eq!(first.name, name, "{sort:?}: {top:?}");
        let value = |usage: Usage| match sort {
            UsageMeasure::Bytes => usage.bytes as f64,
            UsageMeasure::QueueWait => usage.queue_wait_seconds,
            UsageMeasure::Rejections => usage.rejections as f64,
            UsageMeasure::Requests => usage.requests as f64,
            UsageMeasure::SeatSeconds => usage.seat_seconds,
            UsageMeasure::WouldBeRejections => usage.would_be_rejections as f64,
        };
        let exact = value(exact.into());
        let (least, most) = (value(first.usage), value(first.usage) + value(first.error));
        assert!((least..=most).contains(&exact), "{exact}: {first:?}");
    }
}

#[test]
fn shards_of_many_workers_are_merged() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let shard = talkers.new_shard();
            scope.spawn(move || {
                for n in 0..20_000_u32 {
                    count_user(
                        &shard,
                        if n % 4 == 0 { "alice" } else { "bob" },
                        one_request(),
                    );
                    count_user(
                        &shard,
                        &format!("{:?} {n}", std::thread::current().id()),
                        one_request(),
                    );
                }
            });
        }
        for _ in 0..100 {
            talkers.flush_shards(start);
        }
    });
    let top = talkers.top_at(
        &user_query(Window::OneMinute, UsageMeasure::Requests),
        start,
    );
    assert_eq!(top.total.requests, 160_000);
    let shown: Vec<_> = top
        .rows
        .iter()
        .take(2)
        .map(|row| (&*row.name, row.usage.requests, row.error.requests))
        .collect();
    for ((name, count, error), (expected, exact)) in
        shown.into_iter().zip([("bob", 60_000), ("alice", 20_000)])
    {
        assert!(
            name == expected && count <= exact && exact <= count + error,
            "{name} {count} {error}"
        );
    }
}

#[test]
fn usage_over_the_capacity_of_a_shard_is_part_of_the_error() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let busy = talkers.shared.windows.lock(); // as while a window is read
    for n in 0..1000 {
        count_user(&shard, &format!("user-{n}"), one_request());
    }
    drop(busy);
    let top = talkers.top_at(
        &user_query(Window::OneMinute, UsageMeasure::Requests),
        start,
    );
    assert_eq!(
        (top.total.requests, top.max_error.requests),
        (1000, 1000 - 224)
    );
    assert_eq!(top.rows[0].error.requests, 1000 - 224);

    let busy = shard.halves.each_ref().map(|half| half.lock()); // as while two queries flush the shard
    count_user(&shard, "late", one_request());
    drop(busy);
    let top = talkers.top_at(
        &user_query(Window::OneMinute, UsageMeasure::Requests),
        start,
    );
    assert_eq!(
        (top.total.requests, top.max_error.requests),
        (1001, 1001 - 224)
    );
}

#[test]
fn a_request_that_ends_while_its_shard_is_flushed_is_counted() {
    let start = Instant::now();
    for locked in [0, 1] {
        let talkers = TopTalkers::new(start, 1);
        let shard = talkers.new_shard();
        let busy = shard.halves[locked].lock();
        count_user(&shard, "alice", one_request());
        drop(busy);
        let query = user_query(Window::OneMinute, UsageMeasure::Requests);
        let top = talkers.top_at(&query, start);
        let [alice] = &top.rows[..] else {
            panic!("{top:?}");
        };
        assert_eq!((&*alice.name, alice.usage.requests), ("alice", 1));
        assert_eq!(top.max_error.requests, 0);
    }
}

#[test]
fn a_long_name_is_truncated() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    let shard = talkers.new_shard();
    let long = |last: &str| format!("{}{last}", "é".repeat(1 << 18));
    for (times, user) in [
        (5, long("")),
        (4, long("12")),
        (3, "x".repeat(192)),
        (2, "x".repeat(193)),
        (1, "\u{fffd}".repeat(90)),
    ] {
        for _ in 0..times {
            count_user(&shard, &user, one_request());
        }
    }
    shard.count(
        None,
        [
            None,
            None,
            None,
            None,
            None,
            talker_name(&[&[0xff; 300]]),
            None,
        ],
        one_request(),
    );
    let top = talkers.top_at(
        &user_query(Window::OneMinute, UsageMeasure::Requests),
        start,
    );
    let rows: Vec<_> = top
        .rows
        .iter()
        .map(|row| (row.usage.requests, row.name.len(), row.name.ends_with('…')))
        .collect();
    assert_eq!(
        rows,
        [
            (5, 191, true),
            (4, 191, true),
            (3, 192, false),
            (2, 192, true),
            (1, 192, true),
            (1, 192, true)
        ]
    );
}

#[test]
fn a_name_does_not_depend_on_how_its_parts_are_split() {
    let secret = RandomState::new();
    let key = |parts: &[&[u8]]| TalkerName::new(parts).key(&secret);
    assert_eq!(key(&[b"list pods"]), key(&[b"list", b" ", b"pods"]));
    assert_ne!(key(&[b"list pods"]), key(&[b"list pod"]));
    assert_ne!(key(&[&[b'a'; 600]]), key(&[&[b'a'; 601]]), "by the length");
    assert_eq!(
        &*TalkerName::new(&[b"list", b" ", b"pods"]).to_display(),
        "list pods"
    );
}

#[test]
fn the_json_holds_the_query_and_the_error_bounds() {
    let start = Instant::now();
    let talkers = TopTalkers::new(start, 1);
    count_user(&talkers.new_shard(), "alice", one_request());
    let top = talkers.top_at(
        &user_query(Window::FiveMinutes, UsageMeasure::SeatSeconds),
        start + Duration::from_secs(7),
    );
    let none = serde_json::json!({"requests": 0, "seatSeconds": 0.0, "bytes": 0, "rejections": 0, "queueWaitSeconds": 0.0, "wouldBeRejections": 0});
    let one = serde_json::json!({"requests": 1, "seatSeconds": 1.5, "bytes": 100, "rejections": 0, "queueWaitSeconds": 0.002, "wouldBeRejections": 0});
    let mut row = one.clone();
    row["name"] = "alice".into();
    row["error"] = none.clone();
    let expected = serde_json::json!({
        "window": "5m", "by": "user", "sort": "seatSeconds", "limit": 10,
        "coveredSeconds": 7.0, "total": one, "maxError": none, "rows": [row],
    });
    assert_eq!(serde_json::to_value(&top).unwrap(), expected);
    assert_eq!(
        serde_json::from_value::<TopTalkersReport>(expected).unwrap(),
        top
    );
}
