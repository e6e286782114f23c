//! What weir reads from the cluster with its own credentials: flow schemas, priority levels and the
//! number of objects.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `denials` |
//! | 1 | `flowcontrol` `object_counts` |

mod denials;
pub(super) mod flowcontrol;
pub(super) mod object_counts;
