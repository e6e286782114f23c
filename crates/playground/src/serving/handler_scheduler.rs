//! Limits the running handlers of an HTTP/2 connection.
//!
//! Go's server runs at most as many handlers at once as it advertises streams, and a handler
//! continues after its stream was reset. The client may open another stream at once; its handler
//! waits, unstarted. More than four times the advertised streams of unstarted handlers end the
//! connection with ENHANCE_YOUR_CALM (`scheduleHandler` and `handlerDone` in
//! golang.org/x/net/http2).

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// Maximum number of unstarted handlers of Go's server, in multiples of the advertised streams.
const UNSTARTED_FACTOR: usize = 4;

/// The handlers of one HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct HandlerScheduler {
    /// Maximum number of running handlers.
    limit: usize,
    /// Nothing is awaited under this lock.
    state: Mutex<SchedulerState>,
    /// Notified when the client has reset too many streams.
    too_many_resets: Notify,
}

#[derive(Debug, Default)]
struct SchedulerState {
    running: usize,
    unstarted: VecDeque<oneshot::Sender<HandlerSlot>>,
}

/// The slot of a running handler, until dropped.
#[derive(Debug)]
pub(crate) struct HandlerSlot {
    scheduler: Arc<HandlerScheduler>,
}

/// When a handler starts.
#[derive(Debug)]
pub(crate) enum ScheduledHandler {
    Now(HandlerSlot),
    /// After others. The receiver is dropped if the stream is reset.
    Later(oneshot::Receiver<HandlerSlot>),
    /// Never: the connection ends.
    Never,
}

impl HandlerScheduler {
    pub(crate) fn new(streams: u32) -> Arc<Self> {
        Arc::new(Self {
            limit: usize::try_from(streams).unwrap_or(usize::MAX),
            state: Mutex::default(),
            too_many_resets: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    /// Schedules the handler of a new stream.
    pub(crate) fn schedule(self: &Arc<Self>) -> ScheduledHandler {
        let mut state = self.state();
        if state.running < self.limit {
            state.running += 1;
            return ScheduledHandler::Now(HandlerSlot {
                scheduler: Arc::clone(self),
            });
        }
        if state.unstarted.len() > self.limit.saturating_mul(UNSTARTED_FACTOR) {
            self.too_many_resets.notify_one();
            return ScheduledHandler::Never;
        }
        let (sender, receiver) = oneshot::channel();
        state.unstarted.push_back(sender);
        ScheduledHandler::Later(receiver)
    }

    /// Waits until the client has reset too many streams. Cancel safety: no notification is lost.
    pub(crate) async fn wait_for_too_many_resets(&self) {
        self.too_many_resets.notified().await;
    }

    /// A handler has ended: the next ones start, except for those whose streams were reset
    /// meanwhile.
    fn handler_done(self: &Arc<Self>) {
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
            // If the stream was reset just now, the slot is dropped here, and its drop takes the
            // lock again.
            let _ = sender.send(HandlerSlot {
                scheduler: Arc::clone(self),
            });
        }
    }
}

impl Drop for HandlerSlot {
    fn drop(&mut self) {
        self.scheduler.handler_done();
    }
}

impl ScheduledHandler {
    /// Waits until the handler may start; forever if it never may.
    ///
    /// Cancel safety: a dropped handler does not start.
    pub(crate) async fn wait_for_slot(self) -> HandlerSlot {
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
    use super::{HandlerScheduler, ScheduledHandler};

    #[tokio::test]
    async fn as_many_handlers_run_as_streams_are_allowed_and_the_rest_in_order() {
        let handlers = HandlerScheduler::new(1);
        let ScheduledHandler::Now(first) = handlers.schedule() else {
            panic!("one may run");
        };
        let reset = handlers.schedule();
        let second = handlers.schedule();
        let third = handlers.schedule();
        assert!(matches!(third, ScheduledHandler::Later(_)));
        drop(reset);
        drop(first);
        let second = second.wait_for_slot().await;
        assert_eq!(handlers.state().unstarted.len(), 1);
        drop(second);
        let third = third.wait_for_slot().await;
        assert_eq!(handlers.state().running, 1);
        drop(third);
        assert_eq!(handlers.state().running, 0);
        assert!(matches!(handlers.schedule(), ScheduledHandler::Now(_)));
    }

    #[tokio::test]
    async fn more_than_four_times_as_many_unstarted_handlers_end_the_connection() {
        let handlers = HandlerScheduler::new(2);
        let running = [handlers.schedule(), handlers.schedule()];
        // Reset or not: Go counts them until a handler has ended.
        for number in 0..9 {
            assert!(
                matches!(handlers.schedule(), ScheduledHandler::Later(_)),
                "{number}"
            );
        }
        assert!(matches!(handlers.schedule(), ScheduledHandler::Never));
        handlers.wait_for_too_many_resets().await;
        drop(running);
        assert!(handlers.state().unstarted.is_empty());
    }
}
