//! What happens when, in virtual time. Pure.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

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

/// The bits of an entry's rank below its turn: the order in which the entries were planned.
const ORDER_BITS: u32 = 60;

impl Turn {
    const fn rank(self) -> u64 {
        match self {
            Self::Release => 0,
            Self::Adjust => 1,
            Self::TimeOut => 2,
            Self::Arrive => 3,
        }
    }

    const fn of_rank(rank: u64) -> Self {
        match rank {
            0 => Self::Release,
            1 => Self::Adjust,
            2 => Self::TimeOut,
            _ => Self::Arrive,
        }
    }
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
    /// The turn, then the order: a log of retries keeps 100,000s of entries, and compares them most
    /// of the time.
    rank: u64,
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
        let rank = turn.rank() << ORDER_BITS | self.planned;
        self.planned += 1;
        self.entries.push(AgendaEntry { at, rank, what });
    }

    /// When the next thing happens, and its turn.
    pub(super) fn next(&self) -> Option<(SimTime, Turn)> {
        let next = self.entries.peek()?;
        Some((next.at, Turn::of_rank(next.rank >> ORDER_BITS)))
    }

    /// Takes the next thing.
    pub(super) fn take(&mut self) -> Option<(SimTime, T)> {
        self.entries.pop().map(|entry| (entry.at, entry.what))
    }
}

impl<T> AgendaEntry<T> {
    fn key(&self) -> u128 {
        u128::from(self.at.0) << u64::BITS | u128::from(self.rank)
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

/// Nanoseconds since the first arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SimTime(pub u64);

impl SimTime {
    /// This time, so many nanoseconds later.
    pub(crate) const fn plus(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }

    /// The nanoseconds since an earlier time.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
