//! The whole program over real sockets: clients of both kinds, weir, and before it an API server that waits for the test's
//! word. One file a theme; what they stand on is in `support`.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

mod audit;
mod back_pressure;
mod bastion;
mod deadlines;
mod doors;
mod failures;
mod headers;
mod heads;
mod holding;
mod hop_by_hop;
mod hostile;
mod identity;
mod in_flight;
mod invalid_heads;
mod limits;
mod logs;
mod loops;
#[cfg(feature = "playground")]
mod object_counts;
mod operators;
mod pool;
mod rates;
mod refused_bodies;
mod resets;
mod retries;
mod seats;
mod self_checks;
mod settings;
mod shutdown;
mod signals;
mod streaming;
mod support;
mod talkers;
mod targets;
mod tls;
mod transfers;
mod upgrade;
mod upgrade_ends;
#[cfg(feature = "playground")]
mod who_asks;
