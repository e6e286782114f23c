//! How much work a request is likely to be, from what can be seen of it before it runs.
//!
//! Most requests need one seat. A list needs more if it reads many bytes, a watch if it begins with
//! a list, and a write keeps seats busy after its answer if many watchers hear of it. The
//! arithmetic is that of Kubernetes 1.36 (`util/flowcontrol/request`) with its default feature
//! gates: lists by size, and watches by their initial events.
//!
//! What the request does not tell is asked of a [`Surroundings`], only if it matters and at most
//! once each. This file knows neither how objects are counted nor how watches are.

pub mod count_schedule;
pub mod list_samples;
pub mod object_counts;
pub mod resource_metrics;
pub mod watch_tracker;

use std::borrow::Cow;
use std::time::Duration;

use crate::flowcontrol::fairqueuing::seats::WorkEstimate;
use crate::request_info::Query;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;

#[cfg(test)]
mod tests;

/// The least that anything costs.
const MIN_SEATS: u32 = 1;
/// The most for a list or the beginning of a watch: `maximumListSeatsLimit`.
const MAX_LIST_SEATS: u32 = 100;
/// The most that a write keeps busy: `maximumMutatingSeatsLimit`.
const MAX_MUTATING_SEATS: u32 = 10;
/// As much is read or sent while one seat is held: `bytesPerSeat`.
const BYTES_PER_SEAT: u64 = 100_000;
/// A list that kube-apiserver answers from its memory is encoded piece by piece, and never holds
/// more: `cacheWithStreamingMaxMemoryUsage`.
const MAX_BYTES_FROM_CACHE: u64 = 1_000_000;
/// The size of an object of which nothing is known: what etcd takes at most.
const MAX_OBJECT_SIZE: u64 = 1_500_000;
/// So many watchers are told while one seat is held: `watchesPerSeat`. Fewer are not worth
/// counting.
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
    /// They were counted.
    Counted {
        /// How many there are, in all namespaces.
        count: u64,
        /// Bytes, as stored; 0 if nobody knows.
        average_size: u64,
    },
    /// Nobody has counted them: there is no such resource, or nobody has listed it yet.
    NotFound,
}

/// What the estimate depends on besides the request.
pub trait EstimateContext {
    /// Whether kube-apiserver answers lists from its memory even if they must see every write: it
    /// does since 1.31 where etcd reports its progress.
    fn consistent_reads_from_cache(&self) -> bool;

    /// What is known of a resource's objects.
    fn object_stats(&self, api_group: &[u8], resource: &[u8]) -> ObjectStats;

    /// How many watchers will hear of a write.
    fn interested_watches(&self, write: &RequestInfo<'_>) -> usize;
}

/// Estimates a request of a level whose requests may have up to `max_seats` each, if that is
/// bounded.
///
/// Upstream: `workEstimator.estimate`.
pub fn estimate(
    info: &RequestInfo<'_>,
    max_seats: Option<u32>,
    surroundings: &impl EstimateContext,
) -> WorkEstimate {
    let at_most = |limit: u32| {
        max_seats
            .filter(|&seats| seats > 0)
            .map_or(limit, |seats| seats.min(limit))
    };
    match info.verb() {
        Verb::List | Verb::Watch => WorkEstimate {
            initial_seats: estimate_list(info, at_most(MAX_LIST_SEATS), surroundings),
            ..ONE_SEAT
        },
        Verb::Create | Verb::Delete | Verb::Patch | Verb::Update => {
            estimate_mutation(info, at_most(MAX_MUTATING_SEATS), surroundings)
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

/// Whether the seats of a request depend on how many objects there are of its resource: a list, or
/// a watch that begins with one.
#[must_use]
pub fn depends_on_count(info: &RequestInfo<'_>) -> bool {
    let is_watch = *info.verb() == Verb::Watch;
    *info.verb() == Verb::List || is_watch && ListQuery(info.query()).wants_initial_events()
}

/// `listWorkEstimator.estimate`.
fn estimate_list(info: &RequestInfo<'_>, most: u32, surroundings: &impl EstimateContext) -> u32 {
    let options = ListQuery(info.query());
    let Ok(limit) = options.decode_integers() else {
        return most; // it is going to fail, but where, and after how much work?
    };
    let is_watch = *info.verb() == Verb::Watch;
    if is_watch && !options.wants_initial_events() {
        return MIN_SEATS;
    }
    let from_cache = is_watch || !options.should_delegate_list(limit, surroundings);
    let (count, average_size) = match surroundings.object_stats(info.api_group(), info.resource()) {
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
        // Storage reads on until it has found enough; taken to be after half of all.
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
    let seats = u32::try_from(bytes.div_ceil(BYTES_PER_SEAT)).unwrap_or(u32::MAX);
    seats.max(MIN_SEATS).min(most)
}

/// `mutatingWorkEstimator.estimate`.
fn estimate_mutation(
    info: &RequestInfo<'_>,
    most: u32,
    surroundings: &impl EstimateContext,
) -> WorkEstimate {
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
struct ListQuery<'a>(Query<'a>);

/// An option that is a number is none.
struct InvalidInteger;

impl<'a> ListQuery<'a> {
    /// What a parameter says; the same if it is empty or not there.
    fn get(self, key: &str) -> Cow<'a, [u8]> {
        self.0.first(key).unwrap_or_default()
    }

    fn get_integer(self, key: &str) -> Result<Option<i64>, InvalidInteger> {
        let parse = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
        self.0
            .first(key)
            .map(|text| parse(&text).ok_or(InvalidInteger))
            .transpose()
    }

    /// The limit, if it is one.
    fn decode_integers(self) -> Result<Option<u64>, InvalidInteger> {
        let limit = self.get_integer("limit")?;
        self.get_integer("timeoutSeconds")?;
        Ok(limit
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|&limit| limit > 0))
    }

    /// Whether a watch begins with all that there is: because it says so, or because it does not
    /// say where to begin.
    fn wants_initial_events(self) -> bool {
        let asked = self
            .0
            .first("sendInitialEvents")
            .is_some_and(|text| is_true(&text));
        asked || matches!(&*self.get("resourceVersion"), b"" | b"0")
    }

    /// Whether kube-apiserver has to ask etcd: `delegator.ShouldDelegateList`, apart from
    /// snapshots.
    fn should_delegate_list(self, limit: Option<u64>, surroundings: &impl EstimateContext) -> bool {
        match &*self.get("resourceVersionMatch") {
            b"" => {}
            b"NotOlderThan" => return false,
            _ => return true,
        }
        if !self.get("continue").is_empty() {
            return true;
        }
        match &*self.get("resourceVersion") {
            b"" => !surroundings.consistent_reads_from_cache(),
            b"0" => false,
            _ => limit.is_some(),
        }
    }

    fn has_selector(self) -> bool {
        ["fieldSelector", "labelSelector"]
            .iter()
            .any(|key| !self.get(key).is_empty())
    }
}

/// `Convert_Slice_string_To_Pointer_bool`: all but `0` and what folds to `false`. Under Unicode's
/// folding `ſ` is an `s`.
fn is_true(text: &[u8]) -> bool {
    let is_false = match text {
        [fal @ .., 0xC5, 0xBF, e] => {
            fal.eq_ignore_ascii_case(b"fal") && e.eq_ignore_ascii_case(&b'e')
        }
        _ => text.eq_ignore_ascii_case(b"false"),
    };
    text != b"0" && !is_false
}
