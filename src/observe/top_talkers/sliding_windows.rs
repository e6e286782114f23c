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
use super::heavy_hitters::HeavyHitters;
use super::heavy_hitters::MAX_ENTRIES;
use super::weights::Weights;
use crate::hash_keys::HashKey;

/// The length of the shortest part.
const TICK: Duration = Duration::from_secs(5);

/// What was done, by window.
#[derive(Debug)]
pub(super) struct SlidingWindows {
    start: Instant,
    /// Which tick is under way.
    current_tick: u64,
    current: HeavyHitters,
    windows: [SlidingWindow; 3],
}

/// One window's parts.
#[derive(Debug)]
struct SlidingWindow {
    window: Window,
    /// The length of a part, in ticks.
    bucket_ticks: u64,
    /// The length of the window, in ticks.
    window_ticks: u64,
    open_bucket: HeavyHitters,
    /// Each with the tick at which it ended, the oldest first.
    closed_buckets: VecDeque<(u64, HeavyHitters)>,
}

/// What a window shows.
#[derive(Debug)]
pub(super) struct WindowView {
    /// All that is known.
    pub(super) table: HeavyHitters,
    /// How long a time it is.
    pub(super) covered: Duration,
}

impl WindowView {
    /// Of no time.
    pub(super) fn empty() -> Self {
        Self {
            table: HeavyHitters::new(0),
            covered: Duration::ZERO,
        }
    }
}

impl SlidingWindows {
    /// Empty ones.
    pub(super) fn new(now: Instant) -> Self {
        let level = |window, each| SlidingWindow {
            window,
            bucket_ticks: each,
            window_ticks: ticks_in_window(window),
            open_bucket: HeavyHitters::new(MAX_ENTRIES),
            closed_buckets: VecDeque::new(),
        };
        Self {
            start: now,
            current_tick: 0,
            current: HeavyHitters::new(MAX_ENTRIES),
            windows: [
                level(Window::OneMinute, 1),
                level(Window::FiveMinutes, 6),
                level(Window::SixtyMinutes, 60),
            ],
        }
    }

    /// More was done, now.
    pub(super) fn add(&mut self, key: HashKey, name: Arc<str>, more: Weights) {
        self.current.add(key, name, more);
    }

    /// More was done, now, and it is not known by whom.
    pub(super) fn add_unattributed(&mut self, more: Weights) {
        self.current.add_unattributed(more);
    }

    /// Time has passed.
    pub(super) fn advance(&mut self, now: Instant) {
        let tick = self.tick_at(now);
        if tick <= self.current_tick {
            return;
        }
        for level in &mut self.windows {
            level.rotate(&self.current, self.current_tick, tick);
        }
        self.current.clear();
        self.current_tick = tick;
    }

    /// What a window shows at `now`, up to which time must have been [advanced](Self::advance).
    pub(super) fn view(&self, window: Window, now: Instant) -> WindowView {
        // There is room for all: each part is bounded.
        let mut table = HeavyHitters::new(usize::MAX);
        table.merge(&self.current);
        let mut covered = Duration::ZERO;
        for level in self.windows.iter().filter(|level| level.window == window) {
            level.merge_into(&mut table);
            let begin = level.start_tick(self.current_tick);
            let begin = self.start + TICK.saturating_mul(u32::try_from(begin).unwrap_or(u32::MAX));
            covered = now.saturating_duration_since(begin);
        }
        WindowView { table, covered }
    }

    fn tick_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / TICK.as_secs()
    }
}

impl SlidingWindow {
    /// Takes over what was done in tick `was`; it is `now` by now.
    fn rotate(&mut self, part: &HeavyHitters, was: u64, now: u64) {
        self.open_bucket.merge(part);
        let end = (was / self.bucket_ticks + 1) * self.bucket_ticks;
        if now >= end {
            self.closed_buckets
                .push_back((end, self.open_bucket.compact()));
            self.open_bucket.clear();
        }
        let begin = self.start_tick(now);
        while self
            .closed_buckets
            .front()
            .is_some_and(|(end, _)| *end <= begin)
        {
            self.closed_buckets.pop_front();
        }
    }

    /// The tick from which on all is there: where the part began that the window's beginning is in.
    const fn start_tick(&self, now: u64) -> u64 {
        now.saturating_sub(self.window_ticks) / self.bucket_ticks * self.bucket_ticks
    }

    fn merge_into(&self, view: &mut HeavyHitters) {
        let closed = self.closed_buckets.iter().map(|(_, part)| part);
        for part in std::iter::once(&self.open_bucket).chain(closed) {
            view.merge(part);
        }
    }
}

const fn ticks_in_window(window: Window) -> u64 {
    window.duration().as_secs() / TICK.as_secs()
}
