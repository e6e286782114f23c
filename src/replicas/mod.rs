//! Several weirs divide their totals, so that all of them together admit no more than one would.
//!
//! A replica learns of the others by [Leases](weir_agreement::lease) and talks to them once a second, over
//! connections of their own or, where none are configured, through its Lease. What each may use is
//! decided by an [agreement](weir_agreement::agreement) among all.

pub mod config;
pub(crate) mod coordinator;
mod membership;
pub mod metrics;
pub(crate) mod peers;
pub(crate) mod state;
