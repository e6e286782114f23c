//! TODO

pub mod abandoned;
pub mod body;
pub mod deadlines;
pub(in crate::pipeline) mod explain;
pub mod guarded;
pub(in crate::pipeline) mod in_flight;
pub(in crate::pipeline) mod list_observer;
