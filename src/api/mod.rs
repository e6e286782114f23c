//! Kubernetes objects as plain data, with their encoders and decoders. Nothing here acts on them.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `gunzip` `media_type` `status` `time` `user` `walk` |
//! | 1 | `flowcontrol` `list_scan` |
//! | 2 | `watch_scan` |

pub mod flowcontrol;
pub mod gunzip;
pub mod list_scan;
pub mod media_type;
pub mod status;
pub(crate) mod time;
pub mod user;
mod walk;
pub mod watch_scan;

pub use status::Status;
pub use user::UserInfo;
