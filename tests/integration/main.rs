//! The whole program over real sockets: HTTP/1.1 and HTTP/2 clients, weir, and an API server that
//! the test controls. One file for each subject; shared code is in `support`.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

mod admin;
#[cfg(feature = "playground")]
mod admin_access;
mod alarms;
mod audit;
mod auth_modes;
#[cfg(feature = "playground")]
mod authentication;
mod back_pressure;
mod broken_bodies;
mod check;
mod check_files;
#[cfg(feature = "playground")]
mod cluster_flowcontrol;
mod configuration;
mod connection_pool;
mod deadlines;
mod desync;
mod dry_run;
mod early_answers;
mod handover;
mod handshakes;
mod headers;
mod hop_by_hop;
mod hostile_clients;
mod invalid_heads;
mod kubeconfig;
mod levers;
mod list_bytes;
mod logs;
mod loops;
mod max_in_flight;
#[cfg(feature = "playground")]
mod object_counts;
#[cfg(feature = "playground")]
mod own_rights;
mod policies;
mod rate_limits;
mod recording;
mod rejected_bodies;
mod rejection_hold;
mod reload;
mod reload_modes;
mod replay_advice;
mod replica_levers;
mod request_heads;
mod request_slots;
mod request_targets;
mod retries;
mod seat_estimates;
mod self_checks;
mod servers;
mod shutdown;
mod signals;
mod stalled_transfers;
mod stream_resets;
mod streaming;
mod support;
mod tls;
mod top_talkers;
mod tunnel_ends;
mod upgrades;
mod upstream_failures;
mod upstream_protocol;
mod watch_seats;
