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
use crate::upstream::connection::http_settings::MaxFields;
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
    /// The most fields in the head of a response.
    pub(crate) max_fields: MaxFields,
    /// The flushes of the connection.
    pub(crate) flushes: Arc<FlushSignal>,
    /// On from when a request is sent until it is written.
    pub(crate) reads_ahead: ReadsAheadOfDriver,
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
        max_fields: MaxFields,
        flushes: Arc<FlushSignal>,
        reads_ahead: ReadsAheadOfDriver,
        ended: oneshot::Receiver<()>,
        generation: u64,
        now: Instant,
    ) -> Self {
        Self {
            requests,
            was_idle: false,
            max_fields,
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
    usual: Vec<(Instant, Http1Sender)>,
    many_fields: Vec<(Instant, Http1Sender)>,
    generation: u64,
}

impl IdleConnections {
    /// The generation of connections that are opened now.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Takes a connection that is ready for a request, whose response may have at least so many
    /// fields.
    pub(crate) fn take(&self, now: Instant, max_fields: MaxFields) -> Option<Http1Sender> {
        let mut stack = self.lock();
        let usual = match max_fields {
            MaxFields::Usual => pop_ready(&mut stack.usual, now),
            MaxFields::Many => None,
        };
        usual.or_else(|| pop_ready(&mut stack.many_fields, now))
    }

    /// Keeps a connection, unless its generation has been retired or it is too old.
    pub(crate) fn put(&self, sender: Http1Sender) {
        let now = Clock.now();
        let mut stack = self.lock();
        if stack.generation == sender.generation && now < sender.retires_at {
            let senders = match sender.max_fields {
                MaxFields::Usual => &mut stack.usual,
                MaxFields::Many => &mut stack.many_fields,
            };
            senders.push((now, sender));
        }
    }

    /// Closes the connections that have been idle for 45 s or are too old.
    pub(crate) fn close_idle(&self, now: Instant) {
        let stays = |(since, sender): &(Instant, Http1Sender)| {
            stays_idle(*since, sender, now) && !sender.requests.is_closed()
        };
        let mut stack = self.lock();
        stack.usual.retain(stays);
        stack.many_fields.retain(stays);
    }

    /// Closes the connections that are idle now: the server is going away, or is gone.
    pub(crate) fn close_all(&self) {
        self.lock().clear();
    }

    /// Closes all idle connections, and keeps none of those that are in use now.
    pub(crate) fn retire_all(&self) {
        let mut stack = self.lock();
        stack.generation += 1;
        stack.clear();
    }

    /// The lock is held for a few list operations, never across an await.
    fn lock(&self) -> MutexGuard<'_, IdleStack> {
        self.0.lock()
    }
}

impl IdleStack {
    fn clear(&mut self) {
        self.usual.clear();
        self.many_fields.clear();
    }
}

fn pop_ready(senders: &mut Vec<(Instant, Http1Sender)>, now: Instant) -> Option<Http1Sender> {
    while let Some((since, sender)) = senders.pop() {
        if sender.requests.is_ready() && stays_idle(since, &sender, now) {
            return Some(sender);
        }
    }
    None
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

    async fn idle_sender(max_fields: MaxFields) -> (Http1Sender, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(1024);
        let (requests, driver) = http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(driver);
        let mut sender = Http1Sender::new(
            requests,
            max_fields,
            Arc::default(),
            ReadsAheadOfDriver::default(),
            oneshot::channel().1,
            0,
            Clock.now(),
        );
        sender.requests.ready().await.unwrap();
        (sender, far)
    }

    #[tokio::test]
    async fn a_connection_is_kept_until_it_is_too_old() {
        let idle = IdleConnections::default();
        let (sender, _far) = idle_sender(MaxFields::Usual).await;
        let retires_at = sender.retires_at;
        idle.put(sender);
        let just_before = retires_at - Duration::from_nanos(1);
        let mut sender = idle.take(Clock.now(), MaxFields::Usual).unwrap();
        assert!(stays_idle(just_before, &sender, just_before));
        assert!(!stays_idle(just_before, &sender, retires_at));
        sender.retires_at = Clock.now();
        idle.put(sender);
        assert!(idle.take(Clock.now(), MaxFields::Usual).is_none());
    }

    #[tokio::test]
    async fn a_response_with_many_fields_takes_only_a_connection_for_them() {
        let idle = IdleConnections::default();
        let (usual, _usual_end) = idle_sender(MaxFields::Usual).await;
        let (many, _many_end) = idle_sender(MaxFields::Many).await;
        idle.put(usual);
        idle.put(many);
        let take = |needed| Some(idle.take(Clock.now(), needed)?.max_fields);
        assert_eq!(take(MaxFields::Usual), Some(MaxFields::Usual));
        assert_eq!(take(MaxFields::Usual), Some(MaxFields::Many));
        let (usual, _usual_end) = idle_sender(MaxFields::Usual).await;
        idle.put(usual);
        let take = |needed| Some(idle.take(Clock.now(), needed)?.max_fields);
        assert_eq!(take(MaxFields::Many), None);
    }
}
