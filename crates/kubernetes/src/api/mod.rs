//! Kubernetes objects as plain data, with their encoders and decoders. Nothing here acts on them.

pub mod flowcontrol;
pub mod gunzip;
pub mod list_scan;
pub mod media_type;
pub mod status;
pub mod time;
pub mod user;
mod walk;
pub mod watch_frames;

pub use status::Status;
pub use user::UserInfo;
