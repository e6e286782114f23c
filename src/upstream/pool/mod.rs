//! Connections to an API server, kept and shared: one [`Pool`] for each [`AuthMode`] and address.
//!
//! HTTP/2: requests share a few connections. Each goes onto the connection with the fewest streams.
//! When 75 % of the streams that the peer allows are in use on every connection, the pool opens
//! another, up to a limit. When all streams are in use, requests wait, and their requesters take
//! turns (`wait_queue`).
//! Watches share connections of their own, as many as they need: their bound is the [connection
//! budget](crate::upstream::connection::connection_budget) for long-running requests, beyond which
//! they are rejected ([`ConnectionClass`]).
//!
//! HTTP/1.1: a stack of idle connections. Long-running requests whose content
//! others than the API server write (logs, proxies) use HTTP/1.1 whatever the API server speaks.
//! So do reads without a body for which a connection is idle ([`UpstreamProtocol`]): over HTTP/2, each
//! frame passes through the one goroutine of the API server that serves its connection, which costs
//! both sides more CPU. A read that finds none idle has another opened for later reads.
//!
//! Nothing is awaited under a lock.
//!
//! The libraries' pools keep one HTTP/2 connection and stop at its stream limit, so these are
//! weir's own. A connection is shared once the peer's SETTINGS have arrived, and left as soon as
//! GOAWAY is received.

pub(crate) mod connection_class;
pub(crate) mod http1;
pub(crate) mod http2_lease;
pub(crate) mod lease;
pub(crate) mod metrics;
pub(crate) mod pool_limits;
mod shared_connections;
pub(crate) mod stream_guard;
mod wait_queue;

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::upstream::connection::connection_budget::{
    ConnectionBudget, ConnectionPermit, RequestSlot,
};
use crate::upstream::connection::connector::{Connector, Http1Purpose, Protocol, TlsConnection};
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::{self, MaxFields};
use crate::upstream::connection::http2::Http2Connection;
use crate::upstream::headers::auth_mode::AuthMode;
use crate::upstream::pool::connection_class::{ConnectionClass, PerClass};
use crate::upstream::pool::http1::handshake_permits::HandshakePermits;
use crate::upstream::pool::http1::http1_lease::Http1Lease;
use crate::upstream::pool::http1::idle_connections::{Http1Sender, IdleConnections};
use crate::upstream::pool::http2_lease::Http2Lease;
use crate::upstream::pool::lease::Lease;
use crate::upstream::pool::metrics::UpstreamMetrics;
use crate::upstream::pool::pool_limits::{PoolLimits, ReadConnectionRate, UpstreamProtocol};
use crate::upstream::pool::shared_connections::{SharedConnections, StreamAvailability};
use crate::upstream::pool::wait_queue::WaitQueue;
use crate::upstream::requester::Requester;
use weir_base::clock::Clock;

/// Longest wait for a stream, if the request's own deadline is not earlier: a watch has none.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The connections of one [`AuthMode`].
pub(crate) struct Pool<M> {
    connector: Connector<M>,
    limits: Arc<PoolLimits>,
    /// The lock is held for list operations, never across an await.
    state: Mutex<PoolState>,
    queues: Arc<PerClass<WaitQueue>>,
    idle: Arc<IdleConnections>,
    read_connections: ReadConnectionRate,
    handshake_permits: HandshakePermits,
    metrics: Arc<UpstreamMetrics>,
}

#[derive(Default)]
struct PoolState {
    /// Another pool replaces this one: it leases nothing more.
    is_replaced: bool,
    protocol: Option<Protocol>,
    http2: PerClass<SharedConnections>,
}

/// A connection that long-running or short requests are going to share.
struct OpeningConnection {
    class: ConnectionClass,
    /// The generation at the start of the attempt.
    generation: u64,
    /// The slot of a connection that long-running requests share.
    slot: Option<RequestSlot>,
}

enum LeaseChoice {
    Take(Lease),
    /// Open a connection for this request (HTTP/1.1).
    Open,
    /// Wait: a connection is being opened, or a stream will end.
    Wait,
    /// Another pool has replaced this one.
    Replaced,
}

impl<M: AuthMode> Pool<M> {
    /// A pool without connections; the first request opens one.
    #[must_use]
    pub(crate) fn new(
        connector: Connector<M>,
        limits: Arc<PoolLimits>,
        metrics: Arc<UpstreamMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            limits,
            read_connections: ReadConnectionRate::new(Clock.now()),
            state: Mutex::default(),
            queues: Arc::default(),
            idle: Arc::default(),
            handshake_permits: HandshakePermits::default(),
            metrics,
        })
    }

    pub(crate) const fn connector(&self) -> &Connector<M> {
        &self.connector
    }

    /// Opens an HTTP/1.1 connection, once a handshake permit is free. Requesters take turns.
    ///
    /// # Errors
    /// No connection could be opened, or too many requests wait for a permit.
    pub(crate) async fn connect_http1(
        &self,
        requester: &Requester,
        purpose: Http1Purpose,
    ) -> Result<TlsConnection, ForwardError> {
        let (permits, holder) = (&self.handshake_permits, requester.wait_holder());
        let _permit = permits.acquire(holder, MAX_WAIT, &self.metrics).await?;
        let opened = self.connector.connect_http1(purpose).await;
        self.record_connect(opened.as_ref().map(|_| Protocol::Http1));
        opened
    }

    /// Counts an attempt to connect. A server that refuses connections is gone: so are the ones that
    /// are idle, though weir may not have seen it yet.
    fn record_connect(&self, outcome: Result<Protocol, &ForwardError>) {
        if matches!(outcome, Err(ForwardError::Connect(_))) {
            self.idle.close_all();
        }
        self.metrics.record_connect(M::NAME, outcome);
    }

    pub(crate) fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// Leases a connection or a stream for one request, whose response may have so many fields.
    ///
    /// # Errors
    /// None is available. Nothing has been sent then.
    ///
    /// # Cancel safety
    /// Nothing is lost: an HTTP/2 connection that is being opened goes on opening and serves other
    /// requests.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        class: ConnectionClass,
        max_fields: MaxFields,
        requester: &Requester,
    ) -> Result<Lease, ForwardError> {
        let requested_at = Clock.now();
        let class = self.class_by_protocol(class);
        let http1 = !M::HTTP2
            || matches!(
                class,
                ConnectionClass::Dedicated | ConnectionClass::DedicatedLongRunning
            )
            || (class.is_long_running() && self.state().protocol == Some(Protocol::Http1));
        // Before a connection is opened for it.
        let slot = self.acquire_slot(class, http1, requester)?;
        if matches!(
            class,
            ConnectionClass::Dedicated | ConnectionClass::DedicatedLongRunning
        ) {
            return Box::pin(self.lease_http1(max_fields, slot, requester, requested_at)).await;
        }
        if max_fields == MaxFields::Usual
            && let Some(mut lease) = self.choose_http1(class, requested_at)
        {
            lease.slot = slot;
            return Ok(Lease::Http1(lease));
        }
        // A request that arrives does not overtake those that wait.
        let choice = match self.queues.get(class).is_empty() {
            true => self.choose(class, max_fields, requested_at),
            false => LeaseChoice::Wait,
        };
        let mut lease = match choice {
            LeaseChoice::Take(lease) => lease,
            // Boxed: a request that gets a lease at once does not pay for the size of these
            // futures.
            LeaseChoice::Open => Box::pin(self.open_http1(class, max_fields)).await?,
            LeaseChoice::Wait => {
                Box::pin(self.wait_for_lease(class, max_fields, requester, requested_at)).await?
            }
            LeaseChoice::Replaced => return Err(ForwardError::Closed),
        };
        match &mut lease {
            Lease::Http2(lease) => lease.slot = slot,
            Lease::Http1(lease) if http1 => lease.slot = slot,
            Lease::Http1(lease) => {
                let slot = self.acquire_slot(class, true, requester);
                lease.slot = slot.inspect_err(|_| lease.complete())?;
            }
        }
        Ok(lease)
    }

    /// Acquires the slot of a request for its class.
    fn acquire_slot(
        &self,
        class: ConnectionClass,
        http1: bool,
        requester: &Requester,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let Some(budget) = self.connector.connection_budget() else {
            return Ok(None);
        };
        match class {
            ConnectionClass::Shared | ConnectionClass::Dedicated => budget.acquire_short(requester),
            ConnectionClass::SharedWatch if !http1 => budget.acquire_watch(requester).map(Some),
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                budget.acquire_long_running(requester).map(Some)
            }
        }
    }

    /// The class of a request under `--upstream-protocol=http1`.
    fn class_by_protocol(&self, class: ConnectionClass) -> ConnectionClass {
        if class == ConnectionClass::Shared && self.limits.protocol() == UpstreamProtocol::Http1 {
            return class.dedicated();
        }
        class
    }

    /// An idle HTTP/1.1 connection for a read, where the API server speaks HTTP/2 as well. If there
    /// is none, one is opened for later reads: this one would wait longer for a handshake than for a
    /// stream. Through a CONNECT proxy, connections are shared.
    fn choose_http1(
        self: &Arc<Self>,
        class: ConnectionClass,
        requested_at: Instant,
    ) -> Option<Http1Lease> {
        if class != ConnectionClass::Shared
            || self.limits.protocol() != UpstreamProtocol::Auto
            || self.connector.is_proxied()
        {
            return None;
        }
        {
            let state = self.state();
            if state.protocol != Some(Protocol::Http2) || state.is_replaced {
                return None;
            }
        }
        if let Some(sender) = self.idle.take(requested_at, MaxFields::Usual) {
            return Some(self.new_http1_lease(sender));
        }
        self.open_for_reads(requested_at);
        None
    }

    /// Opens an HTTP/1.1 connection for later reads, within its rate and its part of the budget.
    fn open_for_reads(self: &Arc<Self>, now: Instant) {
        let budget = self.connector.connection_budget();
        let permit = budget.map(ConnectionBudget::acquire_read_connection);
        if matches!(permit, Some(None)) {
            return; // its part of the budget is used up
        }
        let Some(opening) = self.read_connections.begin(now) else {
            return;
        };
        let (pool, generation) = (Arc::clone(self), self.idle.generation());
        tokio::spawn(async move {
            // A failure is counted as every failed connect. The next read tries again.
            if let Ok(connection) = pool
                .connect_http1(&Requester::default(), Http1Purpose::Requests)
                .await
                && let Ok(mut sender) = pool
                    .handshake_http1(connection, MaxFields::Usual, generation, permit.flatten())
                    .await
                && sender.requests.ready().await.is_ok()
            {
                sender.was_idle = true;
                pool.idle.put(sender);
            }
            drop(opening);
        });
    }

    async fn lease_http1(
        self: &Arc<Self>,
        max_fields: MaxFields,
        slot: Option<RequestSlot>,
        requester: &Requester,
        requested_at: Instant,
    ) -> Result<Lease, ForwardError> {
        let mut lease = if let Some(sender) = self.idle.take(requested_at, max_fields) {
            self.new_http1_lease(sender)
        } else {
            let generation = self.idle.generation();
            let connection = self
                .connect_http1(requester, Http1Purpose::Requests)
                .await?;
            let sender = self
                .handshake_http1(connection, max_fields, generation, None)
                .await?;
            self.new_http1_lease(sender)
        };
        lease.slot = slot;
        Ok(Lease::Http1(lease))
    }

    fn new_http1_lease(&self, sender: Http1Sender) -> Http1Lease {
        Http1Lease::new(sender, Arc::clone(&self.idle))
    }

    async fn wait_for_lease(
        self: &Arc<Self>,
        class: ConnectionClass,
        max_fields: MaxFields,
        requester: &Requester,
        requested_at: Instant,
    ) -> Result<Lease, ForwardError> {
        let waiting = self.queues.get(class).enter(requester.wait_holder())?;
        self.metrics.stream_waits.inc();
        let deadline = (requested_at + MAX_WAIT).into();
        loop {
            let turn = timeout_at(deadline, waiting.turn()).await;
            turn.map_err(|_| ForwardError::StreamTimeout(MAX_WAIT))??;
            match self.choose(class, max_fields, requested_at) {
                LeaseChoice::Take(lease) => {
                    waiting.complete();
                    return Ok(lease);
                }
                LeaseChoice::Open => {
                    waiting.complete();
                    return Box::pin(self.open_http1(class, max_fields)).await;
                }
                LeaseChoice::Wait => {}
                LeaseChoice::Replaced => {
                    waiting.complete();
                    return Err(ForwardError::Closed);
                }
            }
            // Queued again before the check, so that no change in between is missed.
            waiting.requeue();
            let state = self.state();
            let shared = state.http2.get(class);
            if let Some(failure) = shared.failure_since(requested_at, Clock.now()) {
                return Err(failure);
            }
            if shared.has_free_stream()
                || state.protocol == Some(Protocol::Http1)
                || state.is_replaced
            {
                self.queues.get(class).wake_next();
            }
        }
    }

    fn choose(
        self: &Arc<Self>,
        class: ConnectionClass,
        max_fields: MaxFields,
        requested_at: Instant,
    ) -> LeaseChoice {
        let mut state = self.state();
        if state.is_replaced {
            return LeaseChoice::Replaced;
        }
        let shared = state.http2.get_mut(class);
        if let StreamAvailability::Connected {
            stream,
            nearly_full,
        } = shared.acquire_stream()
        {
            if nearly_full && shared.may_open_another(self.max_connections(class), Clock.now()) {
                self.spawn_open_http2(class, &mut state);
            }
            return stream.map_or(LeaseChoice::Wait, |connection| {
                LeaseChoice::Take(Lease::Http2(self.new_http2_lease(connection, class)))
            });
        }
        if state.protocol == Some(Protocol::Http1) || !M::HTTP2 {
            // It may have waited: what has been idle for too long by now is not used.
            let idle = self.idle.take(Clock.now(), max_fields);
            return idle.map_or(LeaseChoice::Open, |sender| {
                LeaseChoice::Take(Lease::Http1(self.new_http1_lease(sender)))
            });
        }
        if state.http2.get(class).may_open_first(requested_at) {
            self.spawn_open_http2(class, &mut state);
        }
        LeaseChoice::Wait
    }

    /// The most shared connections of a class.
    fn max_connections(&self, class: ConnectionClass) -> usize {
        match class {
            ConnectionClass::Shared | ConnectionClass::Dedicated => {
                self.limits.max_http2_connections()
            }
            // Each takes a long-running slot.
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => usize::MAX,
        }
    }

    fn new_http2_lease(
        &self,
        connection: Arc<Http2Connection>,
        class: ConnectionClass,
    ) -> Http2Lease {
        Http2Lease::new(connection, class, Arc::clone(&self.queues))
    }

    /// Opens a connection. Returns it with the protocol that was negotiated.
    async fn connect(&self) -> Result<(TlsConnection, Protocol), ForwardError> {
        let opened = self.connector.connect().await;
        self.record_connect(opened.as_ref().map(|(_, protocol)| *protocol));
        opened
    }

    /// Acquires the slot of a connection that long-running requests share.
    fn acquire_connection_slot(
        &self,
        class: ConnectionClass,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let budget = self
            .connector
            .connection_budget()
            .filter(|_| class.is_long_running());
        budget
            .map(ConnectionBudget::acquire_watch_connection)
            .transpose()
    }

    async fn open_http1(
        self: &Arc<Self>,
        class: ConnectionClass,
        max_fields: MaxFields,
    ) -> Result<Lease, ForwardError> {
        let generation = self.idle.generation();
        let (connection, protocol) = self.connect().await?;
        if protocol == Protocol::Http2 {
            // The upstream has begun to speak HTTP/2 (an upgrade of the cluster): the next request
            // uses it.
            let slot = self.acquire_connection_slot(class)?;
            self.state().protocol = Some(protocol);
            let opening = OpeningConnection {
                class,
                generation,
                slot,
            };
            let shared = self.add_http2(connection, 1, opening).await?;
            return Ok(Lease::Http2(self.new_http2_lease(shared, class)));
        }
        let sender = self
            .handshake_http1(connection, max_fields, generation, None)
            .await?;
        Ok(Lease::Http1(self.new_http1_lease(sender)))
    }

    /// Begins HTTP/1.1 on `connection`, which was opened in this generation. `permit` is held as
    /// long as the connection is open.
    async fn handshake_http1(
        &self,
        TlsConnection { io, reads_ahead }: TlsConnection,
        max_fields: MaxFields,
        generation: u64,
        permit: Option<ConnectionPermit>,
    ) -> Result<Http1Sender, ForwardError> {
        let flushes = Arc::clone(io.inner().flushes());
        let (sender, driver) = http_settings::http1_builder(max_fields)
            .handshake(io)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics.count_open(M::NAME);
        let (end, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _ = driver.await; // hyper reports the error to the request on it
            drop((open, permit));
            drop::<oneshot::Sender<()>>(end);
        });
        Ok(Http1Sender::new(
            sender,
            max_fields,
            flushes,
            reads_ahead,
            ended,
            generation,
            Clock.now(),
        ))
    }

    /// Opens a shared connection in a task of its own, so that it does not depend on the request
    /// that needed it first.
    fn spawn_open_http2(self: &Arc<Self>, class: ConnectionClass, state: &mut PoolState) {
        state.http2.get_mut(class).begin_open();
        let generation = self.idle.generation();
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = pool.open_http2(class, generation).await;
            // A failure of an attempt that began before a retirement says nothing about the next.
            let is_current = pool.idle.generation() == generation;
            let outcome = outcome.or_else(|why| if is_current { Err(why) } else { Ok(()) });
            let now = Clock.now();
            let paused = pool
                .state()
                .http2
                .get_mut(class)
                .finish_open(class, outcome, now);
            let queue = pool.queues.get(class);
            queue.wake_all();
            if let Some(until) = paused {
                tokio::time::sleep_until(until.into()).await;
                queue.wake_all(); // waiting requests try again
            }
        });
    }

    async fn open_http2(
        self: &Arc<Self>,
        class: ConnectionClass,
        generation: u64,
    ) -> Result<(), ForwardError> {
        let slot = self.acquire_connection_slot(class)?;
        let (connection, protocol) = self.connect().await?;
        match protocol {
            Protocol::Http2 => {
                let opening = OpeningConnection {
                    class,
                    generation,
                    slot,
                };
                self.add_http2(connection, 0, opening).await?;
                self.state().protocol = Some(protocol);
            }
            Protocol::Http1 => {
                let mut sender = self
                    .handshake_http1(connection, MaxFields::Many, generation, None)
                    .await?;
                sender.requests.ready().await.map_err(ForwardError::reset)?;
                self.state().protocol = Some(protocol);
                self.idle.put(sender);
            }
        }
        Ok(())
    }

    /// Begins HTTP/2 on `connection` and shares it; `active_streams` are in use already. A
    /// connection whose generation was retired meanwhile is not shared.
    async fn add_http2(
        self: &Arc<Self>,
        connection: TlsConnection,
        active_streams: usize,
        opening: OpeningConnection,
    ) -> Result<Arc<Http2Connection>, ForwardError> {
        let OpeningConnection {
            class,
            generation,
            slot,
        } = opening;
        let (shared, driver) = Http2Connection::handshake(connection).await?;
        shared
            .active_streams
            .store(active_streams, Ordering::Release);
        {
            let mut state = self.state();
            if self.idle.generation() == generation {
                state.http2.get_mut(class).add(Arc::clone(&shared));
            } else {
                shared.retire();
            }
        }
        let (driven, pool) = (Arc::downgrade(&shared), Arc::downgrade(self));
        let open = self.metrics.count_open(M::NAME);
        tokio::spawn(async move {
            let (waiting, changing) = (Weak::clone(&pool), Weak::clone(&driven));
            let changed = || {
                if let Some(pool) = waiting.upgrade() {
                    // After GOAWAY, the server may be shutting down: it closes idle connections, and
                    // a request that is sent at that moment is lost.
                    if changing.upgrade().is_some_and(|shared| !shared.is_usable()) {
                        pool.idle.close_all();
                    }
                    pool.queues.get(class).wake_all();
                }
            };
            driver.run(driven, changed).await;
            drop((open, slot));
            if let Some(pool) = pool.upgrade() {
                pool.state().http2.get_mut(class).remove_unusable();
                pool.queues.get(class).wake_all();
            }
        });
        Ok(shared)
    }

    /// Closes connections that have been idle for 45 s. The maintenance task calls it.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.idle.close_idle(now);
    }

    /// Closes all idle HTTP/1.1 connections.
    pub(crate) fn close_all_idle(&self) {
        self.idle.close_all();
    }

    /// Retires every connection: their certificate has been replaced. Requests on them are
    /// completed.
    pub(crate) fn retire_all(&self) {
        let mut state = self.state();
        self.idle.retire_all();
        for shared in state.http2.each_mut() {
            shared.retire_all();
        }
    }

    /// Retires every connection, and opens no others: another pool replaces this one. Requests that
    /// wait here are sent there.
    pub(crate) fn replace(&self) {
        self.state().is_replaced = true;
        self.retire_all();
        for queue in self.queues.each() {
            queue.wake_all();
        }
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.state().is_replaced
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }
}

impl<M: AuthMode> std::fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool of {:?}", self.connector)
    }
}
