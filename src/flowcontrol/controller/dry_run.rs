//! A request that runs at once, and queues on paper.
//!
//! On paper it waits its turn in the same queue as any other, leaves it when its time to wait is
//! up, and once it has its seats keeps them for as long as it really runs. The levels do not know
//! of any of this: a task holds the place, and is told when the request has ended. The log tells of
//! some of those that are refused on paper; the metrics count them all.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tokio::time::timeout_at;
use tracing::info;

use crate::clock::Clock;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::level::SchemaRoute;
use crate::flowcontrol::level::SeatPermit;
use crate::log_limiter::LogLimiter;

/// The real request. Its drop is its end.
#[derive(Debug)]
pub(super) struct SimulatedRequest {
    started: Instant,
    /// Takes the time for which it ran.
    run_time_tx: Option<oneshot::Sender<Duration>>,
}

impl SimulatedRequest {
    /// Plays the part of a request that really began `now` and waits at most `until`.
    pub(super) fn start(
        place: SeatPermit,
        now: Instant,
        until: Instant,
        log: &Arc<LogLimiter>,
    ) -> Self {
        let (ran, told) = oneshot::channel();
        tokio::spawn(simulate(place, until, told, Arc::clone(log)));
        Self {
            started: now,
            run_time_tx: Some(ran),
        }
    }

    /// Whether it has left the queue on paper.
    pub(super) fn is_timed_out(&self) -> bool {
        self.run_time_tx
            .as_ref()
            .is_some_and(oneshot::Sender::is_closed)
    }

    fn finish(&mut self, end: Instant) {
        if let Some(ran) = self.run_time_tx.take() {
            // If nobody listens, it was refused on paper.
            let _ = ran.send(end.saturating_duration_since(self.started));
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

/// Says what would have become of a request, if nothing has been said for a while.
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
            "dry run: a request went on that would have been refused"
        );
    }
}

async fn simulate(
    mut place: SeatPermit,
    until: Instant,
    ran: oneshot::Receiver<Duration>,
    log: Arc<LogLimiter>,
) {
    let turn = timeout_at(until.into(), place.wait_for_dispatch()).await;
    let now = Clock.now();
    if turn.is_err() && place.cancel(now).is_some() {
        log_rejection(&log, now, place.route(), RejectReason::TimeOut);
        return;
    }
    if let Ok(time) = ran.await {
        sleep_until((now + time).into()).await;
    }
    drop(place);
}
