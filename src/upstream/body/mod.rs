//! Request and response bodies, forwarded frame by frame.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `client_body` `progress` |
//! | 1 | `buffered_body` |
//! | 2 | `request_body` |
//! | 3 | `body_pump` |
//! | 4 | `response_body` |

pub(in crate::upstream) mod body_pump;
pub mod buffered_body;
pub mod client_body;
pub mod progress;
pub mod request_body;
pub mod response_body;
