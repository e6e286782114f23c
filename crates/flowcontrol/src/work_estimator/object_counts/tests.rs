//! The sources of counts and sizes, and their order.

use super::*;

/// Of 500 objects, if each has [`ASSUMED_OBJECT_SIZE`].
const LIST: ListResponse = ListResponse {
    objects: None,
    bytes: 1_000_000,
    accuracy: SizeAccuracy::Text,
};

const SECOND: Duration = Duration::from_secs(1);

fn full_list(target: &str) -> Option<FullList> {
    FullList::of(&RequestInfo::parse("GET", target.as_bytes()).unwrap())
}

fn pair(stats: ObjectStats) -> Option<(u64, u64)> {
    match stats {
        ObjectStats::Counted {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

/// The number and size of pods after these responses to lists of them.
fn pods_after(answers: &[(&str, ListResponse)]) -> Option<(u64, u64)> {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    for (target, answer) in answers {
        counts.record_list(now, &full_list(target).unwrap(), *answer);
    }
    pod_stats(&mut counts, now)
}

#[test]
fn a_list_of_all_objects_is_estimated_by_its_length() {
    for target in ["/api/v1/pods", "/api/v1/pods?labelSelector="] {
        assert_eq!(pods_after(&[(target, LIST)]), Some((500, 2000)));
    }
    for bytes in [1, 1999, 3999, 720_001, 50_000_000] {
        let list = ListResponse { bytes, ..LIST };
        let (count, size) = pods_after(&[("/api/v1/pods", list)]).unwrap();
        assert!((bytes..bytes + count).contains(&(count * size)), "{bytes}");
    }
}

#[test]
fn a_page_is_what_all_objects_have_at_least() {
    let of = |bytes| ListResponse { bytes, ..LIST };
    let page = ("/api/v1/pods?limit=500", of(100_000));
    let small = ("/api/v1/pods?limit=1", of(2000));
    let all = ("/api/v1/pods?limit=500&resourceVersion=0", of(60_000));
    assert_eq!(pods_after(&[page]), Some((50, 2000)));
    assert_eq!(pods_after(&[page, small]), Some((50, 2000)));
    assert_eq!(pods_after(&[small, page]), Some((50, 2000)));
    assert_eq!(pods_after(&[page, all]), Some((30, 2000)), "no limit");
    assert_eq!(pods_after(&[all, small]), Some((30, 2000)));
}

#[test]
fn the_length_of_a_list_and_a_count_give_the_size() {
    let now = Instant::now();
    for (target, count, size) in [
        ("/api/v1/pods", 1000, 1000),
        ("/api/v1/pods?limit=500", 1000, 2000),
        ("/api/v1/pods?limit=500", 100, 10_000),
        ("/api/v1/pods?watch=1&limit=500", 1000, 1000),
    ] {
        let list = full_list(target).unwrap();
        let mut before = ObjectCounts::default();
        before.record_polled_count(now, b"", b"pods", count);
        let assumed = Some((count, ASSUMED_OBJECT_SIZE));
        assert_eq!(pod_stats(&mut before, now), assumed, "no size");
        before.record_list(now, &list, LIST);
        assert_eq!(pod_stats(&mut before, now), Some((count, size)), "{target}");
        let mut after = ObjectCounts::default();
        after.record_list(now, &list, LIST);
        after.record_polled_count(now, b"", b"pods", count);
        assert_eq!(pod_stats(&mut after, now), Some((count, size)), "{target}");
    }
}

#[test]
fn a_list_replaces_a_count_of_no_objects() {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    counts.record_polled_count(now, b"", b"pods", 0);
    record_pod_list(&mut counts, now);
    assert_eq!(pod_stats(&mut counts, now), Some((500, 2000)));
}

/// The size after each of these responses, given as hours, bytes and accuracy.
fn sizes(answers: &[(u64, u64, SizeAccuracy)]) -> Vec<u64> {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let sizes = answers.iter().map(|&(hours, bytes, accuracy)| {
        let answer = ListResponse {
            objects: Some(10),
            bytes,
            accuracy,
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
        let list = full_list(target).unwrap();
        counts.record_list(Instant::now(), &list, LIST);
        assert!(core(&mut counts) == endless || target == "/api/v1/events");
        let answer = ListResponse {
            objects: Some(401),
            ..LIST
        };
        counts.record_list(Instant::now(), &list, answer);
        let counted = ObjectStats::Counted {
            count: 401,
            average_size: 0,
        };
        assert_eq!(core(&mut counts), counted, "{target}");
        let other = counts.stats(Instant::now(), b"events.k8s.io", b"events");
        assert_eq!(other, ObjectStats::NotFound, "{target}");
    }
}

#[test]
fn a_partial_list_tells_nothing() {
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
        assert!(full_list(target).is_none(), "{target}");
    }
}

/// Records a list of all objects of a resource.
fn record_full_list(counts: &mut ObjectCounts, now: Instant, resource: &str, answer: ListResponse) {
    let target = format!("/apis/apps/v1/{resource}");
    counts.record_list(now, &full_list(&target).unwrap(), answer);
}

fn deployment_stats(counts: &mut ObjectCounts, resource: &str) -> Option<(u64, u64)> {
    pair(counts.stats(Instant::now(), b"apps", resource.as_bytes()))
}

#[test]
fn a_count_is_valid_until_the_next_one() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let events = ListResponse {
        objects: Some(1000),
        ..LIST
    };
    record_full_list(&mut counts, start, "deployments", events);
    let seen = Some((1000, 1000));
    assert_eq!(deployment_stats(&mut counts, "deployments"), seen);
    let a_day = Duration::from_secs(24 * 60 * 60);
    let longer = ListResponse {
        bytes: 3_000_000,
        ..LIST
    };
    record_full_list(&mut counts, start + a_day, "deployments", longer);
    let seen = Some((1000, 3000));
    assert_eq!(deployment_stats(&mut counts, "deployments"), seen);
    let table = ListResponse {
        objects: Some(7),
        bytes: 0,
        accuracy: SizeAccuracy::Abridged,
    };
    record_full_list(&mut counts, start + a_day, "deployments", table);
    let seen = Some((7, 3000));
    assert_eq!(deployment_stats(&mut counts, "deployments"), seen);
    assert_eq!(
        counts.stats(start, b"", b"deployments"),
        ObjectStats::NotFound,
        "another group's"
    );
}

#[test]
fn server_counts_take_precedence_over_observed_lists() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_full_list(&mut counts, start, "deployments", LIST);
    record_full_list(&mut counts, start, "aggregated", LIST);
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
    let stats = |counts: &mut ObjectCounts, after: Duration, resource: &str| {
        pair(counts.stats(start + after, b"apps", resource.as_bytes()))
    };
    let soon = SERVER_COUNT_TTL - Duration::from_millis(1);
    record_full_list(&mut counts, start + soon, "deployments", LIST);
    assert_eq!(stats(&mut counts, soon, "deployments"), Some((7, 900)));
    assert_eq!(
        stats(&mut counts, soon, "aggregated"),
        None,
        "not stored there"
    );
    let size = Some((3, ASSUMED_OBJECT_SIZE));
    assert_eq!(stats(&mut counts, soon, "daemonsets"), size);
    record_full_list(&mut counts, start + soon, "daemonsets", LIST);
    assert_eq!(stats(&mut counts, soon, "daemonsets"), Some((3, 333_333)));
    let events = counts.stats(start + soon, b"", b"events");
    let five = ObjectStats::Counted {
        count: 5,
        average_size: 0,
    };
    assert_eq!(events, five);
    // The metrics have expired: responses are the best source again.
    assert_eq!(
        stats(&mut counts, SERVER_COUNT_TTL, "aggregated"),
        Some((500, 2000))
    );
    let watch = ListResponse {
        objects: Some(2000),
        ..LIST
    };
    record_full_list(&mut counts, start + SERVER_COUNT_TTL, "deployments", watch);
    let after = stats(&mut counts, SERVER_COUNT_TTL, "deployments");
    assert_eq!(after, Some((2000, 900)), "a better measure of the size");
}

#[test]
fn the_least_recently_counted_resource_is_evicted_first() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    for n in 0..MAX_RESOURCES {
        record_full_list(&mut counts, start, &format!("r{n}"), LIST);
    }
    for n in (0..MAX_RESOURCES).filter(|&n| n != 7) {
        record_full_list(&mut counts, start + SECOND, &format!("r{n}"), LIST);
    }
    record_full_list(&mut counts, start + 2 * SECOND, "new", LIST);
    assert_eq!(counts.resources.len(), MAX_RESOURCES);
    assert_eq!(deployment_stats(&mut counts, "r7"), None);
    assert!(deployment_stats(&mut counts, "new").is_some());
}

fn pod_stats(counts: &mut ObjectCounts, now: Instant) -> Option<(u64, u64)> {
    pair(counts.stats(now, b"", b"pods"))
}

/// Records the response to a list of all pods that passes through weir.
fn record_pod_list(counts: &mut ObjectCounts, now: Instant) {
    counts.record_list(now, &full_list("/api/v1/pods").unwrap(), LIST);
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
fn a_polled_count_is_valid_until_the_next_one() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    assert!(counts.needs_count(start, b"", b"pods"), "nothing is known");
    record_pod_list(&mut counts, start);
    assert!(counts.needs_count(start, b"", b"pods"), "only the length");
    counts.record_polled_count(start, b"", b"pods", 1000);
    let old = start + POLL_INTERVAL;
    assert!(!counts.needs_count(old - SECOND, b"", b"pods"));
    assert!(counts.needs_count(old, b"", b"pods"));
    record_pod_list(&mut counts, old);
    assert!(counts.needs_count(old, b"", b"pods"), "a list has no count");
    assert_eq!(pod_stats(&mut counts, old), Some((1000, 1000)));
    counts.record_polled_count(old, b"", b"pods", 1002);
    assert_eq!(pod_stats(&mut counts, old), Some((1002, 1000)));
    let watch = ListResponse {
        objects: Some(500),
        ..LIST
    };
    let older = old + POLL_INTERVAL;
    counts.record_list(older, &full_list("/api/v1/pods?watch=1").unwrap(), watch);
    assert_eq!(pod_stats(&mut counts, older), Some((500, 2000)));
    assert!(!counts.needs_count(older, b"", b"pods"), "known otherwise");
}

#[test]
fn metrics_take_precedence_over_a_polled_count() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_pod_metrics(&mut counts, start, Some(7));
    assert!(!counts.needs_count(start, b"", b"pods"));
    assert!(!counts.needs_count(start, b"apps", b"x"), "not stored");
    counts.record_polled_count(start, b"", b"pods", 1001);
    assert_eq!(
        pod_stats(&mut counts, start),
        Some((7, ASSUMED_OBJECT_SIZE))
    );
    counts.record_polled_count(start, b"apps", b"x", 1001);
    assert_eq!(
        counts.stats(start, b"apps", b"x"),
        ObjectStats::NotFound,
        "not stored"
    );
    let gone = start + SERVER_COUNT_TTL;
    assert!(counts.needs_count(gone, b"apps", b"y"));
    counts.record_polled_count(gone, b"", b"pods", 1001);
    assert_eq!(
        pod_stats(&mut counts, gone),
        Some((1001, ASSUMED_OBJECT_SIZE))
    );
}

#[test]
fn a_resource_that_metrics_name_without_a_count_is_counted_by_responses() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    record_pod_metrics(&mut counts, start, None);
    assert_eq!(pod_stats(&mut counts, start), None);
    assert!(counts.needs_count(start, b"", b"pods"));
    counts.record_polled_count(start, b"", b"pods", 1001);
    assert_eq!(
        pod_stats(&mut counts, start),
        Some((1001, ASSUMED_OBJECT_SIZE))
    );
    record_pod_list(&mut counts, start);
    record_pod_metrics(&mut counts, start, None);
    assert_eq!(pod_stats(&mut counts, start), Some((1001, 999)));
    // A figure is valid for its time, even if the next one is missing.
    record_pod_metrics(&mut counts, start, Some(7));
    record_pod_metrics(&mut counts, start + SECOND, None);
    assert_eq!(pod_stats(&mut counts, start + SECOND), Some((7, 999)));
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
    let list = full_list("/api/v1/pods?limit=500").unwrap();
    old.record_list(now - Duration::from_secs(700), &list, LIST);
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
