//! What happens when, in virtual time. Pure.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `sim_time` |
//! | 1 | `recorded` |

pub(super) mod recorded;
pub(super) mod sim_time;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::replay::simulation::agenda::sim_time::SimTime;

/// The order of things that happen at the same time: what frees a seat comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// A request ends, or its seats are released.
    Release,
    /// Seats move between levels.
    Adjust,
    /// A request leaves its queue.
    TimeOut,
    /// A request arrives.
    Arrive,
}

/// Things that will happen, earliest first, and those of one time and turn in the order in which
/// they were planned.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    entries: BinaryHeap<AgendaEntry<T>>,
    planned: u64,
}

#[derive(Debug)]
struct AgendaEntry<T> {
    at: SimTime,
    turn: Turn,
    order: u64,
    what: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self {
            entries: BinaryHeap::new(),
            planned: 0,
        }
    }
}

impl<T> Agenda<T> {
    pub(super) fn plan(&mut self, at: SimTime, turn: Turn, what: T) {
        let order = self.planned;
        self.planned += 1;
        self.entries.push(AgendaEntry {
            at,
            turn,
            order,
            what,
        });
    }

    /// When the next thing happens, and its turn.
    pub(super) fn next(&self) -> Option<(SimTime, Turn)> {
        self.entries.peek().map(|entry| (entry.at, entry.turn))
    }

    /// Takes the next thing.
    pub(super) fn take(&mut self) -> Option<(SimTime, T)> {
        self.entries.pop().map(|entry| (entry.at, entry.what))
    }
}

impl<T> AgendaEntry<T> {
    const fn key(&self) -> (SimTime, Turn, u64) {
        (self.at, self.turn, self.order)
    }
}

impl<T> PartialEq for AgendaEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for AgendaEntry<T> {}

impl<T> PartialOrd for AgendaEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap has its greatest entry first: the earliest.
impl<T> Ord for AgendaEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}
