//! Estimates the work of a request before it executes.
//!
//! Most requests need one seat. A list needs more if it reads many bytes, a watch if it begins with
//! a list, and a write occupies seats after its response if many watches receive it. The arithmetic
//! is that of Kubernetes 1.36 (`util/flowcontrol/request`) with its default feature gates: lists by
//! size, and watches by their initial events.
//!
//! An [`EstimateContext`] provides the inputs that are not in the request. Each of its methods is
//! called only if it matters, and at most once. The estimate does not depend on how objects and
//! watches are counted.

pub mod count_schedule;
mod list_query;
pub mod object_counts;
pub mod resource_metrics;
#[cfg(test)]
mod tests;
pub mod watch_tracker;

use std::time::Duration;

use crate::fairqueuing::seats::WorkEstimate;
use crate::work_estimator::list_query::ListQuery;
use crate::work_estimator::object_counts::{ASSUMED_OBJECT_SIZE, INFINITE_COUNT};
use weir_kubernetes::numeric::saturating_u32;
use weir_kubernetes::request_info::{RequestInfo, Verb};

pub use self::object_counts::ObjectStats;

/// The least cost of a request, in seats.
const MIN_SEATS: u32 = 1;
/// The most seats of a list or of the beginning of a watch: `maximumListSeatsLimit`.
const MAX_LIST_SEATS: u32 = 100;
/// The most final seats of a write: `maximumMutatingSeatsLimit`.
const MAX_MUTATING_SEATS: u32 = 10;
/// The bytes that are read or sent while one seat is occupied: `bytesPerSeat`.
const BYTES_PER_SEAT: u64 = 100_000;
/// kube-apiserver encodes a list from its watch cache piece by piece and never holds more bytes
/// than this: `cacheWithStreamingMaxMemoryUsage`.
const MAX_BYTES_FROM_CACHE: u64 = 1_000_000;
/// The assumed size of an object of unknown size, in bytes: the most that etcd accepts.
const MAX_OBJECT_SIZE: u64 = 1_500_000;
/// The watches that receive an event while one seat is occupied: `watchesPerSeat`. Fewer cost
/// nothing.
const WATCHES_PER_SEAT: usize = 10;
/// The time to send an event to these watches: `eventAdditionalDuration`.
const EVENT_ADDITIONAL_DURATION: Duration = Duration::from_millis(5);

const ONE_SEAT: WorkEstimate = WorkEstimate {
    initial_seats: MIN_SEATS,
    final_seats: 0,
    additional_latency: Duration::ZERO,
};

/// The inputs of an estimate that are not in the request.
pub trait EstimateContext {
    /// Whether kube-apiserver answers consistent lists from its watch cache. It does since 1.31
    /// where etcd reports its progress.
    fn consistent_reads_from_cache(&self) -> bool;

    /// The number and size of a resource's objects.
    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats;

    /// The number of watches that will receive a write.
    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize;
}

/// Estimates a request of a level whose requests may have up to `max_seats` each. `None`:
/// unbounded.
///
/// Upstream: `workEstimator.estimate`.
pub fn estimate(
    info: &RequestInfo<'_>,
    max_seats: Option<u32>,
    context: &impl EstimateContext,
) -> WorkEstimate {
    let at_most = |limit: u32| {
        max_seats
            .filter(|&seats| seats > 0)
            .map_or(limit, |seats| seats.min(limit))
    };
    match info.verb() {
        Verb::List | Verb::Watch => WorkEstimate {
            initial_seats: estimate_list(info, at_most(MAX_LIST_SEATS), context),
            ..ONE_SEAT
        },
        Verb::Create | Verb::Delete | Verb::Patch | Verb::Update => {
            estimate_mutation(info, at_most(MAX_MUTATING_SEATS), context)
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

/// Whether the seats of a request depend on the number of objects of its resource: a list, or a
/// watch that begins with one.
#[must_use]
pub fn depends_on_count(info: &RequestInfo<'_>) -> bool {
    let is_watch = *info.verb() == Verb::Watch;
    *info.verb() == Verb::List || is_watch && ListQuery(info.query()).wants_initial_events()
}

/// What the API server reads for a list.
struct ListRead {
    /// The number of objects.
    loaded: u64,
    /// Bytes, if it is known.
    average_size: Option<u64>,
    from_cache: bool,
}

impl ListRead {
    /// `None` if nothing is known of the resource.
    fn of(
        info: &RequestInfo<'_>,
        limit: Option<u64>,
        context: &impl EstimateContext,
    ) -> Option<Self> {
        let options = ListQuery(info.query());
        let from_cache = *info.verb() == Verb::Watch
            || !options.should_delegate_list(limit, || context.consistent_reads_from_cache());
        let stats = context.object_stats(info.api_group(), info.resource());
        let ObjectStats::Counted {
            count,
            average_size,
        } = stats
        else {
            return None;
        };
        let limited = limit.filter(|&limit| limit < count).unwrap_or(count);
        let loaded = if !info.name().is_empty() {
            1
        } else if !from_cache && options.has_selector() {
            // Storage reads on until it has found enough objects: assumed to be after half of all.
            limited.max(count / 2)
        } else {
            limited
        };
        let is_known = average_size > 0 || count == 0;
        Some(Self {
            loaded,
            average_size: is_known.then_some(average_size),
            from_cache,
        })
    }
}

/// The bytes that the API server is expected to send for a list, or for the initial events of a
/// watch. Of one namespace they are the same as of each other one. 0 if nothing is known of them.
pub fn expected_list_bytes(info: &RequestInfo<'_>, context: &impl EstimateContext) -> u64 {
    let limit = ListQuery(info.query()).decode_integers();
    let read = limit.map_or(None, |limit| ListRead::of(info, limit, context));
    let Some(read) = read.filter(|read| read.loaded < INFINITE_COUNT) else {
        return 0;
    };
    let size = read.average_size.unwrap_or(ASSUMED_OBJECT_SIZE);
    let namespaces = if info.namespace().is_empty() || !info.name().is_empty() {
        1
    } else {
        match context.object_stats(b"", b"namespaces") {
            ObjectStats::Counted { count, .. } => count.max(1),
            ObjectStats::NotFound => 1,
        }
    };
    read.loaded.saturating_mul(size) / namespaces
}

/// `listWorkEstimator.estimate`.
fn estimate_list(info: &RequestInfo<'_>, max_seats: u32, context: &impl EstimateContext) -> u32 {
    let options = ListQuery(info.query());
    let Ok(limit) = options.decode_integers() else {
        return max_seats; // the request will fail, after an unknown amount of work
    };
    if *info.verb() == Verb::Watch && !options.wants_initial_events() {
        return MIN_SEATS;
    }
    let Some(read) = ListRead::of(info, limit, context) else {
        return MIN_SEATS;
    };
    let size = read.average_size.unwrap_or(MAX_OBJECT_SIZE);
    let bytes = read.loaded.saturating_mul(size);
    let bytes = if read.from_cache {
        bytes.min(MAX_BYTES_FROM_CACHE)
    } else {
        bytes
    };
    let seats = saturating_u32(bytes.div_ceil(BYTES_PER_SEAT));
    seats.max(MIN_SEATS).min(max_seats)
}

/// `mutatingWorkEstimator.estimate`.
fn estimate_mutation(
    info: &RequestInfo<'_>,
    max_seats: u32,
    context: &impl EstimateContext,
) -> WorkEstimate {
    // A token request stores nothing.
    if info.resource() == b"serviceaccounts" && info.subresource() == b"token" {
        return ONE_SEAT;
    }
    let watches = context.interested_watches(info);
    if watches < WATCHES_PER_SEAT {
        return ONE_SEAT;
    }
    let work = WorkEstimate {
        final_seats: saturating_u32(watches.div_ceil(WATCHES_PER_SEAT)),
        additional_latency: EVENT_ADDITIONAL_DURATION,
        ..ONE_SEAT
    };
    work.narrowed_to(max_seats)
}
