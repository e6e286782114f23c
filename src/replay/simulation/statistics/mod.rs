//! Counts of a simulation: by group, and over time. Pure.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `measured` `rounding` |
//! | 1 | `groups` `series` |

pub(super) mod groups;
pub(super) mod measured;
pub(super) mod rounding;
pub(super) mod series;
