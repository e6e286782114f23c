//! Questions to the API server that wait for their turn, and those who wait for the answers.
//!
//! Promises: the same question is asked once, however many wait for its answer; different ones go at a set rate, source addresses and
//! their connections taking turns ([`turns`](crate::identity::review_queue::fair_queue)), and only so many at a time; who may not ask rests.

pub mod fair_queue;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::review_queue::fair_queue::FairQueue;
use crate::identity::review_queue::fair_queue::NextItem;

/// Questions at a time, each on a connection of its own: an API server that takes a second for one gets no more.
const MAX_IN_FLIGHT: usize = 16;

/// How long the API server is not asked after it has said that weir may not: until somebody may have given weir the right,
/// or a new credential has been fetched.
const BACKOFF_FORBIDDEN: Duration = Duration::from_secs(60);
const BACKOFF_UNAUTHORIZED: Duration = Duration::from_secs(5);

/// Those who ask `Q` and wait for `A`.
pub(super) struct ReviewQueue<Q, A> {
    state: Mutex<ReviewQueueState<Q, A>>,
    enqueued: Notify,
    permits: Arc<Semaphore>,
    waiting_gauge: IntGauge,
}

/// Guarded together; nothing is awaited under the lock.
struct ReviewQueueState<Q, A> {
    queue: FairQueue<QueuedReview<Q, A>>,
    pending: HashMap<TokenHash, watch::Receiver<Option<A>>>,
    backoff_until: Option<Instant>,
}

/// A question in line; the place of those who wait for it.
pub(super) struct QueuedReview<Q, A> {
    /// What it is known by.
    pub(super) key: TokenHash,
    /// The question; shown to nobody.
    pub(super) request: Q,
    result_tx: watch::Sender<Option<A>>,
}

/// A question whose answer is waited for.
pub(super) struct PendingReview<A>(watch::Receiver<Option<A>>);

impl<A: Clone> PendingReview<A> {
    /// The answer; `None` where nobody works at it any more.
    ///
    /// # Cancel safety
    /// The question stays asked.
    pub(super) async fn wait(mut self) -> Option<A> {
        let answer = self.0.wait_for(Option::is_some).await;
        answer.ok().and_then(|answer| answer.clone())
    }
}

impl<Q, A> ReviewQueue<Q, A> {
    /// Nobody waits yet; `per_second` is how many questions may go, and `waiting` counts those that may not yet.
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

    fn update_gauge(&self, turns: &FairQueue<QueuedReview<Q, A>>) {
        self.waiting_gauge
            .set(i64::try_from(turns.queued()).unwrap_or(i64::MAX));
    }

    fn lock_state(&self) -> MutexGuard<'_, ReviewQueueState<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets in line with the question of `mark`, or joins who did; `None` where the line is too long or weir may not ask. Whose
    /// answer was good before has a part of the rate for himself.
    pub(super) fn submit(
        &self,
        mark: TokenHash,
        (asker, good_before): (ClientSource, bool),
        now: Instant,
        question: impl FnOnce() -> Q,
    ) -> Option<PendingReview<A>> {
        let mut state = self.lock_state();
        let ReviewQueueState {
            queue: turns,
            pending,
            backoff_until: rest,
        } = &mut *state;
        if pending
            .get(&mark)
            .is_some_and(|waiting| waiting.has_changed().is_err())
        {
            pending.remove(&mark); // who asked it has ended in a panic: nobody else would ask it ever again
        }
        match pending.entry(mark) {
            Entry::Occupied(waiting) => Some(PendingReview(waiting.get().clone())),
            Entry::Vacant(_) if rest.is_some_and(|rest| now < rest) => None,
            Entry::Vacant(vacant) => {
                let (answer, receiver) = watch::channel(None);
                let asked = QueuedReview {
                    key: mark,
                    request: question(),
                    result_tx: answer,
                };
                turns.enqueue(asker, good_before, asked).ok()?;
                self.update_gauge(turns);
                vacant.insert(receiver.clone());
                drop(state);
                self.enqueued.notify_one();
                Some(PendingReview(receiver))
            }
        }
    }

    /// Whose turn it is, and a place to ask in; `None` only if there are no places any more.
    ///
    /// # Cancel safety
    /// Nobody's turn is lost.
    pub(super) async fn next_review(&self) -> Option<(QueuedReview<Q, A>, OwnedSemaphorePermit)> {
        // Never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        loop {
            let next = {
                let mut state = self.lock_state();
                let next = state.queue.dequeue(Clock.now());
                self.update_gauge(&state.queue);
                next
            };
            match next {
                NextItem::Ready(asked) => return Some((asked, permit)),
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

    /// Tells the answer to all who wait for it.
    pub(super) fn complete(&self, asked: QueuedReview<Q, A>, answer: A) {
        self.lock_state().pending.remove(&asked.key);
        asked.result_tx.send_replace(Some(answer));
    }

    /// The API server has said by `code` that weir may not ask.
    pub(super) fn back_off(&self, code: StatusCode, now: Instant) {
        let rest = if code == StatusCode::UNAUTHORIZED {
            BACKOFF_UNAUTHORIZED
        } else {
            BACKOFF_FORBIDDEN
        };
        self.lock_state().backoff_until = Some(now + rest);
    }
}

impl<Q, A> fmt::Debug for ReviewQueue<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.lock_state().pending.len())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;
    use crate::identity::accepted_tokens::TokenHasher;

    #[test]
    fn a_review_is_queued_again_after_its_task_panicked() {
        let line =
            ReviewQueue::<&str, u32>::new(50, Clock.now(), IntGauge::new("waiting", "-").unwrap());
        let mark = TokenHasher::new().unwrap().hash(b"a token");
        let asker = ClientSource {
            address: IpAddr::from([127, 0, 0, 1]),
            connection_id: 1,
        };
        let begin = || line.submit(mark, (asker, false), Clock.now(), || "whose is it?");
        let waiting = begin().unwrap();
        let next = || line.next_review().now_or_never().flatten();
        drop(next().unwrap()); // unwinding does that
        assert_eq!(waiting.wait().now_or_never(), Some(None));
        let waiting = begin().unwrap();
        let (asked, _) = next().unwrap();
        assert_eq!(asked.request, "whose is it?");
        line.complete(asked, 7);
        assert_eq!(waiting.wait().now_or_never(), Some(Some(7)));
    }
}
