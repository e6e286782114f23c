//! The search for the smallest total concurrency at which objectives hold.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `model` `smallest` |
//! | 1 | `output` `runs` |
//! | 2 | `shares` |
//! | 3 | `find` |

pub(crate) mod find;
pub(crate) mod model;
pub(crate) mod output;
mod runs;
mod shares;
mod smallest;
