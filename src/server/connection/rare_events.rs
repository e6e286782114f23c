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
pub(in crate::server) enum FirstReady<M, A> {
    Main(M),
    Rare(A),
}

/// Runs both until one of them has come; `aside` is asked only when it was woken.
///
/// # Cancel safety
/// That of the two.
pub(in crate::server) async fn poll_with_rare_event<M: Future, A: Future>(
    mut main: Pin<&mut M>,
    mut aside: Pin<&mut A>,
) -> FirstReady<M::Output, A::Output> {
    let mut bell: Option<Arc<RareEventWaker>> = None;
    poll_fn(|cx| {
        let task = cx.waker();
        let bell = match &mut bell {
            Some(bell) if bell.task.will_wake(task) => bell,
            other => other.insert(RareEventWaker::new_woken(task)),
        };
        // First, so that what has come in is seen before the connection is found to be quiet.
        if let Poll::Ready(came) = main.as_mut().poll(cx) {
            return Poll::Ready(FirstReady::Main(came));
        }
        if bell.take_woken() {
            let waker = Waker::from(Arc::clone(bell));
            if let Poll::Ready(came) = aside.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(FirstReady::Rare(came));
            }
        }
        Poll::Pending
    })
    .await
}

/// Says that it was `aside` that was woken.
struct RareEventWaker {
    woken: AtomicBool,
    task: Waker,
}

impl RareEventWaker {
    fn new_woken(task: &Waker) -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicBool::new(true), // it has never been asked by this waker
            task: task.clone(),
        })
    }

    /// Whether it rang since the last time. Looked at before it is written to: it has hardly ever rung.
    fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for RareEventWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
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
    fn count_polls<'a, F: Future + 'a>(
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
    fn the_rare_future_is_polled_only_when_woken() {
        let (asked, busy, rare) = (Cell::new(0), Notify::new(), Notify::new());
        let main = pin!(async {
            loop {
                busy.notified().await;
            }
        });
        let aside = pin!(count_polls(&asked, async {
            rare.notified().await;
            rare.notified().await;
        }));
        let mut both = pin!(poll_with_rare_event::<_, _>(main, aside));
        for _ in 0..5 {
            assert_eq!(both.as_mut().now_or_never(), None::<FirstReady<(), ()>>);
            busy.notify_one();
        }
        // `now_or_never` polls with the same waker each time.
        assert_eq!(asked.get(), 1);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), None);
        assert_eq!(asked.get(), 2);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), Some(FirstReady::Rare(())));
    }

    #[tokio::test]
    async fn both_futures_wake_the_task() {
        let (busy, rare) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for first in [&busy, &rare] {
            let waking = Arc::clone(first);
            let waking = tokio::spawn(async move { waking.notify_one() });
            let (main, aside) = (pin!(busy.notified()), pin!(rare.notified()));
            let came = poll_with_rare_event(main, aside).await;
            assert_eq!(came == FirstReady::Main(()), Arc::ptr_eq(first, &busy));
            waking.await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_future_may_move_to_another_task() {
        let rare = Arc::new(Notify::new());
        let heard = Arc::clone(&rare);
        let mut both = Box::pin(async move {
            let main = pin!(std::future::pending::<()>());
            let aside = pin!(heard.notified());
            poll_with_rare_event(main, aside).await
        });
        assert_eq!(both.as_mut().now_or_never(), None); // by a waker of nobody
        let both = tokio::spawn(both);
        rare.notify_one();
        assert_eq!(both.await.unwrap(), FirstReady::Rare(()));
    }
}
