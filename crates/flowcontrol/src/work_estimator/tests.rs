//! The estimates of requests, by example and by their bounds.

use std::cell::Cell;

use fastrand::Rng;

use super::*;

/// Returns the same answers each time, and counts the lookups.
struct FixedContext {
    consistent_reads: bool,
    stats: ObjectStats,
    watches: usize,
    lookups: Cell<(u32, u32)>,
}

impl EstimateContext for FixedContext {
    fn consistent_reads_from_cache(&self) -> bool {
        self.consistent_reads
    }

    fn object_stats(&self, _: &[u8], _: &[u8]) -> ObjectStats {
        let (stats, watches) = self.lookups.get();
        self.lookups.set((stats + 1, watches));
        self.stats
    }

    fn interested_watches(&self, _: &RequestInfo<'_>) -> usize {
        let (stats, watches) = self.lookups.get();
        self.lookups.set((stats, watches + 1));
        self.watches
    }
}

fn context() -> FixedContext {
    FixedContext {
        consistent_reads: true,
        stats: ObjectStats::Counted {
            count: 50_000,
            average_size: 1_000,
        },
        watches: 0,
        lookups: Cell::default(),
    }
}

fn estimate_target(
    method: &str,
    target: &str,
    max_seats: Option<u32>,
    fixed: &FixedContext,
) -> WorkEstimate {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    estimate(&info, max_seats, fixed)
}

fn seats(target: &str, fixed: &FixedContext) -> u32 {
    estimate_target("GET", target, None, fixed).initial_seats
}

#[test]
fn a_list_needs_seats_by_the_bytes_that_it_reads() {
    let fixed = context();
    assert_eq!(
        seats("/api/v1/pods", &fixed),
        10,
        "no more than memory holds"
    );
    assert_eq!(seats("/api/v1/pods?limit=250", &fixed), 3);
    assert_eq!(seats("/api/v1/pods?limit=-1", &fixed), 10);
    assert_eq!(
        seats("/api/v1/pods?resourceVersion=7&limit=2000", &fixed),
        20
    );
    assert_eq!(
        seats("/api/v1/pods?resourceVersionMatch=Exact", &fixed),
        100
    );
    assert_eq!(seats("/api/v1/pods?continue=x&limit=100", &fixed), 1);
    let old = FixedContext {
        consistent_reads: false,
        ..fixed
    };
    assert_eq!(seats("/api/v1/pods", &old), 100);
    assert_eq!(seats("/api/v1/pods?resourceVersion=0", &old), 10);
}

#[test]
fn a_selection_from_storage_reads_half_of_all() {
    let fixed = FixedContext {
        stats: ObjectStats::Counted {
            count: 10_000,
            average_size: 1_000,
        },
        ..context()
    };
    assert_eq!(
        seats("/api/v1/pods?continue=x&limit=1&labelSelector=a", &fixed),
        50
    );
    assert_eq!(
        seats(
            "/api/v1/pods?continue=x&limit=7000&fieldSelector=a%3Db",
            &fixed
        ),
        70
    );
    assert_eq!(seats("/api/v1/pods?limit=100&labelSelector=a", &fixed), 1);
    let one = "/api/v1/pods?continue=x&fieldSelector=metadata.name%3Da";
    assert_eq!(seats(one, &fixed), 1);
}

#[test]
fn objects_without_a_size_count_as_large_and_uncounted_resources_as_small() {
    let stats = |stats| FixedContext { stats, ..context() };
    assert_eq!(
        seats("/api/v1/pods?continue=x", &stats(ObjectStats::NotFound)),
        1
    );
    let unsized_objects = stats(ObjectStats::Counted {
        count: 2,
        average_size: 0,
    });
    assert_eq!(seats("/api/v1/pods?continue=x", &unsized_objects), 30);
    let none = stats(ObjectStats::Counted {
        count: 0,
        average_size: 0,
    });
    assert_eq!(seats("/api/v1/pods?continue=x", &none), 1);
    let one = "/api/v1/pods?continue=x&fieldSelector=metadata.name%3Da";
    assert_eq!(seats(one, &unsized_objects), 15);
    assert_eq!(seats(one, &none), 1);
}

#[test]
fn a_watch_costs_a_list_only_if_it_begins_with_one() {
    let fixed = context();
    assert_eq!(seats("/api/v1/pods?watch=1", &fixed), 10);
    assert_eq!(seats("/api/v1/pods?watch=1&resourceVersion=0", &fixed), 10);
    assert_eq!(seats("/api/v1/watch/pods", &fixed), 10);
    assert_eq!(fixed.lookups.replace((0, 0)), (3, 0));
    assert_eq!(seats("/api/v1/pods?watch=1&resourceVersion=5", &fixed), 1);
    for no in ["0", "false", "FAL%C5%BFE"] {
        let target = format!("/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents={no}");
        assert_eq!(seats(&target, &fixed), 1, "{no}");
    }
    assert_eq!(fixed.lookups.get(), (0, 0));
    for yes in ["", "1", "no"] {
        let target = format!("/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents={yes}");
        assert_eq!(seats(&target, &fixed), 10, "{yes}");
    }
}

#[test]
fn invalid_numbers_cost_the_maximum_of_the_level() {
    let fixed = context();
    for query in [
        "limit=",
        "limit=1e3",
        "timeoutSeconds=x",
        "watch=1&resourceVersion=5&limit=a",
    ] {
        let target = format!("/api/v1/pods?{query}");
        assert_eq!(
            estimate_target("GET", &target, None, &fixed).initial_seats,
            100,
            "{query}"
        );
        assert_eq!(
            estimate_target("GET", &target, Some(7), &fixed).initial_seats,
            7,
            "{query}"
        );
    }
    assert_eq!(fixed.lookups.get(), (0, 0));
}

#[test]
fn a_write_occupies_final_seats_by_its_number_of_watches() {
    let cases = [
        (0, Some(0), 0, 0),
        (9, None, 0, 0),
        (10, None, 1, 5_000),
        (11, Some(10), 2, 5_000),
        (100, Some(50), 10, 5_000),
        (1000, None, 10, 50_000),
        (1000, Some(4), 4, 125_000),
    ];
    for (watches, max_seats, final_seats, micros) in cases {
        let fixed = FixedContext {
            watches,
            ..context()
        };
        let expected = WorkEstimate {
            initial_seats: 1,
            final_seats,
            additional_latency: Duration::from_micros(micros),
        };
        let target = "/api/v1/namespaces/a/pods/b/status";
        assert_eq!(
            estimate_target("PATCH", target, max_seats, &fixed),
            expected,
            "{watches}"
        );
        assert_eq!(fixed.lookups.get(), (0, 1));
    }
}

#[test]
fn other_requests_cost_one_seat_without_any_lookup() {
    let fixed = FixedContext {
        watches: 1000,
        ..context()
    };
    let requests = [
        ("GET", "/api/v1/namespaces/a/pods/b"),
        ("DELETE", "/api/v1/namespaces/a/pods"),
        ("POST", "/apis/any/v1/namespaces/a/serviceaccounts/b/token"),
        ("PROPFIND", "/api/v1/pods"),
        ("POST", "/healthz"),
        ("GET", "/api/v1/proxy/nodes/n"),
    ];
    for (method, target) in requests {
        assert_eq!(
            estimate_target(method, target, None, &fixed),
            ONE_SEAT,
            "{method} {target}"
        );
    }
    assert_eq!(fixed.lookups.get(), (0, 0));
}

#[test]
fn a_non_resource_write_is_estimated_as_a_write() {
    let fixed = FixedContext {
        watches: 10,
        ..context()
    };
    assert_eq!(
        estimate_target("PATCH", "/healthz", None, &fixed).final_seats,
        1
    );
}

#[test]
fn no_estimate_is_wider_than_allowed_and_none_loses_work() {
    let options = [
        "watch=1",
        "limit=70",
        "continue=x",
        "resourceVersion=0",
        "resourceVersion=9",
        "labelSelector=a",
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersionMatch=Exact",
    ];
    for seed in 0x5eed..0x5eed + 2000 {
        let mut random = Rng::with_seed(seed);
        let fixed = FixedContext {
            consistent_reads: random.bool(),
            stats: match random.u8(..4) {
                0 => ObjectStats::NotFound,
                _ => ObjectStats::Counted {
                    count: random.u64(..) >> random.u32(..64),
                    average_size: random.u64(..) >> random.u32(..64),
                },
            },
            watches: random.usize(..) >> random.u32(..64),
            ..context()
        };
        let query = random.choose_multiple(options, 3).join("&");
        let target = format!("/api/v1/pods?{query}");
        let method = ["GET", "GET", "POST"][random.usize(..3)];
        let max_seats = random.bool().then(|| random.u32(1..150));
        let allowed = max_seats.unwrap_or(u32::MAX);
        let work = estimate_target(method, &target, max_seats, &fixed);
        let case = format!("seed {seed}: {method} {target}, {max_seats:?}: {work:?}");
        assert!(
            (1..=allowed.min(100)).contains(&work.initial_seats),
            "{case}"
        );
        assert!(work.final_seats <= allowed.min(10), "{case}");
        if method == "POST" && fixed.watches < 1 << 30 {
            let due = u64::try_from(fixed.watches / 10).unwrap() * 500_000;
            assert!(work.final_work().units() + 100 >= due, "{case}");
        }
    }
}

#[test]
fn a_list_is_expected_to_have_the_bytes_of_its_objects() {
    let expected = |target: &str, fixed: &FixedContext| {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        expected_list_bytes(&info, fixed)
    };
    let fixed = context();
    for (target, bytes) in [
        ("/api/v1/pods", 50_000_000),
        ("/api/v1/pods?limit=500", 500_000),
        (
            "/api/v1/pods?continue=x&limit=500&labelSelector=a",
            25_000_000,
        ),
        ("/api/v1/pods?fieldSelector=metadata.name%3Da", 1_000),
        ("/api/v1/pods?watch=1&resourceVersion=0", 50_000_000),
        ("/api/v1/pods?limit=x", 0),
        // The context has as many namespaces as pods.
        ("/api/v1/namespaces/a/pods", 1_000),
    ] {
        assert_eq!(expected(target, &fixed), bytes, "{target}");
    }
    let with = |stats| FixedContext { stats, ..context() };
    let unknown_size = with(ObjectStats::Counted {
        count: 3,
        average_size: 0,
    });
    assert_eq!(expected("/api/v1/pods", &unknown_size), 6_000);
    let infinite = with(ObjectStats::Counted {
        count: 1_000_000_000,
        average_size: 0,
    });
    assert_eq!(expected("/api/v1/events", &infinite), 0);
    assert_eq!(expected("/api/v1/pods", &with(ObjectStats::NotFound)), 0);
}
