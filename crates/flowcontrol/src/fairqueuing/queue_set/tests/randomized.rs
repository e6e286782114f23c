//! Random sequences of calls: the set equals the model, and the invariants hold.

use std::time::{Duration, Instant};

use super::super::{Arrival, Departure, Effects, QueueSet, QueueSetTotals, Queuing, RequestKey};
use super::model::{ModelRequestState, QueueSetModel};
use super::{SplitMix64, origin, queuing};
use crate::fairqueuing::seats::{SeatSeconds, WorkEstimate};

/// The set and its model, with the same calls.
struct SetAndModel {
    origin: Instant,
    now: Duration,
    set: QueueSet<usize>,
    model: QueueSetModel,
    effects: Effects,
    /// By the index of the request in the model.
    keys: Vec<RequestKey>,
    /// Whether the last call was one after which no request waits that could execute.
    dispatches: bool,
}

#[derive(Clone, Copy)]
struct LoadProfile {
    /// The most seats in either phase of a request.
    max_seats: u32,
    /// Whether the level is reconfigured from time to time.
    reconfigures: bool,
    lingering: bool,
}

fn any_queuing(rng: &mut SplitMix64) -> Queuing {
    let queues = i32::try_from(1 + rng.below(8)).unwrap();
    let hand_size = 1 + i32::try_from(rng.below(4)).unwrap().min(queues - 1);
    let queue_length_limit = usize::try_from(rng.below(5)).unwrap();
    match rng.below(8) {
        0 => Queuing::Reject,
        _ => queuing(queues, hand_size, queue_length_limit),
    }
}

fn any_work(rng: &mut SplitMix64, shape: LoadProfile) -> WorkEstimate {
    let lingers = shape.lingering && rng.one_in(2);
    WorkEstimate {
        initial_seats: 1 + rng.below_u32(shape.max_seats),
        final_seats: if lingers {
            rng.below_u32(shape.max_seats + 1)
        } else {
            0
        },
        additional_latency: Duration::from_nanos(if lingers { rng.below(9_000_000) } else { 0 }),
    }
}

impl SetAndModel {
    fn new(queuing: Queuing, limit: u32) -> Self {
        let origin = origin();
        Self {
            origin,
            now: Duration::ZERO,
            set: QueueSet::new(origin, queuing, limit),
            model: QueueSetModel::new(queuing, limit),
            effects: Effects::default(),
            keys: Vec::new(),
            dispatches: false,
        }
    }

    fn instant(&self) -> Instant {
        self.origin + self.now
    }

    fn in_state(&self, state: ModelRequestState) -> Vec<usize> {
        (0..self.keys.len())
            .filter(|&id| self.model.requests[id].state == state)
            .collect()
    }

    fn step(&mut self, rng: &mut SplitMix64, shape: LoadProfile) {
        self.now += Duration::from_nanos(rng.below(2_000_000));
        self.dispatches = false;
        match rng.below(16) {
            0..=6 => self.arrive(rng.below(5) * 7919, any_work(rng, shape)),
            7..=10 => self.for_one_in_state(ModelRequestState::Executing, rng, Self::finish),
            11..=12 => self.for_one_in_state(ModelRequestState::Lingering, rng, Self::release),
            13 => self.for_one_in_state(ModelRequestState::Waiting, rng, Self::eject),
            14 => self.cancel(rng),
            _ if shape.reconfigures => self.reconfigure(rng),
            _ => {}
        }
        self.compare();
        self.check(rng.below(1000) == 0);
    }

    fn for_one_in_state(
        &mut self,
        state: ModelRequestState,
        rng: &mut SplitMix64,
        then: fn(&mut Self, usize),
    ) {
        if let Some(id) = rng.pick(&self.in_state(state)) {
            then(self, id);
        }
    }

    fn arrive(&mut self, hash: u64, work: WorkEstimate) {
        let id = self.keys.len();
        let arrival = self
            .set
            .arrive(self.instant(), hash, work, id, &mut self.effects);
        match (arrival, self.model.arrive(self.now, hash, work)) {
            (Arrival::Execute(key), Ok(number)) => {
                assert_eq!(
                    self.model.requests[number].state,
                    ModelRequestState::Executing
                );
                self.keys.push(key);
            }
            (Arrival::Queued(key), Ok(number)) => {
                assert_eq!(
                    self.model.requests[number].state,
                    ModelRequestState::Waiting
                );
                self.keys.push(key);
                self.dispatches = true;
            }
            (Arrival::Reject(reason), Err(expected)) => assert_eq!(reason, expected),
            (arrival, expected) => panic!("{arrival:?} instead of {expected:?}"),
        }
    }

    fn finish(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.instant(), self.keys[id], &mut self.effects)
            .unwrap();
        let linger = self.model.finish(self.now, id);
        self.dispatches = true;
        let expected = match linger {
            Duration::ZERO => Departure::Released(id),
            linger => Departure::Lingers(linger),
        };
        assert_eq!(departure, expected);
    }

    fn release(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.instant(), self.keys[id], &mut self.effects);
        assert_eq!(departure, Some(Departure::Released(id)));
        self.model.release(self.now, id);
        self.dispatches = true;
    }

    fn eject(&mut self, id: usize) {
        let departure = self
            .set
            .leave(self.instant(), self.keys[id], &mut self.effects);
        assert_eq!(departure, Some(Departure::Ejected(id)));
        self.model.eject(self.now, id);
    }

    /// Cancels one request, in whatever phase it is.
    fn cancel(&mut self, rng: &mut SplitMix64) {
        let all_ids: Vec<usize> = (0..self.keys.len()).collect();
        let Some(id) = rng.pick(&all_ids) else {
            return;
        };
        let cancelled = self
            .set
            .cancel(self.instant(), self.keys[id], &mut self.effects);
        if self.model.requests[id].state == ModelRequestState::Waiting {
            assert_eq!(cancelled, Some(id));
            self.model.eject(self.now, id);
        } else {
            assert_eq!(cancelled, None);
            self.model.started.clear();
            self.model.blocked = None;
        }
    }

    fn reconfigure(&mut self, rng: &mut SplitMix64) {
        let queuing = any_queuing(rng);
        let limit = rng.below_u32(7);
        self.set
            .reconfigure(self.instant(), queuing, limit, &mut self.effects);
        self.model.reconfigure(self.now, queuing, limit);
        self.dispatches = true;
    }

    /// Adds to all virtual times alike.
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
        let numbers = |keys: &[RequestKey]| -> Vec<usize> {
            keys.iter()
                .map(|&key| *self.set.payload(key).unwrap())
                .collect()
        };
        assert_eq!(self.set.totals(), self.model.totals());
        assert_eq!(
            self.set.dump_queues().collect::<Vec<_>>(),
            self.model.queues()
        );
        assert_eq!(self.set.current_r().units(), self.model.r);
        assert_eq!(self.set.robin_index(), self.model.robin);
        assert_eq!(numbers(&self.effects.started), self.model.started);
        assert_eq!(
            self.effects.blocked.map(|t| numbers(&[t])[0]),
            self.model.blocked
        );
        for (id, &key) in self.keys.iter().enumerate() {
            let gone = self.model.requests[id].state == ModelRequestState::Removed;
            assert_eq!(self.set.phase(key).is_none(), gone, "request {id}");
        }
    }

    fn check(&mut self, dump: bool) {
        let QueueSetTotals {
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
        if requests_waiting > 0 && self.dispatches && self.effects.blocked.is_none() {
            assert!(seats_in_use >= limit, "a request waits beside a free seat");
        }
        if dump {
            let dump = self.set.dump_requests();
            assert_eq!(dump.len(), requests_waiting + requests_executing);
            assert!(
                dump.iter()
                    .all(|line| line.position.is_none() == line.started.is_some())
            );
        }
    }

    /// Every request leaves.
    fn drain(&mut self) {
        for _ in 0..2 {
            for id in 0..self.keys.len() {
                match self.model.requests[id].state {
                    ModelRequestState::Waiting => self.eject(id),
                    ModelRequestState::Executing => self.finish(id),
                    ModelRequestState::Lingering => self.release(id),
                    ModelRequestState::Removed => {}
                }
                self.compare();
            }
        }
    }
}

/// Runs `steps` calls on levels of this profile, one for each seed, then empties them.
fn run_random_steps(seeds: std::ops::Range<u64>, steps: usize, shape: LoadProfile) {
    for seed in seeds {
        let rng = &mut SplitMix64::new(seed);
        let mut pair = SetAndModel::new(any_queuing(rng), 1 + rng.below_u32(6));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..steps {
                pair.step(rng, shape);
            }
            pair.drain();
            pair
        }));
        let pair = outcome.unwrap_or_else(|_| panic!("with seed {seed}"));
        assert_emptied(&pair.set, seed);
    }
}

/// The most steps that are made of some bytes.
#[cfg(fuzzing)]
const MOST_STEPS: usize = 2000;

/// Runs the calls that these bytes choose, on the set and on its model.
///
/// # Panics
/// They differ, or an invariant does not hold.
#[cfg(fuzzing)]
pub fn run_steps(bytes: &[u8]) {
    let rng = &mut SplitMix64(0, bytes.iter().copied().collect());
    let shape = LoadProfile {
        max_seats: 1 + rng.below_u32(9),
        reconfigures: rng.one_in(2),
        lingering: rng.one_in(2),
    };
    let mut pair = SetAndModel::new(any_queuing(rng), 1 + rng.below_u32(6));
    for _ in 0..MOST_STEPS {
        if rng.1.is_empty() {
            break;
        }
        pair.step(rng, shape);
    }
    pair.drain();
    assert_emptied(&pair.set, 0);
}

fn assert_emptied(set: &QueueSet<usize>, seed: u64) {
    let QueueSetTotals {
        dispatched,
        rejected,
        cancelled,
        ..
    } = set.totals();
    let nothing = QueueSetTotals {
        dispatched,
        rejected,
        cancelled,
        ..QueueSetTotals::default()
    };
    assert_eq!(set.totals(), nothing, "with seed {seed}");
    assert!(
        set.is_idle() && set.dump_requests().is_empty(),
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
    run_random_steps(
        0..60,
        400,
        LoadProfile {
            max_seats: 1,
            reconfigures: false,
            lingering: false,
        },
    );
}

#[test]
fn wide_and_lingering_requests_are_served_as_by_the_model() {
    run_random_steps(
        100..180,
        400,
        LoadProfile {
            max_seats: 9,
            reconfigures: false,
            lingering: true,
        },
    );
}

#[test]
fn a_level_that_keeps_changing_serves_as_the_model_does() {
    run_random_steps(
        200..320,
        400,
        LoadProfile {
            max_seats: 4,
            reconfigures: true,
            lingering: true,
        },
    );
}

#[test]
fn an_exempt_level_starts_every_request_at_once() {
    let rng = &mut SplitMix64::new(7);
    let mut pair = SetAndModel::new(Queuing::Exempt, 0);
    for _ in 0..500 {
        pair.step(
            rng,
            LoadProfile {
                max_seats: 9,
                reconfigures: false,
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
fn an_epoch_advance_changes_no_decision() {
    let rng = &mut SplitMix64::new(11);
    let shape = LoadProfile {
        max_seats: 4,
        reconfigures: false,
        lingering: true,
    };
    let mut pair = SetAndModel::new(queuing(4, 2, 50), 5);
    let mut epochs = 0;
    for _ in 0..400 {
        pair.step(rng, shape);
        if pair.set.current_r().units() < u64::MAX / 2 && pair.set.active_queues > 1 {
            // Without this shift, an epoch would end only after millennia.
            pair.shift_times(u64::MAX / 4 * 3 - pair.set.current_r().units());
        }
        epochs += usize::from(pair.effects.epoch_advance.is_some());
        assert!(pair.effects.epoch_advance.is_none_or(|epoch| epoch.success));
    }
    assert!(epochs > 10, "{epochs} epochs");
}

#[test]
fn extreme_numbers_cause_no_panic() {
    let rng = &mut SplitMix64::new(13);
    let any = |rng: &mut SplitMix64| rng.pick(&[0, 1, 7, u32::MAX / 2, u32::MAX]).unwrap();
    let long = |rng: &mut SplitMix64| Duration::from_nanos(rng.next_u64() >> rng.below(64));
    let mut now = origin();
    let effects = &mut Effects::default();
    let mut set = QueueSet::new(now, queuing(8, 3, 4), u32::MAX);
    let mut keys = Vec::new();
    for _ in 0..20_000 {
        now = now.checked_add(long(rng)).unwrap_or_else(origin);
        match rng.below(8) {
            0..4 => {
                let work = WorkEstimate {
                    initial_seats: any(rng),
                    final_seats: any(rng),
                    additional_latency: long(rng),
                };
                match set.arrive(now, rng.next_u64(), work, (), effects) {
                    Arrival::Execute(key) | Arrival::Queued(key) => keys.push(key),
                    Arrival::Reject(_) => {}
                }
            }
            4..7 => {
                if let Some(key) = rng.pick(&keys) {
                    set.leave(now, key, effects);
                }
            }
            _ => set.reconfigure(now, any_queuing(rng), any(rng), effects),
        }
        keys.retain(|&key| set.phase(key).is_some());
    }
}
