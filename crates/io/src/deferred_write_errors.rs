//! A connection on which what the peer has sent is read before a failed write counts.
//!
//! A server that answers before it has read a request's body (401 to an expired token) and closes
//! resets the connection: the next write fails. Its response is still with the kernel, or with TLS,
//! and a client needs it more than that error. So after a failed write what is written is discarded,
//! until the other side's bytes have ended.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::written_first::FlushSignal;

/// A stream whose failed writes are reported once all has been read.
#[derive(Debug)]
pub struct DeferredWriteErrors<S> {
    stream: S,
    /// The error of the first write that failed, until it is reported.
    error: Option<io::Error>,
    read_ended: bool,
    flushes: Arc<FlushSignal>,
}

impl<S> DeferredWriteErrors<S> {
    /// Wraps `stream`.
    #[must_use]
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            error: None,
            read_ended: false,
            flushes: Arc::default(),
        }
    }

    /// The flushes of the connection.
    pub const fn flushes(&self) -> &Arc<FlushSignal> {
        &self.flushes
    }

    /// The result of a write: an error is kept, and `discarded` counts as written.
    fn defer<T>(&mut self, written: io::Result<T>, discarded: T) -> io::Result<T> {
        match written {
            Err(error) if !self.read_ended => {
                self.error = Some(error);
                Ok(discarded)
            }
            written => written,
        }
    }

    /// Whether writes are discarded. Reports the deferred error once all has been read.
    fn is_discarding(&mut self) -> io::Result<bool> {
        if self.read_ended
            && let Some(error) = self.error.take()
        {
            return Err(error);
        }
        Ok(self.error.is_some())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeferredWriteErrors<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        self.read_ended |= read.is_err() || is_end;
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeferredWriteErrors<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_discarding()? {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.defer(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.is_discarding()? {
            return Poll::Ready(Ok(length));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
        Poll::Ready(self.defer(written, length))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_discarding()? {
            self.flushes.record_flush();
            return Poll::Ready(Ok(()));
        }
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.flushes.record_flush();
        Poll::Ready(self.defer(flushed, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_the_peer_has_sent_is_read_before_a_failed_write_counts() {
        let (near, mut far) = tokio::io::duplex(64);
        far.write_all(b"answer").await.unwrap();
        drop(far); // each write fails from now on
        let mut near = DeferredWriteErrors::new(near);
        for _ in 0..3 {
            near.write_all(b"discarded").await.unwrap();
            near.flush().await.unwrap();
        }
        let mut read = Vec::new();
        near.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"answer");
        let error = near.write_all(b"late").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
