//! The metric and the log line of malformed requests, which no other request metric counts.

use std::net::SocketAddr;
use std::time::Instant;

use prometheus::IntCounter;
use tracing::warn;

use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Every cause, and so every value of the label.
pub(crate) const CAUSES: [&str; 9] = [
    "connect",
    "expect",
    "headers",
    "host",
    "no-target",
    "syntax",
    "target",
    "transfer-encoding",
    "unresolvable",
];

/// Counts malformed requests by cause.
#[derive(Debug)]
pub(crate) struct MalformedRequestMetrics {
    counts: [(&'static str, IntCounter); CAUSES.len()],
    log_limiter: LogLimiter,
}

impl MalformedRequestMetrics {
    pub(crate) fn register(registry: &Registry) -> Self {
        let counts = registry.counters(
            "weir_malformed_requests_total",
            "Malformed requests that were rejected and are in no other metric or request log, by cause: CONNECT (connect), an expectation other than 100-continue (expect), headers that are too long or have an impossible name (headers), no host, two or a malformed one (host), a head that is not HTTP/1.1 (syntax), a target that is none or too long (no-target, target), an unsupported Transfer-Encoding (transfer-encoding), or a path that ends too early (unresolvable).",
            &["cause"],
        );
        Self {
            counts: CAUSES.map(|cause| (cause, counts.with_label_values(&[cause]))),
            log_limiter: LogLimiter::default(),
        }
    }

    /// Counts a malformed request of `client` by its `cause`, one of [`CAUSES`], and logs it at
    /// most once a second.
    pub(crate) fn record(&self, client: SocketAddr, cause: &'static str, now: Instant) {
        if let Some((_, count)) = self.counts.iter().find(|(label, _)| *label == cause) {
            count.inc();
        }
        if let Some(more) = self.log_limiter.try_log(now) {
            // Nothing that was sent is logged, since the client chooses it.
            warn!(%client, cause, more, "a malformed request was rejected");
        }
    }
}
