//! Where a stream of an HTTP/2 connection runs: in its own task, or in the connection's task if it
//! completes at once.
//!
//! In a storm most requests are rejected at once, and a task for each would be a considerable part
//! of its cost. If the last request of a connection completed at once, the next one is first polled
//! in the connection's task. It becomes a task if it has to wait, as does the first request that is
//! forwarded after a rejection.
//!
//! Authentication is a lookup and not a future, unless a token has to be verified: so most requests
//! complete at once.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use tokio::task::coop::poll_proceed;

use crate::pipeline::connection::request_count::RequestCount;

/// Runs the streams of the connection whose requests are counted here.
#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor(pub(crate) Arc<RequestCount>);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + Unpin + 'static,
{
    fn execute(&self, mut stream: F) {
        // No wake-up is needed: a stream that has to wait is polled again as a task.
        let mut context = Context::from_waker(Waker::noop());
        if !self.0.last_was_immediate() || !consume_coop_budget(&mut context) {
            tokio::spawn(stream);
            return;
        }
        let polled = catch_unwind(AssertUnwindSafe(|| {
            Pin::new(&mut stream).poll(&mut context)
        }));
        // A panic ends the stream, as it would end a task, wherever it occurs.
        if polled.is_ok_and(|poll| poll.is_pending()) {
            tokio::spawn(stream);
        } else {
            let _ = catch_unwind(AssertUnwindSafe(move || drop(stream)));
        }
    }
}

/// Takes one unit of the connection's cooperative budget, so that other connections get their
/// share. If more than a hundred streams complete in one poll, none is left for writing their
/// responses, which then happens in the next poll.
fn consume_coop_budget(context: &mut Context<'_>) -> bool {
    match poll_proceed(context) {
        Poll::Ready(step) => {
            step.made_progress();
            true
        }
        Poll::Pending => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    /// The executor of a connection whose last request was answered at once, or had to wait.
    fn stream_executor(at_once: bool) -> StreamExecutor {
        let requests = Arc::new(RequestCount::default());
        let in_flight = requests.start();
        let response = async {
            if !at_once {
                pending::<()>().await;
            }
        };
        let polled = in_flight.track(pin!(response)).now_or_never();
        assert_eq!(polled.is_some(), at_once);
        StreamExecutor(requests)
    }

    /// A future that counts its runs.
    fn count_run(ran: &Arc<AtomicU32>) -> impl Future<Output = ()> + Send + Unpin + 'static {
        let ran = Arc::clone(ran);
        poll_fn(move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(())
        })
    }

    #[tokio::test]
    async fn a_stream_is_polled_inline_if_the_last_request_was_answered_at_once() {
        let ran = Arc::new(AtomicU32::new(0));
        stream_executor(true).execute(count_run(&ran));
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        stream_executor(false).execute(count_run(&ran));
        assert_eq!(ran.load(Ordering::Relaxed), 1, "it is a task");
        tokio::task::yield_now().await;
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_pending_stream_becomes_a_task() {
        let (sender, received) = oneshot::channel();
        let (done, ends) = oneshot::channel();
        let stream = Box::pin(async {
            let received = received.await;
            let _ = done.send(received);
        });
        stream_executor(true).execute(stream);
        tokio::task::yield_now().await;
        sender.send(7).unwrap();
        assert_eq!(ends.await, Ok(Ok(7)));
    }

    /// Panics when it is dropped.
    struct PanicOnDrop;

    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_stream() {
        let streams = stream_executor(true);
        streams.execute(Box::pin(async { panic!("on purpose") }));
        let panics = PanicOnDrop;
        streams.execute(poll_fn(move |_| {
            let _ = &panics;
            Poll::Ready(())
        }));
        let ran = Arc::new(AtomicU32::new(0));
        streams.execute(count_run(&ran));
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_number_of_streams_polled_inline_is_bounded() {
        const MANY: u32 = 10_000;
        let ran = Arc::new(AtomicU32::new(0));
        let streams = stream_executor(true);
        for _ in 0..MANY {
            streams.execute(count_run(&ran));
        }
        let at_once = ran.load(Ordering::Relaxed);
        assert!((1..MANY / 10).contains(&at_once), "{at_once}");
        while ran.load(Ordering::Relaxed) < MANY {
            tokio::task::yield_now().await;
        }
    }
}
