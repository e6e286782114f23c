//! The process: exit codes, configuration, logs, signals and the open-file limit.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `exit` `signals` |
//! | 1 | `logging` `resolve` |

pub(in crate::cli) mod exit;
pub(in crate::cli) mod logging;
pub(in crate::cli) mod resolve;
pub(in crate::cli) mod signals;
