//! A line of waiting requests, oldest first, that any of them can leave at once.
//!
//! The links lie in the requests themselves, so joining, leaving and looking at the oldest take
//! constant time and no memory; sums over the line are kept as it changes, since every arrival asks
//! for the work that waits in each queue of its hand.

use crate::flowcontrol::fairqueuing::queue_set::request_slab::QueueSetRequest;
use crate::flowcontrol::fairqueuing::queue_set::request_slab::RequestSlab;
use crate::flowcontrol::fairqueuing::seats::SeatSeconds;

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

    /// Sum of the initial seats of all in line.
    pub(super) const fn initial_seats(&self) -> u64 {
        self.initial_seats
    }

    /// Sum of the seats that all in line will occupy.
    pub(super) const fn max_seats(&self) -> u64 {
        self.max_seats
    }

    pub(super) const fn total_work(&self) -> SeatSeconds {
        self.total_work
    }

    pub(super) const fn oldest(&self) -> Option<usize> {
        self.oldest
    }

    /// Puts `slot` at the end of the line. It must not be in any line.
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

    /// Takes `slot` out of the line. It must be in this one, and its work as it was when it joined.
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

    /// The line, oldest first.
    pub(super) fn iter<'a, T>(
        &self,
        requests: &'a RequestSlab<T>,
    ) -> impl Iterator<Item = (usize, &'a QueueSetRequest<T>)> {
        std::iter::successors(self.oldest, |&slot| requests.at(slot).newer)
            .map(|slot| (slot, requests.at(slot)))
    }
}
