//! What belongs to a client's connection.
//!
//! The server creates a [`Peer`](peer::Peer) for each connection and passes it with every request.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `request_count` `target_fragments` |
//! | 1 | `peer` |
//! | 2 | `head_budget` |

pub mod head_budget;
pub mod peer;
pub mod request_count;
pub(crate) mod target_fragments;
