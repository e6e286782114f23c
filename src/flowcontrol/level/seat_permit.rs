//! What an admitted request holds, and how it comes to have it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Instant;

use http::HeaderValue;
use tokio::runtime::Handle;

use super::ArrivalError;
use super::ArrivingRequest;
use super::PriorityLevel;
use crate::clock::Clock;
use crate::flowcontrol::fairqueuing::queue_set::RequestKey;
use crate::flowcontrol::matching::FlowDistinguisherMethod;

/// An object, as clients and logs are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: HeaderValue,
}

/// Where the requests of a flow schema go: everything that is known of it beforehand.
#[derive(Debug)]
pub struct SchemaRoute {
    /// The schema.
    pub flow_schema: ObjectId,
    /// What tells its flows apart.
    pub distinguisher_method: FlowDistinguisherMethod,
    /// The level it leads to.
    pub priority_level: ObjectId,
    /// The same, at work.
    pub level: Arc<PriorityLevel>,
    /// Where the level counts its requests: [`PriorityLevel::row_of`].
    pub counters_index: usize,
}

/// A request that has a place.
#[derive(Debug)]
pub enum ArrivalOutcome {
    /// It waits until [its turn](Place::turn) comes.
    Queued(SeatPermit),
    /// It may run.
    Executing(SeatPermit),
}

/// Holds a place in the queue, then a seat. Dropping it, at any time, gives back whichever it
/// holds; if the seats are to linger, a timer takes the place over and drops it in the end.
#[derive(Debug)]
pub struct SeatPermit {
    route: Arc<SchemaRoute>,
    key: Option<RequestKey>,
}

/// Comes when the turn does.
#[derive(Debug)]
pub struct DispatchFuture<'p>(&'p SeatPermit);

impl SchemaRoute {
    /// A request arrives at the level.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn arrive(
        self: &Arc<Self>,
        now: Instant,
        arriving: &ArrivingRequest<'_>,
    ) -> Result<ArrivalOutcome, ArrivalError> {
        let (ticket, waits) = self.level.arrive(now, self.counters_index, arriving)?;
        let place = SeatPermit {
            route: Arc::clone(self),
            key: Some(ticket),
        };
        Ok(if waits {
            ArrivalOutcome::Queued(place)
        } else {
            ArrivalOutcome::Executing(place)
        })
    }
}

impl SeatPermit {
    /// No place at all, of a request that took this way.
    #[must_use]
    pub const fn empty(route: Arc<SchemaRoute>) -> Self {
        Self { route, key: None }
    }

    /// The way that the request took.
    #[must_use]
    pub const fn route(&self) -> &Arc<SchemaRoute> {
        &self.route
    }

    /// Waits for the turn.
    ///
    /// # Cancel safety
    /// The place stays where it is.
    pub const fn wait_for_dispatch(&self) -> DispatchFuture<'_> {
        DispatchFuture(self)
    }

    /// Leaves the queue, if the turn has not come meanwhile, and returns the `Retry-After` of the
    /// refusal in seconds. A place that has become a seat stays one.
    pub fn cancel(&mut self, now: Instant) -> Option<u32> {
        let retry_after = self.route.level.cancel(now, self.key?)?;
        self.key = None;
        Some(retry_after)
    }

    /// Gives back what is held, now.
    pub fn release(&mut self) {
        let Some(ticket) = self.key.take() else {
            return;
        };
        let now = Clock.now();
        if let Some(linger) = self.route.level.leave(now, ticket) {
            let lingering = Self {
                route: Arc::clone(&self.route),
                key: Some(ticket),
            };
            lingering.release_at(now + linger);
        }
    }

    /// Gives back what is held, then. Outside of a runtime there is no later.
    pub fn release_at(self, at: Instant) {
        if self.key.is_some()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                drop(self); // and dropped as well if the runtime ends before
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
        let SeatPermit { route, key: ticket } = self.0;
        match ticket {
            Some(ticket) if !route.level.poll_dispatched(*ticket, cx.waker()) => Poll::Pending,
            Some(_) | None => Poll::Ready(()),
        }
    }
}
