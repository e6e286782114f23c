//! Requests to the upstream, sent over the connections of the pools.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `send` |
//! | 1 | `api_server_client` `upgrade` |
//! | 2 | `external_client` |

pub mod api_server_client;
pub mod external_client;
pub mod send;
pub mod upgrade;
