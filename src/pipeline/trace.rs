//! What is noted about a request: the metrics of kube-apiserver that count requests, and what they are labelled with.
//!
//! A [`Trace`] begins with the request and is told its outcome once; what becomes of it is written when it is dropped: with
//! the answer's last byte, or when the client goes away before. Series are looked up once a request and never by more
//! label values than a bound: a client can choose a path, not a label.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Instant;

use dashmap::DashMap;
use http::HeaderValue;
use http::StatusCode;
use http::header;
use http::request;
use prometheus::Histogram;
use prometheus::HistogramVec;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use prometheus::IntGaugeVec;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::limits::Permit;
use crate::metrics::Counted;
use crate::metrics::Registry;
use crate::pipeline::known::OTHER;
use crate::pipeline::known::built_in;
use crate::pipeline::known::known_path;
use crate::pipeline::record::Recorded;
use crate::pipeline::refusal::Refusal;
use crate::request_info::MetricLabels;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;

/// The labels of `apiserver_request_duration_seconds`, and in this order those of the others, each with its own left out.
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

/// `apiserver_request_duration_seconds`' upper bounds (`endpoints/metrics/metrics.go`).
const DURATION_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Most sets of label values: a cluster with 200 resource types uses about 10 of them each; beyond it, all is `other`.
const MOST_SERIES: usize = 4096;

/// The codes that are counted without a look-up by text; the others are rare.
const USUAL_CODES: [u16; 12] = [200, 201, 304, 400, 401, 403, 404, 409, 422, 429, 500, 503];

/// kube-apiserver's name for itself in these metrics.
const COMPONENT: &str = "apiserver";

/// The metrics of requests.
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
    terminations: IntCounterVec,
    long_running: IntGaugeVec,
    dropped: [(RequestKind, IntCounter); 2],
    upstream_responses: IntCounterVec,
    aborted: IntCounter,
    /// By a keyed hash of the label values. 64 keyed bits: two sets of values that meet are not to be expected.
    series: DashMap<u64, Arc<Series>>,
    hasher: RandomState,
}

/// One set of label values, resolved.
struct Series {
    values: [Box<str>; 8],
    duration: Histogram,
    usual: [OnceLock<IntCounter>; USUAL_CODES.len()],
    /// Refused by a limit; of resources, whose labels are all here.
    refused: OnceLock<IntCounter>,
    long_running: OnceLock<IntGauge>,
}

impl RequestMetrics {
    /// Registers them.
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
        let dropped = registry.counters(
                "apiserver_dropped_requests_total",
                "Requests refused with 429 because too many were in flight. An extra: kube-apiserver dropped this metric in 1.25.",
                &["request_kind"],
            );
        let dropped =
            RequestKind::ALL.map(|kind| (kind, dropped.with_label_values(&[kind.label()])));
        Arc::new(Self {
            total: registry.counters(
                "apiserver_request_total",
                "[STABLE] Requests by verb, dry run value, group, version, resource, scope, component and HTTP code.",
                &[verb, dry_run, group, version, resource, subresource, scope, component, "code"],
            ),
            duration: registry.histograms(
                "apiserver_request_duration_seconds",
                "[STABLE] Time from a request's arrival to the end of its answer, in seconds.",
                &LABELS,
                &DURATION_BUCKETS,
            ),
            terminations: registry.counters(
                "apiserver_request_terminations_total",
                "[ALPHA] Requests that were ended in self-defense.",
                &[verb, group, version, resource, subresource, scope, component, "code"],
            ),
            long_running: registry.gauges(
                "apiserver_longrunning_requests",
                "[STABLE] Long-running requests that are open.",
                &[verb, group, version, resource, subresource, scope, component],
            ),
            dropped,
            upstream_responses: registry.counters(
                "weir_upstream_responses_total",
                "Answers of the API server, by HTTP code.",
                &["code"],
            ),
            aborted: registry.counter(
                "weir_aborted_requests_total",
                "Requests whose client went away before there was an answer.",
            ),
            series: DashMap::new(),
            hasher: RandomState::new(),
        })
    }

    fn series(&self, subject: Subject<'_>, exists: bool) -> Arc<Series> {
        let Subject {
            labels: common,
            info,
        } = subject;
        let names = [
            info.api_group(),
            info.api_version(),
            info.resource(),
            info.subresource(),
        ];
        let key = self.hasher.hash_one((common, names));
        if let Some(series) = self.series.get(&key) {
            return Arc::clone(&series);
        }
        let known = !info.is_resource_request() || exists || built_in(info);
        if !known || self.series.len() >= MOST_SERIES {
            return Arc::new(self.resolve([
                common.verb,
                common.dry_run,
                OTHER,
                OTHER,
                OTHER,
                OTHER,
                common.scope,
            ]));
        }
        let [group, version, resource, subresource] = names.map(String::from_utf8_lossy);
        let values = [
            common.verb,
            common.dry_run,
            &*group,
            &*version,
            &*resource,
            &*subresource,
            common.scope,
        ];
        let series = Arc::new(self.resolve(values));
        self.series.insert(key, Arc::clone(&series));
        series
    }

    fn resolve(&self, values: [&str; 7]) -> Series {
        let [verb, dry_run, group, version, resource, subresource, scope] = values;
        let values = [
            verb,
            dry_run,
            group,
            version,
            resource,
            subresource,
            scope,
            COMPONENT,
        ];
        Series {
            duration: self.duration.with_label_values(&values),
            usual: Default::default(),
            refused: OnceLock::new(),
            long_running: OnceLock::new(),
            values: values.map(Into::into),
        }
    }

    fn count(&self, series: &Series, code: StatusCode) {
        let resolve = || {
            let [
                verb,
                dry_run,
                group,
                version,
                resource,
                subresource,
                scope,
                component,
            ] = series.values.each_ref().map(|value| &**value);
            self.total.with_label_values(&[
                verb,
                dry_run,
                group,
                version,
                resource,
                subresource,
                scope,
                component,
                code.as_str(),
            ])
        };
        let usual = USUAL_CODES
            .iter()
            .zip(&series.usual)
            .find(|(usual, _)| **usual == code.as_u16());
        match usual {
            Some((_, counter)) => counter.get_or_init(resolve).inc(),
            None => resolve().inc(),
        }
    }

    /// Upstream labels these by the path where it is no resource (`RecordRequestTermination`).
    fn terminated(&self, series: &Series, info: &RequestInfo<'_>, code: StatusCode) {
        let resolve = || self.termination(series, info, code);
        if code == StatusCode::TOO_MANY_REQUESTS && info.is_resource_request() {
            series.refused.get_or_init(resolve).inc();
        } else {
            resolve().inc();
        }
    }

    fn termination(&self, series: &Series, info: &RequestInfo<'_>, code: StatusCode) -> IntCounter {
        let [
            verb,
            _,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
        ] = series.values.each_ref().map(|value| &**value);
        let subresource = if info.is_resource_request() {
            subresource
        } else {
            known_path(info)
        };
        self.terminations.with_label_values(&[
            verb,
            group,
            version,
            resource,
            subresource,
            scope,
            component,
            code.as_str(),
        ])
    }

    fn long_running(&self, series: &Series, info: &RequestInfo<'_>) -> IntGauge {
        let gauge = series.long_running.get_or_init(|| {
            let [
                verb,
                _,
                group,
                version,
                resource,
                subresource,
                scope,
                component,
            ] = series.values.each_ref().map(|value| &**value);
            let subresource = if info.is_resource_request() {
                subresource
            } else {
                known_path(info)
            };
            self.long_running.with_label_values(&[
                verb,
                group,
                version,
                resource,
                subresource,
                scope,
                component,
            ])
        });
        gauge.clone()
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestMetrics({} series)", self.series.len())
    }
}

/// What is known of one request, from its first byte to the last of its answer.
pub struct Trace {
    metrics: Arc<RequestMetrics>,
    started: Instant,
    noted: Noted,
    /// Told to those who look on when it is dropped.
    pub(super) recorded: Option<Box<Recorded>>,
}

enum Noted {
    /// No answer yet.
    Nothing,
    /// Not to be counted: it is not known what is asked, or somebody else counts it.
    Unclassified,
    /// Answered with this code.
    Answered {
        series: Arc<Series>,
        code: StatusCode,
        /// A long-running request is open for as long as this is there.
        _open: Option<Counted>,
    },
}

/// What is asked, as far as metrics tell it apart.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Verb, scope and dry run.
    pub labels: MetricLabels,
    /// The rest.
    pub info: &'a RequestInfo<'a>,
}

impl<'a> Subject<'a> {
    /// Of a request with this head.
    #[must_use]
    pub fn of(head: &request::Parts, info: &'a RequestInfo<'a>) -> Self {
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.map(HeaderValue::as_bytes);
        let labels = MetricLabels::of(head.method.as_str(), info, content_type);
        Self { labels, info }
    }
}

impl Trace {
    /// A request has arrived.
    #[must_use]
    pub fn started(metrics: Arc<RequestMetrics>, now: Instant) -> Self {
        Self {
            metrics,
            started: now,
            noted: Noted::Unclassified,
            recorded: None,
        }
    }

    /// When it arrived.
    #[must_use]
    pub const fn arrived(&self) -> Instant {
        self.started
    }

    /// It is known what is asked: from here on it counts.
    pub(super) fn classified(&mut self, recorded: Option<Box<Recorded>>) {
        self.noted = Noted::Nothing;
        self.recorded = recorded;
    }

    /// It is known who asks.
    pub(super) fn known(&mut self, user: &Arc<UserInfo>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.record.user = Some(Arc::clone(user));
        }
    }

    /// It may go on.
    pub(super) fn admitted(&mut self, permit: &Permit) {
        if let Some(recorded) = &mut self.recorded {
            recorded.record.decision = permit.decision();
        }
    }

    /// So many more bytes of the answer have gone out.
    pub(super) fn passed(&mut self, bytes: usize) {
        if let Some(recorded) = &mut self.recorded {
            recorded.record.sent += u64::try_from(bytes).unwrap_or_default();
        }
    }

    /// Leaves what is noted to the value returned, which goes on with the answer's body.
    #[must_use]
    pub fn hand_over(&mut self) -> Self {
        let noted = std::mem::replace(&mut self.noted, Noted::Unclassified);
        Self {
            metrics: Arc::clone(&self.metrics),
            started: self.started,
            noted,
            recorded: self.recorded.take(),
        }
    }

    /// The upstream has begun to answer.
    pub fn answered(&mut self, subject: Subject<'_>, code: StatusCode) {
        self.metrics
            .upstream_responses
            .with_label_values(&[code.as_str()])
            .inc();
        let exists = code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS;
        let series = self.metrics.series(subject, exists);
        let open = (exists && subject.info.long_running())
            .then(|| Counted::one_more(self.metrics.long_running(&series, subject.info)));
        self.noted = Noted::Answered {
            series,
            code,
            _open: open,
        };
        if let Some(recorded) = &mut self.recorded {
            recorded.answered(code);
        }
    }

    /// weir answers itself.
    pub(super) fn refused(&mut self, subject: Subject<'_>, refusal: &Refusal) {
        let code = refusal.code();
        if let Some(recorded) = &mut self.recorded {
            recorded.refused(refusal);
        }
        let series = self.metrics.series(subject, false);
        if refusal.in_self_defense() {
            self.metrics.terminated(&series, subject.info, code);
            if code == StatusCode::TOO_MANY_REQUESTS {
                let kind = RequestKind::of(subject.info);
                let dropped = self.metrics.dropped.iter().find(|(of, _)| *of == kind);
                dropped.inspect(|(_, count)| count.inc());
            }
        }
        self.noted = Noted::Answered {
            series,
            code,
            _open: None,
        };
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        match &self.noted {
            Noted::Nothing => self.metrics.aborted.inc(),
            Noted::Unclassified => {}
            Noted::Answered { series, code, .. } => {
                self.metrics.count(series, *code);
                // Upstream observes no duration for what its filters refuse: the handlers behind them do that.
                if *code != StatusCode::TOO_MANY_REQUESTS {
                    let took = Clock.now().saturating_duration_since(self.started);
                    series.duration.observe(took.as_secs_f64());
                }
            }
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match &self.noted {
            Noted::Nothing | Noted::Unclassified => None,
            Noted::Answered { code, .. } => Some(code),
        };
        f.debug_struct("Trace")
            .field("code", &code)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Rejection;

    fn trace_of(metrics: &Arc<RequestMetrics>, target: &str, code: u16, answered: bool) {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let labels = MetricLabels::of("GET", &info, None);
        let subject = Subject {
            labels,
            info: &info,
        };
        let mut trace = Trace::started(Arc::clone(metrics), Clock.now());
        let code = StatusCode::from_u16(code).unwrap();
        if answered {
            trace.answered(subject, code);
        } else {
            let rejection = Rejection::MaxInFlight {
                kind: RequestKind::ReadOnly,
                limit: 1,
            };
            let flow = None;
            trace.refused(subject, &Refusal::Rejected { rejection, flow });
        }
    }

    #[test]
    fn a_refusal_has_the_labels_of_a_known_resource_from_the_start() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        trace_of(&metrics, "/api/v1/nodes", 429, false);
        let text = registry.render();
        let labels = r#"code="429",component="apiserver",group="",resource="nodes",scope="cluster",subresource="",verb="LIST",version="v1""#;
        assert!(
            text.contains(&format!(
                "apiserver_request_terminations_total{{{labels}}} 1"
            )),
            "{text}"
        );
        assert!(
            !text.contains("apiserver_request_duration_seconds_count{") || text.contains("} 0"),
            "{text}"
        );
    }

    #[test]
    fn a_client_cannot_choose_a_label() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        for n in 0..100 {
            trace_of(&metrics, &format!("/apis/made.up/v1/things{n}"), 404, true);
            trace_of(&metrics, &format!("/made/up/{n}"), 429, false);
        }
        let text = registry.render();
        assert!(
            !text.contains("things") && !text.contains("/made"),
            "{text}"
        );
        trace_of(&metrics, "/apis/made.up/v1/widgets", 200, true);
        assert!(
            registry.render().contains("resource=\"widgets\""),
            "a resource that exists has a label"
        );
    }

    #[test]
    fn an_open_watch_is_counted_while_it_is_open() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        let info = RequestInfo::parse("GET", b"/api/v1/pods?watch=1").unwrap();
        let labels = MetricLabels::of("GET", &info, None);
        let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
        trace.answered(
            Subject {
                labels,
                info: &info,
            },
            StatusCode::OK,
        );
        let series = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
        assert!(
            registry.render().contains(&format!("{series} 1")),
            "{}",
            registry.render()
        );
        drop(trace);
        assert!(registry.render().contains(&format!("{series} 0")));
    }
}
