//! weir's log: a writer that never blocks its callers, and the log lines about requests.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `non_blocking` `request_log` |

pub mod non_blocking;
pub mod request_log;
