//! Connections between replicas: mutual TLS, and one message in a frame each way.
//!
//! A message says what a replica needs and holds. It names no user and carries no credential, and
//! nothing that a request passes is decided by it but the number of seats.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `frames` `tls` |
//! | 1 | `links` `listener` |

mod frames;
pub(super) mod links;
pub(super) mod listener;
pub(super) mod tls;
#[cfg(test)]
mod tls_tests;
