//! A model of the server's capacity: processor sharing.
//!
//! Up to `capacity` requests are each served within the service time. With more requests, all are
//! served at once and share the capacity, so that with twice as many requests each takes twice as
//! long. [`ProcessorSharing`] is the pure arithmetic in virtual time: one virtual second is one
//! second of unshared service. [`Capacity`] does the waiting.

use crate::settings::CapacityChange;
use crate::time;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// The requests in service, in virtual time.
///
/// All need the same service time, so they finish in the order of arrival.
#[derive(Debug)]
pub(crate) struct ProcessorSharing {
    capacity: u128,
    /// Nanoseconds.
    service_time: u128,
    /// Virtual time, in nanoseconds, and the real time at which it was computed.
    virtual_now: u128,
    updated_at: Instant,
    next_ticket: u64,
    /// The virtual time at which each ticket finishes.
    in_service: BTreeMap<u64, u128>,
}

impl ProcessorSharing {
    pub(crate) fn new(now: Instant, capacity: NonZeroUsize, service_time: Duration) -> Self {
        Self {
            // Bounded, so that no product with a time overflows.
            capacity: u128::from(u32::try_from(capacity.get()).unwrap_or(u32::MAX)),
            service_time: service_time.as_nanos(),
            virtual_now: 0,
            updated_at: now,
            next_ticket: 0,
            in_service: BTreeMap::new(),
        }
    }

    fn in_service_count(&self) -> u128 {
        u128::try_from(self.in_service.len()).unwrap_or(u128::MAX)
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.updated_at).as_nanos();
        let crowd = self.in_service_count().max(self.capacity).max(1);
        self.virtual_now += passed * self.capacity / crowd;
        self.updated_at = self.updated_at.max(now);
    }

    /// So many are served at full speed from now on; 0 stops all.
    pub(crate) fn set_capacity(&mut self, now: Instant, capacity: u32) {
        self.advance(now);
        self.capacity = capacity.into();
    }

    /// A request arrives. Returns its ticket.
    pub(crate) fn arrive(&mut self, now: Instant) -> u64 {
        self.advance(now);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.in_service
            .insert(ticket, self.virtual_now + self.service_time);
        ticket
    }

    /// A request leaves, finished or not.
    pub(crate) fn depart(&mut self, now: Instant, ticket: u64) {
        self.advance(now);
        self.in_service.remove(&ticket);
    }

    /// The next request that has finished by `now`.
    pub(crate) fn pop_finished(&mut self, now: Instant) -> Option<u64> {
        self.advance(now);
        let first = self.in_service.first_entry()?;
        if *first.get() > self.virtual_now {
            return None;
        }
        Some(first.remove_entry().0)
    }

    /// The time at which the next request finishes if none arrives or leaves. `None` while nothing is
    /// served.
    pub(crate) fn next_finish(&self) -> Option<Instant> {
        let (_, due) = self.in_service.first_key_value()?;
        let crowd = self.in_service_count().max(self.capacity);
        if self.capacity == 0 {
            return None;
        }
        let wait = (due.saturating_sub(self.virtual_now) * crowd).div_ceil(self.capacity);
        let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        self.updated_at.checked_add(wait)
    }
}

/// Delays requests as the model computes.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// Nothing is awaited under this lock.
    state: Mutex<CapacityState>,
    /// Notified when a request arrives or leaves, because the next finish changes.
    changed: Notify,
}

#[derive(Debug)]
struct CapacityState {
    sharing: ProcessorSharing,
    waiters: HashMap<u64, oneshot::Sender<()>>,
}

/// A request in service; it leaves when this is dropped.
struct ServiceGuard<'a> {
    capacity: &'a Capacity,
    ticket: u64,
}

impl Drop for ServiceGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.capacity.state();
        state.sharing.depart(time::now(), self.ticket);
        state.waiters.remove(&self.ticket);
        drop(state);
        self.capacity.changed.notify_one();
    }
}

impl Capacity {
    pub(crate) fn new(capacity: NonZeroUsize, service_time: Duration) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(CapacityState {
                sharing: ProcessorSharing::new(time::now(), capacity, service_time),
                waiters: HashMap::new(),
            }),
            changed: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, CapacityState> {
        self.state.lock()
    }

    /// Waits until the request has been served. Cancel safety: a dropped request leaves the model.
    pub(crate) async fn serve(&self) {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.state();
            let ticket = state.sharing.arrive(time::now());
            state.waiters.insert(ticket, sender);
            ticket
        };
        let _served = ServiceGuard {
            capacity: self,
            ticket,
        };
        self.changed.notify_one();
        let _ = receiver.await;
    }

    /// Changes the capacity at each of these times after now. Ends with the last.
    ///
    /// Cancel safety: later changes do not happen.
    pub(crate) async fn follow(&self, changes: &[CapacityChange]) {
        let start = tokio::time::Instant::from_std(time::now());
        for change in changes {
            tokio::time::sleep_until(start + change.after).await;
            self.state()
                .sharing
                .set_capacity(time::now(), change.capacity);
            self.changed.notify_one();
        }
    }

    /// Completes the served requests. Runs forever, once per model. Cancel safety: no state is
    /// lost.
    pub(crate) async fn run(&self) {
        loop {
            let next = {
                let mut state = self.state();
                let now = time::now();
                while let Some(ticket) = state.sharing.pop_finished(now) {
                    if let Some(waiter) = state.waiters.remove(&ticket) {
                        let _ = waiter.send(());
                    }
                }
                state.sharing.next_finish()
            };
            match next {
                Some(next) => {
                    let next = tokio::time::Instant::from_std(next);
                    // An arrival makes the next finish only later; a departure makes it sooner.
                    let _ = tokio::time::timeout_at(next, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capacity, ProcessorSharing};
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "an origin to count from")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn sharing(start: Instant, capacity: usize) -> ProcessorSharing {
        ProcessorSharing::new(start, NonZeroUsize::new(capacity).unwrap(), SECOND)
    }

    #[test]
    fn requests_within_the_capacity_take_the_service_time() {
        let start = origin();
        let mut sharing = sharing(start, 2);
        let first = sharing.arrive(start);
        let second = sharing.arrive(start + SECOND / 2);
        assert_eq!(sharing.next_finish(), Some(start + SECOND));
        assert_eq!(sharing.pop_finished(start + SECOND), Some(first));
        assert_eq!(sharing.pop_finished(start + SECOND), None);
        assert_eq!(sharing.next_finish(), Some(start + SECOND * 3 / 2));
        assert_eq!(sharing.pop_finished(start + SECOND * 3 / 2), Some(second));
        assert_eq!(sharing.next_finish(), None);
    }

    #[test]
    fn four_times_the_capacity_takes_four_times_as_long() {
        let start = origin();
        let mut sharing = sharing(start, 1);
        for _ in 0..4 {
            sharing.arrive(start);
        }
        assert_eq!(sharing.next_finish(), Some(start + SECOND * 4));
        let served = std::iter::from_fn(|| sharing.pop_finished(start + SECOND * 4)).count();
        assert_eq!(served, 4);
    }

    #[test]
    fn a_departing_request_leaves_its_share_to_the_others() {
        let start = origin();
        let mut sharing = sharing(start, 1);
        let first = sharing.arrive(start);
        let second = sharing.arrive(start);
        // A second, shared by two: each has had half of its service.
        sharing.depart(start + SECOND, second);
        assert_eq!(sharing.next_finish(), Some(start + SECOND * 3 / 2));
        assert_eq!(sharing.pop_finished(start + SECOND * 3 / 2), Some(first));
    }

    #[test]
    fn a_change_of_the_capacity_counts_from_its_time_on_and_nothing_is_served_in_a_pause() {
        let start = origin();
        let mut sharing = sharing(start, 2);
        let first = sharing.arrive(start);
        let second = sharing.arrive(start);
        sharing.set_capacity(start + SECOND / 2, 1);
        assert_eq!(sharing.next_finish(), Some(start + SECOND * 3 / 2));
        sharing.set_capacity(start + SECOND, 0);
        assert_eq!(sharing.next_finish(), None);
        assert_eq!(sharing.pop_finished(start + SECOND * 9), None);
        sharing.set_capacity(start + SECOND * 10, 2);
        let end = start + SECOND * 41 / 4;
        assert_eq!(sharing.next_finish(), Some(end));
        assert_eq!(sharing.pop_finished(end), Some(first));
        assert_eq!(sharing.pop_finished(end), Some(second));
        // Nothing is in service while nothing is served.
        sharing.set_capacity(end, 0);
        sharing.set_capacity(end + SECOND, 1);
        assert_eq!(sharing.next_finish(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_as_the_model_computes() {
        let capacity = Capacity::new(NonZeroUsize::MIN, SECOND);
        let driver = tokio::spawn({
            let capacity = Arc::clone(&capacity);
            async move { capacity.run().await }
        });
        let start = crate::time::now();
        let lone = capacity.serve();
        lone.await;
        let alone = crate::time::now() - start;
        tokio::join!(capacity.serve(), capacity.serve(), capacity.serve());
        let together = crate::time::now() - start - alone;
        // Timers have a resolution of one millisecond.
        let grain = Duration::from_millis(2);
        assert!(alone.abs_diff(SECOND) <= grain, "{alone:?}");
        assert!(together.abs_diff(SECOND * 3) <= grain, "{together:?}");
        driver.abort();
    }
}
