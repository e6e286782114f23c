//! The two outcomes of admission.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dry_run::SimulatedRequest;
use crate::flowcontrol::level::{ObjectId, SchemaRoute, SeatPermit};
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::matching::FlowDistinguisherMethod;
use weir_flowcontrol::work_estimator::watch_tracker::{Registration, WatchTracker};

/// Permission to execute a request. On drop it releases the request's seats, which may linger.
#[derive(Debug)]
pub struct AdmissionPermit {
    pub(super) seat_permit: SeatPermit,
    pub(super) dry_run: DryRun,
    pub(super) _watch: Option<WatchGuard>,
    pub(super) work: WorkEstimate,
    pub(super) arrived: Instant,
    pub(super) queue_wait: Duration,
}

/// A rejected request.
#[derive(Clone, Debug)]
pub struct AdmissionRejection {
    pub(super) route: Arc<SchemaRoute>,
    /// The reason of the rejection.
    pub(crate) reason: RejectReason,
    /// The `Retry-After` in seconds.
    pub(crate) retry_after: u32,
    /// The estimated work.
    pub(crate) work: WorkEstimate,
    pub(super) arrived: Instant,
    /// The time in the queue.
    pub(crate) queue_wait: Duration,
}

/// The decision about a request, for logs, metrics and audit.
#[derive(Clone, Debug)]
pub struct FlowControlDecision {
    route: Arc<SchemaRoute>,
    /// The most seats that the request occupies at a time, by its estimate.
    pub(crate) seats: u32,
    /// When the request arrived at its level.
    pub(crate) arrived: Instant,
    /// The time in the queue.
    pub(crate) queue_wait: Duration,
    work: WorkEstimate,
}

impl FlowControlDecision {
    pub(super) fn new(
        route: &Arc<SchemaRoute>,
        work: WorkEstimate,
        arrived: Instant,
        queue_wait: Duration,
    ) -> Self {
        Self {
            route: Arc::clone(route),
            seats: work.initial_seats.max(work.final_seats),
            arrived,
            queue_wait,
            work,
        }
    }

    /// The estimated work.
    #[must_use]
    pub(crate) const fn work(&self) -> WorkEstimate {
        self.work
    }

    /// The flow schema that matched.
    #[must_use]
    pub(crate) fn flow_schema(&self) -> &ObjectId {
        &self.route.flow_schema
    }

    /// The priority level of the schema.
    #[must_use]
    pub(crate) fn priority_level(&self) -> &ObjectId {
        &self.route.priority_level
    }

    /// The flow distinguisher of the schema.
    #[must_use]
    pub(crate) fn distinguisher_method(&self) -> FlowDistinguisherMethod {
        self.route.distinguisher_method
    }
}

/// The simulated outcome of a request that executes at once.
#[derive(Debug)]
pub(super) enum DryRun {
    /// The request is admitted, as in reality.
    Admitted,
    /// The request is queued.
    Queued(SimulatedRequest),
    /// The request is rejected.
    Rejected(Box<AdmissionRejection>),
}

/// Counts a watch until it is dropped.
#[derive(Debug)]
pub(super) struct WatchGuard {
    pub(super) tracker: Arc<Mutex<WatchTracker>>,
    pub(super) registration: Option<Registration>,
}

impl AdmissionPermit {
    /// Whether the level of the request is exempt.
    #[must_use]
    pub(crate) fn is_exempt(&self) -> bool {
        self.seat_permit.route().level.is_exempt()
    }

    /// The decision that admitted the request.
    #[must_use]
    pub(crate) fn decision(&self) -> FlowControlDecision {
        FlowControlDecision::new(
            self.seat_permit.route(),
            self.work,
            self.arrived,
            self.queue_wait,
        )
    }

    /// The time in the queue.
    #[must_use]
    pub(crate) const fn queue_wait(&self) -> Duration {
        self.queue_wait
    }

    /// The rejection that a dry run has spared the request. One that waits in the simulation may be
    /// rejected later: [`report_rejection_to`](Self::report_rejection_to).
    pub(crate) fn dry_run_rejection(&self) -> Option<&AdmissionRejection> {
        match &self.dry_run {
            DryRun::Admitted | DryRun::Queued(_) => None,
            DryRun::Rejected(rejection) => Some(rejection),
        }
    }

    /// Whether the request waits in the simulation of a dry run.
    pub(crate) const fn is_simulated(&self) -> bool {
        matches!(self.dry_run, DryRun::Queued(_))
    }

    /// If the simulation rejects the request, now or after its end, it calls this.
    pub(crate) fn report_rejection_to(
        &mut self,
        report: impl FnOnce(AdmissionRejection) + Send + 'static,
    ) {
        let (route, work, arrived) = (self.seat_permit.route(), self.work, self.arrived);
        if let DryRun::Queued(simulated) = &mut self.dry_run {
            let route = Arc::clone(route);
            simulated.report_time_out_to(Box::new(move |time_out| {
                report(AdmissionRejection {
                    route,
                    reason: RejectReason::TimeOut,
                    retry_after: time_out.retry_after,
                    work,
                    arrived,
                    queue_wait: time_out.queue_wait,
                });
            }));
        }
    }

    /// Marks a watch whose initial events have been sent. They were its work: the watch releases
    /// its seats and is counted as a watch from here on.
    pub(crate) fn mark_initialized(&mut self) {
        self.seat_permit.release();
        if self.is_simulated() {
            self.dry_run = DryRun::Admitted;
        }
    }
}

impl AdmissionRejection {
    /// The decision that rejected the request.
    #[must_use]
    pub(crate) fn decision(&self) -> FlowControlDecision {
        FlowControlDecision::new(&self.route, self.work, self.arrived, self.queue_wait)
    }

    /// The flow schema that matched.
    #[must_use]
    pub(crate) fn flow_schema(&self) -> &ObjectId {
        &self.route.flow_schema
    }

    /// The priority level of the schema.
    #[must_use]
    pub(crate) fn priority_level(&self) -> &ObjectId {
        &self.route.priority_level
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let mut tracker = self.tracker.lock();
            tracker.unregister(registration);
        }
    }
}
