//! Connections to the upstream, kept and shared: one [`Pool`] for each [`Way`].
//!
//! HTTP/2: requests share a few connections, each on the one with the fewest streams. When every connection has 75 % of
//! the streams taken that the peer allows, another is opened, up to a limit; when every stream is taken, requests wait,
//! a bounded number of them. Watches share others, as many as they need: their bound is the [room](crate::upstream::connection::connection_budget) for
//! what lasts, beyond which they are refused ([`lane`](crate::upstream::pool::connection_class)). HTTP/1.1: a stack of idle connections, the last
//! used first, so that the rest can go idle and be closed; requests that last and that somebody else fills (logs, proxies) are
//! on these whatever the API server speaks. Nothing is awaited under the lock.

pub mod connection_class;
pub mod failure_stats;
pub(in crate::upstream) mod http1_lease;
pub(in crate::upstream) mod retry_budget;

use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use hyper::client::conn::http1;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio::time::timeout_at;

use crate::clock::Clock;
use crate::upstream::ForwardError;
use crate::upstream::UpstreamMetrics;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::connection::connector::Connector;
use crate::upstream::connection::connector::Protocol;
use crate::upstream::connection::connector::TlsConnection;
use crate::upstream::connection::http_settings;
use crate::upstream::connection::http2::Http2Connection;
use crate::upstream::connection::http2::PendingHttp2;
use crate::upstream::forward::CancelOutcome;
use crate::upstream::headers::AuthMode;
use crate::upstream::headers::RequestHead;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::connection_class::PerClass;
use crate::upstream::pool::connection_class::SharedConnections;
use crate::upstream::pool::connection_class::StreamAvailability;
use crate::upstream::pool::connection_class::WaitQueue;
use crate::upstream::pool::http1_lease::Http1Lease;
use crate::upstream::pool::retry_budget::RetryBudget;

/// An idle HTTP/1.1 connection is closed after this long: well below the 90 s after which kube-apiserver closes it
/// itself, so that a request is hardly ever sent into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Most requests of a kind that wait for an HTTP/2 stream or for the first connection; one more is told so at once.
const MAX_WAITING: usize = 1024;

/// Handshakes for HTTP/1.1 beside HTTP/2 that are under way at a time, of each worker and way.
const MAX_CONCURRENT_HANDSHAKES: usize = 32;

/// How long a request that was given up may go on before its stream is reset, or its connection closed. Nearly all have their answer
/// by then, and what is not reset costs the API server nothing beyond it: Go's server gives up a connection whose streams are reset faster than their handlers
/// end. A longer one is a list that is better ended.
pub(super) const CANCEL_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Longest that a request waits for a stream, if its own time does not end before: a watch has none.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Connections for the way `W`.
pub struct Pool<W> {
    connector: Connector<W>,
    /// Most HTTP/2 connections for requests that end (`--upstream-max-connections`).
    max_http2_connections: usize,
    /// What its requests list in `CDN-Loop`; nothing where they go to others than the API server.
    instance_id: Option<InstanceId>,
    /// Guards the lists; held for a look at them, never across an await.
    state: Mutex<PoolState>,
    queues: PerClass<WaitQueue>,
    /// Requests that wait for a connection's handshake.
    waiting_for_handshake: AtomicUsize,
    retry_budget: RetryBudget,
    /// Connections of HTTP/1.1 beside HTTP/2, of which so many are opened at a time: each costs the API server a handshake.
    handshake_permits: Semaphore,
    metrics: Arc<UpstreamMetrics>,
}

#[derive(Default)]
struct PoolState {
    protocol: Option<Protocol>,
    http2: PerClass<SharedConnections>,
    idle_http1: Vec<(Instant, http1::SendRequest<RequestBody>)>,
    /// Connections of an earlier one are not kept: they show a certificate that is no longer the right one.
    generation: u64,
}

/// A connection's turn for one request; dropping it gives the turn back.
pub(super) enum Lease<W: AuthMode> {
    Http1(Http1Lease<W>),
    Http2(Http2Lease<W>),
}

/// A stream of an HTTP/2 connection.
pub(super) struct Http2Lease<W: AuthMode> {
    connection: Arc<Http2Connection>,
    class: ConnectionClass,
    pool: Arc<Pool<W>>,
    /// What a watch takes of the places for watches.
    slot: Option<RequestSlot>,
    /// Its request, until the answer begins.
    pub(super) pending: Option<PendingHttp2>,
}

impl<W: AuthMode> Http2Lease<W> {
    pub(super) fn connection(&self) -> Arc<Http2Connection> {
        Arc::clone(&self.connection)
    }

    /// Gives its request up: lets it finish if that is soon, resets the stream otherwise, and then waits until that was seen.
    pub(super) fn cancel(&mut self) -> impl Future<Output = CancelOutcome> + Send + use<W> {
        let (pending, connection) = (self.pending.take(), self.connection());
        let has_end = !self.class.is_long_running();
        async move {
            if let Some(pending) = pending
                && let Ok(true) = timeout(CANCEL_GRACE_PERIOD, pending.finish(has_end)).await
            {
                return CancelOutcome::Finished;
            }
            // An upload that was under way is ended by the runtime, when it comes to it: its reset goes out before it is counted.
            tokio::task::yield_now().await;
            connection.record_reset().await;
            CancelOutcome::Reset
        }
    }
}

impl<W: AuthMode> Drop for Http2Lease<W> {
    fn drop(&mut self) {
        self.connection
            .active_streams
            .fetch_sub(1, Ordering::AcqRel);
        let queue = self.pool.queues.get(self.class);
        if queue.waiting.load(Ordering::Acquire) > 0 {
            queue.changed.notify_one();
        }
    }
}

enum LeaseChoice<W: AuthMode> {
    Take(Lease<W>),
    /// Open a connection for oneself (HTTP/1.1).
    Open,
    /// Somebody opens one, or somebody's stream will end.
    Wait,
}

impl<W: AuthMode> Pool<W> {
    /// A pool without connections; the first request opens one.
    #[must_use]
    pub fn new(
        connector: Connector<W>,
        most: usize,
        id: Option<InstanceId>,
        metrics: Arc<UpstreamMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            max_http2_connections: most.max(1),
            instance_id: id,
            state: Mutex::default(),
            queues: PerClass::default(),
            waiting_for_handshake: AtomicUsize::new(0),
            retry_budget: RetryBudget::default(),
            handshake_permits: Semaphore::new(MAX_CONCURRENT_HANDSHAKES),
            metrics,
        })
    }

    pub(super) fn connector(&self) -> &Connector<W> {
        &self.connector
    }

    /// Lists this weir in a request, before its first try.
    pub(super) fn append_cdn_loop(&self, head: &mut RequestHead<W>) {
        if let Some(id) = &self.instance_id {
            head.append_cdn_loop(id);
        }
    }

    pub(super) fn retry_budget(&self) -> &RetryBudget {
        &self.retry_budget
    }

    /// Opens an HTTP/1.1 connection whatever the API server speaks, when its turn has come.
    ///
    /// # Errors
    /// There is no connection to be had, or too many wait for their turn.
    pub(super) async fn connect_http1(&self) -> Result<TlsConnection, ForwardError> {
        let _turn = match self.handshake_permits.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                let _waiting = WaiterGuard::enter(&self.waiting_for_handshake, &self.metrics)?;
                let turn = timeout(MAX_WAIT, self.handshake_permits.acquire()).await;
                turn.map_err(|_| ForwardError::StreamTimeout(MAX_WAIT))?
                    .map_err(|_| ForwardError::Closed)?
            }
        };
        let opened = self.connector.connect_http1().await;
        let tried = opened.as_ref().map(|_| Protocol::Http1);
        self.metrics.record_connect(W::NAME, tried);
        opened
    }

    pub(super) fn authority(&self) -> &str {
        self.connector.authority().as_str()
    }

    pub(super) fn metrics(&self) -> &UpstreamMetrics {
        &self.metrics
    }

    /// A turn on a connection.
    ///
    /// # Errors
    /// If there is none to be had; nothing has been sent then.
    ///
    /// # Cancel safety
    /// Nothing is lost: an HTTP/2 connection that is being opened goes on and serves somebody else.
    pub(super) async fn lease(
        self: &Arc<Self>,
        place: ConnectionClass,
        requester: &Requester,
    ) -> Result<Lease<W>, ForwardError> {
        let asked = Clock.now();
        let http1 = !W::HTTP2
            || matches!(
                place,
                ConnectionClass::Dedicated | ConnectionClass::DedicatedLongRunning
            )
            || (place.is_long_running() && self.state().protocol == Some(Protocol::Http1));
        // Before anything is opened for it.
        let share = self.acquire_slot(place, http1, requester)?;
        if matches!(
            place,
            ConnectionClass::Dedicated | ConnectionClass::DedicatedLongRunning
        ) {
            return Box::pin(self.lease_http1(share, asked)).await;
        }
        let mut lease = match self.choose(place, asked) {
            LeaseChoice::Take(lease) => lease,
            // In boxes: who takes what is there does not pay for the room.
            LeaseChoice::Open => Box::pin(self.open_http1(place)).await?,
            LeaseChoice::Wait => Box::pin(self.wait_for_lease(place, asked)).await?,
        };
        match &mut lease {
            Lease::Http2(own) => own.slot = share,
            Lease::Http1(own) if http1 => own.slot = share,
            Lease::Http1(own) => {
                let share = self.acquire_slot(place, true, requester);
                own.slot = share.inspect_err(|_| own.complete())?;
            }
        }
        Ok(lease)
    }

    /// What a request takes of the places for its kind.
    fn acquire_slot(
        &self,
        place: ConnectionClass,
        http1: bool,
        requester: &Requester,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let Some(room) = self.connector.connection_budget() else {
            return Ok(None);
        };
        match place {
            ConnectionClass::Shared | ConnectionClass::Dedicated => room.acquire_short(requester),
            ConnectionClass::SharedWatch if !http1 => room.acquire_watch(requester).map(Some),
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                room.acquire_long_running(requester).map(Some)
            }
        }
    }

    async fn lease_http1(
        self: &Arc<Self>,
        share: Option<RequestSlot>,
        asked: Instant,
    ) -> Result<Lease<W>, ForwardError> {
        let (idle, generation) = {
            let mut state = self.state();
            (state.idle_connection(asked), state.generation)
        };
        let sender = match idle {
            Some(sender) => sender,
            None => self.handshake_http1(self.connect_http1().await?).await?,
        };
        let mut own = self.new_http1_lease(sender, generation);
        own.slot = share;
        Ok(Lease::Http1(own))
    }

    fn new_http1_lease(
        self: &Arc<Self>,
        sender: http1::SendRequest<RequestBody>,
        generation: u64,
    ) -> Http1Lease<W> {
        Http1Lease::new(sender, generation, Arc::clone(self))
    }

    async fn wait_for_lease(
        self: &Arc<Self>,
        place: ConnectionClass,
        asked: Instant,
    ) -> Result<Lease<W>, ForwardError> {
        let queue = self.queues.get(place);
        let _waiting = WaiterGuard::enter(&queue.waiting, &self.metrics)?;
        let give_up = (asked + MAX_WAIT).into();
        loop {
            // Registered before looking again: what changes in between is not missed.
            let mut changed = std::pin::pin!(queue.changed.notified());
            changed.as_mut().enable();
            match self.choose(place, asked) {
                LeaseChoice::Take(lease) => return Ok(lease),
                LeaseChoice::Open => return Box::pin(self.open_http1(place)).await,
                LeaseChoice::Wait => {}
            }
            let failed = self
                .state()
                .http2
                .get(place)
                .failure_since(asked, Clock.now());
            if let Some(failure) = failed {
                return Err(failure);
            }
            if timeout_at(give_up, changed).await.is_err() {
                return Err(ForwardError::StreamTimeout(MAX_WAIT));
            }
        }
    }

    fn choose(self: &Arc<Self>, place: ConnectionClass, asked: Instant) -> LeaseChoice<W> {
        let mut state = self.state();
        let lane = state.http2.get_mut(place);
        if let StreamAvailability::Connected { taken, crowded } = lane.acquire_stream() {
            if crowded && lane.may_open_another(self.max_connections(place), Clock.now()) {
                self.spawn_open_http2(place, &mut state);
            }
            return taken.map_or(LeaseChoice::Wait, |shared| {
                LeaseChoice::Take(Lease::Http2(self.new_http2_lease(shared, place)))
            });
        }
        if state.protocol == Some(Protocol::Http1) || !W::HTTP2 {
            return state
                .idle_connection(asked)
                .map_or(LeaseChoice::Open, |sender| {
                    LeaseChoice::Take(Lease::Http1(self.new_http1_lease(sender, state.generation)))
                });
        }
        if state.http2.get(place).may_open_first(asked) {
            self.spawn_open_http2(place, &mut state);
        }
        LeaseChoice::Wait
    }

    /// How many connections requests may share.
    fn max_connections(&self, place: ConnectionClass) -> usize {
        match place {
            ConnectionClass::Shared | ConnectionClass::Dedicated => self.max_http2_connections,
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => usize::MAX, // each of them takes a place among what lasts
        }
    }

    fn new_http2_lease(
        self: &Arc<Self>,
        shared: Arc<Http2Connection>,
        place: ConnectionClass,
    ) -> Http2Lease<W> {
        Http2Lease {
            connection: shared,
            class: place,
            pool: Arc::clone(self),
            slot: None,
            pending: None,
        }
    }

    /// A connection, and what to speak on it.
    async fn connect(&self) -> Result<(TlsConnection, Protocol), ForwardError> {
        let opened = self.connector.connect().await;
        self.metrics
            .record_connect(W::NAME, opened.as_ref().map(|(_, protocol)| *protocol));
        opened
    }

    /// The place of a connection that requests share which last.
    fn acquire_connection_slot(
        &self,
        place: ConnectionClass,
    ) -> Result<Option<RequestSlot>, ForwardError> {
        let room = self
            .connector
            .connection_budget()
            .filter(|_| place.is_long_running());
        room.map(ConnectionBudget::acquire_watch_connection)
            .transpose()
    }

    async fn open_http1(
        self: &Arc<Self>,
        place: ConnectionClass,
    ) -> Result<Lease<W>, ForwardError> {
        let generation = self.state().generation;
        let (connection, protocol) = self.connect().await?;
        if protocol == Protocol::Http2 {
            // The upstream has learned HTTP/2 since (an upgrade of the cluster): the next request sees it.
            let lasting = self.acquire_connection_slot(place)?;
            self.state().protocol = Some(protocol);
            let shared = self.add_http2(connection, 1, (place, lasting)).await?;
            return Ok(Lease::Http2(self.new_http2_lease(shared, place)));
        }
        let sender = self.handshake_http1(connection).await?;
        Ok(Lease::Http1(self.new_http1_lease(sender, generation)))
    }

    async fn handshake_http1(
        &self,
        connection: TlsConnection,
    ) -> Result<http1::SendRequest<RequestBody>, ForwardError> {
        let (sender, driver) = http_settings::http1_builder()
            .handshake(connection)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics.count_open(W::NAME);
        tokio::spawn(async move {
            let _ = driver.await; // whoever waits for an answer on it is told by hyper
            drop(open);
        });
        Ok(sender)
    }

    /// Opens a connection that others can share, in a task of its own: whoever asked first may go away.
    fn spawn_open_http2(self: &Arc<Self>, place: ConnectionClass, state: &mut PoolState) {
        state.http2.get_mut(place).begin_open();
        let generation = state.generation;
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = pool.open_http2(place, generation).await;
            let now = Clock.now();
            let paused = pool
                .state()
                .http2
                .get_mut(place)
                .finish_open(place, outcome, now);
            let changed = &pool.queues.get(place).changed;
            changed.notify_waiters();
            if let Some(until) = paused {
                tokio::time::sleep_until(until.into()).await;
                changed.notify_waiters(); // those who wait for a stream try again
            }
        });
    }

    async fn open_http2(
        self: &Arc<Self>,
        place: ConnectionClass,
        generation: u64,
    ) -> Result<(), ForwardError> {
        let lasting = self.acquire_connection_slot(place)?;
        let (connection, protocol) = self.connect().await?;
        match protocol {
            Protocol::Http2 => {
                self.add_http2(connection, 0, (place, lasting)).await?;
                self.state().protocol = Some(protocol);
            }
            Protocol::Http1 => {
                let sender = self.handshake_http1(connection).await?;
                self.state().protocol = Some(protocol);
                self.return_idle(sender, generation);
            }
        }
        Ok(())
    }

    /// Speaks HTTP/2 on `connection` and puts it up for sharing, so many streams taken.
    async fn add_http2(
        self: &Arc<Self>,
        connection: TlsConnection,
        taken: usize,
        (place, lasting): (ConnectionClass, Option<RequestSlot>),
    ) -> Result<Arc<Http2Connection>, ForwardError> {
        let (shared, driver) = Http2Connection::handshake(connection).await?;
        shared.active_streams.store(taken, Ordering::Release);
        self.state().http2.get_mut(place).add(Arc::clone(&shared));
        let (driven, pool) = (Arc::downgrade(&shared), Arc::downgrade(self));
        let open = self.metrics.count_open(W::NAME);
        tokio::spawn(async move {
            let waiting = Weak::clone(&pool);
            let changed = || {
                if let Some(pool) = waiting.upgrade() {
                    pool.queues.get(place).changed.notify_waiters();
                }
            };
            driver.run(driven, changed).await;
            drop((open, lasting));
            if let Some(pool) = pool.upgrade() {
                pool.state().http2.get_mut(place).remove_unusable();
                pool.queues.get(place).changed.notify_waiters();
            }
        });
        Ok(shared)
    }

    pub(super) fn return_idle(&self, sender: http1::SendRequest<RequestBody>, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.idle_http1.push((Clock.now(), sender));
        }
    }

    /// Closes what has been idle for too long; to be called now and then.
    pub fn close_idle(&self, now: Instant) {
        self.state().idle_http1.retain(|(since, sender)| {
            now.saturating_duration_since(*since) < IDLE_TIMEOUT && !sender.is_closed()
        });
    }

    /// Lets go of every connection as soon as nothing is under way on it: they show a certificate that is no longer the
    /// right one.
    pub fn retire_all(&self) {
        let mut state = self.state();
        state.generation += 1;
        state.idle_http1.clear();
        for lane in state.http2.each_mut() {
            lane.retire_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: AuthMode> std::fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool of {:?}", self.connector)
    }
}

impl PoolState {
    fn idle_connection(&mut self, now: Instant) -> Option<http1::SendRequest<RequestBody>> {
        while let Some((since, sender)) = self.idle_http1.pop() {
            if sender.is_ready() && now.saturating_duration_since(since) < IDLE_TIMEOUT {
                return Some(sender);
            }
        }
        None
    }
}

/// One of the waiting.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl<'a> WaiterGuard<'a> {
    fn enter(waiting: &'a AtomicUsize, metrics: &UpstreamMetrics) -> Result<Self, ForwardError> {
        if waiting.fetch_add(1, Ordering::AcqRel) >= MAX_WAITING {
            waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(ForwardError::TooManyWaiting(MAX_WAITING));
        }
        metrics.stream_waits.inc();
        Ok(Self(waiting))
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
