//! Counts the requests of a connection: started, ended, waiting for the client to read, and reset
//! by the client.

use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

use crate::limits::memory_limit::unread_responses::UnreadConnection;
use weir_base::clock::Clock;
use weir_limits::throttling::token_bucket::{Rate, TokenBucket};

/// The burst of resets that an HTTP/2 connection may send, in seconds of its rate. When a client
/// ends, all of its watches end at once, and there are as many as the connection has streams (100
/// by default, 200 with the default rate).
pub const RESET_BURST_SECONDS: u32 = 4;

/// The counts of a connection. Relaxed ordering: no other memory depends on them.
#[derive(Debug, Default)]
pub(crate) struct RequestCount {
    started: AtomicU64,
    ended: AtomicU64,
    last_immediate: AtomicBool,
    write_pending: AtomicBool,
    reset_limiter: Option<ResetLimiter>,
    /// Whether the connection is to end once its requests have.
    go_away: Notify,
    unread: Arc<UnreadConnection>,
}

impl RequestCount {
    /// The count of an HTTP/2 connection that may reset this many requests a second, with a burst
    /// of [`RESET_BURST_SECONDS`] times as many. 0 is no limit.
    #[must_use]
    pub(crate) fn with_reset_limit(per_second: u32, now: Instant) -> Self {
        let reset_limiter = (per_second > 0).then(|| ResetLimiter::new(per_second, now));
        Self {
            reset_limiter,
            ..Self::default()
        }
    }

    /// Completes when more requests are reset than the limit allows; never without a limit.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn reset_limit_exceeded(&self) {
        match &self.reset_limiter {
            Some(limiter) => limiter.exceeded.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Completes when the connection is to end once its requests have.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn going_away(&self) {
        self.go_away.notified().await;
    }

    /// Has the connection end once its requests have.
    pub(crate) fn go_away(&self) {
        self.go_away.notify_one();
    }

    fn record_reset(&self, now: Instant) {
        if let Some(limiter) = &self.reset_limiter
            && !limiter.try_acquire(now)
        {
            limiter.exceeded.notify_one();
        }
    }

    /// Counts a request as started.
    #[must_use]
    pub(crate) fn start(self: &Arc<Self>) -> ActiveRequest {
        self.started.fetch_add(1, Ordering::Relaxed);
        ActiveRequest {
            requests: Arc::clone(self),
            may_be_reset: self.reset_limiter.is_some(),
        }
    }

    /// The number of started requests.
    #[must_use]
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// The number of ended requests: their responses were written to the connection completely, or
    /// cut off.
    #[must_use]
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether bytes of a response wait for the client to read.
    #[must_use]
    pub(crate) fn write_pending(&self) -> bool {
        self.write_pending.load(Ordering::Relaxed)
    }

    /// Sets whether bytes of a response wait. The value seldom changes, so it is compared first.
    pub(crate) fn set_write_pending(&self, pending: bool) {
        if self.write_pending() != pending {
            self.write_pending.store(pending, Ordering::Relaxed);
        }
    }

    /// What the client has not read of the responses.
    #[must_use]
    pub(crate) fn unread(&self) -> &Arc<UnreadConnection> {
        &self.unread
    }

    /// Whether the response to the last request was ready at once: a guess about the next.
    #[must_use]
    pub(crate) fn last_was_immediate(&self) -> bool {
        self.last_immediate.load(Ordering::Relaxed)
    }
}

/// The limit of resets on a connection.
#[derive(Debug)]
struct ResetLimiter {
    rate: Rate,
    /// Locked for one step; nothing is awaited under it.
    bucket: Mutex<TokenBucket>,
    exceeded: Notify,
}

impl ResetLimiter {
    fn new(per_second: u32, now: Instant) -> Self {
        let rate = Rate::new(per_second, per_second.saturating_mul(RESET_BURST_SECONDS));
        Self {
            bucket: Mutex::new(TokenBucket::full(&rate, now)),
            rate,
            exceeded: Notify::new(),
        }
    }

    fn try_acquire(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock();
        bucket.take(&self.rate, now).is_ok()
    }
}

/// Marks a response with which its connection is to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseConnection;

/// A request that is active until this is dropped. If it has no complete response then, the client
/// has reset the stream: every end on weir's side (an error, a deadline, a stopped watch) passes
/// through the response body, which disarms the guard.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    requests: Arc<RequestCount>,
    may_be_reset: bool,
}

impl ActiveRequest {
    /// Has its connection end once its requests have.
    pub(crate) fn go_away(&self) {
        self.requests.go_away();
    }

    /// What the client of its connection has not read.
    pub(crate) fn unread(&self) -> &Arc<UnreadConnection> {
        self.requests.unread()
    }

    /// Ends a request whose response is complete.
    pub(crate) fn complete(mut self) {
        self.may_be_reset = false;
    }

    /// Counts a reset when the guard is dropped, and no longer when this is.
    #[must_use]
    pub(crate) fn take_reset_guard(&mut self) -> ResetGuard {
        let may_be_reset = std::mem::take(&mut self.may_be_reset);
        ResetGuard(may_be_reset.then(|| Arc::clone(&self.requests)))
    }

    /// Awaits the response and records whether it was ready at once.
    ///
    /// # Cancel safety
    /// That of `answer`.
    pub(crate) async fn track<A: Future>(&self, mut answer: Pin<&mut A>) -> A::Output {
        let mut first = true;
        poll_fn(|cx| {
            let polled = answer.as_mut().poll(cx);
            if std::mem::take(&mut first) {
                self.requests
                    .last_immediate
                    .store(polled.is_ready(), Ordering::Relaxed);
            }
            polled
        })
        .await
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.requests.ended.fetch_add(1, Ordering::Relaxed);
        if self.may_be_reset {
            self.requests.record_reset(Clock.now());
        }
    }
}

/// Counts a reset on drop unless it is disarmed.
#[derive(Debug, Default)]
pub(crate) struct ResetGuard(Option<Arc<RequestCount>>);

impl ResetGuard {
    /// Records that the request has ended.
    pub(crate) fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for ResetGuard {
    fn drop(&mut self) {
        if let Some(requests) = &self.0 {
            requests.record_reset(Clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_burst_is_free_and_then_the_rate_holds() {
        let requests = Arc::new(RequestCount::with_reset_limit(50, Clock.now()));
        let exceeded = || requests.reset_limit_exceeded().now_or_never().is_some();
        for n in 0..50 * RESET_BURST_SECONDS {
            drop(requests.start());
            assert!(!exceeded(), "{n}");
        }
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(20)).await;
            drop(requests.start().take_reset_guard());
            assert!(!exceeded());
        }
        drop(requests.start());
        assert!(exceeded());
    }

    #[tokio::test]
    async fn finished_requests_and_unlimited_connections_count_no_resets() {
        let limited = Arc::new(RequestCount::with_reset_limit(1, Clock.now()));
        for _ in 0..1000 {
            limited.start().complete();
            limited.start().take_reset_guard().disarm();
        }
        let unlimited = Arc::new(RequestCount::with_reset_limit(0, Clock.now()));
        for _ in 0..1000 {
            drop(unlimited.start());
        }
        for requests in [limited, unlimited] {
            assert_eq!(requests.reset_limit_exceeded().now_or_never(), None);
        }
    }
}
