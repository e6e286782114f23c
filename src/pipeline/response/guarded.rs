//! A body with a guard, which it holds until its end, and with a deadline.
//!
//! Frames pass unchanged. The guard gets the end of the body. It is dropped with the body if the
//! client disconnects before, or at the body's deadline, even without a reader. Independent of what
//! the guard holds.

use parking_lot::Mutex;
use parking_lot::MutexGuard;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::Wake;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;

use crate::pipeline::response::deadlines::DeadlineGuard;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::Expire;
use crate::pipeline::response::deadlines::SlowTransfer;
use crate::pipeline::response::deadlines::Transfer;
use crate::pipeline::response::deadlines::TransferPhase;

/// What a body holds until its end.
pub(crate) trait BodyGuard: Send + Unpin + 'static {
    /// These bytes have passed.
    fn on_data(&mut self, data: &[u8]);
    /// No data is available at the moment.
    fn on_idle(&mut self, cx: &mut Context<'_>);
    /// The body has ended completely.
    fn on_complete(&mut self);
    /// The body breaks off: at its deadline, because its client is too `slow`, or because its source
    /// fails.
    fn on_error(&mut self, slow: Option<SlowTransfer>);
}

/// When a body is cut off if it has not ended itself. A client that is too slow is cut off in any
/// case.
pub(crate) enum BodyLifetime {
    /// With an error at this time: the client must not take it for complete.
    Deadline(Instant),
    /// Never.
    Unlimited,
    /// With a clean end when this completes: for a watch, whose client simply starts another.
    UntilStopped(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// A body with its guard and its deadline.
pub(crate) struct GuardedBody<B, G> {
    shared: Arc<SharedBody<B, G>>,
    /// Records in `shared` that data is available.
    data_waker: Waker,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Removes the deadline with the body.
    deadline_guard: Option<DeadlineGuard>,
    size: SizeHint,
    ended: bool,
}

/// Dropped at the end in this order: a seat is released only after the stream below it has been
/// reset.
struct SharedBody<B, G> {
    /// Shared with the deadline check; locked for one poll, never across an await.
    inner: Mutex<Option<(B, G)>>,
    reader_waker: AtomicWaker,
    /// The bytes that were read. Relaxed, as is `data_available`: no other memory depends on them.
    bytes: AtomicU64,
    /// Whether data is available for the client, as far as is known.
    data_available: AtomicBool,
    /// Whether the client may pause.
    may_pause: bool,
}

/// Data is available, whether or not the client reads it. HTTP/2 does not poll a body whose client
/// has closed its window.
impl<B: Send + 'static, G: BodyGuard> Wake for SharedBody<B, G> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.data_available.store(true, Ordering::Relaxed);
        self.reader_waker.wake();
    }
}

impl<B, G> SharedBody<B, G> {
    fn inner(&self) -> MutexGuard<'_, Option<(B, G)>> {
        self.inner.lock()
    }
}

impl<B: Send, G: BodyGuard> Expire for SharedBody<B, G> {
    fn expire(&self, slow: Option<SlowTransfer>) {
        let mut inner = self.inner().take();
        if let Some((_, guard)) = &mut inner {
            guard.on_error(slow);
        }
        drop(inner); // after the lock: it may wake others
        self.reader_waker.wake();
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(Transfer {
            phase: TransferPhase::ResponseBody,
            bytes: self.bytes.load(Ordering::Relaxed),
            waiting_for_client: self.data_available.load(Ordering::Relaxed),
            may_pause: self.may_pause,
        })
    }
}

/// Calls the guard of a body at a deadline. The body goes on.
struct GuardTimeout<B, G> {
    body: Arc<SharedBody<B, G>>,
    action: fn(&mut G),
}

impl<B: Send, G: BodyGuard> Expire for GuardTimeout<B, G> {
    fn expire(&self, _: Option<SlowTransfer>) {
        if let Some((_, guard)) = self.body.inner().as_mut() {
            (self.action)(guard);
        }
    }
}

/// Why a body broke off.
#[derive(Debug)]
pub enum GuardedBodyError<E> {
    /// The request's deadline passed, or its client was too slow.
    DeadlineExceeded,
    /// The source of the body failed.
    Source(E),
}

impl<E: fmt::Display> fmt::Display for GuardedBodyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeadlineExceeded => write!(f, "the request's time is up"),
            Self::Source(source) => source.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for GuardedBodyError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::DeadlineExceeded => None,
            Self::Source(source) => Some(source),
        }
    }
}

impl<B, G> GuardedBody<B, G>
where
    B: Body + Send + 'static,
    G: BodyGuard,
{
    /// Whether the client may pause.
    pub(crate) fn may_pause(&self) -> bool {
        self.shared.may_pause
    }

    /// Whether weir may end it at any time, as a watch.
    pub(crate) const fn may_be_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Changes the guard, if the body still has it.
    pub(crate) fn with_guard(&self, change: impl FnOnce(&mut G)) {
        if let Some((_, guard)) = self.shared.inner().as_mut() {
            change(guard);
        }
    }

    /// Calls `action` with the guard soon after `deadline`, also without a reader, unless the body
    /// is over by then or what this returns is dropped.
    #[must_use]
    pub(crate) fn register_timeout(
        &self,
        deadline: Instant,
        action: fn(&mut G),
        deadlines: &Arc<Deadlines>,
    ) -> DeadlineGuard {
        let body = Arc::clone(&self.shared);
        deadlines.register(Some(deadline), Arc::new(GuardTimeout { body, action }))
    }

    /// `body` with `guard`, cut off as `lifetime` says, or if its client is too slow for
    /// `deadlines`, unless it `may_pause`.
    pub(crate) fn new(
        body: B,
        mut guard: G,
        lifetime: BodyLifetime,
        may_pause: bool,
        deadlines: &Arc<Deadlines>,
    ) -> Self {
        let (size, ended) = (body.size_hint(), body.is_end_stream());
        if ended {
            guard.on_complete();
        }
        let inner = (!ended).then_some((body, guard));
        let shared = Arc::new(SharedBody {
            inner: Mutex::new(inner),
            reader_waker: AtomicWaker::new(),
            bytes: AtomicU64::new(0),
            data_available: AtomicBool::new(true), // until a poll finds none
            may_pause,
        });
        let (deadline, stop) = match lifetime {
            BodyLifetime::Deadline(at) => (Some(at), None),
            BodyLifetime::UntilStopped(stop) => (None, Some(stop)),
            BodyLifetime::Unlimited => (None, None),
        };
        let deadline_guard = (!ended).then(|| {
            let shared: Arc<dyn Expire> = Arc::<SharedBody<B, G>>::clone(&shared);
            deadlines.register(deadline, shared)
        });
        Self {
            data_waker: Waker::from(Arc::clone(&shared)),
            shared,
            stop,
            deadline_guard,
            size,
            ended,
        }
    }
}

/// The source keeps a waker of this body: dropping the body alone would leave a reference cycle.
impl<B, G> Drop for GuardedBody<B, G> {
    fn drop(&mut self) {
        if self.ended {
            return; // nothing is left, and looking for it would move a large value
        }
        let rest = self.shared.inner().take();
        drop(rest); // after the lock: it may wake others
    }
}

impl<B, G> Body for GuardedBody<B, G>
where
    B: Body<Data = Bytes> + Unpin,
    G: BodyGuard,
{
    type Data = Bytes;
    type Error = GuardedBodyError<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        this.shared.reader_waker.register(cx.waker());
        let mut inner = this.shared.inner();
        let Some((body, guard)) = inner.as_mut() else {
            this.ended = true;
            return Poll::Ready(Some(Err(GuardedBodyError::DeadlineExceeded)));
        };
        let mut more = Context::from_waker(&this.data_waker);
        let polled = match Pin::new(&mut *body).poll_frame(&mut more) {
            Poll::Ready(polled) => polled.map(|frame| frame.map_err(GuardedBodyError::Source)),
            Poll::Pending
                if this
                    .stop
                    .as_mut()
                    .is_some_and(|s| s.as_mut().poll(cx).is_ready()) =>
            {
                this.ended = true;
                None
            }
            Poll::Pending => {
                this.shared.data_available.store(false, Ordering::Relaxed);
                guard.on_idle(cx);
                return Poll::Pending;
            }
        };
        if let Some(Ok(frame)) = &polled
            && let Some(data) = frame.data_ref()
        {
            guard.on_data(data);
            let bytes = u64::try_from(data.len()).unwrap_or_default();
            this.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            this.shared.data_available.store(true, Ordering::Relaxed);
        }
        match &polled {
            Some(Ok(_)) if !body.is_end_stream() => return Poll::Ready(polled),
            Some(Ok(_)) => guard.on_complete(),
            Some(Err(_)) => guard.on_error(None),
            None if this.ended => {} // stopped: the upstream stream is in the middle of its body
            None => guard.on_complete(),
        }
        this.ended = true;
        let spent = inner.take();
        drop(inner);
        drop(spent); // after the lock: it may wake others
        this.deadline_guard = None;
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        if self.ended {
            SizeHint::with_exact(0)
        } else {
            self.size
        }
    }
}

#[cfg(test)]
#[path = "guarded_tests.rs"]
mod tests;
