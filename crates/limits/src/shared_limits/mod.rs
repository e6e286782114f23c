//! Rate limits that all replicas share, through Redis or Valkey.
//!
//! Each replica decides about a request from a balance of its own ([`bucket`]) and calls the shared
//! bucket, which is a script in the server ([`script`]), beside the requests ([`refill`]). So no
//! request waits for the network, and a server that is away changes no decision at once: the local
//! share goes on.
//!
//! # Bounds
//!
//! * All replicas together admit the burst and the rate, and at most their slices and one call's
//!   debts more. What is charged too much is missing later, so that the rate is exact over time.
//! * While k of N replicas cannot reach the server, they admit rate × (1 + k/N) together.
//! * A server that loses its memory grants the burst once more.

pub mod bucket;
pub mod connection;
pub mod key;
pub mod refill;
pub mod replica_count;
pub mod script;
pub mod server;
pub mod source;
pub mod status;

#[cfg(test)]
mod simulation;
