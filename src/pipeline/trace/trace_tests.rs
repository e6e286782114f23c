use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::identity::client_certificate::trust::TrustPublisher;
use crate::limits::Rejection;
use crate::pipeline::connection::peer::{BodyDrainSlots, HoldState, Peer, ReceivedHead};
use crate::pipeline::reject::rejection::{BodyReadError, ImpersonationError, RequestRejection};
use crate::pipeline::trace::record::{Record, RequestObserver, RequestObservers};
use weir_base::metrics::Registry;
use weir_kubernetes::request_info::{MetricLabels, RequestInfo, RequestKind};
use weir_limits::max_in_flight::MaxInFlightRejection;

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
        trace.record_response(subject, code, &HeaderMap::new(), None);
    } else {
        let rejection = Rejection::MaxInFlight(MaxInFlightRejection {
            kind: RequestKind::ReadOnly,
            limit: 1,
        });
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

/// The end of a request with this response of the API server.
fn answered(
    metrics: &Arc<RequestMetrics>,
    (method, target): (&str, &str),
    code: u16,
    content_type: &'static str,
    body: &[u8],
) {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    let subject = MetricSubject {
        labels: MetricLabels::from_request(method, &info, None),
        info: &info,
    };
    let content_type = http::HeaderValue::from_static(content_type);
    let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, content_type)]);
    let code = StatusCode::from_u16(code).unwrap();
    let mut trace = Trace::start(Arc::clone(metrics), Clock.now());
    trace.record_response(subject, code, &headers, Some(9));
    for part in body.chunks(10) {
        trace.inspect_body(part);
    }
}

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";

#[test]
fn requests_without_a_handler_have_one_series_per_code() {
    let registry = Registry::new();
    let metrics = RequestMetrics::register(&registry);
    let authorizer = br#"{"kind":"Status","message":"pods is forbidden: User \"system:anonymous\" cannot list"}"#;
    for n in 0..5000 {
        let target = format!("/apis/g{n}.k8s.io/v1/namespaces/n{n}/pods/p/s{n}");
        for (code, content_type, body) in [
            (401, JSON, &b""[..]),
            (403, JSON, authorizer),
            (404, PLAIN, b"404 page not found"),
            (405, JSON, b""),
            (406, JSON, b""),
        ] {
            answered(&metrics, ("GET", &target), code, content_type, body);
        }
    }
    let text = registry.render();
    assert!(
        !text.contains("apiserver_request_total{"),
        "nothing of it is there"
    );
    for code in [401, 403, 404, 405, 406] {
        let line = format!("weir_requests_without_handler_total{{code=\"{code}\"}} 5000\n");
        assert!(text.contains(&line), "{line}");
    }
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(lines < 200, "{lines}");
}

/// A response and whether kube-apiserver counts it in `apiserver_request_*`.
type CountedRow = (
    (&'static str, &'static str),
    u16,
    &'static str,
    &'static str,
    bool,
);

const POD: &str = "/api/v1/namespaces/a/pods/x";
const PODS: &str = "/api/v1/namespaces/a/pods";
const PROXIED: &str = "/api/v1/namespaces/a/services/x/proxy/login";

/// By status and origin: the filter chain, the choice of a route, a handler.
#[rustfmt::skip]
const COUNTED: &[CountedRow] = &[
    // The filter chain.
    (("GET", "/api/v1/namespaces/a/pods?timeout=abc"), 400, JSON, r#"{"message":"invalid timeout specified in the request URL - time: invalid duration \"abc\""}"#, false),
    (("GET", PODS), 400, JSON, r#"{"message":"requested groups, a uid or extra values without impersonating a user name"}"#, false),
    (("GET", PODS), 401, JSON, r#"{"kind":"Status","message":"Unauthorized","reason":"Unauthorized"}"#, false),
    (("GET", PODS), 403, JSON, r#"{"message":"pods is forbidden: User \"alice\" cannot list"}"#, false),
    (("GET", PODS), 429, PLAIN, "Too many requests, please try again later.\n", true),
    (("GET", "/version"), 429, PLAIN, "Too many requests, please try again later.\n", true),
    (("GET", PODS), 429, PLAIN, "The apiserver is shutting down, please try again later.\n", false),
    (("GET", PODS), 500, PLAIN, "Internal Server Error: \"/api/v1/namespaces/a/pods\": no", false),
    (("GET", PODS), 500, PLAIN, "This request caused apiserver to panic. Look in the logs for details.\n", false),
    (("GET", PODS), 503, JSON, r#"{"message":"apiserver is shutting down"}"#, false),
    (("GET", PODS), 504, PLAIN, r#"{"message":"Timeout: request did not complete within the allotted timeout"}"#, true),
    // The choice of a route, and the aggregator.
    (("GET", "/apis/none/v1/things"), 404, PLAIN, "404 page not found\n", false),
    (("GET", PODS), 503, JSON, r#"{"message":"the request has been made before all known HTTP paths have been installed, please try again"}"#, false),
    (("PUT", PODS), 405, JSON, r#"{"message":"the server does not allow this method on the requested resource"}"#, false),
    (("GET", PODS), 406, JSON, r#"{"message":"406: Not Acceptable"}"#, false),
    (("GET", "/apis/metrics.k8s.io/v1beta1/nodes"), 503, PLAIN, "service unavailable\n", false),
    // Handlers of resources.
    (("GET", POD), 200, JSON, "{}", true),
    (("GET", POD), 304, JSON, "", true),
    (("POST", PODS), 400, JSON, r#"{"message":"the object provided is unrecognized"}"#, true),
    (("POST", PODS), 403, JSON, r#"{"message":"pods \"x\" is forbidden: exceeded quota"}"#, true),
    (("GET", POD), 404, JSON, r#"{"message":"pods \"x\" not found"}"#, true),
    (("POST", PODS), 409, JSON, r#"{"message":"pods \"x\" already exists"}"#, true),
    (("POST", PODS), 413, JSON, r#"{"message":"Request entity too large: limit is 3145728"}"#, true),
    (("POST", PODS), 415, JSON, r#"{"message":"the body of the request was in an unknown format"}"#, true),
    (("PATCH", POD), 415, JSON, r#"{"message":"the body of the request was in an unknown format"}"#, true),
    (("POST", PODS), 422, JSON, r#"{"message":"Pod \"x\" is invalid"}"#, true),
    (("POST", "/api/v1/namespaces/a/pods/x/eviction"), 429, JSON, r#"{"message":"Cannot evict pod"}"#, true),
    (("GET", PODS), 500, JSON, r#"{"message":"etcdserver: request timed out"}"#, true),
    // What a proxied server answers.
    (("GET", PROXIED), 401, PLAIN, "log in", true),
    (("GET", PROXIED), 401, JSON, r#"{"kind":"Status","message":"Unauthorized","reason":"Unauthorized"}"#, false),
    (("GET", PROXIED), 404, PLAIN, "404 page not found\n", true),
    (("GET", PROXIED), 405, PLAIN, "", true),
    (("GET", PROXIED), 503, PLAIN, "service unavailable\n", true),
    // Paths that name no resource.
    (("GET", "/healthz"), 200, PLAIN, "ok", true),
    (("GET", "/readyz"), 500, PLAIN, "[-]etcd failed", true),
    (("GET", "/healthz/etcd"), 200, PLAIN, "ok", false),
    (("GET", "/openapi/v3"), 200, JSON, "{}", true),
    (("GET", "/openapi/v3/apis/apps/v1"), 200, JSON, "{}", true),
    (("GET", "/api"), 200, JSON, "{}", false),
    (("GET", "/apis"), 200, JSON, "{}", false),
    (("GET", "/apis"), 200, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "{}", true),
    (("GET", "/api/v1"), 200, JSON, "{}", false),
    (("GET", "/apis/apps/v1"), 200, JSON, "{}", false),
    (("GET", "/version"), 200, JSON, "{}", false),
    (("GET", "/openapi/v2"), 200, JSON, "{}", false),
    (("GET", "/openid/v1/jwks"), 200, JSON, "{}", false),
    (("GET", "/.well-known/openid-configuration"), 200, JSON, "{}", false),
    (("GET", "/metrics"), 200, PLAIN, "", false),
    (("GET", "/debug/pprof/heap"), 200, JSON, "", false),
    (("GET", "/statusz"), 200, PLAIN, "", false),
    (("GET", "/nope"), 404, PLAIN, "404 page not found\n", false),
];

#[test]
fn a_response_counts_as_a_request_if_kube_apiserver_counts_it() {
    for (request, code, content_type, body, counts) in COUNTED {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        answered(&metrics, *request, *code, content_type, body.as_bytes());
        let text = registry.render();
        let counted = text.contains("apiserver_request_total{");
        assert_eq!(counted, *counts, "{request:?} {code} {content_type} {body}");
        let not_counted = format!("weir_requests_without_handler_total{{code=\"{code}\"}} 1");
        assert_eq!(text.contains(&not_counted), !counts, "{request:?} {code}");
        for family in [
            "apiserver_request_duration_seconds_count{",
            "apiserver_request_sli_duration_seconds_count{",
            "apiserver_response_sizes_count{",
            "apiserver_request_body_size_bytes_count{",
        ] {
            assert!(*counts || !text.contains(family), "{request:?} {family}");
        }
    }
}

#[test]
fn a_response_of_weir_in_place_of_a_filter_is_not_counted() {
    for (rejection, counts) in [
        (RequestRejection::BadRequest("a timeout".to_owned()), false),
        (
            RequestRejection::Impersonation(ImpersonationError::Denied("no".to_owned())),
            false,
        ),
        (RequestRejection::NoFrontProxyCertificate, false),
        (RequestRejection::Timeout(Duration::from_secs(1)), true),
        (RequestRejection::Body(BodyReadError::TooLarge(1)), true),
    ] {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        let info = RequestInfo::parse("GET", PODS.as_bytes()).unwrap();
        let subject = MetricSubject {
            labels: MetricLabels::from_request("GET", &info, None),
            info: &info,
        };
        let mut trace = Trace::start(Arc::clone(&metrics), Clock.now());
        trace.record_rejection(subject, &rejection.facts(), &HeaderMap::new());
        drop(trace);
        let counted = registry.render().contains("apiserver_request_total{");
        assert_eq!(counted, counts, "{rejection:?}");
    }
}

#[test]
fn custom_resources_have_the_labels_of_their_request_and_built_in_ones_of_their_route() {
    let one = "fieldSelector=metadata.name%3Dx";
    for (target, verb, scope, has_size) in [
        (
            format!("/apis/example.com/v1/namespaces/a/widgets?{one}"),
            "GET",
            "resource",
            true,
        ),
        (
            format!("/apis/example.com/v1/namespaces/a/widgets?watch=1&{one}"),
            "WATCH",
            "resource",
            false,
        ),
        (
            "/apis/example.com/v1/widgets?watch=1".to_owned(),
            "WATCH",
            "cluster",
            false,
        ),
        (
            "/apis/example.com/v1/widgets".to_owned(),
            "LIST",
            "cluster",
            true,
        ),
        (
            format!("/api/v1/namespaces/a/pods?{one}"),
            "LIST",
            "namespace",
            true,
        ),
        ("/api/v1/pods?watch=1".to_owned(), "WATCH", "cluster", true),
        ("/api/v1/watch/pods".to_owned(), "WATCH", "cluster", false),
    ] {
        let registry = Registry::new();
        let metrics = RequestMetrics::register(&registry);
        answered(&metrics, ("GET", &target), 200, JSON, b"");
        let text = registry.render();
        let total = text
            .lines()
            .find(|line| line.starts_with("apiserver_request_total{"));
        let labels = [format!("verb=\"{verb}\""), format!("scope=\"{scope}\"")];
        let has_labels = |line: &str| labels.iter().all(|label| line.contains(label));
        assert!(total.is_some_and(has_labels), "{target}: {text}");
        let sizes = text.contains("apiserver_response_sizes_count{");
        assert_eq!(sizes, has_size, "{target}");
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
        trace.record_response(subject, StatusCode::NO_CONTENT, &HeaderMap::new(), None);
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
        trace.record_response(subject, StatusCode::OK, &HeaderMap::new(), None);
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
        trace.record_response(subject, StatusCode::OK, &HeaderMap::new(), size);
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
        hold_state: HoldState::new(1),
        body_drain_slots: BodyDrainSlots::default(),
        last_user: Default::default(),
        levers_at_start: 0,
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
        &HeaderMap::new(),
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
