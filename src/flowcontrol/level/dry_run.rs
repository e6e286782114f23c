//! Dry run: a request that executes at once, and is simulated in its queue.
//!
//! The simulated request waits in the same queue as any other, and leaves it at its deadline. Once
//! dispatched, it keeps its seats for as long as the real request executes. The levels do not
//! distinguish it from a real request. A task holds its seats, and receives the execution time when
//! the real request has ended. A rejection may come later than that: it is reported to
//! [`SimulatedRequest::report_rejection_to`].

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::decision::SeatRejection;
use weir_base::clock::Clock;

/// What is done about a simulated request that has waited for too long.
type RejectionReport = Box<dyn FnOnce(SeatRejection) + Send>;

/// The handle of the real request. Its drop is the end of the request.
pub(crate) struct SimulatedRequest {
    started: Instant,
    /// Sends the execution time of the real request.
    run_time_tx: Option<oneshot::Sender<Duration>>,
    /// `None` once it is sent.
    report_tx: Option<oneshot::Sender<RejectionReport>>,
}

impl SimulatedRequest {
    /// Starts the simulation of a request that starts `now`, and that gets its seats, or is
    /// rejected, when `dispatched` completes.
    pub(super) fn start<P: Send + 'static>(
        now: Instant,
        dispatched: impl Future<Output = Result<P, SeatRejection>> + Send + 'static,
    ) -> Self {
        let (run_time_tx, run_time_rx) = oneshot::channel::<Duration>();
        let (report_tx, report_rx) = oneshot::channel::<RejectionReport>();
        tokio::spawn(async move {
            match dispatched.await {
                Ok(permit) => {
                    let dispatched_at = Clock.now();
                    if let Ok(run_time) = run_time_rx.await {
                        sleep_until((dispatched_at + run_time).into()).await;
                    }
                    drop(permit);
                }
                Err(rejection) => {
                    if let Ok(report) = report_rx.await {
                        report(rejection);
                    }
                }
            }
        });
        Self {
            started: now,
            run_time_tx: Some(run_time_tx),
            report_tx: Some(report_tx),
        }
    }

    /// If the simulation rejects the request, now or after its end, it calls `report`.
    pub(crate) fn report_rejection_to(
        &mut self,
        report: impl FnOnce(SeatRejection) + Send + 'static,
    ) {
        if let Some(report_tx) = self.report_tx.take() {
            // Without a receiver, the simulation has ended without one.
            let _ = report_tx.send(Box::new(report));
        }
    }
}

impl Drop for SimulatedRequest {
    fn drop(&mut self) {
        if let Some(run_time_tx) = self.run_time_tx.take() {
            // Without a receiver, the simulated request has been rejected.
            let _ = run_time_tx.send(Clock.now().saturating_duration_since(self.started));
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
