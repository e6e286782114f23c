//! The last minute, the last five and the last sixty: what is done in each is added up in parts, and old parts go.
//!
//! Time is counted in ticks. What is done goes into the part that is under way; when its tick has passed, each window takes
//! it over into a part of its own length, and forgets those parts that ended before the window begins. A window so shows at
//! least its length, and at most a part more: `covered` says how much it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::Window;
use super::table::MOST;
use super::table::Table;
use super::weights::Weights;
use crate::keyed::Key;

/// The length of the shortest part.
const TICK: Duration = Duration::from_secs(5);

/// What was done, by window.
#[derive(Debug)]
pub(super) struct Windows {
    since: Instant,
    /// Which tick is under way.
    tick: u64,
    under_way: Table,
    levels: [Level; 3],
}

/// One window's parts.
#[derive(Debug)]
struct Level {
    window: Window,
    /// The length of a part, in ticks.
    each: u64,
    /// The length of the window, in ticks.
    length: u64,
    gathering: Table,
    /// Each with the tick at which it ended, the oldest first.
    closed: VecDeque<(u64, Table)>,
}

/// What a window shows.
#[derive(Debug)]
pub(super) struct View {
    /// All that is known.
    pub(super) table: Table,
    /// How long a time it is.
    pub(super) covered: Duration,
}

impl View {
    /// Of no time.
    pub(super) fn empty() -> Self {
        Self {
            table: Table::new(0),
            covered: Duration::ZERO,
        }
    }
}

impl Windows {
    /// Empty ones.
    pub(super) fn new(now: Instant) -> Self {
        let level = |window, each| Level {
            window,
            each,
            length: window_length(window),
            gathering: Table::new(MOST),
            closed: VecDeque::new(),
        };
        Self {
            since: now,
            tick: 0,
            under_way: Table::new(MOST),
            levels: [
                level(Window::OneMinute, 1),
                level(Window::FiveMinutes, 6),
                level(Window::SixtyMinutes, 60),
            ],
        }
    }

    /// More was done, now.
    pub(super) fn add(&mut self, key: Key, name: Arc<str>, more: Weights) {
        self.under_way.add(key, name, more);
    }

    /// More was done, now, and it is not known by whom.
    pub(super) fn add_unknown(&mut self, more: Weights) {
        self.under_way.add_unknown(more);
    }

    /// Time has passed.
    pub(super) fn advance(&mut self, now: Instant) {
        let tick = self.tick_of(now);
        if tick <= self.tick {
            return;
        }
        for level in &mut self.levels {
            level.take(&self.under_way, self.tick, tick);
        }
        self.under_way.clear();
        self.tick = tick;
    }

    /// What a window shows at `now`, up to which time must have been [advanced](Self::advance).
    pub(super) fn view(&self, window: Window, now: Instant) -> View {
        // There is room for all: each part is bounded.
        let mut table = Table::new(usize::MAX);
        table.merge(&self.under_way);
        let mut covered = Duration::ZERO;
        for level in self.levels.iter().filter(|level| level.window == window) {
            level.add_to(&mut table);
            let begin = level.begin(self.tick);
            let begin = self.since + TICK.saturating_mul(u32::try_from(begin).unwrap_or(u32::MAX));
            covered = now.saturating_duration_since(begin);
        }
        View { table, covered }
    }

    fn tick_of(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs() / TICK.as_secs()
    }
}

impl Level {
    /// Takes over what was done in tick `was`; it is `now` by now.
    fn take(&mut self, part: &Table, was: u64, now: u64) {
        self.gathering.merge(part);
        let end = (was / self.each + 1) * self.each;
        if now >= end {
            self.closed.push_back((end, self.gathering.closed()));
            self.gathering.clear();
        }
        let begin = self.begin(now);
        while self.closed.front().is_some_and(|(end, _)| *end <= begin) {
            self.closed.pop_front();
        }
    }

    /// The tick from which on all is there: where the part began that the window's beginning is in.
    const fn begin(&self, now: u64) -> u64 {
        now.saturating_sub(self.length) / self.each * self.each
    }

    fn add_to(&self, view: &mut Table) {
        let closed = self.closed.iter().map(|(_, part)| part);
        for part in std::iter::once(&self.gathering).chain(closed) {
            view.merge(part);
        }
    }
}

const fn window_length(window: Window) -> u64 {
    window.length().as_secs() / TICK.as_secs()
}
