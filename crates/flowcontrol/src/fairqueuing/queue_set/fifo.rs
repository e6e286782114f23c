//! A queue of waiting requests, oldest first, that any request can leave in constant time.
//!
//! The links are in the requests themselves, so joining, leaving and reading the oldest take
//! constant time and no memory. The sums over the queue are maintained incrementally, because every
//! arrival reads the waiting work of each queue of its hand.

use crate::fairqueuing::queue_set::request_slab::{QueueSetRequest, RequestSlab};
use crate::fairqueuing::seats::SeatSeconds;

#[derive(Debug, Default)]
pub(super) struct Fifo {
    oldest: Option<usize>,
    newest: Option<usize>,
    len: usize,
    initial_seats: u64,
    max_seats: u64,
    total_work: SeatSeconds,
}

impl Fifo {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sum of the initial seats of all requests in the queue.
    pub(super) const fn initial_seats(&self) -> u64 {
        self.initial_seats
    }

    /// The sum of the seats that all requests in the queue will occupy.
    pub(super) const fn max_seats(&self) -> u64 {
        self.max_seats
    }

    pub(super) const fn total_work(&self) -> SeatSeconds {
        self.total_work
    }

    pub(super) const fn oldest(&self) -> Option<usize> {
        self.oldest
    }

    /// Appends `slot` to the queue. It must not be in any queue.
    pub(super) fn push<T>(&mut self, requests: &mut RequestSlab<T>, slot: usize) {
        let request = requests.at_mut(slot);
        (request.older, request.newer) = (self.newest, None);
        self.len += 1;
        self.initial_seats += u64::from(request.work.initial_seats);
        self.max_seats += request.seats();
        self.total_work = self.total_work.wrapping_add(request.total_work);
        match self.newest.replace(slot) {
            Some(before) => requests.at_mut(before).newer = Some(slot),
            None => self.oldest = Some(slot),
        }
    }

    /// Removes `slot` from the queue. It must be in this one, with the same work as when it joined.
    pub(super) fn remove<T>(&mut self, requests: &mut RequestSlab<T>, slot: usize) {
        let request = requests.at_mut(slot);
        let (older, newer) = (request.older.take(), request.newer.take());
        self.len -= 1;
        self.initial_seats -= u64::from(request.work.initial_seats);
        self.max_seats -= request.seats();
        self.total_work = self.total_work.wrapping_sub(request.total_work);
        match older {
            Some(older) => requests.at_mut(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => requests.at_mut(newer).older = older,
            None => self.newest = older,
        }
    }

    /// The queue, oldest first.
    pub(super) fn iter<'a, T>(
        &self,
        requests: &'a RequestSlab<T>,
    ) -> impl Iterator<Item = (usize, &'a QueueSetRequest<T>)> {
        std::iter::successors(self.oldest, |&slot| requests.at(slot).newer)
            .map(|slot| (slot, requests.at(slot)))
    }
}
