//! Connections to the upstream, kept and shared: one [`Pool`] for each [`Way`].
//!
//! HTTP/2: requests share a few connections, each on the one with the fewest streams. When every connection has 75 % of
//! the streams taken that the peer allows, another is opened, up to a limit; when every stream is taken, requests wait,
//! a bounded number of them. HTTP/1.1: a stack of idle connections, the last used first, so that the rest can go
//! idle and be closed; requests that last and that somebody else fills (logs, proxies) are on these whatever the API server
//! speaks. Nothing is awaited under the lock.

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
use tokio::sync::Notify;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio::time::timeout_at;

use crate::clock::Clock;
use crate::upstream::ForwardError;
use crate::upstream::Metrics;
use crate::upstream::body::RequestBody;
use crate::upstream::connector::Connection;
use crate::upstream::connector::Connector;
use crate::upstream::connector::Protocol;
use crate::upstream::headers::Way;
use crate::upstream::http2::Shared;
use crate::upstream::retry_budget::RetryBudget;
use crate::upstream::room::Taken;
use crate::upstream::settings;

/// An idle HTTP/1.1 connection is closed after this long: well below the 90 s after which kube-apiserver closes it
/// itself, so that a request is hardly ever sent into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Most requests that wait for an HTTP/2 stream or for the first connection; one more is told so at once.
const MOST_WAITING: usize = 1024;

/// Handshakes for requests that last that are under way at a time, of each worker and way.
const HANDSHAKES_AT_A_TIME: usize = 32;

/// How long the rest of an upload may take that goes on after its answer has ended; then it costs the connection.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// Longest that a request waits for a stream, if its own time does not end before: a watch has none.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// After a failure to connect, no other connection is tried for this long where there are some: requests that wait for their
/// streams would try again at once, and again.
const PAUSE: Duration = Duration::from_secs(1);

/// Connections for the way `W`.
pub struct Pool<W> {
    connector: Connector<W>,
    /// Most HTTP/2 connections (`--upstream-max-connections`).
    most: usize,
    /// Guards the lists; held for a look at them, never across an await.
    state: Mutex<State>,
    /// Something became free, was opened, or failed.
    changed: Notify,
    waiting: AtomicUsize,
    /// Likewise, for a connection's handshake.
    waiting_apart: AtomicUsize,
    budget: RetryBudget,
    /// Connections for requests that last, of which so many are opened at a time: each costs the API server a handshake.
    handshakes: Semaphore,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    speaks: Option<Protocol>,
    shared: Vec<Arc<Shared>>,
    idle: Vec<(Instant, http1::SendRequest<RequestBody>)>,
    opening: usize,
    /// Connections of an earlier one are not kept: they show a certificate that is no longer the right one.
    generation: u64,
    /// The last failure to connect, for those who were waiting when it happened.
    failed: Option<(Instant, ForwardError)>,
    /// Until then no connection is opened beside others.
    pause: Option<Instant>,
}

/// On what a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// For a request that ends: a connection with others on it, if HTTP/2 can be spoken.
    Shared,
    /// For a watch, which lasts: likewise.
    SharedForLong,
    /// For what lasts and is sent by whoever the client likes (a log, a Pod behind the API server's proxy): an HTTP/1.1 connection.
    /// On a shared one, small frames that its client does not read would cost the others their connection.
    Apart,
}

/// A connection's turn for one request; dropping it gives the turn back.
pub(super) enum Lease<W: Way> {
    Http1(Own1<W>),
    Http2(Own2<W>),
}

/// The sole use of an HTTP/1.1 connection. Only after [`Own1::complete`] does it serve another request.
pub(super) struct Own1<W: Way> {
    pub(super) sender: Option<http1::SendRequest<RequestBody>>,
    generation: u64,
    pool: Arc<Pool<W>>,
    /// The place of a request that lasts.
    lasting: Option<Taken>,
}

impl<W: Way> Own1<W> {
    /// The exchange has come to its end: the connection may serve another.
    pub(super) fn complete(&mut self) {
        self.lasting = None;
        let Some(mut sender) = self.sender.take() else {
            return;
        };
        let (pool, generation) = (Arc::clone(&self.pool), self.generation);
        if sender.is_ready() {
            pool.put_back(sender, generation);
        } else if !sender.is_closed() {
            tokio::spawn(async move {
                if let Ok(Ok(())) = timeout(LEFTOVERS, sender.ready()).await {
                    pool.put_back(sender, generation);
                }
            });
        }
    }
}

/// A stream of an HTTP/2 connection.
pub(super) struct Own2<W: Way> {
    shared: Arc<Shared>,
    pool: Arc<Pool<W>>,
}

impl<W: Way> Own2<W> {
    pub(super) fn connection(&self) -> &Shared {
        &self.shared
    }
}

impl<W: Way> Drop for Own2<W> {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Ordering::AcqRel);
        if self.pool.waiting.load(Ordering::Acquire) > 0 {
            self.pool.changed.notify_one();
        }
    }
}

enum Choice<W: Way> {
    Take(Lease<W>),
    /// Open a connection for oneself (HTTP/1.1).
    Open,
    /// Somebody opens one, or somebody's stream will end.
    Wait,
}

impl<W: Way> Pool<W> {
    /// A pool without connections; the first request opens one.
    #[must_use]
    pub fn new(connector: Connector<W>, most: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            connector,
            most: most.max(1),
            state: Mutex::default(),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
            waiting_apart: AtomicUsize::new(0),
            budget: RetryBudget::default(),
            handshakes: Semaphore::new(HANDSHAKES_AT_A_TIME),
            metrics,
        })
    }

    pub(super) fn connector(&self) -> &Connector<W> {
        &self.connector
    }

    pub(super) fn budget(&self) -> &RetryBudget {
        &self.budget
    }

    /// Opens an HTTP/1.1 connection for a request that lasts, when its turn has come.
    ///
    /// # Errors
    /// There is no connection to be had, or too many wait for their turn.
    pub(super) async fn connect_http1(&self) -> Result<Connection, ForwardError> {
        let _turn = match self.handshakes.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                let _waiting = Waiting::enter(&self.waiting_apart, &self.metrics)?;
                let turn = timeout(LONGEST_WAIT, self.handshakes.acquire()).await;
                turn.map_err(|_| ForwardError::NoStream(LONGEST_WAIT))?
                    .map_err(|_| ForwardError::Closed)?
            }
        };
        let opened = self.connector.connect_http1().await;
        let tried = opened.as_ref().map(|_| Protocol::Http1);
        self.metrics.connected(W::NAME, tried);
        opened
    }

    pub(super) fn address(&self) -> &str {
        self.connector.authority().as_str()
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// A turn on a connection.
    ///
    /// # Errors
    /// If there is none to be had; nothing has been sent then.
    ///
    /// # Cancel safety
    /// Nothing is lost: an HTTP/2 connection that is being opened goes on and serves somebody else.
    pub(super) async fn lease(self: &Arc<Self>, place: Place) -> Result<Lease<W>, ForwardError> {
        let asked = Clock.now();
        if place == Place::Apart {
            return Box::pin(self.lease_apart(asked)).await;
        }
        let mut lease = match self.choose(asked) {
            Choice::Take(lease) => lease,
            // In boxes: who takes what is there does not pay for the room.
            Choice::Open => Box::pin(self.open_http1()).await?,
            Choice::Wait => Box::pin(self.wait_for_lease(asked)).await?,
        };
        if let (Lease::Http1(own), Place::SharedForLong) = (&mut lease, place) {
            own.lasting = self.connector.last().inspect_err(|_| own.complete())?;
        }
        Ok(lease)
    }

    async fn lease_apart(self: &Arc<Self>, asked: Instant) -> Result<Lease<W>, ForwardError> {
        let lasting = self.connector.last()?;
        let (idle, generation) = {
            let mut state = self.state();
            (state.idle_connection(asked), state.generation)
        };
        let sender = match idle {
            Some(sender) => sender,
            None => self.speak_http1(self.connect_http1().await?).await?,
        };
        let mut own = self.own1(sender, generation);
        own.lasting = lasting;
        Ok(Lease::Http1(own))
    }

    fn own1(self: &Arc<Self>, sender: http1::SendRequest<RequestBody>, generation: u64) -> Own1<W> {
        Own1 {
            sender: Some(sender),
            generation,
            pool: Arc::clone(self),
            lasting: None,
        }
    }

    async fn wait_for_lease(self: &Arc<Self>, asked: Instant) -> Result<Lease<W>, ForwardError> {
        let _waiting = Waiting::enter(&self.waiting, &self.metrics)?;
        let give_up = (asked + LONGEST_WAIT).into();
        loop {
            // Registered before looking again: what changes in between is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.choose(asked) {
                Choice::Take(lease) => return Ok(lease),
                Choice::Open => return Box::pin(self.open_http1()).await,
                Choice::Wait => {}
            }
            if let Some(failure) = self.state().failed_since(asked) {
                return Err(failure);
            }
            if timeout_at(give_up, changed).await.is_err() {
                return Err(ForwardError::NoStream(LONGEST_WAIT));
            }
        }
    }

    fn choose(self: &Arc<Self>, now: Instant) -> Choice<W> {
        let mut state = self.state();
        state.shared.retain(|shared| shared.usable());
        let least = state
            .shared
            .iter()
            .min_by_key(|s| s.streams.load(Ordering::Acquire));
        if let Some(least) = least {
            let streams = least.streams.load(Ordering::Acquire);
            let most = least.most_streams();
            let lease = (streams < most).then(|| {
                least.streams.fetch_add(1, Ordering::AcqRel);
                Lease::Http2(Own2 {
                    shared: Arc::clone(least),
                    pool: Arc::clone(self),
                })
            });
            let crowded = (streams + 1).saturating_mul(4) > most.saturating_mul(3);
            let may = crowded && state.opening == 0 && state.shared.len() < self.most;
            if may && state.pause.is_none_or(|until| until <= Clock.now()) {
                self.open_shared(&mut state);
            }
            return lease.map_or(Choice::Wait, Choice::Take);
        }
        if state.speaks == Some(Protocol::Http1) || !W::HTTP2 {
            return state.idle_connection(now).map_or(Choice::Open, |sender| {
                Choice::Take(Lease::Http1(self.own1(sender, state.generation)))
            });
        }
        let failed_just_now = state.failed.as_ref().is_some_and(|(at, _)| *at >= now);
        if state.opening == 0 && !failed_just_now {
            self.open_shared(&mut state);
        }
        Choice::Wait
    }

    async fn open_http1(self: &Arc<Self>) -> Result<Lease<W>, ForwardError> {
        let generation = self.state().generation;
        let opened = self.connector.connect().await;
        self.metrics
            .connected(W::NAME, opened.as_ref().map(|(_, protocol)| *protocol));
        let (connection, protocol) = opened?;
        if protocol == Protocol::Http2 {
            // The upstream has learned HTTP/2 since (an upgrade of the cluster): the next request sees it.
            self.state().speaks = Some(protocol);
            let shared = self.share(connection, 1).await?;
            return Ok(Lease::Http2(Own2 {
                shared,
                pool: Arc::clone(self),
            }));
        }
        let sender = self.speak_http1(connection).await?;
        Ok(Lease::Http1(self.own1(sender, generation)))
    }

    async fn speak_http1(
        &self,
        connection: Connection,
    ) -> Result<http1::SendRequest<RequestBody>, ForwardError> {
        let (sender, driver) = settings::client_http1()
            .handshake(connection)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics.open(W::NAME);
        tokio::spawn(async move {
            let _ = driver.await; // whoever waits for an answer on it is told by hyper
            drop(open);
        });
        Ok(sender)
    }

    /// Opens a connection that others can share, in a task of its own: whoever asked first may go away.
    fn open_shared(self: &Arc<Self>, state: &mut State) {
        state.opening += 1;
        let generation = state.generation;
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let opened = pool.connector.connect().await;
            pool.metrics
                .connected(W::NAME, opened.as_ref().map(|(_, protocol)| *protocol));
            let outcome = match opened {
                Ok((connection, Protocol::Http2)) => pool.share(connection, 0).await.map(|_| {
                    pool.state().speaks = Some(Protocol::Http2);
                }),
                Ok((connection, Protocol::Http1)) => {
                    pool.speak_http1(connection).await.map(|sender| {
                        pool.state().speaks = Some(Protocol::Http1);
                        pool.put_back(sender, generation);
                    })
                }
                Err(failure) => Err(failure),
            };
            let paused = pool.opened(outcome);
            pool.changed.notify_waiters();
            if let Some(until) = paused {
                tokio::time::sleep_until(until.into()).await;
                pool.changed.notify_waiters(); // those who wait for a stream try again
            }
        });
    }

    /// Takes note of how it went. Until when no other is opened, if that is so.
    fn opened(&self, outcome: Result<(), ForwardError>) -> Option<Instant> {
        let mut state = self.state();
        state.opening = state.opening.saturating_sub(1);
        let now = Clock.now();
        state.failed = Some((now, outcome.err()?));
        state.pause = (!state.shared.is_empty()).then(|| now + PAUSE);
        state.pause
    }

    /// Speaks HTTP/2 on `connection` and puts it up for sharing, so many streams taken.
    async fn share(
        self: &Arc<Self>,
        connection: Connection,
        taken: usize,
    ) -> Result<Arc<Shared>, ForwardError> {
        let (shared, driver) = Shared::open(connection).await?;
        shared.streams.store(taken, Ordering::Release);
        self.state().shared.push(Arc::clone(&shared));
        let (driven, pool) = (Arc::downgrade(&shared), Arc::downgrade(self));
        let open = self.metrics.open(W::NAME);
        tokio::spawn(async move {
            let waiting = Weak::clone(&pool);
            let changed = || {
                if let Some(pool) = waiting.upgrade() {
                    pool.changed.notify_waiters();
                }
            };
            driver.run(driven, changed).await;
            drop(open);
            if let Some(pool) = pool.upgrade() {
                pool.state().shared.retain(|shared| shared.usable());
                pool.changed.notify_waiters();
            }
        });
        Ok(shared)
    }

    fn put_back(&self, sender: http1::SendRequest<RequestBody>, generation: u64) {
        let mut state = self.state();
        if state.generation == generation {
            state.idle.push((Clock.now(), sender));
        }
    }

    /// Closes what has been idle for too long; to be called now and then.
    pub fn close_idle(&self, now: Instant) {
        self.state().idle.retain(|(since, sender)| {
            now.saturating_duration_since(*since) < IDLE_TIMEOUT && !sender.is_closed()
        });
    }

    /// Lets go of every connection as soon as nothing is under way on it: they show a certificate that is no longer the
    /// right one.
    pub fn renew(&self) {
        let mut state = self.state();
        state.generation += 1;
        state.idle.clear();
        for shared in state.shared.drain(..) {
            shared.leaving();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Way> std::fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool of {:?}", self.connector)
    }
}

impl State {
    /// The failure to connect after which nothing is left to wait for.
    fn failed_since(&self, asked: Instant) -> Option<ForwardError> {
        let (at, failure) = self.failed.as_ref()?;
        (*at >= asked && self.shared.is_empty() && self.opening == 0).then(|| failure.clone())
    }

    fn idle_connection(&mut self, now: Instant) -> Option<http1::SendRequest<RequestBody>> {
        while let Some((since, sender)) = self.idle.pop() {
            if sender.is_ready() && now.saturating_duration_since(since) < IDLE_TIMEOUT {
                return Some(sender);
            }
        }
        None
    }
}

/// One of the waiting.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicUsize, metrics: &Metrics) -> Result<Self, ForwardError> {
        if waiting.fetch_add(1, Ordering::AcqRel) >= MOST_WAITING {
            waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(ForwardError::TooManyWaiting(MOST_WAITING));
        }
        metrics.stream_waits.inc();
        Ok(Self(waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
