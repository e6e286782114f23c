//! Two futures in one task, of which one hardly ever has anything to say.
//!
//! A connection wakes for every request; what else may end it (silence, a drain) wakes once in its life. `select!` would ask all of
//! them each time, and each costs a lock or a timer's look. Here the rare one has a waker of its own, and is asked when that was
//! woken.

use std::future::Future;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::Wake;
use std::task::Waker;

/// Which of the two has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First<M, A> {
    Main(M),
    Aside(A),
}

/// Runs both until one of them has come; `aside` is asked only when it was woken.
///
/// # Cancel safety
/// That of the two.
pub(super) async fn beside<M: Future, A: Future>(
    mut main: Pin<&mut M>,
    mut aside: Pin<&mut A>,
) -> First<M::Output, A::Output> {
    let mut bell: Option<Arc<Bell>> = None;
    poll_fn(|cx| {
        let task = cx.waker();
        let bell = match &mut bell {
            Some(bell) if bell.task.will_wake(task) => bell,
            other => other.insert(Bell::rung(task)),
        };
        // First, so that what has come in is seen before the connection is found to be quiet.
        if let Poll::Ready(came) = main.as_mut().poll(cx) {
            return Poll::Ready(First::Main(came));
        }
        if bell.answer() {
            let waker = Waker::from(Arc::clone(bell));
            if let Poll::Ready(came) = aside.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(First::Aside(came));
            }
        }
        Poll::Pending
    })
    .await
}

/// Says that it was `aside` that was woken.
struct Bell {
    rung: AtomicBool,
    task: Waker,
}

impl Bell {
    fn rung(task: &Waker) -> Arc<Self> {
        Arc::new(Self {
            rung: AtomicBool::new(true), // it has never been asked by this waker
            task: task.clone(),
        })
    }

    /// Whether it rang since the last time. Looked at before it is written to: it has hardly ever rung.
    fn answer(&self) -> bool {
        self.rung.load(Ordering::Acquire) && self.rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;

    /// Counts how often it is asked.
    fn counting<'a, F: Future + 'a>(
        asked: &'a Cell<u32>,
        future: F,
    ) -> impl Future<Output = F::Output> + 'a {
        let mut future = Box::pin(future);
        poll_fn(move |cx| {
            asked.set(asked.get() + 1);
            future.as_mut().poll(cx)
        })
    }

    #[test]
    fn what_is_aside_is_asked_when_it_is_woken_and_not_before() {
        let (asked, busy, rare) = (Cell::new(0), Notify::new(), Notify::new());
        let main = pin!(async {
            loop {
                busy.notified().await;
            }
        });
        let aside = pin!(counting(&asked, async {
            rare.notified().await;
            rare.notified().await;
        }));
        let mut both = pin!(beside::<_, _>(main, aside));
        for _ in 0..5 {
            assert_eq!(both.as_mut().now_or_never(), None::<First<(), ()>>);
            busy.notify_one();
        }
        // `now_or_never` polls with the same waker each time.
        assert_eq!(asked.get(), 1);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), None);
        assert_eq!(asked.get(), 2);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), Some(First::Aside(())));
    }

    #[tokio::test]
    async fn both_wake_the_task() {
        let (busy, rare) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for first in [&busy, &rare] {
            let waking = Arc::clone(first);
            let waking = tokio::spawn(async move { waking.notify_one() });
            let (main, aside) = (pin!(busy.notified()), pin!(rare.notified()));
            let came = beside(main, aside).await;
            assert_eq!(came == First::Main(()), Arc::ptr_eq(first, &busy));
            waking.await.unwrap();
        }
    }

    #[tokio::test]
    async fn another_task_may_go_on_with_it() {
        let rare = Arc::new(Notify::new());
        let heard = Arc::clone(&rare);
        let mut both = Box::pin(async move {
            let main = pin!(std::future::pending::<()>());
            let aside = pin!(heard.notified());
            beside(main, aside).await
        });
        assert_eq!(both.as_mut().now_or_never(), None); // by a waker of nobody
        let both = tokio::spawn(both);
        rare.notify_one();
        assert_eq!(both.await.unwrap(), First::Aside(()));
    }
}
