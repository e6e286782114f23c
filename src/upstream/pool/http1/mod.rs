//! HTTP/1.1: idle connections, and the exclusive use of one for a request.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `handshake_permits` `idle_connections` |
//! | 1 | `http1_lease` |

pub(in crate::upstream) mod handshake_permits;
pub(in crate::upstream) mod http1_lease;
pub(in crate::upstream) mod idle_connections;
