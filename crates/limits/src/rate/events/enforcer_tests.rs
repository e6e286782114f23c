use super::*;

const POST: &str = "/api/v1/namespaces/default/events";

fn new_limits(limits: &[(LimitType, u32, u32, u8)]) -> (EventRateLimit, Registry) {
    let registry = Registry::new();
    let limit =
        |&(limit_type, qps, burst, reserve): &(LimitType, u32, u32, u8)| config::EventLimitConfig {
            limit_type,
            qps,
            burst,
            cache_size: 2,
            warning_reserve_percent: reserve,
        };
    let config = EventRateLimitConfig {
        limits: limits.iter().map(limit).collect(),
        groups: LimitedEventGroups::All,
        retry_after: true,
        dry_run: false,
    };
    (EventRateLimit::new(&config, &registry), registry)
}

fn send(
    limits: &EventRateLimit,
    (method, target): (&str, &str),
    content_type: Option<&[u8]>,
    body: &str,
    now: Instant,
) -> Result<(), EventRejection> {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    let request = limits.event_request(&info, content_type).unwrap();
    limits.admit(request, &info, "alice", body.as_bytes(), now)
}

fn event(source: &str, name: &str, event_type: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}"}},"source":{{"component":"{source}"}},"type":"{event_type}"}}"#
    )
}

#[test]
fn a_patch_is_charged_to_the_key_tracked_for_its_name() {
    let (limits, _registry) = new_limits(&[(LimitType::SourceAndObject, 1, 3, 0)]);
    let now = Instant::now();
    let patch = ("PATCH", "/api/v1/namespaces/default/events/a.1");
    let strategic = Some(&b"application/strategic-merge-patch+json"[..]);
    send(
        &limits,
        ("POST", POST),
        None,
        &event("kubelet", "a.1", "Normal"),
        now,
    )
    .unwrap();
    send(&limits, patch, strategic, "", now).unwrap();
    // The other group writes the same objects.
    let other = (
        "PATCH",
        "/apis/events.k8s.io/v1/namespaces/default/events/a.1",
    );
    send(&limits, other, strategic, "", now).unwrap();
    let rejection = send(&limits, patch, strategic, "", now).unwrap_err();
    assert_eq!(
        rejection.message,
        "Too many requests: limit reached on type SourceAndObject for key kubelet"
    );
    assert_eq!(rejection.retry_after, Some(1));
    let unknown = ("PATCH", "/api/v1/namespaces/default/events/b.2");
    for _ in 0..3 {
        send(&limits, unknown, strategic, "", now).unwrap();
    }
    let rejection = send(&limits, unknown, strategic, "", now).unwrap_err();
    assert!(
        rejection.message.ends_with("for key default/b.2"),
        "{rejection:?}"
    );
}

#[test]
fn an_invalid_event_has_the_empty_key() {
    let (limits, _registry) = new_limits(&[(LimitType::SourceAndObject, 1, 2, 0)]);
    let now = Instant::now();
    send(&limits, ("POST", POST), None, "{", now).unwrap();
    send(&limits, ("POST", POST), Some(b"text/plain"), "", now).unwrap();
    let foreign = r#"{"apiVersion":"events.k8s.io/v1","deprecatedSource":{"component":"x"}}"#;
    let rejection = send(&limits, ("POST", POST), None, foreign, now).unwrap_err();
    assert!(rejection.message.ends_with("for key "), "{rejection:?}");
}

#[test]
fn normal_events_leave_the_reserve_to_warnings() {
    let (limits, _registry) = new_limits(&[(LimitType::Server, 1, 10, 50)]);
    let now = Instant::now();
    let count = |event_type| {
        let body = event("c", "n", event_type);
        (0..20)
            .take_while(|_| send(&limits, ("POST", POST), None, &body, now).is_ok())
            .count()
    };
    assert_eq!(count("Normal"), 6);
    assert_eq!(count("Warning"), 4);
    assert_eq!(count("Normal"), 0);
}

#[test]
fn retry_after_is_whole_seconds_until_the_slowest_rejecting_limit_has_a_token() {
    let (limits, _registry) =
        new_limits(&[(LimitType::Server, 100, 1, 0), (LimitType::User, 1, 1, 0)]);
    let now = Instant::now();
    send(&limits, ("POST", POST), None, "{}", now).unwrap();
    let later = now + Duration::from_millis(1);
    let rejection = send(&limits, ("POST", POST), None, "{}", later).unwrap_err();
    assert_eq!(rejection.retry_after, Some(1));
    assert_eq!(
        rejection.message,
        "Too many requests: [limit reached on type Server for key , limit reached on type User for key alice]"
    );
    let later = now + Duration::from_millis(20);
    let rejection = send(&limits, ("POST", POST), None, "{}", later).unwrap_err();
    assert!(
        !rejection.message.contains('['),
        "the server's has one: {rejection:?}"
    );
}

#[test]
fn decisions_evictions_and_keys_are_counted() {
    let (limits, registry) = new_limits(&[(LimitType::Namespace, 1, 1, 0)]);
    let now = Instant::now();
    for namespace in ["a", "b", "b", "c"] {
        let target = format!("/api/v1/namespaces/{namespace}/events");
        let _ = send(&limits, ("POST", &target), None, "{}", now);
    }
    let text = registry.render();
    for line in [
        "weir_event_rate_limit_requests_total{decision=\"allowed\",limit=\"0\",type=\"Namespace\"} 3",
        "weir_event_rate_limit_requests_total{decision=\"rejected\",limit=\"0\",type=\"Namespace\"} 1",
        "weir_event_rate_limit_evictions_total{limit=\"0\",type=\"Namespace\"} 1",
        "weir_event_rate_limit_keys{limit=\"0\",type=\"Namespace\"} 2",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let (_, top) = &limits.top_keys()[0];
    assert_eq!((top[0].key.as_str(), top[0].rejections), ("b", 1));
}

#[test]
fn only_writes_of_events_in_a_namespace_are_limited() {
    let (limits, _registry) = new_limits(&[(LimitType::Server, 1, 1, 0)]);
    let is_limited = |method: &str, target: &str| {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        limits.event_request(&info, None).is_some()
    };
    assert!(is_limited("POST", POST));
    assert!(is_limited(
        "POST",
        "/apis/events.k8s.io/v1/namespaces/a/events"
    ));
    assert!(is_limited("PUT", "/api/v1/namespaces/a/events/x"));
    assert!(is_limited("PATCH", "/api/v1/namespaces/a/events/x?dryRun="));
    for (method, target) in [
        ("POST", "/api/v1/events"),
        ("POST", "/api/v1/namespaces/a/events/x"),
        ("POST", "/api/v1/namespaces/a/events?dryRun=All"),
        ("POST", "/api/v1/namespaces/a/pods"),
        ("POST", "/apis/example.org/v1/namespaces/a/events"),
        ("GET", "/api/v1/namespaces/a/events/x"),
        ("DELETE", "/api/v1/namespaces/a/events/x"),
        ("DELETE", "/api/v1/namespaces/a/events"),
        ("PUT", "/api/v1/namespaces/a/events"),
        ("PUT", "/api/v1/namespaces/a/events/x/status"),
    ] {
        assert!(!is_limited(method, target), "{method} {target}");
    }
}

#[test]
fn a_limit_that_stays_keeps_its_buckets_and_others_start_anew() {
    let (first, registry) =
        new_limits(&[(LimitType::User, 1, 1, 0), (LimitType::Namespace, 1, 2, 0)]);
    let now = Instant::now();
    let post = |limits: &EventRateLimit| send(limits, ("POST", POST), None, "", now);
    post(&first).unwrap();
    let mut config = EventRateLimitConfig {
        limits: first.limit_configs.to_vec(),
        groups: LimitedEventGroups::All,
        retry_after: true,
        dry_run: false,
    };
    let same = EventRateLimit::replacing(Some(&first), &config, None, &registry);
    let message = post(&same).unwrap_err().message;
    assert!(message.contains("type User"), "{message}");
    // The namespace moves to the first place with its single token; the user is gone.
    config.limits.remove(0);
    let second = EventRateLimit::replacing(Some(&same), &config, None, &registry);
    post(&second).unwrap_err();
    let keys = |n: usize, limit_type: &str| {
        format!("weir_event_rate_limit_keys{{limit=\"{n}\",type=\"{limit_type}\"}}")
    };
    let text = registry.render();
    assert!(
        text.contains(&format!("{} 1\n", keys(0, "Namespace"))),
        "{text}"
    );
    assert!(!text.contains(&keys(0, "User")) && !text.contains(&keys(1, "Namespace")));
    // Requests that still use the limits before are charged to the same buckets.
    post(&first).unwrap_err();
    config.limits[0].burst = 3;
    let third = EventRateLimit::replacing(Some(&second), &config, None, &registry);
    for _ in 0..3 {
        post(&third).unwrap();
    }
    post(&third).unwrap_err();
}
