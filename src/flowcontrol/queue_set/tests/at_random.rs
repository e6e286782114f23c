//! Any sequence of calls: the set does what the model does, and what must always hold does.

use std::time::Duration;
use std::time::Instant;

use super::super::Arrival;
use super::super::Departure;
use super::super::Effects;
use super::super::QueueSet;
use super::super::Queuing;
use super::super::Ticket;
use super::super::Totals;
use super::Dice;
use super::model::Model;
use super::model::State;
use super::origin;
use super::queuing;
use crate::flowcontrol::seats::SeatSeconds;
use crate::flowcontrol::seats::WorkEstimate;

/// The set and its model, told the same.
struct Pair {
    origin: Instant,
    now: Duration,
    set: QueueSet<usize>,
    model: Model,
    effects: Effects,
    /// By the number of the request in the model.
    tickets: Vec<Ticket>,
    /// Whether the last call was one after which nobody waits who could run.
    dispatched: bool,
}

#[derive(Clone, Copy)]
struct Shape {
    /// Up to so many seats in either phase of a request.
    seats: u32,
    /// The level is reconfigured from time to time.
    changes: bool,
    lingering: bool,
}

fn any_queuing(dice: &mut Dice) -> Queuing {
    let queues = i32::try_from(1 + dice.below(8)).unwrap();
    let hand_size = 1 + i32::try_from(dice.below(4)).unwrap().min(queues - 1);
    let queue_length_limit = usize::try_from(dice.below(5)).unwrap();
    match dice.below(8) {
        0 => Queuing::Reject,
        _ => queuing(queues, hand_size, queue_length_limit),
    }
}

fn any_work(dice: &mut Dice, shape: Shape) -> WorkEstimate {
    let lingers = shape.lingering && dice.one_in(2);
    WorkEstimate {
        initial_seats: 1 + dice.small(shape.seats),
        final_seats: if lingers {
            dice.small(shape.seats + 1)
        } else {
            0
        },
        additional_latency: Duration::from_nanos(if lingers { dice.below(9_000_000) } else { 0 }),
    }
}

impl Pair {
    fn new(queuing: Queuing, limit: u32) -> Self {
        let origin = origin();
        Self {
            origin,
            now: Duration::ZERO,
            set: QueueSet::new(origin, queuing, limit),
            model: Model::new(queuing, limit),
            effects: Effects::default(),
            tickets: Vec::new(),
            dispatched: false,
        }
    }

    fn at(&self) -> Instant {
        self.origin + self.now
    }

    fn in_state(&self, state: State) -> Vec<usize> {
        (0..self.tickets.len())
            .filter(|&id| self.model.requests[id].state == state)
            .collect()
    }

    fn step(&mut self, dice: &mut Dice, shape: Shape) {
        self.now += Duration::from_nanos(dice.below(2_000_000));
        self.dispatched = false;
        match dice.below(16) {
            0..=6 => self.arrive(dice.below(5) * 7919, any_work(dice, shape)),
            7..=10 => self.each(State::Executing, dice, Self::finish),
            11..=12 => self.each(State::Lingering, dice, Self::release),
            13 => self.each(State::Waiting, dice, Self::eject),
            14 => self.give_up(dice),
            _ if shape.changes => self.reconfigure(dice),
            _ => {}
        }
        self.compare();
        self.check(dice.below(1000) == 0);
    }

    fn each(&mut self, state: State, dice: &mut Dice, then: fn(&mut Self, usize)) {
        if let Some(id) = dice.pick(&self.in_state(state)) {
            then(self, id);
        }
    }

    fn arrive(&mut self, hash: u64, work: WorkEstimate) {
        let id = self.tickets.len();
        let arrival = self
            .set
            .arrive(self.at(), hash, work, id, &mut self.effects);
        match (arrival, self.model.arrive(self.now, hash, work)) {
            (Arrival::Execute(ticket), Ok(number)) => {
                assert_eq!(self.model.requests[number].state, State::Executing);
                self.tickets.push(ticket);
            }
            (Arrival::Queued(ticket), Ok(number)) => {
                assert_eq!(self.model.requests[number].state, State::Waiting);
                self.tickets.push(ticket);
                self.dispatched = true;
            }
            (Arrival::Reject(reason), Err(expected)) => assert_eq!(reason, expected),
            (arrival, expected) => panic!("{arrival:?} instead of {expected:?}"),
        }
    }

    fn finish(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.at(), self.tickets[id], &mut self.effects)
            .unwrap();
        let linger = self.model.finish(self.now, id);
        self.dispatched = true;
        let expected = match linger {
            Duration::ZERO => Departure::Released(id),
            linger => Departure::Lingers(linger),
        };
        assert_eq!(departure, expected);
    }

    fn release(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.at(), self.tickets[id], &mut self.effects);
        assert_eq!(departure, Some(Departure::Released(id)));
        self.model.release(self.now, id);
        self.dispatched = true;
    }

    fn eject(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.at(), self.tickets[id], &mut self.effects);
        assert_eq!(departure, Some(Departure::Ejected(id)));
        self.model.eject(self.now, id);
    }

    /// Somebody's patience ends, wherever they are by then.
    fn give_up(&mut self, dice: &mut Dice) {
        let everybody: Vec<usize> = (0..self.tickets.len()).collect();
        let Some(id) = dice.pick(&everybody) else {
            return;
        };
        let cancelled = self
            .set
            .cancel(self.at(), self.tickets[id], &mut self.effects);
        if self.model.requests[id].state == State::Waiting {
            assert_eq!(cancelled, Some(id));
            self.model.eject(self.now, id);
        } else {
            assert_eq!(cancelled, None);
            self.model.started.clear();
            self.model.blocked = None;
        }
    }

    fn reconfigure(&mut self, dice: &mut Dice) {
        let queuing = any_queuing(dice);
        let limit = dice.small(7);
        self.set
            .reconfigure(self.at(), queuing, limit, &mut self.effects);
        self.model.reconfigure(self.now, queuing, limit);
        self.dispatched = true;
    }

    /// Makes it later in virtual time, for everyone alike.
    fn shift_times(&mut self, by: u64) {
        let by = SeatSeconds::from_units(by);
        let shift = |time: &mut SeatSeconds| *time = time.wrapping_add(by);
        shift(&mut self.set.current_r);
        self.set
            .queues
            .iter_mut()
            .for_each(|queue| shift(&mut queue.next_dispatch_r));
        self.set
            .requests
            .iter_mut()
            .for_each(|request| shift(&mut request.arrived_r));
        self.model.shift_times(by.units());
    }

    fn compare(&self) {
        let numbers = |tickets: &[Ticket]| -> Vec<usize> {
            tickets
                .iter()
                .map(|&ticket| *self.set.request(ticket).unwrap())
                .collect()
        };
        assert_eq!(self.set.totals(), self.model.totals());
        assert_eq!(self.set.queues().collect::<Vec<_>>(), self.model.queues());
        assert_eq!(self.set.current_r().units(), self.model.r);
        assert_eq!(self.set.robin_index(), self.model.robin);
        assert_eq!(numbers(&self.effects.started), self.model.started);
        assert_eq!(
            self.effects.blocked.map(|t| numbers(&[t])[0]),
            self.model.blocked
        );
        for (id, &ticket) in self.tickets.iter().enumerate() {
            let gone = self.model.requests[id].state == State::Gone;
            assert_eq!(self.set.phase(ticket).is_none(), gone, "request {id}");
        }
    }

    fn check(&mut self, dump: bool) {
        let Totals {
            requests_waiting,
            requests_executing,
            seats_in_use,
            ..
        } = self.set.totals();
        let limit = u64::from(self.set.concurrency_limit());
        if !self.effects.started.is_empty() && self.model.queuing != Queuing::Exempt {
            assert!(
                seats_in_use <= limit || requests_executing == 1,
                "{seats_in_use} > {limit}"
            );
        }
        if requests_waiting > 0 && self.dispatched && self.effects.blocked.is_none() {
            assert!(seats_in_use >= limit, "somebody waits beside a free seat");
        }
        if dump {
            let shown = self.set.requests();
            assert_eq!(shown.len(), requests_waiting + requests_executing);
            assert!(
                shown
                    .iter()
                    .all(|line| line.position.is_none() == line.started.is_some())
            );
        }
    }

    /// Everyone leaves.
    fn drain(&mut self) {
        for _ in 0..2 {
            for id in 0..self.tickets.len() {
                match self.model.requests[id].state {
                    State::Waiting => self.eject(id),
                    State::Executing => self.finish(id),
                    State::Lingering => self.release(id),
                    State::Gone => {}
                }
                self.compare();
            }
        }
    }
}

/// Runs `steps` calls on levels of this shape, one for each seed, then empties them.
fn run(seeds: std::ops::Range<u64>, steps: usize, shape: Shape) {
    for seed in seeds {
        let dice = &mut Dice(seed);
        let mut pair = Pair::new(any_queuing(dice), 1 + dice.small(6));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..steps {
                pair.step(dice, shape);
            }
            pair.drain();
            pair
        }));
        let pair = outcome.unwrap_or_else(|_| panic!("with seed {seed}"));
        assert_emptied(&pair.set, seed);
    }
}

fn assert_emptied(set: &QueueSet<usize>, seed: u64) {
    let Totals {
        dispatched,
        rejected,
        cancelled,
        ..
    } = set.totals();
    let nothing = Totals {
        dispatched,
        rejected,
        cancelled,
        ..Totals::default()
    };
    assert_eq!(set.totals(), nothing, "with seed {seed}");
    assert!(
        set.is_idle() && set.requests().is_empty(),
        "with seed {seed}"
    );
    assert_eq!(set.active_queues, 0, "with seed {seed}");
    assert_eq!(set.seats_in_use_by_queues, 0, "with seed {seed}");
    assert!(
        set.backlogged.is_empty() && set.requests.is_empty(),
        "with seed {seed}"
    );
}

#[test]
fn requests_of_one_seat_are_served_as_by_the_model() {
    run(
        0..60,
        400,
        Shape {
            seats: 1,
            changes: false,
            lingering: false,
        },
    );
}

#[test]
fn wide_and_lingering_requests_are_served_as_by_the_model() {
    run(
        100..180,
        400,
        Shape {
            seats: 9,
            changes: false,
            lingering: true,
        },
    );
}

#[test]
fn a_level_that_keeps_changing_serves_as_the_model_does() {
    run(
        200..320,
        400,
        Shape {
            seats: 4,
            changes: true,
            lingering: true,
        },
    );
}

#[test]
fn an_exempt_level_starts_everyone_at_once() {
    let dice = &mut Dice(7);
    let mut pair = Pair::new(Queuing::Exempt, 0);
    for _ in 0..500 {
        pair.step(
            dice,
            Shape {
                seats: 9,
                changes: false,
                lingering: true,
            },
        );
        assert_eq!(
            pair.set.totals().requests_waiting + pair.set.backlogged_queues(),
            0
        );
    }
    pair.drain();
    assert_emptied(&pair.set, 7);
}

#[test]
fn winding_the_meter_back_changes_no_decision() {
    let dice = &mut Dice(11);
    let shape = Shape {
        seats: 4,
        changes: false,
        lingering: true,
    };
    let mut pair = Pair::new(queuing(4, 2, 50), 5);
    let mut epochs = 0;
    for _ in 0..400 {
        pair.step(dice, shape);
        if pair.set.current_r().units() < u64::MAX / 2 && pair.set.active_queues > 1 {
            // Nobody waits for millennia to see an epoch end.
            pair.shift_times(u64::MAX / 4 * 3 - pair.set.current_r().units());
        }
        epochs += usize::from(pair.effects.epoch.is_some());
        assert!(pair.effects.epoch.is_none_or(|epoch| epoch.success));
    }
    assert!(epochs > 10, "{epochs} epochs");
}

#[test]
fn numbers_without_measure_do_no_harm() {
    let dice = &mut Dice(13);
    let any = |dice: &mut Dice| dice.pick(&[0, 1, 7, u32::MAX / 2, u32::MAX]).unwrap();
    let long = |dice: &mut Dice| Duration::from_nanos(dice.roll() >> dice.below(64));
    let mut now = origin();
    let effects = &mut Effects::default();
    let mut set = QueueSet::new(now, queuing(8, 3, 4), u32::MAX);
    let mut tickets = Vec::new();
    for _ in 0..20_000 {
        now = now.checked_add(long(dice)).unwrap_or_else(origin);
        match dice.below(8) {
            0..4 => {
                let work = WorkEstimate {
                    initial_seats: any(dice),
                    final_seats: any(dice),
                    additional_latency: long(dice),
                };
                match set.arrive(now, dice.roll(), work, (), effects) {
                    Arrival::Execute(ticket) | Arrival::Queued(ticket) => tickets.push(ticket),
                    Arrival::Reject(_) => {}
                }
            }
            4..7 => {
                if let Some(ticket) = dice.pick(&tickets) {
                    set.leave(now, ticket, effects);
                }
            }
            _ => set.reconfigure(now, any_queuing(dice), any(dice), effects),
        }
        tickets.retain(|&ticket| set.phase(ticket).is_some());
    }
}
