//! One user with 400 connections at full speed, and ten users with a request each every 100 ms, in one level of 20 seats before
//! a server that takes 50 ms.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use tokio::time::Instant;
use tokio::time::interval_at;

use crate::ALONE;
use crate::client::Client;
use crate::manifests::QUEUE;
use crate::manifests::level_for;
use crate::nightly;
use crate::setting;
use crate::stand::Setup;
use crate::stand::Stand;
use crate::stand::within;

const SEATS: usize = 20;
const SERVICE_TIME: Duration = Duration::from_millis(50);
const ELEPHANT_CONNECTIONS: usize = 400;
const MICE: u32 = 10;
const EACH: Duration = Duration::from_millis(100);
const TARGET: &str = "/api/v1/namespaces/default/pods?limit=1";
const BEAT: Duration = Duration::from_millis(10);
/// How often the mice are looked at beside the elephant, if the machine stands still every time.
const ROUNDS: usize = 5;

fn animals() -> Setup {
    let mice = (0..MICE).fold(Setup::default(), |setup, number| {
        setup.user(format!("mouse-{number}"), "animals")
    });
    // At full speed: nothing but queues and limits is between them.
    mice.user("elephant", "animals")
        .service_time(SERVICE_TIME)
        .flag("--rejection-hold=0s")
}

/// A fair weir: half of the 40 seats are the animals'.
async fn fair() -> Stand {
    let manifest = level_for("animals", "animals", 245, QUEUE);
    animals()
        .manifest("animals.yaml", manifest)
        .flag("--max-requests-inflight=30")
        .flag("--max-mutating-requests-inflight=10")
        .start()
        .await
}

/// One that counts.
async fn counting() -> Stand {
    animals()
        .flag("--enable-priority-and-fairness=false")
        .flag(format!("--max-requests-inflight={SEATS}"))
        .start()
        .await
}

/// Runs `work` on a thread of its own, so that those who measure do not wait for those who load.
fn aside<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> JoinHandle<T> {
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

/// The user who never backs off.
struct Elephant {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    served: Arc<AtomicU64>,
    work: JoinHandle<()>,
}

impl Elephant {
    /// Comes in, and fills the level.
    async fn begin(stand: &Stand) -> Self {
        let client = stand.client("elephant");
        let (stop, refused, served) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let work = {
            let (stop, refused, served) = (stop.clone(), refused.clone(), served.clone());
            aside(async move || {
                let load = |_| {
                    let (client, stop) = (client.clone(), stop.clone());
                    let (refused, served) = (refused.clone(), served.clone());
                    tokio::spawn(async move {
                        let mut connection = client.connect().await;
                        while !stop.load(Ordering::Relaxed) {
                            match connection.ask("GET", TARGET, "").await.status {
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
            refused,
            served,
            work,
        };
        within(
            "the elephant to be refused, and to have every seat",
            async {
                while elephant.refused.load(Ordering::Relaxed) < 100
                    || stand.counters().max_in_flight < SEATS
                {
                    tokio::task::yield_now().await;
                }
            },
        )
        .await;
        assert_eq!(stand.counters().max_in_flight, SEATS);
        elephant
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        join(self.work).await;
        let [served, refused] = [self.served, self.refused].map(|n| n.load(Ordering::Relaxed));
        println!("  the elephant: {served} served, {refused} refused");
    }
}

/// Tells how long the machine stood still: nobody is served meanwhile, however fair weir is.
struct Heartbeat {
    stop: Arc<AtomicBool>,
    beats: JoinHandle<Duration>,
}

impl Heartbeat {
    fn begin() -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let beats = thread::spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(BEAT);
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            longest
        });
        Self { stop, beats }
    }

    /// The longest time between two beats.
    async fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        join(self.beats).await
    }
}

/// How the mice fared.
struct Fates {
    /// From when a request was due to the end of its answer, in ascending order.
    times: Vec<Duration>,
    refused: usize,
}

impl Fates {
    fn percentile(&self, percent: usize) -> Duration {
        self.times[(self.times.len() * percent).div_ceil(100).max(1) - 1]
    }

    fn refused_percent(&self) -> f64 {
        100.0 * f64::from(u32::try_from(self.refused).unwrap()) / self.all()
    }

    fn all(&self) -> f64 {
        f64::from(u32::try_from(self.refused + self.times.len()).unwrap())
    }

    fn show(&self, when: &str) {
        let shown = |percent| {
            if self.times.is_empty() {
                return "-".to_owned();
            }
            format!("{:.1} ms", self.percentile(percent).as_secs_f64() * 1e3)
        };
        println!(
            "mice {when}: {} requests, {} refused ({:.1} %), p50 {}, p99 {}",
            self.all(),
            self.refused,
            self.refused_percent(),
            shown(50),
            shown(99)
        );
    }
}

/// One mouse, for so long.
async fn mouse(client: Client, number: u32, time: Duration) -> (Vec<Duration>, usize) {
    let mut connection = client.connect().await;
    let begin = Instant::now() + EACH * number / MICE;
    let mut due = interval_at(begin, EACH);
    let (mut times, mut refused) = (Vec::new(), 0);
    while begin.elapsed() < time {
        // Who is late because of the answer before is late all the same.
        let since = due.tick().await;
        match connection.ask("GET", TARGET, "").await.status {
            StatusCode::OK => times.push(since.elapsed()),
            StatusCode::TOO_MANY_REQUESTS => refused += 1,
            other => panic!("{other}"),
        }
    }
    (times, refused)
}

/// All mice, for so long.
async fn mice(stand: &Stand, time: Duration) -> Fates {
    let clients: Vec<_> = (0..MICE)
        .map(|number| stand.client(&format!("mouse-{number}")))
        .collect();
    let all = aside(async move || {
        let each = (0..MICE).zip(clients);
        join_all(each.map(|(number, client)| mouse(client, number, time))).await
    });
    let mut fates = Fates {
        times: Vec::new(),
        refused: 0,
    };
    for (times, refused) in join(all).await {
        fates.times.extend(times);
        fates.refused += refused;
    }
    fates.times.sort();
    fates
}

/// Looks at the mice beside the elephant. A nightly run also judges their p99, and looks again where the machine stood still for
/// so long that it has kept them waiting itself.
async fn beside_an_elephant(stand: &Stand, seconds: Duration, alone: Duration, times: u32) {
    let elephant = Elephant::begin(stand).await;
    for round in 1..=ROUNDS {
        let heartbeat = Heartbeat::begin();
        let beside = mice(stand, seconds).await;
        let stood = heartbeat.end().await;
        beside.show("beside the elephant, with fairness");
        assert_eq!(beside.refused, 0);
        let crowded = beside.percentile(99);
        if !nightly() || crowded < alone * times {
            break;
        }
        assert!(
            stood > 2 * alone && round < ROUNDS,
            "{crowded:?}, {alone:?} alone; the machine stood still for {stood:?}"
        );
    }
    elephant.end().await;
}

#[tokio::test]
async fn mice_are_served_beside_an_elephant() {
    let _alone = ALONE.write().await;
    let seconds =
        Duration::from_secs(setting("WEIR_MICE_SECONDS", if nightly() { 8 } else { 3 }).into());
    let times = setting("WEIR_MICE_TIMES", 6);

    let stand = fair().await;
    let before = mice(&stand, seconds).await;
    before.show("by themselves");
    assert_eq!(before.refused, 0);
    beside_an_elephant(&stand, seconds, before.percentile(99), times).await;
    drop(stand);

    let stand = counting().await;
    let elephant = Elephant::begin(&stand).await;
    let unfair = mice(&stand, seconds).await;
    unfair.show("beside the elephant, with max-in-flight");
    elephant.end().await;
    assert!(unfair.refused_percent() >= 10.0);
}
