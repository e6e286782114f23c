//! Requests to the upstream, sent over the connections of the pools.

pub(crate) mod api_server_client;
pub(crate) mod endpoint_slices;
pub(crate) mod external_client;
pub(crate) mod latency_probe;
pub(crate) mod send;
pub(crate) mod server_pools;
pub(crate) mod server_probes;
pub(crate) mod upgrade;
