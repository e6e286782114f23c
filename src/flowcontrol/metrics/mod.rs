//! TODO

pub(in crate::flowcontrol) mod histogram;
pub mod in_flight;
pub(in crate::flowcontrol) mod samples;
