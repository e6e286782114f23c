//! Connections to the API server: how they are opened, how many there are, and HTTP/2 on them.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `address` `deferred_write_errors` `error` `fair_shares` `http_settings` `ping_schedule` `reset_tracker` |
//! | 1 | `connection_budget` `environment_proxy` |
//! | 2 | `connector` |
//! | 3 | `http2` |

pub mod address;
pub mod connection_budget;
pub(crate) mod connector;
pub(crate) mod deferred_write_errors;
pub(crate) mod environment_proxy;
pub(crate) mod error;
pub(crate) mod fair_shares;
pub(in crate::upstream) mod http2;
pub(in crate::upstream) mod http_settings;
pub(in crate::upstream) mod ping_schedule;
pub(in crate::upstream) mod reset_tracker;
