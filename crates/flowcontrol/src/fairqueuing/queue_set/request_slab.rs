//! All requests of a level, from their arrival to the release of their seats, and the keys that
//! identify them.
//!
//! Slots are reused, so that admitting a request allocates nothing once the level has had as many
//! requests at a time. A key also contains the serial number of its request. A stale key identifies
//! no request, instead of the next request in its slot.
//!
//! The [`QueueSet`](super::QueueSet) moves requests from one phase to the next.

use std::time::Instant;

use crate::fairqueuing::seats::{SeatSeconds, WorkEstimate};

/// The slots that an idle level keeps. Beyond that, the memory of a past flood is released.
const MAX_KEPT_SLOTS: usize = 128;

/// Identifies one request of one level. Invalid once the request is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    slot: usize,
    serial: u64,
}

/// The phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchPhase {
    /// The request is in its queue.
    Waiting,
    /// The request has its seats and counts as executing.
    Executing {
        /// The time of dispatch.
        since: Instant,
    },
    /// The request is answered. It still has its seats, but no longer counts as executing.
    Lingering,
}

#[derive(Debug)]
pub(super) struct QueueSetRequest<T> {
    pub(super) payload: T,
    pub(super) phase: DispatchPhase,
    /// The queue that the request waits in, or that is charged while it has seats. `None` in a
    /// level without queues, and for a lingering request whose queue was removed.
    pub(super) queue: Option<usize>,
    pub(super) work: WorkEstimate,
    /// The total work as estimated at arrival.
    pub(super) total_work: SeatSeconds,
    pub(super) arrived: Instant,
    /// The level's R at arrival.
    pub(super) arrived_r: SeatSeconds,
    /// The neighbours in the queue.
    pub(super) older: Option<usize>,
    pub(super) newer: Option<usize>,
    serial: u64,
}

#[derive(Debug)]
pub(super) struct RequestSlab<T> {
    slots: Vec<Option<QueueSetRequest<T>>>,
    vacant_slots: Vec<usize>,
    last_serial: u64,
}

impl<T> QueueSetRequest<T> {
    pub(super) fn new(payload: T, work: WorkEstimate, now: Instant, r: SeatSeconds) -> Self {
        Self {
            payload,
            phase: DispatchPhase::Waiting,
            queue: None,
            work,
            total_work: work.total_work(),
            arrived: now,
            arrived_r: r,
            older: None,
            newer: None,
            serial: 0,
        }
    }

    pub(super) fn seats(&self) -> u64 {
        u64::from(self.work.max_seats())
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.phase == DispatchPhase::Waiting
    }
}

impl<T> RequestSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant_slots: Vec::new(),
            last_serial: 0,
        }
    }

    pub(super) fn insert(&mut self, mut request: QueueSetRequest<T>) -> usize {
        self.last_serial += 1;
        request.serial = self.last_serial;
        if let Some(slot) = self.vacant_slots.pop() {
            *self.slot_mut(slot) = Some(request);
            slot
        } else {
            self.slots.push(Some(request));
            self.slots.len() - 1
        }
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<QueueSetRequest<T>> {
        let request = self.slot_mut(slot).take()?;
        self.vacant_slots.push(slot);
        if self.is_empty() && self.slots.len() > MAX_KEPT_SLOTS {
            (self.slots, self.vacant_slots) = (Vec::new(), Vec::new());
        }
        Some(request)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.vacant_slots.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity() + self.vacant_slots.capacity()
    }

    /// The slot of a key, if its request is still there.
    pub(super) fn find(&self, key: RequestKey) -> Option<usize> {
        let request = self.slots.get(key.slot)?.as_ref()?;
        (request.serial == key.serial).then_some(key.slot)
    }

    pub(super) fn key(&self, slot: usize) -> RequestKey {
        RequestKey {
            slot,
            serial: self.at(slot).serial,
        }
    }

    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots come from `insert`, `find` and the queues, which forget a slot before `remove`"
    )]
    pub(super) fn at(&self, slot: usize) -> &QueueSetRequest<T> {
        self.slots[slot].as_ref().expect("a slot in use")
    }

    #[expect(clippy::expect_used, reason = "as for `at`")]
    pub(super) fn at_mut(&mut self, slot: usize) -> &mut QueueSetRequest<T> {
        self.slot_mut(slot).as_mut().expect("a slot in use")
    }

    /// All requests, in unspecified order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &QueueSetRequest<T>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, request)| Some((slot, request.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueueSetRequest<T>> {
        self.slots.iter_mut().flatten()
    }

    #[expect(clippy::indexing_slicing, reason = "as for `at`")]
    fn slot_mut(&mut self, slot: usize) -> &mut Option<QueueSetRequest<T>> {
        &mut self.slots[slot]
    }
}
