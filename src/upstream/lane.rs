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
use crate::upstream::http2::Shared;

/// After a failure to connect, no other connection is tried for this long where there are some: requests that wait for their
/// streams would try again at once, and again.
const PAUSE: Duration = Duration::from_secs(1);

/// On what a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// For a request that ends: a connection with others on it, if HTTP/2 can be spoken.
    Shared,
    /// For a watch, which lasts: likewise, with other watches.
    SharedForLong,
    /// For a request that ends, and with it the HTTP/2 connection that it comes by: one of HTTP/1.1, which stays.
    Alone,
    /// For what lasts and is sent by whoever the client likes (a log, a Pod behind the API server's proxy): an HTTP/1.1 connection.
    /// On a shared one, small frames that its client does not read would cost the others their connection.
    Apart,
}

impl Place {
    /// Where the same request costs nobody else a connection.
    pub(super) const fn alone(self) -> Self {
        match self {
            Self::Shared | Self::Alone => Self::Alone,
            Self::SharedForLong | Self::Apart => Self::Apart,
        }
    }

    /// Whether its requests last as long as their clients like.
    pub(super) const fn lasts(self) -> bool {
        matches!(self, Self::SharedForLong | Self::Apart)
    }
}

/// One for requests that end, and one for those that last.
#[derive(Default)]
pub(super) struct Each<T> {
    ends: T,
    lasts: T,
}

impl<T> Each<T> {
    pub(super) const fn of(&self, place: Place) -> &T {
        match place {
            Place::Shared | Place::Alone => &self.ends,
            Place::SharedForLong | Place::Apart => &self.lasts,
        }
    }

    pub(super) const fn of_mut(&mut self, place: Place) -> &mut T {
        match place {
            Place::Shared | Place::Alone => &mut self.ends,
            Place::SharedForLong | Place::Apart => &mut self.lasts,
        }
    }

    pub(super) fn both(&mut self) -> [&mut T; 2] {
        [&mut self.ends, &mut self.lasts]
    }
}

/// Those who wait for a stream or for the first connection.
#[derive(Default)]
pub(super) struct Queue {
    /// Something became free, was opened, or failed.
    pub(super) changed: Notify,
    pub(super) waiting: AtomicUsize,
}

/// HTTP/2 connections.
#[derive(Default)]
pub(super) struct Lane {
    shared: Vec<Arc<Shared>>,
    opening: usize,
    /// The last failure to connect, while nothing came of another try: for those who have nothing else to wait for.
    failed: Option<(Instant, ForwardError)>,
    /// Until then no connection is opened beside others.
    pause: Option<Instant>,
}

/// What a lane has to give.
pub(super) enum Streams {
    /// There is no connection.
    None,
    /// On the connection with the fewest: one of them, if there was one left, and whether nearly all are in use.
    Some {
        taken: Option<Arc<Shared>>,
        crowded: bool,
    },
}

impl Lane {
    /// Takes a stream.
    pub(super) fn take(&mut self) -> Streams {
        self.forget_unusable();
        let in_use = |shared: &Arc<Shared>| shared.streams.load(Ordering::Acquire);
        let Some(least) = self.shared.iter().min_by_key(|shared| in_use(shared)) else {
            return Streams::None;
        };
        let (streams, most) = (in_use(least), least.most_streams());
        Streams::Some {
            taken: (streams < most).then(|| {
                least.streams.fetch_add(1, Ordering::AcqRel);
                Arc::clone(least)
            }),
            crowded: (streams + 1).saturating_mul(4) > most.saturating_mul(3),
        }
    }

    /// Whether another connection is to be opened for somebody who asked at `asked`, where there is none.
    pub(super) fn may_open_first(&self, asked: Instant) -> bool {
        self.opening == 0 && self.failed.as_ref().is_none_or(|(at, _)| *at < asked)
    }

    /// Whether another connection may be opened beside those that there are.
    pub(super) fn may_open_another(&self, most: usize, now: Instant) -> bool {
        self.opening == 0 && self.shared.len() < most && self.pause.is_none_or(|until| until <= now)
    }

    /// A connection is being opened.
    pub(super) const fn open(&mut self) {
        self.opening += 1;
    }

    /// It serves from now on.
    pub(super) fn add(&mut self, shared: Arc<Shared>) {
        self.shared.push(shared);
        self.failed = None;
    }

    /// What came of opening one. Until when no other is opened, if that is so.
    pub(super) fn opened(
        &mut self,
        place: Place,
        outcome: Result<(), ForwardError>,
        now: Instant,
    ) -> Option<Instant> {
        self.forget_unusable();
        self.opening = self.opening.saturating_sub(1);
        self.pause = (outcome.is_err() && !self.shared.is_empty()).then(|| now + PAUSE);
        // Where there are others, a stream of theirs comes free: a watch's hardly ever does.
        let told = self.pause.is_none() || place == Place::SharedForLong;
        self.failed = outcome.err().filter(|_| told).map(|why| (now, why));
        self.pause
    }

    /// The failure to connect after which who `asked` has nothing left to wait for.
    pub(super) fn failed(&self, asked: Instant, now: Instant) -> Option<ForwardError> {
        let (at, why) = self.failed.as_ref()?;
        let lately = *at >= asked || self.pause.is_some_and(|until| now < until);
        (lately && self.opening == 0).then(|| why.clone())
    }

    pub(super) fn forget_unusable(&mut self) {
        self.shared.retain(|shared| shared.usable());
    }

    /// Its connections take no more requests.
    pub(super) fn leave(&mut self) {
        for shared in self.shared.drain(..) {
            shared.leaving();
        }
    }
}
