//! The metrics of the API servers. The label `server` holds an address; the series of a server that
//! is removed are removed.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::upstream::servers::health::{ProbeOutcome, WeirServer};
use weir_base::metrics::Registry;

/// The label values of `kind`.
const SHORT: &str = "short";
const LONG_RUNNING: &str = "long-running";

/// One value for short requests, and one for long-running ones.
#[derive(Debug)]
pub(crate) struct PerKind<T> {
    pub(crate) short: T,
    pub(crate) long_running: T,
}

impl<T> PerKind<T> {
    fn from_fn(mut value: impl FnMut(&'static str) -> T) -> Self {
        Self {
            short: value(SHORT),
            long_running: value(LONG_RUNNING),
        }
    }

    pub(crate) const fn get(&self, long_running: bool) -> &T {
        if long_running {
            &self.long_running
        } else {
            &self.short
        }
    }
}

/// The metrics of all API servers.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamServerMetrics {
    in_flight: IntGaugeVec,
    requests: IntCounterVec,
    healthy: IntGaugeVec,
    ejections: IntCounterVec,
    probes: IntCounterVec,
    refused: IntGaugeVec,
    pub(crate) retries_elsewhere: IntCounter,
    pub(crate) paced: IntCounter,
    /// The series of each address, which a server that comes back while requests on it still end
    /// shares. The lock is held for map operations.
    live: Arc<Mutex<HashMap<String, Weak<ServerSeries>>>>,
}

impl UpstreamServerMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &Registry) -> Self {
        Self {
            in_flight: registry.gauges(
                "weir_upstream_server_in_flight_requests",
                "Requests in flight by API server and kind: short, or long-running.",
                &["server", "kind"],
            ),
            requests: registry.counters(
                "weir_upstream_server_requests_total",
                "Requests sent by API server and kind: short, or long-running. A request that is sent again counts again.",
                &["server", "kind"],
            ),
            healthy: registry.gauges(
                "weir_upstream_server_healthy",
                "1 while the API server gets its share of the requests; 0 while its probe fails, before it has passed one, while it is ejected, and if it is refused because a weir answers there.",
                &["server"],
            ),
            ejections: registry.counters(
                "weir_upstream_server_ejections_total",
                "Times that the API server was ejected because requests failed on it one after the other.",
                &["server"],
            ),
            probes: registry.counters(
                "weir_upstream_server_probes_total",
                "Probes of the API server's /readyz by result: ready, not-ready, unreachable, no-response, or weir if a weir answers.",
                &["server", "result"],
            ),
            refused: registry.gauges(
                "weir_upstream_server_refused",
                "1 for an address that is never used, by reason: own-address and own-probe if it leads to this weir, peer if it leads to another.",
                &["server", "reason"],
            ),
            retries_elsewhere: registry.counter(
                "weir_upstream_retries_elsewhere_total",
                "Requests sent to another API server because the first one cannot have executed them.",
            ),
            paced: registry.counter(
                "weir_upstream_recovery_delayed_total",
                "Watches and lists that waited for their turn after an outage of all API servers.",
            ),
            live: Arc::default(),
        }
    }

    /// The series of one server.
    pub(crate) fn server(&self, label: &str) -> Arc<ServerSeries> {
        let mut live = self.live.lock();
        if let Some(series) = live.get(label).and_then(Weak::upgrade) {
            return series;
        }
        let series = Arc::new(ServerSeries {
            label: label.to_owned(),
            in_flight: PerKind::from_fn(|kind| self.in_flight.with_label_values(&[label, kind])),
            requests: PerKind::from_fn(|kind| self.requests.with_label_values(&[label, kind])),
            healthy: self.healthy.with_label_values(&[label]),
            ejections: self.ejections.with_label_values(&[label]),
            metrics: self.clone(),
        });
        series.healthy.set(1);
        live.insert(label.to_owned(), Arc::downgrade(&series));
        series
    }
}

/// The series of one server. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct ServerSeries {
    label: String,
    pub(crate) in_flight: PerKind<IntGauge>,
    pub(crate) requests: PerKind<IntCounter>,
    pub(crate) healthy: IntGauge,
    pub(crate) ejections: IntCounter,
    metrics: UpstreamServerMetrics,
}

impl ServerSeries {
    pub(crate) fn record_probe(&self, outcome: &ProbeOutcome) {
        self.metrics
            .probes
            .with_label_values(&[self.label.as_str(), outcome.label()])
            .inc();
    }

    /// Shows why the server is refused, or that it is not.
    pub(crate) fn set_refused(&self, weir: Option<WeirServer>) {
        for reason in [
            WeirServer::OwnAddress,
            WeirServer::OwnProbe,
            WeirServer::Peer,
        ] {
            let labels = [self.label.as_str(), reason.label()];
            if weir == Some(reason) {
                self.metrics.refused.with_label_values(&labels).set(1);
            } else {
                let _ = self.metrics.refused.remove_label_values(&labels); // it may not exist
            }
        }
    }
}

impl Drop for ServerSeries {
    fn drop(&mut self) {
        let mut live = self.metrics.live.lock();
        if live
            .get(&self.label)
            .is_some_and(|series| series.strong_count() > 0)
        {
            return; // a new server at the same address
        }
        live.remove(&self.label);
        let label = self.label.as_str();
        // Some of them may not exist.
        for kind in [SHORT, LONG_RUNNING] {
            let _ = self.metrics.in_flight.remove_label_values(&[label, kind]);
            let _ = self.metrics.requests.remove_label_values(&[label, kind]);
        }
        let _ = self.metrics.healthy.remove_label_values(&[label]);
        let _ = self.metrics.ejections.remove_label_values(&[label]);
        for result in ProbeOutcome::LABELS {
            let _ = self.metrics.probes.remove_label_values(&[label, result]);
        }
        self.set_refused(None);
    }
}
