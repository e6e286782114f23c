//! How long requests execute: the recorded times, the median of their kind where none is recorded,
//! and the capacity of the API server. Pure.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::agenda::SimTime;
use crate::histogram::DurationHistogram;
use weir_kubernetes::request_info::RequestInfo;

/// The most kinds of requests whose times are kept apart; a cluster has some hundreds.
const MAX_KINDS: usize = 4096;

/// The time of a request of which nothing is known, in nanoseconds.
const DEFAULT_NANOSECONDS: u64 = 10_000_000;

/// The recorded times by the kind of request.
#[derive(Debug, Default)]
pub(super) struct RecordedServiceTimes {
    kinds: HashMap<u64, DurationHistogram, FixedState>,
    all: DurationHistogram,
}

impl RecordedServiceTimes {
    /// Records the time of a request, in nanoseconds.
    pub(super) fn observe(&mut self, info: &RequestInfo<'_>, nanoseconds: u64) {
        self.all.record(nanoseconds);
        let kind = kind_of(info);
        if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(&kind) {
            self.kinds.entry(kind).or_default().record(nanoseconds);
        }
    }

    /// The median of the times of such requests so far, in nanoseconds.
    pub(super) fn estimate(&self, info: &RequestInfo<'_>) -> u64 {
        let kind = self.kinds.get(&kind_of(info)).unwrap_or(&self.all);
        if kind.count() == 0 {
            return DEFAULT_NANOSECONDS;
        }
        u64::try_from(kind.quantile(500).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The verb, the resource, and whether it is about one object, a namespace or all.
fn kind_of(info: &RequestInfo<'_>) -> u64 {
    FixedState::default().hash_one((
        info.verb(),
        info.api_group(),
        info.resource(),
        info.subresource(),
        info.name().is_empty(),
        info.namespace().is_empty(),
    ))
}

/// An API server that works on so many requests at full speed at a time, and on more of them the
/// more slowly: each gets the same share (processor sharing).
///
/// Progress is measured in nanoseconds of work that each request has received since the start. A
/// request ends when this has grown by its service time.
#[derive(Debug)]
pub(super) struct SharedProcessor {
    at_full_speed: f64,
    progress: f64,
    updated_at: SimTime,
    ends: BinaryHeap<End>,
    started: u64,
}

#[derive(Debug)]
struct End {
    progress: f64,
    order: u64,
    request: usize,
}

impl SharedProcessor {
    /// `at_full_speed` is above zero.
    pub(super) const fn new(at_full_speed: f64) -> Self {
        Self {
            at_full_speed,
            progress: 0.0,
            updated_at: SimTime(0),
            ends: BinaryHeap::new(),
            started: 0,
        }
    }

    /// Starts a request that needs this much work.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "nanoseconds of a service time are exact for 100 days"
    )]
    pub(super) fn start(&mut self, now: SimTime, request: usize, nanoseconds: u64) {
        self.advance(now);
        self.started += 1;
        self.ends.push(End {
            progress: self.progress + nanoseconds as f64,
            order: self.started,
            request,
        });
    }

    /// When the next request ends, if none starts before.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates"
    )]
    pub(super) fn next_end(&self) -> Option<SimTime> {
        let left = (self.ends.peek()?.progress - self.progress).max(0.0);
        Some(self.updated_at.plus((left / self.speed()).ceil() as u64))
    }

    /// Takes the request that ends at `now`, which is [`next_end`](Self::next_end).
    pub(super) fn take_end(&mut self, now: SimTime) -> Option<usize> {
        self.advance(now);
        let end = self.ends.pop()?;
        self.progress = self.progress.max(end.progress);
        Some(end.request)
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "as for `start`"
    )]
    fn advance(&mut self, now: SimTime) {
        let elapsed = now.since(self.updated_at) as f64;
        self.progress += elapsed * self.speed();
        self.updated_at = self.updated_at.max(now);
    }

    /// The speed of each request, if there were so many more.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a number of requests"
    )]
    fn speed_with(&self, more: usize) -> f64 {
        (self.at_full_speed / (self.ends.len() + more).max(1) as f64).min(1.0)
    }

    /// By how much one more request would take longer than at full speed.
    pub(super) fn slowdown(&self) -> f64 {
        self.speed_with(1).recip()
    }

    fn speed(&self) -> f64 {
        self.speed_with(0)
    }
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap has its greatest entry first: the one that ends first.
impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        let progress = other.progress.total_cmp(&self.progress);
        progress.then(other.order.cmp(&self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn requests_beyond_the_capacity_share_it() {
        let mut server = SharedProcessor::new(2.0);
        for request in 0..4 {
            server.start(SimTime(0), request, 10 * MS);
        }
        // Four requests at half speed.
        assert_eq!(server.next_end(), Some(SimTime(20 * MS)));
        let ended: Vec<_> = (0..4)
            .map(|_| server.take_end(SimTime(20 * MS)).unwrap())
            .collect();
        assert_eq!(ended, [0, 1, 2, 3]);
        assert_eq!(server.next_end(), None);
    }

    #[test]
    fn a_request_is_faster_when_another_has_ended() {
        let mut server = SharedProcessor::new(1.0);
        server.start(SimTime(0), 0, 10 * MS);
        server.start(SimTime(0), 1, 20 * MS);
        assert_eq!(server.next_end(), Some(SimTime(20 * MS)));
        assert_eq!(server.take_end(SimTime(20 * MS)), Some(0));
        assert_eq!(server.next_end(), Some(SimTime(30 * MS)));
    }

    #[test]
    fn the_estimate_is_the_median_of_the_kind() {
        let mut times = RecordedServiceTimes::default();
        let info = |target: &'static str| RequestInfo::parse("GET", target.as_bytes()).unwrap();
        assert_eq!(times.estimate(&info("/version")), DEFAULT_NANOSECONDS);
        for n in 1..=99 {
            times.observe(&info("/api/v1/namespaces/a/pods"), n * MS);
        }
        let median = times.estimate(&info("/api/v1/namespaces/b/pods?limit=5"));
        assert!((50 * MS..=54 * MS).contains(&median), "{median}");
        times.observe(&info("/version"), MS);
        let of_its_own = times.estimate(&info("/version"));
        assert!((MS..=2 * MS).contains(&of_its_own), "{of_its_own}");
    }
}
