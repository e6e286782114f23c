//! How many objects there are of each resource and how large they are, as far as the API server and
//! its answers have told.
//!
//! kube-apiserver asks etcd about every resource each minute or two (`StorageObjectCountTracker`,
//! Kubernetes 1.36), and takes what it has not heard of for three minutes for endless. Its metrics
//! have what it found; where weir may read them they go before everything else, for as long.
//!
//! Otherwise there are the answers that pass by: a list of everything tells how many objects there
//! are, or a first page of it that says how many remain, or the initial events of a watch. Clients
//! list once and watch from then on, so hours may pass between two such answers, and an old count is
//! still the best there is: it holds until the next one. Nothing is learned of a resource that
//! nobody lists.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use crate::flowcontrol::resource_metrics::CountedByServer;
use crate::flowcontrol::work_estimate::ObjectStats;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

/// More than any API server has; the one that was longest not counted makes room. Keeps a server
/// that answers anything from filling weir's memory.
const MAX_RESOURCES: usize = 4096;

const EVENTS: &[u8] = b"events";
const EVENTS_GROUP: &[u8] = b"events.k8s.io";

/// A size by a worse measure takes the place of a better one only when that is so old: objects' sizes
/// drift slowly, and JSON is up to three times as long as what is stored.
const BETTER_SIZE_HOLDS: Duration = Duration::from_secs(60 * 60);

/// What the server said holds for so long: as its own estimates do (`StorageObjectCountTracker`'s stale tolerance).
const COUNTED_HOLDS: Duration = Duration::from_secs(3 * 60);

/// As new as no other source of counts is: kube-apiserver's own are up to two minutes old.
const JUST_NOW: Duration = Duration::from_secs(1);

/// What kube-apiserver takes a count for that it cannot know (`workEstimator`: "infinite").
const ENDLESS: u64 = 1_000_000_000;

/// What is known of all resources.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    resources: HashMap<Box<[u8]>, Counted>,
    /// When the server last told what it has counted: all that it knows.
    counted_by_server: Option<Instant>,
    /// Holds one key at a time.
    key: Vec<u8>,
}

/// A successful answer to a list, or the initial events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAnswer {
    /// The number of its items.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether it has a `metadata.continue`, so that there is more.
    pub continues: bool,
    /// The length of its items, as they were written.
    pub bytes: u64,
    /// How well that tells the length of the objects as they are stored.
    pub measure: Measure,
}

/// How well an answer's length tells how long the objects in it are as etcd has them. The better,
/// the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Tables and lists of metadata: objects are at least about that long. It counts only as long
    /// as nothing else is known.
    Abridged,
    /// Whole objects in JSON or CBOR: custom resources are stored like that, others in protobuf,
    /// which is up to three times shorter.
    Text,
    /// Whole objects in protobuf.
    Protobuf,
    /// What the server's own estimates go by.
    Server,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    count: u64,
    at: Instant,
    size: Option<Size>,
    by_server: Option<Instant>,
}

/// Of an object, on average.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    measure: Measure,
    at: Instant,
}

impl Size {
    fn of(answer: ListAnswer, now: Instant) -> Option<Self> {
        Some(Self {
            bytes: answer.bytes.checked_div(answer.items)?,
            measure: answer.measure,
            at: now,
        })
    }

    /// The one to go by, of two.
    fn or(self, known: Option<Self>) -> Self {
        let holds = |known: &Self| {
            known.measure > self.measure
                && (self.measure == Measure::Abridged
                    || self.at.saturating_duration_since(known.at) < BETTER_SIZE_HOLDS)
                // That the server did not know it holds for as long as it says so.
                && (known.bytes > 0 || holds(Some(known.at), self.at))
        };
        known.filter(holds).unwrap_or(self)
    }
}

impl ObjectCounts {
    /// Takes in the answer to `list`, if it tells how many objects there are.
    pub fn learn(&mut self, now: Instant, list: &RequestInfo<'_>, answer: ListAnswer) {
        let Some(count) = total(list, answer) else {
            return;
        };
        let size = Size::of(answer, now);
        if let Some(known) = self.find(list.api_group(), list.resource()) {
            if holds(known.by_server, now) {
                // It may not have said how large they are.
                known.size = size.map_or(known.size, |size| Some(size.or(known.size)));
                return;
            }
            *known = Counted {
                count: count.or_at_least(known.count),
                // An answer that does not tell it leaves the one that was known.
                size: size.map_or(known.size, |size| Some(size.or(known.size))),
                at: now,
                by_server: None,
            };
            return;
        }
        let counted = Counted {
            count: count.or_at_least(0),
            size,
            at: now,
            by_server: None,
        };
        self.insert(counted);
    }

    /// Takes in what the server has counted of each `resource.group`. What it does not name it does
    /// not store, as those of aggregated API servers: of these it knows nothing.
    pub fn learn_counted<'k>(
        &mut self,
        now: Instant,
        counted: impl Iterator<Item = (&'k str, CountedByServer)>,
    ) {
        for (key, of) in counted {
            self.counted_by_server = Some(now);
            let size = of.average_size.map(|bytes| Size {
                bytes,
                measure: Measure::Server,
                at: now,
            });
            let known = self.resources.get(key.as_bytes());
            let counted = Counted {
                count: of.count,
                size: size.or_else(|| known.and_then(|known| known.size)),
                at: now,
                by_server: Some(now),
            };
            self.key.clear();
            self.key.extend_from_slice(key.as_bytes());
            self.insert(counted);
        }
    }

    /// Of the resource that was looked up last.
    fn insert(&mut self, counted: Counted) {
        if self.resources.len() >= MAX_RESOURCES && !self.resources.contains_key(&*self.key) {
            self.make_room();
        }
        self.resources.insert(self.key.as_slice().into(), counted);
    }

    /// Whether its size was measured within the last second, or by the server, so that another
    /// answer of now would tell nothing new.
    pub fn has_just_learned(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        let Some(known) = self.find(list.api_group(), list.resource()) else {
            return false;
        };
        known.size.is_some_and(|size| match size.measure {
            Measure::Abridged => false,
            Measure::Text | Measure::Protobuf => now.saturating_duration_since(size.at) < JUST_NOW,
            Measure::Server => holds(known.by_server, now),
        })
    }

    /// What is known of a resource.
    ///
    /// Events are a case of their own. Core `events` are the one resource that kube-apiserver does
    /// not keep in its watch cache, where sizes are taken (`resourceSizeEstimator`), so that it has
    /// a count of them and no size. The registry behind both groups reports that count as that of
    /// core `events`, so that those of `events.k8s.io` are not found.
    pub fn stats(&mut self, now: Instant, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        if resource == EVENTS && api_group == EVENTS_GROUP {
            return ObjectStats::NotFound;
        }
        let is_core_events = resource == EVENTS && api_group.is_empty();
        let server_tells = holds(self.counted_by_server, now);
        match self.find(api_group, resource) {
            Some(known) if server_tells && !holds(known.by_server, now) => ObjectStats::NotFound,
            Some(known) => ObjectStats::Known {
                count: known.count,
                average_size: known
                    .size
                    // Unless they are in the watch cache after all (`--watch-cache-sizes`).
                    .filter(|size| !is_core_events || size.measure == Measure::Server)
                    .map_or(0, |size| size.bytes),
            },
            None if is_core_events && !server_tells => ObjectStats::Known {
                count: ENDLESS,
                average_size: 0,
            },
            None => ObjectStats::NotFound,
        }
    }

    /// Looks up `resource.group`, as `GroupResource.String` writes it.
    fn find(&mut self, api_group: &[u8], resource: &[u8]) -> Option<&mut Counted> {
        self.key.clear();
        self.key.extend_from_slice(resource);
        // The same events are in both groups.
        if !api_group.is_empty() && (resource, api_group) != (EVENTS, EVENTS_GROUP) {
            self.key.push(b'.');
            self.key.extend_from_slice(api_group);
        }
        self.resources.get_mut(&*self.key)
    }

    fn make_room(&mut self) {
        let oldest = self.resources.iter().min_by_key(|(_, known)| known.at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.resources.remove(&oldest);
        }
    }
}

fn holds(counted: Option<Instant>, now: Instant) -> bool {
    counted.is_some_and(|at| now.saturating_duration_since(at) < COUNTED_HOLDS)
}

/// Whether the answer to a list, or to a watch that begins with one, could tell how many objects
/// there are of its resource: those of all namespaces, none left out.
#[must_use]
pub fn is_of_everything(list: &RequestInfo<'_>) -> bool {
    let given = |key| {
        list.query()
            .first(key)
            .is_some_and(|value| !value.is_empty())
    };
    matches!(list.verb(), Verb::List | Verb::Watch)
        && !list.resource().is_empty()
        && list.subresource().is_empty()
        && list.namespace().is_empty()
        && list.name().is_empty()
        && ![
            "continue",
            "fieldSelector",
            "labelSelector",
            "shardSelector",
        ]
        .into_iter()
        .any(given)
}

/// How many objects there are.
#[derive(Clone, Copy)]
enum Total {
    Exactly(u64),
    AtLeast(u64),
}

impl Total {
    fn or_at_least(self, known: u64) -> u64 {
        match self {
            Self::Exactly(count) => count,
            Self::AtLeast(count) => count.max(known),
        }
    }
}

/// How many objects there are, if the answer tells.
fn total(list: &RequestInfo<'_>, answer: ListAnswer) -> Option<Total> {
    if !is_of_everything(list) {
        return None;
    }
    match answer.remaining_items {
        Some(remaining) => answer.items.checked_add(remaining).map(Total::Exactly),
        None if !answer.continues => Some(Total::Exactly(answer.items)),
        // The initial events of a watch that does not say where they end.
        None if *list.verb() == Verb::Watch && answer.items > 0 => {
            Some(Total::AtLeast(answer.items))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
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
            count,
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
}
