//! The number of read-only and mutating requests that wait and execute: over all priority levels,
//! or in max-in-flight mode, which exposes the same metrics.
//!
//! There are three metrics. `apiserver_current_inflight_requests` is the most executing requests in
//! the last second. `apiserver_current_inqueue_requests` is the most waiting requests in the last
//! second. `apiserver_flowcontrol_read_vs_write_current_requests` has both over time, relative to a
//! limit. Kubernetes 1.36: `requestWatermark` of `server/filters`, and the same of
//! `util/flowcontrol/metrics`. The limiters of both modes share one value: requests that the other
//! mode admitted before a reload are in flight, too.
//!
//! One thing differs: a peak falls back to the current number, not to 0, so that a steady load
//! without arrivals does not read as 0. This module only counts. Other modules decide which
//! requests execute.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntGaugeVec;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{MetricFamily, MetricType};

use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_base::samples::MetricSpec;
use weir_base::timing_ratio::TimingRatioHistogram;
use weir_kubernetes::numeric::saturating_i64;
use weir_kubernetes::request_info::RequestKind;

/// The interval at which peaks are published (`inflightUsageMetricUpdatePeriod`).
const PEAK_UPDATE_PERIOD: Duration = Duration::from_secs(1);

const READ_VS_WRITE: MetricSpec = MetricSpec {
    name: "apiserver_flowcontrol_read_vs_write_current_requests",
    kind: MetricType::HISTOGRAM,
    labels: &["phase", "request_kind"],
    help: "EXPERIMENTAL: [ALPHA] Nanoseconds by the requests of a kind that waited or ran, as a \
           fraction of their limit (watches only until they are initialized)",
};

const READ_VS_WRITE_BOUNDS: &[f64] = &[
    0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0,
];

/// Waiting and executing requests, by kind.
#[derive(Debug)]
pub struct InFlightMetrics {
    mutating: Mutex<KindCounters>,
    read_only: Mutex<KindCounters>,
    executing_peaks: IntGaugeVec,
    waiting_peaks: IntGaugeVec,
}

/// The limits that the requests of a kind are measured against. A phase without a limit is not
/// exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilizationLimits {
    /// The limit of executing requests.
    pub executing: Option<u64>,
    /// The limit of waiting requests.
    pub waiting: Option<u64>,
}

/// Guarded by its own lock, which is held for a few additions. Taken under the lock of a level, if
/// there is one.
#[derive(Debug, Default)]
struct KindCounters {
    executing: PhaseCounter,
    waiting: PhaseCounter,
}

#[derive(Debug, Default)]
struct PhaseCounter {
    requests: u64,
    peak: u64,
    ratio: Option<TimingRatioHistogram>,
}

/// Exposes [`READ_VS_WRITE`].
struct ReadVsWriteCollector {
    desc: Desc,
    in_flight: Arc<InFlightMetrics>,
}

impl InFlightMetrics {
    /// No requests in flight, and no limits. Registers the metrics in `registry`.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let in_flight = Arc::new(Self {
            mutating: Mutex::default(),
            read_only: Mutex::default(),
            executing_peaks: registry.gauges(
                "apiserver_current_inflight_requests",
                "[STABLE] Most requests in flight at once in the last second, per request kind.",
                &["request_kind"],
            ),
            waiting_peaks: registry.gauges(
                "apiserver_current_inqueue_requests",
                "[ALPHA] Most requests waiting at once in the last second, per request kind.",
                &["request_kind"],
            ),
        });
        registry.register_collector(ReadVsWriteCollector {
            desc: READ_VS_WRITE.desc(),
            in_flight: Arc::clone(&in_flight),
        });
        in_flight
    }

    /// Sets the limits of a kind from `now` on.
    pub fn set_limits(&self, kind: RequestKind, now: Instant, limits: UtilizationLimits) {
        let mut kind = self.lock_kind(kind);
        kind.executing.set_limit(now, limits.executing);
        kind.waiting.set_limit(now, limits.waiting);
    }

    /// A request starts.
    pub fn start(&self, kind: RequestKind, now: Instant) {
        self.lock_kind(kind).executing.increment(now);
    }

    /// A request starts at once that was in a queue for no time. Only the peak of waiting requests
    /// shows that.
    pub fn start_through_queue(&self, kind: RequestKind, now: Instant) {
        let mut kind = self.lock_kind(kind);
        let passing = kind.waiting.requests + 1;
        kind.waiting.peak = kind.waiting.peak.max(passing);
        kind.executing.increment(now);
    }

    /// A request that waited starts.
    pub fn start_from_queue(&self, kind: RequestKind, now: Instant) {
        let mut kind = self.lock_kind(kind);
        kind.waiting.decrement(now);
        kind.executing.increment(now);
    }

    /// An executing request ends.
    pub fn end(&self, kind: RequestKind, now: Instant) {
        self.lock_kind(kind).executing.decrement(now);
    }

    /// A request starts to wait.
    pub fn enqueue(&self, kind: RequestKind, now: Instant) {
        self.lock_kind(kind).waiting.increment(now);
    }

    /// A waiting request leaves its queue.
    pub fn leave_queue(&self, kind: RequestKind, now: Instant) {
        self.lock_kind(kind).waiting.decrement(now);
    }

    /// Publishes the peaks once a second, until it is dropped.
    pub async fn run(&self) {
        let mut second = tokio::time::interval(PEAK_UPDATE_PERIOD);
        loop {
            second.tick().await;
            self.publish_peaks();
        }
    }

    /// Publishes the peaks since the last call. The caller calls this once a second.
    pub fn publish_peaks(&self) {
        for kind in RequestKind::ALL {
            let labels = [kind.label()];
            let mut kind = self.lock_kind(kind);
            let KindCounters {
                executing: running,
                waiting,
            } = &mut *kind;
            for (phase, gauges) in [
                (running, &self.executing_peaks),
                (waiting, &self.waiting_peaks),
            ] {
                let peak = std::mem::replace(&mut phase.peak, phase.requests);
                if phase.ratio.is_some() {
                    gauges.with_label_values(&labels).set(saturating_i64(peak));
                } else {
                    let _ = gauges.remove_label_values(&labels); // fails if there is none
                }
            }
        }
    }

    fn lock_kind(&self, kind: RequestKind) -> MutexGuard<'_, KindCounters> {
        let kind = match kind {
            RequestKind::Mutating => &self.mutating,
            RequestKind::ReadOnly => &self.read_only,
        };
        kind.lock()
    }
}

impl PhaseCounter {
    fn increment(&mut self, now: Instant) {
        self.requests += 1;
        self.peak = self.peak.max(self.requests);
        self.update_ratio(now);
    }

    fn decrement(&mut self, now: Instant) {
        self.requests -= 1;
        self.update_ratio(now);
    }

    fn update_ratio(&mut self, now: Instant) {
        if let Some(ratio) = &mut self.ratio {
            ratio.set(now, self.requests);
        }
    }

    /// A limit of 0 counts as 1, as upstream.
    fn set_limit(&mut self, now: Instant, limit: Option<u64>) {
        let limit = limit.map(|limit| limit.max(1));
        match (&mut self.ratio, limit) {
            (Some(ratio), Some(limit)) => ratio.set_denominator(now, limit),
            (ratio, limit) => {
                *ratio =
                    limit.map(|limit| TimingRatioHistogram::new(READ_VS_WRITE_BOUNDS, now, limit));
                self.update_ratio(now);
            }
        }
    }
}

impl Collector for ReadVsWriteCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Clock.now();
        let mut samples = READ_VS_WRITE.samples();
        for kind in RequestKind::ALL {
            let label = kind.label();
            let mut kind = self.in_flight.lock_kind(kind);
            let KindCounters {
                executing: running,
                waiting,
            } = &mut *kind;
            for (name, phase) in [("executing", running), ("waiting", waiting)] {
                if let Some(ratio) = &mut phase.ratio {
                    samples.add_histogram(&[name, label], ratio.read(now));
                }
            }
        }
        vec![samples.into_family()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(limits: UtilizationLimits) -> (Arc<InFlightMetrics>, Registry) {
        let registry = Registry::new();
        let in_flight = InFlightMetrics::new(&registry);
        for kind in RequestKind::ALL {
            in_flight.set_limits(kind, Clock.now(), limits);
        }
        (in_flight, registry)
    }

    #[test]
    fn a_gauge_is_the_peak_of_the_last_second_and_falls_back_to_the_current_value() {
        let limits = UtilizationLimits {
            executing: Some(10),
            waiting: Some(10),
        };
        let (in_flight, registry) = in_flight(limits);
        let now = Clock.now();
        for _ in 0..3 {
            in_flight.start_through_queue(RequestKind::ReadOnly, now);
        }
        in_flight.enqueue(RequestKind::ReadOnly, now);
        in_flight.end(RequestKind::ReadOnly, now);
        in_flight.publish_peaks();
        let shows = |line: &str| {
            let text = registry.render();
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        };
        shows("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 3");
        shows("apiserver_current_inqueue_requests{request_kind=\"readOnly\"} 1");
        shows("apiserver_current_inflight_requests{request_kind=\"mutating\"} 0");
        in_flight.start_from_queue(RequestKind::ReadOnly, now);
        in_flight.end(RequestKind::ReadOnly, now);
        in_flight.publish_peaks();
        in_flight.publish_peaks();
        shows("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 2");
        shows("apiserver_current_inqueue_requests{request_kind=\"readOnly\"} 0");
    }

    #[test]
    fn a_phase_without_a_limit_is_not_exposed() {
        let limits = UtilizationLimits {
            executing: Some(10),
            waiting: None,
        };
        let (in_flight, registry) = in_flight(limits);
        in_flight.publish_peaks();
        let text = registry.render();
        assert!(!text.contains("inqueue"), "{text}");
        assert!(!text.contains("phase=\"waiting\""), "{text}");
        assert!(text.contains("phase=\"executing\""), "{text}");
    }

    #[test]
    fn a_phase_that_loses_its_limit_is_not_exposed_any_more() {
        let both = UtilizationLimits {
            executing: Some(10),
            waiting: Some(10),
        };
        let (in_flight, registry) = in_flight(both);
        in_flight.publish_peaks();
        assert!(registry.render().contains("inqueue"));
        for kind in RequestKind::ALL {
            let limits = UtilizationLimits {
                waiting: None,
                ..both
            };
            in_flight.set_limits(kind, Clock.now(), limits);
        }
        in_flight.publish_peaks();
        let text = registry.render();
        assert!(!text.contains("inqueue"), "{text}");
        assert!(!text.contains("phase=\"waiting\""), "{text}");
    }
}
