//! Whether and when a request is executed, and what it occupies meanwhile.

pub(crate) mod capacity;
pub(crate) mod fairness;
pub(crate) mod fault;
pub(crate) mod handler_scheduler;
pub(crate) mod list_memory;
pub(crate) mod request_log;
pub(crate) mod response_body;
