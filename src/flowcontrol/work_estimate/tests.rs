//! What requests cost, by example and within what bounds.

use std::cell::Cell;

use fastrand::Rng;

use super::*;

/// Answers the same each time, and counts how often it is asked.
struct Told {
    consistent_reads: bool,
    stats: ObjectStats,
    watches: usize,
    asked: Cell<(u32, u32)>,
}

impl Surroundings for Told {
    fn consistent_reads_from_cache(&self) -> bool {
        self.consistent_reads
    }

    fn object_stats(&self, _: &[u8], _: &[u8]) -> ObjectStats {
        let (stats, watches) = self.asked.get();
        self.asked.set((stats + 1, watches));
        self.stats
    }

    fn interested_watches(&self, _: &RequestInfo<'_>) -> usize {
        let (stats, watches) = self.asked.get();
        self.asked.set((stats, watches + 1));
        self.watches
    }
}

fn told() -> Told {
    Told {
        consistent_reads: true,
        stats: ObjectStats::Known {
            count: 50_000,
            average_size: 1_000,
        },
        watches: 0,
        asked: Cell::default(),
    }
}

fn of(method: &str, target: &str, max_seats: Option<u32>, told: &Told) -> WorkEstimate {
    let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
    estimate(&info, max_seats, told)
}

fn seats(target: &str, told: &Told) -> u32 {
    of("GET", target, None, told).initial_seats
}

#[test]
fn a_list_needs_seats_by_the_bytes_that_it_reads() {
    let told = told();
    assert_eq!(
        seats("/api/v1/pods", &told),
        10,
        "no more than memory holds"
    );
    assert_eq!(seats("/api/v1/pods?limit=250", &told), 3);
    assert_eq!(seats("/api/v1/pods?limit=-1", &told), 10);
    assert_eq!(
        seats("/api/v1/pods?resourceVersion=7&limit=2000", &told),
        20
    );
    assert_eq!(seats("/api/v1/pods?resourceVersionMatch=Exact", &told), 100);
    assert_eq!(seats("/api/v1/pods?continue=x&limit=100", &told), 1);
    let old = Told {
        consistent_reads: false,
        ..told
    };
    assert_eq!(seats("/api/v1/pods", &old), 100);
    assert_eq!(seats("/api/v1/pods?resourceVersion=0", &old), 10);
}

#[test]
fn a_selection_from_storage_reads_half_of_all() {
    let told = Told {
        stats: ObjectStats::Known {
            count: 10_000,
            average_size: 1_000,
        },
        ..told()
    };
    assert_eq!(
        seats("/api/v1/pods?continue=x&limit=1&labelSelector=a", &told),
        50
    );
    assert_eq!(
        seats(
            "/api/v1/pods?continue=x&limit=7000&fieldSelector=a%3Db",
            &told
        ),
        70
    );
    assert_eq!(seats("/api/v1/pods?limit=100&labelSelector=a", &told), 1);
    let one = "/api/v1/pods?continue=x&fieldSelector=metadata.name%3Da";
    assert_eq!(seats(one, &told), 1);
}

#[test]
fn what_has_no_size_is_taken_to_be_large_and_what_is_not_there_small() {
    let stats = |stats| Told { stats, ..told() };
    assert_eq!(
        seats("/api/v1/pods?continue=x", &stats(ObjectStats::NotFound)),
        1
    );
    let unsized_objects = stats(ObjectStats::Known {
        count: 2,
        average_size: 0,
    });
    assert_eq!(seats("/api/v1/pods?continue=x", &unsized_objects), 30);
    let none = stats(ObjectStats::Known {
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
    let told = told();
    assert_eq!(seats("/api/v1/pods?watch=1", &told), 10);
    assert_eq!(seats("/api/v1/pods?watch=1&resourceVersion=0", &told), 10);
    assert_eq!(seats("/api/v1/watch/pods", &told), 10);
    assert_eq!(told.asked.replace((0, 0)), (3, 0));
    assert_eq!(seats("/api/v1/pods?watch=1&resourceVersion=5", &told), 1);
    for no in ["0", "false", "FAL%C5%BFE"] {
        let target = format!("/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents={no}");
        assert_eq!(seats(&target, &told), 1, "{no}");
    }
    assert_eq!(told.asked.get(), (0, 0));
    for yes in ["", "1", "no"] {
        let target = format!("/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents={yes}");
        assert_eq!(seats(&target, &told), 10, "{yes}");
    }
}

#[test]
fn numbers_that_are_none_cost_all_that_the_level_allows() {
    let told = told();
    for query in [
        "limit=",
        "limit=1e3",
        "timeoutSeconds=x",
        "watch=1&resourceVersion=5&limit=a",
    ] {
        let target = format!("/api/v1/pods?{query}");
        assert_eq!(
            of("GET", &target, None, &told).initial_seats,
            100,
            "{query}"
        );
        assert_eq!(
            of("GET", &target, Some(7), &told).initial_seats,
            7,
            "{query}"
        );
    }
    assert_eq!(told.asked.get(), (0, 0));
}

#[test]
fn a_write_keeps_seats_busy_by_its_watchers() {
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
        let told = Told { watches, ..told() };
        let expected = WorkEstimate {
            initial_seats: 1,
            final_seats,
            additional_latency: Duration::from_micros(micros),
        };
        let target = "/api/v1/namespaces/a/pods/b/status";
        assert_eq!(of("PATCH", target, max_seats, &told), expected, "{watches}");
        assert_eq!(told.asked.get(), (0, 1));
    }
}

#[test]
fn whatever_else_there_is_costs_a_seat_and_nothing_is_asked() {
    let told = Told {
        watches: 1000,
        ..told()
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
            of(method, target, None, &told),
            ONE_SEAT,
            "{method} {target}"
        );
    }
    assert_eq!(told.asked.get(), (0, 0));
}

#[test]
fn a_write_outside_of_resources_is_a_write() {
    let told = Told {
        watches: 10,
        ..told()
    };
    assert_eq!(of("PATCH", "/healthz", None, &told).final_seats, 1);
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
        let told = Told {
            consistent_reads: random.bool(),
            stats: match random.u8(..4) {
                0 => ObjectStats::NotFound,
                _ => ObjectStats::Known {
                    count: random.u64(..) >> random.u32(..64),
                    average_size: random.u64(..) >> random.u32(..64),
                },
            },
            watches: random.usize(..) >> random.u32(..64),
            ..told()
        };
        let query = random.choose_multiple(options, 3).join("&");
        let target = format!("/api/v1/pods?{query}");
        let method = ["GET", "GET", "POST"][random.usize(..3)];
        let max_seats = random.bool().then(|| random.u32(1..150));
        let allowed = max_seats.unwrap_or(u32::MAX);
        let work = of(method, &target, max_seats, &told);
        let case = format!("seed {seed}: {method} {target}, {max_seats:?}: {work:?}");
        assert!(
            (1..=allowed.min(100)).contains(&work.initial_seats),
            "{case}"
        );
        assert!(work.final_seats <= allowed.min(10), "{case}");
        if method == "POST" && told.watches < 1 << 30 {
            let due = u64::try_from(told.watches / 10).unwrap() * 500_000;
            assert!(work.final_work().units() + 100 >= due, "{case}");
        }
    }
}
