//! What is noted about a request, and counted at its end.
//!
//! A [`Trace`] begins with the request and is told its outcome once; what becomes of it is written when it is dropped: with
//! the answer's last byte, or when the client goes away before. What is counted, and by which labels, is
//! [`RequestMetrics`]'.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use http::HeaderMap;
use http::StatusCode;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::flowcontrol::controller::Decision;
use crate::limits::Permit;
use crate::metrics::Counted;
use crate::pipeline::filters::Stage;
use crate::pipeline::record::Recorded;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_metrics::By;
use crate::pipeline::request_metrics::End;
use crate::pipeline::request_metrics::Series;
use crate::pipeline::traced::Traced;

pub use crate::pipeline::request_metrics::RequestMetrics;
pub use crate::pipeline::request_metrics::Subject;

/// What is known of one request, from its first byte to the last of its answer.
pub struct Trace {
    metrics: Arc<RequestMetrics>,
    started: Instant,
    times: Times,
    /// The bytes of the answer that have gone out.
    sent: u64,
    noted: Noted,
    /// Told to those who look on when it is dropped.
    pub(super) recorded: Option<Box<Recorded>>,
}

/// When a request came to which step; as long as it has not, when it came to the one before.
#[derive(Clone, Copy, Debug)]
struct Times {
    known: Instant,
    /// Nothing but a place stands in its way any more.
    counted: Instant,
    admitted: Instant,
    answered: Option<Instant>,
    /// In a queue of fairness.
    queued: Duration,
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
        open: Option<Counted>,
    },
}

impl Trace {
    /// A request has arrived.
    #[must_use]
    pub fn started(metrics: Arc<RequestMetrics>, now: Instant) -> Self {
        Self {
            metrics,
            started: now,
            times: Times {
                known: now,
                counted: now,
                admitted: now,
                answered: None,
                queued: Duration::ZERO,
            },
            sent: 0,
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
    pub(super) fn known(&mut self, user: &Arc<UserInfo>, now: Instant) {
        self.times = Times {
            known: now,
            counted: now,
            ..self.times
        };
        if let Some(recorded) = &mut self.recorded {
            recorded.record.user = Some(Arc::clone(user));
        }
    }

    pub(super) fn recorded_mut(&mut self) -> Option<&mut Recorded> {
        self.recorded.as_deref_mut()
    }

    fn traced(&mut self) -> Option<&mut Traced> {
        self.recorded.as_mut()?.record.traced.as_deref_mut()
    }

    /// When the last step was done that takes time.
    pub(super) const fn went_on(&self) -> Instant {
        self.times.counted
    }

    /// It is known for whom it counts, or no rate stands in its way any more.
    pub(super) fn counted(&mut self, now: Instant) {
        self.times.counted = now;
    }

    /// What fairness decided about it, if that is known.
    pub(super) fn decision(&self) -> Option<&Decision> {
        self.recorded.as_ref()?.record.decision.as_ref()
    }

    /// It may go on.
    pub(super) fn admitted(&mut self, permit: &Permit, now: Instant) {
        self.times.admitted = now;
        if let Some(traced) = self.traced() {
            traced.forwarded = Some(now);
        }
        if let Some(queued) = permit.queue_wait() {
            self.times.queued = queued;
            let took = now.saturating_duration_since(self.times.counted);
            self.metrics.filters.passed_fairness(took);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.record.decision = permit.decision();
        }
    }

    /// So many more bytes of the answer have gone out.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.sent += u64::try_from(bytes).unwrap_or_default();
    }

    /// Leaves what is noted to the value returned, which goes on with the answer's body.
    #[must_use]
    pub fn hand_over(&mut self) -> Self {
        let noted = std::mem::replace(&mut self.noted, Noted::Unclassified);
        Self {
            metrics: Arc::clone(&self.metrics),
            started: self.started,
            times: self.times,
            sent: self.sent,
            noted,
            recorded: self.recorded.take(),
        }
    }

    /// The upstream has begun to answer a request whose body has this many bytes, if that is known.
    pub fn answered(&mut self, subject: Subject<'_>, code: StatusCode, body: Option<u64>) {
        self.times.answered = Some(Clock.now());
        let answered = self.times.answered;
        if let Some(traced) = self.traced() {
            traced.answered = answered;
        }
        self.metrics.upstream_answered(code);
        let exists = code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS;
        let series = self.metrics.series(subject, By::Handler { exists });
        let open = (exists && subject.info.long_running())
            .then(|| self.metrics.open(&series, subject.info));
        if let Some(size) = body {
            self.metrics.body_size(&series, subject.info, size);
        }
        self.noted = Noted::Answered { series, code, open };
        if let Some(recorded) = &mut self.recorded {
            recorded.answered(code);
        }
    }

    /// A limit says no to a request with these headers; anything else that is refused has no more to be told than [`Self::refused`]
    /// tells.
    pub(super) fn rejected(&mut self, refusal: &Refusal, headers: &HeaderMap) {
        if let Some(recorded) = &mut self.recorded {
            recorded.rejected(refusal, headers);
        }
    }

    /// weir answers itself.
    pub(super) fn refused(&mut self, subject: Subject<'_>, refusal: &Refusal) {
        let code = refusal.code();
        if let Some(recorded) = &mut self.recorded {
            recorded.refused(refusal);
        }
        let series = self.metrics.series(subject, By::Filter);
        if refusal.in_self_defense() {
            self.metrics.terminated(&series, subject.info, code);
        }
        self.noted = Noted::Answered {
            series,
            code,
            open: None,
        };
    }

    /// The answer has broken off: its time was up, or the API server let go of it.
    pub(super) fn cut_off(&self) {
        if let Noted::Answered { series, .. } = &self.noted {
            self.metrics.cut_off(series);
        }
    }

    /// A watch that asked for it has sent what there was.
    pub(super) fn watch_listed(&self, now: Instant) {
        if let Noted::Answered { series, .. } = &self.noted {
            let took = now.saturating_duration_since(self.started);
            self.metrics.watch_listed(series, took);
        }
    }

    fn measure(&self, series: &Series, open: bool) {
        let now = Clock.now();
        let Times {
            known,
            admitted,
            answered,
            queued,
            ..
        } = self.times;
        self.metrics.measure(
            series,
            End {
                took: now.saturating_duration_since(self.started),
                queued,
                sent: answered.map(|_| self.sent),
            },
        );
        let Some(answered) = answered else { return };
        let stage = |stage, from, to: Instant| {
            let took = to.saturating_duration_since(from);
            self.metrics.filters.stage(stage, took);
        };
        stage(Stage::Authentication, self.started, known);
        stage(Stage::Limits, known, admitted);
        stage(Stage::Upstream, admitted, answered);
        if !open {
            stage(Stage::Answer, answered, now);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(recorded) = &mut self.recorded {
            recorded.record.sent = self.sent;
        }
        match &self.noted {
            // The connection tells the client 500, once the stack is unwound.
            Noted::Nothing if std::thread::panicking() => {
                let recorded = self.recorded.as_deref();
                self.metrics
                    .panicked(recorded.map(|recorded| &recorded.record));
            }
            Noted::Nothing => self.metrics.aborted.inc(),
            Noted::Unclassified => {}
            Noted::Answered { series, code, open } => {
                self.metrics.count(series, *code);
                // Upstream observes no duration for what its filters refuse: the handlers behind them do that.
                if *code != StatusCode::TOO_MANY_REQUESTS {
                    self.measure(series, open.is_some());
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
    use std::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    use super::*;
    use crate::limits::Rejection;
    use crate::metrics::Registry;
    use crate::pipeline::Peer;
    use crate::pipeline::holding::Patience;
    use crate::pipeline::rates::BodyFault;
    use crate::pipeline::record::Witness;
    use crate::pipeline::record::Witnesses;
    use crate::pipeline::refusing::Skips;
    use crate::request_info::MetricLabels;
    use crate::request_info::RequestInfo;
    use crate::request_info::RequestKind;

    /// Has nothing to say.
    #[derive(Debug)]
    struct Onlooker;

    impl Witness for Onlooker {
        fn ended(&self, _: &crate::pipeline::record::Record, _: Instant) {}
    }

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
            trace.answered(subject, code, None);
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
        assert!(!text.contains("request_duration_seconds_count{"), "{text}");
    }

    #[test]
    fn what_is_answered_before_anybody_is_known_tells_of_no_resource() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        for (method, resource) in [("OPTIONS", "made-up"), ("GET", "widgets")] {
            let target = format!("/apis/example.com/v1/{resource}");
            let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
            let labels = MetricLabels::of(method, &info, None);
            let subject = Subject {
                labels,
                info: &info,
            };
            let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
            trace.answered(subject, StatusCode::NO_CONTENT, None);
        }
        let text = registry.render();
        assert!(text.contains("resource=\"widgets\""), "{text}");
        assert!(!text.contains("made-up"), "{text}");
    }

    #[test]
    fn an_event_for_whose_body_there_is_no_room_is_ended_in_self_defense() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        let target = b"/api/v1/namespaces/a/events";
        let info = RequestInfo::parse("POST", target).unwrap();
        for fault in [BodyFault::NoRoom, BodyFault::Broken] {
            let subject = Subject {
                labels: MetricLabels::of("POST", &info, None),
                info: &info,
            };
            let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
            trace.refused(subject, &Refusal::Body(fault));
        }
        let terminations = "apiserver_request_terminations_total{code=\"";
        let of = |code: &str| value(&registry, &format!("{terminations}{code}\""));
        assert_eq!((of("429"), of("400")), (Some(1.0), None));
    }

    fn value(registry: &Registry, series: &str) -> Option<f64> {
        let text = registry.render();
        let line = text.lines().find(|line| line.starts_with(series))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_measured_with_its_time_in_the_queue_and_without() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        for target in ["/api/v1/nodes", "/api/v1/nodes?dryRun=All"] {
            let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
            let subject = Subject {
                labels: MetricLabels::of("GET", &info, None),
                info: &info,
            };
            let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
            trace.times.queued = Duration::from_secs(10);
            tokio::time::advance(Duration::from_secs(12)).await;
            trace.times.admitted = Clock.now();
            tokio::time::advance(Duration::from_secs(3)).await;
            trace.answered(subject, StatusCode::OK, None);
            tokio::time::advance(Duration::from_secs(5)).await;
            trace.passed(2500);
            trace.passed(500);
        }
        let of = |name: &str, labels: &str| value(&registry, &format!("{name}{{{labels}"));
        let labels = "component=\"apiserver\",";
        let with = |dry_run: &str| {
            let labels = format!("{labels}dry_run=\"{dry_run}\"");
            of("apiserver_request_duration_seconds_sum", &labels)
        };
        assert_eq!((with(""), with("All")), (Some(20.0), Some(20.0)));
        let sli = "apiserver_request_sli_duration_seconds";
        assert_eq!(of(&format!("{sli}_sum"), labels), Some(10.0));
        assert_eq!(of(&format!("{sli}_count"), labels), Some(1.0), "no dry run");
        assert_eq!(of("apiserver_response_sizes_sum", labels), Some(6000.0));
        for (stage, seconds) in [("limits", 24.0), ("upstream", 6.0), ("answer", 10.0)] {
            let labels = format!("stage=\"{stage}\"");
            let sum = of("weir_stage_duration_seconds_sum", &labels);
            assert_eq!(sum, Some(seconds), "{stage}");
        }
    }

    #[test]
    fn the_bodies_of_requests_that_write_are_measured_by_what_they_say() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        for (method, target, size) in [
            ("POST", "/api/v1/namespaces/a/pods", Some(60_000)),
            ("PUT", "/api/v1/namespaces/a/pods/b", Some(10)),
            ("POST", "/api/v1/namespaces/a/secrets", None),
            ("POST", "/api/v1/namespaces/a/pods/b/exec", Some(0)),
            ("GET", "/api/v1/namespaces/a/pods", Some(0)),
        ] {
            let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
            let subject = Subject {
                labels: MetricLabels::of(method, &info, None),
                info: &info,
            };
            let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
            trace.answered(subject, StatusCode::OK, size);
        }
        let name = "apiserver_request_body_size_bytes";
        let sum = |resource, verb| {
            let labels = format!("group=\"\",resource=\"{resource}\",verb=\"{verb}\"");
            value(&registry, &format!("{name}_sum{{{labels}}}"))
        };
        assert_eq!(sum("pods", "create"), Some(60_000.0));
        assert_eq!(sum("pods", "update"), Some(10.0));
        let text = registry.render();
        let series = text.lines().filter(|line| line.contains("size_bytes_sum"));
        assert_eq!(series.count(), 2, "{text}");
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
    fn a_panic_is_counted_as_500_under_what_was_asked_and_not_as_a_client_gone() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        let (head, ()) = http::Request::get("/api/v1/nodes")
            .body(())
            .unwrap()
            .into_parts();
        let target = head.uri.path_and_query().unwrap();
        let info = RequestInfo::parse("GET", target.as_str().as_bytes()).unwrap();
        let peer = Peer {
            address: ([127, 0, 0, 1], 1).into(),
            number: 0,
            trusted: false,
            certificate: None,
            fragments: Arc::default(),
            patience: Patience::new(1),
            skips: Skips::default(),
        };
        let onlooker: Arc<dyn Witness> = Arc::new(Onlooker);
        let witnesses: Witnesses = Arc::from([onlooker]);
        let now = (Clock.now(), Clock.wall());
        let recorded = Recorded::of(&witnesses, (&peer, &head), (target, &info), now);
        assert!(recorded.is_some());
        for recorded in [recorded, None] {
            let mut trace = Trace::started(Arc::clone(&metrics), Clock.now());
            trace.classified(recorded);
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _trace = trace;
                panic!("on purpose");
            }));
            assert!(panicked.is_err());
        }
        for (group, resource, verb) in [("", "nodes", "LIST"), ("other", "other", "other")] {
            let labels = format!(
                "code=\"500\",component=\"apiserver\",dry_run=\"\",group=\"{group}\",resource=\"{resource}\""
            );
            let text = registry.render();
            let of_it = |line: &&str| line.contains(&labels) && line.contains(verb);
            let line = text.lines().find(of_it);
            assert!(line.is_some_and(|line| line.ends_with(" 1")), "{text}");
        }
        assert_eq!(value(&registry, "weir_aborted_requests_total"), Some(0.0));
    }

    #[test]
    fn paths_that_handlers_count_by_themselves_have_their_labels_and_refusals_have_not() {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        for (target, code, answered) in [
            ("/healthz?verbose", 200, true),
            ("/readyz", 500, true),
            ("/readyz", 429, false),
            ("/openapi/v3", 200, true),
            ("/openapi/v3/apis/made.up/v1", 404, true),
            ("/version", 200, true),
        ] {
            trace_of(&metrics, target, code, answered);
        }
        let text = registry.render();
        let total = |code: &str, component: &str, subresource: &str| {
            format!(
                "apiserver_request_total{{code=\"{code}\",component=\"{component}\",dry_run=\"\",group=\"\",resource=\"\",\
                 scope=\"\",subresource=\"{subresource}\",verb=\"GET\",version=\"\"}} 1"
            )
        };
        for line in [
            total("200", "", "/healthz"),
            total("500", "", "/readyz"),
            total("429", "apiserver", ""),
            total("200", "", "openapi/v3"),
            total("404", "", "openapi/v3/"),
            total("200", "apiserver", ""),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
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
            None,
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
