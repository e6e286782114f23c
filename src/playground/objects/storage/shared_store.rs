//! The store behind its lock, and the bell that rings for watchers.

use crate::playground::objects::resources::ObjectKind;
use crate::playground::objects::storage::store::Store;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use tokio::sync::watch;

/// All objects, shared.
#[derive(Debug)]
pub(crate) struct SharedStore {
    /// Nothing is awaited under this lock.
    store: Mutex<Store>,
    /// One a kind: the version of its newest change.
    versions: Vec<watch::Sender<u64>>,
}

impl SharedStore {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            versions: ObjectKind::ALL
                .map(|_| watch::Sender::new(store.version()))
                .into(),
            store: Mutex::new(store),
        }
    }

    /// For reading.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to objects of `kind` and tells the watchers, after the lock is given back.
    pub(crate) fn write<T>(&self, kind: ObjectKind, write: impl FnOnce(&mut Store) -> T) -> T {
        let (result, before, after) = {
            let mut store = self.lock();
            let before = store.version();
            let result = write(&mut store);
            (result, before, store.version())
        };
        if before != after {
            self.notify(kind, after);
        }
        result
    }

    fn notify(&self, kind: ObjectKind, version: u64) {
        if let Some(changed) = self.versions.get(kind.index()) {
            changed.send_replace(version);
        }
    }

    /// Rings for every kind: a write touched more than one.
    pub(crate) fn notify_all(&self) {
        let version = self.lock().version();
        for kind in ObjectKind::ALL {
            self.notify(kind, version);
        }
    }

    /// Rings whenever an object of `kind` has changed.
    pub(crate) fn subscribe(&self, kind: ObjectKind) -> Option<watch::Receiver<u64>> {
        self.versions
            .get(kind.index())
            .map(watch::Sender::subscribe)
    }
}
