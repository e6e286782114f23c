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
pub(crate) mod buffered_body;
pub(crate) mod client_body;
pub(crate) mod progress;
pub(crate) mod request_body;
pub(crate) mod response_body;
