//! Commands about the program itself: its version, completion scripts and manual pages.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `completions` `man` `version` |

pub mod completions;
pub mod man;
pub mod version;
