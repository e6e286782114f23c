//! What waits to be written, notes for the audit log and lines of the log: bounded by the memory that it takes, and never waited
//! for by who brings some.
//!
//! Who writes them takes all at once, and then lets a moment pass in which notes gather: in a storm nobody is woken up for each
//! of them.

use std::mem;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

/// Notes of several hundred bytes gather for so long; who looks at the log with his own eyes does not see it.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// Between those who bring notes and the one who writes them. The lock is held for a few instructions, whoever holds it.
#[derive(Debug)]
pub(super) struct BoundedQueue<T> {
    max_bytes: usize,
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<T> {
    items: Vec<(T, usize)>,
    /// What they weigh, with those that are being written.
    used_bytes: usize,
    /// The writer is to be woken up by the next note.
    consumer_asleep: bool,
    closed: bool,
}

impl<T> BoundedQueue<T> {
    /// For notes that weigh no more than `most` together.
    pub(super) fn new(most: usize) -> Self {
        Self {
            max_bytes: most,
            state: Mutex::new(QueueState {
                items: Vec::new(),
                used_bytes: 0,
                consumer_asleep: false,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whether there was room for the note.
    pub(super) fn try_push(&self, note: T, weight: usize) -> bool {
        let mut waiting = self.lock();
        let together = waiting.used_bytes.saturating_add(weight);
        if together > self.max_bytes || waiting.closed {
            return false;
        }
        let half = self.max_bytes / 2;
        let fills = waiting.used_bytes <= half && together > half;
        waiting.used_bytes = together;
        waiting.items.push((note, weight));
        let wake = mem::take(&mut waiting.consumer_asleep) || fills;
        drop(waiting);
        if wake {
            self.changed.notify_one();
        }
        true
    }

    /// Takes what there is, or what comes. `false` when nothing more will.
    pub(super) fn pop_all(&self, notes: &mut Vec<(T, usize)>) -> bool {
        let half = self.max_bytes / 2;
        let gathering = |waiting: &mut QueueState<T>| !waiting.closed && waiting.used_bytes <= half;
        let gathered = self
            .changed
            .wait_timeout_while(self.lock(), BATCH_DELAY, gathering);
        let (mut waiting, _) = gathered.unwrap_or_else(PoisonError::into_inner);
        while waiting.items.is_empty() && !waiting.closed {
            waiting.consumer_asleep = true;
            let woken = self.changed.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        waiting.consumer_asleep = false;
        mem::swap(&mut waiting.items, notes);
        !notes.is_empty()
    }

    /// Notes of this weight have been written.
    pub(super) fn release(&self, weight: usize) {
        let mut waiting = self.lock();
        waiting.used_bytes = waiting.used_bytes.saturating_sub(weight);
    }

    /// No more notes are taken; those that are there can still be written.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn an_item_over_the_limit_is_rejected_until_space_is_released() {
        let buffer = BoundedQueue::new(10);
        assert!(buffer.try_push("a", 6));
        assert!(!buffer.try_push("b", 5));
        assert!(buffer.try_push("c", 4));
        let mut taken = Vec::new();
        assert!(buffer.pop_all(&mut taken));
        assert_eq!(taken, [("a", 6), ("c", 4)]);
        // It is still in memory.
        assert!(!buffer.try_push("d", 1));
        buffer.release(6);
        assert!(buffer.try_push("e", 6));
    }

    #[test]
    fn items_before_close_are_delivered_and_later_ones_are_rejected() {
        let buffer = BoundedQueue::new(10);
        assert!(buffer.try_push(1, 1));
        buffer.close();
        assert!(!buffer.try_push(2, 1));
        let mut taken = Vec::new();
        assert!(buffer.pop_all(&mut taken));
        assert_eq!(taken, [(1, 1)]);
        taken.clear();
        assert!(!buffer.pop_all(&mut taken));
    }

    #[test]
    fn many_producers_and_one_consumer_lose_no_item() {
        const ITEMS_PER_PRODUCER: u64 = 20_000;
        let buffer = Arc::new(BoundedQueue::new(usize::MAX));
        let bringing: Vec<_> = (0..4)
            .map(|_| {
                let buffer = Arc::clone(&buffer);
                thread::spawn(move || {
                    (1..=ITEMS_PER_PRODUCER).for_each(|n| assert!(buffer.try_push(n, 1)))
                })
            })
            .collect();
        let taking = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                let (mut sum, mut taken) = (0, Vec::new());
                while buffer.pop_all(&mut taken) {
                    sum += taken.drain(..).map(|(n, _)| n).sum::<u64>();
                }
                sum
            })
        };
        bringing
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        buffer.close();
        assert_eq!(
            taking.join().unwrap(),
            4 * ITEMS_PER_PRODUCER * (ITEMS_PER_PRODUCER + 1) / 2
        );
    }
}
