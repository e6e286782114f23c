//! Commands about the program itself: its version, completion scripts and manual pages.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `completions` `man` `version` |

pub(crate) mod completions;
pub(crate) mod man;
pub(crate) mod version;
