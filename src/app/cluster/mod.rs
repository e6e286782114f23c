//! What weir reads from the cluster with its own credentials: flow schemas, priority levels and the
//! number of objects.

mod denials;
pub(super) mod flowcontrol;
pub(super) mod object_counts;
pub(crate) mod total;
