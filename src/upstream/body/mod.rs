//! TODO

pub(in crate::upstream) mod body_pump;
pub mod client_body;
pub mod memory_budget;
pub mod request_body;
