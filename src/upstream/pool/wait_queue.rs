//! The requests that wait for an HTTP/2 stream, one queue for each requester.
//!
//! Requesters take turns: a user with a thousand waiting requests delays the request of another by one stream, not by a
//! thousand. Where the queue is full, the requester with the most waiting requests loses its newest.
//!
//! A waiter that is woken has the *turn*: it tries for a stream, and queues again where it gets none. A waiter that is
//! dropped passes its turn on.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::upstream::connection::error::ForwardError;
use crate::upstream::requester::SlotHolder;
use weir_base::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use weir_base::sync::{Mutex, Notify};
use weir_limits::throttling::round_robin::RoundRobin;

/// Most requests of a class that wait for an HTTP/2 stream or for the first connection.
pub(crate) const MAX_WAITING: usize = 1024;

const QUEUED: u8 = 0;
const TURN: u8 = 1;
const EVICTED: u8 = 2;
/// The request has its stream.
const SERVED: u8 = 3;

/// The requests of a class that wait for a stream or for the first connection.
#[derive(Default)]
pub(crate) struct WaitQueue {
    queues: Mutex<QueuedWaiters>,
    /// How many are queued. Read without the lock by every request.
    len: AtomicUsize,
}

#[derive(Default)]
struct QueuedWaiters {
    /// The requests of a requester are in the order of their arrival, also after a requeue.
    by_requester: RoundRobin<SlotHolder, BTreeMap<u64, Arc<Waiter>>>,
    next_id: u64,
}

struct Waiter {
    state: AtomicU8,
    woken: Notify,
}

/// A waiting request. Dropping it leaves the queue, or passes its turn on.
pub(crate) struct PoolWaiter<'a> {
    queue: &'a WaitQueue,
    requester: SlotHolder,
    id: u64,
    waiter: Arc<Waiter>,
}

impl WaitQueue {
    /// Whether no request waits. A request that arrives must not overtake the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Queues a request of `requester`, and wakes the next in turn, which may be this one: it finds a stream that was
    /// freed without a wake-up.
    ///
    /// # Errors
    /// The queue is full, and no requester has more waiting requests than this one.
    pub(crate) fn enter(&self, requester: SlotHolder) -> Result<PoolWaiter<'_>, ForwardError> {
        let waiter = Arc::new(Waiter {
            state: AtomicU8::new(QUEUED),
            woken: Notify::new(),
        });
        let id = {
            let mut queues = self.queues.lock();
            if self.len.load(Ordering::Acquire) >= MAX_WAITING
                && !self.evict(&mut queues, &requester)
            {
                return Err(ForwardError::TooManyWaiting(MAX_WAITING));
            }
            let id = queues.next_id;
            queues.next_id += 1;
            self.insert(&mut queues, &requester, id, &waiter);
            id
        };
        self.wake_next();
        Ok(PoolWaiter {
            queue: self,
            requester,
            id,
            waiter,
        })
    }

    /// Wakes the first request of the requester whose turn it is.
    pub(crate) fn wake_next(&self) {
        let woken = self.take_next(&mut self.queues.lock());
        if let Some(waiter) = woken {
            waiter.woken.notify_one();
        }
    }

    /// Wakes all requests, in the order of their turns.
    pub(crate) fn wake_all(&self) {
        let mut queues = self.queues.lock();
        let mut woken = Vec::with_capacity(self.len.load(Ordering::Acquire));
        while let Some(waiter) = self.take_next(&mut queues) {
            woken.push(waiter);
        }
        drop(queues);
        for waiter in woken {
            waiter.woken.notify_one();
        }
    }

    fn insert(
        &self,
        queues: &mut QueuedWaiters,
        requester: &SlotHolder,
        id: u64,
        waiter: &Arc<Waiter>,
    ) {
        let waiting = queues.by_requester.queue_of(requester.clone());
        waiting.insert(id, Arc::clone(waiter));
        self.len.fetch_add(1, Ordering::AcqRel);
    }

    fn take_next(&self, queues: &mut QueuedWaiters) -> Option<Arc<Waiter>> {
        let (_, waiter) = queues.by_requester.take_next(BTreeMap::pop_first)?;
        self.len.fetch_sub(1, Ordering::AcqRel);
        waiter.state.store(TURN, Ordering::Release);
        Some(waiter)
    }

    /// Evicts the newest request of the requester with the most. Returns whether there was one with more than
    /// `newcomer` has.
    fn evict(&self, queues: &mut QueuedWaiters, newcomer: &SlotHolder) -> bool {
        let queues = &mut queues.by_requester;
        let own = queues.len_of(newcomer);
        let longest = queues.longest().filter(|(_, length)| *length > own + 1);
        let Some(requester) = longest.map(|(requester, _)| requester.clone()) else {
            return false;
        };
        let Some((_, waiter)) = queues.take_of(&requester, BTreeMap::pop_last) else {
            return false;
        };
        self.len.fetch_sub(1, Ordering::AcqRel);
        waiter.state.store(EVICTED, Ordering::Release);
        waiter.woken.notify_one();
        true
    }

    /// Removes a queued request. Returns whether it was queued.
    fn remove(&self, requester: &SlotHolder, id: u64) -> bool {
        let mut queues = self.queues.lock();
        let removed = queues
            .by_requester
            .take_of(requester, |waiting| waiting.remove(&id))
            .is_some();
        if removed {
            self.len.fetch_sub(1, Ordering::AcqRel);
        }
        removed
    }
}

impl PoolWaiter<'_> {
    /// Waits until this request has the turn.
    ///
    /// # Errors
    /// It was evicted: the queue is full, and its requester had the most waiting requests.
    ///
    /// # Cancel safety
    /// Nothing is lost: the turn stays with this request until it is dropped.
    pub(crate) async fn turn(&self) -> Result<(), ForwardError> {
        loop {
            match self.waiter.state.load(Ordering::Acquire) {
                TURN => return Ok(()),
                EVICTED => return Err(ForwardError::TooManyWaiting(MAX_WAITING)),
                _ => self.waiter.woken.notified().await,
            }
        }
    }

    /// Queues again, where there was no stream: before the later requests of the same requester.
    pub(crate) fn requeue(&self) {
        let mut queues = self.queue.queues.lock();
        self.waiter.state.store(QUEUED, Ordering::Release);
        self.queue
            .insert(&mut queues, &self.requester, self.id, &self.waiter);
    }

    /// The request has its stream: its turn is used.
    pub(crate) fn complete(self) {
        self.waiter.state.store(SERVED, Ordering::Release);
    }
}

impl Drop for PoolWaiter<'_> {
    fn drop(&mut self) {
        let queued = self.queue.remove(&self.requester, self.id);
        if !queued && self.waiter.state.load(Ordering::Acquire) == TURN {
            self.queue.wake_next();
        }
    }
}

#[cfg(test)]
#[path = "wait_queue_tests.rs"]
mod tests;
