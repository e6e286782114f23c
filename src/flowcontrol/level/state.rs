//! What the lock of a level guards: its queue set, and all that follows from a step of it.
//!
//! Whoever holds the lock calls one method and then takes [`After`], to be acted on when the lock
//! is gone.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::time::Instant;

use super::Arriving;
use super::Refused;
use super::details::Details;
use super::tally::Tally;
use crate::clock::Clock;
use crate::flowcontrol::concurrency::Level as Seats;
use crate::flowcontrol::demand::Period;
use crate::flowcontrol::demand::SeatDemand;
use crate::flowcontrol::in_flight::InFlight;
use crate::flowcontrol::queue_set::Arrival;
use crate::flowcontrol::queue_set::Departure;
use crate::flowcontrol::queue_set::Effects;
use crate::flowcontrol::queue_set::Load;
use crate::flowcontrol::queue_set::Phase;
use crate::flowcontrol::queue_set::QueueSet;
use crate::flowcontrol::queue_set::Queuing;
use crate::flowcontrol::queue_set::Reason;
use crate::flowcontrol::queue_set::Ticket;
use crate::flowcontrol::retry_after::DroppedRequests;
use crate::request_info::RequestKind;
use crate::request_info::Verb;

/// Buffers kept for requests to come; as many as the queue set keeps slots.
const KEPT_BUFFERS: usize = 128;

/// Whether requests still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is gone; whoever comes still must be classified anew.
    Closed,
    /// The configuration has it.
    Open,
    /// The configuration has it no longer, but it has requests.
    Quiescing,
}

/// A request, as far as the shell is concerned.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: usize,
    kind: RequestKind,
    is_watch: bool,
    /// It has been in the queue for more than a moment.
    waits: bool,
    /// What it has or will have.
    seats: u64,
    arrived: Instant,
    waker: Option<Waker>,
    pub(super) details: Details,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) queues: QueueSet<Entry>,
    pub(super) standing: Standing,
    pub(super) tally: Tally,
    demand: SeatDemand,
    dropped: DroppedRequests,
    effects: Effects,
    /// What demand and tally were last told: they integrate, and need to hear of changes only.
    settled: Load,
    spare: Vec<Details>,
    after: After,
    in_flight: Arc<InFlight>,
    /// A level stays what it is in this.
    is_exempt: bool,
}

/// What is left to do once the lock is gone.
#[derive(Debug, Default)]
pub(super) struct After {
    /// Those whose turn has come.
    wake: Vec<Waker>,
    /// Dropping one may run anything.
    discard: Option<Waker>,
    /// A level that was to go has become idle.
    pub(super) drained: bool,
}

impl After {
    pub(super) fn wake(self) {
        let Self {
            wake,
            discard,
            drained: _,
        } = self;
        drop(discard);
        wake.into_iter().for_each(Waker::wake);
    }
}

impl State {
    pub(super) fn new(now: Instant, queuing: Queuing, in_flight: Arc<InFlight>) -> Self {
        Self {
            queues: QueueSet::new(now, queuing, 0),
            standing: Standing::Open,
            tally: Tally::new(now),
            demand: SeatDemand::new(now),
            dropped: DroppedRequests::default(),
            effects: Effects::default(),
            settled: Load::default(),
            spare: Vec::new(),
            after: After::default(),
            in_flight,
            is_exempt: queuing == Queuing::Exempt,
        }
    }

    pub(super) fn after(&mut self) -> After {
        let drained = self.standing == Standing::Quiescing && self.queues.is_idle();
        After {
            drained,
            ..std::mem::take(&mut self.after)
        }
    }

    /// A request arrives. It has its seats, or waits (then the second value is true).
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        row: usize,
        arriving: &Arriving<'_>,
    ) -> Result<(Ticket, bool), Refused> {
        if self.standing == Standing::Closed {
            return Err(Refused::Closed);
        }
        let Arriving { info, work, .. } = *arriving;
        let entry = Entry {
            row,
            kind: RequestKind::of(info),
            is_watch: *info.verb() == Verb::Watch,
            waits: false,
            seats: u64::from(work.max_seats()),
            arrived: now,
            waker: None,
            details: Details::default(),
        };
        let tally = self.tally.row(row);
        tally.estimated_seats.observe(f64::from(work.max_seats()));
        if let Some(watches) = arriving.interested_watches {
            tally.watch_counts.observe(f64::from(watches));
        }
        let hash = arriving.flow_hash;
        let arrival = self
            .queues
            .arrive(now, hash, work, entry, &mut self.effects);
        if let Some(joined) = self.effects.enqueued {
            let length = u32::try_from(joined.length).unwrap_or(u32::MAX);
            self.tally.row(row).queue_lengths.observe(f64::from(length));
        }
        self.settle(now);
        match arrival {
            Arrival::Execute(ticket) => {
                self.note(ticket, arriving);
                Ok((ticket, false))
            }
            Arrival::Queued(ticket) => {
                self.note(ticket, arriving);
                self.await_turn(now, ticket);
                Ok((ticket, true))
            }
            Arrival::Reject(reason) => {
                let tally = self.tally.row(row);
                tally.reject(reason);
                tally.waits_of_rejected.observe(0.0);
                Err(Refused::Rejected {
                    reason,
                    retry_after: self.drop_one(),
                })
            }
        }
    }

    /// Gives back what a ticket holds. Some: its seats linger for so long, and then it is to be
    /// given back once more.
    pub(super) fn leave(&mut self, now: Instant, ticket: Ticket) -> Option<Duration> {
        let phase = self.queues.phase(ticket)?;
        let entry = self.queues.request(ticket)?;
        let (row, kind, is_watch) = (entry.row, entry.kind, entry.is_watch);
        let departure = self.queues.leave(now, ticket, &mut self.effects)?;
        if let Phase::Executing { since } = phase {
            let time = now.saturating_duration_since(since);
            self.tally.row(row).executed(is_watch, time);
            self.in_flight.end(kind, now);
        }
        let lingers = match departure {
            Departure::Ejected(entry) => {
                self.ejected(now, entry);
                None
            }
            Departure::Lingers(time) => Some(time),
            Departure::Released(entry) => {
                self.tally.row(row).executing_seats -= entry.seats;
                self.keep(entry.details);
                None
            }
        };
        self.settle(now);
        lingers
    }

    /// Takes a request out of the queue if it still waits, and returns its `Retry-After`.
    pub(super) fn cancel(&mut self, now: Instant, ticket: Ticket) -> Option<u32> {
        let entry = self.queues.cancel(now, ticket, &mut self.effects)?;
        let retry_after = self.ejected(now, entry);
        self.settle(now);
        Some(retry_after)
    }

    /// Whether the turn has come (or gone); if not, `waker` is called when it does.
    pub(super) fn has_turn(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        if self.queues.phase(ticket) != Some(Phase::Waiting) {
            return true;
        }
        if let Some(entry) = self.queues.request_mut(ticket)
            && !entry
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
        {
            self.after.discard = entry.waker.replace(waker.clone());
        }
        false
    }

    /// The seats have been divided anew, or the level has another shape.
    pub(super) fn install(&mut self, now: Instant, seats: &Seats, denominator: u32) {
        self.tally.divided(now, seats, denominator);
        let (queuing, limit) = (seats.spec.queuing, seats.current_limit);
        self.queues
            .reconfigure(now, queuing, limit, &mut self.effects);
        self.settle(now);
    }

    /// The level is in the configuration. One that had gone begins anew.
    pub(super) fn open(&mut self, now: Instant, queuing: Queuing) {
        if self.standing == Standing::Closed {
            self.demand = SeatDemand::new(now);
            self.settled = Load::default();
            if self.queues.totals().seats_in_use == 0 {
                self.queues = QueueSet::new(now, queuing, 0);
            }
            self.settle(now);
        }
        self.standing = Standing::Open;
    }

    /// The level is not in the configuration any more. Says whether it has gone.
    pub(super) fn close(&mut self, now: Instant) -> bool {
        if !self.queues.is_idle() {
            self.standing = Standing::Quiescing;
            return false;
        }
        self.standing = Standing::Closed;
        self.spare = Vec::new();
        if self.queues.totals().seats_in_use == 0 {
            self.queues = QueueSet::new(now, Queuing::Reject, 0);
        }
        true
    }

    pub(super) fn end_period(&mut self, now: Instant) -> Period {
        self.demand.reset(now)
    }

    /// Acts on the effects of a step.
    fn settle(&mut self, now: Instant) {
        for at in 0..self.effects.started.len() {
            if let Some(&ticket) = self.effects.started.get(at) {
                self.started(now, ticket);
            }
        }
        self.effects.started.clear();
        if let Some(ticket) = self.effects.blocked.take()
            && let Some(entry) = self.queues.request(ticket)
        {
            self.tally.row(entry.row).no_accommodation += 1;
        }
        if let Some(epoch) = self.effects.epoch.take() {
            self.tally.advanced(epoch);
        }
        let load = self.queues.totals().load();
        if load != self.settled {
            self.settled = load;
            self.demand.set(now, load.seat_demand);
            self.tally.loaded(now, load);
        }
    }

    fn started(&mut self, now: Instant, ticket: Ticket) {
        let work = self.queues.work(ticket).unwrap_or_default();
        let through_queue = self.effects.enqueued.is_some();
        let Some(entry) = self.queues.request_mut(ticket) else {
            return;
        };
        let row = self.tally.row(entry.row);
        if entry.waits {
            row.waiting -= 1;
            row.waiting_seats -= entry.seats;
            self.in_flight.start_from_queue(entry.kind, now);
        } else if through_queue {
            self.in_flight.start_through_queue(entry.kind, now);
        } else {
            self.in_flight.start(entry.kind, now);
        }
        entry.waits = false;
        entry.seats = u64::from(work.max_seats()); // may have been narrowed
        row.dispatched += 1;
        row.executing += 1;
        row.executing_seats += entry.seats;
        if !self.is_exempt {
            row.waits.observe(seconds(entry.arrived, now));
        }
        self.after.wake.extend(entry.waker.take());
    }

    /// Notes what a dump shows, in a buffer that has been used before.
    fn note(&mut self, ticket: Ticket, arriving: &Arriving<'_>) {
        let Some(entry) = self.queues.request_mut(ticket) else {
            return;
        };
        if let Some(spare) = self.spare.pop() {
            entry.details = spare;
        }
        let Arriving { info, user, .. } = *arriving;
        entry.details.write(arriving.flow_distinguisher, info, user);
    }

    fn await_turn(&mut self, now: Instant, ticket: Ticket) {
        let Some(entry) = self.queues.request_mut(ticket) else {
            return;
        };
        entry.waits = true;
        let row = self.tally.row(entry.row);
        row.waiting += 1;
        row.waiting_seats += entry.seats;
        self.in_flight.enqueue(entry.kind, now);
    }

    /// A request has left the queue without having run.
    fn ejected(&mut self, now: Instant, entry: Entry) -> u32 {
        let row = self.tally.row(entry.row);
        row.waiting -= 1;
        row.waiting_seats -= entry.seats;
        row.reject(Reason::TimeOut);
        row.waits.observe(seconds(entry.arrived, now));
        self.in_flight.leave_queue(entry.kind, now);
        self.after.discard = entry.waker;
        self.keep(entry.details);
        self.drop_one()
    }

    /// Counts a refusal, and returns its `Retry-After` in seconds.
    fn drop_one(&mut self) -> u32 {
        let second = Clock.unix_second();
        u32::try_from(self.dropped.record(second)).unwrap_or(1)
    }

    fn keep(&mut self, details: Details) {
        if details.worth_keeping() && self.spare.len() < KEPT_BUFFERS {
            self.spare.push(details);
        }
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
