//! The idle timeout of a connection without requests in flight, unwritten bytes and new requests.
//!
//! The HTTP library has a timer for HTTP/1.1 that it resets for each request, which costs more than
//! authenticating the client. For HTTP/2 it has none. Here the requests are counted, and the counts
//! are checked from time to time.

use std::time::Duration;

use tokio::sync::watch;

use crate::pipeline::connection::request_count::RequestCount;
use weir_limits::throttling::memory_pressure::MemoryPressure;

/// The interval between two checks of an HTTP/2 connection.
const HTTP2_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The interval between two checks of an HTTP/1.1 connection, which gives memory back while it rests:
/// often enough for a flood of connections, and no work beside that of a request in this time.
const HTTP1_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A connection that is idle at consecutive checks for so long has been idle for up to one interval
/// more (kube-apiserver's `IdleTimeout` is 90 s). An incomplete head has its own timeout
/// ([`head_monitor`](crate::server::connection::head_monitor)).
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Follows how long a connection has been idle.
#[derive(Debug)]
pub(crate) struct IdleChecks {
    interval: Duration,
    started_before: u64,
    idle: Duration,
}

/// What the checks of a connection have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The connection is idle and may rest.
    Quiet,
    /// It has been idle for too long.
    TooLong,
}

impl IdleChecks {
    const fn new(interval: Duration) -> Self {
        Self {
            interval,
            started_before: 0,
            idle: Duration::ZERO,
        }
    }

    pub(crate) const fn http1() -> Self {
        Self::new(HTTP1_CHECK_INTERVAL)
    }

    pub(crate) const fn http2() -> Self {
        Self::new(HTTP2_CHECK_INTERVAL)
    }

    /// Completes when the connection has been idle for too long, or is idle while `may_rest`.
    ///
    /// # Cancel safety
    /// The interval starts again.
    pub(crate) async fn wait(
        &mut self,
        requests: &RequestCount,
        may_rest: impl Fn() -> bool,
    ) -> Idle {
        loop {
            tokio::time::sleep(self.interval).await;
            let started = requests.started();
            let is_idle = started == std::mem::replace(&mut self.started_before, started)
                && started == requests.ended()
                && !requests.write_pending();
            self.idle = if is_idle {
                self.idle + self.interval
            } else {
                Duration::ZERO
            };
            if self.idle >= IDLE_TIMEOUT {
                return Idle::TooLong;
            }
            if is_idle && may_rest() {
                return Idle::Quiet;
            }
        }
    }

    /// Completes when a connection that rests has been idle for too long.
    ///
    /// # Cancel safety
    /// The rest of the time starts again.
    pub(crate) async fn rest(&self) {
        tokio::time::sleep(IDLE_TIMEOUT.saturating_sub(self.idle)).await;
    }
}

/// The time without a request after which a connection is closed while memory is scarce, if its
/// client has left more unread than its share: a client that reads its responses has read them by
/// then, and one that does not frees their memory.
const IDLE_UNDER_PRESSURE: Duration = Duration::from_secs(1);

/// The seconds after which any connection without a request is closed while memory is scarce. What
/// TLS and the kernel hold for its client is not counted, and it may be this that takes the memory.
/// By then the connections above their share have closed, and what they held is free.
const IDLE_SECONDS_UNDER_LASTING_PRESSURE: u32 = 10;

/// Completes when memory is scarce and the connection has no request in flight for a moment. Bytes
/// that its client has not read do not keep it open: if they are more than its share
/// (`exceeds_share`), or memory is far above the limit, the connection is closed sooner.
///
/// # Cancel safety
/// The time starts again.
pub(crate) async fn wait_for_idle_under_pressure(
    requests: &RequestCount,
    mut pressure: watch::Receiver<MemoryPressure>,
    exceeds_share: impl Fn() -> bool,
) {
    let mut idle_seconds = 0;
    loop {
        let is_scarce = |level: &MemoryPressure| *level >= MemoryPressure::High;
        if pressure.wait_for(is_scarce).await.is_err() {
            return std::future::pending().await; // nothing measures any more
        }
        let started = requests.started();
        tokio::time::sleep(IDLE_UNDER_PRESSURE).await;
        let is_idle = started == requests.started() && started == requests.ended();
        let level = *pressure.borrow();
        idle_seconds = if is_idle && is_scarce(&level) {
            idle_seconds + 1
        } else {
            0
        };
        let closes_first = level == MemoryPressure::Critical || exceeds_share();
        if idle_seconds >= IDLE_SECONDS_UNDER_LASTING_PRESSURE || idle_seconds > 0 && closes_first {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_times_out_after_ninety_seconds() {
        let began = Instant::now();
        let requests = RequestCount::default();
        for mut checks in [IdleChecks::http1(), IdleChecks::http2()] {
            let before = began.elapsed();
            assert_eq!(checks.wait(&requests, || false).await, Idle::TooLong);
            assert_eq!((began.elapsed() - before).as_secs(), 90);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_rests_after_two_checks_without_a_request() {
        let (began, requests) = (Instant::now(), Arc::new(RequestCount::default()));
        drop(requests.start());
        let mut checks = IdleChecks::http1();
        assert_eq!(checks.wait(&requests, || true).await, Idle::Quiet);
        assert_eq!(began.elapsed(), 2 * HTTP1_CHECK_INTERVAL);
        checks.rest().await;
        assert_eq!(began.elapsed(), HTTP1_CHECK_INTERVAL + IDLE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_close_while_memory_is_scarce() {
        let (memory, observed) = watch::channel(MemoryPressure::None);
        let requests = Arc::new(RequestCount::default());
        let closing = || wait_for_idle_under_pressure(&requests, observed.clone(), || true);
        let mut idle = std::pin::pin!(closing());
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(idle.as_mut().now_or_never(), None);
        memory.send_replace(MemoryPressure::High);
        let began = Instant::now();
        idle.await;
        assert_eq!(began.elapsed(), IDLE_UNDER_PRESSURE);

        requests.set_write_pending(true);
        closing().await;
        assert_eq!(began.elapsed(), 2 * IDLE_UNDER_PRESSURE);

        let watch = requests.start();
        let mut busy = std::pin::pin!(closing());
        let late = tokio::time::timeout(Duration::from_secs(600), busy.as_mut());
        assert!(late.await.is_err(), "a request is in flight");
        memory.send_replace(MemoryPressure::None);
        drop(watch);
        let late = tokio::time::timeout(Duration::from_secs(600), busy);
        assert!(late.await.is_err(), "memory is not scarce any more");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_more_than_their_share_close_later() {
        let requests = RequestCount::default();
        for (level, seconds) in [(MemoryPressure::High, 10), (MemoryPressure::Critical, 1)] {
            let (_memory, observed) = watch::channel(level);
            let began = Instant::now();
            wait_for_idle_under_pressure(&requests, observed, || false).await;
            assert_eq!(began.elapsed().as_secs(), seconds, "{level:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_unwritten_bytes_and_new_requests_prevent_the_idle_timeout() {
        let requests = Arc::new(RequestCount::default());
        let began = Instant::now();
        let waiting = async {
            IdleChecks::http2().wait(&requests, || false).await;
            began.elapsed()
        };
        let requesting = async {
            let long = requests.start();
            tokio::time::sleep(Duration::from_secs(600)).await; // a watch without events
            drop(long);
            requests.set_write_pending(true);
            tokio::time::sleep(Duration::from_secs(600)).await; // the client does not read the end
            requests.set_write_pending(false);
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(requests.start());
            }
        };
        let (idle_after, ()) = tokio::join!(waiting, requesting);
        let since_last = idle_after.as_secs() - 1800;
        assert!((90..=120).contains(&since_last), "{since_last}");
    }
}
