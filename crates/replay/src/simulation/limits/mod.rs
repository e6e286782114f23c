//! The limits of the proxy in virtual time.

pub(super) mod fairness;
pub(super) mod level;
pub(super) mod limiter;
mod list_sizes;
pub(super) mod rates;
pub(super) mod retries;
