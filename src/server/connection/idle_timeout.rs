//! The idle timeout of a connection without requests in flight, unwritten bytes and new requests.
//!
//! The HTTP library has a timer for HTTP/1.1 that it resets for each request, which costs more than
//! authenticating the client. For HTTP/2 it has none. Here the requests are counted, and the counts
//! are checked from time to time.

use std::time::Duration;

use tokio::sync::watch;

use crate::pipeline::connection::request_count::RequestCount;
use weir_limits::throttling::memory_pressure::MemoryPressure;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A connection without activity in this many consecutive checks has been idle for 90 to 120 s
/// (kube-apiserver's `IdleTimeout` is 90 s). An incomplete head has its own timeout
/// ([`head_monitor`](crate::server::connection::head_monitor)).
const IDLE_CHECKS: u32 = 3;

/// Completes when the connection has been idle for too long.
///
/// # Cancel safety
/// The time starts again.
pub(crate) async fn wait_for_idle_timeout(requests: &RequestCount) {
    let (mut started_before, mut checks) = (0, 0);
    while checks < IDLE_CHECKS {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let started = requests.started();
        let is_idle =
            started == started_before && started == requests.ended() && !requests.write_pending();
        checks = if is_idle { checks + 1 } else { 0 };
        started_before = started;
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
        wait_for_idle_timeout(&RequestCount::default()).await;
        assert_eq!(began.elapsed().as_secs(), 90);
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
            wait_for_idle_timeout(&requests).await;
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
