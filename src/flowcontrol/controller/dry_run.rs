//! Dry run: a request that executes at once, and is simulated in its queue.
//!
//! The simulated request waits in the same queue as any other, and leaves it at its deadline. Once
//! dispatched, it keeps its seats for as long as the real request executes. The levels do not
//! distinguish it from a real request. A task holds the seat permit, and receives the execution
//! time when the real request has ended. A rejection may come later than that: it is reported to
//! [`SimulatedRequest::report_rejection_to`].

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout_at};

use super::outcome::AdmissionRejection;
use crate::flowcontrol::level::SeatPermit;
use weir_base::clock::Clock;
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;

/// What is done about a simulated rejection.
pub(super) type RejectionReport = Box<dyn FnOnce(AdmissionRejection) + Send>;

/// The handle of the real request. Its drop is the end of the request.
pub(super) struct SimulatedRequest {
    started: Instant,
    /// Sends the execution time of the real request.
    run_time_tx: Option<oneshot::Sender<Duration>>,
    /// `None` once it is sent.
    report_tx: Option<oneshot::Sender<RejectionReport>>,
}

impl SimulatedRequest {
    /// Starts the simulation of a request that starts `now` and may wait until `until`.
    pub(super) fn start(
        permit: SeatPermit,
        work: WorkEstimate,
        now: Instant,
        until: Instant,
    ) -> Self {
        let (run_time_tx, run_time_rx) = oneshot::channel();
        let (report_tx, report_rx) = oneshot::channel::<RejectionReport>();
        tokio::spawn(async move {
            let rejected = simulate(permit, work, now, until, run_time_rx).await;
            if let Some(rejection) = rejected
                && let Ok(report) = report_rx.await
            {
                report(rejection);
            }
        });
        Self {
            started: now,
            run_time_tx: Some(run_time_tx),
            report_tx: Some(report_tx),
        }
    }

    /// Calls `report` if the simulation rejects the request, or has rejected it.
    pub(super) fn report_rejection_to(&mut self, report: RejectionReport) {
        if let Some(report_tx) = self.report_tx.take() {
            // Without a receiver, the simulation has ended without a rejection.
            let _ = report_tx.send(report);
        }
    }

    fn finish(&mut self, end: Instant) {
        if let Some(run_time_tx) = self.run_time_tx.take() {
            // Without a receiver, the simulated request has been rejected.
            let _ = run_time_tx.send(end.saturating_duration_since(self.started));
        }
    }
}

impl Drop for SimulatedRequest {
    fn drop(&mut self) {
        if self.run_time_tx.is_some() {
            self.finish(Clock.now());
        }
    }
}

impl fmt::Debug for SimulatedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedRequest")
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

/// Waits and executes. Returns the rejection of a request that has waited for too long.
async fn simulate(
    mut permit: SeatPermit,
    work: WorkEstimate,
    arrived: Instant,
    until: Instant,
    run_time_rx: oneshot::Receiver<Duration>,
) -> Option<AdmissionRejection> {
    let dispatched = timeout_at(until.into(), permit.wait_for_dispatch()).await;
    let now = Clock.now();
    if dispatched.is_err()
        && let Some(retry_after) = permit.cancel(now)
    {
        return Some(AdmissionRejection {
            route: Arc::clone(permit.route()),
            reason: RejectReason::TimeOut,
            retry_after,
            work,
            arrived,
            queue_wait: now.saturating_duration_since(arrived),
        });
    }
    if let Ok(run_time) = run_time_rx.await {
        sleep_until((now + run_time).into()).await;
    }
    drop(permit);
    None
}
