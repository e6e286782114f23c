//! The store behind its lock, and the notification of watches.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::store::Store;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// The store, shared by all requests.
#[derive(Debug)]
pub(crate) struct SharedStore {
    /// Nothing is awaited under this lock.
    store: Mutex<Store>,
    /// The version of the newest change of each kind.
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

    /// Locks the store for reading.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    /// Writes to objects of `kind` and notifies the watches after releasing the lock.
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

    /// Notifies the watches of every kind, after a write to several kinds.
    pub(crate) fn notify_all(&self) {
        let version = self.lock().version();
        for kind in ObjectKind::ALL {
            self.notify(kind, version);
        }
    }

    /// Subscribes to the changes of objects of `kind`.
    pub(crate) fn subscribe(&self, kind: ObjectKind) -> Option<watch::Receiver<u64>> {
        self.versions
            .get(kind.index())
            .map(watch::Sender::subscribe)
    }
}
