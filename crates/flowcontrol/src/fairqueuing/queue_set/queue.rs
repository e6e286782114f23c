//! One queue: its waiting requests, its counts, and the virtual time of its next dispatch.

use crate::fairqueuing::queue_set::fifo::Fifo;
use crate::fairqueuing::queue_set::request_slab::RequestSlab;
use crate::fairqueuing::seats::{ESTIMATED_SERVICE_DURATION, SeatSeconds};

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) waiting: Fifo,
    /// The virtual start of the next request to be dispatched: the service that this queue has
    /// received so far, on the scale of the level's R.
    pub(super) next_dispatch_r: SeatSeconds,
    pub(super) requests_executing: usize,
    /// The seats of executing and lingering requests.
    pub(super) seats_in_use: u64,
}

impl Queue {
    /// Whether virtual time passes for the queue. Lingering seats do not keep a queue active.
    pub(super) const fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.requests_executing > 0
    }

    /// Raises the virtual start of the oldest waiting request to its arrival, so that a queue
    /// cannot save up service for a burst: the anti-windup of KEP-1040.
    pub(super) fn bound_next_dispatch_r<T>(&mut self, requests: &RequestSlab<T>) {
        if let Some(oldest) = self.waiting.oldest() {
            self.next_dispatch_r = self.next_dispatch_r.max(requests.at(oldest).arrived_r);
        }
    }

    /// `next_dispatch_r` less the expected work of the seats in use.
    pub(super) fn discounted_s(&self) -> SeatSeconds {
        let per_seat = SeatSeconds::from_seats(1.0, ESTIMATED_SERVICE_DURATION).units();
        let expected = SeatSeconds::from_units(per_seat.wrapping_mul(self.seats_in_use));
        self.next_dispatch_r.wrapping_sub(expected)
    }
}
