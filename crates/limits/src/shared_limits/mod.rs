//! Rate limits that all replicas share, through Redis or Valkey.
//!
//! Each replica decides about a request from a balance of its own ([`bucket`]) and calls the shared
//! bucket, which is a script in the server ([`script`]), beside the requests ([`refill`]). So no
//! request waits for the network, and a server that is away changes no decision at once: the local
//! share goes on.
//!
//! # Why it is built like this
//!
//! - The local share always goes on, so there is no mode to switch to when the server is away.
//!   Answers set it to this replica's part of what is left.
//! - Whatever was granted is charged, and a bucket may be in debt. So the rate is exact, and only
//!   the burst is exceeded, by what is under way.
//! - One task makes all calls, once in 50 ms. A request puts its key into a list under the lock
//!   that it holds anyway; the list has its memory from the start.
//! - The bucket is a script and not a counter for each second: a counter allows twice the rate at
//!   its edge, and cannot be in debt. The server's time counts, since replicas' clocks differ.
//! - Redis, and not the replicas themselves: a total that all agree on, also right after a
//!   partition, is what a single server is good at. Where it is lost, only one burst is.
//!
//! # Bounds
//!
//! * All replicas together admit the burst and the rate, and at most their slices and one call's
//!   debts more. What is charged too much is missing later, so that the rate is exact over time.
//! * While k of N replicas cannot reach the server, they admit rate × (1 + k/N) together.
//! * A server that loses its memory grants the burst once more.

pub mod bucket;
#[cfg(feature = "shared-limits")]
pub mod connection;
#[cfg(not(feature = "shared-limits"))]
#[path = "no_connection.rs"]
mod connection;
pub mod key;
pub mod refill;
pub mod replica_count;
pub mod script;
pub mod server;
pub mod source;
pub mod status;

#[cfg(test)]
mod simulation;
