//! How much work a request is likely to be, from what can be seen of it before it runs.
//!
//! Most requests need one seat. A list needs more if it reads many bytes, a watch if it begins with a list, and a write
//! keeps seats busy after its answer if many watchers hear of it. The arithmetic is that of Kubernetes 1.36
//! (`util/flowcontrol/request`) with its default feature gates: lists by size, and watches by their initial events.
//!
//! What the request does not tell is asked of a [`Surroundings`], only if it matters and at most once each. This file
//! knows neither how objects are counted nor how watches are.

use std::borrow::Cow;
use std::time::Duration;

use crate::flowcontrol::seats::WorkEstimate;
use crate::request_info::Query;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// The least that anything costs.
const MIN_SEATS: u32 = 1;
/// The most for a list or the beginning of a watch: `maximumListSeatsLimit`.
const MAX_LIST_SEATS: u32 = 100;
/// The most that a write keeps busy: `maximumMutatingSeatsLimit`.
const MAX_MUTATING_SEATS: u32 = 10;
/// As much is read or sent while one seat is held: `bytesPerSeat`.
const BYTES_PER_SEAT: u64 = 100_000;
/// A list that kube-apiserver answers from its memory is encoded piece by piece, and never holds more: `cacheWithStreamingMaxMemoryUsage`.
const MOST_BYTES_FROM_CACHE: u64 = 1_000_000;
/// The size of an object of which nothing is known: what etcd takes at most.
const MAX_OBJECT_SIZE: u64 = 1_500_000;
/// The number of objects if nobody has counted for long: `infiniteObjectCount`.
const INFINITE_OBJECT_COUNT: u64 = 1_000_000_000;
/// So many watchers are told while one seat is held: `watchesPerSeat`. Fewer are not worth counting.
const WATCHES_PER_SEAT: usize = 10;
/// How long it takes to tell them: `eventAdditionalDuration`.
const EVENT_ADDITIONAL_DURATION: Duration = Duration::from_millis(5);

const ONE_SEAT: WorkEstimate = WorkEstimate {
    initial_seats: MIN_SEATS,
    final_seats: 0,
    additional_latency: Duration::ZERO,
};

/// What is known of the objects of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStats {
    /// They were counted lately.
    Known {
        /// How many there are, in all namespaces.
        count: u64,
        /// Bytes, as stored; 0 if nobody knows.
        average_size: u64,
    },
    /// There is no such resource, or its objects are not in etcd.
    NotFound,
    /// They were counted too long ago, or could not be counted.
    Stale,
}

/// What the estimate depends on besides the request.
pub trait Surroundings {
    /// Whether kube-apiserver answers lists from its memory even if they must see every write: it does since 1.31 where
    /// etcd reports its progress.
    fn consistent_reads_from_cache(&self) -> bool;

    /// What is known of a resource's objects.
    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats;

    /// How many watchers will hear of a write.
    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize;
}

/// Estimates a request of a level whose requests may have up to `max_seats` each, if that is bounded.
///
/// Upstream: `workEstimator.estimate`.
pub fn estimate(
    info: &RequestInfo<'_>,
    max_seats: Option<u32>,
    surroundings: &impl Surroundings,
) -> WorkEstimate {
    let at_most = |limit: u32| max_seats.filter(|&seats| seats > 0).map_or(limit, |seats| seats.min(limit));
    match info.verb() {
        Verb::List | Verb::Watch => WorkEstimate {
            initial_seats: list_seats(info, at_most(MAX_LIST_SEATS), surroundings),
            ..ONE_SEAT
        },
        Verb::Create | Verb::Delete | Verb::Patch | Verb::Update => {
            mutation(info, at_most(MAX_MUTATING_SEATS), surroundings)
        }
        Verb::Connect
        | Verb::DeleteCollection
        | Verb::Get
        | Verb::Head
        | Verb::None
        | Verb::Options
        | Verb::Other(_)
        | Verb::Post
        | Verb::Proxy
        | Verb::Put
        | Verb::Trace => ONE_SEAT,
    }
}

/// `listWorkEstimator.estimate`.
fn list_seats(info: &RequestInfo<'_>, most: u32, surroundings: &impl Surroundings) -> u32 {
    let options = Options(info.query());
    let Ok(limit) = options.decode_integers() else {
        return most; // it is going to fail, but where, and after how much work?
    };
    let is_watch = *info.verb() == Verb::Watch;
    if is_watch && !options.want_initial_events() {
        return MIN_SEATS;
    }
    let from_cache = is_watch || !options.need_storage(limit, surroundings);
    let (count, average_size) = match surroundings.object_stats(info.api_group(), info.resource()) {
        ObjectStats::Known { count, average_size: 0 } => (count, MAX_OBJECT_SIZE),
        ObjectStats::Known { count, average_size } => (count, average_size),
        ObjectStats::NotFound => return MIN_SEATS,
        ObjectStats::Stale => (INFINITE_OBJECT_COUNT, MAX_OBJECT_SIZE),
    };
    let limited = limit.filter(|&limit| limit < count).unwrap_or(count);
    let loaded = if !info.name().is_empty() {
        1
    } else if !from_cache && options.select() {
        // Storage reads on until it has found enough; taken to be after half of all.
        limited.max(count / 2)
    } else {
        limited
    };
    let bytes = loaded.saturating_mul(average_size);
    let bytes = if from_cache { bytes.min(MOST_BYTES_FROM_CACHE) } else { bytes };
    let seats = u32::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX);
    seats.max(MIN_SEATS).min(most)
}

/// `mutatingWorkEstimator.estimate`.
fn mutation(info: &RequestInfo<'_>, most: u32, surroundings: &impl Surroundings) -> WorkEstimate {
    // A token is made without anything being stored.
    if info.resource() == b"serviceaccounts" && info.subresource() == b"token" {
        return ONE_SEAT;
    }
    let watches = surroundings.interested_watches(info);
    if watches < WATCHES_PER_SEAT {
        return ONE_SEAT;
    }
    let told = WorkEstimate {
        final_seats: u32::try_from(watches.div_ceil(WATCHES_PER_SEAT)).unwrap_or(u32::MAX),
        additional_latency: EVENT_ADDITIONAL_DURATION,
        ..ONE_SEAT
    };
    told.narrowed_to(most)
}

/// The query of a list, as `metav1.ListOptions`. Selectors are not parsed.
#[derive(Clone, Copy)]
struct Options<'a>(Query<'a>);

/// An option that is a number is none.
struct Undecodable;

impl<'a> Options<'a> {
    /// What a parameter says; the same if it is empty or not there.
    fn text(self, key: &str) -> Cow<'a, [u8]> {
        self.0.first(key).unwrap_or_default()
    }

    fn integer(self, key: &str) -> Result<Option<i64>, Undecodable> {
        let parse = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
        self.0
            .first(key)
            .map(|text| parse(&text).ok_or(Undecodable))
            .transpose()
    }

    /// The limit, if it is one.
    fn decode_integers(self) -> Result<Option<u64>, Undecodable> {
        let limit = self.integer("limit")?;
        self.integer("timeoutSeconds")?;
        Ok(limit.and_then(|limit| u64::try_from(limit).ok()).filter(|&limit| limit > 0))
    }

    /// Whether a watch begins with all that there is: because it says so, or because it does not say where to begin.
    fn want_initial_events(self) -> bool {
        let asked = self.0.first("sendInitialEvents").is_some_and(|text| is_true(&text));
        asked || matches!(&*self.text("resourceVersion"), b"" | b"0")
    }

    /// Whether kube-apiserver has to ask etcd: `delegator.ShouldDelegateList`, apart from snapshots.
    fn need_storage(self, limit: Option<u64>, surroundings: &impl Surroundings) -> bool {
        match &*self.text("resourceVersionMatch") {
            b"" => {}
            b"NotOlderThan" => return false,
            _ => return true,
        }
        if !self.text("continue").is_empty() {
            return true;
        }
        match &*self.text("resourceVersion") {
            b"" => !surroundings.consistent_reads_from_cache(),
            b"0" => false,
            _ => limit.is_some(),
        }
    }

    fn select(self) -> bool {
        ["fieldSelector", "labelSelector"]
            .iter()
            .any(|key| !self.text(key).is_empty())
    }
}

/// `Convert_Slice_string_To_Pointer_bool`: all but `0` and what folds to `false`. Under Unicode's folding `ſ` is an `s`.
fn is_true(text: &[u8]) -> bool {
    let is_false = match text {
        [fal @ .., 0xC5, 0xBF, e] => {
            fal.eq_ignore_ascii_case(b"fal") && e.eq_ignore_ascii_case(&b'e')
        }
        _ => text.eq_ignore_ascii_case(b"false"),
    };
    text != b"0" && !is_false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
            stats: ObjectStats::Known { count: 50_000, average_size: 1_000 },
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
        assert_eq!(seats("/api/v1/pods", &told), 10, "no more than memory holds");
        assert_eq!(seats("/api/v1/pods?limit=250", &told), 3);
        assert_eq!(seats("/api/v1/pods?limit=-1", &told), 10);
        assert_eq!(seats("/api/v1/pods?resourceVersion=7&limit=2000", &told), 20);
        assert_eq!(seats("/api/v1/pods?resourceVersionMatch=Exact", &told), 100);
        assert_eq!(seats("/api/v1/pods?continue=x&limit=100", &told), 1);
        let old = Told { consistent_reads: false, ..told };
        assert_eq!(seats("/api/v1/pods", &old), 100);
        assert_eq!(seats("/api/v1/pods?resourceVersion=0", &old), 10);
    }

    #[test]
    fn a_selection_from_storage_reads_half_of_all() {
        let told = Told {
            stats: ObjectStats::Known { count: 10_000, average_size: 1_000 },
            ..told()
        };
        assert_eq!(seats("/api/v1/pods?continue=x&limit=1&labelSelector=a", &told), 50);
        assert_eq!(seats("/api/v1/pods?continue=x&limit=7000&fieldSelector=a%3Db", &told), 70);
        assert_eq!(seats("/api/v1/pods?limit=100&labelSelector=a", &told), 1);
        let one = "/api/v1/pods?continue=x&fieldSelector=metadata.name%3Da";
        assert_eq!(seats(one, &told), 1);
    }

    #[test]
    fn what_is_not_known_is_taken_to_be_large_and_what_is_not_there_small() {
        let stats = |stats| Told { stats, ..told() };
        let stale = stats(ObjectStats::Stale);
        assert_eq!(seats("/api/v1/pods", &stale), 10);
        assert_eq!(seats("/api/v1/pods?continue=x", &stale), 100);
        assert_eq!(seats("/api/v1/pods?continue=x&limit=2", &stale), 30);
        assert_eq!(seats("/api/v1/pods?continue=x", &stats(ObjectStats::NotFound)), 1);
        let unsized_objects = stats(ObjectStats::Known { count: 2, average_size: 0 });
        assert_eq!(seats("/api/v1/pods?continue=x", &unsized_objects), 30);
        let none = stats(ObjectStats::Known { count: 0, average_size: 0 });
        assert_eq!(seats("/api/v1/pods?continue=x", &none), 1);
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
        for query in ["limit=", "limit=1e3", "timeoutSeconds=x", "watch=1&resourceVersion=5&limit=a"] {
            let target = format!("/api/v1/pods?{query}");
            assert_eq!(of("GET", &target, None, &told).initial_seats, 100, "{query}");
            assert_eq!(of("GET", &target, Some(7), &told).initial_seats, 7, "{query}");
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
        let told = Told { watches: 1000, ..told() };
        let requests = [
            ("GET", "/api/v1/namespaces/a/pods/b"),
            ("DELETE", "/api/v1/namespaces/a/pods"),
            ("POST", "/apis/any/v1/namespaces/a/serviceaccounts/b/token"),
            ("PROPFIND", "/api/v1/pods"),
            ("POST", "/healthz"),
            ("GET", "/api/v1/proxy/nodes/n"),
        ];
        for (method, target) in requests {
            assert_eq!(of(method, target, None, &told), ONE_SEAT, "{method} {target}");
        }
        assert_eq!(told.asked.get(), (0, 0));
    }

    #[test]
    fn a_write_outside_of_resources_is_a_write() {
        let told = Told { watches: 10, ..told() };
        assert_eq!(of("PATCH", "/healthz", None, &told).final_seats, 1);
    }
}
