//! Kubernetes objects as plain data, with their encoders and decoders. Nothing here acts on them.

pub mod flowcontrol;
pub(crate) mod gunzip;
pub(crate) mod list_scan;
pub(crate) mod media_type;
pub(crate) mod status;
pub(crate) mod time;
pub(crate) mod user;
mod walk;
pub(crate) mod watch_scan;

pub(crate) use status::Status;
pub use user::UserInfo;
