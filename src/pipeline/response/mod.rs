//! The response and its body: what it holds, when it is cut off, and what is learned from it.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `deadlines` `explain` `list_observer` |
//! | 1 | `guarded` `watch_init` |
//! | 2 | `abandoned` |
//! | 3 | `in_flight` |
//! | 4 | `body` |

pub mod abandoned;
pub mod body;
pub mod deadlines;
pub(in crate::pipeline) mod explain;
pub mod guarded;
pub(in crate::pipeline) mod in_flight;
pub(in crate::pipeline) mod list_observer;
pub(in crate::pipeline) mod watch_init;
