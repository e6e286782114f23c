//! Dry run: a request that executes at once, and is simulated in its queue.
//!
//! The simulated request waits in the same queue as any other, and leaves it at its deadline. Once
//! dispatched, it keeps its seats for as long as the real request executes. The levels do not
//! distinguish it from a real request. A task holds the seat permit, and receives the execution
//! time when the real request has ended. Some of the simulated rejections are logged. The metrics
//! count all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout_at};
use tracing::info;

use crate::flowcontrol::level::{SchemaRoute, SeatPermit};
use weir_base::clock::Clock;
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_limits::throttling::log_limiter::LogLimiter;

/// The handle of the real request. Its drop is the end of the request.
#[derive(Debug)]
pub(super) struct SimulatedRequest {
    started: Instant,
    /// Sends the execution time of the real request.
    run_time_tx: Option<oneshot::Sender<Duration>>,
}

impl SimulatedRequest {
    /// Starts the simulation of a request that starts `now` and may wait until `until`.
    pub(super) fn start(
        permit: SeatPermit,
        now: Instant,
        until: Instant,
        log: &Arc<LogLimiter>,
    ) -> Self {
        let (run_time_tx, run_time_rx) = oneshot::channel();
        tokio::spawn(simulate(permit, until, run_time_rx, Arc::clone(log)));
        Self {
            started: now,
            run_time_tx: Some(run_time_tx),
        }
    }

    /// Whether the simulated request has left the queue.
    pub(super) fn is_timed_out(&self) -> bool {
        self.run_time_tx
            .as_ref()
            .is_some_and(oneshot::Sender::is_closed)
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

/// Logs a simulated rejection, rate-limited.
pub(super) fn log_rejection(
    log: &LogLimiter,
    now: Instant,
    route: &SchemaRoute,
    reason: RejectReason,
) {
    if let Some(more) = log.try_log(now) {
        info!(
            flow_schema = route.flow_schema.name,
            priority_level = route.priority_level.name,
            reason = reason.label(),
            more,
            "dry run: a request that would have been rejected was executed"
        );
    }
}

async fn simulate(
    mut permit: SeatPermit,
    until: Instant,
    run_time_rx: oneshot::Receiver<Duration>,
    log: Arc<LogLimiter>,
) {
    let dispatched = timeout_at(until.into(), permit.wait_for_dispatch()).await;
    let now = Clock.now();
    if dispatched.is_err() && permit.cancel(now).is_some() {
        log_rejection(&log, now, permit.route(), RejectReason::TimeOut);
        return;
    }
    if let Ok(run_time) = run_time_rx.await {
        sleep_until((now + run_time).into()).await;
    }
    drop(permit);
}
