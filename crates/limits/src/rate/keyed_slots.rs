//! A limit of concurrent requests for each key, with a queue in the order of arrival. Keys take no
//! turns, since no two of them wait for the same slot.
//!
//! A key is tracked only while a request holds a slot of it or waits for one, so there are never
//! more keys than requests.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::rate::lru_key::LruKey;

/// The slots of all keys.
#[derive(Debug)]
pub(super) struct KeyedSlots {
    slots_per_key: usize,
    /// Locked for one lookup.
    semaphores: Mutex<HashMap<LruKey, KeySemaphore>>,
}

#[derive(Debug)]
struct KeySemaphore {
    semaphore: Arc<Semaphore>,
    request_count: usize,
}

/// A request that holds a slot or waits for one. Drop releases the slot.
#[derive(Debug)]
pub(super) struct KeyedSlotHandle {
    slots: Arc<KeyedSlots>,
    key: LruKey,
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl KeyedSlots {
    pub(super) fn new(slots_per_key: u32) -> Arc<Self> {
        Arc::new(Self {
            slots_per_key: usize::try_from(slots_per_key)
                .unwrap_or(Semaphore::MAX_PERMITS)
                .min(Semaphore::MAX_PERMITS),
            semaphores: Mutex::default(),
        })
    }

    fn lock_semaphores(&self) -> MutexGuard<'_, HashMap<LruKey, KeySemaphore>> {
        self.semaphores.lock()
    }

    pub(super) fn handle(self: &Arc<Self>, key: LruKey) -> KeyedSlotHandle {
        let mut keys = self.lock_semaphores();
        let entry = keys.entry(key).or_insert_with(|| KeySemaphore {
            semaphore: Arc::new(Semaphore::new(self.slots_per_key)),
            request_count: 0,
        });
        entry.request_count += 1;
        KeyedSlotHandle {
            slots: Arc::clone(self),
            key,
            semaphore: Arc::clone(&entry.semaphore),
            permit: None,
        }
    }
}

impl KeyedSlotHandle {
    /// Acquires a slot if one is free and no request waits for it. Returns whether it did.
    pub(super) fn try_acquire(&mut self) -> bool {
        self.permit = Arc::clone(&self.semaphore).try_acquire_owned().ok();
        self.permit.is_some()
    }

    /// Waits for a slot.
    ///
    /// # Cancel safety
    /// The place in the queue is lost.
    pub(super) async fn acquire(&mut self) {
        // The semaphore is never closed.
        self.permit = Arc::clone(&self.semaphore).acquire_owned().await.ok();
    }
}

impl Drop for KeyedSlotHandle {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut keys = self.slots.lock_semaphores();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.request_count -= 1;
            if entry.request_count == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::lru_key::LruKeyHasher;

    #[test]
    fn a_key_is_removed_with_its_last_handle() {
        let (slots, key) = (
            KeyedSlots::new(1),
            LruKeyHasher::default().hash_joined([&b"a"[..]]),
        );
        let (mut first, mut second) = (slots.handle(key), slots.handle(key));
        assert!(first.try_acquire());
        assert!(!second.try_acquire());
        drop(first);
        assert!(second.try_acquire());
        assert_eq!(slots.lock_semaphores().len(), 1);
        drop(second);
        assert!(slots.lock_semaphores().is_empty());
    }

    #[tokio::test]
    async fn slots_are_granted_in_order_of_arrival() {
        let (slots, key) = (
            KeyedSlots::new(1),
            LruKeyHasher::default().hash_joined([&b"a"[..]]),
        );
        let mut held = slots.handle(key);
        assert!(held.try_acquire());
        let (mut second, mut third) = (slots.handle(key), slots.handle(key));
        let mut second_waits = Box::pin(second.acquire());
        assert!(futures_util::poll!(&mut second_waits).is_pending());
        let mut third_waits = Box::pin(third.acquire());
        assert!(futures_util::poll!(&mut third_waits).is_pending());
        drop(held);
        assert!(futures_util::poll!(&mut third_waits).is_pending());
        assert!(futures_util::poll!(&mut second_waits).is_ready());
    }
}
