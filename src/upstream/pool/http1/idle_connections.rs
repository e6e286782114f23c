//! Idle HTTP/1.1 connections, the last used first.
//!
//! A stack lets the connections that are not needed go idle for long and be closed.

use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::client::conn::http1;
use tokio::sync::oneshot;

use crate::upstream::body::request_body::RequestBody;
use weir_base::clock::Clock;
use weir_io::tcp::ReadsAheadOfDriver;
use weir_io::written_first::FlushSignal;

/// An idle HTTP/1.1 connection is closed after this long. kube-apiserver closes one after 90 s;
/// half of that makes it unlikely that a request is sent into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// A connection serves requests for this long, and for up to a fifth less or more. Behind a load
/// balancer, connections then spread over servers that were added, and not all at once.
const MAX_AGE: Duration = Duration::from_secs(300);
const MAX_AGE_SPREAD: f64 = 0.2;

/// An HTTP/1.1 connection: what requests are sent on, and until when it may become idle again.
pub(crate) struct Http1Sender {
    pub(crate) requests: http1::SendRequest<RequestBody>,
    /// Whether it has waited for a request: the server may close it as one is sent.
    pub(crate) was_idle: bool,
    /// The flushes of the connection.
    pub(crate) flushes: Arc<FlushSignal>,
    /// On while it waits for a request.
    reads_ahead: ReadsAheadOfDriver,
    /// Fails once the connection has been closed.
    ended: oneshot::Receiver<()>,
    /// A connection of an earlier generation is not kept: it presented a certificate that has been
    /// replaced.
    generation: u64,
    retires_at: Instant,
}

impl Http1Sender {
    /// A connection that was opened now, when `generation` was the current one. The sender of
    /// `ended` is dropped once it has been closed.
    pub(crate) fn new(
        requests: http1::SendRequest<RequestBody>,
        flushes: Arc<FlushSignal>,
        reads_ahead: ReadsAheadOfDriver,
        ended: oneshot::Receiver<()>,
        generation: u64,
        now: Instant,
    ) -> Self {
        Self {
            requests,
            was_idle: false,
            flushes,
            reads_ahead,
            ended,
            generation,
            retires_at: now + max_age(fastrand::f64()),
        }
    }

    /// Closes the connection, unless it has been closed. The future ends once its socket has been.
    pub(crate) fn close(self) -> impl Future<Output = ()> + Send {
        drop(self.requests);
        async move {
            let _ = self.ended.await; // nothing is ever sent
        }
    }
}

/// The longest age of a connection; `random` is from 0 to 1.
fn max_age(random: f64) -> Duration {
    MAX_AGE.mul_f64(1.0 - MAX_AGE_SPREAD + 2.0 * MAX_AGE_SPREAD * random)
}

/// The idle HTTP/1.1 connections of a pool.
#[derive(Default)]
pub(crate) struct IdleConnections(Mutex<IdleStack>);

#[derive(Default)]
struct IdleStack {
    senders: Vec<(Instant, Http1Sender)>,
    generation: u64,
}

impl IdleConnections {
    /// The generation of connections that are opened now.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Takes a connection that is ready for a request.
    pub(crate) fn take(&self, now: Instant) -> Option<Http1Sender> {
        let mut stack = self.lock();
        while let Some((since, sender)) = stack.senders.pop() {
            if sender.requests.is_ready() && stays_idle(since, &sender, now) {
                return Some(sender);
            }
        }
        None
    }

    /// Keeps a connection, unless its generation has been retired or it is too old.
    pub(crate) fn put(&self, sender: Http1Sender) {
        sender.reads_ahead.enable(); // no request follows bytes that are there already
        let now = Clock.now();
        let mut stack = self.lock();
        if stack.generation == sender.generation && now < sender.retires_at {
            stack.senders.push((now, sender));
        }
    }

    /// Closes the connections that have been idle for 45 s or are too old.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.lock().senders.retain(|(since, sender)| {
            stays_idle(*since, sender, now) && !sender.requests.is_closed()
        });
    }

    /// Closes the connections that are idle now: the server is going away, or is gone.
    pub(crate) fn close_all(&self) {
        self.lock().senders.clear();
    }

    /// Closes all idle connections, and keeps none of those that are in use now.
    pub(crate) fn retire_all(&self) {
        let mut stack = self.lock();
        stack.generation += 1;
        stack.senders.clear();
    }

    /// The lock is held for a few list operations, never across an await.
    fn lock(&self) -> MutexGuard<'_, IdleStack> {
        self.0.lock()
    }
}

/// Whether a connection that is idle since `since` stays open.
fn stays_idle(since: Instant, sender: &Http1Sender, now: Instant) -> bool {
    now.saturating_duration_since(since) < IDLE_TIMEOUT && now < sender.retires_at
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;

    use super::*;

    #[test]
    fn connections_retire_after_five_minutes_more_or_less() {
        assert_eq!(max_age(0.0), Duration::from_secs(240));
        assert_eq!(max_age(0.5), Duration::from_secs(300));
        assert_eq!(max_age(1.0), Duration::from_secs(360));
    }

    #[tokio::test]
    async fn a_connection_is_kept_until_it_is_too_old() {
        let idle = IdleConnections::default();
        let (near, _far) = tokio::io::duplex(1024);
        let (requests, driver) = http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(driver);
        let mut sender = Http1Sender::new(
            requests,
            Arc::default(),
            ReadsAheadOfDriver::default(),
            oneshot::channel().1,
            0,
            Clock.now(),
        );
        sender.requests.ready().await.unwrap();
        let retires_at = sender.retires_at;
        idle.put(sender);
        let just_before = retires_at - Duration::from_nanos(1);
        let mut sender = idle.take(Clock.now()).unwrap();
        assert!(stays_idle(just_before, &sender, just_before));
        assert!(!stays_idle(just_before, &sender, retires_at));
        sender.retires_at = Clock.now();
        idle.put(sender);
        assert!(idle.take(Clock.now()).is_none());
    }
}
