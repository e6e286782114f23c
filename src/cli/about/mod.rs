//! Commands about the program itself: its version, completion scripts and manual pages.

pub(crate) mod completions;
pub(crate) mod man;
pub(crate) mod version;
