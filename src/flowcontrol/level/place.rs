//! What an admitted request holds, and how it comes to have it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Instant;

use http::HeaderValue;
use tokio::runtime::Handle;

use super::Arriving;
use super::PriorityLevel;
use super::Refused;
use crate::clock::Clock;
use crate::flowcontrol::matching::FlowsBy;
use crate::flowcontrol::queue_set::Ticket;

/// An object, as clients and logs are told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: HeaderValue,
}

/// Where the requests of a flow schema go: everything that is known of it beforehand.
#[derive(Debug)]
pub struct Route {
    /// The schema.
    pub flow_schema: Named,
    /// What tells its flows apart.
    pub flows_by: FlowsBy,
    /// The level it leads to.
    pub priority_level: Named,
    /// The same, at work.
    pub level: Arc<PriorityLevel>,
    /// Where the level counts its requests: [`PriorityLevel::row_of`].
    pub row: usize,
}

/// A request that has a place.
#[derive(Debug)]
pub enum Arrived {
    /// It waits until [its turn](Place::turn) comes.
    Queued(Place),
    /// It may run.
    Seated(Place),
}

/// Holds a place in the queue, then a seat. Dropping it, at any time, gives back whichever it
/// holds; if the seats are to linger, a timer takes the place over and drops it in the end.
#[derive(Debug)]
pub struct Place {
    route: Arc<Route>,
    ticket: Option<Ticket>,
}

/// Comes when the turn does.
#[derive(Debug)]
pub struct Turn<'p>(&'p Place);

impl Route {
    /// A request arrives at the level.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn arrive(
        self: &Arc<Self>,
        now: Instant,
        arriving: &Arriving<'_>,
    ) -> Result<Arrived, Refused> {
        let (ticket, waits) = self.level.arrive(now, self.row, arriving)?;
        let place = Place {
            route: Arc::clone(self),
            ticket: Some(ticket),
        };
        Ok(if waits {
            Arrived::Queued(place)
        } else {
            Arrived::Seated(place)
        })
    }
}

impl Place {
    /// No place at all, of a request that took this way.
    #[must_use]
    pub const fn none(route: Arc<Route>) -> Self {
        Self {
            route,
            ticket: None,
        }
    }

    /// The way that the request took.
    #[must_use]
    pub const fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// Waits for the turn.
    ///
    /// # Cancel safety
    /// The place stays where it is.
    pub const fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// Leaves the queue, if the turn has not come meanwhile, and returns the `Retry-After` of the
    /// refusal in seconds. A place that has become a seat stays one.
    pub fn cancel(&mut self, now: Instant) -> Option<u32> {
        let retry_after = self.route.level.cancel(now, self.ticket?)?;
        self.ticket = None;
        Some(retry_after)
    }

    /// Gives back what is held, now.
    pub fn give_back(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let now = Clock.now();
        if let Some(linger) = self.route.level.leave(now, ticket) {
            let lingering = Self {
                route: Arc::clone(&self.route),
                ticket: Some(ticket),
            };
            lingering.keep_until(now + linger);
        }
    }

    /// Gives back what is held, then. Outside of a runtime there is no later.
    pub fn keep_until(self, at: Instant) {
        if self.ticket.is_some()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                drop(self); // and dropped as well if the runtime ends before
            });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Place { route, ticket } = self.0;
        match ticket {
            Some(ticket) if !route.level.has_turn(*ticket, cx.waker()) => Poll::Pending,
            Some(_) | None => Poll::Ready(()),
        }
    }
}
