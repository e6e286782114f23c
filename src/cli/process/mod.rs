//! The process: exit codes, logs, signals and the open-file limit.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `exit` `signals` |
//! | 1 | `logging` |

pub(in crate::cli) mod exit;
pub(in crate::cli) mod logging;
pub(in crate::cli) mod signals;
