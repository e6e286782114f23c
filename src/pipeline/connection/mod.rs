//! What belongs to a client's connection.
//!
//! The server creates a [`Peer`](peer::Peer) for each connection and passes it with every request.

pub mod head_budget;
pub mod peer;
pub mod request_count;
