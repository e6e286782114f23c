//! weir's log: a writer that never blocks its callers, and the log lines about requests. Records of
//! requests.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `non_blocking` `recording` `request_log` |

pub mod non_blocking;
pub mod recording;
pub(crate) mod request_log;
