//! What the lock of a level guards: its queue set, and all that follows from a step of it.
//!
//! Whoever holds the lock calls one method and then takes [`After`], to be acted on when the lock
//! is gone.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::time::Instant;

use super::ArrivalError;
use super::ArrivingRequest;
use super::counters::LevelCounters;
use super::request_details::RequestDetails;
use crate::clock::Clock;
use crate::flowcontrol::concurrency::LevelSeats as Seats;
use crate::flowcontrol::concurrency::demand::DemandPeriod;
use crate::flowcontrol::concurrency::demand::SeatDemand;
use crate::flowcontrol::fairqueuing::queue_set::Arrival;
use crate::flowcontrol::fairqueuing::queue_set::Departure;
use crate::flowcontrol::fairqueuing::queue_set::DispatchPhase;
use crate::flowcontrol::fairqueuing::queue_set::Effects;
use crate::flowcontrol::fairqueuing::queue_set::Load;
use crate::flowcontrol::fairqueuing::queue_set::QueueSet;
use crate::flowcontrol::fairqueuing::queue_set::Queuing;
use crate::flowcontrol::fairqueuing::queue_set::RejectReason;
use crate::flowcontrol::fairqueuing::queue_set::RequestKey;
use crate::flowcontrol::metrics::in_flight::InFlightMetrics;
use crate::flowcontrol::retry_after::DroppedRequestsTracker;
use crate::request_info::RequestKind;
use crate::request_info::Verb;

/// Buffers kept for requests to come; as many as the queue set keeps slots.
const MAX_SPARE_BUFFERS: usize = 128;

/// Whether requests still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LevelState {
    /// It is gone; whoever comes still must be classified anew.
    Closed,
    /// The configuration has it.
    Open,
    /// The configuration has it no longer, but it has requests.
    Quiescing,
}

/// A request, as far as the shell is concerned.
#[derive(Debug)]
pub(super) struct RequestEntry {
    pub(super) counters_index: usize,
    kind: RequestKind,
    is_watch: bool,
    /// It has been in the queue for more than a moment.
    is_queued: bool,
    /// What it has or will have.
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
    /// What demand and tally were last told: they integrate, and need to hear of changes only.
    last_load: Load,
    spare_details: Vec<RequestDetails>,
    deferred: DeferredActions,
    in_flight: Arc<InFlightMetrics>,
    /// A level stays what it is in this.
    is_exempt: bool,
}

/// What is left to do once the lock is gone.
#[derive(Debug, Default)]
pub(super) struct DeferredActions {
    /// Those whose turn has come.
    wakers: Vec<Waker>,
    /// Dropping one may run anything.
    discarded_waker: Option<Waker>,
    /// A level that was to go has become idle.
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
        }
    }

    pub(super) fn take_deferred(&mut self) -> DeferredActions {
        let drained = self.state == LevelState::Quiescing && self.queue_set.is_idle();
        DeferredActions {
            drained,
            ..std::mem::take(&mut self.deferred)
        }
    }

    /// A request arrives. It has its seats, or waits (then the second value is true).
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        row: usize,
        arriving: &ArrivingRequest<'_>,
    ) -> Result<(RequestKey, bool), ArrivalError> {
        if self.state == LevelState::Closed {
            return Err(ArrivalError::Closed);
        }
        let ArrivingRequest { info, work, .. } = *arriving;
        let entry = RequestEntry {
            counters_index: row,
            kind: RequestKind::from_request_info(info),
            is_watch: *info.verb() == Verb::Watch,
            is_queued: false,
            seats: u64::from(work.max_seats()),
            arrived: now,
            waker: None,
            details: RequestDetails::default(),
        };
        let tally = self.counters.schema_mut(row);
        tally.estimated_seats.observe(f64::from(work.max_seats()));
        if let Some(watches) = arriving.interested_watches {
            tally.watch_counts.observe(f64::from(watches));
        }
        let hash = arriving.flow_hash;
        let arrival = self
            .queue_set
            .arrive(now, hash, work, entry, &mut self.effects);
        if let Some(joined) = self.effects.enqueued {
            let length = u32::try_from(joined.length).unwrap_or(u32::MAX);
            self.counters
                .schema_mut(row)
                .queue_lengths
                .observe(f64::from(length));
        }
        self.apply_effects(now);
        match arrival {
            Arrival::Execute(ticket) => {
                self.record_details(ticket, arriving);
                Ok((ticket, false))
            }
            Arrival::Queued(ticket) => {
                self.record_details(ticket, arriving);
                self.record_enqueued(now, ticket);
                Ok((ticket, true))
            }
            Arrival::Reject(reason) => {
                let tally = self.counters.schema_mut(row);
                tally.record_rejection(reason);
                tally.rejected_waits.observe(0.0);
                Err(ArrivalError::Rejected {
                    reason,
                    retry_after: self.record_drop(),
                })
            }
        }
    }

    /// Gives back what a ticket holds. Some: its seats linger for so long, and then it is to be
    /// given back once more.
    pub(super) fn leave(&mut self, now: Instant, ticket: RequestKey) -> Option<Duration> {
        let phase = self.queue_set.phase(ticket)?;
        let entry = self.queue_set.payload(ticket)?;
        let (row, kind, is_watch) = (entry.counters_index, entry.kind, entry.is_watch);
        let departure = self.queue_set.leave(now, ticket, &mut self.effects)?;
        if let DispatchPhase::Executing { since } = phase {
            let time = now.saturating_duration_since(since);
            self.counters
                .schema_mut(row)
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
                self.counters.schema_mut(row).executing_seats -= entry.seats;
                self.recycle_details(entry.details);
                None
            }
        };
        self.apply_effects(now);
        lingers
    }

    /// Takes a request out of the queue if it still waits, and returns its `Retry-After`.
    pub(super) fn cancel(&mut self, now: Instant, ticket: RequestKey) -> Option<u32> {
        let entry = self.queue_set.cancel(now, ticket, &mut self.effects)?;
        let retry_after = self.record_ejection(now, entry);
        self.apply_effects(now);
        Some(retry_after)
    }

    /// Whether the turn has come (or gone); if not, `waker` is called when it does.
    pub(super) fn poll_dispatched(&mut self, ticket: RequestKey, waker: &Waker) -> bool {
        if self.queue_set.phase(ticket) != Some(DispatchPhase::Waiting) {
            return true;
        }
        if let Some(entry) = self.queue_set.payload_mut(ticket)
            && !entry
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
        {
            self.deferred.discarded_waker = entry.waker.replace(waker.clone());
        }
        false
    }

    /// The seats have been divided anew, or the level has another shape.
    pub(super) fn apply_limits(&mut self, now: Instant, seats: &Seats, denominator: u32) {
        self.counters.set_seats(now, seats, denominator);
        let (queuing, limit) = (seats.spec.queuing, seats.current_limit);
        self.queue_set
            .reconfigure(now, queuing, limit, &mut self.effects);
        self.apply_effects(now);
    }

    /// The level is in the configuration. One that had gone begins anew.
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

    /// The level is not in the configuration any more. Says whether it has gone.
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
        for at in 0..self.effects.started.len() {
            if let Some(&ticket) = self.effects.started.get(at) {
                self.record_start(now, ticket);
            }
        }
        self.effects.started.clear();
        if let Some(ticket) = self.effects.blocked.take()
            && let Some(entry) = self.queue_set.payload(ticket)
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

    fn record_start(&mut self, now: Instant, ticket: RequestKey) {
        let work = self.queue_set.work(ticket).unwrap_or_default();
        let through_queue = self.effects.enqueued.is_some();
        let Some(entry) = self.queue_set.payload_mut(ticket) else {
            return;
        };
        let row = self.counters.schema_mut(entry.counters_index);
        if entry.is_queued {
            row.waiting -= 1;
            row.waiting_seats -= entry.seats;
            self.in_flight.start_from_queue(entry.kind, now);
        } else if through_queue {
            self.in_flight.start_through_queue(entry.kind, now);
        } else {
            self.in_flight.start(entry.kind, now);
        }
        entry.is_queued = false;
        entry.seats = u64::from(work.max_seats()); // may have been narrowed
        row.dispatched += 1;
        row.executing += 1;
        row.executing_seats += entry.seats;
        if !self.is_exempt {
            row.waits.observe(seconds_between(entry.arrived, now));
        }
        self.deferred.wakers.extend(entry.waker.take());
    }

    /// Notes what a dump shows, in a buffer that has been used before.
    fn record_details(&mut self, ticket: RequestKey, arriving: &ArrivingRequest<'_>) {
        let Some(entry) = self.queue_set.payload_mut(ticket) else {
            return;
        };
        if let Some(spare) = self.spare_details.pop() {
            entry.details = spare;
        }
        let ArrivingRequest { info, user, .. } = *arriving;
        entry.details.write(arriving.flow_distinguisher, info, user);
    }

    fn record_enqueued(&mut self, now: Instant, ticket: RequestKey) {
        let Some(entry) = self.queue_set.payload_mut(ticket) else {
            return;
        };
        entry.is_queued = true;
        let row = self.counters.schema_mut(entry.counters_index);
        row.waiting += 1;
        row.waiting_seats += entry.seats;
        self.in_flight.enqueue(entry.kind, now);
    }

    /// A request has left the queue without having run.
    fn record_ejection(&mut self, now: Instant, entry: RequestEntry) -> u32 {
        let row = self.counters.schema_mut(entry.counters_index);
        row.waiting -= 1;
        row.waiting_seats -= entry.seats;
        row.record_rejection(RejectReason::TimeOut);
        row.waits.observe(seconds_between(entry.arrived, now));
        self.in_flight.leave_queue(entry.kind, now);
        self.deferred.discarded_waker = entry.waker;
        self.recycle_details(entry.details);
        self.record_drop()
    }

    /// Counts a refusal, and returns its `Retry-After` in seconds.
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
