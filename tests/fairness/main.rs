//! Priority and fairness in the real program: `weir serve` with its flags and manifests, over TLS, before the playground's API
//! server.
//!
//! Tests wait for events; nothing depends on the machine's speed but ratios, which have room. Those that load the machine run
//! alone. What compares two latencies is judged with `NIGHTLY=1` only, and printed always. To run longer and judge harder than a
//! pipeline can: `WEIR_MICE_SECONDS`, `WEIR_MICE_TIMES` (how many times their p99 mice may take beside an elephant) and
//! `WEIR_FLOOD_SECONDS`.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

mod client;
mod delays;
mod elephant;
mod flood;
mod harness;
mod leases;
mod manifests;
mod metrics_and_dumps;
mod rejections;
mod scrape;
mod watches;

use tokio::sync::RwLock;

/// Written by tests that load the machine, read by the others.
static LOAD_LOCK: RwLock<()> = RwLock::const_new(());

/// Whether latencies are compared: other load on the machine can spoil that.
fn is_nightly() -> bool {
    std::env::var("NIGHTLY").is_ok_and(|value| value == "1")
}

/// A number from the environment.
fn env_number(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
