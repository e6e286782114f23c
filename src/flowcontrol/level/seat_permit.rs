//! The permit of an admitted request, and the arrival that returns it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::HeaderValue;
use tokio::runtime::Handle;

use super::arrival::{ArrivalError, ArrivingRequest};
use super::counters::SchemaSlot;
use super::priority_level::PriorityLevel;
use weir_base::clock::Clock;
use weir_flowcontrol::fairqueuing::queue_set::RequestKey;
use weir_flowcontrol::matching::FlowDistinguisherMethod;

/// An object, as responses and logs identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId {
    /// The object's name.
    pub(crate) name: String,
    /// The object's UID.
    pub(crate) uid: HeaderValue,
}

/// The route of a flow schema: its level, and everything about its requests that is known in
/// advance.
#[derive(Debug)]
pub(crate) struct SchemaRoute {
    /// The flow schema.
    pub(crate) flow_schema: ObjectId,
    /// The flow distinguisher of the schema.
    pub(crate) distinguisher_method: FlowDistinguisherMethod,
    /// The priority level's object.
    pub(crate) priority_level: ObjectId,
    /// The priority level.
    pub(crate) level: Arc<PriorityLevel>,
    /// The row of the schema's counters: [`PriorityLevel::register_schema`].
    pub(crate) counters: SchemaSlot,
    /// Whether the schema or its level says that it only counts.
    pub(crate) is_dry_run: bool,
}

/// The outcome of an arrival that was not rejected.
#[derive(Debug)]
pub(crate) enum ArrivalOutcome {
    /// The request waits for its [dispatch](SeatPermit::wait_for_dispatch).
    Queued(SeatPermit),
    /// The request may execute.
    Executing(SeatPermit),
}

/// A position in the queue, then seats. Dropping it, at any time, releases either. If the seats
/// linger, a timer task takes over the permit and drops it later.
#[derive(Debug)]
pub(crate) struct SeatPermit {
    route: Arc<SchemaRoute>,
    key: Option<RequestKey>,
}

/// Completes when the request is dispatched.
#[derive(Debug)]
pub(crate) struct DispatchFuture<'p>(&'p SeatPermit);

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
        let permit = SeatPermit {
            route: Arc::clone(self),
            key: Some(key),
        };
        Ok(if waits {
            ArrivalOutcome::Queued(permit)
        } else {
            ArrivalOutcome::Executing(permit)
        })
    }
}

impl SeatPermit {
    /// A permit without a position or seats, for a request with this route.
    #[must_use]
    pub(crate) const fn empty(route: Arc<SchemaRoute>) -> Self {
        Self { route, key: None }
    }

    /// The route of the request.
    #[must_use]
    pub(crate) const fn route(&self) -> &Arc<SchemaRoute> {
        &self.route
    }

    /// Waits for the dispatch.
    ///
    /// # Cancel safety
    /// The position in the queue stays the same.
    pub(crate) const fn wait_for_dispatch(&self) -> DispatchFuture<'_> {
        DispatchFuture(self)
    }

    /// Leaves the queue if the request still waits, and returns the `Retry-After` of the rejection
    /// in seconds. A dispatched request keeps its seats.
    pub(crate) fn cancel(&mut self, now: Instant) -> Option<u32> {
        let (level, key) = (&self.route.level, self.key?);
        let retry_after = level.with_lock(|level| level.cancel(now, key))?;
        self.key = None;
        Some(retry_after)
    }

    /// Releases the position or the seats now.
    pub(crate) fn release(&mut self) {
        let Some(key) = self.key.take() else {
            return;
        };
        let now = Clock.now();
        let level = &self.route.level;
        if let Some(linger) = level.with_lock(|level| level.leave(now, key)) {
            let lingering = Self {
                route: Arc::clone(&self.route),
                key: Some(key),
            };
            lingering.release_at(now + linger);
        }
    }

    /// Releases the position or the seats at `at`. Outside of a runtime it releases them at once.
    pub(crate) fn release_at(self, at: Instant) {
        if self.key.is_some()
            && let Ok(runtime) = Handle::try_current()
        {
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

impl Future for DispatchFuture<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let SeatPermit { route, key } = self.0;
        let (Some(key), level) = (*key, &route.level) else {
            return Poll::Ready(());
        };
        if level.with_lock(|level| level.poll_dispatched(key, cx.waker())) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
