//! The API servers: their addresses, their health, and which of them gets a request.
//!
//! Promises: a server that is weir itself or another weir gets no request. Health decides about new
//! requests only; a request in flight stays where it is.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `balancer` `health` `own_address` `recovery` |
//! | 1 | `metrics` |
//! | 2 | `api_server` |
//! | 3 | `sources` |
//! | 4 | `server_set` |
//! | 5 | `resolver` |

pub(crate) mod api_server;
pub(in crate::upstream) mod balancer;
pub(in crate::upstream) mod health;
pub(in crate::upstream) mod metrics;
mod own_address;
mod recovery;
pub(crate) mod resolver;
pub(crate) mod server_set;
pub(in crate::upstream) mod sources;
