//! Requests by outcome: by status code, and by the limit that rejected them. Plain counters of
//! fixed size.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::limits::rejection::{
    ABANDONED_REQUESTS, LIST_BYTES, MEMORY_LIMIT, POLICY, POLICY_LIMIT, UNPROVEN_UPGRADES,
};
use crate::pipeline::reject::rejection::{EVENT_BODIES, LONG_RUNNING_SHARE};
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_limits::levers::{BLOCKED, LEVER_LIMIT};

/// HTTP status codes are 100 to 599. Greater ones are counted as the last.
const FIRST_CODE: u16 = 100;
const CODE_COUNT: usize = 500;

/// Totals since the start. Relaxed: no number depends on another.
#[derive(Debug)]
pub(crate) struct OutcomeCounts {
    by_code: Box<[AtomicU64]>,
    aborted: AtomicU64,
    /// Rejections.
    by_limit: [(&'static str, AtomicU64); 16],
}

impl Default for OutcomeCounts {
    fn default() -> Self {
        Self {
            by_code: (0..CODE_COUNT).map(|_| AtomicU64::new(0)).collect(),
            aborted: AtomicU64::new(0),
            by_limit: [
                ABANDONED_REQUESTS,
                BLOCKED,
                "client-limit",
                RejectReason::ConcurrencyLimit.label(),
                "event-rate-limit",
                EVENT_BODIES,
                LEVER_LIMIT,
                LIST_BYTES,
                LONG_RUNNING_SHARE,
                "max-in-flight",
                MEMORY_LIMIT,
                POLICY,
                POLICY_LIMIT,
                RejectReason::QueueFull.label(),
                RejectReason::TimeOut.label(),
                UNPROVEN_UPGRADES,
            ]
            .map(|limit| (limit, AtomicU64::new(0))),
        }
    }
}

impl OutcomeCounts {
    pub(super) fn record_outcome(&self, outcome: RequestOutcome) {
        if let RequestOutcome::Rejected(limit) = outcome {
            let counter = self.by_limit.iter().find(|(name, _)| *name == limit);
            counter.inspect(|(_, count)| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        let Some(code) = outcome.code() else {
            self.aborted.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let at = usize::from(code.as_u16().saturating_sub(FIRST_CODE));
        if let Some(count) = self.by_code.get(at.min(CODE_COUNT - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests by status code. Codes without requests are left out.
    #[must_use]
    pub(crate) fn by_code(&self) -> BTreeMap<u16, u64> {
        let counts = self
            .by_code
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        let counts = (FIRST_CODE..).zip(counts);
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Requests that a limit rejected, by limit. Limits without rejections are left out.
    #[must_use]
    pub(crate) fn by_limit(&self) -> BTreeMap<String, u64> {
        let counts = self.by_limit.iter();
        let counts =
            counts.map(|(limit, count)| ((*limit).to_owned(), count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Requests that their clients aborted before the response.
    #[must_use]
    pub(crate) fn aborted(&self) -> u64 {
        self.aborted.load(Ordering::Relaxed)
    }
}

impl RequestObserver for OutcomeCounts {
    fn on_ended(&self, record: &Record, _: Instant) {
        self.record_outcome(record.outcome);
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn every_status_code_is_counted() {
        let counts = OutcomeCounts::default();
        for code in [200, 429, 429, 100, 599, 999] {
            let code = StatusCode::from_u16(code).unwrap();
            counts.record_outcome(RequestOutcome::Responded(code));
        }
        counts.record_outcome(RequestOutcome::NoResponse);
        let codes = counts.by_code();
        assert_eq!(codes, [(100, 1), (200, 1), (429, 2), (599, 2)].into());
        assert_eq!(counts.aborted(), 1);
    }

    #[test]
    fn rejections_are_counted_by_limit() {
        let counts = OutcomeCounts::default();
        for limit in ["client-limit", "queue-full", "client-limit", "event-bodies"] {
            counts.record_outcome(RequestOutcome::Rejected(limit));
        }
        let by_limit = [("client-limit", 2), ("event-bodies", 1), ("queue-full", 1)];
        let by_limit = by_limit.map(|(limit, n)| (limit.to_owned(), n)).into();
        assert_eq!(counts.by_limit(), by_limit);
        assert_eq!(counts.by_code(), [(429, 4)].into());
    }
}
