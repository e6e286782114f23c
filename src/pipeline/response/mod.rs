//! The response and its body: what it holds, when it is cut off, and what is learned from it.
//!
//! # The owners of a seat
//!
//! Each owner has one inner owner. Its drop releases all of them, so a seat is released once.
//!
//! | owner | layer | adds |
//! |---|---|---|
//! | [`SeatPermit`](crate::flowcontrol::level::SeatPermit) | `flowcontrol::level` | the position in the queue, then the seats; the count of a watch; the decision |
//! | [`AdmissionPermit`](crate::limits::AdmissionPermit) | `limits` | a slot of max-in-flight instead of seats; what clients' limits, policies and levers count; the turns of watches and lists |
//! | `InFlightRequest` | [`abandoned`] | the upstream's stream, which is closed first |
//! | `ResponseGuard` | `in_flight` | the trace; dropped with the last byte that the client gets. Of a response that is read ahead, the stream and the permit are dropped with the API server's last byte |

pub mod abandoned;
pub mod body;
pub mod deadlines;
pub(crate) mod explain;
pub(crate) mod guarded;
pub(crate) mod in_flight;
pub(crate) mod list_length;
mod read_ahead;
pub(crate) mod response_reader;
pub(crate) mod watch_init;
