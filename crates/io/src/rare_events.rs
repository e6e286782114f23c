//! Polls two futures in one task, one of which rarely completes.
//!
//! A connection is woken for every request. The other reasons to end it (the idle timeout, a drain)
//! occur once in its life. `select!` would poll all of them at each wake-up, and each poll takes a
//! lock or reads a timer. Here the rare future has its own waker and is polled only after that was
//! woken.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Which future completed first.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstReady<M, A> {
    /// The one that each wake-up polls.
    Main(M),
    /// The one that was woken by itself.
    Rare(A),
}

/// Polls both futures until one of them completes. `rare` is polled only after its waker was woken.
///
/// # Cancel safety
/// That of the two futures.
pub async fn poll_with_rare_event<M: Future, A: Future>(
    mut main: Pin<&mut M>,
    mut rare: Pin<&mut A>,
) -> FirstReady<M::Output, A::Output> {
    let mut rare_waker: Option<Arc<RareEventWaker>> = None;
    poll_fn(|cx| {
        let task = cx.waker();
        let rare_waker = match &mut rare_waker {
            Some(rare_waker) if rare_waker.task.will_wake(task) => rare_waker,
            other => other.insert(RareEventWaker::new_woken(task)),
        };
        // Polled first, so that a request that has arrived is seen before the connection is found
        // idle.
        if let Poll::Ready(output) = main.as_mut().poll(cx) {
            return Poll::Ready(FirstReady::Main(output));
        }
        if rare_waker.take_woken() {
            let waker = Waker::from(Arc::clone(rare_waker));
            if let Poll::Ready(output) = rare.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(FirstReady::Rare(output));
            }
        }
        Poll::Pending
    })
    .await
}

/// The waker of the rare future; records that it was woken.
struct RareEventWaker {
    woken: AtomicBool,
    task: Waker,
}

impl RareEventWaker {
    fn new_woken(task: &Waker) -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicBool::new(true), // not polled with this waker yet
            task: task.clone(),
        })
    }

    /// Whether it was woken since the last call. It loads before it swaps, since it has rarely been
    /// woken.
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

    /// Counts the polls of a future.
    fn count_polls<'a, F: Future + 'a>(
        poll_count: &'a Cell<u32>,
        future: F,
    ) -> impl Future<Output = F::Output> + 'a {
        let mut future = Box::pin(future);
        poll_fn(move |cx| {
            poll_count.set(poll_count.get() + 1);
            future.as_mut().poll(cx)
        })
    }

    #[test]
    fn the_rare_future_is_polled_only_when_woken() {
        let (poll_count, busy, rare) = (Cell::new(0), Notify::new(), Notify::new());
        let main = pin!(async {
            loop {
                busy.notified().await;
            }
        });
        let rare_future = pin!(count_polls(&poll_count, async {
            rare.notified().await;
            rare.notified().await;
        }));
        let mut both = pin!(poll_with_rare_event::<_, _>(main, rare_future));
        for _ in 0..5 {
            assert_eq!(both.as_mut().now_or_never(), None::<FirstReady<(), ()>>);
            busy.notify_one();
        }
        // `now_or_never` polls with the same waker each time.
        assert_eq!(poll_count.get(), 1);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), None);
        assert_eq!(poll_count.get(), 2);
        rare.notify_one();
        assert_eq!(both.as_mut().now_or_never(), Some(FirstReady::Rare(())));
    }

    #[tokio::test]
    async fn both_futures_wake_the_task() {
        let (busy, rare) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        for first in [&busy, &rare] {
            let waking = Arc::clone(first);
            let waking = tokio::spawn(async move { waking.notify_one() });
            let (main, rare_future) = (pin!(busy.notified()), pin!(rare.notified()));
            let first_ready = poll_with_rare_event(main, rare_future).await;
            assert_eq!(
                first_ready == FirstReady::Main(()),
                Arc::ptr_eq(first, &busy)
            );
            waking.await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_future_may_move_to_another_task() {
        let rare = Arc::new(Notify::new());
        let notified = Arc::clone(&rare);
        let mut both = Box::pin(async move {
            let main = pin!(std::future::pending::<()>());
            let rare_future = pin!(notified.notified());
            poll_with_rare_event(main, rare_future).await
        });
        assert_eq!(both.as_mut().now_or_never(), None); // with a no-op waker
        let both = tokio::spawn(both);
        rare.notify_one();
        assert_eq!(both.await.unwrap(), FirstReady::Rare(()));
    }
}
