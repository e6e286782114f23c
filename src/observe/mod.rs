//! What an operator sees: health and metrics, on listeners of their own, apart from the clients' port.

pub mod admin;
pub mod readiness;
pub mod talkers;
