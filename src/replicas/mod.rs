//! Several weirs divide their totals, so that all of them together admit no more than one would.
//!
//! A replica learns of the others by [Leases](lease) and talks to them once a second, over
//! connections of their own or, where none are configured, through its Lease. What each may use is
//! decided by an [agreement] among all.

pub(crate) mod agreement;
#[cfg(test)]
mod agreement_tests;
pub mod config;
pub(crate) mod coordinator;
mod lease;
mod membership;
pub(crate) mod message;
pub mod metrics;
pub(crate) mod peer;
pub(crate) mod peers;
mod shares;
pub(crate) mod state;
