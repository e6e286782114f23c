//! The number and size of objects, which determine the estimates of later requests: those that
//! responses and metrics show, and those that weir requests.

use std::sync::atomic::Ordering;

use super::apf_controller::Controller;
use weir_base::clock::Clock;
use weir_flowcontrol::work_estimator::count_schedule::{
    CountCall, CountOutcome, CountableResource, NextCountCall,
};
use weir_flowcontrol::work_estimator::depends_on_count;
use weir_flowcontrol::work_estimator::object_counts::{
    FullList, ListResponse, SavedCount, lists_objects,
};
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use weir_kubernetes::request_info::RequestInfo;

impl Controller {
    /// Starts to record which resources are listed, for [`Controller::next_count_call`].
    pub(crate) fn enable_object_counting(&self) {
        self.object_counting.enabled.store(true, Ordering::Relaxed);
    }

    /// Records that the API server answered this list with 200.
    pub(crate) fn record_listed_resource(&self, info: &RequestInfo<'_>) {
        if !self.object_counting.is_enabled() || !lists_objects(info) || !depends_on_count(info) {
            return;
        }
        if self
            .object_counting
            .schedule
            .lock()
            .record_list(Clock.now(), info)
        {
            self.object_counting.resource_listed.notify_one();
        }
    }

    /// The next call to the API server, and when to make it.
    #[must_use]
    pub(crate) fn next_count_call(&self) -> NextCountCall {
        let now = Clock.now();
        self.object_counting.schedule.lock().next(now, |resource| {
            self.object_counts.lock().needs_count(
                now,
                resource.group.as_bytes(),
                resource.resource.as_bytes(),
            )
        })
    }

    /// Records the result of that call.
    pub(crate) fn finish_count_call(&self, call: &CountCall, outcome: CountOutcome) {
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
        self.object_counting
            .schedule
            .lock()
            .record_outcome(Clock.now(), call, outcome);
    }

    /// Records a polled number of objects.
    pub(crate) fn record_polled_count(&self, resource: &CountableResource, count: u64) {
        let (group, resource) = (resource.group.as_bytes(), resource.resource.as_bytes());
        self.object_counts
            .lock()
            .record_polled_count(Clock.now(), group, resource, count);
    }

    /// Waits until a resource is listed for the first time.
    ///
    /// # Cancel safety
    /// No notification is lost.
    pub(crate) async fn wait_for_new_resource(&self) {
        self.object_counting.resource_listed.notified().await;
    }
}

impl Controller {
    /// Records the response to a list, or the initial events of a watch.
    pub(crate) fn record_list_response(&self, list: &FullList, response: ListResponse) {
        self.object_counts
            .lock()
            .record_list(Clock.now(), list, response);
    }

    /// Records the counts from kube-apiserver's metrics. For three minutes they take precedence
    /// over counts from responses.
    pub(crate) fn record_server_counts(&self, metrics: &ResourceMetrics) {
        self.object_counts
            .lock()
            .record_server_counts(Clock.now(), metrics.counts());
    }

    /// All counts and sizes, for another process.
    #[must_use]
    pub(crate) fn save_counts(&self) -> Vec<SavedCount> {
        self.object_counts.lock().save(Clock.now())
    }

    /// Takes over the counts and sizes of another process.
    pub(crate) fn restore_counts(&self, saved: &[SavedCount]) {
        self.object_counts.lock().restore(Clock.now(), saved);
    }
}
