//! Who does most: users, user agents, source addresses, namespaces, resources and flows, by requests, seat-seconds, bytes, rejections and time
//! in queues, over the last 1, 5 and 60 minutes.
//!
//! Memory is bounded whatever clients call themselves: a [`table`] forgets those who matter least, and says by how much what
//! it shows may be too low. `/debug/top_talkers` serves it.
//!
//! Each worker counts on a [`Desk`] of its own, which costs it a few hash look-ups. What lies there is carried together every
//! second, when somebody asks, and when a desk is full. No worker ever waits: if it cannot get at its desk, or at the
//! common tables while its own are full, what it would count becomes part of the error, so that what is shown stays true.

mod desk;
mod name;
mod query;
mod table;
#[cfg(test)]
mod tests;
mod weights;
mod windows;
mod witness;
#[cfg(test)]
mod witness_tests;

use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use tokio::time::MissedTickBehavior;

use self::windows::View;
use self::windows::Windows;
use crate::clock::Clock;
use crate::keyed::Secret;

pub use self::desk::Desk;
pub use self::name::Name;
pub use self::query::Amounts;
pub use self::query::BadQuery;
pub use self::query::By;
pub use self::query::Query;
pub use self::query::Row;
pub use self::query::Sort;
pub use self::query::Top;
pub use self::query::Window;
pub use self::weights::Weights;

/// How often desks are emptied: what is done is counted at most so much late.
const EMPTIED_EVERY: Duration = Duration::from_secs(1);

/// How many things are told apart.
const KINDS: usize = By::ALL.len();

/// Who does most.
pub struct Talkers {
    common: Arc<Common>,
    seats_without_decision: u64,
    /// One for each worker; they stay.
    desks: Mutex<Vec<Arc<Desk>>>,
}

/// What all desks share.
struct Common {
    /// Of this process, so that nobody can look for names that meet.
    secret: RandomState,
    /// What requests are compared by that may be alike.
    quick: Secret,
    /// What all counts come to, by [`By`]. Held while a desk is emptied, a part closed or a window shown.
    windows: Mutex<[Windows; KINDS]>,
}

impl Talkers {
    /// Nobody has done anything yet. `seats_without_decision`: what a request takes that no priority level decided on; 1 where
    /// requests are only counted, 0 where there is fairness.
    #[must_use]
    pub fn new(now: Instant, seats_without_decision: u64) -> Arc<Self> {
        let common = Common {
            secret: RandomState::new(),
            quick: Secret::default(),
            windows: Mutex::new(By::ALL.map(|_| Windows::new(now))),
        };
        Arc::new(Self {
            common: Arc::new(common),
            seats_without_decision,
            desks: Mutex::default(),
        })
    }

    /// Where one worker counts.
    #[must_use]
    pub fn desk(&self) -> Arc<Desk> {
        let common = Arc::clone(&self.common);
        let desk = Arc::new(Desk::new(common, self.seats_without_decision));
        locked(&self.desks).push(Arc::clone(&desk));
        desk
    }

    /// Who did most.
    #[must_use]
    pub fn top(&self, query: &Query) -> Top {
        self.top_at(query, Clock.now())
    }

    fn top_at(&self, query: &Query, now: Instant) -> Top {
        self.gather(now);
        let view = {
            let windows = locked(&self.common.windows);
            let mut asked = windows.iter().zip(By::ALL);
            let asked = asked.find(|(_, by)| *by == query.by);
            asked.map(|(windows, _)| windows.view(query.window, now))
        };
        top_of(query, view.unwrap_or_else(View::empty))
    }

    /// Carries together what lies on the desks, for ever.
    ///
    /// # Cancel safety
    /// Nothing is lost; who asks carries together as well.
    pub async fn run(self: Arc<Self>) {
        let mut times = tokio::time::interval(EMPTIED_EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            self.gather(Clock.now());
        }
    }

    /// Carries together what lies on the desks.
    pub fn gather(&self, now: Instant) {
        let desks = locked(&self.desks).clone();
        for desk in desks {
            let sheets = desk.take();
            let mut windows = locked(&self.common.windows);
            for (mut sheet, windows) in sheets.into_iter().zip(windows.iter_mut()) {
                sheet.give(windows);
            }
        }
        for windows in locked(&self.common.windows).iter_mut() {
            windows.advance(now);
        }
    }
}

/// The first rows of a view.
fn top_of(query: &Query, view: View) -> Top {
    let View { table, covered } = view;
    let place = query.sort.place();
    let mut entries: Vec<_> = table.entries().collect();
    entries.retain(|entry| entry.seen.of(place) > 0);
    entries.sort_unstable_by(|a, b| {
        let most_first = b.seen.of(place).cmp(&a.seen.of(place));
        most_first.then_with(|| a.name.cmp(&b.name))
    });
    let rows = entries.into_iter().take(query.limit.min(Query::MOST));
    let rows = rows.map(|entry| Row {
        name: entry.name.to_string(),
        amounts: entry.seen.into(),
        error: entry.error.into(),
    });
    Top {
        query: *query,
        covered_seconds: covered.as_secs_f64(),
        total: table.total().into(),
        max_error: table.floor().into(),
        rows: rows.collect(),
    }
}

/// A count that was being written when somebody panicked is at worst too low by one request.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Talkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talkers").finish_non_exhaustive()
    }
}
