//! The API servers: their addresses, their health, and which of them gets a request.
//!
//! Promises: a server that is weir itself or another weir gets no request. Health decides about new
//! requests only; a request in flight stays where it is.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `answer_times` `balancer` `own_address` `readiness_gate` `recovery` |
//! | 1 | `health` |
//! | 2 | `metrics` |
//! | 3 | `api_server` |
//! | 4 | `sources` |
//! | 5 | `server_set` |
//! | 6 | `resolver` |

mod answer_times;
pub(crate) mod api_server;
pub(in crate::upstream) mod balancer;
pub(in crate::upstream) mod health;
pub(in crate::upstream) mod metrics;
mod own_address;
mod readiness_gate;
mod recovery;
pub(crate) mod resolver;
pub(crate) mod server_set;
pub(in crate::upstream) mod sources;
