//! Whether and when a request is executed, and what it occupies meanwhile.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `capacity` `fairness` `handler_scheduler` |
//! | 1 | `request_log` |
//! | 2 | `response_body` |

pub(in crate::playground) mod capacity;
pub(in crate::playground) mod fairness;
pub(in crate::playground) mod handler_scheduler;
pub(in crate::playground) mod request_log;
pub(in crate::playground) mod response_body;
