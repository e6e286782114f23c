//! Moving averages of the service times of requests with the same shape. A request that is
//! cancelled before its response is charged the average.
//!
//! The API server continues with a list after its client has gone: its handler checks for
//! cancellation only between two steps, and encoding a large list is one step. A seat that was
//! released at once would let the next request run beside it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use weir_kubernetes::numeric::saturating_u64;
use weir_kubernetes::request_info::RequestInfo;

/// The number of averages; a cluster has some hundreds of shapes. Shapes with the same index share
/// an average.
const AVERAGES: usize = 1024;

/// The weight of a new observation: the last dozen dominate the average.
const OBSERVATION_WEIGHT: f32 = 1.0 / 8.0;

/// The service time of a shape without observations: a list of medium size.
const DEFAULT_SERVICE_TIME: Duration = Duration::from_millis(100);

/// The longest service time that is taken over from another process: a request's deadline is rarely
/// longer.
const MAX_RESTORED_SECONDS: f32 = 3600.0;

/// Parameters that may make a list much cheaper than without them.
const CHEAPER_PARAMETERS: [&str; 4] =
    ["limit", "fieldSelector", "labelSelector", "resourceVersion"];

/// The shape of a request: verb, resource, scope (one object, a namespace or all), and which of the
/// parameters it has that make a list cheap. Without these parameters, a client could lower the
/// average of full lists with cheap ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestShape(usize);

impl RequestShape {
    /// The shape of a request.
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
        let slot = hash % saturating_u64(AVERAGES);
        Self(usize::try_from(slot).unwrap_or_default())
    }
}

/// The averages of one worker, in seconds. Relaxed ordering is enough, since each is independent.
#[derive(Debug)]
pub struct ServiceTimes(Box<[AtomicU32]>);

impl Default for ServiceTimes {
    fn default() -> Self {
        Self((0..AVERAGES).map(|_| AtomicU32::new(0)).collect())
    }
}

impl ServiceTimes {
    /// Records the service time of a request that was answered.
    pub fn observe(&self, shape: RequestShape, elapsed: Duration) {
        self.update(shape, |average| {
            let elapsed = elapsed.as_secs_f32().max(f32::MIN_POSITIVE);
            average.map_or(elapsed, |average| {
                average + (elapsed - average) * OBSERVATION_WEIGHT
            })
        });
    }

    /// Records that a request was cancelled after this time. It would have taken longer.
    pub fn observe_cancelled(&self, shape: RequestShape, elapsed: Duration) {
        let elapsed = elapsed.as_secs_f32();
        self.update(shape, |average| match average {
            Some(average) if average < elapsed => {
                average + (elapsed - average) * OBSERVATION_WEIGHT
            }
            Some(average) => average,
            None => elapsed.max(DEFAULT_SERVICE_TIME.as_secs_f32()),
        });
    }

    /// The average service time of this shape.
    #[must_use]
    pub fn average(&self, shape: RequestShape) -> Duration {
        let average = self.0.get(shape.0).and_then(load_average);
        average.map_or(DEFAULT_SERVICE_TIME, |seconds| {
            Duration::try_from_secs_f32(seconds).unwrap_or(DEFAULT_SERVICE_TIME)
        })
    }

    /// All averages in seconds, by shape; 0 where there is none.
    #[must_use]
    pub fn save(&self) -> Vec<f32> {
        let slots = self.0.iter();
        slots
            .map(|slot| load_average(slot).unwrap_or_default())
            .collect()
    }

    /// Takes over the averages of another process where there are none yet. Others than positive
    /// times are ignored, and so are all if they are of another number of shapes.
    pub fn restore(&self, saved: &[f32]) {
        if saved.len() != self.0.len() {
            return;
        }
        for (slot, seconds) in self.0.iter().zip(saved) {
            let is_plausible = seconds.is_finite() && *seconds > 0.0;
            if is_plausible && load_average(slot).is_none() {
                slot.store(
                    seconds.min(MAX_RESTORED_SECONDS).to_bits(),
                    Ordering::Relaxed,
                );
            }
        }
    }

    fn update(&self, shape: RequestShape, change: impl FnOnce(Option<f32>) -> f32) {
        if let Some(slot) = self.0.get(shape.0) {
            slot.store(change(load_average(slot)).to_bits(), Ordering::Relaxed);
        }
    }
}

fn load_average(slot: &AtomicU32) -> Option<f32> {
    let bits = slot.load(Ordering::Relaxed);
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
    fn averages_are_taken_over_where_there_are_none() {
        let (old, list) = (ServiceTimes::default(), shape("GET", "/api/v1/pods"));
        let get = shape("GET", "/api/v1/namespaces/a/pods/c");
        old.observe(list, Duration::from_secs(2));
        old.observe(get, Duration::from_secs(2));
        let new = ServiceTimes::default();
        new.observe(get, Duration::from_millis(1));
        let mut saved = old.save();
        new.restore(&saved);
        assert_eq!(new.average(list), Duration::from_secs(2));
        assert_eq!(new.average(get), Duration::from_millis(1));
        // Nothing implausible is taken over.
        saved.iter_mut().for_each(|seconds| *seconds = f32::NAN);
        let other = ServiceTimes::default();
        other.restore(&saved);
        other.restore(&[1.0]);
        assert_eq!(other.average(list), DEFAULT_SERVICE_TIME);
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
