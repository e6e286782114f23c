//! What is learned of objects, and by which source seats go.

use super::*;

const PAGE: ListAnswer = ListAnswer {
    items: 500,
    remaining_items: Some(1500),
    continues: true,
    bytes: 1_000_100,
    measure: Measure::Text,
};

fn learned(target: &str, answer: ListAnswer) -> Option<(u64, u64)> {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    counts.learn(now, &info, answer);
    match counts.stats(now, info.api_group(), info.resource()) {
        ObjectStats::Known {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

#[test]
fn a_list_of_everything_tells_the_total() {
    let whole = ListAnswer {
        remaining_items: None,
        continues: false,
        ..PAGE
    };
    assert_eq!(learned("/api/v1/pods", whole), Some((500, 2000)));
    assert_eq!(
        learned("/apis/apps/v1/deployments?limit=500", whole),
        Some((500, 2000))
    );
    assert_eq!(
        learned("/apis/apps/v1/deployments?limit=500", PAGE),
        Some((2000, 2000))
    );
    let none = ListAnswer { items: 0, ..whole };
    assert_eq!(learned("/api/v1/pods?labelSelector=", none), Some((0, 0)));
}

/// Size after each of these answers, given as hours, bytes and measure.
fn sizes(answers: &[(u64, u64, Measure)]) -> Vec<u64> {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let known = answers.iter().map(|&(hours, bytes, measure)| {
        let answer = ListAnswer {
            items: 10,
            remaining_items: None,
            continues: false,
            bytes,
            measure,
        };
        let now = start + Duration::from_secs(hours * 60 * 60);
        count(&mut counts, now, "deployments", answer);
        known(&mut counts, "deployments").unwrap().1
    });
    known.collect()
}

#[test]
fn tables_and_metadata_never_take_the_place_of_a_size() {
    use Measure::Abridged;
    use Measure::Protobuf;
    use Measure::Text;
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
fn events_have_no_size_and_are_found_in_the_core_group_alone() {
    let mut counts = ObjectCounts::default();
    let core = |counts: &mut ObjectCounts| counts.stats(Instant::now(), b"", b"events");
    let endless = ObjectStats::Known {
        count: ENDLESS,
        average_size: 0,
    };
    assert_eq!(
        core(&mut counts),
        endless,
        "there are events, if nobody lists them"
    );
    for target in ["/apis/events.k8s.io/v1/events", "/api/v1/events"] {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let answer = ListAnswer { items: 401, ..PAGE };
        counts.learn(Instant::now(), &info, answer);
        let counted = ObjectStats::Known {
            count: 1901,
            average_size: 0,
        };
        assert_eq!(core(&mut counts), counted, "{target}");
        let other = counts.stats(Instant::now(), b"events.k8s.io", b"events");
        assert_eq!(other, ObjectStats::NotFound, "{target}");
    }
}

#[test]
fn a_part_of_it_tells_nothing() {
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
        assert_eq!(learned(target, PAGE), None, "{target}");
    }
    let more = ListAnswer {
        remaining_items: None,
        ..PAGE
    };
    assert_eq!(learned("/api/v1/pods?limit=500", more), None);
    let absurd = ListAnswer {
        remaining_items: Some(u64::MAX),
        ..PAGE
    };
    assert_eq!(learned("/api/v1/pods?limit=500", absurd), None);
}

/// A list of all there is of a resource.
fn count(counts: &mut ObjectCounts, now: Instant, resource: &str, answer: ListAnswer) {
    let target = format!("/apis/apps/v1/{resource}");
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    counts.learn(now, &info, answer);
}

fn known(counts: &mut ObjectCounts, resource: &str) -> Option<(u64, u64)> {
    match counts.stats(Instant::now(), b"apps", resource.as_bytes()) {
        ObjectStats::Known {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

#[test]
fn a_count_holds_until_the_next_one() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    count(&mut counts, start, "deployments", PAGE);
    assert_eq!(known(&mut counts, "deployments"), Some((2000, 2000)));
    let table = ListAnswer {
        items: 7,
        remaining_items: None,
        continues: false,
        bytes: 0,
        measure: Measure::Abridged,
    };
    let a_day = Duration::from_secs(24 * 60 * 60);
    count(&mut counts, start + a_day, "deployments", table);
    assert_eq!(known(&mut counts, "deployments"), Some((7, 2000)));
    assert_eq!(
        counts.stats(start, b"", b"deployments"),
        ObjectStats::NotFound,
        "another group's"
    );
}

#[test]
fn what_the_server_has_counted_goes_before_what_passed_by() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    count(&mut counts, start, "deployments", PAGE);
    count(&mut counts, start, "aggregated", PAGE);
    let server = |count, average_size| CountedByServer {
        count: Some(count),
        average_size,
    };
    let counted = [
        ("deployments.apps", server(7, Some(900))),
        ("daemonsets.apps", server(3, None)),
        ("events", server(5, Some(0))),
    ];
    counts.learn_counted(start, counted.into_iter());
    let stats = |counts: &mut ObjectCounts, after: Duration, resource: &str| match counts.stats(
        start + after,
        b"apps",
        resource.as_bytes(),
    ) {
        ObjectStats::Known {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    };
    let soon = COUNTED_HOLDS - Duration::from_millis(1);
    count(&mut counts, start + soon, "deployments", PAGE);
    assert_eq!(stats(&mut counts, soon, "deployments"), Some((7, 900)));
    assert_eq!(
        stats(&mut counts, soon, "aggregated"),
        None,
        "not stored there"
    );
    count(&mut counts, start + soon, "daemonsets", PAGE);
    assert_eq!(stats(&mut counts, soon, "daemonsets"), Some((3, 2000)));
    let events = counts.stats(start + soon, b"", b"events");
    let five = ObjectStats::Known {
        count: 5,
        average_size: 0,
    };
    assert_eq!(events, five);
    // It says nothing any more: what passes by is the best there is again.
    assert_eq!(
        stats(&mut counts, COUNTED_HOLDS, "aggregated"),
        Some((2000, 2000))
    );
    count(&mut counts, start + COUNTED_HOLDS, "deployments", PAGE);
    let after = stats(&mut counts, COUNTED_HOLDS, "deployments");
    assert_eq!(after, Some((2000, 900)), "a better measure of the size");
}

#[test]
fn of_too_many_resources_the_one_longest_not_counted_makes_room() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    let second = Duration::from_secs(1);
    for n in 0..MAX_RESOURCES {
        count(&mut counts, start, &format!("r{n}"), PAGE);
    }
    for n in (0..MAX_RESOURCES).filter(|&n| n != 7) {
        count(&mut counts, start + second, &format!("r{n}"), PAGE);
    }
    count(&mut counts, start + 2 * second, "new", PAGE);
    assert_eq!(counts.resources.len(), MAX_RESOURCES);
    assert_eq!(known(&mut counts, "r7"), None);
    assert!(known(&mut counts, "new").is_some());
}

fn pods(counts: &mut ObjectCounts, now: Instant) -> Option<(u64, u64)> {
    match counts.stats(now, b"", b"pods") {
        ObjectStats::Known {
            count,
            average_size,
        } => Some((count, average_size)),
        ObjectStats::NotFound => None,
    }
}

/// Takes in an answer to a list of all pods that passes by.
fn pass_by(counts: &mut ObjectCounts, now: Instant) {
    let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
    counts.learn(now, &info, PAGE);
}

/// Metrics that have pods, with this figure.
fn metrics(counts: &mut ObjectCounts, now: Instant, count: Option<u64>) {
    let pods = CountedByServer {
        count,
        average_size: None,
    };
    counts.learn_counted(now, [("pods", pods)].into_iter());
}

#[test]
fn a_count_that_was_asked_for_serves_until_the_next_answer_and_tells_no_size() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    assert!(counts.wants_count(start, b"", b"pods"), "nothing is known");
    counts.learn_asked(start, b"", b"pods", 1001);
    assert_eq!(pods(&mut counts, start), Some((1001, 0)), "no size");
    let old = start + ASKED_AGAIN_AFTER;
    assert!(!counts.wants_count(old - JUST_NOW, b"", b"pods"));
    assert!(counts.wants_count(old, b"", b"pods"));
    pass_by(&mut counts, old);
    assert_eq!(pods(&mut counts, old), Some((2000, 2000)), "the newest");
    assert!(!counts.wants_count(old, b"", b"pods"), "known otherwise");
    let older = old + ASKED_AGAIN_AFTER;
    counts.learn_asked(older, b"", b"pods", 1002);
    assert_eq!(pods(&mut counts, older), Some((1002, 2000)), "the newest");
}

#[test]
fn metrics_go_before_a_count_that_was_asked_for() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    metrics(&mut counts, start, Some(7));
    assert!(!counts.wants_count(start, b"", b"pods"));
    assert!(!counts.wants_count(start, b"apps", b"x"), "not stored");
    counts.learn_asked(start, b"", b"pods", 1001);
    assert_eq!(pods(&mut counts, start), Some((7, 0)));
    counts.learn_asked(start, b"apps", b"x", 1001);
    assert_eq!(
        counts.stats(start, b"apps", b"x"),
        ObjectStats::NotFound,
        "not stored"
    );
    let gone = start + COUNTED_HOLDS;
    assert!(counts.wants_count(gone, b"apps", b"y"));
    counts.learn_asked(gone, b"", b"pods", 1001);
    assert_eq!(pods(&mut counts, gone), Some((1001, 0)));
}

#[test]
fn a_resource_that_metrics_have_without_a_figure_goes_by_answers() {
    let (mut counts, start) = (ObjectCounts::default(), Instant::now());
    metrics(&mut counts, start, None);
    assert_eq!(pods(&mut counts, start), None);
    assert!(counts.wants_count(start, b"", b"pods"));
    counts.learn_asked(start, b"", b"pods", 1001);
    assert_eq!(pods(&mut counts, start), Some((1001, 0)));
    pass_by(&mut counts, start);
    metrics(&mut counts, start, None);
    assert_eq!(pods(&mut counts, start), Some((2000, 2000)));
    // A figure holds for its time, though the next one is missing.
    metrics(&mut counts, start, Some(7));
    metrics(&mut counts, start + JUST_NOW, None);
    assert_eq!(pods(&mut counts, start + JUST_NOW), Some((7, 2000)));
}

#[test]
fn events_are_asked_for_in_the_core_group_alone() {
    let (mut counts, now) = (ObjectCounts::default(), Instant::now());
    assert!(counts.wants_count(now, b"", b"events"));
    assert!(!counts.wants_count(now, b"events.k8s.io", b"events"));
    counts.learn_asked(now, b"", b"events", 3);
    let three = ObjectStats::Known {
        count: 3,
        average_size: 0,
    };
    assert_eq!(counts.stats(now, b"", b"events"), three);
}
