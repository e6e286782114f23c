//! Who is told of each request: the logs, and whoever traces.

use std::sync::Arc;

use crate::metrics::Registry;
use crate::observe::request_log::AccessLog;
use crate::observe::request_log::RejectionLog;
use crate::observe::spans;
use crate::observe::spans::Spans;
use crate::pipeline::record::Witness;
use crate::pipeline::record::Witnesses;
use crate::pipeline::traced::Sampler;

/// The logs of requests, and their traces.
#[derive(Clone, Debug)]
pub(super) struct Onlookers {
    rejections: Arc<RejectionLog>,
    spans: Option<Arc<Spans>>,
    /// Which requests are traced, if any are.
    pub(super) sampler: Option<Sampler>,
}

impl Onlookers {
    pub(super) fn start(tracing: Option<spans::config::Config>, registry: &Registry) -> Self {
        let metrics = spans::Metrics::register(registry);
        Self {
            rejections: Arc::default(),
            sampler: tracing
                .as_ref()
                .map(|tracing| Sampler::new(tracing.rate_per_million)),
            spans: tracing.map(|tracing| Arc::new(Spans::start(tracing, metrics))),
        }
    }

    /// Those of one worker: `others` and the logs.
    pub(super) fn witnesses(&self, others: [Arc<dyn Witness>; 2]) -> Witnesses {
        let rejections: Arc<dyn Witness> = Arc::<RejectionLog>::clone(&self.rejections);
        let mut all = Vec::from(others);
        all.extend([rejections, Arc::new(AccessLog)]);
        let spans = self.spans.as_ref();
        all.extend(spans.map(|spans| -> Arc<dyn Witness> { Arc::<Spans>::clone(spans) }));
        all.into()
    }

    /// Sums up each second what was not logged.
    pub(super) async fn run(self) {
        self.rejections.run().await;
    }

    /// Sends what is still to be sent.
    pub(super) async fn finish(self) {
        if let Some(spans) = self.spans {
            spans.finish().await;
        }
    }
}
