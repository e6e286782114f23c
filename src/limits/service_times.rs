//! How long requests of one shape take, as moving averages: what a request is charged for that was given up before its answer.
//!
//! The API server goes on with a list that nobody reads any more: its handler hears of the end between two steps, and the encoding
//! of a large list is one. A seat that came back at once would let the next request in beside it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use crate::request_info::RequestInfo;

/// Shapes that are told apart: a cluster has some hundreds. Two that meet in one place share an average.
const AVERAGES: usize = 1024;

/// The weight of a new observation: the last dozen count.
const OBSERVATION_WEIGHT: f32 = 1.0 / 8.0;

/// What is assumed of a shape of which nothing is known: a list of middling size.
const DEFAULT_SERVICE_TIME: Duration = Duration::from_millis(100);

/// Parameters with which a list may take a small part of what it takes without.
const CHEAPER_PARAMETERS: [&str; 4] =
    ["limit", "fieldSelector", "labelSelector", "resourceVersion"];

/// What requests of one kind have in common: verb, resource, whether it is one object, a namespace's or all, and which of the
/// parameters it has that make a list cheap. Without these a client could shorten what full lists are taken to take by short ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestShape(usize);

impl RequestShape {
    /// Of a request.
    #[must_use]
    pub fn from_request(info: &RequestInfo<'_>) -> Self {
        let query = info.query();
        let hash = FixedState::default().hash_one((
            info.verb(),
            info.api_group(),
            info.resource(),
            info.subresource(),
            info.name().is_empty(),
            info.namespace().is_empty(),
            CHEAPER_PARAMETERS.map(|name| query.first(name).is_some_and(|value| !value.is_empty())),
        ));
        let place = hash % u64::try_from(AVERAGES).unwrap_or(u64::MAX);
        Self(usize::try_from(place).unwrap_or_default())
    }
}

/// The averages, in seconds; one worker's. Relaxed: each stands for nothing but itself.
#[derive(Debug)]
pub struct ServiceTimes(Box<[AtomicU32]>);

impl Default for ServiceTimes {
    fn default() -> Self {
        Self((0..AVERAGES).map(|_| AtomicU32::new(0)).collect())
    }
}

impl ServiceTimes {
    /// A request was answered after this time.
    pub fn observe(&self, shape: RequestShape, took: Duration) {
        self.update(shape, |average| {
            let took = took.as_secs_f32().max(f32::MIN_POSITIVE);
            average.map_or(took, |average| {
                average + (took - average) * OBSERVATION_WEIGHT
            })
        });
    }

    /// A request was given up after this time: it would have taken longer.
    pub fn observe_cancelled(&self, shape: RequestShape, took: Duration) {
        let took = took.as_secs_f32();
        self.update(shape, |average| match average {
            Some(average) if average < took => average + (took - average) * OBSERVATION_WEIGHT,
            Some(average) => average,
            None => took.max(DEFAULT_SERVICE_TIME.as_secs_f32()),
        });
    }

    /// What a request of this shape takes.
    #[must_use]
    pub fn average(&self, shape: RequestShape) -> Duration {
        let known = self.0.get(shape.0).and_then(load_average);
        known.map_or(DEFAULT_SERVICE_TIME, |seconds| {
            Duration::try_from_secs_f32(seconds).unwrap_or(DEFAULT_SERVICE_TIME)
        })
    }

    fn update(&self, shape: RequestShape, change: impl FnOnce(Option<f32>) -> f32) {
        if let Some(place) = self.0.get(shape.0) {
            place.store(change(load_average(place)).to_bits(), Ordering::Relaxed);
        }
    }
}

fn load_average(place: &AtomicU32) -> Option<f32> {
    let bits = place.load(Ordering::Relaxed);
    (bits != 0).then(|| f32::from_bits(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(method: &str, target: &str) -> RequestShape {
        RequestShape::from_request(&RequestInfo::parse(method, target.as_bytes()).unwrap())
    }

    #[test]
    fn requests_of_one_kind_have_one_shape() {
        let list = shape("GET", "/api/v1/namespaces/a/pods");
        assert_eq!(
            list,
            shape("GET", "/api/v1/namespaces/b/pods?pretty=true&limit=")
        );
        for cheaper in [
            "limit=5",
            "fieldSelector=metadata.name%3Da",
            "resourceVersion=0",
        ] {
            let target = format!("/api/v1/namespaces/a/pods?{cheaper}");
            assert_ne!(list, shape("GET", &target), "{cheaper}");
        }
        assert_ne!(list, shape("GET", "/api/v1/pods"));
        assert_ne!(list, shape("GET", "/api/v1/namespaces/a/pods/c"));
        assert_ne!(list, shape("DELETE", "/api/v1/namespaces/a/pods"));
    }

    #[test]
    fn an_average_follows_what_is_observed() {
        let (times, list) = (ServiceTimes::default(), shape("GET", "/api/v1/pods"));
        assert_eq!(times.average(list), DEFAULT_SERVICE_TIME);
        times.observe(list, Duration::from_millis(8));
        assert_eq!(times.average(list).as_millis(), 8);
        for _ in 0..100 {
            times.observe(list, Duration::from_secs(2));
        }
        assert!(times.average(list) > Duration::from_millis(1900));
    }

    #[test]
    fn a_cancelled_request_never_lowers_the_average_of_its_shape() {
        let (times, list) = (ServiceTimes::default(), shape("GET", "/api/v1/pods"));
        times.observe_cancelled(list, Duration::from_millis(4));
        assert_eq!(times.average(list).as_millis(), 100);
        times.observe(list, Duration::from_secs(1));
        let before = times.average(list);
        times.observe_cancelled(list, Duration::from_millis(4));
        assert_eq!(times.average(list), before);
        times.observe_cancelled(list, Duration::from_secs(10));
        assert!(times.average(list) > before);
    }
}
