//! Dry run: a request that executes at once, and is simulated in its queue.
//!
//! The simulated request waits in the same queue as any other, and leaves it at its deadline. Once
//! dispatched, it keeps its seats for as long as the real request executes. The levels do not
//! distinguish it from a real request. A task holds the seat permit, and receives the execution
//! time when the real request has ended. A rejection may come later than that: it is reported to
//! [`SimulatedRequest::report_time_out_to`].

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout_at};

use crate::flowcontrol::level::SeatPermit;
use weir_base::clock::Clock;

/// A request that has waited for too long in the simulation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedTimeOut {
    /// The `Retry-After` in seconds.
    pub(super) retry_after: u32,
    /// The time in the queue.
    pub(super) queue_wait: Duration,
}

/// What is done about it.
pub(super) type TimeOutReport = Box<dyn FnOnce(SimulatedTimeOut) + Send>;

/// The handle of the real request. Its drop is the end of the request.
pub(super) struct SimulatedRequest {
    started: Instant,
    /// Sends the execution time of the real request.
    run_time_tx: Option<oneshot::Sender<Duration>>,
    /// `None` once it is sent.
    report_tx: Option<oneshot::Sender<TimeOutReport>>,
}

impl SimulatedRequest {
    /// Starts the simulation of a request that starts `now` and may wait until `until`.
    pub(super) fn start(permit: SeatPermit, now: Instant, until: Instant) -> Self {
        let (run_time_tx, run_time_rx) = oneshot::channel();
        let (report_tx, report_rx) = oneshot::channel::<TimeOutReport>();
        tokio::spawn(async move {
            if let Some(time_out) = simulate(permit, now, until, run_time_rx).await
                && let Ok(report) = report_rx.await
            {
                report(time_out);
            }
        });
        Self {
            started: now,
            run_time_tx: Some(run_time_tx),
            report_tx: Some(report_tx),
        }
    }

    /// Calls `report` if the simulated request waits for too long, or has waited for too long.
    pub(super) fn report_time_out_to(&mut self, report: TimeOutReport) {
        if let Some(report_tx) = self.report_tx.take() {
            // Without a receiver, the simulation has ended without one.
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

/// Waits and executes. Returns whether the request has waited for too long.
async fn simulate(
    mut permit: SeatPermit,
    arrived: Instant,
    until: Instant,
    run_time_rx: oneshot::Receiver<Duration>,
) -> Option<SimulatedTimeOut> {
    let dispatched = timeout_at(until.into(), permit.wait_for_dispatch()).await;
    let now = Clock.now();
    if dispatched.is_err()
        && let Some(retry_after) = permit.cancel(now)
    {
        return Some(SimulatedTimeOut {
            retry_after,
            queue_wait: now.saturating_duration_since(arrived),
        });
    }
    if let Ok(run_time) = run_time_rx.await {
        sleep_until((now + run_time).into()).await;
    }
    drop(permit);
    None
}
