//! A byte stream that tracks HTTP/2 frames, so that a GOAWAY can be written after hyper's last
//! frame.
//!
//! hyper's server cannot end a connection with an error code that its caller chooses.

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// GOAWAY with the error code ENHANCE_YOUR_CALM. Its last stream is the highest possible: all
/// streams may have been processed, as Go's server states.
const ENHANCE_YOUR_CALM_FRAME: [u8; 17] = [
    0, 0, 8, 7, 0, 0, 0, 0, 0, // head: length 8, type GOAWAY, no flags, stream 0
    0x7f, 0xff, 0xff, 0xff, // last stream
    0, 0, 0, 11, // error code
];

/// How long Go's server continues to read after a GOAWAY with an error (`goAwayTimeout`), so that
/// the frame arrives.
const GO_AWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of a frame's head, in bytes.
const FRAME_HEAD_LENGTH: usize = 9;

/// The position of one direction of a connection within its frames. Pure.
#[derive(Debug, Default)]
struct FramePosition {
    /// Bytes of the head that have passed.
    head_read: usize,
    /// Bytes of the payload that have not passed yet; during the head, the length as far as it is
    /// known.
    payload_left: usize,
}

impl FramePosition {
    fn advance(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.head_read == 0 && self.payload_left > 0 {
                let passed = self.payload_left.min(bytes.len());
                self.payload_left -= passed;
                bytes = bytes.get(passed..).unwrap_or_default();
                continue;
            }
            // The length is the first three bytes.
            if self.head_read < 3 {
                self.payload_left = self.payload_left << 8 | usize::from(*first);
            }
            self.head_read = (self.head_read + 1) % FRAME_HEAD_LENGTH;
            bytes = rest;
        }
    }

    const fn is_between_frames(&self) -> bool {
        self.head_read == 0 && self.payload_left == 0
    }
}

#[derive(Debug)]
struct FramedStreamInner<S> {
    stream: S,
    write_position: FramePosition,
}

/// A stream for hyper's server that can still be written to after hyper has dropped it. Clones
/// share the stream.
#[derive(Debug)]
pub(super) struct FramedStream<S>(Arc<Mutex<FramedStreamInner<S>>>);

impl<S> Clone for FramedStream<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> FramedStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(FramedStreamInner {
            stream,
            write_position: FramePosition::default(),
        })))
    }

    /// Only one task uses the stream at a time: hyper's, then the one that ends the connection.
    fn inner(&self) -> MutexGuard<'_, FramedStreamInner<S>> {
        self.0.lock()
    }

    /// Ends the connection with ENHANCE_YOUR_CALM after hyper has released it. In the middle of a
    /// frame the connection can only be closed.
    pub(super) async fn enhance_your_calm(mut self) {
        if !self.inner().write_position.is_between_frames() {
            return;
        }
        let go_away = async {
            self.write_all(&ENHANCE_YOUR_CALM_FRAME).await?;
            self.flush().await?;
            let mut rest = [0; 4096];
            while self.read(&mut rest).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        let _ = tokio::time::timeout(GO_AWAY_TIMEOUT, go_away).await;
        let _ = tokio::time::timeout(GO_AWAY_TIMEOUT, self.shutdown()).await;
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for FramedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for FramedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.inner();
        let written = Pin::new(&mut inner.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(mut written)) = written {
            for slice in slices {
                let passed = written.min(slice.len());
                inner
                    .write_position
                    .advance(slice.get(..passed).unwrap_or_default());
                written -= passed;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.inner().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::{ENHANCE_YOUR_CALM_FRAME, FramePosition};

    #[test]
    fn frame_boundaries_are_found_in_any_chunking() {
        let mut frames = ENHANCE_YOUR_CALM_FRAME.to_vec();
        frames.extend_from_slice(&[0, 0, 0, 4, 1, 0, 0, 0, 0]); // SETTINGS, empty
        frames.extend_from_slice(&ENHANCE_YOUR_CALM_FRAME);
        let ends = [0, 17, 26, 43];
        for size in 1..=frames.len() {
            let mut position = FramePosition::default();
            let mut passed = 0;
            for piece in frames.chunks(size) {
                position.advance(piece);
                passed += piece.len();
                assert_eq!(
                    position.is_between_frames(),
                    ends.contains(&passed),
                    "{size}: {passed}"
                );
            }
        }
    }
}
