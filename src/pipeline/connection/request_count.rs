//! How many requests have begun on a connection, how many of them are over, whether they have to wait, and how many of them
//! their client cancels.

use std::future::Future;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::limits::rate::token_bucket::Rate;
use crate::limits::rate::token_bucket::TokenBucket;

/// The burst of resets that an HTTP/2 connection may send, in seconds of its rate: the watches of a client that ends come all
/// at once, and there are as many as the connection has streams (100 by default, 200 with the default rate).
pub const RESET_BURST_SECONDS: u32 = 4;

/// What was counted on a connection. Relaxed, as the counts stand for nothing but themselves.
#[derive(Debug, Default)]
pub struct RequestCount {
    started: AtomicU64,
    ended: AtomicU64,
    last_immediate: AtomicBool,
    write_pending: AtomicBool,
    reset_limiter: Option<ResetLimiter>,
}

impl RequestCount {
    /// Of an HTTP/2 connection that may cancel this many requests a second, and [`RESET_BURST_SECONDS`] times as many at once;
    /// 0 is no limit.
    #[must_use]
    pub fn with_reset_limit(per_second: u32, now: Instant) -> Self {
        let resets = (per_second > 0).then(|| ResetLimiter::new(per_second, now));
        Self {
            reset_limiter: resets,
            ..Self::default()
        }
    }

    /// Counts a cancelled request, unless it is defused before it is dropped.
    #[must_use]
    pub fn reset_guard(self: &Arc<Self>) -> ResetGuard {
        ResetGuard(self.reset_limiter.is_some().then(|| Arc::clone(self)))
    }

    /// Comes when more requests are cancelled than the limit allows; never without a limit.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn reset_limit_exceeded(&self) {
        match &self.reset_limiter {
            Some(resets) => resets.exceeded.notified().await,
            None => std::future::pending().await,
        }
    }

    fn record_reset(&self, now: Instant) {
        if let Some(resets) = &self.reset_limiter
            && !resets.try_acquire(now)
        {
            resets.exceeded.notify_one();
        }
    }

    /// A request has come.
    #[must_use]
    pub fn start(self: &Arc<Self>) -> ActiveRequest {
        self.started.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// How many have begun.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// How many are over: their answers were handed to the connection to the last byte, or cut off.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether an answer's bytes wait for the client to take more.
    #[must_use]
    pub fn write_pending(&self) -> bool {
        self.write_pending.load(Ordering::Relaxed)
    }

    /// Says so; seldom something else than the last time.
    pub fn set_write_pending(&self, unwritten: bool) {
        if self.write_pending() != unwritten {
            self.write_pending.store(unwritten, Ordering::Relaxed);
        }
    }

    /// Whether the last one was answered without having to wait: a guess about the next.
    #[must_use]
    pub fn last_was_immediate(&self) -> bool {
        self.last_immediate.load(Ordering::Relaxed)
    }
}

/// The cancelled requests of a connection.
#[derive(Debug)]
struct ResetLimiter {
    rate: Rate,
    /// Held for one step; nothing is awaited under it.
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
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(&self.rate, now).is_ok()
    }
}

/// A request that has not come to its end. If it is dropped before, its client has reset the stream: whatever ends a request
/// on weir's side (an error, a deadline, a stopped watch) is an end that the answer's body tells, and finishes this.
#[derive(Debug, Default)]
pub struct ResetGuard(Option<Arc<RequestCount>>);

impl ResetGuard {
    /// The request has come to its end.
    pub fn disarm(&mut self) {
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

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub struct ActiveRequest(Arc<RequestCount>);

impl ActiveRequest {
    /// The answer; it is noted whether it had to be waited for.
    ///
    /// # Cancel safety
    /// That of `answer`.
    pub async fn track<A: Future>(&self, mut answer: Pin<&mut A>) -> A::Output {
        let mut first = true;
        poll_fn(|cx| {
            let answered = answer.as_mut().poll(cx);
            if std::mem::take(&mut first) {
                self.0
                    .last_immediate
                    .store(answered.is_ready(), Ordering::Relaxed);
            }
            answered
        })
        .await
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
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
            drop(requests.reset_guard());
            assert!(!exceeded(), "{n}");
        }
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(20)).await;
            drop(requests.reset_guard());
            assert!(!exceeded());
        }
        drop(requests.reset_guard());
        assert!(exceeded());
    }

    #[tokio::test]
    async fn finished_requests_and_unlimited_connections_count_no_resets() {
        let limited = Arc::new(RequestCount::with_reset_limit(1, Clock.now()));
        for _ in 0..1000 {
            limited.reset_guard().disarm();
        }
        let unlimited = Arc::new(RequestCount::with_reset_limit(0, Clock.now()));
        for _ in 0..1000 {
            drop(unlimited.reset_guard());
        }
        for requests in [limited, unlimited] {
            assert_eq!(requests.reset_limit_exceeded().now_or_never(), None);
        }
    }
}
