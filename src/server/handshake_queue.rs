//! The queue for TLS handshakes, shared by all workers:
//! [`handshake_limiter`](crate::server::handshake_limiter) decides, and connections wait here.

use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounter, IntGauge};
use tokio::sync::oneshot;

use crate::server::handshake_limiter::{
    ConnectionSource, HandshakeDecision, HandshakeLimiter, HandshakeLimits,
};
use crate::server::metrics::ServerMetrics;
use weir_base::clock::Clock;
use weir_kubernetes::numeric::saturating_i64;
use weir_limits::throttling::reconnect_backoff::{BackoffTooLong, ReconnectBackoff};

/// The limits of the handshake queue.
///
/// 128 concurrent handshakes keep the cores busy even if clients are far away. One address gets a
/// quarter of them, so that a storm from one address leaves capacity for the others. Queued
/// connections are open connections, which `--max-connections` limits. A client that is rejected
/// reconnects at once, which costs more than a queued connection.
#[must_use]
pub const fn handshake_limits(max_wait: Duration) -> HandshakeLimits {
    HandshakeLimits {
        max_active: 128,
        max_active_per_address: 32,
        max_queued: 16_384,
        max_wait,
    }
}

/// The limiter, its queue and its metrics.
#[derive(Debug)]
pub(crate) struct HandshakeQueue {
    /// Locked for one decision. No await and no wake-up happens under the lock.
    limiter: Mutex<HandshakeLimiter<oneshot::Sender<ClientHandshakePermit>>>,
    active: IntGauge,
    queued: IntGauge,
    rejected: IntCounter,
    delayed: IntCounter,
    /// Locked for one step. The sources whose new connections are delayed.
    backoff: Mutex<ReconnectBackoff<ConnectionSource>>,
    max_wait: Duration,
}

/// The permit for one handshake. Drop passes it to the next queued connection.
#[derive(Debug)]
pub(crate) struct ClientHandshakePermit {
    source: ConnectionSource,
    /// `None` in a permit whose receiver is gone: its drop then releases nothing.
    queue: Option<Arc<HandshakeQueue>>,
}

impl HandshakeQueue {
    /// A queue without active handshakes. A connection is queued for at most `max_wait`.
    #[must_use]
    pub(crate) fn new(max_wait: Duration, metrics: &ServerMetrics) -> Arc<Self> {
        Arc::new(Self {
            limiter: Mutex::new(HandshakeLimiter::new(handshake_limits(max_wait))),
            active: metrics.active_handshakes.clone(),
            queued: metrics.queued_handshakes.clone(),
            rejected: metrics.rejected_handshakes.clone(),
            delayed: metrics.delayed_handshakes.clone(),
            backoff: Mutex::new(ReconnectBackoff::default()),
            max_wait,
        })
    }

    /// Delays new connections of a source after one of its connections was closed for a violation.
    pub(crate) fn record_violation(&self, source: ConnectionSource) {
        let mut backoff = self.backoff.lock();
        backoff.record_violation(source, Clock.now());
    }

    /// Waits for a permit. `None` if the queue is full or the wait was too long.
    ///
    /// # Cancel safety
    /// A connection that stops waiting is skipped.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        source: ConnectionSource,
    ) -> Option<ClientHandshakePermit> {
        self.wait_for_backoff(source).await?;
        let (sender, permit) = oneshot::channel();
        match self.start_or_queue(source, sender) {
            HandshakeDecision::Start(_) => Some(self.permit(source)),
            HandshakeDecision::Queue { rejected } => {
                self.rejected.inc_by(u64::from(rejected.is_some()));
                drop(rejected); // closes its channel, and so its connection
                permit.await.ok()
            }
        }
    }

    /// `None` if the wait would be too long.
    async fn wait_for_backoff(&self, source: ConnectionSource) -> Option<()> {
        let reserved = self
            .backoff
            .lock()
            .reserve(&source, Clock.now(), self.max_wait);
        match reserved {
            Ok(Duration::ZERO) => {}
            Ok(wait) => {
                self.delayed.inc();
                tokio::time::sleep(wait).await;
            }
            Err(BackoffTooLong) => {
                self.rejected.inc();
                return None;
            }
        }
        Some(())
    }

    fn start_or_queue(
        &self,
        source: ConnectionSource,
        sender: oneshot::Sender<ClientHandshakePermit>,
    ) -> HandshakeDecision<oneshot::Sender<ClientHandshakePermit>> {
        let mut limiter = self.lock_limiter();
        let decision = limiter.start_or_queue(source, Clock.now(), sender);
        self.update_metrics(&limiter);
        decision
    }

    fn permit(self: &Arc<Self>, source: ConnectionSource) -> ClientHandshakePermit {
        ClientHandshakePermit {
            source,
            queue: Some(Arc::clone(self)),
        }
    }

    fn lock_limiter(
        &self,
    ) -> MutexGuard<'_, HandshakeLimiter<oneshot::Sender<ClientHandshakePermit>>> {
        self.limiter.lock()
    }

    fn update_metrics(&self, limiter: &HandshakeLimiter<oneshot::Sender<ClientHandshakePermit>>) {
        let set = |gauge: &IntGauge, count| gauge.set(saturating_i64(count));
        set(&self.active, limiter.active());
        set(&self.queued, limiter.queued());
    }
}

impl Drop for ClientHandshakePermit {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else {
            return;
        };
        let mut released = Some(self.source);
        while let Some(source) = released.take() {
            let mut limiter = queue.lock_limiter();
            let (next, expired) = limiter.finish(source, Clock.now());
            queue.update_metrics(&limiter);
            drop(limiter);
            queue
                .rejected
                .inc_by(u64::try_from(expired.len()).unwrap_or(0));
            drop(expired);
            if let Some((source, sender)) = next
                && let Err(mut unused) = sender.send(queue.permit(source))
            {
                unused.queue = None;
                released = Some(source); // the connection was closed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;
    use weir_base::metrics::Registry;
    use weir_limits::throttling::reconnect_backoff::CONNECT_INTERVAL;

    const MAX_WAIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn an_address_connects_more_slowly_after_a_violation_and_others_at_once() {
        let metrics = ServerMetrics::register(&Registry::new());
        let queue = HandshakeQueue::new(MAX_WAIT, &metrics);
        let [violator, other] =
            [1, 2].map(|n| ConnectionSource::from_address(IpAddr::from([10, 0, 0, n])));
        assert!(queue.acquire(violator).now_or_never().is_some());
        queue.record_violation(violator);
        let start = Clock.now();
        for n in 1..=5 {
            assert!(matches!(queue.acquire(other).now_or_never(), Some(Some(_))));
            assert!(queue.acquire(violator).await.is_some());
            assert!(Clock.now() - start >= n * CONNECT_INTERVAL, "{n}");
        }
        assert_eq!(metrics.delayed_handshakes.get(), 5);
        let mut waiting: Vec<_> = (0..1000)
            .map(|_| Box::pin(queue.acquire(violator)))
            .collect();
        let closed = waiting.iter_mut().filter_map(|w| w.as_mut().now_or_never());
        assert_eq!(closed.filter(Option::is_none).count(), 900);
        assert_eq!(metrics.rejected_handshakes.get(), 900);
    }
}
