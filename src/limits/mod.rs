//! The limits that admit or reject a request. Each returns a permit or a [`Rejection`].
//!
//! A [`AdmissionPermit`] is held until the last byte of the response has been sent, and drop releases it. A
//! rejection is a decision, not an error: it names the limit, and the response reports which one it
//! was.

pub mod abandoned_backlog;
pub(crate) mod admission;
pub mod levers;
pub(crate) mod limiters;
pub mod list_bytes;
pub mod memory_limit;
pub(crate) mod rejection;
pub mod total_finder;
pub(crate) mod total_warning;
pub mod upgrade_rate;
pub mod watch_starts;

pub use admission::{Admission, AdmissionPermit};
pub use limiters::register_dry_run;
pub(crate) use rejection::Rejection;
