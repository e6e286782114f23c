//! Turns for handshakes, over all workers: [`gate`](crate::server::handshake_limiter) decides, connections wait here.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use prometheus::IntCounter;
use prometheus::IntGauge;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::server::ServerMetrics;
use crate::server::handshake_limiter::ConnectionSource;
use crate::server::handshake_limiter::HandshakeDecision;
use crate::server::handshake_limiter::HandshakeLimiter;
use crate::server::handshake_limiter::HandshakeLimits;

/// Handshakes at a time: enough to keep the cores busy over a distance; from one address a quarter of them, so that a storm
/// from there leaves the rest to others. Those that wait are open connections, which --max-connections bounds; who is turned
/// away comes back at once, and costs more than who waits.
#[must_use]
pub const fn handshake_limits(longest_wait: Duration) -> HandshakeLimits {
    HandshakeLimits {
        max_active: 128,
        max_active_per_address: 32,
        max_queued: 16_384,
        max_wait: longest_wait,
    }
}

/// Whose turn it is.
#[derive(Debug)]
pub struct HandshakeQueue {
    /// Held for one decision; nothing is awaited, and nobody woken, under it.
    limiter: Mutex<HandshakeLimiter<oneshot::Sender<HandshakePermit>>>,
    active: IntGauge,
    queued: IntGauge,
    rejected: IntCounter,
}

/// A handshake's turn; dropping it gives it to the next.
#[derive(Debug)]
pub struct HandshakePermit {
    source: ConnectionSource,
    /// Taken out of a turn that nobody wants.
    queue: Option<Arc<HandshakeQueue>>,
}

impl HandshakeQueue {
    /// All free; nobody waits longer than `longest_wait`.
    #[must_use]
    pub fn new(longest_wait: Duration, metrics: &ServerMetrics) -> Arc<Self> {
        Arc::new(Self {
            limiter: Mutex::new(HandshakeLimiter::new(handshake_limits(longest_wait))),
            active: metrics.active_handshakes.clone(),
            queued: metrics.queued_handshakes.clone(),
            rejected: metrics.rejected_handshakes.clone(),
        })
    }

    /// Waits for a turn; `None` if too many wait already.
    ///
    /// # Cancel safety
    /// Whoever stops waiting is passed over.
    pub async fn acquire(self: &Arc<Self>, origin: ConnectionSource) -> Option<HandshakePermit> {
        let (sender, turn) = oneshot::channel();
        match self.start_or_queue(origin, sender) {
            HandshakeDecision::Start(_) => Some(self.permit(origin)),
            HandshakeDecision::Queue { turned_away } => {
                self.rejected.inc_by(u64::from(turned_away.is_some()));
                drop(turned_away); // which is told by that
                turn.await.ok()
            }
        }
    }

    fn start_or_queue(
        &self,
        origin: ConnectionSource,
        waiting: oneshot::Sender<HandshakePermit>,
    ) -> HandshakeDecision<oneshot::Sender<HandshakePermit>> {
        let mut gate = self.lock_limiter();
        let entrance = gate.start_or_queue(origin, Clock.now(), waiting);
        self.update_metrics(&gate);
        entrance
    }

    fn permit(self: &Arc<Self>, origin: ConnectionSource) -> HandshakePermit {
        HandshakePermit {
            source: origin,
            queue: Some(Arc::clone(self)),
        }
    }

    fn lock_limiter(&self) -> MutexGuard<'_, HandshakeLimiter<oneshot::Sender<HandshakePermit>>> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_metrics(&self, gate: &HandshakeLimiter<oneshot::Sender<HandshakePermit>>) {
        let set = |gauge: &IntGauge, count| gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        set(&self.active, gate.active());
        set(&self.queued, gate.queued());
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let Some(turns) = self.queue.take() else {
            return;
        };
        let mut free = Some(self.source);
        while let Some(origin) = free.take() {
            let mut gate = turns.lock_limiter();
            let (next, too_late) = gate.finish(origin, Clock.now());
            turns.update_metrics(&gate);
            drop(gate);
            turns
                .rejected
                .inc_by(u64::try_from(too_late.len()).unwrap_or(0));
            drop(too_late);
            if let Some((origin, waiting)) = next
                && let Err(mut unwanted) = waiting.send(turns.permit(origin))
            {
                unwanted.queue = None;
                free = Some(origin); // its connection has gone
            }
        }
    }
}
