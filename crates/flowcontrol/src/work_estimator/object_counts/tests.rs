//! The sources of counts and sizes, and their order.

use super::*;

const PAGE: ListResponse = ListResponse {
    items: 500,
    remaining_items: Some(1500),
    has_continue: true,
    bytes: 1_000_100,
    accuracy: SizeAccuracy::Text,
};

fn stats_after(target: &str, answer: ListResponse) -> Option<(u64, u64)> {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    counts.record_list(now, &info, answer);
    match counts.stats(now, info.api_group(), info.resource()) {
        ObjectStats::Counted {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

#[test]
fn a_list_of_all_objects_sets_the_count() {
    let whole = ListResponse {
        remaining_items: None,
        has_continue: false,
        ..PAGE
    };
    assert_eq!(stats_after("/api/v1/pods", whole), Some((500, 2000)));
    assert_eq!(
        stats_after("/apis/apps/v1/deployments?limit=500", whole),
        Some((500, 2000))
    );
    assert_eq!(
        stats_after("/apis/apps/v1/deployments?limit=500", PAGE),
        Some((2000, 2000))
    );
    let none = ListResponse { items: 0, ..whole };
    assert_eq!(
        stats_after("/api/v1/pods?labelSelector=", none),
        Some((0, 0))
    );
}

/// The size after each of these responses, given as hours, bytes and accuracy.
fn sizes(answers: &[(u64, u64, SizeAccuracy)]) -> Vec<u64> {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let sizes = answers.iter().map(|&(hours, bytes, measure)| {
        let answer = ListResponse {
            items: 10,
            remaining_items: None,
            has_continue: false,
            bytes,
            accuracy: measure,
        };
        let now = start + Duration::from_secs(hours * 60 * 60);
        record_full_list(&mut counts, now, "deployments", answer);
        deployment_stats(&mut counts, "deployments").unwrap().1
    });
    sizes.collect()
}

#[test]
fn tables_and_metadata_never_replace_a_size() {
    use SizeAccuracy::{Abridged, Protobuf, Text};
    let of_table = sizes(&[(0, 1000, Abridged), (0, 20_000, Text), (90, 2000, Abridged)]);
    assert_eq!(of_table, [100, 2000, 2000]);
    let of_text = sizes(&[(0, 9000, Protobuf), (0, 20_000, Text), (1, 20_000, Text)]);
    assert_eq!(of_text, [900, 900, 2000], "JSON is longer");
    assert_eq!(
        sizes(&[(0, 20_000, Text), (0, 9000, Protobuf)]),
        [2000, 900]
    );
}

#[test]
fn events_have_no_size_and_are_found_only_in_the_core_group() {
    let mut counts = ObjectCounts::default();
    let core = |counts: &mut ObjectCounts| counts.stats(Instant::now(), b"", b"events");
    let endless = ObjectStats::Counted {
        count: INFINITE_COUNT,
        average_size: 0,
    };
    assert_eq!(
        core(&mut counts),
        endless,
        "there are events that no client lists"
    );
    for target in ["/apis/events.k8s.io/v1/events", "/api/v1/events"] {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let answer = ListResponse { items: 401, ..PAGE };
        counts.record_list(Instant::now(), &info, answer);
        let counted = ObjectStats::Counted {
            count: 1901,
            average_size: 0,
        };
        assert_eq!(core(&mut counts), counted, "{target}");
        let other = counts.stats(Instant::now(), b"events.k8s.io", b"events");
        assert_eq!(other, ObjectStats::NotFound, "{target}");
    }
}

#[test]
fn a_partial_list_sets_no_count() {
    let targets = [
        "/api/v1/namespaces/a/pods",
        "/api/v1/namespaces/a",
        "/api/v1/pods?labelSelector=x",
        "/api/v1/pods?shardSelector=x",
        "/api/v1/pods?fieldSelector=metadata.name%3Dx",
        "/api/v1/pods?limit=500&continue=x",
        "/api/v1/namespaces/a/pods?watch=1",
        "/api/v1/pods/status",
    ];
    for target in targets {
        assert_eq!(stats_after(target, PAGE), None, "{target}");
    }
    let more = ListResponse {
        remaining_items: None,
        ..PAGE
    };
    assert_eq!(stats_after("/api/v1/pods?limit=500", more), None);
    let absurd = ListResponse {
        remaining_items: Some(u64::MAX),
        ..PAGE
    };
    assert_eq!(stats_after("/api/v1/pods?limit=500", absurd), None);
}

/// Records a list of all objects of a resource.
fn record_full_list(counts: &mut ObjectCounts, now: Instant, resource: &str, answer: ListResponse) {
    let target = format!("/apis/apps/v1/{resource}");
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    counts.record_list(now, &info, answer);
}

fn deployment_stats(counts: &mut ObjectCounts, resource: &str) -> Option<(u64, u64)> {
    match counts.stats(Instant::now(), b"apps", resource.as_bytes()) {
        ObjectStats::Counted {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

#[test]
fn a_count_is_valid_until_the_next_one() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_full_list(&mut counts, start, "deployments", PAGE);
    assert_eq!(
        deployment_stats(&mut counts, "deployments"),
        Some((2000, 2000))
    );
    let table = ListResponse {
        items: 7,
        remaining_items: None,
        has_continue: false,
        bytes: 0,
        accuracy: SizeAccuracy::Abridged,
    };
    let a_day = Duration::from_secs(24 * 60 * 60);
    record_full_list(&mut counts, start + a_day, "deployments", table);
    assert_eq!(
        deployment_stats(&mut counts, "deployments"),
        Some((7, 2000))
    );
    assert_eq!(
        counts.stats(start, b"", b"deployments"),
        ObjectStats::NotFound,
        "another group's"
    );
}

#[test]
fn server_counts_take_precedence_over_observed_lists() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_full_list(&mut counts, start, "deployments", PAGE);
    record_full_list(&mut counts, start, "aggregated", PAGE);
    let server = |count, average_size| ServerCount {
        count: Some(count),
        average_size,
    };
    let counted = [
        ("deployments.apps", server(7, Some(900))),
        ("daemonsets.apps", server(3, None)),
        ("events", server(5, Some(0))),
    ];
    counts.record_server_counts(start, counted.into_iter());
    let stats = |counts: &mut ObjectCounts, after: Duration, resource: &str| match counts.stats(
        start + after,
        b"apps",
        resource.as_bytes(),
    ) {
        ObjectStats::Counted {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    };
    let soon = SERVER_COUNT_TTL - Duration::from_millis(1);
    record_full_list(&mut counts, start + soon, "deployments", PAGE);
    assert_eq!(stats(&mut counts, soon, "deployments"), Some((7, 900)));
    assert_eq!(
        stats(&mut counts, soon, "aggregated"),
        None,
        "not stored there"
    );
    record_full_list(&mut counts, start + soon, "daemonsets", PAGE);
    assert_eq!(stats(&mut counts, soon, "daemonsets"), Some((3, 2000)));
    let events = counts.stats(start + soon, b"", b"events");
    let five = ObjectStats::Counted {
        count: 5,
        average_size: 0,
    };
    assert_eq!(events, five);
    // The metrics have expired: responses are the best source again.
    assert_eq!(
        stats(&mut counts, SERVER_COUNT_TTL, "aggregated"),
        Some((2000, 2000))
    );
    record_full_list(&mut counts, start + SERVER_COUNT_TTL, "deployments", PAGE);
    let after = stats(&mut counts, SERVER_COUNT_TTL, "deployments");
    assert_eq!(after, Some((2000, 900)), "a better measure of the size");
}

#[test]
fn the_least_recently_counted_resource_is_evicted_first() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let second = Duration::from_secs(1);
    for n in 0..MAX_RESOURCES {
        record_full_list(&mut counts, start, &format!("r{n}"), PAGE);
    }
    for n in (0..MAX_RESOURCES).filter(|&n| n != 7) {
        record_full_list(&mut counts, start + second, &format!("r{n}"), PAGE);
    }
    record_full_list(&mut counts, start + 2 * second, "new", PAGE);
    assert_eq!(counts.resources.len(), MAX_RESOURCES);
    assert_eq!(deployment_stats(&mut counts, "r7"), None);
    assert!(deployment_stats(&mut counts, "new").is_some());
}

fn pod_stats(counts: &mut ObjectCounts, now: Instant) -> Option<(u64, u64)> {
    match counts.stats(now, b"", b"pods") {
        ObjectStats::Counted {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

/// Records the response to a list of all pods that passes through weir.
fn record_pod_list(counts: &mut ObjectCounts, now: Instant) {
    let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
    counts.record_list(now, &info, PAGE);
}

/// Records metrics that contain pods, with this figure.
fn record_pod_metrics(counts: &mut ObjectCounts, now: Instant, count: Option<u64>) {
    let pods = ServerCount {
        count,
        average_size: None,
    };
    counts.record_server_counts(now, [("pods", pods)].into_iter());
}

#[test]
fn a_polled_count_is_valid_until_the_next_response_and_sets_no_size() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    assert!(counts.needs_count(start, b"", b"pods"), "nothing is known");
    counts.record_polled_count(start, b"", b"pods", 1001);
    assert_eq!(pod_stats(&mut counts, start), Some((1001, 0)), "no size");
    let old = start + POLL_INTERVAL;
    assert!(!counts.needs_count(old - FRESH_SIZE_TTL, b"", b"pods"));
    assert!(counts.needs_count(old, b"", b"pods"));
    record_pod_list(&mut counts, old);
    assert_eq!(
        pod_stats(&mut counts, old),
        Some((2000, 2000)),
        "the newest"
    );
    assert!(!counts.needs_count(old, b"", b"pods"), "known otherwise");
    let older = old + POLL_INTERVAL;
    counts.record_polled_count(older, b"", b"pods", 1002);
    assert_eq!(
        pod_stats(&mut counts, older),
        Some((1002, 2000)),
        "the newest"
    );
}

#[test]
fn metrics_take_precedence_over_a_polled_count() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_pod_metrics(&mut counts, start, Some(7));
    assert!(!counts.needs_count(start, b"", b"pods"));
    assert!(!counts.needs_count(start, b"apps", b"x"), "not stored");
    counts.record_polled_count(start, b"", b"pods", 1001);
    assert_eq!(pod_stats(&mut counts, start), Some((7, 0)));
    counts.record_polled_count(start, b"apps", b"x", 1001);
    assert_eq!(
        counts.stats(start, b"apps", b"x"),
        ObjectStats::NotFound,
        "not stored"
    );
    let gone = start + SERVER_COUNT_TTL;
    assert!(counts.needs_count(gone, b"apps", b"y"));
    counts.record_polled_count(gone, b"", b"pods", 1001);
    assert_eq!(pod_stats(&mut counts, gone), Some((1001, 0)));
}

#[test]
fn a_resource_that_metrics_name_without_a_count_is_counted_by_responses() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_pod_metrics(&mut counts, start, None);
    assert_eq!(pod_stats(&mut counts, start), None);
    assert!(counts.needs_count(start, b"", b"pods"));
    counts.record_polled_count(start, b"", b"pods", 1001);
    assert_eq!(pod_stats(&mut counts, start), Some((1001, 0)));
    record_pod_list(&mut counts, start);
    record_pod_metrics(&mut counts, start, None);
    assert_eq!(pod_stats(&mut counts, start), Some((2000, 2000)));
    // A figure is valid for its time, even if the next one is missing.
    record_pod_metrics(&mut counts, start, Some(7));
    record_pod_metrics(&mut counts, start + FRESH_SIZE_TTL, None);
    assert_eq!(
        pod_stats(&mut counts, start + FRESH_SIZE_TTL),
        Some((7, 2000))
    );
}

#[test]
fn events_are_polled_only_in_the_core_group() {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    assert!(counts.needs_count(now, b"", b"events"));
    assert!(!counts.needs_count(now, b"events.k8s.io", b"events"));
    counts.record_polled_count(now, b"", b"events", 3);
    let three = ObjectStats::Counted {
        count: 3,
        average_size: 0,
    };
    assert_eq!(counts.stats(now, b"", b"events"), three);
}

#[test]
fn another_process_takes_over_counts_and_sizes_with_their_ages() {
    let now = Instant::now() + Duration::from_secs(7200);
    let mut old = ObjectCounts::default();
    let list = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
    old.record_list(now - Duration::from_secs(700), &list, PAGE);
    let server = ServerCount {
        count: Some(7),
        average_size: Some(100),
    };
    let counts = [("deployments.apps", server)];
    old.record_server_counts(now - Duration::from_secs(60), counts.into_iter());
    let text = serde_json::to_string(&old.save(now)).unwrap();
    let saved: Vec<SavedCount> = serde_json::from_str(&text).unwrap();
    let mut new = ObjectCounts::default();
    new.restore(now, &saved);
    for (group, resource) in [
        (&b""[..], &b"pods"[..]),
        (b"apps", b"deployments"),
        (b"", b"secrets"),
    ] {
        assert_eq!(
            new.stats(now, group, resource),
            old.stats(now, group, resource)
        );
        let later = now + Duration::from_secs(150);
        assert_eq!(
            new.stats(later, group, resource),
            old.stats(later, group, resource)
        );
        assert_eq!(
            new.needs_count(later, group, resource),
            old.needs_count(later, group, resource)
        );
    }
}
