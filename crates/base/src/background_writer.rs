//! A thread that writes what others put into its queue: the audit log, weir's own log, the record.
//! The queue is bounded by bytes, and producers never wait: what does not fit is theirs to count.
//!
//! The thread takes all items at once, after a short delay in which items gather: in a burst it is
//! not woken for each item.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, mem, thread};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Items of several hundred bytes gather for this long. A reader of the log does not notice the
/// delay.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// Bytes per write, about.
pub const WRITE_BYTES: usize = 64 * 1024;

/// What the thread does with the items. It may block.
pub trait WriterTask: Send + 'static {
    /// What is put into the queue.
    type Item: Send + 'static;

    /// The longest time without items before the next `flush`.
    fn pause(&self) -> Duration {
        Duration::MAX
    }

    /// Some items follow, or the pause has passed.
    fn begin(&mut self) {}

    /// Takes an item. Returns whether there is enough to write.
    fn add(&mut self, item: Self::Item) -> bool;

    /// Writes what was added. Then the memory of the items is free for others.
    fn flush(&mut self);

    /// The queue is closed, and everything is flushed.
    fn end(&mut self) {}
}

/// The queue of a thread, which is closed when this is dropped.
pub struct BackgroundWriter<T> {
    queue: Arc<BoundedQueue<T>>,
    /// The sender is dropped when everything is written.
    done: Mutex<Option<oneshot::Receiver<()>>>,
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// A queue for items of at most `max_bytes` together, without a thread.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            queue: Arc::new(BoundedQueue::new(max_bytes)),
            done: Mutex::default(),
        }
    }

    /// Starts the thread. To be called once.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(&self, name: &str, task: impl WriterTask<Item = T>) -> io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let (done, receiver) = oneshot::channel();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                run(&queue, task);
                drop(done);
            })?;
        *self.done.lock() = Some(receiver);
        Ok(())
    }

    /// Adds an item. Returns `false` if there is no room for it or the queue is closed. An item
    /// without a weight always fits.
    pub fn try_push(&self, item: T, weight: usize) -> bool {
        self.queue.try_push(item, weight)
    }

    /// Rejects further items. The thread ends when it has written the others.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Closes the queue and waits until its items are written, but at most `limit`. Returns whether
    /// they are.
    ///
    /// # Cancel safety
    /// The thread goes on writing.
    pub async fn finish(&self, limit: Duration) -> bool {
        self.close();
        let done = self.done.lock().take();
        match done {
            Some(done) => timeout(limit, done).await.is_ok(),
            None => true,
        }
    }
}

impl<T> Drop for BackgroundWriter<T> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl<T> fmt::Debug for BackgroundWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundWriter").finish_non_exhaustive()
    }
}

/// Writes until the queue is closed and empty.
fn run<W: WriterTask>(queue: &BoundedQueue<W::Item>, mut task: W) {
    let mut items = Vec::new();
    while queue.pop_all(&mut items, task.pause()) {
        task.begin();
        let mut weight = 0;
        for (item, added) in items.drain(..) {
            weight += added;
            if task.add(item) {
                task.flush();
                queue.release(mem::take(&mut weight));
            }
        }
        task.flush();
        queue.release(weight);
    }
    task.end();
}

/// A queue between many producers and one consumer. The lock is held for a few instructions only.
struct BoundedQueue<T> {
    max_bytes: usize,
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    items: Vec<(T, usize)>,
    /// Weight of the items, including those that the consumer is writing.
    used_bytes: usize,
    /// The next push must wake the consumer.
    consumer_asleep: bool,
    closed: bool,
}

impl<T> BoundedQueue<T> {
    fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            state: Mutex::new(QueueState {
                items: Vec::new(),
                used_bytes: 0,
                consumer_asleep: false,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn try_push(&self, item: T, weight: usize) -> bool {
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

    /// Takes all items, or waits for some until `limit` has passed. Returns `false` when the queue is
    /// closed and empty.
    fn pop_all(&self, items: &mut Vec<(T, usize)>, limit: Duration) -> bool {
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
    fn release(&self, weight: usize) {
        let mut state = self.lock();
        state.used_bytes = state.used_bytes.saturating_sub(weight);
    }

    /// Rejects further items. Queued items can still be taken.
    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_over_the_limit_is_rejected_until_space_is_released() {
        let queue = BoundedQueue::new(10);
        assert!(queue.try_push("a", 6));
        assert!(!queue.try_push("b", 5));
        assert!(queue.try_push("c", 4));
        let mut taken = Vec::new();
        assert!(queue.pop_all(&mut taken, Duration::MAX));
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
        assert!(queue.pop_all(&mut taken, Duration::MAX));
        assert_eq!(taken, [(1, 1)]);
        taken.clear();
        assert!(!queue.pop_all(&mut taken, Duration::MAX));
    }

    #[test]
    fn a_limited_wait_ends_without_items_until_the_queue_is_closed() {
        let (queue, mut taken) = (BoundedQueue::<&str>::new(10), Vec::new());
        assert!(queue.pop_all(&mut taken, Duration::from_millis(1)));
        assert!(taken.is_empty());
        assert!(
            queue.try_push("a", 0),
            "an item without a weight always fits"
        );
        queue.close();
        assert!(queue.pop_all(&mut taken, Duration::MAX));
        assert_eq!(taken, [("a", 0)]);
        taken.clear();
        assert!(!queue.pop_all(&mut taken, Duration::MAX));
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
                while queue.pop_all(&mut taken, Duration::MAX) {
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
