//! The API servers: their addresses, their health, and which of them gets a request.
//!
//! Promises: a server that is weir itself or another weir gets no request. Health decides about new
//! requests only; a request in flight stays where it is.
//!
//! A watch does not move when a server returns: to cut watches would cost the API servers more than
//! the imbalance.
//!
//! A list of servers and the pools that follow it are immutable. A change makes a new list; each
//! worker keeps the pools of servers that stay and retires the others. A retired pool leases
//! nothing more: requests that wait there choose a server again, so none opens a connection with a
//! certificate or CA that was replaced.

mod answer_times;
pub(crate) mod api_server;
pub(crate) mod balancer;
pub(crate) mod health;
pub(crate) mod metrics;
mod readiness_gate;
mod recovery;
pub(crate) mod resolver;
pub(crate) mod server_set;
pub(crate) mod sources;
