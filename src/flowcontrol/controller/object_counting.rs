//! Object counts that weir asks for: which resources are listed through it, and what was answered.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use prometheus::IntCounterVec;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::lock;
use crate::flowcontrol::work_estimator::count_schedule::CountCall;
use crate::flowcontrol::work_estimator::count_schedule::CountOutcome;
use crate::flowcontrol::work_estimator::count_schedule::CountSchedule;
use crate::flowcontrol::work_estimator::count_schedule::CountableResource;
use crate::flowcontrol::work_estimator::count_schedule::NextCountCall;
use crate::flowcontrol::work_estimator::depends_on_count;
use crate::flowcontrol::work_estimator::object_counts::lists_objects;
use crate::metrics::Registry;
use crate::request_info::RequestInfo;

/// What the controller keeps for it.
pub(super) struct ObjectCounting {
    /// Whether counts are asked for at all. Nothing is noted before.
    enabled: AtomicBool,
    schedule: Mutex<CountSchedule>,
    /// A resource was listed for the first time.
    resource_listed: Notify,
    calls: IntCounterVec,
}

impl ObjectCounting {
    pub(super) fn new(registry: &Registry) -> Self {
        let calls = registry.counters(
            "weir_object_count_calls_total",
            "Calls to the API server for object counts that its metrics do not tell, by result: reviews of whether weir may list (allowed, denied, no-reviews), and lists of one object (counted, uncountable, denied); failed is either.",
            &["result"],
        );
        Self {
            enabled: AtomicBool::new(false),
            schedule: Mutex::new(CountSchedule::new(Clock.now())),
            resource_listed: Notify::new(),
            calls,
        }
    }

    fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }
}

impl Controller {
    /// Notes from now on which resources are listed, for [`Controller::next_count_call`].
    pub fn enable_object_counting(&self) {
        self.object_counting.enabled.store(true, Ordering::Relaxed);
    }

    /// Takes in that the API server answered this request 200.
    pub fn record_listed_resource(&self, info: &RequestInfo<'_>) {
        if !self.object_counting.is_enabled() || !lists_objects(info) || !depends_on_count(info) {
            return;
        }
        if lock(&self.object_counting.schedule).record_list(Clock.now(), info) {
            self.object_counting.resource_listed.notify_one();
        }
    }

    /// Whether a list of a part of the objects tells something: how large they are, where only their
    /// number is known.
    #[must_use]
    pub fn lacks_size(&self, info: &RequestInfo<'_>) -> bool {
        self.object_counting.is_enabled()
            && lists_objects(info)
            && lock(&self.object_counts).lacks_size(info.api_group(), info.resource())
    }

    /// What to ask the API server next, and when.
    #[must_use]
    pub fn next_count_call(&self) -> NextCountCall {
        let now = Clock.now();
        lock(&self.object_counting.schedule).next(now, |of| {
            lock(&self.object_counts).needs_count(now, of.group.as_bytes(), of.resource.as_bytes())
        })
    }

    /// Takes in how that call ended.
    pub fn finish_count_call(&self, call: &CountCall, outcome: CountOutcome) {
        let result = match outcome {
            CountOutcome::Allowed => "allowed",
            CountOutcome::Denied => "denied",
            CountOutcome::NoReviews => "no-reviews",
            CountOutcome::Counted => "counted",
            CountOutcome::Uncountable => "uncountable",
            CountOutcome::Failed => "failed",
        };
        self.object_counting
            .calls
            .with_label_values(&[result])
            .inc();
        lock(&self.object_counting.schedule).record_outcome(Clock.now(), call, outcome);
    }

    /// Takes in how many objects there are of a resource that was asked about.
    pub fn record_polled_count(&self, of: &CountableResource, count: u64) {
        let (group, resource) = (of.group.as_bytes(), of.resource.as_bytes());
        lock(&self.object_counts).record_polled_count(Clock.now(), group, resource, count);
    }

    /// Waits until a resource is listed for the first time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn wait_for_new_resource(&self) {
        self.object_counting.resource_listed.notified().await;
    }
}
