//! Reset streams of an HTTP/2 connection, until the API server is known to have seen the resets.
//!
//! Go's server runs a stream's handler until it has read the RST_STREAM, and closes a connection on
//! which too many handlers run at a time (`golang.org/x/net/http2`, `scheduleHandler`:
//! ENHANCE_YOUR_CALM). The answer to a PING that was sent after the RST_STREAM shows that it was
//! read. h2 sends PINGs ahead of queued frames, so a PING is sent once all queued frames have been
//! written.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// Counts the resets of one connection.
#[derive(Debug)]
pub(crate) struct ResetTracker {
    sent: AtomicU64,
    /// The number that the peer has seen; closed with the connection.
    acknowledged: watch::Receiver<u64>,
    /// Wakes the task that drives the connection.
    driver: OnceLock<Waker>,
    /// Whether bytes may be queued that have not been written.
    unflushed: Arc<AtomicBool>,
}

impl ResetTracker {
    /// No resets so far, on a connection whose bytes [`FlushTrackedIo`] follows.
    pub(crate) fn new(unflushed: Arc<AtomicBool>) -> (Arc<Self>, watch::Sender<u64>) {
        let (acknowledge, acknowledged) = watch::channel(0);
        let resets = Self {
            sent: AtomicU64::new(0),
            acknowledged,
            driver: OnceLock::new(),
            unflushed,
        };
        (Arc::new(resets), acknowledge)
    }

    /// Records that a stream has been reset. The future ends when the peer has seen it, or the
    /// connection has ended.
    pub(crate) fn record_reset(&self) -> impl Future<Output = ()> + Send + use<> {
        let number = self.sent.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake_driver();
        let mut acknowledged = self.acknowledged.clone();
        async move {
            // Fails when the connection, and its streams, have ended.
            let _ = acknowledged.wait_for(|seen| *seen >= number).await;
        }
    }

    /// The number of resets so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Sets the waker that a reset wakes. One task drives a connection from its start to its end.
    pub(crate) fn set_driver(&self, driver: &Waker) {
        let _ = self.driver.get_or_init(|| driver.clone());
    }

    /// Wakes the task that drives the connection.
    pub(crate) fn wake_driver(&self) {
        if let Some(driver) = self.driver.get() {
            driver.wake_by_ref();
        }
    }

    /// Whether all bytes of the connection have been written.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.unflushed.load(Ordering::Relaxed)
    }
}

/// A stream that tracks whether all bytes were written: HTTP/2 flushes when it has nothing more to
/// write.
pub(crate) struct FlushTrackedIo<S> {
    stream: S,
    unflushed: Arc<AtomicBool>,
}

impl<S> FlushTrackedIo<S> {
    /// Wraps `stream`. Returns the wrapper and its flag.
    pub(crate) fn new(stream: S) -> (Self, Arc<AtomicBool>) {
        let unflushed = Arc::new(AtomicBool::new(false));
        let tracked = Self {
            stream,
            unflushed: Arc::clone(&unflushed),
        };
        (tracked, unflushed)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FlushTrackedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FlushTrackedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.unflushed.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.unflushed.store(false, Ordering::Relaxed);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
