//! Records the number and size of objects, which determine the estimates of later requests.

use super::apf_controller::Controller;
use weir_base::clock::Clock;
use weir_flowcontrol::work_estimator::object_counts::{FullList, ListResponse, SavedCount};
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;

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
