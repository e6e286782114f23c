//! kube-apiserver's metrics that count requests, and weir's own.
//!
//! A request looks up its series once. The number of series is bounded, and a client can choose a
//! path but not a label. Rarely used metrics of a series are created with their first use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use crate::pipeline::trace::label_allowlist::{COMPONENT, OTHER, is_built_in};
use crate::pipeline::trace::malformed_metrics::MalformedRequestMetrics;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::request_series::{
    CodeCounters, MetricSubject, RequestSeries, Responder,
};
use crate::pipeline::trace::stage_metrics::StageMetrics;
use weir_base::hash_keys::{HashKey, HashSecret, SharedHashKeyMap};
use weir_base::metrics::{GaugeGuard, Registry};
use weir_kubernetes::numeric::to_f64;
use weir_kubernetes::request_info::{MetricLabels, RequestInfo, RequestKind, Verb};
use weir_limits::throttling::log_limiter::LogLimiter;

/// The labels of `apiserver_request_duration_seconds`. The other metrics have the same labels in
/// this order, each with its own left out.
const LABELS: [&str; 8] = [
    "verb",
    "dry_run",
    "group",
    "version",
    "resource",
    "subresource",
    "scope",
    "component",
];

/// The labels without the dry run.
const WITHOUT_DRY_RUN: [&str; 7] = [
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "scope",
    "component",
];

/// Upper bounds of `apiserver_request_duration_seconds` (`endpoints/metrics/metrics.go`), in
/// seconds.
const DURATION_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper bounds of `apiserver_request_sli_duration_seconds` (in the same place), in seconds.
const SLI_BUCKETS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];

/// Upper bounds of `apiserver_response_sizes` (in the same place), in bytes.
const SIZE_BUCKETS: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Upper bounds of `apiserver_watch_list_duration_seconds` (in the same place), in seconds.
const WATCH_LIST_BUCKETS: [f64; 17] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Upper bounds of `apiserver_request_body_size_bytes` (`endpoints/handlers/metrics/metrics.go`):
/// 31 from 50,000, each 100,000 above the one before. A body is at most 3 MiB there.
fn body_buckets() -> Vec<f64> {
    (0..31_u32)
        .map(|n| 50_000.0 + 100_000.0 * f64::from(n))
        .collect()
}

/// The verbs whose bodies are measured, with upstream's names.
const VERBS_WITH_BODY: [(Verb, &str); 5] = [
    (Verb::Create, "create"),
    (Verb::Delete, "delete"),
    (Verb::DeleteCollection, "delete_collection"),
    (Verb::Patch, "patch"),
    (Verb::Update, "update"),
];

/// Maximum number of label sets: a cluster with 200 resource types uses about 10 of each. Beyond
/// it, every request is `other`.
const MAX_SERIES: usize = 4096;

/// The metrics of requests.
pub struct RequestMetrics {
    total: IntCounterVec,
    histograms: RequestHistograms,
    terminations: IntCounterVec,
    truncated: IntCounterVec,
    pub(crate) truncation_log_limiter: LogLimiter,
    /// Of the lines about clients that are too slow.
    pub(crate) slow_log_limiter: LogLimiter,
    upstream_failures: IntCounterVec,
    without_handler: IntCounterVec,
    long_running: IntGaugeVec,
    dropped: [(RequestKind, IntCounter); 2],
    upstream_responses: IntCounterVec,
    upstream_common: CodeCounters,
    pub(super) upstream_limit_rejections: IntCounter,
    pub(crate) aborted: IntCounter,
    pub(crate) malformed: MalformedRequestMetrics,
    pub(crate) stages: StageMetrics,
    /// By their label values.
    series: SharedHashKeyMap<Arc<RequestSeries>>,
    secret: HashSecret,
}

/// The histograms of requests.
struct RequestHistograms {
    duration: HistogramVec,
    sli: HistogramVec,
    response_sizes: HistogramVec,
    body_sizes: HistogramVec,
    watch_lists: HistogramVec,
}

/// The end of a request that no limit rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestEnd {
    /// Since the arrival.
    pub(crate) duration: Duration,
    /// Of that, in a queue of priority and fairness.
    pub(crate) queue_wait: Duration,
    /// The bytes of the API server's response body, if its size is measured; `None` if weir
    /// responded.
    pub(crate) sent_bytes: Option<u64>,
}

/// A request body whose size is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredBody {
    /// The label.
    verb: &'static str,
    /// In bytes.
    size: u64,
}

impl MeasuredBody {
    /// The body of this size; `None` if bodies of such requests are not measured.
    pub(crate) fn of_request(info: &RequestInfo<'_>, size: u64) -> Option<Self> {
        let (_, verb) = VERBS_WITH_BODY
            .iter()
            .find(|(verb, _)| verb == info.verb())?;
        (info.is_resource_request() && !info.long_running()).then_some(Self { verb, size })
    }
}

impl RequestHistograms {
    fn register(registry: &Registry) -> Self {
        let [verb, _, group, version, resource, _, scope, _] = LABELS;
        Self {
            duration: registry.histograms(
                "apiserver_request_duration_seconds",
                "[STABLE] Time from a request's arrival to the end of its response, in seconds.",
                &LABELS,
                &DURATION_BUCKETS,
            ),
            sli: registry.histograms(
                "apiserver_request_sli_duration_seconds",
                "[ALPHA] The same without the time in a queue of priority and fairness, and without dry runs, in seconds.",
                &WITHOUT_DRY_RUN,
                &SLI_BUCKETS,
            ),
            response_sizes: registry.histograms(
                "apiserver_response_sizes",
                "[STABLE] Size of the response bodies of GET, LIST and WATCH as sent, in bytes.",
                &WITHOUT_DRY_RUN,
                &SIZE_BUCKETS,
            ),
            body_sizes: registry.histograms(
                "apiserver_request_body_size_bytes",
                "[ALPHA] Size of the bodies of mutating requests with a Content-Length, in bytes.",
                &[resource, verb, group],
                &body_buckets(),
            ),
            watch_lists: registry.histograms(
                "apiserver_watch_list_duration_seconds",
                "[BETA] Time until a watch with sendInitialEvents had sent the initial events, in seconds.",
                &[group, version, resource, scope],
                &WATCH_LIST_BUCKETS,
            ),
        }
    }
}

/// What the API server's own limits reject.
pub(crate) fn limit_rejections(registry: &Registry) -> IntCounter {
    registry.counter(
        "weir_upstream_limit_rejections_total",
        "Requests that the API server's own limits rejected (429 in plain text). What a disruption budget, an admission plugin, a proxied app or an aggregated API rejects with 429 is not among them.",
    )
}

fn dropped_counters(registry: &Registry) -> [(RequestKind, IntCounter); 2] {
    let dropped = registry.counters(
        "apiserver_dropped_requests_total",
        "Requests that weir rejected with 429, by any of its limits. An extra: kube-apiserver, which counted those over its max-in-flight limits, dropped this metric in 1.25.",
        &["request_kind"],
    );
    RequestKind::ALL.map(|kind| (kind, dropped.with_label_values(&[kind.label()])))
}

impl RequestMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Arc<Self> {
        let [
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        ] = LABELS;
        Arc::new(Self {
            total: registry.counters(
                "apiserver_request_total",
                "[STABLE] Requests by verb, dry run value, group, version, resource, scope, component and HTTP code.",
                &[verb, dry_run, group, version, resource, subresource, scope, component, "code"],
            ),
            histograms: RequestHistograms::register(registry),
            terminations: registry.counters(
                "apiserver_request_terminations_total",
                "[ALPHA] Requests that were ended in self-defense.",
                &[verb, group, version, resource, subresource, scope, component, "code"],
            ),
            truncated: registry.counters(
                "apiserver_request_aborts_total",
                "[ALPHA] Requests whose response ended early: at their deadline, or by the API server.",
                &[verb, group, version, resource, subresource, scope],
            ),
            truncation_log_limiter: LogLimiter::default(),
            slow_log_limiter: LogLimiter::default(),
            upstream_failures: registry.counters(
                "weir_unanswered_requests_total",
                "Requests that got 502, 503 or 504 from weir because the API server did not respond, by code and cause (as in the Status).",
                &["code", "cause"],
            ),
            without_handler: registry.counters(
                "weir_requests_without_handler_total",
                "Requests that are not in apiserver_request_*, as kube-apiserver does not count them either, by code: discovery and other paths without a handler that counts, what other filters than limits reject (400, 401, 403), 404 and 503 in plain text, 405, 406.",
                &["code"],
            ),
            long_running: registry.gauges(
                "apiserver_longrunning_requests",
                "[STABLE] Long-running requests that are open.",
                &WITHOUT_DRY_RUN,
            ),
            dropped: dropped_counters(registry),
            upstream_responses: registry.counters(
                "weir_upstream_responses_total",
                "Responses of the API server, by HTTP code.",
                &["code"],
            ),
            upstream_common: CodeCounters::default(),
            upstream_limit_rejections: limit_rejections(registry),
            aborted: registry.counter(
                "weir_aborted_requests_total",
                "Requests whose client disconnected before a response started.",
            ),
            malformed: MalformedRequestMetrics::register(registry),
            stages: StageMetrics::register(registry),
            series: SharedHashKeyMap::default(),
            secret: HashSecret::default(),
        })
    }

    pub(crate) fn series(
        &self,
        subject: MetricSubject<'_>,
        responder: Responder,
    ) -> Arc<RequestSeries> {
        let MetricSubject {
            labels: common,
            info,
        } = subject;
        let names = [
            info.api_group(),
            info.api_version(),
            info.resource(),
            info.subresource(),
        ];
        let handler = match responder {
            Responder::Filter | Responder::NoHandler => None,
            Responder::Handler { labels, .. } => labels,
        };
        let key = HashKey::of(&self.secret, (common, names, handler));
        if let Some(series) = self.series.get(&key) {
            return Arc::clone(&series);
        }
        // A request without a verb has no handler: a success is then the CORS filter's, which does
        // not authenticate.
        let exists = matches!(responder, Responder::Handler { exists: true, .. })
            && *info.verb() != Verb::None;
        let is_known = !info.is_resource_request() || exists || is_built_in(info);
        if !is_known || self.series.len() >= MAX_SERIES {
            return Arc::new(RequestSeries::new([
                common.verb,
                common.dry_run,
                OTHER,
                OTHER,
                OTHER,
                OTHER,
                common.scope,
                COMPONENT,
            ]));
        }
        let [group, version, resource, subresource] = names.map(String::from_utf8_lossy);
        let values = [
            common.verb,
            common.dry_run,
            &*group,
            &*version,
            &*resource,
            handler.map_or(&*subresource, |labels| labels.subresource),
            common.scope,
            handler.map_or(COMPONENT, |labels| labels.component),
        ];
        let series = Arc::new(RequestSeries::new(values));
        // A series that was not shown to exist is not kept.
        if responder != Responder::NoHandler {
            self.series.insert(key, Arc::clone(&series));
        }
        series
    }

    /// Counts the end of a request that no handler counts.
    pub(crate) fn record_without_handler(&self, code: StatusCode) {
        self.without_handler
            .with_label_values(&[code.as_str()])
            .inc();
    }

    /// Counts a response of weir in the API server's place.
    pub(crate) fn record_upstream_failure(&self, code: StatusCode, cause: &'static str) {
        self.upstream_failures
            .with_label_values(&[code.as_str(), cause])
            .inc();
    }

    /// Counts a response of the API server.
    pub(crate) fn record_upstream_response(&self, code: StatusCode) {
        self.upstream_common.inc(code, || {
            self.upstream_responses.with_label_values(&[code.as_str()])
        });
    }

    /// The responses of the API server so far, and those of them that are 5xx.
    pub(crate) fn upstream_response_counts(&self) -> (u64, u64) {
        let (mut all, mut errors) = (0, 0);
        let families = self.upstream_responses.collect();
        let metrics = families.iter().flat_map(MetricFamily::get_metric);
        for code in metrics.flat_map(|metric| metric.get_label()) {
            let count = self.upstream_responses.with_label_values(&[code.value()]);
            all += count.get();
            if code.value().starts_with('5') {
                errors += count.get();
            }
        }
        (all, errors)
    }

    /// Counts the end of a request that was answered with this code.
    pub(crate) fn record_request(&self, series: &RequestSeries, code: StatusCode) {
        series.common.inc(code, || {
            let [a, b, c, d, e, f, g, h] = series.labels();
            self.total
                .with_label_values(&[a, b, c, d, e, f, g, h, code.as_str()])
        });
    }

    /// Counts a request that ended in a panic: its client receives 500.
    pub(crate) fn record_panic(&self, record: &Record) {
        let Ok(info) = record.info() else {
            return; // unreachable: the request was parsed before
        };
        let labels = MetricLabels::from_request(record.method.as_str(), &info, None);
        let subject = MetricSubject {
            labels,
            info: &info,
        };
        let series = self.series(subject, Responder::Filter);
        self.record_request(&series, StatusCode::INTERNAL_SERVER_ERROR);
    }

    /// Records what upstream measures at a request's end (`MonitorRequest`), which it does not do
    /// for requests that filters reject.
    pub(crate) fn record_end(&self, series: &RequestSeries, end: RequestEnd) {
        let [verb, dry_run, ..] = series.labels();
        series
            .duration
            .get_or_init(|| self.histograms.duration.with_label_values(&series.labels()))
            .observe(end.duration.as_secs_f64());
        // The client determines the duration of a watch, so it is no service level indicator.
        if dry_run.is_empty() && verb != "WATCH" {
            let without_queue = end.duration.saturating_sub(end.queue_wait);
            series
                .sli
                .get_or_init(|| {
                    self.histograms
                        .sli
                        .with_label_values(&series.without_dry_run())
                })
                .observe(without_queue.as_secs_f64());
        }
        if let Some(sent) = end.sent_bytes {
            series
                .response_size
                .get_or_init(|| {
                    self.histograms
                        .response_sizes
                        .with_label_values(&series.without_dry_run())
                })
                .observe(to_f64(sent));
        }
    }

    /// Records the size of a request body, in bytes.
    pub(crate) fn record_body_size(
        &self,
        series: &RequestSeries,
        MeasuredBody { verb, size }: MeasuredBody,
    ) {
        let resolve = || {
            let [_, _, group, _, resource, ..] = series.labels();
            self.histograms
                .body_sizes
                .with_label_values(&[resource, verb, group])
        };
        series.body_size.get_or_init(resolve).observe(to_f64(size));
    }

    /// Records the time from arrival until a watch had sent the requested initial events.
    pub(crate) fn record_watch_list(&self, series: &RequestSeries, took: Duration) {
        let [_, _, group, version, resource, _, scope, _] = series.labels();
        self.histograms
            .watch_lists
            .with_label_values(&[group, version, resource, scope])
            .observe(took.as_secs_f64());
    }

    /// Counts a response that broke off.
    pub(crate) fn record_truncation(&self, series: &RequestSeries) {
        let [verb, group, version, resource, subresource, scope, _] = series.without_dry_run();
        self.truncated
            .with_label_values(&[verb, group, version, resource, subresource, scope])
            .inc();
    }

    /// Counts a request that a limit or its deadline terminated. Upstream labels non-resource
    /// requests by path here (`RecordRequestTermination`).
    pub(crate) fn record_termination(
        &self,
        series: &RequestSeries,
        info: &RequestInfo<'_>,
        code: StatusCode,
    ) {
        let resolve = || {
            let [a, b, c, d, e, f, g] = series.with_path_label(info);
            self.terminations
                .with_label_values(&[a, b, c, d, e, f, g, code.as_str()])
        };
        if code != StatusCode::TOO_MANY_REQUESTS {
            resolve().inc();
            return;
        }
        if info.is_resource_request() {
            series.terminated.get_or_init(resolve).inc();
        } else {
            resolve().inc();
        }
        let kind = RequestKind::from_request_info(info);
        let dropped = self.dropped.iter().find(|(of, _)| *of == kind);
        dropped.inspect(|(_, count)| count.inc());
    }

    /// Counts a long-running request as open until the value is dropped.
    pub(crate) fn track_long_running(
        &self,
        series: &RequestSeries,
        info: &RequestInfo<'_>,
    ) -> GaugeGuard {
        let gauge = series.long_running.get_or_init(|| {
            self.long_running
                .with_label_values(&series.with_path_label(info))
        });
        GaugeGuard::new(gauge.clone())
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestMetrics({} series)", self.series.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_responses_of_the_api_server_are_counted_with_its_errors() {
        let metrics = RequestMetrics::register(&Registry::new());
        assert_eq!(metrics.upstream_response_counts(), (0, 0));
        for code in [200, 200, 404, 500, 503, 503] {
            metrics.record_upstream_response(StatusCode::from_u16(code).unwrap());
        }
        assert_eq!(metrics.upstream_response_counts(), (6, 3));
    }
}
