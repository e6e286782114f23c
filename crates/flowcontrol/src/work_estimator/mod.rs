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

/// `listWorkEstimator.estimate`.
fn estimate_list(info: &RequestInfo<'_>, max_seats: u32, context: &impl EstimateContext) -> u32 {
    let options = ListQuery(info.query());
    let Ok(limit) = options.decode_integers() else {
        return max_seats; // the request will fail, after an unknown amount of work
    };
    let is_watch = *info.verb() == Verb::Watch;
    if is_watch && !options.wants_initial_events() {
        return MIN_SEATS;
    }
    let from_cache =
        is_watch || !options.should_delegate_list(limit, || context.consistent_reads_from_cache());
    let (count, average_size) = match context.object_stats(info.api_group(), info.resource()) {
        ObjectStats::Counted {
            count,
            average_size: 0,
        } if count > 0 => (count, MAX_OBJECT_SIZE),
        ObjectStats::Counted {
            count,
            average_size,
        } => (count, average_size),
        ObjectStats::NotFound => return MIN_SEATS,
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
    let bytes = loaded.saturating_mul(average_size);
    let bytes = if from_cache {
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
