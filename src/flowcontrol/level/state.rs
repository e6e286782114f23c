//! The state that the lock of a level guards: its queue set, its counters, and the effects of a
//! step. And what arrives at it.
//!
//! The holder of the lock calls one method, and then takes [`DeferredActions`] to run them after
//! releasing the lock.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::counters::{LevelCounters, SchemaSlot};
use super::request_details::RequestDetails;
use weir_base::clock::Clock;
use weir_flowcontrol::concurrency::LevelSeats;
use weir_flowcontrol::concurrency::demand::{DemandPeriod, SeatDemand};
use weir_flowcontrol::fairqueuing::queue_set::{
    Arrival, Departure, DispatchPhase, Effects, Load, QueueSet, Queuing, RejectReason, RequestKey,
};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::retry_after::DroppedRequestsTracker;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::numeric::saturating_u32;
use weir_kubernetes::request_info::{RequestInfo, RequestKind, Verb};
use weir_limits::in_flight::InFlightMetrics;

/// The number of buffers kept for later requests: as many as the queue set keeps slots.
const MAX_SPARE_BUFFERS: usize = 128;

/// Whether the level accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LevelState {
    /// The level is closed. An arriving request must be classified again.
    Closed,
    /// The configuration contains the level.
    Open,
    /// The configuration no longer contains the level, but it has requests.
    Quiescing,
}

/// A request that has been classified and estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivingRequest<'a> {
    /// The request.
    pub(crate) info: &'a RequestInfo<'a>,
    /// The user of the request.
    pub(crate) user: &'a UserInfo,
    /// The flow distinguisher, which identifies the flow within its schema.
    pub(crate) flow_distinguisher: &'a [u8],
    /// The hash by which the flow is dealt its queues.
    pub(crate) flow_hash: u64,
    /// The expected cost.
    pub(crate) work: WorkEstimate,
    /// For a write whose estimate depends on watches: the number of interested watches.
    pub(crate) interested_watches: Option<u32>,
}

/// The errors of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalError {
    /// The level was closed, or the schema removed, after the request was classified.
    Closed,
    /// The level rejects the request.
    Rejected {
        /// The reason of the rejection.
        reason: RejectReason,
        /// The `Retry-After` in seconds.
        retry_after: u32,
    },
}

/// The level's payload of a request in the queue set.
#[derive(Debug)]
pub(super) struct RequestEntry {
    pub(super) counters_index: usize,
    kind: RequestKind,
    is_watch: bool,
    /// Whether the request is counted as waiting.
    is_queued: bool,
    /// The seats that it occupies or will occupy.
    seats: u64,
    arrived: Instant,
    waker: Option<Waker>,
    pub(super) details: RequestDetails,
}

#[derive(Debug)]
pub(super) struct LevelInner {
    pub(super) queue_set: QueueSet<RequestEntry>,
    pub(super) state: LevelState,
    pub(super) counters: LevelCounters,
    demand: SeatDemand,
    dropped_requests: DroppedRequestsTracker,
    effects: Effects,
    /// The load that demand and counters were last set to. They integrate over time and need only
    /// changes.
    last_load: Load,
    spare_details: Vec<RequestDetails>,
    deferred: DeferredActions,
    in_flight: Arc<InFlightMetrics>,
    /// Constant for the lifetime of a level.
    is_exempt: bool,
    /// The current limit of the level, which `reserved` lowers for the queue set.
    limit: u32,
    /// Seats that requests of another process hold.
    reserved: u32,
}

/// The actions to run after the lock is released.
#[derive(Debug, Default)]
pub(super) struct DeferredActions {
    /// The wakers of dispatched requests.
    wakers: Vec<Waker>,
    /// Dropping a waker may run arbitrary code.
    discarded_waker: Option<Waker>,
    /// A quiescing level has become idle.
    pub(super) drained: bool,
}

impl DeferredActions {
    pub(super) fn run(self) {
        let Self {
            wakers: wake,
            discarded_waker: discard,
            drained: _,
        } = self;
        drop(discard);
        wake.into_iter().for_each(Waker::wake);
    }
}

impl LevelInner {
    pub(super) fn new(now: Instant, queuing: Queuing, in_flight: Arc<InFlightMetrics>) -> Self {
        Self {
            queue_set: QueueSet::new(now, queuing, 0),
            state: LevelState::Open,
            counters: LevelCounters::new(now),
            demand: SeatDemand::new(now),
            dropped_requests: DroppedRequestsTracker::default(),
            effects: Effects::default(),
            last_load: Load::default(),
            spare_details: Vec::new(),
            deferred: DeferredActions::default(),
            in_flight,
            is_exempt: queuing == Queuing::Exempt,
            limit: 0,
            reserved: 0,
        }
    }

    pub(super) fn take_deferred(&mut self) -> DeferredActions {
        let drained = self.state == LevelState::Quiescing && self.queue_set.is_idle();
        DeferredActions {
            drained,
            ..std::mem::take(&mut self.deferred)
        }
    }

    /// Lets a request arrive. Returns its key, and whether it waits.
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        slot: SchemaSlot,
        arriving: &ArrivingRequest<'_>,
    ) -> Result<(RequestKey, bool), ArrivalError> {
        if self.state == LevelState::Closed || !self.counters.is_current(slot) {
            return Err(ArrivalError::Closed);
        }
        let counters_index = slot.index;
        let ArrivingRequest { info, work, .. } = *arriving;
        let entry = RequestEntry {
            counters_index,
            kind: RequestKind::from_request_info(info),
            is_watch: *info.verb() == Verb::Watch,
            is_queued: false,
            seats: u64::from(work.max_seats()),
            arrived: now,
            waker: None,
            details: RequestDetails::default(),
        };
        let schema = self.counters.schema_mut(counters_index);
        schema.estimated_seats.observe(f64::from(work.max_seats()));
        if let Some(watches) = arriving.interested_watches {
            schema.watch_counts.observe(f64::from(watches));
        }
        let hash = arriving.flow_hash;
        let arrival = self
            .queue_set
            .arrive(now, hash, work, entry, &mut self.effects);
        if let Some(position) = self.effects.enqueued {
            let length = saturating_u32(position.length);
            self.counters
                .schema_mut(counters_index)
                .queue_lengths
                .observe(f64::from(length));
        }
        self.apply_effects(now);
        match arrival {
            Arrival::Execute(key) => {
                self.record_details(key, arriving);
                Ok((key, false))
            }
            Arrival::Queued(key) => {
                self.record_details(key, arriving);
                self.record_enqueued(now, key);
                Ok((key, true))
            }
            Arrival::Reject(reason) => {
                let schema = self.counters.schema_mut(counters_index);
                schema.record_rejection(reason);
                schema.rejected_waits.observe(0.0);
                Err(ArrivalError::Rejected {
                    reason,
                    retry_after: self.record_drop(),
                })
            }
        }
    }

    /// Gives back a key. Returns the time for which its seats linger, if they do. The key must then
    /// be given back again.
    pub(super) fn leave(&mut self, now: Instant, key: RequestKey) -> Option<Duration> {
        let phase = self.queue_set.phase(key)?;
        let entry = self.queue_set.payload(key)?;
        let (counters_index, kind, is_watch) = (entry.counters_index, entry.kind, entry.is_watch);
        let departure = self.queue_set.leave(now, key, &mut self.effects)?;
        if let DispatchPhase::Executing { since } = phase {
            let time = now.saturating_duration_since(since);
            self.counters
                .schema_mut(counters_index)
                .record_execution(is_watch, time);
            self.in_flight.end(kind, now);
        }
        let lingers = match departure {
            Departure::Ejected(entry) => {
                self.record_ejection(now, entry);
                None
            }
            Departure::Lingers(time) => Some(time),
            Departure::Released(entry) => {
                self.counters.schema_mut(counters_index).executing_seats -= entry.seats;
                self.recycle_details(entry.details);
                None
            }
        };
        self.apply_effects(now);
        lingers
    }

    /// Removes a request from the queue if it still waits, and returns the `Retry-After` in
    /// seconds.
    pub(super) fn cancel(&mut self, now: Instant, key: RequestKey) -> Option<u32> {
        let entry = self.queue_set.cancel(now, key, &mut self.effects)?;
        let retry_after = self.record_ejection(now, entry);
        self.apply_effects(now);
        Some(retry_after)
    }

    /// Whether the request is dispatched or removed. If not, `waker` is called when it is.
    pub(super) fn poll_dispatched(&mut self, key: RequestKey, waker: &Waker) -> bool {
        if self.queue_set.phase(key) != Some(DispatchPhase::Waiting) {
            return true;
        }
        if let Some(entry) = self.queue_set.payload_mut(key)
            && !entry
                .waker
                .as_ref()
                .is_some_and(|registered| registered.will_wake(waker))
        {
            self.deferred.discarded_waker = entry.waker.replace(waker.clone());
        }
        false
    }

    /// Applies a new allocation of seats, or a new queuing configuration.
    pub(super) fn apply_limits(&mut self, now: Instant, seats: &LevelSeats, denominator: u32) {
        self.counters.set_seats(now, seats, denominator);
        self.limit = seats.current_limit;
        let (queuing, limit) = (seats.spec.queuing, self.unreserved_limit());
        self.queue_set
            .reconfigure(now, queuing, limit, &mut self.effects);
        self.apply_effects(now);
    }

    /// Reserves seats instead of those of the last call.
    pub(super) fn reserve_seats(&mut self, now: Instant, seats: u32) {
        if self.reserved != seats {
            self.reserved = seats;
            let (queuing, limit) = (self.queue_set.queuing(), self.unreserved_limit());
            self.queue_set
                .reconfigure(now, queuing, limit, &mut self.effects);
            self.apply_effects(now);
        }
    }

    pub(super) fn held_seats(&self) -> u32 {
        let in_use = self.queue_set.totals().seats_in_use;
        u32::try_from(in_use)
            .unwrap_or(u32::MAX)
            .saturating_add(self.reserved)
    }

    /// The limit for the requests of this process: at least one seat, if the level has any.
    fn unreserved_limit(&self) -> u32 {
        self.limit
            .saturating_sub(self.reserved)
            .max(self.limit.min(1))
    }

    /// Opens the level. A closed level starts empty.
    pub(super) fn open(&mut self, now: Instant, queuing: Queuing) {
        if self.state == LevelState::Closed {
            self.demand = SeatDemand::new(now);
            self.last_load = Load::default();
            if self.queue_set.totals().seats_in_use == 0 {
                self.queue_set = QueueSet::new(now, queuing, 0);
            }
            self.apply_effects(now);
        }
        self.state = LevelState::Open;
    }

    /// Closes the level, or marks it as quiescing. Returns whether it is closed.
    pub(super) fn close(&mut self, now: Instant) -> bool {
        if !self.queue_set.is_idle() {
            self.state = LevelState::Quiescing;
            return false;
        }
        self.state = LevelState::Closed;
        self.spare_details = Vec::new();
        if self.queue_set.totals().seats_in_use == 0 {
            self.queue_set = QueueSet::new(now, Queuing::Reject, 0);
        }
        true
    }

    pub(super) fn end_demand_period(&mut self, now: Instant) -> DemandPeriod {
        self.demand.reset(now)
    }

    /// Acts on the effects of a step.
    fn apply_effects(&mut self, now: Instant) {
        for index in 0..self.effects.started.len() {
            if let Some(&key) = self.effects.started.get(index) {
                self.record_start(now, key);
            }
        }
        self.effects.started.clear();
        if let Some(key) = self.effects.blocked.take()
            && let Some(entry) = self.queue_set.payload(key)
        {
            self.counters
                .schema_mut(entry.counters_index)
                .no_accommodation += 1;
        }
        if let Some(epoch) = self.effects.epoch_advance.take() {
            self.counters.record_epoch_advance(epoch);
        }
        let load = self.queue_set.totals().load();
        if load != self.last_load {
            self.last_load = load;
            self.demand.set(now, load.seat_demand);
            self.counters.set_load(now, load);
        }
    }

    fn record_start(&mut self, now: Instant, key: RequestKey) {
        let work = self.queue_set.work(key).unwrap_or_default();
        let through_queue = self.effects.enqueued.is_some();
        let Some(entry) = self.queue_set.payload_mut(key) else {
            return;
        };
        let schema = self.counters.schema_mut(entry.counters_index);
        if entry.is_queued {
            schema.waiting -= 1;
            schema.waiting_seats -= entry.seats;
            self.in_flight.start_from_queue(entry.kind, now);
        } else if through_queue {
            self.in_flight.start_through_queue(entry.kind, now);
        } else {
            self.in_flight.start(entry.kind, now);
        }
        entry.is_queued = false;
        entry.seats = u64::from(work.max_seats()); // the dispatch may have narrowed it
        schema.dispatched += 1;
        schema.executing += 1;
        schema.executing_seats += entry.seats;
        if !self.is_exempt {
            schema.waits.observe(seconds_between(entry.arrived, now));
        }
        self.deferred.wakers.extend(entry.waker.take());
    }

    /// Stores the details for dumps, in a reused buffer if there is one.
    fn record_details(&mut self, key: RequestKey, arriving: &ArrivingRequest<'_>) {
        let Some(entry) = self.queue_set.payload_mut(key) else {
            return;
        };
        if let Some(spare) = self.spare_details.pop() {
            entry.details = spare;
        }
        let ArrivingRequest { info, user, .. } = *arriving;
        entry.details.write(arriving.flow_distinguisher, info, user);
    }

    fn record_enqueued(&mut self, now: Instant, key: RequestKey) {
        let Some(entry) = self.queue_set.payload_mut(key) else {
            return;
        };
        entry.is_queued = true;
        let schema = self.counters.schema_mut(entry.counters_index);
        schema.waiting += 1;
        schema.waiting_seats += entry.seats;
        self.in_flight.enqueue(entry.kind, now);
    }

    /// Records that a request left the queue without having executed. Returns the `Retry-After` in
    /// seconds.
    fn record_ejection(&mut self, now: Instant, entry: RequestEntry) -> u32 {
        let schema = self.counters.schema_mut(entry.counters_index);
        schema.waiting -= 1;
        schema.waiting_seats -= entry.seats;
        schema.record_rejection(RejectReason::TimeOut);
        schema.waits.observe(seconds_between(entry.arrived, now));
        self.in_flight.leave_queue(entry.kind, now);
        self.deferred.discarded_waker = entry.waker;
        self.recycle_details(entry.details);
        self.record_drop()
    }

    /// Counts a rejection, and returns its `Retry-After` in seconds.
    fn record_drop(&mut self) -> u32 {
        let second = Clock.unix_second();
        u32::try_from(self.dropped_requests.record(second)).unwrap_or(1)
    }

    fn recycle_details(&mut self, details: RequestDetails) {
        if details.is_reusable() && self.spare_details.len() < MAX_SPARE_BUFFERS {
            self.spare_details.push(details);
        }
    }
}

fn seconds_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
