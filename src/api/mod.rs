//! Kubernetes' objects as data: what they hold, how they are read and written. No behaviour beyond that.

pub mod flowcontrol;
pub mod gunzip;
pub mod list_scan;
pub mod status;
pub(crate) mod time;
pub mod user;
mod varint;
mod walk;
pub mod watch_scan;

pub use status::Status;
pub use user::UserInfo;
