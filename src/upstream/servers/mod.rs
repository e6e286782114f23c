//! The API servers: their addresses, their health, and which of them gets a request.
//!
//! Promises: a server that is weir itself or another weir gets no request. Health decides about new
//! requests only; a request in flight stays where it is.

mod answer_times;
pub(crate) mod api_server;
pub(crate) mod balancer;
pub(crate) mod health;
pub(crate) mod metrics;
mod own_address;
mod readiness_gate;
mod recovery;
pub(crate) mod resolver;
pub(crate) mod server_set;
pub(crate) mod sources;
