//! One user with 400 connections at full speed, and ten users with one request each every 100 ms,
//! in one priority level of 20 seats before a server with a service time of 50 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::{Instant, interval_at};

use crate::client::TokenClient;
use crate::harness::{Harness, HarnessBuilder, within};
use crate::manifests::{QUEUE, level_for};
use crate::scrape::Scrape;
use crate::{LOAD_LOCK, env_number, is_nightly};

const SEATS: usize = 20;
const SERVICE_TIME: Duration = Duration::from_millis(50);
const ELEPHANT_CONNECTIONS: usize = 400;
const MICE: u32 = 10;
const MOUSE_INTERVAL: Duration = Duration::from_millis(100);
const TARGET: &str = "/api/v1/namespaces/default/pods?limit=1";
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of measurements of the mice beside the elephant, if the machine pauses each time.
const ROUNDS: usize = 5;

fn setup_with_users() -> HarnessBuilder {
    let mice = (0..MICE).fold(HarnessBuilder::default(), |setup, number| {
        setup.user(format!("mouse-{number}"), "animals")
    });
    // At full speed: only queues and limits hold it back.
    mice.user("elephant", "animals")
        .service_time(SERVICE_TIME)
        .flag("--rejection-hold=0s")
}

/// weir with fairness. Half of the 40 seats belong to the level `animals`.
async fn start_fair() -> Harness {
    let manifest = level_for("animals", "animals", 245, QUEUE);
    setup_with_users()
        .manifest("animals.yaml", manifest)
        .flag("--max-requests-inflight=30")
        .flag("--max-mutating-requests-inflight=10")
        .start()
        .await
}

/// weir with max-in-flight.
async fn start_max_in_flight() -> Harness {
    setup_with_users()
        .flag("--enable-priority-and-fairness=false")
        .flag(format!("--max-requests-inflight={SEATS}"))
        .start()
        .await
}

/// Runs `work` on its own thread, so that measurements are independent of the load.
fn on_own_thread<T: Send + 'static>(
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::spawn(|| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(work())
    })
}

async fn join<T: Send + 'static>(work: JoinHandle<T>) -> T {
    tokio::task::spawn_blocking(|| work.join().unwrap())
        .await
        .unwrap()
}

/// The user that never backs off.
struct ElephantFlow {
    stop: Arc<AtomicBool>,
    rejected: Arc<AtomicU64>,
    served: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl ElephantFlow {
    /// Starts, and fills the priority level.
    async fn start(harness: &Harness) -> Self {
        // weir's own SelfSubjectReview takes no seat of weir's. The next one is a minute away.
        let is_probed = |scrape: &Scrape| scrape.sum("weir_front_proxy_probes_total", &[]) > 0.0;
        harness
            .scrape_until("the probe of the front proxy", is_probed)
            .await;
        let client = harness.client("elephant");
        let (stop, refused, served) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let work = {
            let (stop, refused, served) = (stop.clone(), refused.clone(), served.clone());
            on_own_thread(async move || {
                let load = |_| {
                    let (client, stop) = (client.clone(), stop.clone());
                    let (refused, served) = (refused.clone(), served.clone());
                    tokio::spawn(async move {
                        let mut connection = client.connect().await;
                        while !stop.load(Ordering::Relaxed) {
                            match connection.send("GET", TARGET, "").await.status {
                                StatusCode::OK => served.fetch_add(1, Ordering::Relaxed),
                                StatusCode::TOO_MANY_REQUESTS => {
                                    refused.fetch_add(1, Ordering::Relaxed)
                                }
                                other => panic!("{other}"),
                            };
                        }
                    })
                };
                for one in join_all((0..ELEPHANT_CONNECTIONS).map(load)).await {
                    one.unwrap();
                }
            })
        };
        let elephant = Self {
            stop,
            rejected: refused,
            served,
            thread: work,
        };
        within(
            "the elephant to be refused, and to have every seat",
            async {
                while elephant.rejected.load(Ordering::Relaxed) < 100
                    || harness.counters().max_in_flight < SEATS
                {
                    tokio::task::yield_now().await;
                }
            },
        )
        .await;
        assert_eq!(harness.counters().max_in_flight, SEATS);
        elephant
    }

    async fn stop_and_print(self) {
        self.stop.store(true, Ordering::Relaxed);
        join(self.thread).await;
        let [served, rejected] = [self.served, self.rejected].map(|n| n.load(Ordering::Relaxed));
        println!("  the elephant: {served} served, {rejected} refused");
    }
}

/// Measures pauses of the machine: no request is served meanwhile, whatever weir does.
struct StallDetector {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl StallDetector {
    fn start() -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let beats = thread::spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(STALL_CHECK_INTERVAL);
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        Self {
            stop,
            thread: beats,
        }
    }

    /// The longest time between two ticks.
    async fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        join(self.thread).await
    }
}

/// The latencies of the mice.
struct MiceResults {
    /// From the time when a request was due to the end of its response, in ascending order.
    latencies: Vec<Duration>,
    rejected: usize,
}

impl MiceResults {
    fn percentile(&self, percent: usize) -> Duration {
        self.latencies[(self.latencies.len() * percent).div_ceil(100).max(1) - 1]
    }

    fn rejected_percent(&self) -> f64 {
        100.0 * f64::from(u32::try_from(self.rejected).unwrap()) / self.total()
    }

    fn total(&self) -> f64 {
        f64::from(u32::try_from(self.rejected + self.latencies.len()).unwrap())
    }

    fn print(&self, when: &str) {
        let shown = |percent| {
            if self.latencies.is_empty() {
                return "-".to_owned();
            }
            format!("{:.1} ms", self.percentile(percent).as_secs_f64() * 1e3)
        };
        println!(
            "mice {when}: {} requests, {} refused ({:.1} %), p50 {}, p99 {}",
            self.total(),
            self.rejected,
            self.rejected_percent(),
            shown(50),
            shown(99)
        );
    }
}

/// One mouse, for this duration.
async fn run_mouse(client: TokenClient, number: u32, time: Duration) -> (Vec<Duration>, usize) {
    let mut connection = client.connect().await;
    let begin = Instant::now() + MOUSE_INTERVAL * number / MICE;
    let mut due = interval_at(begin, MOUSE_INTERVAL);
    let (mut times, mut rejected) = (Vec::new(), 0);
    while begin.elapsed() < time {
        // A request that is late because of the previous response counts from the time when it was
        // due.
        let since = due.tick().await;
        match connection.send("GET", TARGET, "").await.status {
            StatusCode::OK => times.push(since.elapsed()),
            StatusCode::TOO_MANY_REQUESTS => rejected += 1,
            other => panic!("{other}"),
        }
    }
    (times, rejected)
}

/// All mice, for this duration.
async fn run_mice(harness: &Harness, time: Duration) -> MiceResults {
    let clients: Vec<_> = (0..MICE)
        .map(|number| harness.client(&format!("mouse-{number}")))
        .collect();
    let all = on_own_thread(async move || {
        let each = (0..MICE).zip(clients);
        join_all(each.map(|(number, client)| run_mouse(client, number, time))).await
    });
    let mut fates = MiceResults {
        latencies: Vec::new(),
        rejected: 0,
    };
    for (times, refused) in join(all).await {
        fates.latencies.extend(times);
        fates.rejected += refused;
    }
    fates.latencies.sort();
    fates
}

/// Measures the mice beside the elephant. A nightly run also checks their p99. It repeats the
/// measurement if pauses of the machine alone were long enough to delay them.
async fn compare_with_elephant(harness: &Harness, seconds: Duration, alone: Duration, times: u32) {
    let elephant = ElephantFlow::start(harness).await;
    for round in 1..=ROUNDS {
        let heartbeat = StallDetector::start();
        let beside = run_mice(harness, seconds).await;
        let stood = heartbeat.finish().await;
        beside.print("beside the elephant, with fairness");
        assert_eq!(beside.rejected, 0);
        let crowded = beside.percentile(99);
        if !is_nightly() || crowded < alone * times {
            break;
        }
        assert!(
            stood > 2 * alone && round < ROUNDS,
            "{crowded:?}, {alone:?} alone; the machine stood still for {stood:?}"
        );
    }
    elephant.stop_and_print().await;
}

#[tokio::test]
async fn mice_are_served_beside_an_elephant() {
    let _alone = LOAD_LOCK.write().await;
    let seconds = Duration::from_secs(
        env_number("WEIR_MICE_SECONDS", if is_nightly() { 8 } else { 3 }).into(),
    );
    let times = env_number("WEIR_MICE_TIMES", 6);

    let harness = start_fair().await;
    let before = run_mice(&harness, seconds).await;
    before.print("by themselves");
    assert_eq!(before.rejected, 0);
    compare_with_elephant(&harness, seconds, before.percentile(99), times).await;
    drop(harness);

    let harness = start_max_in_flight().await;
    let elephant = ElephantFlow::start(&harness).await;
    let unfair = run_mice(&harness, seconds).await;
    unfair.print("beside the elephant, with max-in-flight");
    elephant.stop_and_print().await;
    assert!(unfair.rejected_percent() >= 10.0);
}
