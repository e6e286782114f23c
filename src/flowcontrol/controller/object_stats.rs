//! Records the number and size of objects, which determine the estimates of later requests.

use std::sync::Arc;

use tokio::time::sleep;

use super::apf_controller::Controller;
use crate::flowcontrol::list_samples::{ListRequest, ListSampleBuilder};
use weir_base::clock::Clock;
use weir_flowcontrol::work_estimator::object_counts::{ListResponse, SavedCount, SizeAccuracy};
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use weir_kubernetes::api::list_scan::ListSummary;
use weir_kubernetes::api::media_type::MediaType;
use weir_kubernetes::api::watch_frames::InitialEvents;

/// The bytes that an object in protobuf is longer in storage than in a list. In storage, `k8s`,
/// apiVersion and kind are added (15 bytes and their lengths). The list's own tag (3) and the
/// version (about 8) are not stored.
const STORAGE_OVERHEAD_BYTES: u64 = 16;

impl Controller {
    /// Records the response to a list.
    pub(crate) fn record_list_response(&self, list: &ListRequest, summary: ListSummary) {
        let ListSummary {
            items,
            remaining_items,
            has_continue_token: continues,
            bytes,
            transformed: abridged,
            media_type: coding,
        } = summary;
        let measure = size_accuracy(coding, abridged, list);
        let around = match measure {
            SizeAccuracy::Protobuf => items.saturating_mul(STORAGE_OVERHEAD_BYTES),
            SizeAccuracy::Abridged | SizeAccuracy::Text | SizeAccuracy::Server => 0,
        };
        let answer = ListResponse {
            items,
            remaining_items,
            has_continue: continues,
            bytes: bytes.saturating_add(around),
            accuracy: measure,
        };
        if let Some(info) = list.info() {
            self.object_counts
                .lock()
                .record_list(Clock.now(), &info, answer);
        }
    }

    /// Records all initial events of a watch.
    pub(crate) fn record_initial_events(
        &self,
        watch: &ListRequest,
        events: InitialEvents,
        coding: MediaType,
    ) {
        let answer = ListResponse {
            items: events.objects,
            remaining_items: None,
            has_continue: false,
            bytes: events.bytes,
            accuracy: size_accuracy(coding, false, watch),
        };
        if let Some(info) = watch.info() {
            self.object_counts
                .lock()
                .record_list(Clock.now(), &info, answer);
        }
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

    /// Starts to sample a compressed response to a list. [`Controller::run`] reads the sample after
    /// the response has ended.
    #[must_use]
    pub(crate) fn start_list_sample(
        &self,
        list: ListRequest,
        coding: MediaType,
    ) -> ListSampleBuilder {
        Arc::clone(&self.list_samples).start_sample(list, coding)
    }

    /// Reads the samples of compressed responses, one after another, at a bounded rate. Runs until
    /// it is dropped.
    pub(super) async fn process_list_samples(&self) {
        loop {
            let sample = self.list_samples.next().await;
            if self.has_fresh_size(sample.list()) {
                continue;
            }
            let (summary, time) = sample.scan().await;
            if let Some(summary) = summary {
                self.record_list_response(sample.list(), summary);
            }
            drop(sample); // frees its share of the memory
            sleep(time).await;
        }
    }

    fn has_fresh_size(&self, list: &ListRequest) -> bool {
        list.info()
            .is_none_or(|info| self.object_counts.lock().has_fresh_size(Clock.now(), &info))
    }
}

fn size_accuracy(coding: MediaType, abridged: bool, list: &ListRequest) -> SizeAccuracy {
    match coding {
        _ if abridged || !list.whole_objects => SizeAccuracy::Abridged,
        MediaType::Json | MediaType::Cbor => SizeAccuracy::Text,
        MediaType::Protobuf => SizeAccuracy::Protobuf,
    }
}
