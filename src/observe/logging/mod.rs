//! weir's log: a writer that never blocks its callers, and the log lines about requests. Records of
//! requests.

pub mod non_blocking;
pub mod recording;
pub(crate) mod request_log;
