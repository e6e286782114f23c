//! What weir reads from the cluster with its own credentials: flow schemas, priority levels and the
//! number of objects.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `flowcontrol` `object_counts` |

pub(super) mod flowcontrol;
pub(super) mod object_counts;
