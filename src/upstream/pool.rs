//! Connections to the upstream, kept and shared: one [`Pool`] for each [`Way`].
//!
//! HTTP/2: requests share a few connections, each on the one with the fewest streams. When every connection has 75 % of
//! the streams taken that the peer allows, another is opened, up to a limit; when every stream is taken, requests wait,
//! a bounded number of them. Watches share others, as many as they need: their bound is the [room](crate::upstream::room) for
//! what lasts, beyond which they are refused ([`lane`](crate::upstream::lane)). HTTP/1.1: a stack of idle connections, the last
//! used first, so that the rest can go idle and be closed; requests that last and that somebody else fills (logs, proxies) are
//! on these whatever the API server speaks. Nothing is awaited under the lock.

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
use crate::upstream::Metrics;
use crate::upstream::body::RequestBody;
use crate::upstream::cdn_loop::ProcessId;
use crate::upstream::connector::Connection;
use crate::upstream::connector::Connector;
use crate::upstream::connector::Protocol;
use crate::upstream::forward::End;
use crate::upstream::headers::Outbound;
use crate::upstream::headers::Way;
use crate::upstream::http1::Own1;
use crate::upstream::http2::Pending;
use crate::upstream::http2::Shared;
use crate::upstream::lane::Each;
use crate::upstream::lane::Lane;
use crate::upstream::lane::Place;
use crate::upstream::lane::Queue;
use crate::upstream::lane::Streams;
use crate::upstream::retry_budget::RetryBudget;
use crate::upstream::room::Requester;
use crate::upstream::room::Room;
use crate::upstream::room::Share;
use crate::upstream::settings;

/// An idle HTTP/1.1 connection is closed after this long: well below the 90 s after which kube-apiserver closes it
/// itself, so that a request is hardly ever sent into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Most requests of a kind that wait for an HTTP/2 stream or for the first connection; one more is told so at once.
const MOST_WAITING: usize = 1024;

/// Handshakes for HTTP/1.1 beside HTTP/2 that are under way at a time, of each worker and way.
const HANDSHAKES_AT_A_TIME: usize = 32;

/// How long a request that was given up may go on before its stream is reset, or its connection closed. Nearly all have their answer
/// by then, and what is not reset costs the API server nothing beyond it: Go's server gives up a connection whose streams are reset faster than their handlers
/// end. A longer one is a list that is better ended.
pub(super) const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Longest that a request waits for a stream, if its own time does not end before: a watch has none.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Connections for the way `W`.
pub struct Pool<W> {
    connector: Connector<W>,
    /// Most HTTP/2 connections for requests that end (`--upstream-max-connections`).
    most: usize,
    /// What its requests list in `CDN-Loop`; nothing where they go to others than the API server.
    id: Option<ProcessId>,
    /// Guards the lists; held for a look at them, never across an await.
    state: Mutex<State>,
    queues: Each<Queue>,
    /// Requests that wait for a connection's handshake.
    waiting_apart: AtomicUsize,
    budget: RetryBudget,
    /// Connections of HTTP/1.1 beside HTTP/2, of which so many are opened at a time: each costs the API server a handshake.
    handshakes: Semaphore,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    speaks: Option<Protocol>,
    lanes: Each<Lane>,
    idle: Vec<(Instant, http1::SendRequest<RequestBody>)>,
    /// Connections of an earlier one are not kept: they show a certificate that is no longer the right one.
    generation: u64,
}

/// A connection's turn for one request; dropping it gives the turn back.
pub(super) enum Lease<W: Way> {
    Http1(Own1<W>),
    Http2(Own2<W>),
}

/// A stream of an HTTP/2 connection.
pub(super) struct Own2<W: Way> {
    shared: Arc<Shared>,
    place: Place,
    pool: Arc<Pool<W>>,
    /// What a watch takes of the places for watches.
    share: Option<Share>,
    /// Its request, until the answer begins.
    pub(super) pending: Option<Pending>,
}

impl<W: Way> Own2<W> {
    pub(super) fn connection(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Gives its request up: lets it finish if that is soon, resets the stream otherwise, and then waits until that was seen.
    pub(super) fn give_up(&mut self) -> impl Future<Output = End> + Send + use<W> {
        let (pending, connection) = (self.pending.take(), self.connection());
        let has_end = !self.place.lasts();
        async move {
            if let Some(pending) = pending
                && let Ok(true) = timeout(FINISH_WITHIN, pending.finish(has_end)).await
            {
                return End::Finished;
            }
            // An upload that was under way is ended by the runtime, when it comes to it: its reset goes out before it is counted.
            tokio::task::yield_now().await;
            connection.reset().await;
            End::Reset
        }
    }
}

impl<W: Way> Drop for Own2<W> {
    fn drop(&mut self) {
        self.shared.streams.fetch_sub(1, Ordering::AcqRel);
        let queue = self.pool.queues.of(self.place);
        if queue.waiting.load(Ordering::Acquire) > 0 {
            queue.changed.notify_one();
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
    pub fn new(
        connector: Connector<W>,
        most: usize,
        id: Option<ProcessId>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            most: most.max(1),
            id,
            state: Mutex::default(),
            queues: Each::default(),
            waiting_apart: AtomicUsize::new(0),
            budget: RetryBudget::default(),
            handshakes: Semaphore::new(HANDSHAKES_AT_A_TIME),
            metrics,
        })
    }

    pub(super) fn connector(&self) -> &Connector<W> {
        &self.connector
    }

    /// Lists this weir in a request, before its first try.
    pub(super) fn identify(&self, head: &mut Outbound<W>) {
        if let Some(id) = &self.id {
            head.list(id);
        }
    }

    pub(super) fn budget(&self) -> &RetryBudget {
        &self.budget
    }

    /// Opens an HTTP/1.1 connection whatever the API server speaks, when its turn has come.
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
    pub(super) async fn lease(
        self: &Arc<Self>,
        place: Place,
        requester: &Requester,
    ) -> Result<Lease<W>, ForwardError> {
        let asked = Clock.now();
        let http1 = !W::HTTP2
            || matches!(place, Place::Alone | Place::Apart)
            || (place.lasts() && self.state().speaks == Some(Protocol::Http1));
        // Before anything is opened for it.
        let share = self.share_for(place, http1, requester)?;
        if matches!(place, Place::Alone | Place::Apart) {
            return Box::pin(self.lease_http1(share, asked)).await;
        }
        let mut lease = match self.choose(place, asked) {
            Choice::Take(lease) => lease,
            // In boxes: who takes what is there does not pay for the room.
            Choice::Open => Box::pin(self.open_http1(place)).await?,
            Choice::Wait => Box::pin(self.wait_for_lease(place, asked)).await?,
        };
        match &mut lease {
            Lease::Http2(own) => own.share = share,
            Lease::Http1(own) if http1 => own.share = share,
            Lease::Http1(own) => {
                let share = self.share_for(place, true, requester);
                own.share = share.inspect_err(|_| own.complete())?;
            }
        }
        Ok(lease)
    }

    /// What a request takes of the places for its kind.
    fn share_for(
        &self,
        place: Place,
        http1: bool,
        requester: &Requester,
    ) -> Result<Option<Share>, ForwardError> {
        let Some(room) = self.connector.room() else {
            return Ok(None);
        };
        match place {
            Place::Shared | Place::Alone => room.end(requester),
            Place::SharedForLong if !http1 => room.watch(requester).map(Some),
            Place::SharedForLong | Place::Apart => room.last(requester).map(Some),
        }
    }

    async fn lease_http1(
        self: &Arc<Self>,
        share: Option<Share>,
        asked: Instant,
    ) -> Result<Lease<W>, ForwardError> {
        let (idle, generation) = {
            let mut state = self.state();
            (state.idle_connection(asked), state.generation)
        };
        let sender = match idle {
            Some(sender) => sender,
            None => self.speak_http1(self.connect_http1().await?).await?,
        };
        let mut own = self.own1(sender, generation);
        own.share = share;
        Ok(Lease::Http1(own))
    }

    fn own1(self: &Arc<Self>, sender: http1::SendRequest<RequestBody>, generation: u64) -> Own1<W> {
        Own1::new(sender, generation, Arc::clone(self))
    }

    async fn wait_for_lease(
        self: &Arc<Self>,
        place: Place,
        asked: Instant,
    ) -> Result<Lease<W>, ForwardError> {
        let queue = self.queues.of(place);
        let _waiting = Waiting::enter(&queue.waiting, &self.metrics)?;
        let give_up = (asked + LONGEST_WAIT).into();
        loop {
            // Registered before looking again: what changes in between is not missed.
            let mut changed = std::pin::pin!(queue.changed.notified());
            changed.as_mut().enable();
            match self.choose(place, asked) {
                Choice::Take(lease) => return Ok(lease),
                Choice::Open => return Box::pin(self.open_http1(place)).await,
                Choice::Wait => {}
            }
            let failed = self.state().lanes.of(place).failed(asked, Clock.now());
            if let Some(failure) = failed {
                return Err(failure);
            }
            if timeout_at(give_up, changed).await.is_err() {
                return Err(ForwardError::NoStream(LONGEST_WAIT));
            }
        }
    }

    fn choose(self: &Arc<Self>, place: Place, asked: Instant) -> Choice<W> {
        let mut state = self.state();
        let lane = state.lanes.of_mut(place);
        if let Streams::Some { taken, crowded } = lane.take() {
            if crowded && lane.may_open_another(self.most(place), Clock.now()) {
                self.open_shared(place, &mut state);
            }
            return taken.map_or(Choice::Wait, |shared| {
                Choice::Take(Lease::Http2(self.own2(shared, place)))
            });
        }
        if state.speaks == Some(Protocol::Http1) || !W::HTTP2 {
            return state.idle_connection(asked).map_or(Choice::Open, |sender| {
                Choice::Take(Lease::Http1(self.own1(sender, state.generation)))
            });
        }
        if state.lanes.of(place).may_open_first(asked) {
            self.open_shared(place, &mut state);
        }
        Choice::Wait
    }

    /// How many connections requests may share.
    fn most(&self, place: Place) -> usize {
        match place {
            Place::Shared | Place::Alone => self.most,
            Place::SharedForLong | Place::Apart => usize::MAX, // each of them takes a place among what lasts
        }
    }

    fn own2(self: &Arc<Self>, shared: Arc<Shared>, place: Place) -> Own2<W> {
        Own2 {
            shared,
            place,
            pool: Arc::clone(self),
            share: None,
            pending: None,
        }
    }

    /// A connection, and what to speak on it.
    async fn connect(&self) -> Result<(Connection, Protocol), ForwardError> {
        let opened = self.connector.connect().await;
        self.metrics
            .connected(W::NAME, opened.as_ref().map(|(_, protocol)| *protocol));
        opened
    }

    /// The place of a connection that requests share which last.
    fn lasting(&self, place: Place) -> Result<Option<Share>, ForwardError> {
        let room = self.connector.room().filter(|_| place.lasts());
        room.map(Room::connect_watches).transpose()
    }

    async fn open_http1(self: &Arc<Self>, place: Place) -> Result<Lease<W>, ForwardError> {
        let generation = self.state().generation;
        let (connection, protocol) = self.connect().await?;
        if protocol == Protocol::Http2 {
            // The upstream has learned HTTP/2 since (an upgrade of the cluster): the next request sees it.
            let lasting = self.lasting(place)?;
            self.state().speaks = Some(protocol);
            let shared = self.share(connection, 1, (place, lasting)).await?;
            return Ok(Lease::Http2(self.own2(shared, place)));
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
    fn open_shared(self: &Arc<Self>, place: Place, state: &mut State) {
        state.lanes.of_mut(place).open();
        let generation = state.generation;
        let pool = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = pool.opened_shared(place, generation).await;
            let now = Clock.now();
            let paused = pool.state().lanes.of_mut(place).opened(place, outcome, now);
            let changed = &pool.queues.of(place).changed;
            changed.notify_waiters();
            if let Some(until) = paused {
                tokio::time::sleep_until(until.into()).await;
                changed.notify_waiters(); // those who wait for a stream try again
            }
        });
    }

    async fn opened_shared(
        self: &Arc<Self>,
        place: Place,
        generation: u64,
    ) -> Result<(), ForwardError> {
        let lasting = self.lasting(place)?;
        let (connection, protocol) = self.connect().await?;
        match protocol {
            Protocol::Http2 => {
                self.share(connection, 0, (place, lasting)).await?;
                self.state().speaks = Some(protocol);
            }
            Protocol::Http1 => {
                let sender = self.speak_http1(connection).await?;
                self.state().speaks = Some(protocol);
                self.put_back(sender, generation);
            }
        }
        Ok(())
    }

    /// Speaks HTTP/2 on `connection` and puts it up for sharing, so many streams taken.
    async fn share(
        self: &Arc<Self>,
        connection: Connection,
        taken: usize,
        (place, lasting): (Place, Option<Share>),
    ) -> Result<Arc<Shared>, ForwardError> {
        let (shared, driver) = Shared::open(connection).await?;
        shared.streams.store(taken, Ordering::Release);
        self.state().lanes.of_mut(place).add(Arc::clone(&shared));
        let (driven, pool) = (Arc::downgrade(&shared), Arc::downgrade(self));
        let open = self.metrics.open(W::NAME);
        tokio::spawn(async move {
            let waiting = Weak::clone(&pool);
            let changed = || {
                if let Some(pool) = waiting.upgrade() {
                    pool.queues.of(place).changed.notify_waiters();
                }
            };
            driver.run(driven, changed).await;
            drop((open, lasting));
            if let Some(pool) = pool.upgrade() {
                pool.state().lanes.of_mut(place).forget_unusable();
                pool.queues.of(place).changed.notify_waiters();
            }
        });
        Ok(shared)
    }

    pub(super) fn put_back(&self, sender: http1::SendRequest<RequestBody>, generation: u64) {
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
        for lane in state.lanes.both() {
            lane.leave();
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
