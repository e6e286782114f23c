//! Which handlers of an HTTP/2 connection run.
//!
//! Go's server runs at most as many handlers at once as it advertises streams, and a handler goes on after its stream was
//! reset. A client may open another stream at once; its handler waits, unstarted. More than four times the advertised
//! streams of those end the connection with ENHANCE_YOUR_CALM (`scheduleHandler` and `handlerDone` in
//! golang.org/x/net/http2).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use tokio::sync::Notify;
use tokio::sync::oneshot;

/// How many unstarted handlers Go's server keeps, in multiples of the advertised streams.
const UNSTARTED: usize = 4;

/// The handlers of one HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Handlers {
    /// Most that run at once.
    limit: usize,
    /// Nothing is awaited under this lock.
    state: Mutex<Scheduling>,
    /// Notified when the client has reset too many streams.
    too_many_resets: Notify,
}

#[derive(Debug, Default)]
struct Scheduling {
    running: usize,
    unstarted: VecDeque<oneshot::Sender<Running>>,
}

/// A handler that runs, until dropped.
#[derive(Debug)]
pub(crate) struct Running {
    handlers: Arc<Handlers>,
}

/// When a handler runs.
#[derive(Debug)]
pub(crate) enum Scheduled {
    Now(Running),
    /// After others. Dropping the receiver says that the stream was reset.
    Later(oneshot::Receiver<Running>),
    /// Never: the connection ends.
    Never,
}

impl Handlers {
    pub(crate) fn new(streams: u32) -> Arc<Self> {
        Arc::new(Self {
            limit: usize::try_from(streams).unwrap_or(usize::MAX),
            state: Mutex::default(),
            too_many_resets: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, Scheduling> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream was opened.
    pub(crate) fn schedule(self: &Arc<Self>) -> Scheduled {
        let mut state = self.state();
        if state.running < self.limit {
            state.running += 1;
            return Scheduled::Now(Running {
                handlers: Arc::clone(self),
            });
        }
        if state.unstarted.len() > self.limit.saturating_mul(UNSTARTED) {
            self.too_many_resets.notify_one();
            return Scheduled::Never;
        }
        let (sender, receiver) = oneshot::channel();
        state.unstarted.push_back(sender);
        Scheduled::Later(receiver)
    }

    /// Until the client has reset too many streams. Cancel safety: nothing is lost.
    pub(crate) async fn too_many_resets(&self) {
        self.too_many_resets.notified().await;
    }

    /// A handler has ended: the next ones run, but for those whose streams were reset meanwhile.
    fn done(self: &Arc<Self>) {
        let mut next = Vec::new();
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        while let Some(first) = state.unstarted.pop_front() {
            if first.is_closed() {
                continue;
            }
            if state.running >= self.limit {
                state.unstarted.push_front(first);
                break;
            }
            state.running += 1;
            next.push(first);
        }
        drop(state);
        for sender in next {
            // One that was reset just now gives it back by its drop, which takes the lock again.
            let _ = sender.send(Running {
                handlers: Arc::clone(self),
            });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handlers.done();
    }
}

impl Scheduled {
    /// Waits until the handler may run; for ever if it never may.
    ///
    /// Cancel safety: what is dropped does not run.
    pub(crate) async fn started(self) -> Running {
        match self {
            Self::Now(running) => running,
            Self::Later(receiver) => match receiver.await {
                Ok(running) => running,
                Err(_) => std::future::pending().await,
            },
            Self::Never => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Handlers;
    use super::Scheduled;

    #[tokio::test]
    async fn as_many_run_as_there_may_be_streams_and_the_next_follow_in_order() {
        let handlers = Handlers::new(1);
        let Scheduled::Now(first) = handlers.schedule() else {
            panic!("one may run");
        };
        let reset = handlers.schedule();
        let second = handlers.schedule();
        let third = handlers.schedule();
        assert!(matches!(third, Scheduled::Later(_)));
        drop(reset);
        drop(first);
        let second = second.started().await;
        assert_eq!(handlers.state().unstarted.len(), 1);
        drop(second);
        let third = third.started().await;
        assert_eq!(handlers.state().running, 1);
        drop(third);
        assert_eq!(handlers.state().running, 0);
        assert!(matches!(handlers.schedule(), Scheduled::Now(_)));
    }

    #[tokio::test]
    async fn more_than_four_times_as_many_unstarted_end_the_connection() {
        let handlers = Handlers::new(2);
        let running = [handlers.schedule(), handlers.schedule()];
        // Reset or not: Go counts them until a handler has ended.
        for number in 0..9 {
            assert!(
                matches!(handlers.schedule(), Scheduled::Later(_)),
                "{number}"
            );
        }
        assert!(matches!(handlers.schedule(), Scheduled::Never));
        handlers.too_many_resets().await;
        drop(running);
        assert!(handlers.state().unstarted.is_empty());
    }
}
