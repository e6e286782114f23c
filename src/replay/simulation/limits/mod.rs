//! The limits of the proxy in virtual time.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `level` `list_sizes` |
//! | 1 | `fairness` |
//! | 2 | `limiter` |
//! | 3 | `rates` `retries` |

pub(super) mod fairness;
pub(super) mod level;
pub(super) mod limiter;
mod list_sizes;
pub(super) mod rates;
pub(super) mod retries;
