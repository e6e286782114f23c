//! How replicas divide a total: the [agreement] of one replica, the [messages](message) that it sends and
//! receives, the [Lease](lease) by which replicas find each other, what it knows of each [peer], and its
//! [share](shares). Pure: the caller passes the time, the
//! messages and the Leases.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod agreement;
#[cfg(test)]
mod agreement_tests;
pub mod lease;
pub mod message;
pub mod peer;
pub mod shares;
