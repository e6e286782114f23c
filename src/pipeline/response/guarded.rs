//! A body with a guard, which it holds until its end, and with a deadline.
//!
//! Frames pass unchanged. The guard gets the end of the body. It is dropped with the body if the
//! client disconnects before, or at the body's deadline, even without a reader. Independent of what
//! the guard holds.
//!
//! A response whose client is slow may be read ahead: a task reads its source into memory, as far as
//! there is some for it. What the guard holds for the source is released when the source has ended.
//! Responses of which nothing waits for their client at two [checks](super::deadlines) have no task
//! and no buffer.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Instant;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::limits::memory_limit::read_ahead::ReadAheadAccount;
use crate::pipeline::response::deadlines::{
    DeadlineGuard, Deadlines, Expire, SCAN_INTERVAL, SlowReader, SlowTransfer, Transfer,
    TransferPhase,
};
use crate::pipeline::response::read_ahead::ReadAhead;
use crate::pipeline::trace::lever_subject::LeverSubject;
use weir_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_base::sync::{Mutex, MutexGuard};

/// What a body holds until its end.
pub(crate) trait BodyGuard: Send + Unpin + 'static {
    /// What is held for the source of the body.
    type Source;
    /// The source has sent these bytes.
    fn on_received(&mut self, data: &[u8]);
    /// As many bytes pass to the client.
    fn on_sent(&mut self, bytes: usize);
    /// No data is available at the moment.
    fn on_idle(&mut self, cx: &mut Context<'_>);
    /// The source has ended completely.
    fn on_complete(&mut self);
    /// The source is over, and the client has not read all of it: returns what was held for it.
    fn take_source(&mut self) -> Self::Source;
    /// Memory for reading ahead, if that is allowed.
    fn read_ahead_account(&self) -> Option<ReadAheadAccount>;
    /// What levers match of the request.
    fn lever_subject(&self) -> Option<LeverSubject> {
        None
    }
    /// Has the client's connection end once its requests have.
    fn go_away(&self) {}
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
pub(crate) struct GuardedBody<B: Body, G> {
    shared: Arc<SharedBody<B, G>>,
    /// Records in `shared` that data is available.
    data_waker: Waker,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Removes the deadline with the body.
    deadline_guard: Option<DeadlineGuard>,
    size: SizeHint,
    ended: bool,
}

struct SharedBody<B: Body, G> {
    /// Shared with the deadline check and with the task that reads ahead; locked for one poll, never
    /// across an await. `None` at the end.
    content: Mutex<Option<BodyContent<B, G>>>,
    reader_waker: AtomicWaker,
    read_ahead_waker: AtomicWaker,
    /// The bytes that were read. Relaxed, as are the flags: no other memory depends on them.
    bytes: AtomicU64,
    /// Whether data is available for the client, as far as is known.
    data_available: AtomicBool,
    slow_reader: SlowReader,
    is_read_ahead: AtomicBool,
    source_ended: AtomicBool,
}

/// Dropped at the end in this order: a seat is released only after the stream below it has been
/// reset.
struct BodyContent<B: Body, G> {
    /// `None` when it has ended and what is left of it is in `ahead`.
    source: Option<B>,
    guard: G,
    ahead: Option<Box<ReadAhead<B::Error>>>,
}

/// Data is available, whether or not the client reads it. HTTP/2 does not poll a body whose client
/// has closed its window.
impl<B, G> Wake for SharedBody<B, G>
where
    B: Body + Send + 'static,
    B::Error: Send,
    G: BodyGuard,
{
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.data_available.store(true, Ordering::Relaxed);
        self.wake_all();
    }
}

impl<B: Body, G> SharedBody<B, G> {
    fn content(&self) -> MutexGuard<'_, Option<BodyContent<B, G>>> {
        self.content.lock()
    }

    fn wake_all(&self) {
        self.reader_waker.wake();
        self.read_ahead_waker.wake();
    }
}

impl<B, G> Expire for SharedBody<B, G>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
    G: BodyGuard,
{
    fn expire(&self, slow: Option<SlowTransfer>) {
        let mut content = self.content().take();
        if let Some(content) = &mut content {
            content.guard.on_error(slow);
        }
        drop(content); // after the lock: it may wake others
        self.wake_all();
    }

    fn transfer(&self) -> Option<Transfer> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let waiting_for_client = self.data_available.load(Ordering::Relaxed);
        let may_read_ahead = self.slow_reader == SlowReader::ReadAhead;
        Some(Transfer {
            may_pause: self.slow_reader == SlowReader::Pause,
            may_read_ahead: may_read_ahead && !self.is_read_ahead.load(Ordering::Relaxed),
            source_ended: self.source_ended.load(Ordering::Relaxed),
            ..Transfer::new(TransferPhase::ResponseBody, bytes, waiting_for_client)
        })
    }

    fn lever_subject(&self) -> Option<LeverSubject> {
        self.content().as_ref()?.guard.lever_subject()
    }

    fn go_away(&self) {
        if let Some(content) = self.content().as_ref() {
            content.guard.go_away();
        }
    }

    fn read_ahead(self: Arc<Self>) {
        self.is_read_ahead.store(true, Ordering::Relaxed);
        if let Ok(runtime) = Handle::try_current()
            && let Some(content) = self.content().as_mut()
            && let Some(account) = content.guard.read_ahead_account()
        {
            content.ahead = Some(Box::new(ReadAhead::new(account)));
            runtime.spawn(Arc::clone(&self).run_read_ahead());
        }
    }
}

/// Why reading ahead does not go on.
enum ReadAheadStop {
    /// There is no memory for it at the moment.
    NoRoom,
    /// The source has ended, or the body.
    Over,
}

impl<B, G> SharedBody<B, G>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
    G: BodyGuard,
{
    /// Reads the source to its end, as far as there is memory.
    async fn run_read_ahead(self: Arc<Self>) {
        let data_waker = Waker::from(Arc::clone(&self));
        loop {
            match poll_fn(|cx| self.poll_read_ahead(&data_waker, cx)).await {
                ReadAheadStop::NoRoom => sleep(SCAN_INTERVAL).await,
                ReadAheadStop::Over => return,
            }
        }
    }

    fn poll_read_ahead(&self, data_waker: &Waker, cx: &mut Context<'_>) -> Poll<ReadAheadStop> {
        self.read_ahead_waker.register(cx.waker());
        let mut locked = self.content();
        let Some(content) = locked.as_mut() else {
            return Poll::Ready(ReadAheadStop::Over);
        };
        let (Some(source), Some(ahead)) = (&mut content.source, &mut content.ahead) else {
            return Poll::Ready(ReadAheadStop::Over);
        };
        let guard = &mut content.guard;
        loop {
            if !ahead.has_room() {
                return Poll::Ready(ReadAheadStop::NoRoom);
            }
            let mut more = Context::from_waker(data_waker);
            match ready!(Pin::new(&mut *source).poll_frame(&mut more)) {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        guard.on_received(data);
                    }
                    if ahead.push(frame) {
                        self.data_available.store(true, Ordering::Relaxed);
                        self.reader_waker.wake();
                    }
                    if !source.is_end_stream() {
                        continue;
                    }
                    guard.on_complete();
                }
                Some(Err(error)) => {
                    guard.on_error(None);
                    ahead.fail(error);
                }
                None => guard.on_complete(),
            }
            break;
        }
        let ended = (content.source.take(), content.guard.take_source());
        drop(locked);
        drop(ended); // after the lock: it may wake others
        self.source_ended.store(true, Ordering::Relaxed);
        self.reader_waker.wake();
        Poll::Ready(ReadAheadStop::Over)
    }
}

/// Calls the guard of a body at a deadline. The body goes on.
struct GuardTimeout<B: Body, G> {
    body: Arc<SharedBody<B, G>>,
    action: fn(&mut G),
}

impl<B, G> Expire for GuardTimeout<B, G>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
    G: BodyGuard,
{
    fn expire(&self, _: Option<SlowTransfer>) {
        if let Some(content) = self.body.content().as_mut() {
            (self.action)(&mut content.guard);
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
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
    G: BodyGuard,
{
    /// Whether the client may pause.
    pub(crate) fn may_pause(&self) -> bool {
        self.shared.slow_reader == SlowReader::Pause
    }

    /// Whether weir may end it at any time, as a watch.
    pub(crate) const fn may_be_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Changes the guard, if the body still has it.
    pub(crate) fn with_guard(&self, change: impl FnOnce(&mut G)) {
        if let Some(content) = self.shared.content().as_mut() {
            change(&mut content.guard);
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

    /// `body` with `guard`, cut off as `lifetime` says while its source sends, or if its client is
    /// slower than `deadlines` and `slow_reader` allow.
    pub(crate) fn new(
        body: B,
        mut guard: G,
        lifetime: BodyLifetime,
        slow_reader: SlowReader,
        deadlines: &Arc<Deadlines>,
    ) -> Self {
        let (size, ended) = (body.size_hint(), body.is_end_stream());
        if ended {
            guard.on_complete();
        }
        let content = (!ended).then_some(BodyContent {
            source: Some(body),
            guard,
            ahead: None,
        });
        let shared = Arc::new(SharedBody {
            content: Mutex::new(content),
            reader_waker: AtomicWaker::new(),
            read_ahead_waker: AtomicWaker::new(),
            bytes: AtomicU64::new(0),
            data_available: AtomicBool::new(true), // until a poll finds none
            slow_reader,
            is_read_ahead: AtomicBool::new(false),
            source_ended: AtomicBool::new(false),
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

    /// Records that the client gets this frame.
    fn record_sent(shared: &SharedBody<B, G>, guard: &mut G, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            guard.on_sent(data.len());
            let bytes = u64::try_from(data.len()).unwrap_or_default();
            shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            shared.data_available.store(true, Ordering::Relaxed);
        }
    }
}

/// The source keeps a waker of this body: dropping the body alone would leave a reference cycle.
impl<B: Body, G> Drop for GuardedBody<B, G> {
    fn drop(&mut self) {
        if self.ended {
            return; // nothing is left, and looking for it would move a large value
        }
        let rest = self.shared.content().take();
        drop(rest); // after the lock: it may wake others
        self.shared.read_ahead_waker.wake();
    }
}

impl<B, G> Body for GuardedBody<B, G>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
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
        let mut locked = this.shared.content();
        let Some(BodyContent {
            source,
            guard,
            ahead,
        }) = locked.as_mut()
        else {
            this.ended = true;
            return Poll::Ready(Some(Err(GuardedBodyError::DeadlineExceeded)));
        };
        let (polled, is_last) = if let Some(ahead) = ahead
            && let Some(frame) = ahead.pop(source.is_none())
        {
            let is_last = source.is_none() && ahead.is_empty();
            (
                frame.map(|frame| frame.map_err(GuardedBodyError::Source)),
                is_last,
            )
        } else if let Some(body) = source {
            let mut more = Context::from_waker(&this.data_waker);
            match Pin::new(&mut *body).poll_frame(&mut more) {
                Poll::Ready(polled) => {
                    match &polled {
                        Some(Ok(frame)) => {
                            if let Some(data) = frame.data_ref() {
                                guard.on_received(data);
                            }
                            if body.is_end_stream() {
                                guard.on_complete();
                            }
                        }
                        Some(Err(_)) => guard.on_error(None),
                        None => guard.on_complete(),
                    }
                    let is_last = !matches!(polled, Some(Ok(_))) || body.is_end_stream();
                    (
                        polled.map(|frame| frame.map_err(GuardedBodyError::Source)),
                        is_last,
                    )
                }
                Poll::Pending
                    if this
                        .stop
                        .as_mut()
                        .is_some_and(|s| s.as_mut().poll(cx).is_ready()) =>
                {
                    (None, true) // the upstream stream is in the middle of its body
                }
                Poll::Pending => {
                    this.shared.data_available.store(false, Ordering::Relaxed);
                    guard.on_idle(cx);
                    return Poll::Pending;
                }
            }
        } else {
            (None, true)
        };
        if let Some(Ok(frame)) = &polled {
            Self::record_sent(&this.shared, guard, frame);
        }
        if !is_last {
            return Poll::Ready(polled);
        }
        this.ended = true;
        let spent = locked.take();
        drop(locked);
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
