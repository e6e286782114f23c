//! What an operator sees: health, metrics and the status page, on listeners of their own, apart from the clients' port; logs and traces.

pub mod admin;
pub mod audit;
mod buffer;
pub mod facts;
pub mod log_level;
pub mod log_lines;
pub mod process;
pub mod readiness;
pub mod request_log;
#[cfg_attr(not(feature = "otlp"), path = "spans/absent.rs")]
pub mod spans;
pub mod status;
pub mod talkers;
mod texts;
