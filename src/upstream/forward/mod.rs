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

pub(crate) mod api_server_client;
pub(crate) mod endpoint_slices;
pub(crate) mod external_client;
pub(crate) mod send;
pub(crate) mod server_pools;
pub(crate) mod server_probes;
pub(crate) mod upgrade;
