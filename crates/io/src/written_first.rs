//! Lets what a body has handed out be written before its error counts.
//!
//! A body that fails makes hyper close its HTTP/1.1 connection, and h2 reset its stream. Both discard
//! what they have taken from the body and not written yet: up to 64 KiB that the other side has
//! sent, and that a peer which reads slowly never gets. So the error waits.
//!
//! On HTTP/1.1 it waits for a complete flush of the connection ([`FlushSignal`]). hyper flushes after
//! each poll of a body, once its buffer is empty. On HTTP/2 it follows an empty DATA frame, which h2
//! drops when it has written it and all before it ([`Http2Marker`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::time::Sleep;

/// An error waits no longer than this: a peer may have closed the window of its stream for good.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Whether a connection has been flushed since an error waits for it. Body and connection are polled
/// by one task at a time, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub struct FlushSignal {
    flushed: AtomicBool,
    waiting: AtomicWaker,
}

impl FlushSignal {
    /// Records that all was written.
    pub fn record_flush(&self) {
        if !self.flushed.swap(true, Ordering::Relaxed) {
            self.waiting.wake();
        }
    }
}

/// An empty DATA frame. Dropping its bytes shows that it was written, or never will be.
#[derive(Debug)]
struct Http2Marker(Arc<FlushSignal>);

impl AsRef<[u8]> for Http2Marker {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

impl Drop for Http2Marker {
    fn drop(&mut self) {
        self.0.record_flush();
    }
}

/// Completes when what was handed out has been written.
#[derive(Debug)]
pub struct WrittenFirst {
    signal: Arc<FlushSignal>,
    timeout: Pin<Box<Sleep>>,
}

impl WrittenFirst {
    /// Waits for the next complete flush of an HTTP/1.1 connection. The task of `waker` polls the
    /// connection before what this returns.
    pub fn on_http1(signal: &Arc<FlushSignal>, waker: &Waker) -> Self {
        signal.waiting.register(waker);
        signal.flushed.store(false, Ordering::Relaxed);
        Self::new(Arc::clone(signal))
    }

    /// Waits until h2 has written what is returned with it: the next DATA frame of the stream.
    pub fn on_http2() -> (Self, Bytes) {
        let signal = Arc::<FlushSignal>::default();
        let marker = Bytes::from_owner(Http2Marker(Arc::clone(&signal)));
        (Self::new(signal), marker)
    }

    fn new(signal: Arc<FlushSignal>) -> Self {
        Self {
            signal,
            timeout: Box::pin(tokio::time::sleep(MAX_WAIT)),
        }
    }
}

impl Future for WrittenFirst {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.signal.waiting.register(cx.waker());
        if self.signal.flushed.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        self.timeout.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use weir_base::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn on_http1_it_waits_for_the_next_flush() {
        let signal = Arc::<FlushSignal>::default();
        signal.record_flush();
        let mut written = WrittenFirst::on_http1(&signal, Waker::noop());
        assert_eq!((&mut written).now_or_never(), None);
        signal.record_flush();
        assert_eq!((&mut written).now_or_never(), Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn on_http2_it_waits_until_the_marker_is_dropped() {
        let (mut written, marker) = WrittenFirst::on_http2();
        assert!(marker.is_empty());
        let queued = marker.clone();
        drop(marker);
        assert_eq!((&mut written).now_or_never(), None);
        drop(queued);
        assert_eq!((&mut written).now_or_never(), Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_twenty_seconds_at_most() {
        let (written, _marker) = WrittenFirst::on_http2();
        let before = Clock.now();
        written.await;
        assert_eq!(Clock.now().saturating_duration_since(before), MAX_WAIT);
    }
}
