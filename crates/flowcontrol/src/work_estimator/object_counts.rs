//! The number and size of each resource's objects, from the API server's metrics and its responses.
//!
//! kube-apiserver reads the count of every resource from etcd each minute or two
//! (`StorageObjectCountTracker`, Kubernetes 1.36), and treats a count older than three minutes as
//! infinite. Its metrics contain these counts. A count has one of three sources, in this order
//! (only `ObjectCounts::source` decides):
//!
//! 1. The API server's metrics, for three minutes. They take precedence over everything else. A
//!    resource that they do not contain is not stored there, and the API server has no count of it
//!    either: one seat.
//! 2. Responses, where there are no metrics, or where they contain the resource without a figure
//!    (-1). The newest response counts, of these kinds:
//!    - weir's own list of one object (`count_schedule`), for a resource that is listed through
//!      weir and has no count, or one that is older than ten minutes;
//!    - the initial events of a watch that passes through weir, up to their bookmark;
//!    - a list of all objects that passes through weir. Only its length is known. The estimate
//!      needs no more, since it is the number times the size.
//! 3. None: one seat.
//!
//! Clients list once and watch from then on, so hours may pass between two responses. An old count
//! is still the best one: it is valid until the next one.
//!
//! Sizes come from metrics, from initial events, and from the length of lists divided by the count.
//! Where neither the size nor the API server's own assumption is known, an object has
//! [`ASSUMED_OBJECT_SIZE`].
//!
//! Names of resources come from responses with 200, not from requests, so invented names take no
//! memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::work_estimator::list_query::ListQuery;
use crate::work_estimator::resource_metrics::ServerCount;
use weir_kubernetes::numeric::saturating_u64;
use weir_kubernetes::request_info::{RequestInfo, Verb};

#[cfg(test)]
mod tests;

/// More than any API server has. Beyond it, the resource with the oldest count is evicted, so that
/// a server with arbitrary responses cannot fill weir's memory.
const MAX_RESOURCES: usize = 4096;

const EVENTS: &[u8] = b"events";
const EVENTS_GROUP: &[u8] = b"events.k8s.io";

/// A size of lower accuracy replaces a better one only when the better one is this old. The sizes
/// of objects change slowly, and JSON is up to three times as long as what is stored.
const BETTER_SIZE_TTL: Duration = Duration::from_secs(60 * 60);

/// The time for which the server's counts are valid, as for its own estimates
/// (`StorageObjectCountTracker`'s stale tolerance).
const SERVER_COUNT_TTL: Duration = Duration::from_secs(3 * 60);

/// A count that is this old is polled again, for a resource that is still listed.
const POLL_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The assumed size of an object, in bytes. The estimate of a list whose length was seen is the
/// same for any value; this one decides about pages. A page of 500 objects, as client-go requests
/// it, then costs at most as much as the most expensive list from memory (10 seats).
pub(super) const ASSUMED_OBJECT_SIZE: u64 = 2000;

/// The count that kube-apiserver assumes for an unknown one (`workEstimator`: "infinite").
pub(super) const INFINITE_COUNT: u64 = 1_000_000_000;

/// The counts and sizes of all resources.
#[derive(Debug, Default)]
pub struct ObjectCounts {
    resources: HashMap<Box<[u8]>, ResourceCount>,
    /// The time of the server's last metrics, which contain all of its counts.
    server_counted_at: Option<Instant>,
    /// A reused buffer for one key.
    key: Vec<u8>,
}

/// The number and size of a resource's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStats {
    /// The objects were counted.
    Counted {
        /// The number of objects in all namespaces.
        count: u64,
        /// Bytes, as stored. 0 if unknown.
        average_size: u64,
    },
    /// There is no count: the resource does not exist, or was never listed.
    NotFound,
}

/// A list, or a watch that begins with one, whose response contains all objects of a resource or
/// the first page of them.
#[derive(Clone, Debug)]
pub struct FullList {
    /// `resource.group`.
    key: Box<[u8]>,
    /// The most objects in the response.
    limit: u64,
}

/// A successful response to a [`FullList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListResponse {
    /// The number of its objects, if it is known: all of them.
    pub objects: Option<u64>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The accuracy of that length as a measure of the stored length.
    pub accuracy: SizeAccuracy,
}

/// The accuracy of a response's length as a measure of its objects' length in etcd. Greater is
/// better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SizeAccuracy {
    /// Tables and lists of metadata: the objects are at least about that long. Used only while
    /// there is no other size.
    Abridged,
    /// Whole objects in JSON or CBOR. Custom resources are stored like that, others in protobuf,
    /// which is up to three times shorter.
    Text,
    /// Whole objects in protobuf.
    Protobuf,
    /// The input of the server's own estimates.
    Server,
}

#[derive(Clone, Copy, Debug)]
struct ResourceCount {
    /// `None` if no source has a count. `size` may have the length of a list.
    count: Option<u64>,
    /// The time of the count.
    counted_at: Instant,
    size: Option<ObjectSize>,
    /// The time of the last figure in the server's metrics.
    server_counted_at: Option<Instant>,
    /// The time at which the server's metrics last contained the resource, with a figure or
    /// without.
    server_named_at: Option<Instant>,
}

/// What is known of a resource, for another process. Times are ages in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCount {
    /// `resource.group`.
    key: String,
    count: Option<u64>,
    counted: u64,
    /// Bytes, accuracy and age.
    size: Option<(u64, SizeAccuracy, u64)>,
    /// [`ObjectSize::list_limit`].
    #[serde(default)]
    list_limit: Option<u64>,
    server_counted: Option<u64>,
    server_named: Option<u64>,
}

/// The source of a resource's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountSource {
    /// The API server's metrics.
    Metrics,
    /// None: the API server's metrics do not contain the resource, so its own estimates have no
    /// count either.
    NotStored,
    /// Responses that passed through weir, or that weir requested.
    Responses,
}

/// The average size of an object, or the length of a list while there is no count.
#[derive(Clone, Copy, Debug)]
struct ObjectSize {
    bytes: u64,
    /// The most objects in the list, if `bytes` is the length of one.
    list_limit: Option<u64>,
    accuracy: SizeAccuracy,
    measured_at: Instant,
}

impl FullList {
    /// `None` if the response may contain only a part of the objects, and no first page.
    #[must_use]
    pub fn of(list: &RequestInfo<'_>) -> Option<Self> {
        let is_set = |key| {
            list.query()
                .first(key)
                .is_some_and(|value| !value.is_empty())
        };
        let is_full = lists_objects(list)
            && list.namespace().is_empty()
            && list.name().is_empty()
            && ![
                "continue",
                "fieldSelector",
                "labelSelector",
                "shardSelector",
            ]
            .into_iter()
            .any(is_set);
        if !is_full {
            return None;
        }
        let limit = ListQuery(list.query()).decode_integers().ok()?;
        // The watch cache ignores the limit at version 0.
        let is_limited = *list.verb() == Verb::List
            && list.query().first("resourceVersion").as_deref() != Some(b"0");
        let mut key = Vec::new();
        write_key(&mut key, list.api_group(), list.resource());
        Some(Self {
            key: key.into(),
            limit: limit.filter(|_| is_limited).unwrap_or(u64::MAX),
        })
    }
}

impl ObjectSize {
    /// What is known of the size if the number of objects is `count`.
    fn with_count(self, count: Option<u64>) -> Option<Self> {
        match (count, self.list_limit) {
            (Some(_), None) | (None, Some(_)) => Some(self),
            (Some(count), Some(limit)) => Some(Self {
                bytes: self.bytes.checked_div(count.min(limit))?,
                list_limit: None,
                ..self
            }),
            (None, None) => None,
        }
    }

    /// The size to use, of two.
    fn better_of(self, other: Option<Self>) -> Self {
        let holds = |other: &Self| {
            other.accuracy > self.accuracy
                && (self.accuracy == SizeAccuracy::Abridged
                    || self.measured_at.saturating_duration_since(other.measured_at) < BETTER_SIZE_TTL)
                // That the server does not know the size is valid for as long as it says so.
                && (other.bytes > 0 || is_server_count_valid(Some(other.measured_at), self.measured_at))
        };
        // All objects are at least as long as the longest page.
        let is_shorter_page = |other: &Self| {
            self.list_limit.is_some_and(|limit| limit < u64::MAX)
                && other.list_limit.is_some()
                && other.bytes > self.bytes
        };
        other
            .filter(|other| holds(other) || is_shorter_page(other))
            .unwrap_or(self)
    }

    /// The objects of a list of this length.
    fn assumed_stats(self) -> ObjectStats {
        let count = (self.bytes / ASSUMED_OBJECT_SIZE).max(1);
        ObjectStats::Counted {
            count,
            average_size: self.bytes.div_ceil(count),
        }
    }
}

impl ObjectCounts {
    /// Records the response to `list`.
    pub fn record_list(&mut self, now: Instant, list: &FullList, response: ListResponse) {
        let known = self.resources.get(&list.key).copied();
        let from_server = known.filter(|known| is_server_count_valid(known.server_counted_at, now));
        let previous = known.filter(|known| known.count.is_some_and(|count| count > 0));
        // A count outlives a list whose number of objects is not known: the size follows from it.
        let kept = from_server.or_else(|| previous.filter(|_| response.objects.is_none()));
        let count = kept.map_or(response.objects, |kept| kept.count);
        let measured = ObjectSize {
            bytes: response.bytes,
            list_limit: Some(list.limit),
            accuracy: response.accuracy,
            measured_at: now,
        };
        let other = known
            .and_then(|known| known.size)
            .and_then(|size| size.with_count(count));
        // A response without a size keeps the last one.
        let size = measured
            .with_count(response.objects.or(count))
            .map_or(other, |measured| Some(measured.better_of(other)));
        let counted = ResourceCount {
            count,
            counted_at: kept.map_or(now, |kept| kept.counted_at),
            size,
            server_counted_at: from_server.and_then(|known| known.server_counted_at),
            server_named_at: known.and_then(|known| known.server_named_at),
        };
        self.key.clear();
        self.key.extend_from_slice(&list.key);
        self.insert(counted);
    }

    /// Records the count of a list of one object, which weir requested.
    pub fn record_polled_count(
        &mut self,
        now: Instant,
        api_group: &[u8],
        resource: &[u8],
        count: u64,
    ) {
        let entry = self.find(api_group, resource).copied();
        if self.source(entry, now) == CountSource::Metrics {
            return; // recorded meanwhile
        }
        let counted = ResourceCount {
            count: Some(count),
            counted_at: now,
            size: entry
                .and_then(|entry| entry.size)
                .and_then(|size| size.with_count(Some(count))),
            server_counted_at: None,
            server_named_at: entry.and_then(|entry| entry.server_named_at),
        };
        self.insert(counted);
    }

    /// Whether a poll of this resource is useful: its seats depend on responses, and none has had a
    /// count for ten minutes.
    pub fn needs_count(&mut self, now: Instant, api_group: &[u8], resource: &[u8]) -> bool {
        if is_events_group_events(api_group, resource) {
            return false; // not found, whatever the count
        }
        let entry = self.find(api_group, resource).copied();
        self.source(entry, now) == CountSource::Responses
            && entry
                .filter(|entry| entry.count.is_some())
                .is_none_or(|entry| {
                    now.saturating_duration_since(entry.counted_at) >= POLL_INTERVAL
                })
    }

    /// The source of a resource's count, given what is known about it.
    fn source(&self, entry: Option<ResourceCount>, now: Instant) -> CountSource {
        if entry.is_some_and(|entry| is_server_count_valid(entry.server_counted_at, now)) {
            return CountSource::Metrics;
        }
        let named = entry.is_some_and(|entry| is_server_count_valid(entry.server_named_at, now));
        if is_server_count_valid(self.server_counted_at, now) && !named {
            return CountSource::NotStored;
        }
        CountSource::Responses
    }

    /// Records the server's count of each `resource.group`. The server does not store the resources
    /// that are not among them, for example those of aggregated API servers, and knows nothing of
    /// them.
    pub fn record_server_counts<'k>(
        &mut self,
        now: Instant,
        counted: impl Iterator<Item = (&'k str, ServerCount)>,
    ) {
        for (key, reported) in counted {
            self.server_counted_at = Some(now);
            let size = reported.average_size.map(|bytes| ObjectSize {
                bytes,
                list_limit: None,
                accuracy: SizeAccuracy::Server,
                measured_at: now,
            });
            let entry = self.resources.get(key.as_bytes());
            let size = size.or_else(|| entry?.size?.with_count(reported.count));
            let counted = match (reported.count, entry) {
                (Some(count), _) => ResourceCount {
                    count: Some(count),
                    size,
                    counted_at: now,
                    server_counted_at: Some(now),
                    server_named_at: Some(now),
                },
                // The server could not count them. Its last count stays valid for its time, as
                // upstream.
                (None, Some(entry)) => ResourceCount {
                    server_named_at: Some(now),
                    ..*entry
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

    /// Inserts the resource that was looked up last.
    fn insert(&mut self, counted: ResourceCount) {
        if self.resources.len() >= MAX_RESOURCES && !self.resources.contains_key(&*self.key) {
            self.evict_oldest();
        }
        self.resources.insert(self.key.as_slice().into(), counted);
    }

    /// Everything that is known, for another process.
    #[must_use]
    pub fn save(&self, now: Instant) -> Vec<SavedCount> {
        let age = |at: Instant| saturating_u64(now.saturating_duration_since(at).as_millis());
        let resources = self.resources.iter();
        let save = |(key, known): (&[u8], &ResourceCount)| {
            Some(SavedCount {
                key: String::from_utf8(key.to_vec()).ok()?,
                count: known.count,
                counted: age(known.counted_at),
                size: known
                    .size
                    .map(|size| (size.bytes, size.accuracy, age(size.measured_at))),
                list_limit: known.size.and_then(|size| size.list_limit),
                server_counted: known.server_counted_at.map(age),
                server_named: known.server_named_at.map(age),
            })
        };
        let resources = resources.map(|(key, known)| (&**key, known));
        resources.filter_map(save).collect()
    }

    /// Takes over what another process knew of resources that are unknown here. What is older than
    /// the system is ignored.
    pub fn restore(&mut self, now: Instant, saved: &[SavedCount]) {
        let at = |age: u64| now.checked_sub(Duration::from_millis(age));
        for one in saved.iter().take(MAX_RESOURCES) {
            let Some(counted_at) = at(one.counted) else {
                continue;
            };
            let size = one.size.and_then(|(bytes, accuracy, age)| {
                Some(ObjectSize {
                    bytes,
                    list_limit: one.list_limit,
                    accuracy,
                    measured_at: at(age)?,
                })
            });
            let server_counted_at = one.server_counted.and_then(at);
            let server_named_at = one.server_named.and_then(at);
            let known = ResourceCount {
                count: one.count,
                counted_at,
                size,
                server_counted_at,
                server_named_at,
            };
            // `None` is before any time.
            self.server_counted_at = self.server_counted_at.max(server_named_at);
            if !self.resources.contains_key(one.key.as_bytes()) {
                self.key.clear();
                self.key.extend_from_slice(one.key.as_bytes());
                self.insert(known);
            }
        }
    }

    /// The number and size of a resource's objects.
    ///
    /// Events are a special case. Core `events` are the one resource that kube-apiserver does not
    /// keep in its watch cache, where sizes are measured (`resourceSizeEstimator`), so that it has
    /// a count of them and no size. The registry behind both groups reports that count as that of
    /// core `events`, so that those of `events.k8s.io` are not found.
    pub fn stats(&mut self, now: Instant, api_group: &[u8], resource: &[u8]) -> ObjectStats {
        if is_events_group_events(api_group, resource) {
            return ObjectStats::NotFound;
        }
        let is_core_events = resource == EVENTS && api_group.is_empty();
        let entry = self.find(api_group, resource).copied();
        if self.source(entry, now) == CountSource::NotStored {
            return ObjectStats::NotFound;
        }
        let size = entry.and_then(|entry| entry.size);
        match entry.and_then(|entry| entry.count) {
            Some(count) => ObjectStats::Counted {
                count,
                average_size: size
                    // Unless they are in the watch cache after all (`--watch-cache-sizes`).
                    .filter(|size| !is_core_events || size.accuracy == SizeAccuracy::Server)
                    .map_or(
                        if is_core_events {
                            0
                        } else {
                            ASSUMED_OBJECT_SIZE
                        },
                        |size| size.bytes,
                    ),
            },
            None if is_core_events => ObjectStats::Counted {
                count: INFINITE_COUNT,
                average_size: 0,
            },
            None => size
                .and_then(|size| size.with_count(None))
                .map_or(ObjectStats::NotFound, ObjectSize::assumed_stats),
        }
    }

    /// Looks up a resource.
    fn find(&mut self, api_group: &[u8], resource: &[u8]) -> Option<&ResourceCount> {
        self.key.clear();
        write_key(&mut self.key, api_group, resource);
        self.resources.get(&*self.key)
    }

    fn evict_oldest(&mut self) {
        let oldest = self
            .resources
            .iter()
            .min_by_key(|(_, entry)| entry.counted_at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.resources.remove(&oldest);
        }
    }
}

/// Whether these are the events that are stored and counted as core `events`.
fn is_events_group_events(api_group: &[u8], resource: &[u8]) -> bool {
    resource == EVENTS && api_group == EVENTS_GROUP
}

fn is_server_count_valid(counted: Option<Instant>, now: Instant) -> bool {
    counted.is_some_and(|at| now.saturating_duration_since(at) < SERVER_COUNT_TTL)
}

/// Writes `resource.group`, as `GroupResource.String` does.
fn write_key(key: &mut Vec<u8>, api_group: &[u8], resource: &[u8]) {
    key.extend_from_slice(resource);
    // Both groups contain the same events.
    if !api_group.is_empty() && !is_events_group_events(api_group, resource) {
        key.push(b'.');
        key.extend_from_slice(api_group);
    }
}

/// Whether this is a list or a watch of all or some of a resource's objects.
#[must_use]
pub fn lists_objects(list: &RequestInfo<'_>) -> bool {
    matches!(list.verb(), Verb::List | Verb::Watch)
        && !list.resource().is_empty()
        && list.subresource().is_empty()
}
