//! Counts the requests that limits in a dry run would have rejected, and names the users with most of them.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::IntCounterVec;

use crate::limits::Rejection;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::metrics::Registry;
use weir_limits::rate::top_keys::{TopKey, TopKeys};

/// Counts the requests that limits in a dry run would have rejected.
#[derive(Debug)]
pub(crate) struct DryRunCounts {
    total: IntCounterVec,
    /// Locked for one rejection.
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    by_limit: BTreeMap<&'static str, u64>,
    top_users: TopKeys,
}

impl DryRunCounts {
    /// No requests yet. Registers its metric.
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            total: register_rejections(registry),
            counts: Mutex::default(),
        }
    }

    /// The requests that would have been rejected, by limit.
    #[must_use]
    pub(crate) fn by_limit(&self) -> BTreeMap<String, u64> {
        let counts = self.counts.lock();
        let by_limit = counts.by_limit.iter();
        by_limit
            .map(|(limit, n)| ((*limit).to_owned(), *n))
            .collect()
    }

    /// The users whose requests would have been rejected most.
    #[must_use]
    pub(crate) fn top_users(&self) -> Vec<TopKey> {
        self.counts.lock().top_users.sorted()
    }
}

/// Registers the metric.
#[must_use]
pub fn register_rejections(registry: &Registry) -> IntCounterVec {
    registry.counters(
        "weir_dry_run_rejections_total",
        "Requests that a limit would have rejected that only counts, by limit.",
        &["limit"],
    )
}

impl RequestObserver for DryRunCounts {
    fn on_dry_run_rejection(&self, record: &Record, rejection: &Rejection) {
        let limit = rejection.limit_label();
        self.total.with_label_values(&[limit]).inc();
        let user = record.effective_user().map(|user| &*user.name);
        let mut counts = self.counts.lock();
        *counts.by_limit.entry(limit).or_default() += 1;
        counts.top_users.add(user.unwrap_or_default().as_bytes());
    }

    fn on_ended(&self, _: &Record, _: Instant) {}
}
