//! What requests that end and those that last have apart: their HTTP/2 connections, and who waits for a stream of them.
//!
//! A watch keeps its stream for as long as its client likes. On connections for both, watches would come to have every stream,
//! however many there are, and nothing that ends would get through any more.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::Notify;

use crate::upstream::ForwardError;
use crate::upstream::connection::http2::Http2Connection;

/// After a failure to connect, no other connection is tried for this long where there are some: requests that wait for their
/// streams would try again at once, and again.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// On what a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// For a request that ends: a connection with others on it, if HTTP/2 can be spoken.
    Shared,
    /// For a watch, which lasts: likewise, with other watches.
    SharedWatch,
    /// For a request that ends, and with it the HTTP/2 connection that it comes by: one of HTTP/1.1, which stays.
    Dedicated,
    /// For what lasts and is sent by whoever the client likes (a log, a Pod behind the API server's proxy): an HTTP/1.1 connection.
    /// On a shared one, small frames that its client does not read would cost the others their connection.
    DedicatedLongRunning,
}

impl ConnectionClass {
    /// Where the same request costs nobody else a connection.
    pub(in crate::upstream) const fn dedicated(self) -> Self {
        match self {
            Self::Shared | Self::Dedicated => Self::Dedicated,
            Self::SharedWatch | Self::DedicatedLongRunning => Self::DedicatedLongRunning,
        }
    }

    /// Whether its requests last as long as their clients like.
    pub(in crate::upstream) const fn is_long_running(self) -> bool {
        matches!(self, Self::SharedWatch | Self::DedicatedLongRunning)
    }
}

/// One for requests that end, and one for those that last.
#[derive(Default)]
pub(in crate::upstream) struct PerClass<T> {
    short: T,
    long_running: T,
}

impl<T> PerClass<T> {
    pub(in crate::upstream) const fn get(&self, place: ConnectionClass) -> &T {
        match place {
            ConnectionClass::Shared | ConnectionClass::Dedicated => &self.short,
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                &self.long_running
            }
        }
    }

    pub(in crate::upstream) const fn get_mut(&mut self, place: ConnectionClass) -> &mut T {
        match place {
            ConnectionClass::Shared | ConnectionClass::Dedicated => &mut self.short,
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                &mut self.long_running
            }
        }
    }

    pub(in crate::upstream) fn each_mut(&mut self) -> [&mut T; 2] {
        [&mut self.short, &mut self.long_running]
    }
}

/// Those who wait for a stream or for the first connection.
#[derive(Default)]
pub(in crate::upstream) struct WaitQueue {
    /// Something became free, was opened, or failed.
    pub(in crate::upstream) changed: Notify,
    pub(in crate::upstream) waiting: AtomicUsize,
}

/// HTTP/2 connections.
#[derive(Default)]
pub(in crate::upstream) struct SharedConnections {
    connections: Vec<Arc<Http2Connection>>,
    opening: usize,
    /// The last failure to connect, while nothing came of another try: for those who have nothing else to wait for.
    last_failure: Option<(Instant, ForwardError)>,
    /// Until then no connection is opened beside others.
    paused_until: Option<Instant>,
}

/// What a lane has to give.
pub(in crate::upstream) enum StreamAvailability {
    /// There is no connection.
    NoConnection,
    /// On the connection with the fewest: one of them, if there was one left, and whether nearly all are in use.
    Connected {
        taken: Option<Arc<Http2Connection>>,
        crowded: bool,
    },
}

impl SharedConnections {
    /// Takes a stream.
    pub(in crate::upstream) fn acquire_stream(&mut self) -> StreamAvailability {
        self.remove_unusable();
        let in_use = |shared: &Arc<Http2Connection>| shared.active_streams.load(Ordering::Acquire);
        let Some(least) = self.connections.iter().min_by_key(|shared| in_use(shared)) else {
            return StreamAvailability::NoConnection;
        };
        let (streams, most) = (in_use(least), least.max_streams());
        StreamAvailability::Connected {
            taken: (streams < most).then(|| {
                least.active_streams.fetch_add(1, Ordering::AcqRel);
                Arc::clone(least)
            }),
            crowded: (streams + 1).saturating_mul(4) > most.saturating_mul(3),
        }
    }

    /// Whether another connection is to be opened for somebody who asked at `asked`, where there is none.
    pub(in crate::upstream) fn may_open_first(&self, asked: Instant) -> bool {
        self.opening == 0 && self.last_failure.as_ref().is_none_or(|(at, _)| *at < asked)
    }

    /// Whether another connection may be opened beside those that there are.
    pub(in crate::upstream) fn may_open_another(&self, most: usize, now: Instant) -> bool {
        self.opening == 0
            && self.connections.len() < most
            && self.paused_until.is_none_or(|until| until <= now)
    }

    /// A connection is being opened.
    pub(in crate::upstream) const fn begin_open(&mut self) {
        self.opening += 1;
    }

    /// It serves from now on.
    pub(in crate::upstream) fn add(&mut self, shared: Arc<Http2Connection>) {
        self.connections.push(shared);
        self.last_failure = None;
    }

    /// What came of opening one. Until when no other is opened, if that is so.
    pub(in crate::upstream) fn finish_open(
        &mut self,
        place: ConnectionClass,
        outcome: Result<(), ForwardError>,
        now: Instant,
    ) -> Option<Instant> {
        self.remove_unusable();
        self.opening = self.opening.saturating_sub(1);
        self.paused_until =
            (outcome.is_err() && !self.connections.is_empty()).then(|| now + CONNECT_PAUSE);
        // Where there are others, a stream of theirs comes free: a watch's hardly ever does.
        let told = self.paused_until.is_none() || place == ConnectionClass::SharedWatch;
        self.last_failure = outcome.err().filter(|_| told).map(|why| (now, why));
        self.paused_until
    }

    /// The failure to connect after which who `asked` has nothing left to wait for.
    pub(in crate::upstream) fn failure_since(
        &self,
        asked: Instant,
        now: Instant,
    ) -> Option<ForwardError> {
        let (at, why) = self.last_failure.as_ref()?;
        let lately = *at >= asked || self.paused_until.is_some_and(|until| now < until);
        (lately && self.opening == 0).then(|| why.clone())
    }

    pub(in crate::upstream) fn remove_unusable(&mut self) {
        self.connections.retain(|shared| shared.is_usable());
    }

    /// Its connections take no more requests.
    pub(in crate::upstream) fn retire_all(&mut self) {
        for shared in self.connections.drain(..) {
            shared.retire();
        }
    }
}
