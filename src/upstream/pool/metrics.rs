//! The metrics of the connections to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use crate::upstream::connection::connector::Protocol;
use crate::upstream::connection::error::ForwardError;
use weir_base::metrics::{GaugeGuard, Registry};

/// Metrics of the upstream connections. The label `way` holds [`AuthMode::NAME`].
///
/// [`AuthMode::NAME`]: crate::upstream::headers::auth_mode::AuthMode::NAME
#[derive(Debug)]
pub struct UpstreamMetrics {
    open_connections: IntGaugeVec,
    connection_attempts: IntCounterVec,
    pub(crate) retries: IntCounter,
    pub(crate) stream_waits: IntCounter,
    pub(crate) failures: FailureStats,
    pub(crate) internal_requests: IntCounterVec,
}

impl UpstreamMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        Arc::new(Self {
            open_connections: registry.gauges(
                "weir_upstream_connections",
                "Open connections to the API server, by the way that they serve.",
                &["way"],
            ),
            connection_attempts: registry.counters(
                "weir_upstream_connects_total",
                "Connections to the API server that were tried, by way and result (http1, http2, failed).",
                &["way", "result"],
            ),
            retries: registry.counter(
                "weir_upstream_retries_total",
                "Requests sent again: the API server cannot have executed them, or they are reads whose idle connection it closed, or whose response had more than 100 headers.",
            ),
            stream_waits: registry.counter(
                "weir_upstream_stream_waits_total",
                "Requests that had to wait for a connection or a free HTTP/2 stream to the API server.",
            ),
            failures: FailureStats::default(),
            internal_requests: registry.counters(
                "rest_client_requests_total",
                "[ALPHA] Requests of weir's own to the API server, by status code, method, and host; <error> without a response.",
                &["code", "host", "method"],
            ),
        })
    }

    /// Requests of clients that got no response.
    #[must_use]
    pub(crate) const fn failures(&self) -> &FailureStats {
        &self.failures
    }

    /// The open connections by the value of the label `way`.
    #[must_use]
    pub(crate) fn open_connections(&self) -> BTreeMap<String, u64> {
        let mut open = BTreeMap::new();
        for metric in self
            .open_connections
            .collect()
            .iter()
            .flat_map(MetricFamily::get_metric)
        {
            for label in metric.get_label() {
                let count = self
                    .open_connections
                    .with_label_values(&[label.value()])
                    .get();
                open.insert(
                    label.value().to_owned(),
                    count.try_into().unwrap_or_default(),
                );
            }
        }
        open
    }

    pub(crate) fn record_connect(&self, way: &str, outcome: Result<Protocol, &ForwardError>) {
        let result = match outcome {
            Ok(Protocol::Http1) => "http1",
            Ok(Protocol::Http2) => "http2",
            // No attempt was made.
            Err(ForwardError::ConnectionLimit(_) | ForwardError::ShareExceeded(_)) => return,
            Err(_) => "failed",
        };
        for each in ["http1", "http2", "failed"] {
            let count = self.connection_attempts.with_label_values(&[way, each]);
            count.inc_by(u64::from(each == result)); // the others appear with 0
        }
    }

    /// Counts a connection as open until the value is dropped.
    pub(crate) fn count_open(&self, way: &str) -> GaugeGuard {
        GaugeGuard::new(self.open_connections.with_label_values(&[way]))
    }
}

/// Failures so far.
#[derive(Debug, Default)]
pub(crate) struct FailureStats(Mutex<FailureSnapshot>);

/// A copy of the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureSnapshot {
    /// The number of failures by [`ForwardError::label`].
    pub(crate) by_cause: BTreeMap<&'static str, u64>,
    /// The last failure, with its time.
    pub(crate) last: Option<(Instant, ForwardError)>,
}

impl FailureStats {
    /// Counts a failure at `now`.
    pub(crate) fn record(&self, failure: &ForwardError, now: Instant) {
        let mut stats = self.lock();
        *stats.by_cause.entry(failure.label()).or_default() += 1;
        stats.last = Some((now, failure.clone()));
    }

    /// All failures so far.
    #[must_use]
    pub(crate) fn snapshot(&self) -> FailureSnapshot {
        self.lock().clone()
    }

    /// The lock is held for a few additions.
    fn lock(&self) -> MutexGuard<'_, FailureSnapshot> {
        self.0.lock()
    }
}
