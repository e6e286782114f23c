//! Requests of clients that got no answer: how many, and what was last wrong.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Instant;

use crate::upstream::ForwardError;

/// What failed.
#[derive(Debug, Default)]
pub struct FailureStats(Mutex<FailureSnapshot>);

/// What has been noted of them.
#[derive(Clone, Debug, Default)]
pub struct FailureSnapshot {
    /// How many, by [`ForwardError::label`].
    pub by_cause: BTreeMap<&'static str, u64>,
    /// The last.
    pub last: Option<(Instant, ForwardError)>,
}

impl FailureStats {
    /// One more, at `now`.
    pub fn record(&self, failure: &ForwardError, now: Instant) {
        let mut noted = self.lock();
        *noted.by_cause.entry(failure.label()).or_default() += 1;
        noted.last = Some((now, failure.clone()));
    }

    /// All so far.
    #[must_use]
    pub fn snapshot(&self) -> FailureSnapshot {
        self.lock().clone()
    }

    /// Held for a few additions.
    fn lock(&self) -> MutexGuard<'_, FailureSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
