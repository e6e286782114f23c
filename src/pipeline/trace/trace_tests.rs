use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::*;
use crate::identity::client_certificate::trust::TrustPublisher;
use crate::limits::Rejection;
use crate::metrics::Registry;
use crate::pipeline::connection::peer::BodyDrainSlots;
use crate::pipeline::connection::peer::HoldState;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::reject::rejection::BodyReadError;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::record::RequestObserver;
use crate::pipeline::trace::record::RequestObservers;
use crate::request_info::MetricLabels;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;

/// Observes nothing.
#[derive(Debug)]
struct SilentObserver;

impl RequestObserver for SilentObserver {
    fn on_ended(&self, _: &Record, _: Instant) {}
}

fn trace_of(metrics: &Arc<RequestMetrics>, target: &str, code: u16, answered: bool) {
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    let labels = MetricLabels::from_request("GET", &info, None);
    let subject = MetricSubject {
        labels,
        info: &info,
    };
    let mut trace = Trace::start(Arc::clone(metrics), Clock.now());
    let code = StatusCode::from_u16(code).unwrap();
    if answered {
        trace.record_response(subject, code, None);
    } else {
        let rejection = Rejection::MaxInFlight {
            kind: RequestKind::ReadOnly,
            limit: 1,
        };
        trace.record_rejection(
            subject,
            &RequestRejection::Limit(rejection).facts(),
            &HeaderMap::new(),
        );
    }
}

#[test]
fn a_rejection_has_the_labels_of_a_built_in_resource_from_the_start() {
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
fn requests_without_a_handler_have_one_series_per_code() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    let authorizer = br#"{"kind":"Status","message":"pods is forbidden: User \"system:anonymous\" cannot list"}"#;
    let quota = br#"{"kind":"Status","message":"pods \"x\" is forbidden: exceeded quota"}"#;
    let answer = |target: &str, code: u16, body: &[u8], plain: bool| {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let subject = MetricSubject {
            labels: MetricLabels::from_request("GET", &info, None),
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.record_response(subject, StatusCode::from_u16(code).unwrap(), Some(9));
        if plain {
            let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
            trace.record_response_headers(&HeaderMap::from_iter([(header::CONTENT_TYPE, plain)]));
        }
        for part in body.chunks(10) {
            trace.inspect_body(part);
        }
    };
    for n in 0..5000 {
        let target = format!("/apis/g{n}.k8s.io/v1/namespaces/n{n}/pods/p/s{n}");
        for (code, body, plain) in [
            (401, &b""[..], false),
            (403, authorizer, false),
            (404, b"404 page not found", true),
            (405, b"", false),
            (415, b"", false),
        ] {
            answer(&target, code, body, plain);
        }
    }
    let text = registry.render();
    assert!(
        !text.contains("apiserver_request_total{"),
        "nothing of it is there"
    );
    for code in [401, 403, 404, 405, 415] {
        let line = format!("weir_requests_without_handler_total{{code=\"{code}\"}} 5000\n");
        assert!(text.contains(&line), "{line}");
    }
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(lines < 200, "{lines}");
    // Responses of handlers, and of admission plugins behind the authorizer, count.
    answer("/api/v1/namespaces/a/pods/x", 403, quota, false);
    answer("/api/v1/namespaces/a/pods/x", 404, b"{}", false);
    let text = registry.render();
    for code in [403, 404] {
        let series = format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\""
        );
        assert!(text.contains(&series), "{series}: {text}");
    }
}

#[test]
fn the_number_of_series_is_bounded() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    for n in 0..5000 {
        let target = format!("/apis/example.com/v1/widgets{n}");
        trace_of(&metrics, &target, 200, true);
    }
    let text = registry.render();
    // As in docs/reference/metrics.md: 4,096 label sets, and those of `other`, of which this is
    // one.
    for (family, most) in [
        ("apiserver_request_total{", 4097),
        ("apiserver_request_duration_seconds_count{", 4097),
        ("apiserver_request_sli_duration_seconds_count{", 4097),
    ] {
        let series = text.lines().filter(|line| line.starts_with(family));
        assert_eq!(series.count(), most, "{family}");
    }
}

#[test]
fn unknown_groups_of_rejected_requests_are_not_labels() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    for n in 0..100 {
        let target = format!("/apis/g{n}.k8s.io/v1/pods");
        trace_of(&metrics, &target, 429, false);
    }
    let text = registry.render();
    assert!(!text.contains(".k8s.io\""), "{text}");
}

#[test]
fn a_response_before_authentication_confirms_no_resource() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    for (method, resource) in [("OPTIONS", "made-up"), ("GET", "widgets")] {
        let target = format!("/apis/example.com/v1/{resource}");
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let labels = MetricLabels::from_request(method, &info, None);
        let subject = MetricSubject {
            labels,
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.record_response(subject, StatusCode::NO_CONTENT, None);
    }
    let text = registry.render();
    assert!(text.contains("resource=\"widgets\""), "{text}");
    assert!(!text.contains("made-up"), "{text}");
}

#[test]
fn an_event_over_the_body_budget_is_a_termination() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    let target = b"/api/v1/namespaces/a/events";
    let info = RequestInfo::parse("POST", target).unwrap();
    for fault in [BodyReadError::BudgetExhausted, BodyReadError::Malformed] {
        let subject = MetricSubject {
            labels: MetricLabels::from_request("POST", &info, None),
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.record_rejection(
            subject,
            &RequestRejection::Body(fault).facts(),
            &HeaderMap::new(),
        );
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
async fn a_response_is_measured_with_and_without_its_queue_wait() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    for target in ["/api/v1/nodes", "/api/v1/nodes?dryRun=All"] {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let subject = MetricSubject {
            labels: MetricLabels::from_request("GET", &info, None),
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.times.queue_wait = Duration::from_secs(10);
        tokio::time::advance(Duration::from_secs(12)).await;
        trace.times.admitted = Clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        trace.record_response(subject, StatusCode::OK, None);
        tokio::time::advance(Duration::from_secs(5)).await;
        trace.record_sent(2500);
        trace.record_sent(500);
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
fn a_watch_is_measured_but_not_in_the_sli() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    for target in [
        "/api/v1/pods?watch=1",
        "/api/v1/watch/namespaces/a/pods",
        "/api/v1/pods",
    ] {
        trace_of(&metrics, target, 200, true);
    }
    let text = registry.render();
    let of = |name: &str, verb: &str| {
        let (start, label) = (format!("{name}_count{{"), format!("verb=\"{verb}\""));
        text.lines()
            .any(|line| line.starts_with(&start) && line.contains(&label))
    };
    for (verb, objective) in [("LIST", true), ("WATCH", false)] {
        assert!(of("apiserver_request_duration_seconds", verb), "{text}");
        let sli = of("apiserver_request_sli_duration_seconds", verb);
        assert_eq!(sli, objective, "{verb}: {text}");
    }
}

#[test]
fn request_bodies_are_measured_by_their_content_length() {
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
        let subject = MetricSubject {
            labels: MetricLabels::from_request(method, &info, None),
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.record_response(subject, StatusCode::OK, size);
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
fn a_panic_is_counted_as_500_of_its_request_and_not_as_an_abort() {
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
        address_value: std::sync::OnceLock::new(),
        connection_id: 0,
        trusted: false,
        certificate: None,
        trust: TrustPublisher::new(Arc::default()).observer(),
        target_fragments: Arc::default(),
        hold_state: HoldState::new(1),
        body_drain_slots: BodyDrainSlots::default(),
        unverified_user: std::sync::OnceLock::new(),
    };
    let onlooker: Arc<dyn RequestObserver> = Arc::new(SilentObserver);
    let witnesses: RequestObservers = Arc::from([onlooker]);
    let arrival = ArrivalTime {
        at: Clock.now(),
        wall: Clock.wall(),
    };
    let received = ReceivedHead {
        peer: &peer,
        head: &head,
    };
    let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
    trace.start_counting(RecordGuard::new(
        &witnesses, received, target, &info, arrival,
    ));
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _trace = trace;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    let labels = "code=\"500\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"nodes\"";
    let text = registry.render();
    let of_it = |line: &&str| line.contains(labels) && line.contains("LIST");
    let line = text.lines().find(of_it);
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{text}");
    assert_eq!(value(&registry, "weir_aborted_requests_total"), Some(0.0));
}

#[test]
fn instrumented_paths_have_their_handler_labels_and_rejections_do_not() {
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
    let labels = MetricLabels::from_request("GET", &info, None);
    let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
    trace.record_response(
        MetricSubject {
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
