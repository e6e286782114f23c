//! TODO

pub mod non_blocking;
pub mod request_log;
