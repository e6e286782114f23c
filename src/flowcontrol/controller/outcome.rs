//! The two outcomes of admission.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use super::dry_run::SimulatedRequest;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;
use crate::flowcontrol::level::ObjectId;
use crate::flowcontrol::level::SchemaRoute;
use crate::flowcontrol::level::SeatPermit;
use crate::flowcontrol::matching::FlowDistinguisherMethod;
use crate::flowcontrol::work_estimator::watch_tracker::Registration;
use crate::flowcontrol::work_estimator::watch_tracker::WatchTracker;

/// A request that may run. Dropping it gives back what it holds; its seats may linger after that.
#[derive(Debug)]
pub struct AdmissionPermit {
    pub(super) seat_permit: SeatPermit,
    pub(super) dry_run: DryRun,
    pub(super) _watch: Option<WatchGuard>,
    pub(super) work: WorkEstimate,
    pub(super) queue_wait: Duration,
}

/// A request that may not run.
#[derive(Clone, Debug)]
pub struct AdmissionRejection {
    pub(super) route: Arc<SchemaRoute>,
    /// Why.
    pub reason: RejectReason,
    /// The seconds of `Retry-After`.
    pub retry_after: u32,
    /// What it was estimated to cost.
    pub work: WorkEstimate,
    /// How long it was in the queue.
    pub queue_wait: Duration,
}

/// What was decided about a request, for those who are told of it afterwards.
#[derive(Clone, Debug)]
pub struct FlowControlDecision {
    route: Arc<SchemaRoute>,
    /// The most seats that it was estimated to take at a time.
    pub seats: u32,
    /// How long it was in the queue.
    pub queue_wait: Duration,
}

impl FlowControlDecision {
    fn new(route: &Arc<SchemaRoute>, work: WorkEstimate, queue_wait: Duration) -> Self {
        Self {
            route: Arc::clone(route),
            seats: work.initial_seats.max(work.final_seats),
            queue_wait,
        }
    }

    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &ObjectId {
        &self.route.flow_schema
    }

    /// What tells the flows of that schema apart.
    #[must_use]
    pub fn distinguisher_method(&self) -> FlowDistinguisherMethod {
        self.route.distinguisher_method
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &ObjectId {
        &self.route.priority_level
    }
}

/// How a request fares that runs all the same.
#[derive(Debug)]
pub(super) enum DryRun {
    /// As in truth.
    Admitted,
    /// It had to queue.
    Queued(SimulatedRequest),
    /// It is refused.
    Rejected(RejectReason),
}

/// A watch that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct WatchGuard {
    pub(super) tracker: Arc<Mutex<WatchTracker>>,
    pub(super) registration: Option<Registration>,
}

impl AdmissionPermit {
    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &ObjectId {
        &self.seat_permit.route().flow_schema
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &ObjectId {
        &self.seat_permit.route().priority_level
    }

    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> FlowControlDecision {
        FlowControlDecision::new(self.seat_permit.route(), self.work, self.queue_wait)
    }

    /// What the request was estimated to cost.
    #[must_use]
    pub const fn work(&self) -> WorkEstimate {
        self.work
    }

    /// How long it was in the queue.
    #[must_use]
    pub const fn queue_wait(&self) -> Duration {
        self.queue_wait
    }

    /// Why it would have been refused by now, if nothing but the enforcement were different.
    pub(super) fn dry_run_rejection(&self) -> Option<RejectReason> {
        match &self.dry_run {
            DryRun::Admitted => None,
            DryRun::Queued(played) => played.is_timed_out().then_some(RejectReason::TimeOut),
            DryRun::Rejected(reason) => Some(*reason),
        }
    }

    /// A watch has sent what there was when it began: that was its work. It gives its seats back
    /// and is counted as a watch from here on.
    pub fn mark_initialized(&mut self) {
        self.seat_permit.release();
        self.dry_run = self
            .dry_run_rejection()
            .map_or(DryRun::Admitted, DryRun::Rejected);
    }
}

impl AdmissionRejection {
    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> FlowControlDecision {
        FlowControlDecision::new(&self.route, self.work, self.queue_wait)
    }

    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &ObjectId {
        &self.route.flow_schema
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &ObjectId {
        &self.route.priority_level
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
            tracker.unregister(registration);
        }
    }
}
