//! What clients get that wait as they are told: the `kube` crate's, with everything as it has it, with refusals held back and
//! without, side by side. They are never held, so that it should be the same.
//!
//! Usage: cargo bench --bench polite [-- SECONDS for each run, default 5]

#[path = "../tests/clients/playground.rs"]
#[expect(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    reason = "written for tests, which need more of it"
)]
mod playground;

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use weir::clock::Clock;

use crate::playground::ALICE;
use crate::playground::Playground;

/// Four times as many as have room, so that most of them hear 429 and wait.
const CLIENTS: usize = 40;
const ROOM: &str = "--max-requests-inflight=10";

/// What an answer takes, so that it is not the machine that says how many there are.
const SERVICE_TIME: &str = "--service-time=50ms";

const ROUNDS: usize = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let seconds = env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(5));
    println!("good answers a second for {CLIENTS} clients that wait as they are told");
    println!("{:>12} {:>12} {:>8}", "hold 1s", "hold 0", "ratio");
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let held = answers("--rejection-hold=1s", time).await?;
        let not_held = answers("--rejection-hold=0", time).await?;
        println!("{held:>12.1} {not_held:>12.1} {:>8.3}", held / not_held);
        ratios.push(held / not_held);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ROUNDS / 2).unwrap_or(&0.0);
    println!("median of the ratios: {median:.3}");
    Ok(())
}

/// Good answers a second.
async fn answers(hold: &str, time: Duration) -> Result<f64, Box<dyn Error>> {
    let flags = [
        "--enable-priority-and-fairness=false",
        ROOM,
        SERVICE_TIME,
        hold,
    ];
    let playground = Playground::start(&flags).await;
    let good = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(playground.pods(ALICE[1]).await);
    }
    let mut asking = JoinSet::new();
    for (pods, name) in clients {
        let good = Arc::clone(&good);
        asking.spawn(async move {
            loop {
                if pods.get(&name).await.is_ok() {
                    good.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // they have found their pace
    let (before, began) = (good.load(Ordering::Relaxed), Clock.now());
    tokio::time::sleep(time).await;
    let more = u32::try_from(good.load(Ordering::Relaxed) - before)?;
    Ok(f64::from(more) / Clock.now().saturating_duration_since(began).as_secs_f64())
}
