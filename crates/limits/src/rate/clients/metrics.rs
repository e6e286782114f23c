//! The metrics of the rules of `clientLimits`.

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::rate::clients::tables::ClientLimitKind;
use weir_base::metrics::Registry;

/// Upper bounds of the delay histogram in seconds.
const DELAY_BUCKETS: [f64; 10] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

/// The metrics of a rule.
#[derive(Debug)]
pub(super) struct ClientRuleMetrics {
    pub(super) passed: IntCounter,
    /// Indexed like [`ClientLimitKind::ALL`].
    pub(super) rejected: [IntCounter; ClientLimitKind::ALL.len()],
    pub(super) delayed: [IntCounter; ClientLimitKind::ALL.len()],
    pub(super) delay_seconds: Histogram,
    pub(super) clients: IntGauge,
    pub(super) objects: IntGauge,
}

/// The metrics of all rules.
pub(super) struct ClientLimitMetrics {
    requests: IntCounterVec,
    delays: HistogramVec,
    keys: IntGaugeVec,
}

impl ClientLimitMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        Self {
            requests: registry.counters(
                "weir_client_limit_requests_total",
                "Requests that a rule of clientLimits was about, by what became of them (or would have, with dryRun) and the limit that was met.",
                &["rule", "decision", "limit"],
            ),
            delays: registry.histograms(
                "weir_client_limit_delay_seconds",
                "Time that requests were made to wait by a rule of clientLimits.",
                &["rule"],
                &DELAY_BUCKETS,
            ),
            keys: registry.gauges(
                "weir_client_limit_keys",
                "Clients and failing objects that a rule of clientLimits remembers; at most its maxClients of each.",
                &["rule", "table"],
            ),
        }
    }

    pub(super) fn for_rule(&self, rule: &str) -> ClientRuleMetrics {
        let count = |decision: &'static str| {
            move |limit: ClientLimitKind| {
                self.requests
                    .with_label_values(&[rule, decision, limit.name()])
            }
        };
        ClientRuleMetrics {
            passed: self.requests.with_label_values(&[rule, "passed", ""]),
            rejected: ClientLimitKind::ALL.map(count("rejected")),
            delayed: ClientLimitKind::ALL.map(count("delayed")),
            delay_seconds: self.delays.with_label_values(&[rule]),
            clients: self.keys.with_label_values(&[rule, "clients"]),
            objects: self.keys.with_label_values(&[rule, "objects"]),
        }
    }
}

impl ClientLimitMetrics {
    /// Removes the gauges of a rule that is gone or starts anew.
    pub(super) fn remove_gauges(&self, rule: &str) {
        for table in ["clients", "objects"] {
            let _ = self.keys.remove_label_values(&[rule, table]);
        }
    }
}

impl ClientRuleMetrics {
    pub(super) fn increment(
        counters: &[IntCounter; ClientLimitKind::ALL.len()],
        limit: ClientLimitKind,
    ) {
        let index = ClientLimitKind::ALL.iter().position(|kind| *kind == limit);
        if let Some(counter) = index.and_then(|index| counters.get(index)) {
            counter.inc();
        }
    }
}
