//! Connections between replicas: mutual TLS, and JSON in a frame each way.
//!
//! A message says what a replica needs and holds. It names no user and carries no credential, and
//! nothing that a request passes is decided by it but the number of seats. A lever is what an operator
//! has set at another replica, and is checked as if it were set here. A snapshot is what the
//! status page shows of a replica. It names users, carries no credential, and decides nothing.
//!
//! Snapshots are asked for, and are no part of the messages: they are large, and of use only while
//! a page is open. A connection of their own keeps a slow snapshot from delaying a share. A replica
//! says in its messages that it sends snapshots, since an older weir ends a connection on which it
//! receives another frame.

pub(crate) mod frame_kind;
mod frames;
mod lever_link;
pub(crate) mod levers;
pub(super) mod links;
pub(super) mod listener;
mod snapshot_link;
pub(crate) mod snapshots;
pub(super) mod tls;
#[cfg(test)]
mod tls_tests;
