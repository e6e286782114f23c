//! Connections to the API server: how they are opened, how many there are, and HTTP/2 on them.

pub mod address;
pub mod connection_budget;
pub(crate) mod connector;
pub(crate) mod environment_proxy;
pub(crate) mod error;
pub(crate) mod fair_shares;
pub(crate) mod http2;
pub(crate) mod http_settings;
pub(crate) mod reset_tracker;
