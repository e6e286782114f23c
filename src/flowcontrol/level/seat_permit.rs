//! What a request holds of its level, and the arrival that returns it.

use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::timeout_at;

use super::decision::{FlowControlDecision, SchemaRoute, SeatRejection};
use super::dry_run::SimulatedRequest;
use super::state::{ArrivalError, ArrivingRequest};
use weir_base::clock::Clock;
use weir_flowcontrol::fairqueuing::queue_set::{RejectReason, RequestKey};
use weir_flowcontrol::work_estimator::watch_tracker::{Registration, WatchTracker};

/// The outcome of an arrival that was not rejected.
#[derive(Debug)]
pub(crate) enum ArrivalOutcome {
    /// The request waits for its [dispatch](SeatPermit::wait_until), or is
    /// [simulated](SeatPermit::simulate).
    Queued(SeatPermit),
    /// The request may execute.
    Executing(SeatPermit),
}

/// A position in the queue, then seats. Dropping it, at any time, releases either, and then ends the
/// count of a watch. If the seats linger, a timer task takes them over and releases them later.
#[derive(Debug)]
pub struct SeatPermit {
    decision: FlowControlDecision,
    state: SeatState,
    watch: Option<WatchGuard>,
}

#[derive(Debug)]
enum SeatState {
    /// A position in the queue, or seats.
    Slot(RequestKey),
    /// Dry run: the request executes without seats, while its simulation waits or has them.
    Simulated(SimulatedRequest),
    /// Dry run: the request executes, although its level rejects it.
    Spared {
        reason: RejectReason,
        retry_after: u32,
    },
    Released,
}

/// Counts a watch until it is dropped.
#[derive(Debug)]
pub(crate) struct WatchGuard {
    pub(crate) tracker: Arc<Mutex<WatchTracker>>,
    pub(crate) registration: Option<Registration>,
}

impl SchemaRoute {
    /// Lets a request arrive at the level.
    ///
    /// # Errors
    /// See [`ArrivalError`].
    pub(crate) fn arrive(
        self: &Arc<Self>,
        now: Instant,
        arriving: &ArrivingRequest<'_>,
    ) -> Result<ArrivalOutcome, ArrivalError> {
        let (level, counters) = (&self.level, self.counters);
        let (key, waits) = level.with_lock(|level| level.arrive(now, counters, arriving))?;
        let decision = FlowControlDecision::new(self, arriving.work, now);
        let permit = SeatPermit::new(decision, SeatState::Slot(key));
        Ok(if waits {
            ArrivalOutcome::Queued(permit)
        } else {
            ArrivalOutcome::Executing(permit)
        })
    }
}

impl SeatPermit {
    const fn new(decision: FlowControlDecision, state: SeatState) -> Self {
        Self {
            decision,
            state,
            watch: None,
        }
    }

    /// The permit of a request that a dry run spares this rejection.
    #[must_use]
    pub(crate) fn sparing(rejection: SeatRejection) -> Self {
        let SeatRejection {
            decision,
            reason,
            retry_after,
        } = rejection;
        let spared = SeatState::Spared {
            reason,
            retry_after,
        };
        Self::new(decision, spared)
    }

    /// The permit of a request that executes without seats, while its place in the queue is left
    /// to a simulation that waits until `until`.
    #[must_use]
    pub(crate) fn simulate(mut self, until: Instant) -> Self {
        let decision = self.decision.clone();
        let simulated = SimulatedRequest::start(decision.arrived, async move {
            self.wait_until(until).await.map(|()| self)
        });
        Self::new(decision, SeatState::Simulated(simulated))
    }

    /// Counts a watch for as long as the permit is held.
    pub(crate) fn count_watch(&mut self, watch: Option<WatchGuard>) {
        self.watch = watch;
    }

    /// The decision that admitted the request.
    #[must_use]
    pub(crate) const fn decision(&self) -> &FlowControlDecision {
        &self.decision
    }

    /// The rejection that a dry run has spared the request. One that is
    /// [simulated](Self::simulated_mut) may be rejected later.
    #[must_use]
    pub(crate) fn dry_run_rejection(&self) -> Option<SeatRejection> {
        match self.state {
            SeatState::Spared {
                reason,
                retry_after,
            } => Some(self.rejection(reason, retry_after)),
            SeatState::Slot(_) | SeatState::Simulated(_) | SeatState::Released => None,
        }
    }

    /// The handle of the simulation of a dry run, if the request has one.
    pub(crate) const fn simulated_mut(&mut self) -> Option<&mut SimulatedRequest> {
        match &mut self.state {
            SeatState::Simulated(simulated) => Some(simulated),
            SeatState::Slot(_) | SeatState::Spared { .. } | SeatState::Released => None,
        }
    }

    /// Waits for the dispatch until `until`.
    ///
    /// # Errors
    /// The request has waited for too long, and has left the queue.
    ///
    /// # Cancel safety
    /// The position in the queue stays the same.
    pub(crate) async fn wait_until(&mut self, until: Instant) -> Result<(), SeatRejection> {
        let dispatched = timeout_at(until.into(), self.wait_for_dispatch()).await;
        let now = Clock.now();
        self.decision.queue_wait = now.saturating_duration_since(self.decision.arrived);
        if dispatched.is_err()
            && let Some(retry_after) = self.cancel(now)
        {
            return Err(self.rejection(RejectReason::TimeOut, retry_after));
        }
        Ok(())
    }

    pub(super) async fn wait_for_dispatch(&self) {
        let (SeatState::Slot(key), level) = (&self.state, &self.decision.route.level) else {
            return;
        };
        poll_fn(
            |cx| match level.with_lock(|level| level.poll_dispatched(*key, cx.waker())) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            },
        )
        .await;
    }

    /// Leaves the queue if the request still waits, and returns the `Retry-After` of the rejection
    /// in seconds. A dispatched request keeps its seats.
    pub(super) fn cancel(&mut self, now: Instant) -> Option<u32> {
        let SeatState::Slot(key) = self.state else {
            return None;
        };
        let level = &self.decision.route.level;
        let retry_after = level.with_lock(|level| level.cancel(now, key))?;
        self.state = SeatState::Released;
        Some(retry_after)
    }

    fn rejection(&self, reason: RejectReason, retry_after: u32) -> SeatRejection {
        SeatRejection {
            decision: self.decision.clone(),
            reason,
            retry_after,
        }
    }

    /// Releases the position or the seats now; a simulated request ends. Of a watch, its initial
    /// events were its work: from then on it is only counted.
    pub(crate) fn release(&mut self) {
        let state = std::mem::replace(&mut self.state, SeatState::Released);
        let SeatState::Slot(key) = state else {
            return;
        };
        let now = Clock.now();
        let level = &self.decision.route.level;
        if let Some(linger) = level.with_lock(|level| level.leave(now, key)) {
            let lingering = Self::new(self.decision.clone(), SeatState::Slot(key));
            lingering.release_at(now + linger);
        }
    }

    /// Releases the position or the seats at `at`. Outside of a runtime it releases them at once.
    fn release_at(self, at: Instant) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                drop(self); // also dropped if the runtime ends before
            });
        }
    }
}

impl Drop for SeatPermit {
    fn drop(&mut self) {
        self.release();
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
