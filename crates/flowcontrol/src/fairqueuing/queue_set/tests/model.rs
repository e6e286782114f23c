//! A slow and simple model of the queue set: lists, from which every value is computed again on
//! each call.

use std::time::Duration;

use super::super::{QueueDump, QueueSetTotals, Queuing, RejectReason};
use crate::fairqueuing::seats::{SeatSeconds, WorkEstimate};

const ESTIMATED_SERVICE_NANOSECONDS: i64 = 3_000_000;
const HALF: u64 = u64::MAX / 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelRequestState {
    Waiting,
    Executing,
    Lingering,
    Removed,
}

pub(super) struct ModelRequest {
    pub(super) state: ModelRequestState,
    queue: Option<usize>,
    work: WorkEstimate,
    total_work: u64,
    arrival_r: u64,
    start: Duration,
}

struct ModelQueue {
    /// Never reused, so that it stays valid when another queue is removed. Ascending.
    id: usize,
    next_dispatch_r: u64,
    /// Those of its requests that are not removed, in order of arrival.
    requests: Vec<usize>,
}

pub(super) struct QueueSetModel {
    pub(super) requests: Vec<ModelRequest>,
    /// Those of the requests that are not removed.
    present: Vec<usize>,
    queues: Vec<ModelQueue>,
    next_id: usize,
    pub(super) queuing: Queuing,
    pub(super) limit: u64,
    pub(super) r: u64,
    now: Duration,
    pub(super) robin: i64,
    enqueues: usize,
    dispatched: u64,
    rejected: u64,
    cancelled: u64,
    pub(super) started: Vec<usize>,
    pub(super) blocked: Option<usize>,
}

/// Seats times nanoseconds, in units of 1e-8 seat-seconds, as two's complement.
#[expect(clippy::as_conversions, reason = "spelled as upstream spells it")]
fn seat_seconds(seats: f64, nanoseconds: i64) -> u64 {
    ((seats * nanoseconds as f64 / 10.0).round() as i64) as u64
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap()
}

fn total_work(estimate: WorkEstimate) -> u64 {
    seat_seconds(
        f64::from(estimate.initial_seats),
        ESTIMATED_SERVICE_NANOSECONDS,
    ) + seat_seconds(
        f64::from(estimate.final_seats),
        nanoseconds(estimate.additional_latency),
    )
}

impl ModelRequest {
    fn seats(&self) -> u64 {
        u64::from(self.work.initial_seats.max(self.work.final_seats))
    }
}

impl QueueSetModel {
    pub(super) fn new(queuing: Queuing, limit: u32) -> Self {
        let mut model = Self {
            requests: Vec::new(),
            present: Vec::new(),
            queues: Vec::new(),
            next_id: 0,
            queuing,
            limit: u64::from(limit),
            r: 0,
            now: Duration::ZERO,
            robin: 0,
            enqueues: 0,
            dispatched: 0,
            rejected: 0,
            cancelled: 0,
            started: Vec::new(),
            blocked: None,
        };
        model.add_queues();
        model
    }

    pub(super) fn arrive(
        &mut self,
        now: Duration,
        hash: u64,
        work: WorkEstimate,
    ) -> Result<usize, RejectReason> {
        self.sync(now);
        let mut request = ModelRequest {
            state: ModelRequestState::Waiting,
            queue: None,
            work,
            total_work: total_work(work),
            arrival_r: self.r,
            start: Duration::ZERO,
        };
        let Queuing::Queue {
            dealer,
            queue_length_limit,
        } = self.queuing
        else {
            if !self.fits(request.seats()) {
                self.rejected += 1;
                return Err(RejectReason::ConcurrencyLimit);
            }
            self.present.push(self.requests.len());
            self.requests.push(request);
            self.execute(self.requests.len() - 1);
            return Ok(self.requests.len() - 1);
        };
        let mut hand = dealer.deal(hash).cards().to_vec();
        hand.rotate_left(self.enqueues % dealer.hand_size());
        self.enqueues += 1;
        let least = hand.iter().map(|&q| self.work_waiting(q)).min().unwrap();
        let queue = *hand
            .iter()
            .find(|&&q| self.work_waiting(q) == least)
            .unwrap();
        let identity = self.queues[queue].id;
        if self.seats_in_use() >= self.limit && self.waiting(identity).count() >= queue_length_limit
        {
            self.rejected += 1;
            return Err(RejectReason::QueueFull);
        }
        if !self.is_active(identity) {
            self.queues[queue].next_dispatch_r = self.r;
        }
        request.queue = Some(identity);
        self.queues[queue].requests.push(self.requests.len());
        self.present.push(self.requests.len());
        self.requests.push(request);
        self.bound(identity);
        self.dispatch();
        Ok(self.requests.len() - 1)
    }

    pub(super) fn eject(&mut self, now: Duration, id: usize) {
        self.sync(now);
        self.remove(id);
        self.rejected += 1;
        self.cancelled += 1;
        self.bound(self.requests[id].queue.unwrap());
    }

    /// Returns the time for which the seats linger.
    pub(super) fn finish(&mut self, now: Duration, id: usize) -> Duration {
        self.sync(now);
        let request = &mut self.requests[id];
        request.state = ModelRequestState::Lingering;
        let WorkEstimate {
            initial_seats,
            additional_latency,
            ..
        } = request.work;
        let left = ESTIMATED_SERVICE_NANOSECONDS - nanoseconds(now - request.start);
        if let Some(identity) = request.queue {
            let queue = self.queues.iter_mut().find(|q| q.id == identity).unwrap();
            queue.next_dispatch_r = queue
                .next_dispatch_r
                .wrapping_sub(seat_seconds(f64::from(initial_seats), left));
            self.bound(identity);
        }
        if additional_latency.is_zero() {
            self.release_seats(id);
        }
        self.dispatch();
        additional_latency
    }

    pub(super) fn release(&mut self, now: Duration, id: usize) {
        self.sync(now);
        self.release_seats(id);
        self.dispatch();
    }

    pub(super) fn reconfigure(&mut self, now: Duration, queuing: Queuing, limit: u32) {
        self.sync(now);
        self.queuing = queuing;
        self.limit = u64::from(limit);
        self.add_queues();
        self.dispatch();
    }

    pub(super) fn totals(&self) -> QueueSetTotals {
        let present = || self.present.iter().map(|&id| &self.requests[id]);
        let count = |state| present().filter(|r| r.state == state).count();
        let seats = |state| {
            present()
                .filter(|r| r.state == state)
                .map(ModelRequest::seats)
                .sum::<u64>()
        };
        QueueSetTotals {
            requests_waiting: count(ModelRequestState::Waiting),
            seats_waiting: seats(ModelRequestState::Waiting),
            requests_executing: count(ModelRequestState::Executing),
            seats_in_use: self.seats_in_use(),
            dispatched: self.dispatched,
            rejected: self.rejected,
            cancelled: self.cancelled,
        }
    }

    pub(super) fn queues(&self) -> Vec<QueueDump> {
        let dump = |(index, queue): (usize, &ModelQueue)| {
            let waiting: Vec<usize> = self.waiting(queue.id).collect();
            let sum = |of: fn(&ModelRequest) -> u64| {
                waiting.iter().map(|&id| of(&self.requests[id])).sum()
            };
            QueueDump {
                index,
                requests_waiting: waiting.len(),
                requests_executing: self.executing(queue.id),
                seats_in_use: self.seats_in_use_of(queue.id),
                next_dispatch_r: SeatSeconds::from_units(queue.next_dispatch_r),
                initial_seats_sum: sum(|request| u64::from(request.work.initial_seats)),
                max_seats_sum: sum(ModelRequest::seats),
                total_work_sum: SeatSeconds::from_units(sum(|request| request.total_work)),
            }
        };
        self.queues.iter().enumerate().map(dump).collect()
    }

    fn sync(&mut self, now: Duration) {
        self.started.clear();
        self.blocked = None;
        let active = self.queues.iter().filter(|q| self.is_active(q.id)).count();
        let elapsed = nanoseconds(now - self.now);
        self.now = now;
        if active == 0 {
            return;
        }
        let demand: u64 = self
            .queues
            .iter()
            .map(|q| {
                let waiting = self.waiting(q.id);
                let seats: u64 = waiting.map(|id| self.requests[id].seats()).sum();
                seats + self.seats_in_use_of(q.id)
            })
            .sum();
        let seats = f64::from(u32::try_from(demand.min(self.limit)).unwrap());
        let ratio = seats / f64::from(u32::try_from(active).unwrap());
        let (r, wrapped) = self.r.overflowing_add(seat_seconds(ratio, elapsed));
        self.r = r;
        if !wrapped && r >= HALF + HALF / 2 {
            self.advance_epoch();
        }
    }

    pub(super) fn shift_times(&mut self, by: u64) {
        self.r += by;
        self.queues
            .iter_mut()
            .for_each(|queue| queue.next_dispatch_r += by);
        for request in self
            .requests
            .iter_mut()
            .filter(|r| r.state == ModelRequestState::Waiting)
        {
            request.arrival_r += by;
        }
    }

    fn advance_epoch(&mut self) {
        self.r -= HALF;
        for index in 0..self.queues.len() {
            let active = self.is_active(self.queues[index].id);
            let time = &mut self.queues[index].next_dispatch_r;
            *time = if active { time.wrapping_sub(HALF) } else { 0 };
        }
        for request in self
            .requests
            .iter_mut()
            .filter(|r| r.state == ModelRequestState::Waiting)
        {
            request.arrival_r = request.arrival_r.wrapping_sub(HALF);
        }
    }

    fn dispatch(&mut self) {
        while self.any_waiting() && self.seats_in_use() < self.limit {
            let count = i64::try_from(self.queues.len()).unwrap();
            let mut best: Option<(u64, i64, usize)> = None;
            for _ in 0..count {
                self.robin = (self.robin + 1) % count;
                let queue = &self.queues[usize::try_from(self.robin).unwrap()];
                let Some(oldest) = self.waiting(queue.id).next() else {
                    continue;
                };
                let finish = queue
                    .next_dispatch_r
                    .wrapping_add(self.requests[oldest].total_work);
                if best.is_none_or(|(least, ..)| finish < least) {
                    best = Some((finish, self.robin, oldest));
                }
            }
            let (_, robin, id) = best.unwrap();
            if !self.fits(self.requests[id].seats()) {
                self.blocked = Some(id);
                return;
            }
            self.robin = robin;
            let limit = u32::try_from(self.limit).unwrap();
            let estimate = &mut self.requests[id].work;
            if estimate.final_seats > limit {
                let latency = nanoseconds(estimate.additional_latency);
                let final_work = seat_seconds(f64::from(estimate.final_seats), latency);
                estimate.additional_latency =
                    SeatSeconds::from_units(final_work).duration_per_seat(limit);
                estimate.final_seats = limit;
            }
            let queue = &mut self.queues[usize::try_from(robin).unwrap()];
            queue.next_dispatch_r = queue
                .next_dispatch_r
                .wrapping_add(self.requests[id].total_work);
            let identity = queue.id;
            self.execute(id);
            self.bound(identity);
        }
    }

    fn execute(&mut self, id: usize) {
        self.requests[id].state = ModelRequestState::Executing;
        self.requests[id].start = self.now;
        self.dispatched += 1;
        self.started.push(id);
    }

    fn remove(&mut self, id: usize) {
        self.requests[id].state = ModelRequestState::Removed;
        self.present.retain(|&other| other != id);
        let of_queue = self.requests[id].queue;
        for queue in self.queues.iter_mut().filter(|q| Some(q.id) == of_queue) {
            queue.requests.retain(|&other| other != id);
        }
    }

    fn release_seats(&mut self, id: usize) {
        self.remove(id);
        let Some(identity) = self.requests[id].queue else {
            return;
        };
        if self.queues.len() <= self.desired_queues() || self.is_active(identity) {
            return;
        }
        // Its queue may have been removed before.
        let Some(index) = self.queues.iter().position(|q| q.id == identity) else {
            return;
        };
        self.queues.remove(index);
        if self.robin >= i64::try_from(index).unwrap() {
            self.robin -= 1;
        }
    }

    fn desired_queues(&self) -> usize {
        match self.queuing {
            Queuing::Exempt | Queuing::Reject => 0,
            Queuing::Queue { dealer, .. } => dealer.deck_size(),
        }
    }

    fn add_queues(&mut self) {
        while self.queues.len() < self.desired_queues() {
            self.queues.push(ModelQueue {
                id: self.next_id,
                next_dispatch_r: 0,
                requests: Vec::new(),
            });
            self.next_id += 1;
        }
    }

    fn bound(&mut self, identity: usize) {
        let Some(oldest) = self.waiting(identity).next() else {
            return;
        };
        let arrival_r = self.requests[oldest].arrival_r;
        let queue = self.queues.iter_mut().find(|q| q.id == identity).unwrap();
        queue.next_dispatch_r = queue.next_dispatch_r.max(arrival_r);
    }

    pub(super) fn fits(&self, seats: u64) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            Queuing::Reject | Queuing::Queue { .. } if seats > self.limit => {
                self.totals().requests_executing == 0
            }
            Queuing::Reject | Queuing::Queue { .. } => self.seats_in_use() + seats <= self.limit,
        }
    }

    fn seats_in_use(&self) -> u64 {
        let present = self.present.iter().map(|&id| &self.requests[id]);
        present
            .filter(|r| r.state != ModelRequestState::Waiting)
            .map(ModelRequest::seats)
            .sum()
    }

    fn any_waiting(&self) -> bool {
        let mut present = self.present.iter();
        present.any(|&id| self.requests[id].state == ModelRequestState::Waiting)
    }

    fn work_waiting(&self, queue: usize) -> u64 {
        let waiting = self.waiting(self.queues[queue].id);
        waiting.map(|id| self.requests[id].total_work).sum()
    }

    /// The requests of a queue in this state, in order of arrival. None if the queue is removed.
    fn in_state(&self, identity: usize, state: ModelRequestState) -> impl Iterator<Item = usize> {
        let index = self.queues.binary_search_by_key(&identity, |q| q.id);
        let requests = index.map_or(&[][..], |index| &self.queues[index].requests);
        let in_state = move |&id: &usize| self.requests[id].state == state;
        requests.iter().copied().filter(in_state)
    }

    fn waiting(&self, identity: usize) -> impl Iterator<Item = usize> {
        self.in_state(identity, ModelRequestState::Waiting)
    }

    fn executing(&self, identity: usize) -> usize {
        let executing = self.in_state(identity, ModelRequestState::Executing);
        executing.count()
    }

    fn seats_in_use_of(&self, identity: usize) -> u64 {
        let executing = self.in_state(identity, ModelRequestState::Executing);
        let lingering = self.in_state(identity, ModelRequestState::Lingering);
        let both = executing.chain(lingering);
        both.map(|id| self.requests[id].seats()).sum()
    }

    fn is_active(&self, identity: usize) -> bool {
        self.waiting(identity).next().is_some() || self.executing(identity) > 0
    }
}
