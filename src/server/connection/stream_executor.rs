//! Where a stream of an HTTP/2 connection is answered: in a task of its own, or in the connection's while that takes no time.
//!
//! A storm is refusals, and each is there as soon as it is asked for; a task for each would be a good part of what it costs. Where
//! the last request of a connection was answered like that, the next is asked in the connection's own turn, and becomes a task
//! if it has to wait after all: so does the first that is forwarded after a refusal.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;

use hyper::rt::Executor;
use tokio::task::coop::poll_proceed;

use crate::pipeline::connection::request_count::RequestCount;

/// Runs the streams of the connection with these requests.
#[derive(Clone, Debug)]
pub(in crate::server) struct StreamExecutor(pub(in crate::server) Arc<RequestCount>);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + Unpin + 'static,
{
    fn execute(&self, mut stream: F) {
        // Nobody is to be woken: who has to wait is asked again, as a task.
        let mut context = Context::from_waker(Waker::noop());
        if !self.0.last_was_immediate() || !consume_coop_budget(&mut context) {
            tokio::spawn(stream);
            return;
        }
        let asked = catch_unwind(AssertUnwindSafe(|| {
            Pin::new(&mut stream).poll(&mut context)
        }));
        // A panic ends the stream, as it ends a task, wherever it comes from.
        if asked.is_ok_and(|answered| answered.is_pending()) {
            tokio::spawn(stream);
        } else {
            let _ = catch_unwind(AssertUnwindSafe(move || drop(stream)));
        }
    }
}

/// Takes one step of what the connection may do in its turn, so that other connections have theirs. Whoever has more than a hundred
/// streams answered in one leaves none for writing them, which has to wait for the next then.
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
    use std::future::pending;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    /// Of a connection whose last request was answered at once, or had to wait.
    fn stream_executor(at_once: bool) -> StreamExecutor {
        let requests = Arc::new(RequestCount::default());
        let begun = requests.start();
        let answer = async {
            if !at_once {
                pending::<()>().await;
            }
        };
        let watched = begun.track(pin!(answer)).now_or_never();
        assert_eq!(watched.is_some(), at_once);
        StreamExecutor(requests)
    }

    /// Counts those that have run.
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
        let (tells, told) = oneshot::channel();
        let (done, ends) = oneshot::channel();
        let stream = Box::pin(async {
            let told = told.await;
            let _ = done.send(told);
        });
        stream_executor(true).execute(stream);
        tokio::task::yield_now().await;
        tells.send(7).unwrap();
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
        let ill = PanicOnDrop;
        streams.execute(poll_fn(move |_| {
            let _ = &ill;
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
