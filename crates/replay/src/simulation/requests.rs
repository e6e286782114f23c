//! The requests of a simulation, from their arrival to their end.

use std::sync::Arc;

use super::agenda::SimTime;
use super::limits::fairness::Classified;
use super::limits::limiter::Held;
use super::statistics::groups::GroupIds;
use super::workers::WorkerId;
use crate::clients::{Client, ClientId};
use crate::logged::LoggedRequest;
use weir_flowcontrol::fairqueuing::queue_set::RequestKey;
use weir_flowcontrol::work_estimator::watch_tracker::Registration;
use weir_limits::rate::clients::enforcer::{ChargedRequest, ClientLimitPermit};
use weir_limits::rate::policies::enforcer::PolicyPermit;
use weir_limits::rejection_hold::HoldId;

/// A request that a client sends, perhaps again.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) request: LoggedRequest,
    pub(super) client: Arc<Client>,
    /// Of a closed-loop client: which of its workers has sent it.
    pub(super) worker: Option<WorkerId>,
    /// 0 for the first.
    pub(super) number: u32,
    /// When the first attempt arrived.
    pub(super) first_at: SimTime,
    /// When this one arrived.
    pub(super) arrived: SimTime,
    /// The slots of policies, until it ends.
    pub(super) policies: Option<PolicyPermit>,
}

/// A request that its client will repeat. There may be some 100,000 of them, so it is small.
#[derive(Debug)]
pub(super) struct RepeatedRequest {
    pub(super) request: LoggedRequest,
    pub(super) worker: Option<WorkerId>,
    /// That of the attempt that will be made.
    pub(super) number: u32,
    /// When the first attempt arrived.
    pub(super) first_at: SimTime,
}

/// A request that is there.
#[derive(Debug)]
pub(super) struct SimRequest {
    /// Tells it from others that had its number before.
    pub(super) serial: u64,
    pub(super) attempt: Attempt,
    pub(super) groups: GroupIds,
    /// When its time in a queue began.
    pub(super) queued_at: SimTime,
    pub(super) dispatched: Option<SimTime>,
    pub(super) seats: u32,
    pub(super) service_ns: u64,
    pub(super) held: Held,
    /// What the client limits have granted.
    pub(super) client_permit: Option<Box<ClientLimitPermit>>,
}

/// What a request will be once it is admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestPlan {
    /// `None` if it is not limited by fairness.
    pub(super) classified: Option<Classified>,
    pub(super) groups: GroupIds,
    pub(super) service_ns: u64,
    /// The most nanoseconds in a queue.
    pub(super) longest_wait_ns: u64,
}

/// What will happen. There may be some 100,000 of it, so it is small.
#[derive(Debug)]
pub(super) enum Planned {
    /// A request ends.
    End { request: u32, serial: u64 },
    /// The seats of a request that has ended are free.
    LingerEnd { lingering: usize },
    /// A request has waited for too long.
    TimeOut { request: u32, serial: u64 },
    /// The client of a request goes away.
    Cancel { request: u32, serial: u64 },
    /// A request has waited for its tokens, or looks for its slots again.
    AfterRates(Box<(Attempt, ChargedRequest)>),
    /// A client repeats a request.
    Retry(Box<RepeatedRequest>),
    /// A worker of a closed-loop client sends its next request.
    Send { worker: WorkerId },
    /// A watch ends that the log does not end.
    WatchEnd { stream: u64 },
    /// A held rejection is sent.
    HoldEnd { client: ClientId, hold: HoldId },
}

/// The seats of a request that has ended, which are not free yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct LingeringSeats {
    pub(super) level: usize,
    pub(super) key: RequestKey,
}

/// A watch that has been admitted, and has not ended.
#[derive(Debug)]
pub(super) struct OpenWatch {
    pub(super) registration: Option<Registration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_in_great_numbers_is_small() {
        assert_eq!(size_of::<Planned>(), 16);
        assert_eq!(size_of::<RepeatedRequest>(), 88);
    }
}
