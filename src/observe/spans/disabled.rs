//! Replaces the exporter of traces in builds without the feature `otlp`: a tracing configuration is
//! an error.

use std::convert::Infallible;
use std::time::Instant;

use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::metrics::Registry;

/// `TracingConfiguration`, of which no value exists.
pub(crate) mod config {
    use std::convert::Infallible;

    use weir_kubernetes::document::{Diagnostics, Node};

    /// A type without values.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TracingConfig {
        /// Requests that are traced, per million of those whose clients have not started a trace.
        pub sampling_rate_per_million: u32,
        pub(super) never: Infallible,
    }

    /// Reports an error for any document.
    pub(crate) fn parse(
        documents: &[Node],
        diagnostics: &mut Diagnostics,
    ) -> Option<TracingConfig> {
        if let Some(document) = documents.first() {
            let why = "this weir sends no traces: it was built without the cargo feature otlp";
            diagnostics.report_error(&document.location, "", why);
        }
        None
    }
}

/// No metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanMetrics;

impl SpanMetrics {
    /// Registers nothing.
    #[must_use]
    pub(crate) const fn register(_: &Registry) -> Self {
        Self
    }
}

/// A type without values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanProcessor(Infallible);

impl SpanProcessor {
    /// Cannot be called.
    #[must_use]
    pub(crate) const fn start(config: config::TracingConfig, _: SpanMetrics) -> Self {
        Self(config.never)
    }

    /// Cannot be called.
    #[expect(clippy::unused_async, reason = "as where there are traces")]
    pub(crate) async fn finish(&self) {
        match self.0 {}
    }
}

impl RequestObserver for SpanProcessor {
    fn on_ended(&self, _: &Record, _: Instant) {
        match self.0 {}
    }
}
