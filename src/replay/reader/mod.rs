//! Reads logs: audit logs of kube-apiserver and of weir, and arrivals. Plain, or compressed with
//! gzip or zstd; many files, of several servers.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `audit_event` `compressed` `decisions` `window` |
//! | 1 | `input` `line` |
//! | 2 | `pool` |
//! | 3 | `merge` |

mod audit_event;
mod compressed;
mod decisions;
pub(crate) mod input;
mod line;
pub(crate) mod merge;
pub(crate) mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod window;
