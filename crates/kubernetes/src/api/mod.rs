//! Kubernetes objects as plain data, with their encoders and decoders. Nothing here acts on them.

pub mod flowcontrol;
pub mod status;
pub mod time;
pub mod user;
pub mod watch_frames;

pub use status::Status;
pub use user::UserInfo;
