//! Fair queuing: seats and work, shuffle sharding, and the queue set of one priority level.
//!
//! This is `util/flowcontrol/fairqueuing` of Kubernetes 1.36. The [theory](crate) is
//! in the parent module. All modules are pure.

pub mod queue_set;
pub mod seats;
pub mod shuffle_sharding;
