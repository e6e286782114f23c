//! Puts requests into the recorded order of decisions. Pure.
//!
//! A level takes the time before it takes its lock, so its decisions may differ from the order of
//! their times. The difference is short, unless a thread was stopped in between.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::replay::logged::LogItem;

/// Requests whose times differ by this much are in the order of their times, in microseconds. A
/// thread is stopped for less, unless the machine is.
const LONGEST_INVERSION_US: i64 = 1_000_000;

/// The most requests that are kept: a second of a busy weir.
const MAX_KEPT: usize = 65_536;

/// Sorts the requests of one run by their numbers. Those of different runs, and what has no number,
/// stay in the order of their times.
#[derive(Debug, Default)]
pub(super) struct DecisionSorter {
    run: u64,
    kept: BinaryHeap<KeptItem>,
    /// The number of the last request that had one.
    last: u64,
    pushed: u64,
    newest_us: i64,
    ready: VecDeque<LogItem>,
}

#[derive(Debug)]
struct KeptItem {
    number: u64,
    pushed: u64,
    item: LogItem,
}

impl DecisionSorter {
    /// Adds the next item in the order of times.
    pub(super) fn push(&mut self, item: LogItem) {
        let order = match &item {
            LogItem::Request(request) => request.order(),
            LogItem::StreamEnd { .. } => None,
        };
        if let Some(order) = order {
            if order.run != self.run {
                self.finish();
                self.run = order.run;
            }
            self.last = order.arrival;
        } else if self.kept.is_empty() {
            self.ready.push_back(item);
            return;
        }
        self.newest_us = item.at_us();
        self.pushed += 1;
        self.kept.push(KeptItem {
            number: self.last,
            pushed: self.pushed,
            item,
        });
        while let Some(first) = self.kept.peek() {
            let age = self.newest_us.saturating_sub(first.item.at_us());
            if age <= LONGEST_INVERSION_US && self.kept.len() <= MAX_KEPT {
                return;
            }
            self.release_first();
        }
    }

    /// The next item in the order of decisions.
    pub(super) fn pop(&mut self) -> Option<LogItem> {
        self.ready.pop_front()
    }

    /// No more items of this run come: all are ready.
    pub(super) fn finish(&mut self) {
        while !self.kept.is_empty() {
            self.release_first();
        }
    }

    fn release_first(&mut self) {
        let first = self.kept.pop();
        self.ready.extend(first.map(|first| first.item));
    }
}

impl KeptItem {
    const fn key(&self) -> (u64, u64) {
        (self.number, self.pushed)
    }
}

impl PartialEq for KeptItem {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for KeptItem {}

impl PartialOrd for KeptItem {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap has its greatest entry first: the one with the lowest number.
impl Ord for KeptItem {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}
