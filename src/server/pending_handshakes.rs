//! Connections whose handshake is not over yet, by where they are from.
//!
//! Nobody is known before that, and what says nothing stays for a whole handshake's time. At `--max-connections` they are
//! therefore not a reason to turn others away: whoever has the most of them makes room for who has fewer.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::sync::watch;

use crate::metrics::GaugeGuard;
use crate::server::handshake_limiter::ConnectionSource;

/// Who has how many. Pure; `T` tells a connection to go.
#[derive(Debug)]
struct PendingBySource<T> {
    sources: HashMap<ConnectionSource, BTreeMap<u64, T>>,
    /// How many have come so far: the next one's number.
    next_id: u64,
}

impl<T> PendingBySource<T> {
    fn add(&mut self, origin: ConnectionSource, connection: T) -> u64 {
        let number = self.next_id;
        self.next_id += 1;
        self.insert(origin, number, connection);
        number
    }

    fn insert(&mut self, origin: ConnectionSource, number: u64, connection: T) {
        self.sources
            .entry(origin)
            .or_default()
            .insert(number, connection);
    }

    fn remove(&mut self, origin: ConnectionSource, number: u64) -> Option<T> {
        let line = self.sources.get_mut(&origin)?;
        let connection = line.remove(&number);
        if line.is_empty() {
            self.sources.remove(&origin);
        }
        connection
    }

    /// Takes out the last of who has most, if that is still no fewer than `origin` has with one more: nobody gains by
    /// coming again.
    fn remove_from_largest(&mut self, origin: ConnectionSource) -> Option<T> {
        let own = self.sources.get(&origin).map_or(0, BTreeMap::len);
        let (&most, line) = self.sources.iter().max_by_key(|(_, line)| line.len())?;
        if line.len() <= own + 1 {
            return None;
        }
        let (&last, _) = line.last_key_value()?;
        self.remove(most, last)
    }
}

/// All of them, over all workers.
#[derive(Debug)]
pub struct PendingHandshakes {
    /// Held for one step of a connection; nothing is awaited, and nobody told, under it.
    pending: Mutex<PendingBySource<watch::Sender<()>>>,
}

impl PendingHandshakes {
    /// Nobody there.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            pending: Mutex::new(PendingBySource {
                sources: HashMap::new(),
                next_id: 0,
            }),
        })
    }

    /// A connection has been accepted, which is `counted` for as long as it is one of these.
    #[must_use]
    pub fn register(
        self: &Arc<Self>,
        origin: ConnectionSource,
        counted: Option<GaugeGuard>,
    ) -> PendingHandshakeGuard {
        let (tells, told) = watch::channel(());
        PendingHandshakeGuard {
            source: origin,
            id: self.lock_pending().add(origin, tells),
            evicted: told,
            pending_handshakes: Arc::clone(self),
            _gauge_guard: counted,
        }
    }

    /// Lets one go for the sake of one from `origin`, and waits until it has; `false` if nobody has to.
    ///
    /// # Cancel safety
    /// Who was told goes, whether it is waited for or not.
    pub async fn evict_for(&self, origin: ConnectionSource) -> bool {
        let Some(goes) = self.remove_for(origin) else {
            return false;
        };
        goes.send_replace(());
        goes.closed().await;
        true
    }

    fn remove_for(&self, origin: ConnectionSource) -> Option<watch::Sender<()>> {
        self.lock_pending().remove_from_largest(origin)
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingBySource<watch::Sender<()>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, until it is dropped: when its handshake is over, or its socket closed.
#[derive(Debug)]
pub struct PendingHandshakeGuard {
    source: ConnectionSource,
    id: u64,
    evicted: watch::Receiver<()>,
    pending_handshakes: Arc<PendingHandshakes>,
    _gauge_guard: Option<GaugeGuard>,
}

impl PendingHandshakeGuard {
    /// A proxy has told where it is really from.
    pub fn set_source(&mut self, origin: ConnectionSource) {
        let mut crowd = self.pending_handshakes.lock_pending();
        if let Some(connection) = crowd.remove(self.source, self.id) {
            crowd.insert(origin, self.id, connection);
        }
        self.source = origin;
    }

    /// Comes when it is to go.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub fn wait_for_eviction(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.evicted.clone();
        async move {
            // Fails if the sender has gone, which goes only after it told so, or with the newcomer.
            let _ = told.changed().await;
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
        let newcomers = PendingHandshakes::new();
        let few = [
            newcomers.register(source(1), None),
            newcomers.register(source(1), None),
        ];
        let many = [0; 3].map(|_| newcomers.register(source(2), None));
        let goes = newcomers.remove_for(source(3)).unwrap();
        goes.send_replace(());
        let told = |newcomer: &PendingHandshakeGuard| {
            newcomer.wait_for_eviction().now_or_never().is_some()
        };
        assert_eq!(many.each_ref().map(told), [false, false, true]);
        assert_eq!(few.each_ref().map(told), [false, false]);
    }

    #[tokio::test]
    async fn eviction_completes_when_the_evicted_connection_is_dropped() {
        let newcomers = PendingHandshakes::new();
        let _stays = newcomers.register(source(1), None);
        let goes = newcomers.register(source(1), None);
        let mut room = Box::pin(newcomers.evict_for(source(2)));
        assert_eq!(room.as_mut().now_or_never(), None);
        goes.wait_for_eviction().await;
        assert_eq!(room.as_mut().now_or_never(), None);
        drop(goes);
        assert!(room.await);
    }

    #[tokio::test]
    async fn no_connection_is_evicted_for_a_source_that_would_have_as_many() {
        let newcomers = PendingHandshakes::new();
        let room = |origin| newcomers.evict_for(origin).now_or_never();
        assert_eq!(room(source(1)), Some(false), "nobody is there");
        let _other = [
            newcomers.register(source(2), None),
            newcomers.register(source(2), None),
        ];
        let _own = newcomers.register(source(1), None);
        assert_eq!(room(source(1)), Some(false));
        assert_eq!(room(source(2)), Some(false), "for its own");
    }

    #[tokio::test]
    async fn a_connection_behind_a_proxy_counts_for_its_client_address() {
        let newcomers = PendingHandshakes::new();
        let mut behind = [0; 4].map(|_| newcomers.register(source(9), None));
        for newcomer in &mut behind {
            newcomer.set_source(source(1));
        }
        assert!(newcomers.remove_for(source(9)).is_some());
        assert!(newcomers.remove_for(source(1)).is_none());
    }

    #[test]
    fn dropped_guards_leave_no_entries() {
        let newcomers = PendingHandshakes::new();
        let mut some = newcomers.register(source(1), None);
        let others = [0; 3].map(|_| newcomers.register(source(2), None));
        drop(newcomers.remove_for(source(3)));
        some.set_source(source(4));
        drop((some, others));
        assert!(newcomers.lock_pending().sources.is_empty());
    }
}
