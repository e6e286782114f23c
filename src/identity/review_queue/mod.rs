//! Queues reviews for the API server, and delivers their results to all requests that wait for
//! them.
//!
//! - A review is sent once, however many requests wait for its result.
//! - Reviews are sent at a configured rate, fair between source addresses and their connections
//!   ([`fair_queue`]), and `MAX_IN_FLIGHT` at a time.
//! - While the API server does not permit reviews, none are queued.

pub mod fair_queue;

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use prometheus::IntGauge;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tracing::warn;

use crate::identity::review_queue::fair_queue::{ClientSource, FairQueue, NextItem};
use crate::identity::transport::ReviewError;
use weir_base::clock::Clock;
use weir_kubernetes::numeric::saturating_i64;
use weir_tokens::hash::TokenHash;

/// The most reviews in flight, each on a connection of its own. An API server that takes a second
/// for a review gets no more than this many per second.
const MAX_IN_FLIGHT: usize = 16;

/// How long no review is queued after the API server answered that weir may not create them: time
/// for an operator to grant the permission, or for weir to load new credentials.
const BACKOFF_FORBIDDEN: Duration = Duration::from_secs(60);
const BACKOFF_UNAUTHORIZED: Duration = Duration::from_secs(5);

/// What is logged if weir may not create reviews.
pub(super) struct MissingPermission {
    /// The kind of the reviews, in the plural.
    pub(super) reviews: &'static str,
    /// What holds until weir may create them.
    pub(super) consequence: &'static str,
}

/// A queue of requests `Q`, with results `A`.
pub(super) struct ReviewQueue<Q, A> {
    state: Mutex<ReviewQueueState<Q, A>>,
    enqueued: Notify,
    permits: Arc<Semaphore>,
    waiting_gauge: IntGauge,
}

/// Guarded by one lock, which is not held across an await.
struct ReviewQueueState<Q, A> {
    queue: FairQueue<QueuedReview<Q, A>>,
    pending: HashMap<TokenHash, watch::Receiver<Option<A>>>,
    backoff_until: Option<Instant>,
}

/// A queued review. Dropping it without [`ReviewQueue::complete`] ends the wait of its requests.
pub(super) struct QueuedReview<Q, A> {
    /// Identifies the review.
    pub(super) key: TokenHash,
    /// The request. Never logged, since it may hold a token.
    pub(super) request: Q,
    result_tx: watch::Sender<Option<A>>,
}

/// The pending result of a review.
pub(super) struct PendingReview<A>(watch::Receiver<Option<A>>);

impl<A: Clone> PendingReview<A> {
    /// Waits for the result. `None` if the review was dropped.
    ///
    /// # Cancel safety
    /// Cancel safe: the review stays queued or in flight.
    pub(super) async fn wait(mut self) -> Option<A> {
        let result = self.0.wait_for(Option::is_some).await;
        result.ok().and_then(|result| result.clone())
    }
}

impl<Q, A> ReviewQueue<Q, A> {
    /// An empty queue from which `per_second` reviews are sent. `waiting` is set to the number of
    /// queued reviews.
    pub(super) fn new(per_second: u32, now: Instant, waiting: IntGauge) -> Self {
        Self {
            state: Mutex::new(ReviewQueueState {
                queue: FairQueue::new(f64::from(per_second), now),
                pending: HashMap::new(),
                backoff_until: None,
            }),
            enqueued: Notify::new(),
            permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            waiting_gauge: waiting,
        }
    }

    fn update_gauge(&self, queue: &FairQueue<QueuedReview<Q, A>>) {
        self.waiting_gauge.set(saturating_i64(queue.queued()));
    }

    fn lock_state(&self) -> MutexGuard<'_, ReviewQueueState<Q, A>> {
        self.state.lock()
    }

    /// Queues a review under `key`, or joins the pending one. `None` if the queue is full or
    /// reviews are not permitted. With `verified_before`, the review uses the reserved share of the
    /// rate.
    pub(super) fn submit(
        &self,
        key: TokenHash,
        source: ClientSource,
        verified_before: bool,
        now: Instant,
        request: impl FnOnce() -> Q,
    ) -> Option<PendingReview<A>> {
        let mut state = self.lock_state();
        let ReviewQueueState {
            queue,
            pending,
            backoff_until,
        } = &mut *state;
        if pending
            .get(&key)
            .is_some_and(|waiting| waiting.has_changed().is_err())
        {
            pending.remove(&key); // its task has panicked: nothing else would remove the entry
        }
        match pending.entry(key) {
            Entry::Occupied(waiting) => Some(PendingReview(waiting.get().clone())),
            Entry::Vacant(_) if backoff_until.is_some_and(|until| now < until) => None,
            Entry::Vacant(vacant) => {
                let (result_tx, receiver) = watch::channel(None);
                let review = QueuedReview {
                    key,
                    request: request(),
                    result_tx,
                };
                queue.enqueue(source, verified_before, review).ok()?;
                self.update_gauge(queue);
                vacant.insert(receiver.clone());
                drop(state);
                self.enqueued.notify_one();
                Some(PendingReview(receiver))
            }
        }
    }

    /// Waits until the next review may be sent. The permit counts as one review in flight. `None`
    /// only if the semaphore is closed, which does not happen.
    ///
    /// # Cancel safety
    /// Cancel safe: no review is lost.
    pub(super) async fn next_review(&self) -> Option<(QueuedReview<Q, A>, OwnedSemaphorePermit)> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        loop {
            let next = {
                let mut state = self.lock_state();
                let next = state.queue.dequeue(Clock.now());
                self.update_gauge(&state.queue);
                next
            };
            match next {
                NextItem::Ready(review) => return Some((review, permit)),
                NextItem::ReadyAt(then) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(then.into()) => {}
                        () = self.enqueued.notified() => {}
                    }
                }
                NextItem::Empty => self.enqueued.notified().await,
            }
        }
    }

    /// Changes the rate to `per_second` reviews, from `now` on.
    pub(super) fn set_rate(&self, per_second: u32, now: Instant) {
        self.lock_state().queue.set_rate(f64::from(per_second), now);
        self.enqueued.notify_one();
    }

    /// Allows reviews again at once, because weir's credentials or the API server have changed.
    pub(super) fn end_backoff(&self) {
        self.lock_state().backoff_until = None;
    }

    /// Delivers the result to all requests that wait for it.
    pub(super) fn complete(&self, review: QueuedReview<Q, A>, result: A) {
        self.lock_state().pending.remove(&review.key);
        review.result_tx.send_replace(Some(result));
    }

    /// Queues no reviews for a while if weir may not create them. An API server that is unavailable
    /// needs neither this nor a log line: the requests of its clients show it.
    pub(super) fn handle_failure(
        &self,
        error: &ReviewError,
        missing: &MissingPermission,
        now: Instant,
    ) {
        let ReviewError::NotPermitted(code) = error else {
            return;
        };
        let backoff = match *code {
            // No permission is missing: weir's own credentials are not accepted, which is logged
            // elsewhere.
            StatusCode::UNAUTHORIZED => BACKOFF_UNAUTHORIZED,
            _ => BACKOFF_FORBIDDEN,
        };
        self.lock_state().backoff_until = Some(now + backoff);
        if *code != StatusCode::UNAUTHORIZED {
            let MissingPermission {
                reviews,
                consequence,
            } = missing;
            warn!(
                %code,
                "the API server does not let weir create {reviews}: weir's own credentials need the \
                 ClusterRole system:auth-delegator; until then {consequence}"
            );
        }
    }
}

impl<Q, A> fmt::Debug for ReviewQueue<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReviewQueue({})", self.lock_state().pending.len())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;
    use weir_tokens::hash::TokenHasher;

    #[test]
    fn a_review_is_queued_again_after_its_task_panicked() {
        let queue =
            ReviewQueue::<&str, u32>::new(50, Clock.now(), IntGauge::new("waiting", "-").unwrap());
        let key = TokenHasher::new().unwrap().hash(b"a token");
        let source = ClientSource {
            address: IpAddr::from([127, 0, 0, 1]),
            connection_id: 1,
        };
        let begin = || queue.submit(key, source, false, Clock.now(), || "whose is it?");
        let waiting = begin().unwrap();
        let next = || queue.next_review().now_or_never().flatten();
        drop(next().unwrap()); // as unwinding does
        assert_eq!(waiting.wait().now_or_never(), Some(None));
        let waiting = begin().unwrap();
        let (review, _) = next().unwrap();
        assert_eq!(review.request, "whose is it?");
        queue.complete(review, 7);
        assert_eq!(waiting.wait().now_or_never(), Some(Some(7)));
    }
}
