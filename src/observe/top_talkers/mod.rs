//! Who does most: users, user agents, source addresses, namespaces, resources and flows, by requests, seat-seconds, bytes, rejections and time
//! in queues, over the last 1, 5 and 60 minutes.
//!
//! Memory is bounded whatever clients call themselves: a [`heavy_hitters`] forgets those who matter least, and says by how much what
//! it shows may be too low. `/debug/top_talkers` serves it.
//!
//! Each worker counts on a [`WorkerShard`] of its own, which costs it a few hash look-ups. What lies there is carried together every
//! second, when somebody asks, and when a desk is full. No worker ever waits: if it cannot get at its desk, or at the
//! common tables while its own are full, what it would count becomes part of the error, so that what is shown stays true.

mod heavy_hitters;
mod name;
mod observer;
#[cfg(test)]
mod observer_tests;
mod query;
mod sliding_windows;
#[cfg(test)]
mod tests;
mod weights;
mod worker_shard;

use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::hash_keys::HashSecret;
use crate::observe::top_talkers::sliding_windows::SlidingWindows;
use crate::observe::top_talkers::sliding_windows::WindowView;

pub use self::name::TalkerName;
pub use self::query::Dimension;
pub use self::query::QueryError;
pub use self::query::TalkerRow;
pub use self::query::TopTalkersQuery;
pub use self::query::TopTalkersReport;
pub use self::query::Usage;
pub use self::query::UsageMeasure;
pub use self::query::Window;
pub use self::weights::Weights;
pub use crate::observe::top_talkers::worker_shard::WorkerShard;

/// How often desks are emptied: what is done is counted at most so much late.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// How many things are told apart.
const DIMENSIONS: usize = Dimension::ALL.len();

/// Who does most.
pub struct TopTalkers {
    shared: Arc<SharedState>,
    default_seats: u64,
    /// One for each worker; they stay.
    shards: Mutex<Vec<Arc<WorkerShard>>>,
}

/// What all desks share.
pub(super) struct SharedState {
    /// Of this process, so that nobody can look for names that meet.
    name_hasher: RandomState,
    /// What requests are compared by that may be alike.
    fingerprint_secret: HashSecret,
    /// What all counts come to, by [`By`]. Held while a desk is emptied, a part closed or a window shown.
    windows: Mutex<[SlidingWindows; DIMENSIONS]>,
}

impl TopTalkers {
    /// Nobody has done anything yet. `seats_without_decision`: what a request takes that no priority level decided on; 1 where
    /// requests are only counted, 0 where there is fairness.
    #[must_use]
    pub fn new(now: Instant, seats_without_decision: u64) -> Arc<Self> {
        let common = SharedState {
            name_hasher: RandomState::new(),
            fingerprint_secret: HashSecret::default(),
            windows: Mutex::new(Dimension::ALL.map(|_| SlidingWindows::new(now))),
        };
        Arc::new(Self {
            shared: Arc::new(common),
            default_seats: seats_without_decision,
            shards: Mutex::default(),
        })
    }

    /// Where one worker counts.
    #[must_use]
    pub fn new_shard(&self) -> Arc<WorkerShard> {
        let common = Arc::clone(&self.shared);
        let desk = Arc::new(WorkerShard::new(common, self.default_seats));
        lock(&self.shards).push(Arc::clone(&desk));
        desk
    }

    /// Who did most.
    #[must_use]
    pub fn top(&self, query: &TopTalkersQuery) -> TopTalkersReport {
        self.top_at(query, Clock.now())
    }

    fn top_at(&self, query: &TopTalkersQuery, now: Instant) -> TopTalkersReport {
        self.flush_shards(now);
        let view = {
            let windows = lock(&self.shared.windows);
            let mut asked = windows.iter().zip(Dimension::ALL);
            let asked = asked.find(|(_, by)| *by == query.by);
            asked.map(|(windows, _)| windows.view(query.window, now))
        };
        build_report(query, view.unwrap_or_else(WindowView::empty))
    }

    /// Carries together what lies on the desks, for ever.
    ///
    /// # Cancel safety
    /// Nothing is lost; who asks carries together as well.
    pub async fn run(self: Arc<Self>) {
        let mut times = tokio::time::interval(FLUSH_INTERVAL);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            self.flush_shards(Clock.now());
        }
    }

    /// Carries together what lies on the desks.
    pub fn flush_shards(&self, now: Instant) {
        let desks = lock(&self.shards).clone();
        for desk in desks {
            let sheets = desk.drain();
            let mut windows = lock(&self.shared.windows);
            for (mut sheet, windows) in sheets.into_iter().zip(windows.iter_mut()) {
                sheet.flush_into(windows);
            }
        }
        for windows in lock(&self.shared.windows).iter_mut() {
            windows.advance(now);
        }
    }
}

/// The first rows of a view.
fn build_report(query: &TopTalkersQuery, view: WindowView) -> TopTalkersReport {
    let WindowView { table, covered } = view;
    let place = query.sort.index();
    let mut entries: Vec<_> = table.entries().collect();
    entries.retain(|entry| entry.count.get(place) > 0);
    entries.sort_unstable_by(|a, b| {
        let most_first = b.count.get(place).cmp(&a.count.get(place));
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

/// A count that was being written when somebody panicked is at worst too low by one request.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for TopTalkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talkers").finish_non_exhaustive()
    }
}
