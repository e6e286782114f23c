//! What happens when, in the order of decisions that a record has. Pure.
//!
//! A record numbers the decisions of a weir. As long as the simulation decides the same, what
//! follows happens in the order of these numbers, and not in that of rounded times. Once it decides
//! otherwise about a request, what follows for this request happens by its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::replay::logged::RecordedOrder;
use crate::replay::simulation::agenda::sim_time::SimTime;

/// The step that is being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedStep {
    pub(crate) number: u64,
    /// The time by which the level decided. Levels do not decide in the order of these times.
    pub(crate) at: SimTime,
}

/// Recorded steps that will be taken, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct RecordedAgenda<T> {
    is_followed: bool,
    /// Whose numbers are followed.
    run: Option<u64>,
    entries: BinaryHeap<RecordedEntry<T>>,
    planned: u64,
    current: Option<RecordedStep>,
}

#[derive(Debug)]
struct RecordedEntry<T> {
    step: RecordedStep,
    order: u64,
    what: T,
}

impl<T> RecordedAgenda<T> {
    /// `is_followed`: whether requests are sent and executed as they were recorded.
    pub(crate) fn new(is_followed: bool) -> Self {
        Self {
            is_followed,
            run: None,
            entries: BinaryHeap::new(),
            planned: 0,
            current: None,
        }
    }

    /// The order that is followed, for a request that arrives. What was planned for another run is
    /// returned with its times: numbers of different runs cannot be compared.
    pub(crate) fn follow(&mut self, order: Option<&RecordedOrder>) -> Vec<(SimTime, T)> {
        let run = order.filter(|_| self.is_followed).map(|order| order.run);
        if run.is_none() || run == self.run {
            return Vec::new();
        }
        self.run = run;
        let others = std::mem::take(&mut self.entries).into_sorted_vec();
        let others = others.into_iter().rev();
        others.map(|entry| (entry.step.at, entry.what)).collect()
    }

    /// Whether the numbers of this request are followed.
    pub(crate) fn follows(&self, order: &RecordedOrder) -> bool {
        self.is_followed && self.run == Some(order.run)
    }

    /// Whether the request was dispatched by the step that is being taken.
    pub(crate) fn dispatches(&self, order: &RecordedOrder) -> bool {
        let current = self.current.map_or(0, |step| step.number);
        self.follows(order) && order.dispatch == Some(current)
    }

    /// Plans a step. Returns whether it did: the number of the step may have passed.
    pub(crate) fn plan(&mut self, step: RecordedStep, what: T) -> bool {
        if self.current.is_some_and(|now| step.number <= now.number) {
            return false;
        }
        self.planned += 1;
        self.entries.push(RecordedEntry {
            step,
            order: self.planned,
            what,
        });
        true
    }

    /// The time of the next step.
    pub(crate) fn next(&self) -> Option<SimTime> {
        self.entries.peek().map(|entry| entry.step.at)
    }

    /// The time of the next step, if it comes before this arrival.
    pub(crate) fn next_before(&self, number: Option<u64>, at: SimTime) -> Option<SimTime> {
        let next = self.entries.peek()?.step;
        let is_due = match number {
            Some(number) => next.number < number,
            None => next.at <= at,
        };
        is_due.then_some(next.at)
    }

    /// Takes the next step, which is the current one until [`end_step`](Self::end_step).
    pub(crate) fn take(&mut self) -> Option<(RecordedStep, T)> {
        let entry = self.entries.pop()?;
        self.current = Some(entry.step);
        Some((entry.step, entry.what))
    }

    /// An arrival is the current step until [`end_step`](Self::end_step).
    pub(crate) fn begin_step(&mut self, step: Option<RecordedStep>) {
        self.current = step;
    }

    pub(crate) fn end_step(&mut self) {
        self.current = None;
    }

    /// The step that is being taken, if it is a recorded one.
    pub(crate) fn current(&self) -> Option<RecordedStep> {
        self.current
    }
}

impl<T> RecordedEntry<T> {
    const fn key(&self) -> (u64, u64) {
        (self.step.number, self.order)
    }
}

impl<T> PartialEq for RecordedEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for RecordedEntry<T> {}

impl<T> PartialOrd for RecordedEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap has its greatest entry first: the one with the lowest number.
impl<T> Ord for RecordedEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}
