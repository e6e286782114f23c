//! What weir reads from the cluster with its own credentials: flow schemas, priority levels, the
//! number of objects, and what the API server can do.

mod denials;
pub(super) mod flowcontrol;
pub(super) mod object_counts;
pub(crate) mod server_facts;
pub(crate) mod total;
