//! The order of decisions, for a record of requests.
//!
//! A [`DecisionSequence`] numbers the steps of all levels together, and a [`DecisionOrder`] keeps
//! those of one request. A number is taken under the lock of the level, so that the numbers of one
//! level are in the order in which it decided. Nothing is numbered while nothing is recorded.
//!
//! A dispatch follows from another step, so it has the number of that step: the request's own
//! arrival, or the departure of another request.
//!
//! An adjustment of seats is a step of all levels. The next request that arrives keeps it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The numbers of all levels' steps. Relaxed throughout: the lock of a level orders its steps.
#[derive(Debug, Default)]
pub(crate) struct DecisionSequence {
    is_enabled: AtomicBool,
    last: AtomicU64,
    /// The last adjustment of seats. Its number is 0 if nothing was numbered then.
    adjustment: Mutex<Option<DecisionStep>>,
    /// Whether no request that has arrived keeps it.
    is_adjustment_new: AtomicBool,
}

/// A step of a request at its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecisionStep {
    /// Its number; the first is 1.
    pub(crate) number: u64,
    /// The time by which the level decided.
    pub(crate) at: Instant,
}

/// The steps of one request, as far as it has come.
#[derive(Debug)]
pub struct DecisionOrder {
    sequence: Arc<DecisionSequence>,
    arrival: OnceLock<DecisionStep>,
    dispatch: OnceLock<DecisionStep>,
    departure: OnceLock<DecisionStep>,
    lingered: OnceLock<DecisionStep>,
    adjustment: OnceLock<DecisionStep>,
}

impl DecisionSequence {
    /// Numbers the steps of requests that arrive from now on, or no more of them.
    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.is_enabled.store(enabled, Ordering::Relaxed);
        self.is_adjustment_new.store(true, Ordering::Relaxed);
    }

    /// Seats are adjusted, from now on. Between this and the adjustment of a level are some
    /// microseconds, in which the level may decide.
    pub(crate) fn record_adjustment(&self, now: Instant) {
        let step = match self.is_enabled.load(Ordering::Relaxed) {
            true => self.next(now),
            false => DecisionStep { number: 0, at: now },
        };
        *self.adjustment.lock() = Some(step);
        self.is_adjustment_new.store(true, Ordering::Relaxed);
    }

    /// The last adjustment, for one request.
    fn take_adjustment(&self) -> Option<DecisionStep> {
        let is_new = self.is_adjustment_new.load(Ordering::Relaxed)
            && self.is_adjustment_new.swap(false, Ordering::Relaxed);
        is_new.then(|| *self.adjustment.lock()).flatten()
    }

    /// For a request that arrives. `None` if nothing is numbered.
    #[must_use]
    pub(crate) fn start(self: &Arc<Self>) -> Option<Arc<DecisionOrder>> {
        self.is_enabled.load(Ordering::Relaxed).then(|| {
            Arc::new(DecisionOrder {
                sequence: Arc::clone(self),
                arrival: OnceLock::new(),
                dispatch: OnceLock::new(),
                departure: OnceLock::new(),
                lingered: OnceLock::new(),
                adjustment: OnceLock::new(),
            })
        })
    }

    fn next(&self, at: Instant) -> DecisionStep {
        DecisionStep {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            at,
        }
    }
}

impl DecisionOrder {
    /// The level decided about the arrival.
    #[must_use]
    pub(crate) fn arrival(&self) -> Option<DecisionStep> {
        self.arrival.get().copied()
    }

    /// The request got its seats. The number is that of the step from which this followed, or 0: then
    /// the seats of the level had changed, or the step is not numbered.
    #[must_use]
    pub(crate) fn dispatch(&self) -> Option<DecisionStep> {
        self.dispatch.get().copied()
    }

    /// The request released its seats (which may linger), or left its queue.
    #[must_use]
    pub(crate) fn departure(&self) -> Option<DecisionStep> {
        self.departure.get().copied()
    }

    /// The seats have lingered, and are free.
    #[must_use]
    pub(crate) fn lingered(&self) -> Option<DecisionStep> {
        self.lingered.get().copied()
    }

    /// The last adjustment of seats before the arrival, if no other request keeps it. Its number is 0
    /// if nothing was numbered then.
    #[must_use]
    pub(crate) fn adjustment(&self) -> Option<DecisionStep> {
        self.adjustment.get().copied()
    }

    /// Returns the number of the step, as the others do.
    pub(super) fn record_arrival(&self, now: Instant) -> u64 {
        let number = self.arrival.get_or_init(|| self.sequence.next(now)).number;
        if let Some(adjustment) = self.sequence.take_adjustment() {
            self.adjustment.get_or_init(|| adjustment);
        }
        number
    }

    /// `step` is the number of the step from which the dispatch follows.
    pub(super) fn record_dispatch(&self, step: u64, now: Instant) {
        self.dispatch.get_or_init(|| DecisionStep {
            number: step,
            at: now,
        });
    }

    /// The departure. The second one is the end of the time for which the seats linger.
    pub(super) fn record_departure(&self, now: Instant) -> u64 {
        let step = match self.departure.get() {
            None => &self.departure,
            Some(_) => &self.lingered,
        };
        step.get_or_init(|| self.sequence.next(now)).number
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn steps_are_numbered_in_one_sequence_while_it_is_enabled() {
        let (sequence, now) = (Arc::new(DecisionSequence::default()), Instant::now());
        assert!(sequence.start().is_none());
        sequence.set_enabled(true);
        let (first, second) = (sequence.start().unwrap(), sequence.start().unwrap());
        let arrival = first.record_arrival(now);
        second.record_arrival(now);
        first.record_dispatch(arrival, now);
        let later = now + Duration::from_secs(1);
        for _ in 0..2 {
            second.record_departure(later); // seats that linger are released twice
        }
        first.record_departure(later);
        let numbers = |order: &DecisionOrder| {
            let steps = [order.arrival(), order.departure(), order.lingered()];
            steps.map(|step| step.map_or(0, |step| step.number))
        };
        assert_eq!((numbers(&first), numbers(&second)), ([1, 5, 0], [2, 3, 4]));
        let number = first.arrival().unwrap().number;
        assert_eq!(first.dispatch(), Some(DecisionStep { number, at: now }));
        assert_eq!(second.dispatch(), None);
        sequence.set_enabled(false);
        assert!(sequence.start().is_none());
    }

    #[test]
    fn the_next_request_that_arrives_keeps_an_adjustment_of_seats() {
        let (sequence, now) = (Arc::new(DecisionSequence::default()), Instant::now());
        sequence.record_adjustment(now);
        sequence.set_enabled(true);
        let arrive = || {
            let order = sequence.start().unwrap();
            order.record_arrival(now);
            order.adjustment().map(|step| step.number)
        };
        assert_eq!(arrive(), Some(0), "it was before the record");
        assert_eq!(arrive(), None);
        sequence.record_adjustment(now);
        sequence.record_adjustment(now);
        assert_eq!(arrive(), Some(4), "the last one");
        assert_eq!(arrive(), None);
    }
}
