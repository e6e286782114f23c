//! `clientLimits`: limits that controllers should impose on themselves, enforced in front of the
//! server.
//!
//! The limits are those of a controller's own machinery: client-go's rate limiter, and
//! controller-runtime's queue with its backoff and its number of workers. [`config`] describes what
//! each means for requests. A rule matches requests like a FlowSchema. Several rules may match, and
//! all are charged.
//!
//! [`ClientRuleTables`](tables::ClientRuleTables) decides and is pure. Every table is bounded. Its
//! keys are hashes, so an entry has the same size for any client name, and any number of users
//! costs at most 500 bytes for each of the `maxClients`. Idle entries (a full bucket, an expired
//! backoff) are evicted, a few at each request; that changes no decision.

pub mod config;
pub mod enforcer;
mod metrics;
pub mod tables;
