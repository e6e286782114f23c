//! Sliding windows of 1, 5 and 60 minutes: usage is added up in buckets, and old buckets are
//! removed.
//!
//! Time is counted in ticks. New usage goes into the current table. When its tick has passed, each
//! window merges that table into its open bucket, and removes the buckets that ended before the
//! window's start. A view covers at least the window's length and at most one bucket more:
//! `covered` is the exact time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::heavy_hitters::{HeavyHitters, MAX_ENTRIES, SavedTable};
use super::query::Window;
use super::weights::Weights;
use weir_base::hash_keys::HashKey;
use weir_kubernetes::numeric::{saturating_u32, saturating_u64};

/// Length of the shortest bucket.
const TICK: Duration = Duration::from_secs(5);

/// More than any window has.
const MAX_CLOSED_BUCKETS: usize = 16;

/// Usage of one dimension in all windows.
#[derive(Debug)]
pub(crate) struct SlidingWindows {
    start: Instant,
    /// Number of the current tick since `start`.
    current_tick: u64,
    current: HeavyHitters,
    windows: [SlidingWindow; 3],
}

/// The buckets of one window.
#[derive(Debug)]
struct SlidingWindow {
    window: Window,
    /// Length of a bucket, in ticks.
    bucket_ticks: u64,
    /// Length of the window, in ticks.
    window_ticks: u64,
    open_bucket: HeavyHitters,
    /// Each with the tick at which it ended, oldest first.
    closed_buckets: VecDeque<(u64, HeavyHitters)>,
}

/// The usage in one window.
#[derive(Debug)]
pub(crate) struct WindowView {
    /// All buckets of the window, merged.
    pub(crate) table: HeavyHitters,
    /// The time that the table covers.
    pub(crate) covered: Duration,
}

/// The counts of one dimension, as they are handed over to another process of weir.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedWindows {
    /// Milliseconds since the windows began.
    pub(crate) elapsed_ms: u64,
    pub(crate) current_tick: u64,
    pub(crate) current: SavedTable,
    /// Shortest first.
    pub(crate) windows: Vec<SavedWindow>,
}

/// The buckets of one window.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedWindow {
    pub(crate) open: SavedTable,
    /// Each with the tick at which it ended, oldest first.
    pub(crate) closed: Vec<(u64, SavedTable)>,
}

impl WindowView {
    /// A view that covers no time.
    pub(crate) fn empty() -> Self {
        Self {
            table: HeavyHitters::new(0),
            covered: Duration::ZERO,
        }
    }
}

impl SlidingWindows {
    /// Creates empty windows that start at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        let new_window = |window, bucket_ticks| SlidingWindow {
            window,
            bucket_ticks,
            window_ticks: ticks_in_window(window),
            open_bucket: HeavyHitters::new(MAX_ENTRIES),
            closed_buckets: VecDeque::new(),
        };
        Self {
            start: now,
            current_tick: 0,
            current: HeavyHitters::new(MAX_ENTRIES),
            windows: [
                new_window(Window::OneMinute, 1),
                new_window(Window::FiveMinutes, 6),
                new_window(Window::SixtyMinutes, 60),
            ],
        }
    }

    /// Adds usage of a name to the current tick.
    pub(crate) fn add(&mut self, key: HashKey, name: Arc<str>, weights: Weights) {
        self.current.add(key, name, weights);
    }

    /// Adds usage whose name is not known to the current tick.
    pub(crate) fn add_unattributed(&mut self, weights: Weights) {
        self.current.add_unattributed(weights);
    }

    /// Rotates the buckets if a tick has passed since the last call.
    pub(crate) fn advance(&mut self, now: Instant) {
        let tick = self.tick_at(now);
        if tick <= self.current_tick {
            return;
        }
        for window in &mut self.windows {
            window.rotate(&self.current, self.current_tick, tick);
        }
        self.current.clear();
        self.current_tick = tick;
    }

    /// Returns the usage in a window at `now`. The windows must have been [advanced](Self::advance)
    /// to `now`.
    pub(crate) fn view(&self, window: Window, now: Instant) -> WindowView {
        // No limit is needed: each bucket is bounded.
        let mut table = HeavyHitters::new(usize::MAX);
        table.merge(&self.current);
        let mut covered = Duration::ZERO;
        for selected in self.windows.iter().filter(|one| one.window == window) {
            selected.merge_into(&mut table);
            let tick = selected.start_tick(self.current_tick);
            let start = self.start + TICK.saturating_mul(saturating_u32(tick));
            covered = now.saturating_duration_since(start);
        }
        WindowView { table, covered }
    }

    /// All buckets, for another process.
    pub(crate) fn save(&self, now: Instant) -> SavedWindows {
        let elapsed = now.saturating_duration_since(self.start);
        let bucket = |(end, table): &(u64, HeavyHitters)| (*end, table.save());
        let window = |window: &SlidingWindow| SavedWindow {
            open: window.open_bucket.save(),
            closed: window.closed_buckets.iter().map(bucket).collect(),
        };
        SavedWindows {
            elapsed_ms: saturating_u64(elapsed.as_millis()),
            current_tick: self.current_tick,
            current: self.current.save(),
            windows: self.windows.iter().map(window).collect(),
        }
    }

    /// The windows of another process, as old as they were there. `None` if they have another form.
    pub(crate) fn restore(
        saved: &SavedWindows,
        now: Instant,
        key: impl Fn(&str) -> HashKey + Copy,
    ) -> Option<Self> {
        let elapsed = Duration::from_millis(saved.elapsed_ms);
        let mut restored = Self::new(now.checked_sub(elapsed)?);
        if saved.windows.len() != restored.windows.len()
            || saved.current_tick > restored.tick_at(now)
        {
            return None;
        }
        restored.current_tick = saved.current_tick;
        restored.current = HeavyHitters::restore(&saved.current, key)?;
        for (window, saved) in restored.windows.iter_mut().zip(&saved.windows) {
            if saved.closed.len() > MAX_CLOSED_BUCKETS {
                return None;
            }
            window.open_bucket = HeavyHitters::restore(&saved.open, key)?;
            for (end, table) in &saved.closed {
                let table = HeavyHitters::restore(table, key)?;
                window.closed_buckets.push_back((*end, table));
            }
        }
        Some(restored)
    }

    fn tick_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / TICK.as_secs()
    }
}

impl SlidingWindow {
    /// Merges the usage of tick `previous` into the open bucket, closes the bucket if it has ended,
    /// and removes expired buckets. `current` is the tick of now.
    fn rotate(&mut self, bucket: &HeavyHitters, previous: u64, current: u64) {
        self.open_bucket.merge(bucket);
        let end = (previous / self.bucket_ticks + 1) * self.bucket_ticks;
        if current >= end {
            self.closed_buckets
                .push_back((end, self.open_bucket.compact()));
            self.open_bucket.clear();
        }
        let start = self.start_tick(current);
        while self
            .closed_buckets
            .front()
            .is_some_and(|(end, _)| *end <= start)
        {
            self.closed_buckets.pop_front();
        }
    }

    /// Returns the first tick from which all usage is present: the start of the bucket that
    /// contains the window's start.
    const fn start_tick(&self, current: u64) -> u64 {
        current.saturating_sub(self.window_ticks) / self.bucket_ticks * self.bucket_ticks
    }

    fn merge_into(&self, view: &mut HeavyHitters) {
        let closed = self.closed_buckets.iter().map(|(_, bucket)| bucket);
        for bucket in std::iter::once(&self.open_bucket).chain(closed) {
            view.merge(bucket);
        }
    }
}

const fn ticks_in_window(window: Window) -> u64 {
    window.duration().as_secs() / TICK.as_secs()
}
