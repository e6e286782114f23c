//! What a group of requests lost. Pure.

/// Rejections and waits of a group, in a simulation and in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GroupLoss {
    /// Requests, with those that clients repeated.
    pub(crate) arrivals: u64,
    /// Rejected requests.
    pub(crate) rejected: u64,
    /// Seconds of waiting of the requests that were dispatched.
    pub(crate) wait_s: f64,
    /// Requests that the log says were rejected.
    pub(crate) recorded_rejected: u64,
    /// Seconds of waiting, as far as the log says.
    pub(crate) recorded_wait_s: f64,
}
