//! A priority level in virtual time: the queue set of the proxy's level, its seat demand and its
//! `Retry-After`. Pure.
//!
//! What the proxy's level does under its lock is done here without
//! one: a request is a number instead of a task.

use std::time::{Duration, Instant};

use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::concurrency::demand::{DemandPeriod, SeatDemand};
use weir_flowcontrol::fairqueuing::queue_set::{
    Arrival, Departure, Effects, Load, QueueSet, Queuing, RejectReason, RequestKey,
};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::retry_after::DroppedRequestsTracker;
use weir_kubernetes::numeric::saturating_u32;

/// A level without requests.
#[derive(Debug)]
pub(crate) struct SimLevel {
    queue_set: QueueSet<usize>,
    demand: SeatDemand,
    demanded: u64,
    dropped_requests: DroppedRequestsTracker,
    effects: Effects,
    /// The greatest estimate of a request, in seats. `None` if unbounded.
    max_seats: Option<u32>,
    limit: u32,
}

/// A request that has its seats from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    /// The number of the request.
    pub request: usize,
    /// The seats that it occupies.
    pub seats: u32,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LevelArrival {
    /// It is in the level: its key. It may have [started](SimLevel::take_started).
    Admitted(RequestKey),
    /// It was rejected.
    Rejected {
        reason: RejectReason,
        /// In seconds.
        retry_after: u32,
    },
}

impl SimLevel {
    pub(crate) fn new(now: Instant, queuing: Queuing) -> Self {
        Self {
            queue_set: QueueSet::new(now, queuing, 0),
            demand: SeatDemand::new(now),
            demanded: 0,
            dropped_requests: DroppedRequestsTracker::default(),
            effects: Effects::default(),
            max_seats: None,
            limit: 0,
        }
    }

    pub(crate) const fn max_seats(&self) -> Option<u32> {
        self.max_seats
    }

    /// The requests and seats now.
    pub(crate) const fn load(&self) -> Load {
        self.queue_set.totals().load()
    }

    /// The seats that it may use now.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn apply_limits(&mut self, now: Instant, seats: &LevelSeats) {
        self.max_seats = seats.max_seats;
        self.limit = seats.current_limit;
        let (queuing, limit) = (seats.spec.queuing, seats.current_limit);
        self.queue_set
            .reconfigure(now, queuing, limit, &mut self.effects);
        self.update_demand(now);
    }

    pub(crate) fn end_demand_period(&mut self, now: Instant) -> DemandPeriod {
        self.demand.reset(now)
    }

    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        unix_second: i64,
        flow_hash: u64,
        work: WorkEstimate,
        request: usize,
    ) -> LevelArrival {
        let arrival = self
            .queue_set
            .arrive(now, flow_hash, work, request, &mut self.effects);
        self.update_demand(now);
        match arrival {
            Arrival::Execute(key) | Arrival::Queued(key) => LevelArrival::Admitted(key),
            Arrival::Reject(reason) => LevelArrival::Rejected {
                reason,
                retry_after: self.record_drop(unix_second),
            },
        }
    }

    /// Ends a request, or the time for which its seats linger. Returns for how long they linger:
    /// then the same call follows at that time.
    pub(crate) fn leave(&mut self, now: Instant, key: RequestKey) -> Option<Duration> {
        let departure = self.queue_set.leave(now, key, &mut self.effects);
        self.update_demand(now);
        match departure {
            Some(Departure::Lingers(time)) => Some(time),
            Some(Departure::Ejected(_) | Departure::Released(_)) | None => None,
        }
    }

    /// Removes a request that still waits, and returns its `Retry-After` in seconds.
    pub(crate) fn cancel(
        &mut self,
        now: Instant,
        unix_second: i64,
        key: RequestKey,
    ) -> Option<u32> {
        self.queue_set.cancel(now, key, &mut self.effects)?;
        self.update_demand(now);
        Some(self.record_drop(unix_second))
    }

    /// Appends the requests that the last step has started.
    pub(crate) fn take_started(&mut self, started: &mut Vec<Started>) {
        for key in self.effects.started.drain(..) {
            let work = self.queue_set.work(key).unwrap_or_default();
            started.extend(self.queue_set.payload(key).map(|request| Started {
                request: *request,
                seats: work.max_seats(),
            }));
        }
    }

    fn update_demand(&mut self, now: Instant) {
        let demanded = self.load().seat_demand;
        if demanded != self.demanded {
            self.demanded = demanded;
            self.demand.set(now, demanded);
        }
    }

    fn record_drop(&mut self, unix_second: i64) -> u32 {
        saturating_u32(self.dropped_requests.record(unix_second))
    }
}
