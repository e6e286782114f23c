//! Everything at once, on several threads: whatever happens, it adds up.

use std::collections::HashMap;

use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::task::yield_now;

use super::*;

const CLIENTS: u64 = 64;
const REQUESTS: u64 = 150;

/// Only reached if a place is lost for ever.
const LONGEST: Duration = Duration::from_secs(60);

/// How requests ended, as their clients saw it.
type Seen = HashMap<&'static str, u64>;

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

/// One client's requests, of which some are given up while they wait.
async fn client(world: &World, seed: u64) -> Seen {
    let mut random = Rng::with_seed(seed);
    let mut seen = Seen::new();
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
        let admission = world.admit(user, method, target);
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
        *seen.entry(label).or_default() += 1;
        let Some(Ok(mut admitted)) = outcome else {
            continue;
        };
        for _ in 0..random.u32(0..20) {
            yield_now().await;
        }
        match random.u32(0..4) {
            0 => admitted.initialized(),
            1 => admitted.give_back_at(Clock.now() + MS),
            _ => {}
        }
    }
    seen
}

async fn storm(seed: u64, world: Arc<World>) -> Seen {
    // Watches that stay, so that writes linger.
    let mut watches = Vec::new();
    for n in 0..12 {
        let watch = world.admit(&format!("w{n}"), "GET", WATCH).await;
        watches.extend(watch.map(|mut watch| {
            watch.initialized();
            watch
        }));
    }
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let world = Arc::clone(&world);
        clients.spawn(async move { client(&world, seed ^ n << 32).await });
    }
    let changing = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let (mut random, configurations) = (Rng::with_seed(seed), configurations());
            loop {
                let now = Clock.now();
                match random.u32(0..4) {
                    0 => world.controller.adjust(now),
                    1 => world
                        .controller
                        .set_server_concurrency_limit(now, random.u32(5..40)),
                    2 => drop(world.registry.render()),
                    _ => {
                        let objects = random.choice(&configurations).unwrap();
                        world.controller.configure(now, objects);
                    }
                }
                yield_now().await;
            }
        })
    };
    let mut seen: Seen = [("watch", 12)].into();
    while let Some(outcomes) = clients.join_next().await {
        for (label, times) in outcomes.unwrap() {
            *seen.entry(label).or_default() += times;
        }
    }
    changing.abort();
    assert!(changing.await.unwrap_err().is_cancelled());
    seen
}

/// Sums of a counter over all its series, by the value of a label.
fn sums(text: &str, metric: &str, label: &str) -> HashMap<String, f64> {
    let mut sums = HashMap::new();
    for line in text
        .lines()
        .filter(|line| line.starts_with(&format!("{metric}{{")))
    {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let of = series.split(&format!("{label}=\"")).nth(1);
        let of = of
            .and_then(|rest| rest.split('"').next())
            .unwrap_or_default();
        *sums.entry(of.to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    sums
}

#[test]
fn counters_add_up_to_the_request() {
    for seed in [3, 1040, 0xda7a] {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(4).enable_time().build().unwrap();
        let world = Arc::new(world(20, Enforcement::Enforce, &configurations()[0]));
        let seen = runtime.block_on(storm(seed, Arc::clone(&world)));
        let ended = async {
            let seats = |level: &Arc<PriorityLevel>| level.overview().totals.seats_in_use;
            while world.controller.counted().0.iter().map(seats).sum::<u64>() > 0 {
                yield_now().await;
            }
        };
        let ended = runtime.block_on(async { tokio::time::timeout(LONGEST, ended).await });
        ended.unwrap_or_else(|_| panic!("seed {seed}: seats are lost"));
        check(seed, &world, &seen);
    }
}

#[expect(clippy::as_conversions, reason = "a few thousand requests")]
fn check(seed: u64, world: &World, seen: &Seen) {
    let text = world.registry.render();
    let sum =
        |metric: &str, label: &str| sums(&text, &format!("apiserver_flowcontrol_{metric}"), label);
    let total = |metric: &str| sum(metric, "none").get("").copied().unwrap_or_default();
    let count = |label: &str| seen.get(label).copied().unwrap_or_default() as f64;
    let rejected = sum("rejected_requests_total", "reason");
    let reason = |label: &str| rejected.get(label).copied().unwrap_or_default();
    let dispatched = total("dispatched_requests_total");
    let all: f64 = seen.values().sum::<u64>() as f64;
    let context = format!("seed {seed}: {seen:?}, {rejected:?}, {dispatched} dispatched");
    assert_eq!(
        dispatched + rejected.values().sum::<f64>(),
        all,
        "{context}"
    );
    assert_eq!(reason("queue-full"), count("queue-full"), "{context}");
    assert_eq!(
        reason("concurrency-limit"),
        count("concurrency-limit"),
        "{context}"
    );
    assert!(
        dispatched >= count("admitted") + count("watch"),
        "{context}"
    );
    assert!(
        count("given up") > 0.0 && count("queue-full") > 0.0,
        "it was no storm: {context}"
    );
    assert_eq!(
        total("request_execution_seconds_count"),
        dispatched,
        "{context}"
    );
    assert_eq!(total("work_estimated_seats_count"), all, "{context}");
    let waits = sum("request_wait_duration_seconds_count", "execute");
    let rejected_at_once = reason("queue-full") + reason("concurrency-limit");
    assert_eq!(
        waits.get("false").copied().unwrap_or_default(),
        rejected_at_once,
        "{context}"
    );
    assert_eq!(
        waits.get("true").copied(),
        Some(dispatched + reason("time-out")),
        "{context}"
    );
    for gauge in [
        "executing_requests",
        "executing_seats",
        "inqueue_requests",
        "inqueue_seats",
    ] {
        assert_eq!(
            total(&format!("current_{gauge}")),
            0.0,
            "{gauge}, {context}"
        );
    }
    assert_eq!(world.watchers("POST", PODS), 0, "{context}");
}
