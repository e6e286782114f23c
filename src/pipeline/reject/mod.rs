//! Rejections: their causes, their responses, and their delay.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `delay` `invalid_head` `limit_status` |
//! | 1 | `rejection` |
//! | 2 | `body_drain` `malformed` `response_cache` |

pub mod body_drain;
pub mod delay;
pub(crate) mod invalid_head;
mod limit_status;
pub(in crate::pipeline) mod malformed;
pub(crate) mod rejection;
pub(crate) mod response_cache;
