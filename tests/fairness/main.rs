//! Priority and fairness in the real program: `weir serve` with flags and manifests, over TLS, in
//! front of the playground's API server.
//!
//! Tests wait for events. Only ratios with wide tolerances depend on the machine's speed. Tests
//! that load the machine run alone. Comparisons of two latencies fail only with `NIGHTLY=1`, and
//! are always printed. Longer and stricter runs: `WEIR_MICE_SECONDS`, `WEIR_MICE_TIMES` (the
//! allowed factor of the mice's p99 beside an elephant) and `WEIR_FLOOD_SECONDS`.

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

/// Write-locked by tests that load the machine, read-locked by the others.
static LOAD_LOCK: RwLock<()> = RwLock::const_new(());

/// Whether comparisons of latencies can fail. Other load on the machine can spoil them.
fn is_nightly() -> bool {
    std::env::var("NIGHTLY").is_ok_and(|value| value == "1")
}

/// A number from the environment.
fn env_number(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
