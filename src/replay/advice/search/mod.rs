//! The search for the smallest total concurrency at which objectives hold, or for the shares with which
//! they hold at the configured one.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `model` `smallest` |
//! | 1 | `output` `runs` |
//! | 2 | `shares` |
//! | 3 | `same_total` |
//! | 4 | `find` |

pub(crate) mod find;
pub(crate) mod model;
pub(crate) mod output;
mod runs;
mod same_total;
mod shares;
mod smallest;
