//! What a group of requests lost. Pure.

/// Rejections and waits of a group, in a simulation and in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLoss {
    /// Requests, with those that clients repeated.
    pub arrivals: u64,
    /// Rejected requests.
    pub rejected: u64,
    /// Seconds of waiting of the requests that were dispatched.
    pub wait_s: f64,
    /// Requests that the log says were rejected.
    pub recorded_rejected: u64,
    /// Seconds of waiting, as far as the log says.
    pub recorded_wait_s: f64,
}
