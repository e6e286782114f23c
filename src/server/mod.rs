//! Clients: accepting them, TLS, and HTTP on their connections.
//!
//! A listener takes connections and hands each to the worker with the fewest; a worker is one single-threaded runtime with
//! a pipeline of its own, so that a request never changes its core. What is decided about a request is `pipeline`'s.

pub mod accept;
pub mod connection;
pub mod tls;
pub mod worker;

use prometheus::IntCounter;
use prometheus::IntGauge;

use crate::metrics::Registry;

/// What is counted here.
#[derive(Clone, Debug)]
pub struct Metrics {
    handshake_errors: IntCounter,
    connections: IntGauge,
    refused: IntCounter,
    panics: IntCounter,
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            handshake_errors: registry.counter(
                "apiserver_tls_handshake_errors_total",
                "[ALPHA] Connections dropped because of an error in the TLS handshake.",
            ),
            connections: registry.gauge("weir_client_connections", "Open connections of clients."),
            refused: registry.counter(
                "weir_client_connections_refused_total",
                "Connections closed at once because as many as --max-connections are open.",
            ),
            panics: registry.counter(
                "weir_panics_total",
                "Requests that ended in a panic: a defect of weir's, please report it.",
            ),
        }
    }
}
