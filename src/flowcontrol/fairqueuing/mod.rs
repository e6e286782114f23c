//! TODO

pub mod queue_set;
pub mod seats;
pub mod shuffle_sharding;
