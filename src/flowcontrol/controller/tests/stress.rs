//! All kinds of requests at once, on several threads: the counters add up.

use std::collections::HashMap;

use fastrand::Rng;
use tokio::task::{JoinSet, yield_now};

use super::*;

use weir_kubernetes::numeric::to_f64;

const CLIENTS: u64 = 64;
const REQUESTS: u64 = 150;

/// Only reached if a permit is never released.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(60);

/// The number of requests per outcome, as their clients saw it.
type StressOutcomes = HashMap<&'static str, u64>;

fn configurations() -> [Vec<Object>; 3] {
    let schemas = |level: &str| [schema("all", level, "*"), schema("even", "even", "even")];
    let with = |levels: Vec<Object>, level: &str| [levels, schemas(level).to_vec()].concat();
    [
        with(
            vec![level("work", 50, queue(8, 3)), level("even", 20, reject())],
            "work",
        ),
        with(
            vec![
                level("work", 20, queue(4, 3)),
                level("even", 50, queue(2, 5)),
            ],
            "work",
        ),
        with(
            vec![level("new", 50, queue(8, 3)), level("even", 20, reject())],
            "new",
        ),
    ]
}

/// The requests of one client, some of which are cancelled while they wait.
async fn run_client(fixture: &ControllerFixture, seed: u64) -> StressOutcomes {
    let mut random = Rng::with_seed(seed);
    let mut outcomes = StressOutcomes::new();
    for _ in 0..REQUESTS {
        let user = if random.bool() { "even" } else { "odd" };
        let (method, target) = random
            .choice([("GET", POD), ("GET", WATCH), ("POST", PODS)])
            .unwrap();
        let patience = random.u32(0..60);
        let give_up = async {
            for _ in 0..patience {
                yield_now().await;
            }
        };
        let admission = fixture.admit(user, method, target);
        let outcome = tokio::select! {
            biased;
            outcome = admission => Some(outcome),
            () = give_up => None,
        };
        let label = match &outcome {
            None => "given up",
            Some(Ok(_)) => "admitted",
            Some(Err(rejected)) => rejected.reason.label(),
        };
        *outcomes.entry(label).or_default() += 1;
        let Some(Ok(mut admitted)) = outcome else {
            continue;
        };
        for _ in 0..random.u32(0..20) {
            yield_now().await;
        }
        match random.u32(0..4) {
            0 => admitted.release(),
            1 => tokio::time::sleep(MS).await,
            _ => {}
        }
    }
    outcomes
}

async fn run_clients(seed: u64, fixture: Arc<ControllerFixture>) -> StressOutcomes {
    // Watches that stay, so that the seats of writes linger.
    let mut watches = Vec::new();
    for n in 0..12 {
        let watch = fixture.admit(&format!("w{n}"), "GET", WATCH).await;
        watches.extend(watch.map(|mut watch| {
            watch.release();
            watch
        }));
    }
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let fixture = Arc::clone(&fixture);
        clients.spawn(async move { run_client(&fixture, seed ^ n << 32).await });
    }
    let changing = {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move {
            let (mut random, configurations) = (Rng::with_seed(seed), configurations());
            loop {
                let now = Clock.now();
                match random.u32(0..4) {
                    0 => fixture.controller.adjust(now),
                    1 => fixture
                        .controller
                        .set_server_concurrency_limit(now, random.u32(5..40)),
                    2 => drop(fixture.registry.render()),
                    _ => {
                        let objects = random.choice(&configurations).unwrap();
                        fixture.controller.configure(now, objects);
                    }
                }
                yield_now().await;
            }
        })
    };
    let mut outcomes: StressOutcomes = [("watch", 12)].into();
    while let Some(client) = clients.join_next().await {
        for (label, times) in client.unwrap() {
            *outcomes.entry(label).or_default() += times;
        }
    }
    changing.abort();
    assert!(changing.await.unwrap_err().is_cancelled());
    outcomes
}

/// Runs all clients to the end.
fn run_to_completion(
    seed: u64,
    enforcement: Enforcement,
) -> (Arc<ControllerFixture>, StressOutcomes) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_time().build().unwrap();
    let fixture = Arc::new(controller_fixture(20, enforcement, &configurations()[0]));
    let outcomes = runtime.block_on(run_clients(seed, Arc::clone(&fixture)));
    let ended = async {
        let demand = |level: &Arc<PriorityLevel>| level.dump().totals.seat_demand();
        while fixture
            .controller
            .levels_and_fair_fraction()
            .0
            .iter()
            .map(demand)
            .sum::<u64>()
            > 0
        {
            yield_now().await;
        }
    };
    let ended = runtime.block_on(async { tokio::time::timeout(MAX_DRAIN_TIME, ended).await });
    ended.unwrap_or_else(|_| panic!("seed {seed}: places are lost"));
    (fixture, outcomes)
}

#[test]
fn counters_account_for_every_request() {
    for seed in [3, 1040, 0xda7a] {
        let (fixture, outcomes) = run_to_completion(seed, Enforcement::Enforce);
        let text = fixture.registry.render();
        let rejected = sum_by_label(&text, "rejected_requests_total", "reason");
        let dispatched = total(&text, "dispatched_requests_total");
        let context = format!("seed {seed}: {outcomes:?}, {rejected:?}, {dispatched} dispatched");
        let count = |label: &str| to_f64(outcomes.get(label).copied().unwrap_or_default());
        for at_once in ["queue-full", "concurrency-limit"] {
            assert_eq!(
                rejected.get(at_once).copied(),
                Some(count(at_once)),
                "{context}"
            );
        }
        assert!(
            dispatched >= count("admitted") + count("watch"),
            "{context}"
        );
        assert!(count("given up") > 0.0, "no storm: {context}");
        assert_counters(&context, &text, to_f64(outcomes.values().sum()));
        assert_eq!(fixture.interested_watches("POST", PODS), 0, "{context}");
    }
}

#[test]
fn counters_account_for_every_request_in_a_dry_run() {
    let (fixture, outcomes) = run_to_completion(42, Enforcement::DryRun);
    let all: u64 = outcomes.values().sum();
    let expected: StressOutcomes = [("admitted", all - 12), ("watch", 12)].into();
    assert_eq!(outcomes, expected, "no request waits and none is rejected");
    let text = fixture.registry.render();
    let rejected = sum_by_label(&text, "rejected_requests_total", "reason");
    assert!(rejected.values().sum::<f64>() > 0.0, "no storm");
    assert_counters("on paper", &text, to_f64(all));
}

/// Checks the counters after all requests have ended. `all` is their number.
fn assert_counters(context: &str, text: &str, all: f64) {
    let rejected = sum_by_label(text, "rejected_requests_total", "reason");
    let reason = |label: &str| rejected.get(label).copied().unwrap_or_default();
    let rejected_at_once = reason("queue-full") + reason("concurrency-limit");
    let dispatched = total(text, "dispatched_requests_total");
    let waits = sum_by_label(text, "request_wait_duration_seconds_count", "execute");
    let waited = |execute: &str| waits.get(execute).copied().unwrap_or_default();
    assert_eq!(
        dispatched + rejected_at_once + reason("time-out"),
        all,
        "{context}"
    );
    assert_eq!(total(text, "work_estimated_seats_count"), all, "{context}");
    assert_eq!(
        total(text, "request_execution_seconds_count"),
        dispatched,
        "{context}"
    );
    assert_eq!(waited("false"), rejected_at_once, "{context}");
    assert_eq!(waited("true"), dispatched + reason("time-out"), "{context}");
    for gauge in [
        "executing_requests",
        "executing_seats",
        "inqueue_requests",
        "inqueue_seats",
    ] {
        assert_eq!(
            total(text, &format!("current_{gauge}")),
            0.0,
            "{gauge}, {context}"
        );
    }
}

/// Sums of a metric over all its series, by the value of a label.
fn sum_by_label(text: &str, metric: &str, label: &str) -> HashMap<String, f64> {
    let (metric, label) = (
        format!("apiserver_flowcontrol_{metric}{{"),
        format!("{label}=\""),
    );
    let mut sums = HashMap::new();
    for line in text.lines().filter(|line| line.starts_with(&metric)) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let of = series.split_once(&label).map_or("", |(_, rest)| rest);
        let of = of.split('"').next().unwrap_or_default();
        *sums.entry(of.to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    sums
}

fn total(text: &str, metric: &str) -> f64 {
    sum_by_label(text, metric, "priority_level").values().sum()
}
