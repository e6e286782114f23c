//! TODO

pub(in crate::playground) mod capacity;
pub(in crate::playground) mod fairness;
pub(in crate::playground) mod handler_scheduler;
pub(in crate::playground) mod request_log;
