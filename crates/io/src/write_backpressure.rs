//! Limits the memory of an HTTP/1.1 response whose client does not read.
//!
//! The HTTP library has one buffer limit for both directions of a connection. It must fit a request
//! head (1 MiB), and the library buffers that much of a response body before it writes. Here a body
//! returns only a little data until that is written. HTTP/2 has its own limit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};

use crate::written_first::FlushSignal;

/// A body is not polled while this many of its bytes are unwritten: as much as an HTTP/2 stream may
/// hold, plus a frame.
pub const MAX_UNWRITTEN_BYTES: usize = 64 << 10;

/// The response bytes that the library of one connection has buffered and not written. Body and
/// connection are polled by one task, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub struct UnwrittenBytes {
    count: AtomicUsize,
    body_waker: AtomicWaker,
    flushes: Arc<FlushSignal>,
}

impl UnwrittenBytes {
    /// Records written bytes. Framing is included here but not in what was buffered, so the count
    /// is never too high. It is zero when all is written.
    pub fn record_written(&self, bytes: usize) {
        let before = self.count.load(Ordering::Relaxed);
        if before == 0 {
            return;
        }
        self.count
            .store(before.saturating_sub(bytes), Ordering::Relaxed);
        if before >= MAX_UNWRITTEN_BYTES {
            self.body_waker.wake();
        }
    }

    /// Records that all was written.
    pub fn record_flush(&self) {
        self.flushes.record_flush();
    }

    /// The flushes of the connection.
    pub const fn flushes(&self) -> &Arc<FlushSignal> {
        &self.flushes
    }

    fn has_capacity(&self) -> bool {
        self.count.load(Ordering::Relaxed) < MAX_UNWRITTEN_BYTES
    }

    fn record_buffered(&self, bytes: usize) {
        self.count.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A body that returns data no faster than the connection writes it.
pub struct BackpressureBody<B> {
    body: B,
    unwritten_bytes: Arc<UnwrittenBytes>,
}

impl<B> BackpressureBody<B> {
    /// Wraps `body`, which is sent on the connection that `unwritten_bytes` belongs to.
    pub const fn new(body: B, unwritten_bytes: Arc<UnwrittenBytes>) -> Self {
        Self {
            body,
            unwritten_bytes,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for BackpressureBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.unwritten_bytes.has_capacity() {
            self.unwritten_bytes.body_waker.register(cx.waker());
            return Poll::Pending;
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.unwritten_bytes.record_buffered(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[test]
    fn a_body_yields_no_frame_beyond_the_limit_until_bytes_are_written() {
        const PART: usize = 16 << 10;
        let parts = futures_util::stream::iter(
            std::iter::repeat_n(Bytes::from_static(&[7; PART]), 100)
                .map(|part| Ok::<_, std::convert::Infallible>(Frame::data(part))),
        );
        let unwritten_bytes = Arc::new(UnwrittenBytes::default());
        let mut body = BackpressureBody::new(StreamBody::new(parts), Arc::clone(&unwritten_bytes));
        let mut yielded = || {
            let frames = std::iter::from_fn(|| body.frame().now_or_never());
            frames.count() * PART
        };
        assert_eq!(yielded(), MAX_UNWRITTEN_BYTES);
        assert_eq!(yielded(), 0);
        unwritten_bytes.record_written(PART);
        assert_eq!(yielded(), PART);
        unwritten_bytes.record_written(2 * MAX_UNWRITTEN_BYTES);
        assert_eq!(yielded(), MAX_UNWRITTEN_BYTES, "all was written");
    }
}
