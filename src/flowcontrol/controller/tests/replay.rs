//! A replay decides as the live controller does about the same requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;

use crate::flowcontrol::controller::{Controller, ControllerConfig, Enforcement, RequestTimes};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_explain::explainer::{ConcurrencyPolicy, ExplainedPolicies};
use weir_flowcontrol::bootstrap;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::RateLimitsConfig;
use weir_replay::clients::ClientTable;
use weir_replay::logged::{LogItem, LoggedRequest, RecordedOutcome, RequestLine};
use weir_replay::report::model::{LevelReport, RunReport};
use weir_replay::simulation::model::{ReplayModel, ReplayedPolicies};
use weir_replay::simulation::simulate;

/// A log in memory.
#[derive(Default)]
struct TestLog {
    table: Arc<ClientTable>,
    items: Vec<LogItem>,
}

impl TestLog {
    /// Adds a read of a pod.
    fn add(&mut self, at_ms: i64, user: &str, service_ms: u64) {
        let user = UserInfo {
            name: user.to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            ..UserInfo::default()
        };
        self.items.push(LogItem::Request(LoggedRequest {
            at_us: at_ms * 1000,
            client: self.table.intern(user, "agent", "192.0.2.1"),
            line: RequestLine::new("GET", b"/api/v1/namespaces/a/pods/p").unwrap(),
            service_ns: Some(service_ms * 1_000_000).into(),
            recorded: RecordedOutcome::default(),
            seats: None,
            stream: 0,
            rare: None,
        }));
    }

    /// Replays it with API Priority and Fairness and this many seats, as recorded by a weir that had
    /// run for the time `before`.
    fn replay(&self, seats: u32, before: Duration) -> RunReport {
        let policies = ReplayedPolicies {
            name: "test".to_owned(),
            limits: ExplainedPolicies {
                concurrency: ConcurrencyPolicy::Fairness {
                    server_concurrency_limit: seats,
                    objects: bootstrap::add_missing(Vec::new()),
                    dry_run: false,
                },
                rates: RateLimitsConfig::default(),
                request_timeout: Duration::from_secs(60),
            },
            rejection_hold: Duration::from_secs(1),
            auto_total: None,
        };
        let before = i64::try_from(before.as_micros()).unwrap();
        let at_us = self.items[0].at_us() - before;
        let items = [LogItem::Start { at_us }].into_iter();
        let items = items.chain(self.items.clone());
        let model = ReplayModel::default();
        simulate(items, &policies, model, &self.table, Clock.now()).run
    }
}

/// What became of the requests of a flow: executed, rejected, milliseconds of waiting.
type FlowOutcomes = BTreeMap<(String, String), (u64, u64, f64)>;

fn service_time(request: &LoggedRequest) -> Duration {
    Duration::from_nanos(request.service_ns.get().unwrap())
}

/// Runs the log through the live controller, in the paused time of a runtime. The controller has run
/// for the time `before` when the first request arrives.
async fn run_live(log: &TestLog, seats: u32, before: Duration) -> FlowOutcomes {
    let config = ControllerConfig {
        server_concurrency_limit: seats,
        request_timeout: Duration::from_secs(60),
        enforcement: Enforcement::Enforce,
        consistent_reads_from_cache: true,
    };
    let objects = bootstrap::add_missing(Vec::new());
    let controller = Controller::new(config, &objects, &Registry::new());
    let start = Clock.now();
    let mut clients = Vec::new();
    log.table.extend(&mut clients);
    let requests = log.items.iter().filter_map(|item| match item {
        LogItem::Request(request) => Some(request),
        LogItem::Start { .. } | LogItem::StreamEnd { .. } => None,
    });
    let first = log.items[0].at_us();
    let requests = requests.map(|request| {
        let (controller, clients) = (&controller, &clients);
        async move {
            let at = Duration::from_micros(u64::try_from(request.at_us - first).unwrap());
            tokio::time::sleep_until((start + before + at).into()).await;
            let info = RequestInfo::parse(request.method(), request.target()).unwrap();
            let user = &clients[usize::try_from(request.client.0).unwrap()].user;
            let schema = |name: &str| (name.to_owned(), user.name.clone());
            let times = RequestTimes::at(Clock.now());
            match controller.admit(&info, user, times).await {
                Ok(permit) => {
                    let wait = permit.decision().queue_wait.as_millis();
                    let wait = f64::from(u32::try_from(wait).unwrap());
                    let key = schema(&permit.decision().flow_schema().name);
                    tokio::time::sleep(service_time(request)).await;
                    drop(permit);
                    (key, (1, 0, wait))
                }
                Err(rejected) => {
                    let decision = &rejected.decision;
                    (schema(&decision.flow_schema().name), (0, 1, 0.0))
                }
            }
        }
    });
    let mut outcomes = FlowOutcomes::new();
    let done = tokio::select! {
        // The first adjustment precedes the first arrival, as in the simulation. After it, the
        // demand of a first period of no length would already move seats.
        biased;
        () = controller.run() => unreachable!(),
        done = join_all(requests) => done,
    };
    for (key, (executed, rejected, wait)) in done {
        let sum = outcomes.entry(key).or_default();
        *sum = (sum.0 + executed, sum.1 + rejected, sum.2 + wait);
    }
    outcomes
}

fn simulated_flows(run: &RunReport) -> FlowOutcomes {
    let flows = run.flows.top.iter().map(|flow| {
        let key = (flow.flow_schema.clone().unwrap(), flow.name.clone());
        let wait = (flow.wait.total_s * 1e3).round();
        (key, (flow.executed, flow.rejected, wait))
    });
    flows.collect()
}

/// A log in which many things happen at the same millisecond, but none when seats are adjusted: 13
/// divides no multiple of 10 s, also when a request times out after 15 s, for 80 s.
fn log_with_ties(random: &mut Rng, steps: i64) -> TestLog {
    let mut log = TestLog::default();
    let mut at = 0;
    for _ in 0..1200 {
        at += 13 * random.i64(0..steps);
        let user = match random.u8(..6) {
            0 => "system:serviceaccount:a:b".to_owned(),
            _ => format!("user-{}", random.u8(..4)),
        };
        let service = 13 * (1 + random.u64(..300));
        log.add(at, &user, service);
    }
    log
}

#[tokio::test(start_paused = true)]
async fn as_many_requests_are_rejected_as_live_but_for_two_percent_where_moments_coincide() {
    let rejected = |flows: &FlowOutcomes| flows.values().map(|(_, rejected, _)| rejected).sum();
    for seed in 0..8 {
        let mut random = Rng::with_seed(seed);
        // A burst, or a minute with several adjustments of seats.
        let log = log_with_ties(&mut random, if seed % 2 == 0 { 2 } else { 9 });
        // A multiple of 13 ms, as all times of the log, within the first period of adjustments.
        let before = Duration::from_millis(13 * random.u64(0..769));
        let live: u64 = rejected(&run_live(&log, 30, before).await);
        let run = log.replay(30, before);
        assert!(live > 50, "seed {seed}: {:?}", run.total);
        let moved = |level: &LevelReport| level.least_limit < level.greatest_limit;
        assert!(run.levels.iter().any(moved), "seed {seed}: no seats moved");
        let differing = run.total.rejected.abs_diff(live);
        println!("seed {seed}: {differing} of {}", run.total.arrivals);
        assert!(
            differing * 50 <= run.total.arrivals,
            "seed {seed}: {differing}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_live_controller_decides_the_same_about_the_same_requests() {
    // Of things that happen at the same millisecond, a runtime decides the order. These seeds have
    // none whose order matters.
    for seed in [0, 1] {
        let mut random = Rng::with_seed(seed);
        let mut log = TestLog::default();
        let mut at = 0;
        for _ in 0..1200 {
            // Milliseconds, which a runtime's timers have, and hardly two events at the same one.
            at += 2 * random.i64(0..450);
            let user = match random.u8(..4) {
                0 => "system:serviceaccount:a:b".to_owned(),
                _ => format!("user-{}", random.u8(..4)),
            };
            log.add(at, &user, 1 + 2 * random.u64(..9000));
        }
        let live = run_live(&log, 30, Duration::ZERO).await;
        let run = log.replay(30, Duration::ZERO);
        assert!(
            run.total.rejected > 2 && run.total.wait.waited > 100,
            "seed {seed}: {:?}",
            run.total
        );
        assert_eq!(simulated_flows(&run), live, "seed {seed}");
    }
}
