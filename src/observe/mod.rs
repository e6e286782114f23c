//! What an operator sees: health and metrics, on listeners of their own, apart from the clients' port; and the audit log.

pub mod admin;
pub mod audit;
pub mod readiness;
pub mod talkers;
