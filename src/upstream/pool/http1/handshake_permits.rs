//! Bounds concurrent handshakes of HTTP/1.1 connections: each costs the API server a TLS handshake.
//!
//! Requesters take turns, as they do for HTTP/2 streams: a user that opens and leaves logs or
//! tunnels as fast as it can delays the connection of another by one handshake.

use std::time::Duration;

use tokio::time::timeout;

use crate::upstream::connection::error::ForwardError;
use crate::upstream::pool::metrics::UpstreamMetrics;
use crate::upstream::pool::wait_queue::WaitQueue;
use crate::upstream::requester::SlotHolder;
use weir_base::sync::{Semaphore, SemaphorePermit};

/// Most handshakes at a time for dedicated HTTP/1.1 connections, for each worker and pool.
const MAX_CONCURRENT_HANDSHAKES: usize = if cfg!(weir_loom) { 1 } else { 32 };

/// The permits of a pool.
pub(crate) struct HandshakePermits {
    permits: Semaphore,
    queue: WaitQueue,
}

/// The permit for one handshake. Drop wakes the next request in turn.
pub(crate) struct HandshakePermit<'a> {
    /// `None` only while it is dropped.
    permit: Option<SemaphorePermit<'a>>,
    queue: &'a WaitQueue,
}

impl Default for HandshakePermits {
    fn default() -> Self {
        Self {
            permits: Semaphore::new(MAX_CONCURRENT_HANDSHAKES),
            queue: WaitQueue::default(),
        }
    }
}

impl HandshakePermits {
    /// Waits for a permit, at most `max_wait`.
    ///
    /// # Errors
    /// Too many requests wait, or none was free in time.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn acquire(
        &self,
        requester: SlotHolder,
        max_wait: Duration,
        metrics: &UpstreamMetrics,
    ) -> Result<HandshakePermit<'_>, ForwardError> {
        // A request that arrives does not overtake those that wait.
        if self.queue.is_empty()
            && let Some(permit) = self.try_acquire()
        {
            return Ok(permit);
        }
        timeout(max_wait, self.wait(requester, metrics))
            .await
            .map_err(|_| ForwardError::StreamTimeout(max_wait))?
    }

    async fn wait(
        &self,
        requester: SlotHolder,
        metrics: &UpstreamMetrics,
    ) -> Result<HandshakePermit<'_>, ForwardError> {
        let waiting = self.queue.enter(requester)?;
        metrics.stream_waits.inc();
        loop {
            waiting.turn().await?;
            if let Some(permit) = self.try_acquire() {
                waiting.complete();
                return Ok(permit);
            }
            // Queued again before the check, so that no permit in between is missed.
            waiting.requeue();
            if self.permits.available_permits() > 0 {
                self.queue.wake_next();
            }
        }
    }

    fn try_acquire(&self) -> Option<HandshakePermit<'_>> {
        let permit = self.permits.try_acquire().ok()?;
        Some(HandshakePermit {
            permit: Some(permit),
            queue: &self.queue,
        })
    }
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.permit = None; // before the next one looks for it
        self.queue.wake_next();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use parking_lot::Mutex;

    use super::*;
    use weir_base::metrics::Registry;

    const MAX_WAIT: Duration = Duration::from_secs(60);

    fn user(name: &str) -> SlotHolder {
        SlotHolder::User(name.to_owned())
    }

    #[tokio::test]
    async fn a_user_with_many_handshakes_delays_another_by_one() {
        let metrics = UpstreamMetrics::register(&Registry::new());
        let permits = Arc::new(HandshakePermits::default());
        let mut held = acquire_all(&permits, &metrics).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        for name in std::iter::repeat_n("greedy", 100).chain(["modest"]) {
            let (permits, metrics) = (Arc::clone(&permits), Arc::clone(&metrics));
            let order = Arc::clone(&order);
            tokio::spawn(async move {
                let permit = permits.acquire(user(name), MAX_WAIT, &metrics).await;
                order.lock().push(name);
                drop(permit);
            });
        }
        settle().await;
        assert_eq!(order.lock().len(), 0);
        drop(held.pop());
        settle().await;
        let order = order.lock();
        assert_eq!(order.len(), 101);
        let place = order.iter().position(|name| *name == "modest");
        assert!(place.is_some_and(|place| place <= 2), "{place:?}");
    }

    /// Lets all tasks run until each of them waits.
    async fn settle() {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }

    async fn acquire_all<'a>(
        permits: &'a HandshakePermits,
        metrics: &UpstreamMetrics,
    ) -> Vec<Option<HandshakePermit<'a>>> {
        let mut held = Vec::new();
        for _ in 0..MAX_CONCURRENT_HANDSHAKES {
            held.push(permits.acquire(user("one"), MAX_WAIT, metrics).await.ok());
        }
        held
    }

    #[tokio::test]
    async fn every_permit_that_is_released_goes_to_one_that_waits() {
        let metrics = UpstreamMetrics::register(&Registry::new());
        let permits = HandshakePermits::default();
        let acquire = |name: &str| Box::pin(permits.acquire(user(name), MAX_WAIT, &metrics));
        let mut held = acquire_all(&permits, &metrics).await;
        let mut waiting: Vec<_> = (0..10).map(|n| acquire(&format!("user {n}"))).collect();
        for request in &mut waiting {
            assert!(request.as_mut().now_or_never().is_none());
        }
        drop(waiting.pop()); // its turn goes to another
        held.truncate(MAX_CONCURRENT_HANDSHAKES - waiting.len());
        for request in waiting {
            held.push(request.await.ok());
        }
        assert_eq!(permits.permits.available_permits(), 0);
    }

    #[cfg(weir_loom)]
    mod loom_tests {
        use super::*;
        use weir_base::sync::{block_on, model, thread};

        #[test]
        fn the_permit_goes_to_each_request_that_waits_though_one_of_them_leaves() {
            model(|| {
                let metrics = Arc::new(UpstreamMetrics::register(&Registry::new()));
                let permits = Arc::new(HandshakePermits::default());
                let request = |name: &'static str, leaves: bool| {
                    let (permits, metrics) = (Arc::clone(&permits), Arc::clone(&metrics));
                    move || {
                        let acquired = permits.acquire(user(name), MAX_WAIT, &metrics);
                        if leaves {
                            drop(acquired.now_or_never());
                        } else {
                            drop(block_on(acquired).ok().unwrap());
                        }
                    }
                };
                let one = thread::spawn(request("alice", false));
                let other = thread::spawn(request("bob", true));
                request("alice", false)();
                one.join().unwrap();
                other.join().unwrap();
                assert_eq!(permits.permits.available_permits(), 1);
                assert!(permits.queue.is_empty());
            });
        }
    }
}
