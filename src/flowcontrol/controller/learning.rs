//! What is learned of the number and the size of objects, by which later requests are estimated.

use std::sync::Arc;

use tokio::time::sleep;

use crate::api::event_scan::InitialEvents;
use crate::api::list_scan::Coding;
use crate::api::list_scan::Summary;
use crate::clock::Clock;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::controller::lock;
use crate::flowcontrol::list_samples::ListRequest;
use crate::flowcontrol::list_samples::Sampling;
use crate::flowcontrol::object_counts::ListAnswer;
use crate::flowcontrol::object_counts::Measure;
use crate::flowcontrol::resource_metrics::ResourceMetrics;

/// What an object in protobuf is longer by in storage than in a list: `k8s`, apiVersion and kind are around it there (15 bytes
/// and their lengths), the list's own tag (3) and the version (about 8) are not.
const AROUND_STORED: u64 = 16;

impl Controller {
    /// Takes in the answer to a list.
    pub fn learn(&self, list: &ListRequest, summary: Summary) {
        let Summary {
            items,
            remaining_items,
            continues,
            bytes,
            abridged,
            coding,
        } = summary;
        let measure = measure(coding, abridged, list);
        let around = match measure {
            Measure::Protobuf => items.saturating_mul(AROUND_STORED),
            Measure::Abridged | Measure::Text | Measure::Server => 0,
        };
        let answer = ListAnswer {
            items,
            remaining_items,
            continues,
            bytes: bytes.saturating_add(around),
            measure,
        };
        if let Some(info) = list.info() {
            lock(&self.objects).learn(Clock.now(), &info, answer);
        }
    }

    /// Takes in what a watch sent of what there was when it began: all of it if that is `complete`, at least so much if it is
    /// not.
    pub fn learn_initial(
        &self,
        watch: &ListRequest,
        events: InitialEvents,
        coding: Coding,
        complete: bool,
    ) {
        let answer = ListAnswer {
            items: events.objects,
            remaining_items: complete.then_some(0),
            continues: !complete,
            bytes: events.bytes,
            measure: measure(coding, events.abridged, watch),
        };
        if let Some(info) = watch.info() {
            lock(&self.objects).learn(Clock.now(), &info, answer);
        }
    }

    /// Takes in what kube-apiserver has counted itself: it goes before what is learned from answers for three minutes.
    pub fn learn_counted(&self, metrics: &ResourceMetrics) {
        lock(&self.objects).learn_counted(Clock.now(), metrics.counted());
    }

    /// Begins a compressed answer to a list; it is read by [`Controller::run`] when it has ended.
    #[must_use]
    pub fn sample(&self, list: ListRequest, coding: Coding) -> Sampling {
        Arc::clone(&self.samples).begin(list, coding)
    }

    /// Reads compressed answers, one after another, at a bounded rate. Runs until it is dropped.
    pub(super) async fn read_samples(&self) {
        loop {
            let sample = self.samples.next().await;
            if self.has_just_learned(sample.list()) {
                continue;
            }
            let (summary, time) = sample.read().await;
            if let Some(summary) = summary {
                self.learn(sample.list(), summary);
            }
            drop(sample); // it takes room
            sleep(time).await;
        }
    }

    fn has_just_learned(&self, list: &ListRequest) -> bool {
        list.info()
            .is_none_or(|info| lock(&self.objects).has_just_learned(Clock.now(), &info))
    }
}

fn measure(coding: Coding, abridged: bool, list: &ListRequest) -> Measure {
    match coding {
        _ if abridged || !list.whole_objects => Measure::Abridged,
        Coding::Json | Coding::Cbor => Measure::Text,
        Coding::Protobuf => Measure::Protobuf,
    }
}
