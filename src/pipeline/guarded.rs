//! A body that holds something until its end, and may be cut short.
//!
//! Frames go on as they come. The guard is told of the end, and is dropped with the body if the client goes
//! away before, or if the body outlives its deadline, even when nobody reads it any more. Knows nothing of what it guards.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;

use crate::pipeline::overdue::Entered;
use crate::pipeline::overdue::Expire;
use crate::pipeline::overdue::Overdue;

/// What rides on a body.
pub trait Guard: Send + Unpin + 'static {
    /// This has gone by.
    fn passed(&mut self, data: &[u8]);
    /// Nothing is there to go by at the moment.
    fn idle(&mut self, cx: &mut Context<'_>);
    /// It has come to its end, all of it.
    fn complete(&mut self);
    /// It breaks off: its time is up, or what it is read from fails.
    fn broken(&mut self);
}

/// When a body is cut short if it has not ended by itself.
pub enum Until {
    /// An error at this time: the client must not take it for the whole.
    Deadline(Instant, Arc<Overdue>),
    /// Never.
    End,
    /// A clean end when this comes: for a watch, whose client simply asks again.
    Stop(Pin<Box<dyn Future<Output = ()> + Send>>),
}

/// A body, its guard, and when it is cut.
pub struct Guarded<B, G> {
    held: Arc<Held<B, G>>,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Leaves the list of the overdue with the body.
    _entered: Option<Entered>,
    size: SizeHint,
    ended: bool,
}

/// What is dropped at the end, in this order: a seat is free only once the stream below it has been reset.
struct Held<B, G> {
    /// Shared with whoever looks for the overdue; held for one poll, never across an await.
    inner: Mutex<Option<(B, G)>>,
    reader: AtomicWaker,
}

impl<B, G> Held<B, G> {
    fn inner(&self) -> MutexGuard<'_, Option<(B, G)>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Send, G: Guard> Expire for Held<B, G> {
    fn expire(&self) {
        let mut inner = self.inner().take();
        if let Some((_, guard)) = &mut inner {
            guard.broken();
        }
        drop(inner); // after the lock: it may wake others
        self.reader.wake();
    }
}

/// Why a body broke off.
#[derive(Debug)]
pub enum Broken<E> {
    /// The request's time was up.
    Deadline,
    /// What it was read from failed.
    Source(E),
}

impl<E: fmt::Display> fmt::Display for Broken<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => write!(f, "the request's time is up"),
            Self::Source(source) => source.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Broken<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Deadline => None,
            Self::Source(source) => Some(source),
        }
    }
}

impl<B, G> Guarded<B, G>
where
    B: Body + Send + 'static,
    G: Guard,
{
    /// Does something to the guard, if it is still on it.
    pub fn with_guard(&self, change: impl FnOnce(&mut G)) {
        if let Some((_, guard)) = self.held.inner().as_mut() {
            change(guard);
        }
    }

    /// `body` with `guard` on it, cut at `until`.
    pub fn new(body: B, mut guard: G, until: Until) -> Self {
        let (size, ended) = (body.size_hint(), body.is_end_stream());
        if ended {
            guard.complete();
        }
        let inner = (!ended).then_some((body, guard));
        let held = Arc::new(Held {
            inner: Mutex::new(inner),
            reader: AtomicWaker::new(),
        });
        let (entered, stop) = match until {
            Until::Deadline(at, overdue) if !ended => {
                let held: Arc<dyn Expire> = Arc::<Held<B, G>>::clone(&held);
                (Some(overdue.enter(at, held)), None)
            }
            Until::Stop(stop) => (None, Some(stop)),
            Until::Deadline(..) | Until::End => (None, None),
        };
        Self {
            held,
            stop,
            _entered: entered,
            size,
            ended,
        }
    }
}

impl<B, G> Body for Guarded<B, G>
where
    B: Body<Data = Bytes> + Unpin,
    G: Guard,
{
    type Data = Bytes;
    type Error = Broken<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        this.held.reader.register(cx.waker());
        let mut inner = this.held.inner();
        let Some((body, guard)) = inner.as_mut() else {
            this.ended = true;
            return Poll::Ready(Some(Err(Broken::Deadline)));
        };
        let polled = match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(polled) => polled.map(|frame| frame.map_err(Broken::Source)),
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
                guard.idle(cx);
                return Poll::Pending;
            }
        };
        if let Some(Ok(frame)) = &polled
            && let Some(data) = frame.data_ref()
        {
            guard.passed(data);
        }
        match &polled {
            Some(Ok(_)) if !body.is_end_stream() => return Poll::Ready(polled),
            Some(Ok(_)) => guard.complete(),
            Some(Err(_)) => guard.broken(),
            None if this.ended => {} // stopped: the connection below is in the middle of something
            None => guard.complete(),
        }
        this.ended = true;
        let spent = inner.take();
        drop(inner);
        drop(spent); // after the lock: it may wake others
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
