//! Counts requests of clients that got no response, and keeps the last failure.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Instant;

use crate::upstream::connection::error::ForwardError;

/// Failures so far.
#[derive(Debug, Default)]
pub(crate) struct FailureStats(Mutex<FailureSnapshot>);

/// A copy of the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureSnapshot {
    /// The number of failures by [`ForwardError::label`].
    pub(crate) by_cause: BTreeMap<&'static str, u64>,
    /// The last failure, with its time.
    pub(crate) last: Option<(Instant, ForwardError)>,
}

impl FailureStats {
    /// Counts a failure at `now`.
    pub(crate) fn record(&self, failure: &ForwardError, now: Instant) {
        let mut stats = self.lock();
        *stats.by_cause.entry(failure.label()).or_default() += 1;
        stats.last = Some((now, failure.clone()));
    }

    /// All failures so far.
    #[must_use]
    pub(crate) fn snapshot(&self) -> FailureSnapshot {
        self.lock().clone()
    }

    /// The lock is held for a few additions.
    fn lock(&self) -> MutexGuard<'_, FailureSnapshot> {
        self.0.lock()
    }
}
