//! Every request that a level knows of, from its arrival to the end of its last seat, and the
//! tickets that name them.
//!
//! A slab: slots are used again, so admitting a request allocates nothing once the level has seen
//! as many at a time. A ticket also carries the serial number of its request, so one that is kept
//! too long names nothing, instead of the slot's next tenant.
//!
//! What moves a request from one phase to the next is not decided here.

use std::time::Instant;

use crate::flowcontrol::fairqueuing::seats::SeatSeconds;
use crate::flowcontrol::fairqueuing::seats::WorkEstimate;

/// Slots kept for an idle level; beyond, the memory of a past flood is given back.
const MAX_KEPT_SLOTS: usize = 128;

/// Names one request of one level; worthless once it has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey {
    slot: usize,
    serial: u64,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchPhase {
    /// In its queue.
    Waiting,
    /// Running: it has its seats, and counts as a request.
    Executing {
        /// When it was dispatched.
        since: Instant,
    },
    /// Answered: it still has its seats, but no longer counts as a request.
    Lingering,
}

#[derive(Debug)]
pub(super) struct QueueSetRequest<T> {
    pub(super) payload: T,
    pub(super) phase: DispatchPhase,
    /// The queue it stands in, or is charged to while it has seats. None in a level without queues,
    /// and for a lingering request whose queue was removed.
    pub(super) queue: Option<usize>,
    pub(super) work: WorkEstimate,
    /// Of `work` as it arrived.
    pub(super) total_work: SeatSeconds,
    pub(super) arrived: Instant,
    /// The progress meter when it arrived.
    pub(super) arrived_r: SeatSeconds,
    /// Its neighbours in the queue.
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

    /// The slot of a ticket, if its request is still here.
    pub(super) fn find(&self, ticket: RequestKey) -> Option<usize> {
        let request = self.slots.get(ticket.slot)?.as_ref()?;
        (request.serial == ticket.serial).then_some(ticket.slot)
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

    /// All of them, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &QueueSetRequest<T>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, held)| Some((slot, held.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueueSetRequest<T>> {
        self.slots.iter_mut().flatten()
    }

    #[expect(clippy::indexing_slicing, reason = "as for `at`")]
    fn slot_mut(&mut self, slot: usize) -> &mut Option<QueueSetRequest<T>> {
        &mut self.slots[slot]
    }
}
