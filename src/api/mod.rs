//! Kubernetes' objects as data: what they hold, how they are read and written. No behaviour beyond that.

pub mod flowcontrol;
pub mod list_scan;
pub mod status;
pub(crate) mod time;
pub mod user;

pub use status::Status;
pub use user::UserInfo;
