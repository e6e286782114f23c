//! The shared HTTP/2 connections of a class.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http2::Http2Connection;
use crate::upstream::pool::connection_class::ConnectionClass;

/// After a failure to connect, no further connection is tried for this long while others are open.
/// Requests that wait for a stream would otherwise try again at once, repeatedly.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The shared HTTP/2 connections of a class.
#[derive(Default)]
pub(crate) struct SharedConnections {
    connections: Vec<Arc<Http2Connection>>,
    opening: usize,
    /// The last failure to connect, until an attempt succeeds: for requests that have nothing else
    /// to wait for.
    last_failure: Option<(Instant, ForwardError)>,
    /// No additional connection is opened before this time.
    paused_until: Option<Instant>,
}

/// The result of [`SharedConnections::acquire_stream`].
pub(crate) enum StreamAvailability {
    /// No connection is open.
    NoConnection,
    /// A stream of the connection with the fewest, if it has one left; and whether nearly all of
    /// its streams are in use.
    Connected {
        stream: Option<Arc<Http2Connection>>,
        nearly_full: bool,
    },
}

impl SharedConnections {
    /// Acquires a stream.
    pub(crate) fn acquire_stream(&mut self) -> StreamAvailability {
        self.remove_unusable();
        let in_use = |shared: &Arc<Http2Connection>| shared.active_streams.load(Ordering::Acquire);
        let Some(least) = self.connections.iter().min_by_key(|shared| in_use(shared)) else {
            return StreamAvailability::NoConnection;
        };
        let (streams, most) = (in_use(least), least.max_streams());
        StreamAvailability::Connected {
            stream: (streams < most).then(|| {
                least.active_streams.fetch_add(1, Ordering::AcqRel);
                Arc::clone(least)
            }),
            nearly_full: (streams + 1).saturating_mul(4) > most.saturating_mul(3),
        }
    }

    /// Whether a connection has a stream left.
    pub(crate) fn has_free_stream(&self) -> bool {
        self.connections.iter().any(|shared| {
            shared.is_usable()
                && shared.active_streams.load(Ordering::Acquire) < shared.max_streams()
        })
    }

    /// Whether a connection is to be opened for a request from `requested_at`, where there is none.
    pub(crate) fn may_open_first(&self, requested_at: Instant) -> bool {
        self.opening == 0
            && self
                .last_failure
                .as_ref()
                .is_none_or(|(at, _)| *at < requested_at)
    }

    /// Whether a connection may be opened beside the open ones.
    pub(crate) fn may_open_another(&self, most: usize, now: Instant) -> bool {
        self.opening == 0
            && self.connections.len() < most
            && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Records that a connection is being opened.
    pub(crate) const fn begin_open(&mut self) {
        self.opening += 1;
    }

    /// Adds an open connection.
    pub(crate) fn add(&mut self, shared: Arc<Http2Connection>) {
        self.connections.push(shared);
        self.last_failure = None;
    }

    /// Records the outcome of opening a connection. Returns until when no other is opened, if so.
    pub(crate) fn finish_open(
        &mut self,
        class: ConnectionClass,
        outcome: Result<(), ForwardError>,
        now: Instant,
    ) -> Option<Instant> {
        self.remove_unusable();
        self.opening = self.opening.saturating_sub(1);
        self.paused_until =
            (outcome.is_err() && !self.connections.is_empty()).then(|| now + CONNECT_PAUSE);
        // While other connections are open, one of their streams will end soon; a watch's hardly
        // ever does.
        let report = self.paused_until.is_none() || class == ConnectionClass::SharedWatch;
        self.last_failure = outcome.err().filter(|_| report).map(|error| (now, error));
        self.paused_until
    }

    /// The failure to connect after which a request from `requested_at` has nothing left to wait
    /// for.
    pub(crate) fn failure_since(
        &self,
        requested_at: Instant,
        now: Instant,
    ) -> Option<ForwardError> {
        let (at, error) = self.last_failure.as_ref()?;
        let lately = *at >= requested_at || self.paused_until.is_some_and(|until| now < until);
        (lately && self.opening == 0).then(|| error.clone())
    }

    pub(crate) fn remove_unusable(&mut self) {
        self.connections.retain(|shared| shared.is_usable());
    }

    /// Retires all connections: they take no more requests.
    pub(crate) fn retire_all(&mut self) {
        for shared in self.connections.drain(..) {
            shared.retire();
        }
        self.last_failure = None;
        self.paused_until = None;
    }
}
