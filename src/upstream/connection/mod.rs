//! TODO

pub mod address;
pub mod connection_budget;
pub mod connector;
pub mod fair_shares;
pub(in crate::upstream) mod http2;
pub(in crate::upstream) mod http_settings;
pub(in crate::upstream) mod ping_schedule;
pub(in crate::upstream) mod reset_tracker;
