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
//!    (-1). The newest response counts, of either kind:
//!    - a list of all objects that passes through weir, its first page that says how many remain,
//!      or the initial events of a watch;
//!    - weir's own list of one object (`count_schedule`), for a resource that is listed through
//!      weir and has no count, or one that is older than ten minutes.
//! 3. None: one seat.
//!
//! Clients list once and watch from then on, so hours may pass between two responses. An old count
//! is still the best one: it is valid until the next one.
//!
//! Sizes come from metrics and from responses that pass through weir. A list of one object has no
//! useful size. Without any other source, the estimate uses the largest object that etcd stores, as
//! kube-apiserver does, until a list of some of the objects (of a namespace, of a selection) has
//! passed.
//!
//! Names of resources come from responses with 200, not from requests, so invented names take no
//! memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

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

/// A size this new needs no further measurement. No other source is as new: kube-apiserver's own
/// counts are up to two minutes old.
const FRESH_SIZE_TTL: Duration = Duration::from_secs(1);

/// The count that kube-apiserver assumes for an unknown one (`workEstimator`: "infinite").
const INFINITE_COUNT: u64 = 1_000_000_000;

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

/// A successful response to a list, or the initial events of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListResponse {
    /// The number of its items.
    pub items: u64,
    /// Its `metadata.remainingItemCount`.
    pub remaining_items: Option<u64>,
    /// Whether it has a `metadata.continue`, so that more pages follow.
    pub has_continue: bool,
    /// The length of its items in bytes, as encoded.
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
    /// `None` if the server's metrics contain the resource, and no source has a count.
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

/// The average size of an object.
#[derive(Clone, Copy, Debug)]
struct ObjectSize {
    bytes: u64,
    accuracy: SizeAccuracy,
    measured_at: Instant,
}

impl ObjectSize {
    fn from_response(response: ListResponse, now: Instant) -> Option<Self> {
        Some(Self {
            bytes: response.bytes.checked_div(response.items)?,
            accuracy: response.accuracy,
            measured_at: now,
        })
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
        other.filter(holds).unwrap_or(self)
    }
}

impl ObjectCounts {
    /// Records the response to `list`, if it contains a count.
    pub fn record_list(&mut self, now: Instant, list: &RequestInfo<'_>, response: ListResponse) {
        let size = ObjectSize::from_response(response, now);
        let Some(count) = total_count(list, response) else {
            self.record_partial_list(list, size);
            return;
        };
        if let Some(entry) = self.find(list.api_group(), list.resource()) {
            if is_server_count_valid(entry.server_counted_at, now) {
                // It may not contain the size.
                entry.size = size.map_or(entry.size, |size| Some(size.better_of(entry.size)));
                return;
            }
            *entry = ResourceCount {
                count: Some(count),
                // A response without a size keeps the last one.
                size: size.map_or(entry.size, |size| Some(size.better_of(entry.size))),
                counted_at: now,
                server_counted_at: None,
                server_named_at: entry.server_named_at,
            };
            return;
        }
        let counted = ResourceCount {
            count: Some(count),
            size,
            counted_at: now,
            server_counted_at: None,
            server_named_at: None,
        };
        self.insert(counted);
    }

    /// Records the size of some of the objects. It is used while there is a count and no other
    /// size.
    fn record_partial_list(&mut self, list: &RequestInfo<'_>, size: Option<ObjectSize>) {
        if let Some(entry) = self.find(list.api_group(), list.resource())
            && entry.count.is_some()
            && entry.size.is_none()
        {
            entry.size = size
                .filter(|size| size.accuracy > SizeAccuracy::Abridged)
                .map(|size| ObjectSize {
                    accuracy: SizeAccuracy::Abridged,
                    ..size
                });
        }
    }

    /// Whether a resource has a count and no size.
    pub fn lacks_size(&mut self, api_group: &[u8], resource: &[u8]) -> bool {
        let entry = self.find(api_group, resource);
        resource != EVENTS
            && entry.is_some_and(|entry| entry.count.is_some() && entry.size.is_none())
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
            size: entry.and_then(|entry| entry.size),
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
                accuracy: SizeAccuracy::Server,
                measured_at: now,
            });
            let entry = self.resources.get(key.as_bytes());
            let size = size.or_else(|| entry.and_then(|entry| entry.size));
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

    /// Whether the size was measured within the last second, or by the server, so that another
    /// response of now adds nothing.
    pub fn has_fresh_size(&mut self, now: Instant, list: &RequestInfo<'_>) -> bool {
        let Some(entry) = self.find(list.api_group(), list.resource()) else {
            return false;
        };
        entry.size.is_some_and(|size| match size.accuracy {
            SizeAccuracy::Abridged => false,
            SizeAccuracy::Text | SizeAccuracy::Protobuf => {
                now.saturating_duration_since(size.measured_at) < FRESH_SIZE_TTL
            }
            SizeAccuracy::Server => is_server_count_valid(entry.server_counted_at, now),
        })
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
        let counted = entry.and_then(|entry| entry.count.map(|count| (count, entry.size)));
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
        // Both groups contain the same events.
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

/// Whether the response to a list, or to a watch that begins with one, could contain the count of
/// its resource: all namespaces, without any filter.
#[must_use]
pub fn lists_all_objects(list: &RequestInfo<'_>) -> bool {
    let is_set = |key| {
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
        .any(is_set)
}

/// Whether this is a list or a watch of all or some of a resource's objects.
#[must_use]
pub fn lists_objects(list: &RequestInfo<'_>) -> bool {
    matches!(list.verb(), Verb::List | Verb::Watch)
        && !list.resource().is_empty()
        && list.subresource().is_empty()
}

/// The number of objects, if the response contains it.
fn total_count(list: &RequestInfo<'_>, response: ListResponse) -> Option<u64> {
    if !lists_all_objects(list) {
        return None;
    }
    match response.remaining_items {
        Some(remaining) => response.items.checked_add(remaining),
        None => (!response.has_continue).then_some(response.items),
    }
}
