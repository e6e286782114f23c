//! Idle HTTP/1.1 connections, the last used first.
//!
//! A stack lets the connections that are not needed go idle for long and be closed.

use parking_lot::Mutex;
use parking_lot::MutexGuard;
use std::time::Duration;
use std::time::Instant;

use hyper::client::conn::http1;

use crate::clock::Clock;
use crate::upstream::body::request_body::RequestBody;

/// An idle HTTP/1.1 connection is closed after this long. kube-apiserver closes one after 90 s;
/// half of that makes it unlikely that a request is sent into a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The idle HTTP/1.1 connections of a pool.
#[derive(Default)]
pub(in crate::upstream) struct IdleConnections(Mutex<IdleStack>);

#[derive(Default)]
struct IdleStack {
    senders: Vec<(Instant, http1::SendRequest<RequestBody>)>,
    /// A connection of an earlier generation is not kept: it presented a certificate that has been
    /// replaced.
    generation: u64,
}

impl IdleConnections {
    /// The generation of connections that are opened now.
    pub(in crate::upstream) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Takes a connection that is ready for a request, and returns it with the current generation.
    pub(in crate::upstream) fn take(
        &self,
        now: Instant,
    ) -> (Option<http1::SendRequest<RequestBody>>, u64) {
        let mut stack = self.lock();
        while let Some((since, sender)) = stack.senders.pop() {
            if sender.is_ready() && now.saturating_duration_since(since) < IDLE_TIMEOUT {
                return (Some(sender), stack.generation);
            }
        }
        (None, stack.generation)
    }

    /// Keeps a connection, unless its generation has been retired.
    pub(in crate::upstream) fn put(
        &self,
        sender: http1::SendRequest<RequestBody>,
        generation: u64,
    ) {
        let mut stack = self.lock();
        if stack.generation == generation {
            stack.senders.push((Clock.now(), sender));
        }
    }

    /// Closes the connections that have been idle for 45 s.
    pub(in crate::upstream) fn close_idle(&self, now: Instant) {
        self.lock().senders.retain(|(since, sender)| {
            now.saturating_duration_since(*since) < IDLE_TIMEOUT && !sender.is_closed()
        });
    }

    /// Closes all idle connections, and keeps none of those that are in use now.
    pub(in crate::upstream) fn retire_all(&self) {
        let mut stack = self.lock();
        stack.generation += 1;
        stack.senders.clear();
    }

    /// The lock is held for a few list operations, never across an await.
    fn lock(&self) -> MutexGuard<'_, IdleStack> {
        self.0.lock()
    }
}
