//! What an operator sees: health, metrics and the status page, on listeners of their own, apart from the clients' port.

pub mod admin;
pub mod readiness;
pub mod status;
pub mod talkers;
