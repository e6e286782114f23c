//! A request that arrives at its level, and the errors of the arrival.

use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;

/// A request that has been classified and estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivingRequest<'a> {
    /// The request.
    pub(crate) info: &'a RequestInfo<'a>,
    /// The user of the request.
    pub(crate) user: &'a UserInfo,
    /// The flow distinguisher, which identifies the flow within its schema.
    pub(crate) flow_distinguisher: &'a [u8],
    /// The hash by which the flow is dealt its queues.
    pub(crate) flow_hash: u64,
    /// The expected cost.
    pub(crate) work: WorkEstimate,
    /// For a write whose estimate depends on watches: the number of interested watches.
    pub(crate) interested_watches: Option<u32>,
}

/// The errors of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalError {
    /// The level was closed, or the schema removed, after the request was classified.
    Closed,
    /// The level rejects the request.
    Rejected {
        /// The reason of the rejection.
        reason: RejectReason,
        /// The `Retry-After` in seconds.
        retry_after: u32,
    },
}
