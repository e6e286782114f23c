//! The registry of connections whose TLS handshake is not complete, by source.
//!
//! The clients of such connections are not authenticated, and a silent one stays open for the whole
//! handshake timeout. At `--max-connections` they must not block other clients. The source with the
//! most pending connections therefore loses one in favour of a source with fewer.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::server::handshake_limiter::ConnectionSource;
use weir_base::metrics::GaugeGuard;

/// The pending connections of each source. Pure; `T` evicts a connection.
#[derive(Debug)]
struct PendingBySource<T> {
    sources: HashMap<ConnectionSource, BTreeMap<u64, T>>,
    /// The number of connections registered so far, which is the id of the next one.
    next_id: u64,
}

impl<T> PendingBySource<T> {
    fn add(&mut self, source: ConnectionSource, connection: T) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.insert(source, id, connection);
        id
    }

    fn insert(&mut self, source: ConnectionSource, id: u64, connection: T) {
        self.sources
            .entry(source)
            .or_default()
            .insert(id, connection);
    }

    fn remove(&mut self, source: ConnectionSource, id: u64) -> Option<T> {
        let connections = self.sources.get_mut(&source)?;
        let connection = connections.remove(&id);
        if connections.is_empty() {
            self.sources.remove(&source);
        }
        connection
    }

    /// Removes the newest connection of the source with the most, if that source would still have
    /// no fewer than `source` with its new one. A source thus gains nothing by reconnecting.
    fn remove_from_largest(&mut self, source: ConnectionSource) -> Option<T> {
        let own = self.sources.get(&source).map_or(0, BTreeMap::len);
        let (&largest, connections) = self
            .sources
            .iter()
            .max_by_key(|(_, connections)| connections.len())?;
        if connections.len() <= own + 1 {
            return None;
        }
        let (&newest, _) = connections.last_key_value()?;
        self.remove(largest, newest)
    }
}

/// The pending connections of all workers.
#[derive(Debug)]
pub(crate) struct PendingHandshakes {
    /// Locked for one step of a connection. No await and no wake-up happens under the lock.
    pending: Mutex<PendingBySource<watch::Sender<()>>>,
}

impl PendingHandshakes {
    /// A registry without connections.
    #[must_use]
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::new(PendingBySource {
                sources: HashMap::new(),
                next_id: 0,
            }),
        })
    }

    /// Registers a connection that was accepted. `gauge_guard` is held as long as the connection is
    /// registered.
    #[must_use]
    pub(crate) fn register(
        self: &Arc<Self>,
        source: ConnectionSource,
        gauge_guard: Option<GaugeGuard>,
    ) -> PendingHandshakeGuard {
        let (sender, eviction) = watch::channel(());
        PendingHandshakeGuard {
            source,
            id: self.lock_pending().add(source, sender),
            evicted: eviction,
            pending_handshakes: Arc::clone(self),
            _gauge_guard: gauge_guard,
        }
    }

    /// Evicts one connection in favour of a new one from `source`, and waits until it is closed.
    /// `false` if no connection has to be evicted.
    ///
    /// # Cancel safety
    /// A connection that was evicted is closed even if the future is dropped.
    pub(crate) async fn evict_for(&self, source: ConnectionSource) -> bool {
        let Some(evicted) = self.remove_for(source) else {
            return false;
        };
        evicted.send_replace(());
        evicted.closed().await;
        true
    }

    fn remove_for(&self, source: ConnectionSource) -> Option<watch::Sender<()>> {
        self.lock_pending().remove_from_largest(source)
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingBySource<watch::Sender<()>>> {
        self.pending.lock()
    }
}

/// A registered connection. Drop removes it: when its handshake is complete or its socket is
/// closed.
#[derive(Debug)]
pub(crate) struct PendingHandshakeGuard {
    source: ConnectionSource,
    id: u64,
    evicted: watch::Receiver<()>,
    pending_handshakes: Arc<PendingHandshakes>,
    _gauge_guard: Option<GaugeGuard>,
}

impl PendingHandshakeGuard {
    /// Sets the real source of the connection, which a proxy has reported.
    pub(crate) fn set_source(&mut self, source: ConnectionSource) {
        let mut pending = self.pending_handshakes.lock_pending();
        if let Some(connection) = pending.remove(self.source, self.id) {
            pending.insert(source, self.id, connection);
        }
        self.source = source;
    }

    /// Completes when the connection is evicted.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) fn wait_for_eviction(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut eviction = self.evicted.clone();
        async move {
            // An error means that the sender is gone, either after an eviction or with the guard.
            let _ = eviction.changed().await;
        }
    }
}

impl Drop for PendingHandshakeGuard {
    fn drop(&mut self) {
        drop(
            self.pending_handshakes
                .lock_pending()
                .remove(self.source, self.id),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;

    fn source(n: u8) -> ConnectionSource {
        ConnectionSource::from_address(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test]
    async fn the_newest_of_the_largest_source_is_evicted() {
        let registry = PendingHandshakes::new();
        let few = [
            registry.register(source(1), None),
            registry.register(source(1), None),
        ];
        let many = [0; 3].map(|_| registry.register(source(2), None));
        let evicted = registry.remove_for(source(3)).unwrap();
        evicted.send_replace(());
        let is_evicted =
            |guard: &PendingHandshakeGuard| guard.wait_for_eviction().now_or_never().is_some();
        assert_eq!(many.each_ref().map(is_evicted), [false, false, true]);
        assert_eq!(few.each_ref().map(is_evicted), [false, false]);
    }

    #[tokio::test]
    async fn eviction_completes_when_the_evicted_connection_is_dropped() {
        let registry = PendingHandshakes::new();
        let _stays = registry.register(source(1), None);
        let evicted = registry.register(source(1), None);
        let mut eviction = Box::pin(registry.evict_for(source(2)));
        assert_eq!(eviction.as_mut().now_or_never(), None);
        evicted.wait_for_eviction().await;
        assert_eq!(eviction.as_mut().now_or_never(), None);
        drop(evicted);
        assert!(eviction.await);
    }

    #[tokio::test]
    async fn no_connection_is_evicted_for_a_source_that_would_have_as_many() {
        let registry = PendingHandshakes::new();
        let eviction = |from| registry.evict_for(from).now_or_never();
        assert_eq!(eviction(source(1)), Some(false), "no connection is there");
        let _other = [
            registry.register(source(2), None),
            registry.register(source(2), None),
        ];
        let _own = registry.register(source(1), None);
        assert_eq!(eviction(source(1)), Some(false));
        assert_eq!(eviction(source(2)), Some(false), "for its own");
    }

    #[tokio::test]
    async fn a_connection_behind_a_proxy_counts_for_its_client_address() {
        let registry = PendingHandshakes::new();
        let mut behind = [0; 4].map(|_| registry.register(source(9), None));
        for guard in &mut behind {
            guard.set_source(source(1));
        }
        assert!(registry.remove_for(source(9)).is_some());
        assert!(registry.remove_for(source(1)).is_none());
    }

    #[test]
    fn dropped_guards_leave_no_entries() {
        let registry = PendingHandshakes::new();
        let mut some = registry.register(source(1), None);
        let others = [0; 3].map(|_| registry.register(source(2), None));
        drop(registry.remove_for(source(3)));
        some.set_source(source(4));
        drop((some, others));
        assert!(registry.lock_pending().sources.is_empty());
    }
}
