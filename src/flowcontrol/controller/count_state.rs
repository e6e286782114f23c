//! The state of the object counts that weir requests from the API server.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::IntCounterVec;
use tokio::sync::Notify;

use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_flowcontrol::work_estimator::count_schedule::CountSchedule;

/// The schedule of the count calls, and their metric.
pub(super) struct ObjectCounting {
    /// Whether weir requests counts at all. Until then, lists are not recorded.
    pub(super) enabled: AtomicBool,
    pub(super) schedule: Mutex<CountSchedule>,
    /// Notified when a resource is listed for the first time.
    pub(super) resource_listed: Notify,
    pub(super) calls: IntCounterVec,
}

impl ObjectCounting {
    pub(super) fn new(registry: &Registry) -> Self {
        let calls = registry.counters(
            "weir_object_count_calls_total",
            "Calls to the API server for object counts that its metrics do not have, by result: reviews of whether weir may list (allowed, denied, no-reviews), and lists of one object (counted, uncountable, denied); failed is either.",
            &["result"],
        );
        Self {
            enabled: AtomicBool::new(false),
            schedule: Mutex::new(CountSchedule::new(Clock.now())),
            resource_listed: Notify::new(),
            calls,
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}
