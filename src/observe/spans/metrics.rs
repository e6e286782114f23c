//! The metrics of spans.

use prometheus::{IntCounter, IntCounterVec};

use weir_base::metrics::Registry;

/// Metrics of spans by result.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "otlp"),
    expect(dead_code, reason = "no span is counted")
)]
pub struct SpanMetrics {
    pub(super) dropped: IntCounter,
    pub(super) exported: IntCounter,
    pub(super) failed: IntCounter,
}

impl SpanMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let spans: IntCounterVec = registry.counters(
            "weir_trace_spans_total",
            "Spans of traced requests, by what became of them: exported; failed, where the collector did not take them; dropped, where too many waited for it.",
            &["result"],
        );
        Self {
            dropped: spans.with_label_values(&["dropped"]),
            exported: spans.with_label_values(&["exported"]),
            failed: spans.with_label_values(&["failed"]),
        }
    }
}
