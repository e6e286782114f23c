//! Traces by OpenTelemetry: for each traced request one span, and a second one for its upstream
//! request.
//!
//! `pipeline` decides which requests are traced. The API server's own spans are children of the
//! second span. Names and attributes follow kube-apiserver's spans and OpenTelemetry's conventions
//! for HTTP; weir's decision is added to them. Spans are built when the request has ended, and wait
//! for the collector in a bounded queue.
//!
//! OpenTelemetry's SDK sends them, but does not queue them: its batches count no span that they
//! drop, and have a thread of their own. A build without the cargo feature `otlp` has no SDK, and a
//! tracing configuration is an error. Without `--tracing-config-file` the exporter costs a check of
//! an `Option`.

pub mod config;
#[cfg(feature = "otlp")]
mod exporter;
mod metrics;
#[cfg(feature = "otlp")]
mod span_data;

#[cfg(not(feature = "otlp"))]
pub(crate) use crate::observe::spans::disabled::SpanProcessor;
#[cfg(feature = "otlp")]
pub(crate) use crate::observe::spans::exporter::SpanProcessor;
pub use crate::observe::spans::metrics::SpanMetrics;

/// What stands for the exporter in a build without it.
#[cfg(not(feature = "otlp"))]
mod disabled {
    use std::time::Instant;

    use crate::observe::spans::config::TracingConfig;
    use crate::observe::spans::metrics::SpanMetrics;
    use crate::pipeline::trace::record::{Record, RequestObserver};

    /// A type without values.
    #[derive(Debug)]
    pub(crate) enum SpanProcessor {}

    impl SpanProcessor {
        /// Returns `None`.
        pub(crate) fn start(_: TracingConfig, _: SpanMetrics) -> Option<Self> {
            None
        }

        /// Cannot be called.
        #[expect(clippy::unused_async, reason = "as where there are traces")]
        pub(crate) async fn finish(&self) {
            match *self {}
        }
    }

    impl RequestObserver for SpanProcessor {
        fn on_ended(&self, _: &Record, _: Instant) {
            match *self {}
        }
    }
}

#[cfg(test)]
#[cfg(feature = "otlp")]
mod tests;
