//! A queue of audit entries or log lines that wait to be written. It is bounded by bytes, and
//! producers never wait.
//!
//! The consumer takes all items at once, after a short delay in which items gather: in a burst the
//! thread is not woken for each item.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::mem;
use std::time::Duration;

/// Items of several hundred bytes gather for this long. A reader of the log does not notice the
/// delay.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// A queue between many producers and one consumer. The lock is held for a few instructions only.
#[derive(Debug)]
pub(super) struct BoundedQueue<T> {
    max_bytes: usize,
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<T> {
    items: Vec<(T, usize)>,
    /// Weight of the items, including those that the consumer is writing.
    used_bytes: usize,
    /// The next push must wake the consumer.
    consumer_asleep: bool,
    closed: bool,
    /// The consumer is to look at something else than items.
    woken: bool,
}

impl<T> BoundedQueue<T> {
    /// Creates a queue for items of at most `max_bytes` together.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            state: Mutex::new(QueueState {
                items: Vec::new(),
                used_bytes: 0,
                consumer_asleep: false,
                closed: false,
                woken: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds an item. Returns `false` if there is no room for it or the queue is closed.
    pub(super) fn try_push(&self, item: T, weight: usize) -> bool {
        let mut state = self.lock();
        let used = state.used_bytes.saturating_add(weight);
        if used > self.max_bytes || state.closed {
            return false;
        }
        let half = self.max_bytes / 2;
        let exceeds_half = state.used_bytes <= half && used > half;
        state.used_bytes = used;
        state.items.push((item, weight));
        let wake = mem::take(&mut state.consumer_asleep) || exceeds_half;
        drop(state);
        if wake {
            self.changed.notify_one();
        }
        true
    }

    /// Takes all items, or waits for some. After [`wake`](Self::wake) there may be none. Returns
    /// `false` when the queue is closed and empty.
    pub(super) fn pop_all(&self, items: &mut Vec<(T, usize)>) -> bool {
        let half = self.max_bytes / 2;
        let is_gathering = |state: &mut QueueState<T>| !state.closed && state.used_bytes <= half;
        let mut state = self.lock();
        self.changed
            .wait_while_for(&mut state, is_gathering, BATCH_DELAY);
        while state.items.is_empty() && !state.closed && !state.woken {
            state.consumer_asleep = true;
            self.changed.wait(&mut state);
        }
        state.consumer_asleep = false;
        mem::swap(&mut state.items, items);
        mem::take(&mut state.woken) || !items.is_empty()
    }

    /// Wakes the consumer, although there may be no items.
    pub(super) fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_one();
    }

    /// Takes all items, or waits for some until `limit` has passed. Returns `false` when the queue is
    /// closed and empty.
    pub(super) fn pop_all_within(&self, items: &mut Vec<(T, usize)>, limit: Duration) -> bool {
        let half = self.max_bytes / 2;
        let is_gathering = |state: &mut QueueState<T>| !state.closed && state.used_bytes <= half;
        let mut state = self.lock();
        self.changed
            .wait_while_for(&mut state, is_gathering, BATCH_DELAY);
        if state.items.is_empty() && !state.closed {
            state.consumer_asleep = true;
            self.changed.wait_for(&mut state, limit);
        }
        state.consumer_asleep = false;
        mem::swap(&mut state.items, items);
        !items.is_empty() || !state.closed
    }

    /// Frees the weight of items that have been written.
    pub(super) fn release(&self, weight: usize) {
        let mut state = self.lock();
        state.used_bytes = state.used_bytes.saturating_sub(weight);
    }

    /// Rejects further items. Queued items can still be taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn an_item_over_the_limit_is_rejected_until_space_is_released() {
        let queue = BoundedQueue::new(10);
        assert!(queue.try_push("a", 6));
        assert!(!queue.try_push("b", 5));
        assert!(queue.try_push("c", 4));
        let mut taken = Vec::new();
        assert!(queue.pop_all(&mut taken));
        assert_eq!(taken, [("a", 6), ("c", 4)]);
        // It is still in memory.
        assert!(!queue.try_push("d", 1));
        queue.release(6);
        assert!(queue.try_push("e", 6));
    }

    #[test]
    fn items_before_close_are_delivered_and_later_ones_are_rejected() {
        let queue = BoundedQueue::new(10);
        assert!(queue.try_push(1, 1));
        queue.close();
        assert!(!queue.try_push(2, 1));
        let mut taken = Vec::new();
        assert!(queue.pop_all(&mut taken));
        assert_eq!(taken, [(1, 1)]);
        taken.clear();
        assert!(!queue.pop_all(&mut taken));
    }

    #[test]
    fn a_limited_wait_ends_without_items_until_the_queue_is_closed() {
        let (queue, mut taken) = (BoundedQueue::<&str>::new(10), Vec::new());
        assert!(queue.pop_all_within(&mut taken, Duration::from_millis(1)));
        assert!(taken.is_empty());
        assert!(
            queue.try_push("a", 0),
            "an item without a weight always fits"
        );
        queue.close();
        assert!(queue.pop_all_within(&mut taken, Duration::MAX));
        assert_eq!(taken, [("a", 0)]);
        taken.clear();
        assert!(!queue.pop_all_within(&mut taken, Duration::MAX));
    }

    #[test]
    fn many_producers_and_one_consumer_lose_no_item() {
        const ITEMS_PER_PRODUCER: u64 = 20_000;
        let queue = Arc::new(BoundedQueue::new(usize::MAX));
        let producers: Vec<_> = (0..4)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    (1..=ITEMS_PER_PRODUCER).for_each(|n| assert!(queue.try_push(n, 1)))
                })
            })
            .collect();
        let consumer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let (mut sum, mut taken) = (0, Vec::new());
                while queue.pop_all(&mut taken) {
                    sum += taken.drain(..).map(|(n, _)| n).sum::<u64>();
                }
                sum
            })
        };
        producers
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        queue.close();
        assert_eq!(
            consumer.join().unwrap(),
            4 * ITEMS_PER_PRODUCER * (ITEMS_PER_PRODUCER + 1) / 2
        );
    }
}
