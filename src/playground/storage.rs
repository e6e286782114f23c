//! The store behind its lock, and the bell that rings for watchers.

use crate::playground::objects::resources::Kind;
use crate::playground::objects::store::Store;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use tokio::sync::watch;

/// All objects, shared.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Nothing is awaited under this lock.
    store: Mutex<Store>,
    /// One a kind: the version of its newest change.
    changed: Vec<watch::Sender<u64>>,
}

impl Storage {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            changed: Kind::ALL
                .map(|_| watch::Sender::new(store.version()))
                .into(),
            store: Mutex::new(store),
        }
    }

    /// For reading.
    pub(crate) fn read(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to objects of `kind` and tells the watchers, after the lock is given back.
    pub(crate) fn write<T>(&self, kind: Kind, write: impl FnOnce(&mut Store) -> T) -> T {
        let (result, before, after) = {
            let mut store = self.read();
            let before = store.version();
            let result = write(&mut store);
            (result, before, store.version())
        };
        if before != after {
            self.ring(kind, after);
        }
        result
    }

    fn ring(&self, kind: Kind, version: u64) {
        if let Some(changed) = self.changed.get(kind.index()) {
            changed.send_replace(version);
        }
    }

    /// Rings for every kind: a write touched more than one.
    pub(crate) fn ring_all(&self) {
        let version = self.read().version();
        for kind in Kind::ALL {
            self.ring(kind, version);
        }
    }

    /// Rings whenever an object of `kind` has changed.
    pub(crate) fn bell(&self, kind: Kind) -> Option<watch::Receiver<u64>> {
        self.changed.get(kind.index()).map(watch::Sender::subscribe)
    }
}
