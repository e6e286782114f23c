//! The listener: accepts the connections of clients, and serves TLS and HTTP on them.
//!
//! The acceptor assigns each connection to the worker with the fewest connections. A worker is one
//! single-threaded runtime with its own pipeline, so a request never moves to another core. The
//! `pipeline` decides what happens to a request.

pub(crate) mod acceptor;
pub mod connection;
pub(crate) mod handshake_limiter;
pub mod handshake_queue;
mod keepalive;
pub mod metrics;
pub(crate) mod pending_handshakes;
pub mod settings;
pub mod sni;
pub mod tls;
pub(crate) mod worker;
