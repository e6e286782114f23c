//! Rejections: their causes, their responses, and their delay.

pub mod body_drain;
pub mod delay;
pub(crate) mod invalid_head;
mod limit_status;
pub(crate) mod malformed;
pub(crate) mod rejection;
pub(crate) mod response_cache;
