//! In the place of traces, where weir is built without the feature `otlp`: a configuration of them is refused.

use std::convert::Infallible;
use std::time::Instant;

use crate::metrics::Registry;
use crate::pipeline::record::Record;
use crate::pipeline::record::RequestObserver;

/// `TracingConfiguration`, of which there can be none.
pub mod config {
    use std::convert::Infallible;

    use crate::document::Diagnostics;
    use crate::document::Node;

    /// Never there.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TracingConfig {
        /// Of a million requests whose client has not begun a trace, so many are traced.
        pub sampling_rate_per_million: u32,
        pub(super) never: Infallible,
    }

    /// A fault, whatever it says.
    pub fn parse(documents: &[Node], faults: &mut Diagnostics) -> Option<TracingConfig> {
        if let Some(document) = documents.first() {
            let why = "this weir sends no traces: it was built without the cargo feature otlp";
            faults.report_error(&document.location, "", why);
        }
        None
    }
}

/// None.
#[derive(Clone, Copy, Debug)]
pub struct SpanMetrics;

impl SpanMetrics {
    /// There is nothing to register.
    #[must_use]
    pub const fn register(_: &Registry) -> Self {
        Self
    }
}

/// Never there.
#[derive(Clone, Copy, Debug)]
pub struct SpanProcessor(Infallible);

impl SpanProcessor {
    /// Cannot be called.
    #[must_use]
    pub const fn start(config: config::TracingConfig, _: SpanMetrics) -> Self {
        Self(config.never)
    }

    /// Cannot be called.
    #[expect(clippy::unused_async, reason = "as where there are traces")]
    pub async fn finish(&self) {
        match self.0 {}
    }
}

impl RequestObserver for SpanProcessor {
    fn on_ended(&self, _: &Record, _: Instant) {
        match self.0 {}
    }
}
