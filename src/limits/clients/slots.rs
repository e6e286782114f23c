//! So many at a time for each key, and those who wait in the order of their coming.
//!
//! A key is known only while somebody holds or waits for one of its slots, so there are never more keys than requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::limits::lru::Key;

/// The slots of all keys.
#[derive(Debug)]
pub(super) struct Slots {
    most: usize,
    /// Guards who is there; held for a look.
    keys: Mutex<HashMap<Key, There>>,
}

#[derive(Debug)]
struct There {
    slots: Arc<Semaphore>,
    requests: usize,
}

/// A request that holds a slot or waits for one; gives it back when it is dropped.
#[derive(Debug)]
pub(super) struct Entered {
    of: Arc<Slots>,
    key: Key,
    slots: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub(super) fn new(most: u32) -> Arc<Self> {
        Arc::new(Self {
            most: usize::try_from(most)
                .unwrap_or(Semaphore::MAX_PERMITS)
                .min(Semaphore::MAX_PERMITS),
            keys: Mutex::default(),
        })
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Key, There>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>, key: Key) -> Entered {
        let mut keys = self.keys();
        let there = keys.entry(key).or_insert_with(|| There {
            slots: Arc::new(Semaphore::new(self.most)),
            requests: 0,
        });
        there.requests += 1;
        Entered {
            of: Arc::clone(self),
            key,
            slots: Arc::clone(&there.slots),
            held: None,
        }
    }
}

impl Entered {
    /// Takes a slot if one is free and nobody waits for it. Whether it did.
    pub(super) fn try_take(&mut self) -> bool {
        self.held = Arc::clone(&self.slots).try_acquire_owned().ok();
        self.held.is_some()
    }

    /// Takes a slot when it is this one's turn. Cancel safety: the place in the queue is lost.
    pub(super) async fn take(&mut self) {
        // It is never closed.
        self.held = Arc::clone(&self.slots).acquire_owned().await.ok();
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut keys = self.of.keys();
        if let Some(there) = keys.get_mut(&self.key) {
            there.requests -= 1;
            if there.requests == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::lru::Keys;

    #[test]
    fn a_key_is_known_as_long_as_somebody_is_there() {
        let (slots, key) = (Slots::new(1), Keys::default().joined([&b"a"[..]]));
        let (mut first, mut second) = (slots.enter(key), slots.enter(key));
        assert!(first.try_take());
        assert!(!second.try_take());
        drop(first);
        assert!(second.try_take());
        assert_eq!(slots.keys().len(), 1);
        drop(second);
        assert!(slots.keys().is_empty());
    }

    #[tokio::test]
    async fn who_came_first_is_served_first() {
        let (slots, key) = (Slots::new(1), Keys::default().joined([&b"a"[..]]));
        let mut held = slots.enter(key);
        assert!(held.try_take());
        let (mut second, mut third) = (slots.enter(key), slots.enter(key));
        let mut second_waits = Box::pin(second.take());
        assert!(futures_util::poll!(&mut second_waits).is_pending());
        let mut third_waits = Box::pin(third.take());
        assert!(futures_util::poll!(&mut third_waits).is_pending());
        drop(held);
        assert!(futures_util::poll!(&mut third_waits).is_pending());
        assert!(futures_util::poll!(&mut second_waits).is_ready());
    }
}
