//! How many objects there are of each resource and how large they are, as far as the API server and
//! its answers have told.
//!
//! kube-apiserver asks etcd about every resource each minute or two (`StorageObjectCountTracker`,
//! Kubernetes 1.36), and takes what it has not heard of for three minutes for endless. Its metrics
//! have what it found. There are three sources of a count, in this order (`ObjectCounts::source`
//! is the only place that decides):
//!
//! 1. The API server's metrics, for three minutes. They go before everything else. A resource that
//!    they do not name is not stored there, and has no count there either: one seat.
//! 2. Answers, where there are no metrics, or where they name the resource without a figure (-1). The
//!    newest serves, whichever of the two it is:
//!    - a list of everything that passes by, a first page of it that says how many remain, or the
//!      initial events of a watch;
//!    - weir's own list of one object (`count_schedule`), for a resource that is listed through weir
//!      and has no count, or one that is older than ten minutes.
//! 3. Nothing: one seat.
//!
//! Clients list once and watch from then on, so hours may pass between two answers, and an old count
//! is still the best there is: it holds until the next one.
//!
//! Sizes come from metrics and from answers that pass by. A list of one object tells none: where
//! nothing else does, the estimate takes the largest object that etcd stores, as kube-apiserver does,
//! until a list of some of the objects (of a namespace, of a selection) has passed by.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use crate::flowcontrol::work_estimator::ObjectStats;
use crate::flowcontrol::work_estimator::resource_metrics::ServerCount;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

#[cfg(test)]
mod tests;

/// More than any API server has; the one that was longest not counted makes room. Keeps a server
/// that answers anything from filling weir's memory.
const MAX_RESOURCES: usize = 4096;

const EVENTS: &[u8] = b"events";
const EVENTS_GROUP: &[u8] = b"events.k8s.io";

/// A size by a worse measure takes the place of a better one only when that is so old: objects' sizes
/// drift slowly, and JSON is up to three times as long as what is stored.
const BETTER_SIZE_TTL: Duration = Duration::from_secs(60 * 60);

/// What the server said holds for so long: as its own estimates do (`StorageObjectCountTracker`'s stale tolerance).
const SERVER_COUNT_TTL: Duration = Duration::from_secs(3 * 60);

/// A count that is so old is asked for again, of a resource that is still listed.
const POLL_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// As new as no other source of counts is: kube-apiserver's own are up to two minutes old.
const FRESH_SIZE_TTL: Duration = Duration::from_secs(1);

/// What kube-apiserver takes a count for that it cannot know (`workEstimator`: "infinite").
const INFINITE_COUNT: u64 = 1_000_000_000;

/// What is known of all resources.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    resources: HashMap<Box<[u8]>, ResourceCount>,
    /// When the server last told what it has counted: all that it knows.
    server_counted_at: Option<Instant>,
    /// Holds one key at a time.
    key: Vec<u8>,
}

/// A successful answer to a list, or the initial events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListResponse {
    /// The number of its items.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether it has a `metadata.continue`, so that there is more.
    pub has_continue: bool,
    /// The length of its items, as they were written.
    pub bytes: u64,
    /// How well that tells the length of the objects as they are stored.
    pub accuracy: SizeAccuracy,
}

/// How well an answer's length tells how long the objects in it are as etcd has them. The better,
/// the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SizeAccuracy {
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
struct ResourceCount {
    /// None if the server's metrics name the resource, and nothing has told how many there are.
    count: Option<u64>,
    /// When that was told.
    counted_at: Instant,
    size: Option<ObjectSize>,
    /// When the server's metrics last had a figure.
    server_counted_at: Option<Instant>,
    /// When they last named it, with a figure or without.
    server_named_at: Option<Instant>,
}

/// Where the count of a resource comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountSource {
    /// The API server's metrics.
    Metrics,
    /// None: the API server's metrics do not have the resource, so that its own estimates know none.
    NotStored,
    /// Answers: what passed by, or what weir asked for.
    Responses,
}

/// Of an object, on average.
#[derive(Clone, Copy, Debug)]
struct ObjectSize {
    bytes: u64,
    accuracy: SizeAccuracy,
    measured_at: Instant,
}

impl ObjectSize {
    fn from_response(answer: ListResponse, now: Instant) -> Option<Self> {
        Some(Self {
            bytes: answer.bytes.checked_div(answer.items)?,
            accuracy: answer.accuracy,
            measured_at: now,
        })
    }

    /// The one to go by, of two.
    fn better_of(self, known: Option<Self>) -> Self {
        let holds = |known: &Self| {
            known.accuracy > self.accuracy
                && (self.accuracy == SizeAccuracy::Abridged
                    || self.measured_at.saturating_duration_since(known.measured_at) < BETTER_SIZE_TTL)
                // That the server did not know it holds for as long as it says so.
                && (known.bytes > 0 || is_server_count_valid(Some(known.measured_at), self.measured_at))
        };
        known.filter(holds).unwrap_or(self)
    }
}

impl ObjectCounts {
    /// Takes in the answer to `list`, if it tells how many objects there are.
    pub fn record_list(&mut self, now: Instant, list: &RequestInfo<'_>, answer: ListResponse) {
        let size = ObjectSize::from_response(answer, now);
        let Some(count) = total_count(list, answer) else {
            self.record_partial_list(list, size);
            return;
        };
        if let Some(known) = self.find(list.api_group(), list.resource()) {
            if is_server_count_valid(known.server_counted_at, now) {
                // It may not have said how large they are.
                known.size = size.map_or(known.size, |size| Some(size.better_of(known.size)));
                return;
            }
            *known = ResourceCount {
                count: Some(count.resolve(known.count.unwrap_or_default())),
                // An answer that does not tell it leaves the one that was known.
                size: size.map_or(known.size, |size| Some(size.better_of(known.size))),
                counted_at: now,
                server_counted_at: None,
                server_named_at: known.server_named_at,
            };
            return;
        }
        let counted = ResourceCount {
            count: Some(count.resolve(0)),
            size,
            counted_at: now,
            server_counted_at: None,
            server_named_at: None,
        };
        self.insert(counted);
    }

    /// Takes in the size of a part of the objects: it counts as long as nothing else is known, where
    /// their number is.
    fn record_partial_list(&mut self, list: &RequestInfo<'_>, size: Option<ObjectSize>) {
        if let Some(known) = self.find(list.api_group(), list.resource())
            && known.count.is_some()
            && known.size.is_none()
        {
            known.size = size
                .filter(|size| size.accuracy > SizeAccuracy::Abridged)
                .map(|size| ObjectSize {
                    accuracy: SizeAccuracy::Abridged,
                    ..size
                });
        }
    }

    /// Whether the number of a resource's objects is known, and nothing of their size.
    pub fn lacks_size(&mut self, api_group: &[u8], resource: &[u8]) -> bool {
        let known = self.find(api_group, resource);
        resource != EVENTS
            && known.is_some_and(|known| known.count.is_some() && known.size.is_none())
    }

    /// Takes in how many objects a list of one of them told, which weir asked for.
    pub fn record_polled_count(
        &mut self,
        now: Instant,
        api_group: &[u8],
        resource: &[u8],
        count: u64,
    ) {
        let known = self.find(api_group, resource).copied();
        if self.source(known, now) == CountSource::Metrics {
            return; // they came meanwhile
        }
        let counted = ResourceCount {
            count: Some(count),
            counted_at: now,
            size: known.and_then(|known| known.size),
            server_counted_at: None,
            server_named_at: known.and_then(|known| known.server_named_at),
        };
        self.insert(counted);
    }

    /// Whether a count of this resource is worth asking for: its seats go by answers, and none has
    /// told it for ten minutes.
    pub fn needs_count(&mut self, now: Instant, api_group: &[u8], resource: &[u8]) -> bool {
        if is_events_group_events(api_group, resource) {
            return false; // not found, whatever the count
        }
        let known = self.find(api_group, resource).copied();
        self.source(known, now) == CountSource::Responses
            && known
                .filter(|known| known.count.is_some())
                .is_none_or(|known| {
                    now.saturating_duration_since(known.counted_at) >= POLL_INTERVAL
                })
    }

    /// Where the count of a resource comes from, of which that much is known.
    fn source(&self, known: Option<ResourceCount>, now: Instant) -> CountSource {
        if known.is_some_and(|known| is_server_count_valid(known.server_counted_at, now)) {
            return CountSource::Metrics;
        }
        let named = known.is_some_and(|known| is_server_count_valid(known.server_named_at, now));
        if is_server_count_valid(self.server_counted_at, now) && !named {
            return CountSource::NotStored;
        }
        CountSource::Responses
    }

    /// Takes in what the server has counted of each `resource.group`. What it does not name it does
    /// not store, as those of aggregated API servers: of these it knows nothing.
    pub fn record_server_counts<'k>(
        &mut self,
        now: Instant,
        counted: impl Iterator<Item = (&'k str, ServerCount)>,
    ) {
        for (key, of) in counted {
            self.server_counted_at = Some(now);
            let size = of.average_size.map(|bytes| ObjectSize {
                bytes,
                accuracy: SizeAccuracy::Server,
                measured_at: now,
            });
            let known = self.resources.get(key.as_bytes());
            let size = size.or_else(|| known.and_then(|known| known.size));
            let counted = match (of.count, known) {
                (Some(count), _) => ResourceCount {
                    count: Some(count),
                    size,
                    counted_at: now,
                    server_counted_at: Some(now),
                    server_named_at: Some(now),
                },
                // It could not count them: what it said before holds for its time, as there.
                (None, Some(known)) => ResourceCount {
                    server_named_at: Some(now),
                    ..*known
                },
                (None, None) => ResourceCount {
                    count: None,
                    size: None,
                    counted_at: now,
                    server_counted_at: None,
                    server_named_at: Some(now),
                },
            };
            self.key.clear();
            self.key.extend_from_slice(key.as_bytes());
            self.insert(counted);
        }
    }

    /// Of the resource that was looked up last.
    fn insert(&mut self, counted: ResourceCount) {
        if self.resources.len() >= MAX_RESOURCES && !self.resources.contains_key(&*self.key) {
            self.evict_oldest();
        }
        self.resources.insert(self.key.as_slice().into(), counted);
    }

    /// Whether its size was measured within the last second, or by the server, so that another
    /// answer of now would tell nothing new.
    pub fn has_fresh_size(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        let Some(known) = self.find(list.api_group(), list.resource()) else {
            return false;
        };
        known.size.is_some_and(|size| match size.accuracy {
            SizeAccuracy::Abridged => false,
            SizeAccuracy::Text | SizeAccuracy::Protobuf => {
                now.saturating_duration_since(size.measured_at) < FRESH_SIZE_TTL
            }
            SizeAccuracy::Server => is_server_count_valid(known.server_counted_at, now),
        })
    }

    /// What is known of a resource.
    ///
    /// Events are a case of their own. Core `events` are the one resource that kube-apiserver does
    /// not keep in its watch cache, where sizes are taken (`resourceSizeEstimator`), so that it has
    /// a count of them and no size. The registry behind both groups reports that count as that of
    /// core `events`, so that those of `events.k8s.io` are not found.
    pub fn stats(&mut self, now: Instant, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        if is_events_group_events(api_group, resource) {
            return ObjectStats::NotFound;
        }
        let is_core_events = resource == EVENTS && api_group.is_empty();
        let known = self.find(api_group, resource).copied();
        if self.source(known, now) == CountSource::NotStored {
            return ObjectStats::NotFound;
        }
        let counted = known.and_then(|known| known.count.map(|count| (count, known.size)));
        match counted {
            Some((count, size)) => ObjectStats::Counted {
                count,
                average_size: size
                    // Unless they are in the watch cache after all (`--watch-cache-sizes`).
                    .filter(|size| !is_core_events || size.accuracy == SizeAccuracy::Server)
                    .map_or(0, |size| size.bytes),
            },
            None if is_core_events => ObjectStats::Counted {
                count: INFINITE_COUNT,
                average_size: 0,
            },
            None => ObjectStats::NotFound,
        }
    }

    /// Looks up `resource.group`, as `GroupResource.String` writes it.
    fn find(&mut self, api_group: &[u8], resource: &[u8]) -> Option<&mut ResourceCount> {
        self.key.clear();
        self.key.extend_from_slice(resource);
        // The same events are in both groups.
        if !api_group.is_empty() && !is_events_group_events(api_group, resource) {
            self.key.push(b'.');
            self.key.extend_from_slice(api_group);
        }
        self.resources.get_mut(&*self.key)
    }

    fn evict_oldest(&mut self) {
        let oldest = self
            .resources
            .iter()
            .min_by_key(|(_, known)| known.counted_at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.resources.remove(&oldest);
        }
    }
}

/// The events that are stored as core `events`, and counted as these.
fn is_events_group_events(api_group: &[u8], resource: &[u8]) -> bool {
    resource == EVENTS && api_group == EVENTS_GROUP
}

fn is_server_count_valid(counted: Option<Instant>, now: Instant) -> bool {
    counted.is_some_and(|at| now.saturating_duration_since(at) < SERVER_COUNT_TTL)
}

/// Whether the answer to a list, or to a watch that begins with one, could tell how many objects
/// there are of its resource: those of all namespaces, none left out.
#[must_use]
pub fn lists_all_objects(list: &RequestInfo<'_>) -> bool {
    let given = |key| {
        list.query()
            .first(key)
            .is_some_and(|value| !value.is_empty())
    };
    lists_objects(list)
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

/// Whether this is a list or a watch of a resource's objects, all of them or some.
#[must_use]
pub fn lists_objects(list: &RequestInfo<'_>) -> bool {
    matches!(list.verb(), Verb::List | Verb::Watch)
        && !list.resource().is_empty()
        && list.subresource().is_empty()
}

/// How many objects there are.
#[derive(Clone, Copy)]
enum TotalCount {
    Exact(u64),
    AtLeast(u64),
}

impl TotalCount {
    fn resolve(self, known: u64) -> u64 {
        match self {
            Self::Exact(count) => count,
            Self::AtLeast(count) => count.max(known),
        }
    }
}

/// How many objects there are, if the answer tells.
fn total_count(list: &RequestInfo<'_>, answer: ListResponse) -> Option<TotalCount> {
    if !lists_all_objects(list) {
        return None;
    }
    match answer.remaining_items {
        Some(remaining) => answer.items.checked_add(remaining).map(TotalCount::Exact),
        None if !answer.has_continue => Some(TotalCount::Exact(answer.items)),
        // The initial events of a watch that does not say where they end.
        None if *list.verb() == Verb::Watch && answer.items > 0 => {
            Some(TotalCount::AtLeast(answer.items))
        }
        None => None,
    }
}
