//! Commands about the program itself: its version, completion scripts and manual pages.

pub(crate) mod generated;
pub(crate) mod version;
