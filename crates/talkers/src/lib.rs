//! Top talkers: usage by user, user agent, source address, namespace, resource and flow. Usage is
//! requests, seat-seconds, bytes, rejections and time in queues, over the last 1, 5 and 60 minutes.
//!
//! Memory is bounded whatever names clients choose: `heavy_hitters` evicts the smallest entries
//! and keeps an upper bound for the error of each count. `/debug/top_talkers` serves the result.
//!
//! Each worker counts in its own [`WorkerShard`], at the cost of a few hash look-ups per request. A
//! shard is flushed into the shared tables every second, before a query, and when it is full. A
//! worker never waits: a shard has two halves, and while a flush locks one, the worker counts in the
//! other. If both are locked, or if a half is full while the shared tables are locked, the request's
//! usage is added to the error bound. The reported bounds therefore always hold.
//!
//! Counts of hashed names are shared with the tables after a hundred new names or a second; a name
//! is built only for its first request.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

mod heavy_hitters;
mod merged;
mod name;
mod query;
#[cfg(test)]
mod query_tests;
#[cfg(test)]
mod saved_tests;
mod sliding_windows;
#[cfg(test)]
mod tests;
mod weights;
mod worker_shard;

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use crate::sliding_windows::{SavedWindows, SlidingWindows, WindowView};
use crate::worker_shard::{DIMENSIONS, SharedState};
use weir_base::clock::Clock;

pub use self::merged::{MergedTalkers, TalkerTable};
pub use self::name::TalkerName;
pub use self::query::{
    Dimension, TalkerRow, TopTalkersQuery, TopTalkersReport, Usage, UsageMeasure, Window,
};
pub use self::weights::Weights;
pub use self::worker_shard::WorkerShard;

/// The interval at which shards are flushed: the longest delay until usage is counted.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Counts usage of all workers and answers queries for the top talkers.
pub struct TopTalkers {
    shared: Arc<SharedState>,
    /// Shared with the shards. Relaxed: no other memory depends on it.
    default_seats: Arc<AtomicU64>,
    /// One shard per worker. Shards are never removed.
    shards: Mutex<Vec<Arc<WorkerShard>>>,
}

/// The counts of all dimensions, as they are handed over to another process of weir.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTalkers {
    /// In the order of the dimensions.
    dimensions: Vec<SavedWindows>,
}

impl TopTalkers {
    /// Creates empty windows that start at `now`.
    ///
    /// `seats_without_decision` is the number of seats that a request is counted with if no
    /// priority level decided on it: 1 with max-in-flight, where requests are only counted; 0 with
    /// API Priority and Fairness.
    #[must_use]
    pub fn new(now: Instant, seats_without_decision: u64) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::new(SharedState::new(now)),
            default_seats: Arc::new(AtomicU64::new(seats_without_decision)),
            shards: Mutex::default(),
        })
    }

    /// Creates the shard of one worker.
    #[must_use]
    pub fn new_shard(&self) -> Arc<WorkerShard> {
        let shared = Arc::clone(&self.shared);
        let shard = Arc::new(WorkerShard::new(shared, Arc::clone(&self.default_seats)));
        self.shards.lock().push(Arc::clone(&shard));
        shard
    }

    /// Changes the number of seats that a request is counted with if no priority level decided on
    /// it.
    pub fn set_seats_without_decision(&self, seats: u64) {
        self.default_seats.store(seats, Ordering::Relaxed);
    }

    /// Flushes all shards and returns the top talkers for a query.
    #[must_use]
    pub fn top(&self, query: &TopTalkersQuery) -> TopTalkersReport {
        self.top_at(query, Clock.now())
    }

    /// The same at this time.
    #[must_use]
    pub fn top_at(&self, query: &TopTalkersQuery, now: Instant) -> TopTalkersReport {
        self.flush_shards(now);
        let view = {
            let windows = self.shared.windows.lock();
            let mut by_dimension = windows.iter().zip(Dimension::ALL);
            let found = by_dimension.find(|(_, dimension)| *dimension == query.by);
            found.map(|(windows, _)| windows.view(query.window, now))
        };
        build_report(query, view.unwrap_or_else(WindowView::empty))
    }

    /// The tables of these windows for another replica: the first `per_measure` entries of each
    /// measure.
    #[must_use]
    pub fn tables(&self, now: Instant, windows: &[Window], per_measure: usize) -> Vec<TalkerTable> {
        self.flush_shards(now);
        let mut tables = Vec::new();
        for window in windows {
            for (place, by) in Dimension::ALL.into_iter().enumerate() {
                // Locked for one table at a time: workers flush their shards into them.
                let view = self
                    .shared
                    .windows
                    .lock()
                    .get(place)
                    .map(|windows| windows.view(*window, now));
                let table =
                    view.map(|view| TalkerTable::new(&view.table, by, *window, per_measure));
                tables.extend(table);
            }
        }
        tables
    }

    /// All counts, for another process.
    #[must_use]
    pub fn save(&self, now: Instant) -> SavedTalkers {
        self.flush_shards(now);
        let windows = self.shared.windows.lock();
        SavedTalkers {
            dimensions: windows.iter().map(|windows| windows.save(now)).collect(),
        }
    }

    /// Replaces all counts by those of another process. Counts that have another form are ignored:
    /// returns whether they were replaced. A name that was truncated counts as another one from then
    /// on.
    pub fn restore(&self, now: Instant, saved: &SavedTalkers) -> bool {
        let key = |name: &str| TalkerName::new(&[name.as_bytes()]).key(&self.shared.name_hasher);
        let restored = saved.dimensions.iter();
        let restored: Option<Vec<_>> = restored
            .map(|windows| SlidingWindows::restore(windows, now, key))
            .collect();
        let restored: Option<[_; DIMENSIONS]> = restored.and_then(|all| all.try_into().ok());
        let is_restored = restored.is_some();
        if let Some(restored) = restored {
            *self.shared.windows.lock() = restored;
        }
        is_restored
    }

    /// Flushes all shards at an interval. Never returns.
    ///
    /// # Cancel safety
    /// Nothing is lost: queries flush the shards as well.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(FLUSH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.flush_shards(Clock.now());
        }
    }

    /// Moves the counts of all shards into the shared windows and advances the windows to `now`.
    pub fn flush_shards(&self, now: Instant) {
        let shards = self.shards.lock().clone();
        for shard in shards {
            shard.drain(|batches| {
                let mut windows = self.shared.windows.lock();
                for (mut batch, windows) in batches.into_iter().zip(windows.iter_mut()) {
                    batch.flush_into(windows);
                }
            });
        }
        for windows in self.shared.windows.lock().iter_mut() {
            windows.advance(now);
        }
    }
}

/// Builds the report from the first rows of a view: largest first, equal ones by name.
fn build_report(query: &TopTalkersQuery, view: WindowView) -> TopTalkersReport {
    let WindowView { table, covered } = view;
    let measure = query.sort.index();
    let mut entries: Vec<_> = table.entries().collect();
    entries.retain(|entry| entry.count.get(measure) > 0);
    entries.sort_unstable_by(|a, b| {
        let most_first = b.count.get(measure).cmp(&a.count.get(measure));
        most_first.then_with(|| a.name.cmp(&b.name))
    });
    let rows = entries
        .into_iter()
        .take(query.limit.min(TopTalkersQuery::MAX_LIMIT));
    let rows = rows.map(|entry| TalkerRow {
        name: entry.name.to_string(),
        usage: entry.count.into(),
        error: entry.error.into(),
    });
    TopTalkersReport {
        query: *query,
        covered_seconds: covered.as_secs_f64(),
        total: table.total().into(),
        max_error: table.cutoff().into(),
        rows: rows.collect(),
    }
}

impl fmt::Debug for TopTalkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopTalkers").finish_non_exhaustive()
    }
}
