//! Replicas that share a bucket, in virtual time: the code that decides, without a network.
//!
//! `docs/performance.md` has figures of it.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use crate::shared_limits::bucket::{
    CALL_INTERVAL, RefillCall, RefillStep, SharedBucket, SharedRate,
};
use crate::shared_limits::script::ModelBucket;
use crate::throttling::token_bucket::Rate;

const MILLISECOND: Duration = Duration::from_millis(1);

/// A fleet, and what clients ask of it.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    replicas: u32,
    qps: u32,
    burst: u32,
    /// Requests a second of all clients together.
    demand: f64,
    /// The part of the demand at the first replica. The others have equal parts of the rest.
    skew: f64,
    /// The time until a call is answered.
    latency: Duration,
}

/// A replica.
struct Replica {
    bucket: SharedBucket,
    /// When it may call again.
    next_call: Instant,
    /// The call under way, and when it is answered.
    pending: Option<(RefillCall, Instant)>,
    connected: bool,
    /// The part of a request that is due.
    due: f64,
    sent: u64,
    accepted: u64,
    calls: u64,
}

/// A fleet that runs.
struct Fleet {
    scenario: Scenario,
    rate: SharedRate,
    start: Instant,
    now: Instant,
    server: ModelBucket,
    replicas: Vec<Replica>,
    random: fastrand::Rng,
}

impl Fleet {
    fn new(scenario: Scenario, seed: u64) -> Self {
        let (start, mut random) = (Instant::now(), fastrand::Rng::with_seed(seed));
        let rate = SharedRate {
            total: Rate::new(scenario.qps, scenario.burst),
            reserve: 0.0,
            replicas: scenario.replicas,
        };
        let interval = u64::try_from(CALL_INTERVAL.as_millis()).unwrap();
        let replica = |_| Replica {
            bucket: SharedBucket::new(&rate, start),
            next_call: start + Duration::from_millis(random.u64(..interval)),
            pending: None,
            connected: true,
            due: random.f64(),
            sent: 0,
            accepted: 0,
            calls: 0,
        };
        Self {
            replicas: (0..scenario.replicas).map(replica).collect(),
            scenario,
            rate,
            start,
            now: start,
            server: ModelBucket::default(),
            random,
        }
    }

    /// Runs for a time; returns the number of accepted requests.
    fn run(&mut self, time: Duration) -> u64 {
        let (before, until) = (self.accepted(), self.now + time);
        while self.now < until {
            for n in 0..self.replicas.len() {
                self.step(n);
            }
            self.now += MILLISECOND;
        }
        self.accepted() - before
    }

    fn accepted(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.accepted).sum()
    }

    /// The requests that clients have sent: not exactly as many as they were to.
    fn sent(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.sent).sum()
    }

    fn calls(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.calls).sum()
    }

    fn connect(&mut self, connected: impl Fn(usize) -> bool) {
        for (n, replica) in self.replicas.iter_mut().enumerate() {
            replica.connected = connected(n);
            if !replica.connected {
                replica.pending = None;
            }
        }
    }

    fn step(&mut self, n: usize) {
        let (now, rate) = (self.now, self.rate);
        let others = f64::from(self.scenario.replicas - 1).max(1.0);
        let share = match n {
            0 => self.scenario.skew,
            _ => (1.0 - self.scenario.skew) / others,
        };
        let replica = &mut self.replicas[n];
        // A client's requests are not evenly spaced.
        replica.due += self.scenario.demand * share * 0.001 * 2.0 * self.random.f64();
        while replica.due >= 1.0 {
            replica.due -= 1.0;
            replica.sent += 1;
            let taken = replica.bucket.reserve(&rate, true, now, Duration::ZERO);
            replica.accepted += u64::from(taken.is_ok());
            replica.bucket.list();
        }
        if let Some((call, at)) = replica.pending.filter(|(_, at)| now >= *at) {
            let seconds = (at - self.start).as_secs_f64();
            let answer = self.server.refill(&rate.total, &call, seconds);
            replica.bucket.apply(&rate, answer, now);
            replica.pending = None;
        }
        if replica.connected && replica.pending.is_none() && now >= replica.next_call {
            if let RefillStep::Call(call) = replica.bucket.step(&rate, now) {
                replica.calls += 1;
                replica.pending = Some((call, now + self.scenario.latency));
            }
            replica.next_call = now + CALL_INTERVAL;
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn scenario(replicas: u32, skew: f64) -> Scenario {
    Scenario {
        replicas,
        qps: 1000,
        burst: 1000,
        demand: 20_000.0,
        skew,
        latency: MILLISECOND,
    }
}

fn even(replicas: u32) -> f64 {
    1.0 / f64::from(replicas)
}

fn seed() -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    seed
}

/// Accepted requests a second within `percent` of `expected`.
#[track_caller]
fn assert_rate(accepted: u64, time: Duration, expected: f64, percent: f64) {
    let accepted = f64::from(u32::try_from(accepted).unwrap()) / time.as_secs_f64();
    let error = (accepted / expected - 1.0).abs() * 100.0;
    assert!(error <= percent, "{accepted}/s instead of {expected}/s");
}

#[test]
fn replicas_together_admit_the_rate_for_any_number_and_skew() {
    for replicas in [1, 3, 10, 50] {
        for skew in [even(replicas), 0.5, 0.9, 1.0] {
            let mut fleet = Fleet::new(scenario(replicas, skew), seed());
            fleet.run(3 * SECOND);
            let calls = fleet.calls();
            let accepted = fleet.run(10 * SECOND);
            let calls = (fleet.calls() - calls) / 10;
            println!("{replicas} replicas, {skew:.2} at one: {accepted} in 10 s, {calls} calls/s");
            assert_rate(accepted, 10 * SECOND, 1000.0, 1.0);
            let most = 20 * u64::from(replicas) * 13 + u64::from(replicas);
            assert!(fleet.calls() <= most, "{} calls", fleet.calls());
        }
    }
}

#[test]
fn demand_below_the_rate_is_admitted_at_any_replica() {
    for replicas in [3, 10] {
        for skew in [even(replicas), 0.9, 1.0] {
            let below = Scenario {
                demand: 800.0,
                ..scenario(replicas, skew)
            };
            let mut fleet = Fleet::new(below, seed());
            fleet.run(2 * SECOND);
            let before = fleet.sent();
            let accepted = fleet.run(10 * SECOND);
            let sent = f64::from(u32::try_from(fleet.sent() - before).unwrap());
            assert_rate(accepted, 10 * SECOND, sent / 10.0, 2.0);
        }
    }
}

#[test]
fn a_burst_is_granted_once_by_all_together() {
    for replicas in [3, 10] {
        let slow = Scenario {
            qps: 10,
            burst: 1000,
            ..scenario(replicas, even(replicas))
        };
        // Where several replicas happen to call first at the same moment, the slices and the local
        // shares of one interval come on top.
        let run = |_| Fleet::new(slow, seed()).run(5 * SECOND);
        let mut accepted: Vec<u64> = (0..9).map(run).collect();
        accepted.sort_unstable();
        assert!((1040..1060).contains(&accepted[4]), "{accepted:?}");
        assert!(accepted[0] >= 1040 && accepted[8] < 1300, "{accepted:?}");
    }
}

#[test]
fn replicas_that_are_cut_off_admit_their_share_and_no_more() {
    for (replicas, cut) in [(3, 1), (3, 3), (10, 4)] {
        let mut fleet = Fleet::new(scenario(replicas, even(replicas)), seed());
        fleet.run(5 * SECOND);
        fleet.connect(|n| n >= cut);
        let time = 10 * SECOND;
        let accepted = fleet.run(time);
        let part = f64::from(u32::try_from(cut).unwrap()) / f64::from(replicas);
        let shared = if part < 1.0 { 1.0 } else { 0.0 };
        assert_rate(accepted, time, 1000.0 * (shared + part), 2.0);
        fleet.connect(|_| true);
        // One burst at most, for those that were cut off together.
        let accepted = fleet.run(2 * SECOND);
        assert!(accepted <= 3100, "{accepted}");
        assert_rate(fleet.run(5 * SECOND), 5 * SECOND, 1000.0, 3.0);
    }
}

#[test]
fn a_server_that_loses_its_memory_grants_one_burst_more() {
    let mut fleet = Fleet::new(scenario(3, even(3)), seed());
    fleet.run(5 * SECOND);
    fleet.server = ModelBucket::default();
    let accepted = fleet.run(2 * SECOND);
    assert!((2800..=3200).contains(&accepted), "{accepted}");
    assert_rate(fleet.run(5 * SECOND), 5 * SECOND, 1000.0, 1.0);
}

#[test]
fn clients_that_keep_to_a_slow_rate_are_admitted_at_any_replica() {
    for (qps, burst, demand) in [(1, 1, 0.5), (2, 2, 1.0), (1, 5, 0.8), (5, 10, 4.0)] {
        for skew in [even(3), 1.0] {
            let slow = Scenario {
                qps,
                burst,
                demand,
                ..scenario(3, skew)
            };
            let mut fleet = Fleet::new(slow, seed());
            fleet.run(10 * SECOND);
            let accepted = fleet.run(100 * SECOND);
            let sent = demand * 100.0;
            let accepted = f64::from(u32::try_from(accepted).unwrap());
            assert!(accepted >= 0.93 * sent, "{accepted} of {sent}: {slow:?}");
        }
    }
}

/// The table of docs/performance.md, between its marks.
const MARK: &str = "<!-- fleet: made by crates/limits/src/shared_limits/simulation.rs -->";

/// The accepted requests of each tenth of a second.
fn tenths(fleet: &mut Fleet, time: Duration) -> Vec<u64> {
    let tenth = SECOND / 10;
    let count = time.as_millis() / tenth.as_millis();
    (0..count).map(|_| fleet.run(tenth)).collect()
}

/// The accepted requests of each second that begins with a tenth.
fn seconds(tenths: &[u64]) -> Vec<u64> {
    let seconds = tenths.windows(10);
    seconds.map(|second| second.iter().sum()).collect()
}

/// How many tenths pass until every later second has the rate within 3 %.
fn settled_after(seconds: &[u64]) -> usize {
    let is_off = |second: &u64| !(970..=1030).contains(second);
    seconds.iter().rposition(is_off).map_or(0, |last| last + 1)
}

#[test]
fn the_page_has_the_figures_of_this_simulation() {
    let mut table = String::from(
        "\n| replicas | demand at one of them | accepted in 10 s | in a second | calls a second \
         | back after a cut |\n|---|---|---|---|---|---|\n",
    );
    for replicas in [3, 10, 50] {
        for skew in [even(replicas), 0.5, 0.9, 1.0] {
            let mut fleet = Fleet::new(scenario(replicas, skew), 1);
            fleet.run(3 * SECOND);
            let calls = fleet.calls();
            let accepted = tenths(&mut fleet, 10 * SECOND);
            let calls = (fleet.calls() - calls) / 10;
            let by_second = seconds(&accepted);
            fleet.connect(|n| n != 0);
            fleet.run(5 * SECOND);
            fleet.connect(|_| true);
            let back = seconds(&tenths(&mut fleet, 10 * SECOND));
            let (whole, tenth) = (settled_after(&back) / 10, settled_after(&back) % 10);
            let (least, most) = (by_second.iter().min(), by_second.iter().max());
            writeln!(
                table,
                "| {replicas} | {:.0} % | {} | {} to {} | {calls} | {whole}.{tenth} s |",
                skew * 100.0,
                accepted.iter().sum::<u64>(),
                least.unwrap(),
                most.unwrap(),
            )
            .unwrap();
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md");
    let page = fs::read_to_string(path).unwrap();
    let [before, found, after] = page.split(MARK).collect::<Vec<_>>()[..] else {
        panic!("{path}: twice {MARK}");
    };
    let table = format!("\n{}\n", table.trim_end().to_owned() + "\n");
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        fs::write(path, [before, MARK, &table, MARK, after].concat()).unwrap();
        return;
    }
    assert_eq!(
        found, table,
        "docs/performance.md; WEIR_WRITE_DOCS=1 writes it"
    );
}
