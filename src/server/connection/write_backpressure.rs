//! How much of an HTTP/1.1 answer is in memory when its client does not read.
//!
//! The HTTP library has one bound for both directions of a connection, which is that of a head (1 MiB), and takes so much of an
//! answer's body before it writes. Here a body gives only a little until that is written. (HTTP/2 has a bound of its own.)

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;

/// A body is not asked for more while so many of its bytes are not written: as much as an HTTP/2 stream may hold, and a frame.
pub(in crate::server) const MAX_UNWRITTEN_BYTES: usize = 64 << 10;

/// The bytes of answers that the library of one connection has and has not written. Body and connection are polled by one task:
/// relaxed is enough.
#[derive(Debug, Default)]
pub(in crate::server) struct UnwrittenBytes {
    count: AtomicUsize,
    body_waker: AtomicWaker,
}

impl UnwrittenBytes {
    /// So many bytes were written. What frames them counts as well here and not where it is taken, so that the count is never too
    /// high; when all is written, it is none.
    pub(in crate::server) fn record_written(&self, bytes: usize) {
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

    fn has_capacity(&self) -> bool {
        self.count.load(Ordering::Relaxed) < MAX_UNWRITTEN_BYTES
    }

    fn record_buffered(&self, bytes: usize) {
        self.count.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A body that gives no more than the connection writes.
pub(in crate::server) struct BackpressureBody<B> {
    body: B,
    unwritten_bytes: Arc<UnwrittenBytes>,
}

impl<B> BackpressureBody<B> {
    /// `body`, on the connection with this pace.
    pub(in crate::server) const fn new(body: B, pace: Arc<UnwrittenBytes>) -> Self {
        Self {
            body,
            unwritten_bytes: pace,
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
    use http_body_util::BodyExt;
    use http_body_util::StreamBody;

    use super::*;

    #[test]
    fn a_body_yields_no_frame_beyond_the_limit_until_bytes_are_written() {
        const PART: usize = 16 << 10;
        let parts = futures_util::stream::iter(
            std::iter::repeat_n(Bytes::from_static(&[7; PART]), 100)
                .map(|part| Ok::<_, std::convert::Infallible>(Frame::data(part))),
        );
        let pace = Arc::new(UnwrittenBytes::default());
        let mut body = BackpressureBody::new(StreamBody::new(parts), Arc::clone(&pace));
        let mut given = || {
            let frames = std::iter::from_fn(|| body.frame().now_or_never());
            frames.count() * PART
        };
        assert_eq!(given(), MAX_UNWRITTEN_BYTES);
        assert_eq!(given(), 0);
        pace.record_written(PART);
        assert_eq!(given(), PART);
        pace.record_written(2 * MAX_UNWRITTEN_BYTES);
        assert_eq!(given(), MAX_UNWRITTEN_BYTES, "all was written");
    }
}
