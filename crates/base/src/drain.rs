//! The stages of the shutdown, and what is still open.
//!
//! Shared by the listener and its connections, the pipeline, and `app`, which advances the stages.
//! A stage never goes back. Follows the order of `genericapiserver.go` (Kubernetes 1.36): not
//! ready, no new connections, requests end, watches end at a bounded rate.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use weir_kubernetes::numeric::saturating_u32;

/// The minimum rate at which watches end, per second (`server/genericapiserver.go`: 200/s, or more
/// if the grace period requires it).
const WATCHES_PER_SECOND: usize = 200;

/// The stage of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainStage {
    /// No shutdown.
    Serving,
    /// The shutdown has started: `/readyz` fails, everything else is unchanged.
    NotReady,
    /// Half of the delay has passed: clients with kept-alive connections must move. HTTP/1.1
    /// responses carry `Connection: close`, open HTTP/2 connections get GOAWAY, and new connections
    /// are served.
    Draining,
    /// No new connections. With a shutdown, [`Closing`](Self::Closing) follows at once. With a
    /// hand-over, HTTP/1.1 connections stay open for a while, so that their clients learn from a
    /// response that they end.
    ListenerClosed,
    /// The open connections end with their last request.
    Closing,
}

/// The stage, and the counts of what must end first.
#[derive(Debug)]
pub struct Drain {
    stage: watch::Sender<DrainStage>,
    /// Whether [`DrainStage::Draining`] has been reached: read for each response without a lock.
    draining: AtomicBool,
    /// Whether another process serves: readiness does not fail then.
    handed_over: watch::Sender<bool>,
    /// Whether an operator wants this process to end.
    stop_requested: watch::Sender<bool>,
    /// The time within which watches end, once it is set.
    watch_grace: watch::Sender<Option<Duration>>,
    requests: DrainCounter,
    watches: DrainCounter,
    connections: DrainCounter,
}

#[derive(Debug, Default)]
struct DrainCounter {
    count: AtomicUsize,
    reached_zero: Notify,
}

impl DrainCounter {
    async fn wait_for_zero(&self) {
        loop {
            let mut none = std::pin::pin!(self.reached_zero.notified());
            none.as_mut().enable();
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drain {
    /// Nothing open, no shutdown.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            stage: watch::Sender::new(DrainStage::Serving),
            draining: AtomicBool::new(false),
            handed_over: watch::Sender::new(false),
            stop_requested: watch::Sender::new(false),
            watch_grace: watch::Sender::new(None),
            requests: DrainCounter::default(),
            watches: DrainCounter::default(),
            connections: DrainCounter::default(),
        })
    }

    /// Whether no shutdown has started, or another process serves at the same address.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.stage.borrow() == DrainStage::Serving || *self.handed_over.borrow()
    }

    /// Whether new requests arrive only on connections that end. Not after a hand-over.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        *self.stage.borrow() >= DrainStage::ListenerClosed && !*self.handed_over.borrow()
    }

    /// Begins the end of a process whose listeners another process has taken over.
    pub fn hand_over(&self) {
        self.handed_over.send_replace(true);
        self.advance(DrainStage::ListenerClosed);
    }

    /// Waits until another process has taken over.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub fn handed_over(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut handed_over = self.handed_over.subscribe();
        async move {
            if handed_over.wait_for(|over| *over).await.is_err() {
                std::future::pending().await // the process ends by itself
            }
        }
    }

    /// Has this process end as by SIGTERM.
    pub fn request_stop(&self) {
        self.stop_requested.send_replace(true);
    }

    /// Waits until an operator wants this process to end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub fn stop_requested(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut requested = self.stop_requested.subscribe();
        async move {
            if requested.wait_for(|requested| *requested).await.is_err() {
                std::future::pending().await // the process ends by itself
            }
        }
    }

    /// Advances to `stage`.
    pub fn advance(&self, stage: DrainStage) {
        if stage >= DrainStage::Draining {
            self.draining.store(true, Ordering::Release);
        }
        self.stage.send_if_modified(|now| {
            let further = stage > *now;
            if further {
                *now = stage;
            }
            further
        });
    }

    /// Whether clients must make their next request on another connection.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The stage at which an HTTP/2 connection that opens now must close. A connection that opens
    /// while clients move has a reason, such as a load balancer that knows no other weir.
    #[must_use]
    pub fn close_stage(&self) -> DrainStage {
        if self.is_draining() {
            DrainStage::ListenerClosed
        } else {
            DrainStage::Draining
        }
    }

    /// Waits until `stage` has been reached.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub fn reached(&self, stage: DrainStage) -> impl Future<Output = ()> + Send + use<> {
        let mut now = self.stage.subscribe();
        async move {
            // Fails only after the sender was dropped, when nothing needs the result.
            let _ = now.wait_for(|now| *now >= stage).await;
        }
    }

    /// Ends the open watches, spread over `grace` (or less, if they are few).
    pub fn end_watches(&self, grace: Duration) {
        let few = Duration::from_secs_f64(
            f64::from(saturating_u32(self.open_watches()))
                / f64::from(saturating_u32(WATCHES_PER_SECOND)),
        );
        self.watch_grace.send_replace(Some(grace.min(few)));
    }

    /// The open watches.
    #[must_use]
    pub fn open_watches(&self) -> usize {
        self.watches.count.load(Ordering::Acquire)
    }

    /// The open requests that are not long-running.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.requests.count.load(Ordering::Acquire)
    }

    /// Completes when a watch that is open must end: at a random time within the grace period.
    pub fn watch_end_signal(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.watch_grace.subscribe();
        async move {
            let window = end.wait_for(Option::is_some).await.map(|window| *window);
            let window = window.ok().flatten().unwrap_or_default();
            tokio::time::sleep(window.mul_f64(fastrand::f64())).await;
        }
    }

    /// Counts a request (not a long-running one) until the value is dropped.
    #[must_use]
    pub fn track_request(self: &Arc<Self>) -> DrainGuard {
        DrainGuard::new(self, |drain| &drain.requests)
    }

    /// Counts a watch until the value is dropped.
    #[must_use]
    pub fn track_watch(self: &Arc<Self>) -> DrainGuard {
        DrainGuard::new(self, |drain| &drain.watches)
    }

    /// Counts a connection until the value is dropped.
    #[must_use]
    pub fn track_connection(self: &Arc<Self>) -> DrainGuard {
        DrainGuard::new(self, |drain| &drain.connections)
    }

    /// The open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.connections.count.load(Ordering::Acquire)
    }

    /// Waits until no request is open.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn requests_done(&self) {
        self.requests.wait_for_zero().await;
    }

    /// Waits until no watch is open.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn watches_done(&self) {
        self.watches.wait_for_zero().await;
    }

    /// Waits until no connection is open.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn connections_done(&self) {
        self.connections.wait_for_zero().await;
    }
}

/// An open request, watch or connection, which must end before weir does.
#[derive(Debug)]
pub struct DrainGuard {
    drain: Arc<Drain>,
    counter: fn(&Drain) -> &DrainCounter,
}

impl DrainGuard {
    fn new(drain: &Arc<Drain>, counter: fn(&Drain) -> &DrainCounter) -> Self {
        counter(drain).count.fetch_add(1, Ordering::AcqRel);
        Self {
            drain: Arc::clone(drain),
            counter,
        }
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        let counter = (self.counter)(&self.drain);
        if counter.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            counter.reached_zero.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_stage_never_goes_back() {
        let drain = Drain::new();
        drain.advance(DrainStage::Closing);
        drain.advance(DrainStage::NotReady);
        drain.reached(DrainStage::Closing).await;
        assert!(!drain.is_ready());
    }

    #[test]
    fn open_connections_close_while_draining_and_later_ones_at_closing() {
        let drain = Drain::new();
        drain.advance(DrainStage::NotReady);
        assert_eq!(
            (drain.is_draining(), drain.close_stage()),
            (false, DrainStage::Draining)
        );
        drain.advance(DrainStage::Draining);
        assert_eq!(
            (drain.is_draining(), drain.close_stage()),
            (true, DrainStage::ListenerClosed)
        );
    }

    #[test]
    fn requests_arrive_as_before_until_the_listener_is_closed() {
        let drain = Drain::new();
        drain.advance(DrainStage::Draining);
        assert!(!drain.is_closing());
        drain.advance(DrainStage::ListenerClosed);
        assert!(drain.is_closing());
        let drain = Drain::new();
        drain.hand_over();
        assert!(!drain.is_closing(), "another process has the shares");
    }

    #[tokio::test]
    async fn a_hand_over_closes_the_listener_and_does_not_fail_readiness() {
        let drain = Drain::new();
        assert!(drain.handed_over().now_or_never().is_none());
        drain.hand_over();
        drain.reached(DrainStage::ListenerClosed).await;
        drain.handed_over().await;
        assert!(drain.reached(DrainStage::Closing).now_or_never().is_none());
        assert!(drain.is_ready() && drain.is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn watches_end_within_the_grace_period_and_sooner_if_few() {
        let drain = Drain::new();
        let open: Vec<_> = (0..400)
            .map(|_| (drain.track_watch(), drain.watch_end_signal()))
            .collect();
        let began = tokio::time::Instant::now();
        drain.end_watches(Duration::from_secs(60));
        let ends = open.into_iter().map(|(under_way, end)| async move {
            end.await;
            drop(under_way);
        });
        let ended = tokio::spawn(futures_util::future::join_all(ends));
        drain.watches_done().await;
        ended.await.unwrap();
        // 400 watches at 200 a second: the last of them ends in the second half, except with a
        // probability of 2^-400.
        let took = began.elapsed();
        let expected = Duration::from_secs(1)..=Duration::from_secs(2);
        assert!(expected.contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn requests_done_waits_for_the_last_guard() {
        let drain = Drain::new();
        let (one, two) = (drain.track_request(), drain.track_request());
        drop(one);
        assert!(drain.requests_done().now_or_never().is_none());
        drop(two);
        drain.requests_done().await;
    }
}

#[cfg(all(test, weir_loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{block_on, model, thread};

    #[test]
    fn the_end_of_the_last_request_is_never_missed() {
        model(|| {
            let drain = Drain::new();
            let requests = [drain.track_request(), drain.track_request()];
            let ends = requests.map(|request| thread::spawn(move || drop(request)));
            block_on(drain.requests_done());
            assert_eq!(drain.open_requests(), 0);
            for end in ends {
                end.join().unwrap();
            }
        });
    }
}
