//! A client of small requests in one level with a client of large ones: how long the small requests
//! wait. The set and the model run the same load, each for itself, and must make each request wait
//! alike. So what the table of `docs/fairness.md` shows is upstream's own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::super::{Arrival, Effects, QueueSet, Queuing, RequestKey};
use super::model::{ModelRequestState, QueueSetModel};
use super::{MS, SplitMix64, origin, queuing, seats};
use crate::fairqueuing::shuffle_sharding::Dealer;

const SECOND: Duration = Duration::from_secs(1);

/// The longest execution of a LIST. The shortest is two thirds of it.
const LIST_TIME: Duration = Duration::from_millis(1200);
const LIST_CONNECTIONS: u64 = 400;
const GET_TIME: Duration = Duration::from_millis(10);
const GET_PERIOD: Duration = Duration::from_millis(100);

/// A quarter of the default `--request-timeout`.
const QUEUE_WAIT: Duration = Duration::from_secs(15);

/// The `Retry-After` of a rejection.
const RETRY_AFTER: Duration = SECOND;

#[derive(Clone, Copy)]
struct Scenario {
    hand_size: i32,
    queues: i32,
    /// The queues that the hands of the two clients have in common.
    shared: u32,
    /// The seats of the level, each from a second on.
    limits: &'static [(u64, u32)],
    list_seats: u32,
    /// A GET is sent each 100 ms, although earlier ones wait.
    overlapping: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LoadEvent {
    Finish(usize),
    TimeOut(usize),
    Reconfigure(u32),
    List,
    Get,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LoadRequest {
    is_get: bool,
    arrived: Duration,
    wait: Option<Duration>,
}

/// The queue set, or its model. Accepted requests are numbered in their order.
trait Level {
    fn new(queuing: Queuing, limit: u32) -> Self;
    /// Whether the request is accepted.
    fn arrive(&mut self, now: Duration, flow_hash: u64, width: u32) -> bool;
    fn finish(&mut self, now: Duration, request: usize);
    /// Whether the request waited.
    fn time_out(&mut self, now: Duration, request: usize) -> bool;
    fn reconfigure(&mut self, now: Duration, queuing: Queuing, limit: u32);
    /// The requests that the last step dispatched, in order.
    fn started(&self) -> Vec<usize>;
}

struct SetLevel {
    origin: Instant,
    set: QueueSet<usize>,
    keys: Vec<RequestKey>,
    effects: Effects,
}

struct LoadSimulation<L> {
    scenario: Scenario,
    level: L,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, LoadEvent)>>,
    rng: SplitMix64,
    list_hash: u64,
    get_hash: u64,
    requests: Vec<LoadRequest>,
    /// GETs that were rejected.
    rejected: usize,
}

/// In seconds, ascending.
struct Waits(Vec<f64>);

impl Level for SetLevel {
    fn new(queuing: Queuing, limit: u32) -> Self {
        let origin = origin();
        Self {
            origin,
            set: QueueSet::new(origin, queuing, limit),
            keys: Vec::new(),
            effects: Effects::default(),
        }
    }

    fn arrive(&mut self, now: Duration, flow_hash: u64, width: u32) -> bool {
        let (now, number) = (self.origin + now, self.keys.len());
        let effects = &mut self.effects;
        match self
            .set
            .arrive(now, flow_hash, seats(width), number, effects)
        {
            Arrival::Execute(key) | Arrival::Queued(key) => {
                self.keys.push(key);
                true
            }
            Arrival::Reject(_) => false,
        }
    }

    fn finish(&mut self, now: Duration, request: usize) {
        let now = self.origin + now;
        self.set.leave(now, self.keys[request], &mut self.effects);
    }

    fn time_out(&mut self, now: Duration, request: usize) -> bool {
        let (now, key) = (self.origin + now, self.keys[request]);
        self.set.cancel(now, key, &mut self.effects).is_some()
    }

    fn reconfigure(&mut self, now: Duration, queuing: Queuing, limit: u32) {
        let now = self.origin + now;
        self.set.reconfigure(now, queuing, limit, &mut self.effects);
    }

    fn started(&self) -> Vec<usize> {
        let started = self.effects.started.iter();
        started
            .map(|&key| *self.set.payload(key).unwrap())
            .collect()
    }
}

impl Level for QueueSetModel {
    fn new(queuing: Queuing, limit: u32) -> Self {
        Self::new(queuing, limit)
    }

    fn arrive(&mut self, now: Duration, flow_hash: u64, width: u32) -> bool {
        self.arrive(now, flow_hash, seats(width)).is_ok()
    }

    fn finish(&mut self, now: Duration, request: usize) {
        self.finish(now, request);
    }

    fn time_out(&mut self, now: Duration, request: usize) -> bool {
        let waits = self.requests[request].state == ModelRequestState::Waiting;
        if waits {
            self.eject(now, request);
        } else {
            self.started.clear();
        }
        waits
    }

    fn reconfigure(&mut self, now: Duration, queuing: Queuing, limit: u32) {
        self.reconfigure(now, queuing, limit);
    }

    fn started(&self) -> Vec<usize> {
        self.started.clone()
    }
}

impl Scenario {
    fn queuing(&self) -> Queuing {
        queuing(self.queues, self.hand_size, 50)
    }

    /// The hashes of two flows whose hands share as many queues as the scenario says. Flows whose
    /// hashes are equal modulo the number of ways to deal some cards have these cards in common.
    fn flow_hashes(&self, rng: &mut SplitMix64) -> (u64, u64) {
        let dealer = Dealer::new(self.queues, self.hand_size).unwrap();
        let (shared, queues) = (u64::from(self.shared), self.queues.unsigned_abs());
        let deals: u64 = (0..shared).map(|dealt| u64::from(queues) - dealt).product();
        let lists = rng.next_u64();
        loop {
            let gets = rng.next_u64();
            let gets = gets.saturating_sub(gets % deals) + lists % deals;
            let (lists_hand, gets_hand) = (dealer.deal(lists), dealer.deal(gets));
            let mut common = gets_hand.cards().to_vec();
            common.retain(|card| lists_hand.cards().contains(card));
            if u64::try_from(common.len()).unwrap() == shared {
                return (lists, gets);
            }
        }
    }
}

impl<L: Level> LoadSimulation<L> {
    fn run(scenario: Scenario, seed: u64, span: Duration) -> Self {
        let mut rng = SplitMix64::new(seed);
        let (list_hash, get_hash) = scenario.flow_hashes(&mut rng);
        let mut simulation = Self {
            scenario,
            level: L::new(scenario.queuing(), 0),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            rng,
            list_hash,
            get_hash,
            requests: Vec::new(),
            rejected: 0,
        };
        for &(from, limit) in scenario.limits {
            simulation.push(Duration::from_secs(from), LoadEvent::Reconfigure(limit));
        }
        for _ in 0..LIST_CONNECTIONS {
            let first = Duration::from_nanos(1 + simulation.rng.below(50_000_000));
            simulation.push(first, LoadEvent::List);
        }
        simulation.push(SECOND, LoadEvent::Get);
        while let Some(Reverse((now, event))) = simulation.events.pop()
            && now <= span
        {
            simulation.now = now;
            simulation.step(event);
        }
        simulation
    }

    fn push(&mut self, delay: Duration, event: LoadEvent) {
        self.events.push(Reverse((self.now + delay, event)));
    }

    fn step(&mut self, event: LoadEvent) {
        match event {
            LoadEvent::Get => self.arrive(true),
            LoadEvent::List => self.arrive(false),
            LoadEvent::Reconfigure(limit) => {
                let queuing = self.scenario.queuing();
                self.level.reconfigure(self.now, queuing, limit);
            }
            LoadEvent::Finish(number) => {
                self.level.finish(self.now, number);
                self.send_next(self.requests[number], Duration::ZERO);
            }
            LoadEvent::TimeOut(number) => {
                if self.level.time_out(self.now, number) {
                    self.reject(self.requests[number]);
                }
            }
        }
        for number in self.level.started() {
            let request = &mut self.requests[number];
            request.wait = Some(self.now - request.arrived);
            let service_time = if request.is_get {
                GET_TIME
            } else {
                LIST_TIME - Duration::from_micros(self.rng.below(400_000))
            };
            self.push(service_time, LoadEvent::Finish(number));
        }
    }

    fn arrive(&mut self, is_get: bool) {
        let (flow_hash, width) = if is_get {
            (self.get_hash, 1)
        } else {
            (self.list_hash, self.scenario.list_seats)
        };
        if is_get && self.scenario.overlapping {
            self.push(GET_PERIOD, LoadEvent::Get);
        }
        let request = LoadRequest {
            is_get,
            arrived: self.now,
            wait: None,
        };
        if self.level.arrive(self.now, flow_hash, width) {
            self.push(QUEUE_WAIT, LoadEvent::TimeOut(self.requests.len()));
            self.requests.push(request);
        } else {
            self.reject(request);
        }
    }

    fn reject(&mut self, request: LoadRequest) {
        self.rejected += usize::from(request.is_get);
        self.send_next(request, RETRY_AFTER);
    }

    /// The client sends its next request after `delay`, and GETs no more often than each 100 ms.
    fn send_next(&mut self, request: LoadRequest, delay: Duration) {
        if !request.is_get {
            self.push(delay + MS, LoadEvent::List);
        } else if !self.scenario.overlapping {
            let due = (request.arrived + GET_PERIOD).saturating_sub(self.now);
            self.push(due.max(delay), LoadEvent::Get);
        }
    }

    /// The waits of the GETs that arrived within these seconds.
    fn waits(&self, from: Duration, to: Duration) -> impl Iterator<Item = f64> {
        let within = move |request: &&LoadRequest| (from..to).contains(&request.arrived);
        let gets = self.requests.iter().filter(|request| request.is_get);
        gets.filter(within)
            .filter_map(|request| Some(request.wait?.as_secs_f64()))
    }
}

impl Waits {
    fn percentile(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent).div_ceil(100) - 1]
    }

    /// As a cell of the table: p50, p99, and the longest.
    fn cell(&self) -> String {
        let [p50, p99, longest] = [50, 99, 100].map(|percent| self.percentile(percent));
        format!("{p50:.2} / {p99:.2} / {longest:.2}")
    }
}

const BASE: Scenario = Scenario {
    hand_size: 8,
    queues: 64,
    shared: 0,
    limits: &[(0, 24)],
    list_seats: 10,
    overlapping: false,
};

/// The hands of the built-in levels.
const BUILT_IN: Scenario = Scenario {
    hand_size: 6,
    queues: 128,
    ..BASE
};

const ONE_QUEUE: Scenario = Scenario {
    hand_size: 1,
    ..BASE
};

const fn with_limit(limits: &'static [(u64, u32)], scenario: Scenario) -> Scenario {
    Scenario { limits, ..scenario }
}

/// What the first column says beside the seats, and the load.
const SCENARIOS: [(&str, Scenario); 20] = [
    ("", with_limit(&[(0, 10)], BASE)),
    ("", with_limit(&[(0, 20)], BASE)),
    ("", BASE),
    ("", with_limit(&[(0, 49)], BASE)),
    ("", with_limit(&[(0, 98)], BASE)),
    ("", with_limit(&[(0, 100)], BASE)),
    ("", with_limit(&[(0, 200)], BASE)),
    (", all queues shared", Scenario { shared: 8, ..BASE }),
    (", 7 queues shared", Scenario { shared: 7, ..BASE }),
    (
        ", GETs overlap",
        Scenario {
            overlapping: true,
            ..BASE
        },
    ),
    (
        "",
        Scenario {
            list_seats: 1,
            ..BASE
        },
    ),
    ("", with_limit(&[(0, 10)], BUILT_IN)),
    ("", with_limit(&[(0, 98)], BUILT_IN)),
    ("", with_limit(&[(0, 200)], BUILT_IN)),
    (
        "",
        Scenario {
            list_seats: 8,
            ..with_limit(&[(0, 49)], BUILT_IN)
        },
    ),
    (
        ", after 10 s 368",
        with_limit(&[(0, 56), (10, 368)], BUILT_IN),
    ),
    ("", ONE_QUEUE),
    ("", with_limit(&[(0, 49)], ONE_QUEUE)),
    ("", with_limit(&[(0, 98)], ONE_QUEUE)),
    ("", with_limit(&[(0, 200)], ONE_QUEUE)),
];

fn table_row(what: &str, scenario: Scenario) -> String {
    let (middle, end) = (30 * SECOND, 90 * SECOND);
    let (mut first, mut then, mut gets, mut rejected) = (Vec::new(), Vec::new(), 0, 0);
    for seed in 1..=6 {
        let simulation = LoadSimulation::<SetLevel>::run(scenario, seed, end);
        first.extend(simulation.waits(Duration::ZERO, middle));
        then.extend(simulation.waits(middle, end));
        rejected += simulation.rejected;
        gets += simulation.rejected + simulation.waits(Duration::ZERO, end).count();
    }
    first.sort_unstable_by(f64::total_cmp);
    then.sort_unstable_by(f64::total_cmp);
    let (first, then) = (Waits(first), Waits(then));
    let seats = scenario.limits[0].1;
    let last_seats = scenario.limits.last().unwrap().1;
    let bound =
        1.5 * LIST_TIME.as_secs_f64() * f64::from(scenario.list_seats) / f64::from(last_seats);
    let longest = (LIST_TIME + GET_TIME).as_secs_f64();
    let holds = match (
        then.percentile(99) <= bound,
        then.percentile(100) <= longest,
    ) {
        (true, true) => "both",
        (true, false) => "p99",
        (false, true) => "longest",
        (false, false) => "no",
    };
    let what = match rejected {
        0 => what.to_owned(),
        rejected => format!("{what}, {rejected} of {gets} rejected"),
    };
    format!(
        "| {seats}{what} | {} of {} | {} | {} | {} | {bound:.2} | {holds} |",
        scenario.hand_size,
        scenario.queues,
        scenario.list_seats,
        first.cell(),
        then.cell()
    )
}

#[test]
fn small_requests_wait_beside_large_ones_as_in_the_model() {
    for (what, scenario) in SCENARIOS {
        let span = 20 * SECOND;
        let set = LoadSimulation::<SetLevel>::run(scenario, 1, span);
        let model = LoadSimulation::<QueueSetModel>::run(scenario, 1, span);
        let row = format!("{} {what}", scenario.limits[0].1);
        assert_eq!(set.requests, model.requests, "{row}");
        assert_eq!(set.rejected, model.rejected, "{row}");
    }
}

#[test]
fn the_documentation_shows_how_long_small_requests_wait_beside_large_ones() {
    let page = include_str!("../../../../../../docs/fairness.md");
    let rows = SCENARIOS.map(|(what, scenario)| table_row(what, scenario));
    let table = rows.join("\n");
    assert!(page.contains(&table), "docs/fairness.md must have\n{table}");
}
