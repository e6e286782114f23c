//! Questions to the API server that wait for their turn, and those who wait for the answers.
//!
//! Promises: the same question is asked once, however many wait for its answer; different ones go at a set rate, source addresses and
//! their connections taking turns ([`turns`](crate::identity::tokens::turns)), and only so many at a time; who may not ask rests.

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
use crate::identity::proven::Mark;
use crate::identity::tokens::turns::Asker;
use crate::identity::tokens::turns::Next;
use crate::identity::tokens::turns::Turns;

/// Questions at a time, each on a connection of its own: an API server that takes a second for one gets no more.
const AT_ONCE: usize = 16;

/// How long the API server is not asked after it has said that weir may not: until somebody may have given weir the right,
/// or a new credential has been fetched.
const REST_FORBIDDEN: Duration = Duration::from_secs(60);
const REST_UNAUTHORIZED: Duration = Duration::from_secs(5);

/// Those who ask `Q` and wait for `A`.
pub(super) struct Line<Q, A> {
    state: Mutex<State<Q, A>>,
    entered: Notify,
    permits: Arc<Semaphore>,
    waiting: IntGauge,
}

/// Guarded together; nothing is awaited under the lock.
struct State<Q, A> {
    turns: Turns<Asked<Q, A>>,
    pending: HashMap<Mark, watch::Receiver<Option<A>>>,
    rest: Option<Instant>,
}

/// A question in line; the place of those who wait for it.
pub(super) struct Asked<Q, A> {
    /// What it is known by.
    pub(super) mark: Mark,
    /// The question; shown to nobody.
    pub(super) question: Q,
    answer: watch::Sender<Option<A>>,
}

/// A question whose answer is waited for.
pub(super) struct Begun<A>(watch::Receiver<Option<A>>);

impl<A: Clone> Begun<A> {
    /// The answer; `None` where nobody works at it any more.
    ///
    /// # Cancel safety
    /// The question stays asked.
    pub(super) async fn answered(mut self) -> Option<A> {
        let answer = self.0.wait_for(Option::is_some).await;
        answer.ok().and_then(|answer| answer.clone())
    }
}

impl<Q, A> Line<Q, A> {
    /// Nobody waits yet; `per_second` is how many questions may go, and `waiting` counts those that may not yet.
    pub(super) fn new(per_second: u32, now: Instant, waiting: IntGauge) -> Self {
        Self {
            state: Mutex::new(State {
                turns: Turns::new(f64::from(per_second), now),
                pending: HashMap::new(),
                rest: None,
            }),
            entered: Notify::new(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            waiting,
        }
    }

    fn publish(&self, turns: &Turns<Asked<Q, A>>) {
        self.waiting
            .set(i64::try_from(turns.waiting()).unwrap_or(i64::MAX));
    }

    fn state(&self) -> MutexGuard<'_, State<Q, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets in line with the question of `mark`, or joins who did; `None` where the line is too long or weir may not ask. Whose
    /// answer was good before has a part of the rate for himself.
    pub(super) fn begin(
        &self,
        mark: Mark,
        (asker, good_before): (Asker, bool),
        now: Instant,
        question: impl FnOnce() -> Q,
    ) -> Option<Begun<A>> {
        let mut state = self.state();
        let State {
            turns,
            pending,
            rest,
        } = &mut *state;
        if pending
            .get(&mark)
            .is_some_and(|waiting| waiting.has_changed().is_err())
        {
            pending.remove(&mark); // who asked it has ended in a panic: nobody else would ask it ever again
        }
        match pending.entry(mark) {
            Entry::Occupied(waiting) => Some(Begun(waiting.get().clone())),
            Entry::Vacant(_) if rest.is_some_and(|rest| now < rest) => None,
            Entry::Vacant(vacant) => {
                let (answer, receiver) = watch::channel(None);
                let asked = Asked {
                    mark,
                    question: question(),
                    answer,
                };
                turns.enter(asker, good_before, asked).ok()?;
                self.publish(turns);
                vacant.insert(receiver.clone());
                drop(state);
                self.entered.notify_one();
                Some(Begun(receiver))
            }
        }
    }

    /// Whose turn it is, and a place to ask in; `None` only if there are no places any more.
    ///
    /// # Cancel safety
    /// Nobody's turn is lost.
    pub(super) async fn next(&self) -> Option<(Asked<Q, A>, OwnedSemaphorePermit)> {
        // Never closed.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        loop {
            let next = {
                let mut state = self.state();
                let next = state.turns.next(Clock.now());
                self.publish(&state.turns);
                next
            };
            match next {
                Next::Now(asked) => return Some((asked, permit)),
                Next::At(then) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(then.into()) => {}
                        () = self.entered.notified() => {}
                    }
                }
                Next::Nobody => self.entered.notified().await,
            }
        }
    }

    /// Tells the answer to all who wait for it.
    pub(super) fn settle(&self, asked: Asked<Q, A>, answer: A) {
        self.state().pending.remove(&asked.mark);
        asked.answer.send_replace(Some(answer));
    }

    /// The API server has said by `code` that weir may not ask.
    pub(super) fn rest(&self, code: StatusCode, now: Instant) {
        let rest = if code == StatusCode::UNAUTHORIZED {
            REST_UNAUTHORIZED
        } else {
            REST_FORBIDDEN
        };
        self.state().rest = Some(now + rest);
    }
}

impl<Q, A> fmt::Debug for Line<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.state().pending.len())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;
    use crate::identity::proven::Marks;

    #[test]
    fn a_question_whose_asker_has_ended_in_a_panic_is_asked_anew() {
        let line = Line::<&str, u32>::new(50, Clock.now(), IntGauge::new("waiting", "-").unwrap());
        let mark = Marks::new().unwrap().of(b"a token");
        let asker = Asker {
            address: IpAddr::from([127, 0, 0, 1]),
            connection: 1,
        };
        let begin = || line.begin(mark, (asker, false), Clock.now(), || "whose is it?");
        let waiting = begin().unwrap();
        let next = || line.next().now_or_never().flatten();
        drop(next().unwrap()); // unwinding does that
        assert_eq!(waiting.answered().now_or_never(), Some(None));
        let waiting = begin().unwrap();
        let (asked, _) = next().unwrap();
        assert_eq!(asked.question, "whose is it?");
        line.settle(asked, 7);
        assert_eq!(waiting.answered().now_or_never(), Some(Some(7)));
    }
}
