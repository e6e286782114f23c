//! Requests to the upstream, sent over the connections of the pools.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `send` |
//! | 1 | `upgrade` |
//! | 2 | `server_pools` |
//! | 3 | `api_server_client` |
//! | 4 | `endpoint_slices` `external_client` `server_probes` |

pub mod api_server_client;
pub mod endpoint_slices;
pub mod external_client;
pub mod send;
pub mod server_pools;
pub mod server_probes;
pub mod upgrade;
