//! The two outcomes of admission.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use super::dry_run::Played;
use crate::flowcontrol::level::Named;
use crate::flowcontrol::level::Place;
use crate::flowcontrol::level::Route;
use crate::flowcontrol::matching::FlowsBy;
use crate::flowcontrol::queue_set::Reason;
use crate::flowcontrol::seats::WorkEstimate;
use crate::flowcontrol::watch_tracker::Registration;
use crate::flowcontrol::watch_tracker::WatchTracker;

/// A request that may run. Dropping it gives back what it holds; its seats may linger after that.
#[derive(Debug)]
pub struct Admitted {
    pub(super) place: Place,
    pub(super) on_paper: OnPaper,
    pub(super) _watching: Option<Watching>,
    pub(super) work: WorkEstimate,
    pub(super) queue_wait: Duration,
}

/// A request that may not run.
#[derive(Clone, Debug)]
pub struct Rejected {
    pub(super) route: Arc<Route>,
    /// Why.
    pub reason: Reason,
    /// The seconds of `Retry-After`.
    pub retry_after: u32,
    /// What it was estimated to cost.
    pub work: WorkEstimate,
    /// How long it was in the queue.
    pub queue_wait: Duration,
}

/// What was decided about a request, for those who are told of it afterwards.
#[derive(Clone, Debug)]
pub struct Decision {
    route: Arc<Route>,
    /// The most seats that it was estimated to take at a time.
    pub seats: u32,
    /// How long it was in the queue.
    pub queue_wait: Duration,
}

impl Decision {
    fn new(route: &Arc<Route>, work: WorkEstimate, queue_wait: Duration) -> Self {
        Self {
            route: Arc::clone(route),
            seats: work.initial_seats.max(work.final_seats),
            queue_wait,
        }
    }

    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &Named {
        &self.route.flow_schema
    }

    /// What tells the flows of that schema apart.
    #[must_use]
    pub fn flows_by(&self) -> FlowsBy {
        self.route.flows_by
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &Named {
        &self.route.priority_level
    }
}

/// How a request fares that runs all the same.
#[derive(Debug)]
pub(super) enum OnPaper {
    /// As in truth.
    Same,
    /// It had to queue.
    Played(Played),
    /// It is refused.
    Refused(Reason),
}

/// A watch that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Watching {
    pub(super) tracker: Arc<Mutex<WatchTracker>>,
    pub(super) registration: Option<Registration>,
}

impl Admitted {
    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &Named {
        &self.place.route().flow_schema
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &Named {
        &self.place.route().priority_level
    }

    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> Decision {
        Decision::new(self.place.route(), self.work, self.queue_wait)
    }

    /// What the request was estimated to cost.
    #[must_use]
    pub const fn work(&self) -> WorkEstimate {
        self.work
    }

    /// How long it was in the queue.
    #[must_use]
    pub const fn queue_wait(&self) -> Duration {
        self.queue_wait
    }

    /// Why it would have been refused by now, if nothing but the enforcement were different.
    pub(super) fn refused_on_paper(&self) -> Option<Reason> {
        match &self.on_paper {
            OnPaper::Same => None,
            OnPaper::Played(played) => played.timed_out().then_some(Reason::TimeOut),
            OnPaper::Refused(reason) => Some(*reason),
        }
    }

    /// A watch has sent what there was when it began: that was its work. It gives its seats back
    /// and is counted as a watch from here on.
    pub fn initialized(&mut self) {
        self.place.give_back();
        self.on_paper = self
            .refused_on_paper()
            .map_or(OnPaper::Same, OnPaper::Refused);
    }
}

impl Rejected {
    /// What was decided.
    #[must_use]
    pub fn decision(&self) -> Decision {
        Decision::new(&self.route, self.work, self.queue_wait)
    }

    /// The schema that matched.
    #[must_use]
    pub fn flow_schema(&self) -> &Named {
        &self.route.flow_schema
    }

    /// The level that it leads to.
    #[must_use]
    pub fn priority_level(&self) -> &Named {
        &self.route.priority_level
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
            tracker.forget(registration);
        }
    }
}
