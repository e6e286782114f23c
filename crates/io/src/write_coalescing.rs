//! Coalesces the small writes of an HTTP/2 connection until it has nothing more to write for now.
//!
//! `h2` writes and flushes each DATA frame that it does not copy: one TLS record, one system call
//! and one packet each, although sixteen responses may be ready. Here the writes are buffered while
//! the connection is polled and are written together at the end of the same poll, so nothing is
//! delayed. The stream reports no vectored writes, since `h2` then copies frames of up to a KiB
//! (instead of 256 bytes). Under overload no rejection is written on its own.
//!
//! # Cancel safety
//! The futures here hold nothing: buffered bytes stay with the connection.

use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The size of a TLS record: a larger buffer would not save records.
const BUFFER_SIZE: usize = 16 << 10;

/// Larger writes are not buffered: a copy would cost more than the system call that it saves.
const LARGE_WRITE: usize = 4 << 10;

/// The side of a stream that HTTP/2 uses.
#[derive(Debug)]
pub struct CoalescingIo<S>(Arc<Mutex<CoalescingState<S>>>);

/// The side that flushes it.
#[derive(Debug)]
pub struct CoalescingDriver<S>(Arc<Mutex<CoalescingState<S>>>);

#[derive(Debug)]
struct CoalescingState<S> {
    stream: S,
    /// Accepted, and not yet written to `stream`: from `written` on.
    buffer: Vec<u8>,
    written: usize,
    /// Whether `stream` may have buffered bytes.
    unflushed: bool,
    /// The bytes that were read.
    bytes_read: u64,
    /// The last write was not accepted: it may be a part of a frame.
    write_blocked: bool,
    /// A write failed without a caller; the next caller gets the error.
    error: Option<io::ErrorKind>,
}

/// Both sides of `stream`.
pub fn coalesce_writes<S>(stream: S) -> (CoalescingIo<S>, CoalescingDriver<S>) {
    let state = Arc::new(Mutex::new(CoalescingState {
        stream,
        buffer: Vec::new(),
        written: 0,
        unflushed: false,
        bytes_read: 0,
        write_blocked: false,
        error: None,
    }));
    (CoalescingIo(Arc::clone(&state)), CoalescingDriver(state))
}

impl<S: AsyncRead + AsyncWrite + Unpin> CoalescingDriver<S> {
    /// Runs the HTTP/2 side to its end, and writes what it buffers.
    pub async fn drive<F: Future>(&self, mut connection: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            let polled = connection.as_mut().poll(cx);
            if polled.is_pending() && self.flush_or_fail(cx) {
                return connection.as_mut().poll(cx); // it meets the error itself
            }
            polled
        })
        .await
    }

    /// Completes if less than `bytes` were read when `time` has passed.
    pub async fn insufficient_read(&self, bytes: u64, time: Duration) {
        tokio::time::sleep(time).await;
        if self.0.lock().bytes_read >= bytes {
            std::future::pending::<()>().await;
        }
    }

    /// Writes `last` after what was written, and closes the write side. The other side may not write
    /// any more. If its last write was not accepted, `last` is left out, since it would split a frame.
    ///
    /// What arrives has to be read until the peer closes as well: a connection that is closed before
    /// everything was read is reset, and the last bytes may be lost.
    ///
    /// # Errors
    /// The stream fails.
    ///
    /// # Cancel safety
    /// None: `last` may have been written in part.
    pub async fn close_write(&self, last: &[u8]) -> io::Result<()> {
        {
            let mut state = self.0.lock();
            if !state.write_blocked {
                state.buffer.extend_from_slice(last);
            }
        }
        poll_fn(|cx| {
            let mut state = self.0.lock();
            state.check_error()?;
            ready!(state.poll_flush_all(cx))?;
            Pin::new(&mut state.stream).poll_shutdown(cx)
        })
        .await
    }

    /// Whether the flush has failed.
    fn flush_or_fail(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.0.lock();
        let Poll::Ready(Err(why)) = state.poll_flush_all(cx) else {
            return false;
        };
        state.error = Some(why.kind());
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CoalescingState<S> {
    fn check_error(&self) -> io::Result<()> {
        self.error.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Writes what is buffered.
    fn poll_write_buffer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.written..).filter(|r| !r.is_empty()) {
            self.unflushed = true;
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        self.clear_buffer();
        Poll::Ready(Ok(()))
    }

    fn clear_buffer(&mut self) {
        self.buffer = Vec::new(); // an idle connection keeps no memory for it
        self.written = 0;
    }

    /// Writes everything that is buffered and flushes.
    fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_buffer(cx))?;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check_error()?;
        if bytes.len() >= LARGE_WRITE {
            return self.poll_write_through(cx, bytes);
        }
        if self.buffer.len() + bytes.len() > BUFFER_SIZE {
            ready!(self.poll_write_buffer(cx))?;
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(BUFFER_SIZE); // at once, not by doubling
        }
        self.buffer.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// Writes these bytes after the buffered ones at once, which may be no more than their frame's
    /// head.
    fn poll_write_through(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unflushed = true;
        while let Some(rest) = self.buffer.get(self.written..).filter(|r| !r.is_empty()) {
            let buffered = rest.len();
            let both = [IoSlice::new(rest), IoSlice::new(bytes)];
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &both))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written.min(buffered);
            if written > buffered {
                self.clear_buffer();
                return Poll::Ready(Ok(written - buffered));
            }
        }
        self.clear_buffer();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
}

/// Reads what the HTTP/2 side does not read any more.
impl<S: AsyncRead + Unpin> AsyncRead for &CoalescingDriver<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CoalescingIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.check_error()?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut state.stream).poll_read(cx, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        state.bytes_read += u64::try_from(read).unwrap_or_default();
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CoalescingIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        let polled = state.poll_write(cx, bytes);
        state.write_blocked = polled.is_pending();
        polled
    }

    /// Does nothing: [`CoalescingDriver::drive`] flushes when everything is written, and reads meet
    /// its errors.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.check_error()?;
        ready!(state.poll_flush_all(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Records each write; accepts a limited number of bytes per write, and nothing every other
    /// time.
    struct Sink {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        max_write: usize,
        was_pending: bool,
        fails: bool,
    }

    impl Sink {
        fn new(at_a_time: usize) -> (Self, Arc<Mutex<Vec<Vec<u8>>>>) {
            let taken = Arc::default();
            let sink = Self {
                writes: Arc::clone(&taken),
                max_write: at_a_time,
                was_pending: false,
                fails: false,
            };
            (sink, taken)
        }
    }

    impl AsyncRead for Sink {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Sink {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.fails {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if self.max_write < BUFFER_SIZE && !std::mem::replace(&mut self.was_pending, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.was_pending = false;
            let bytes = &bytes[..bytes.len().min(self.max_write)];
            self.writes.lock().push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            self.poll_write(cx, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn small_writes_are_coalesced_and_a_large_write_is_not() {
        let (sink, taken) = Sink::new(usize::MAX);
        let (mut coalesced, driver) = coalesce_writes(sink);
        let (wake, mut woken) = tokio::io::duplex(1);
        let connection = pin!(async move {
            for byte in 0..16 {
                coalesced.write_all(&[byte; 400]).await.unwrap();
                coalesced.flush().await.unwrap();
            }
            woken.read_u8().await.unwrap(); // no more for now
            coalesced.write_all(&[16; 400]).await.unwrap();
            coalesced.write_all(&[17; LARGE_WRITE]).await.unwrap();
            coalesced.shutdown().await.unwrap();
        });
        let driven = pin!(driver.drive(connection));
        let looking_on = async {
            while taken.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            let first: Vec<_> = taken.lock().iter().map(Vec::len).collect();
            let mut wake = wake;
            wake.write_u8(1).await.unwrap();
            first
        };
        let ((), first) = tokio::join!(driven, looking_on);
        assert_eq!(first, [16 * 400]);
        let all: Vec<_> = taken.lock().iter().map(Vec::len).collect();
        assert_eq!(all, [16 * 400, 400 + LARGE_WRITE]);
    }

    #[tokio::test]
    async fn partial_writes_lose_and_reorder_nothing() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50 {
            let (sink, taken) = Sink::new(random.usize(1..3000));
            let (mut coalesced, driver) = coalesce_writes(sink);
            let parts: Vec<Vec<u8>> = (0..random.usize(1..40))
                .map(|_| {
                    let most = if random.bool() { 300 } else { 3 * BUFFER_SIZE };
                    (0..random.usize(1..most)).map(|_| random.u8(..)).collect()
                })
                .collect();
            let expected = parts.concat();
            let yields: Vec<bool> = parts.iter().map(|_| random.bool()).collect();
            let connection = pin!(async move {
                for (part, yields) in parts.iter().zip(yields) {
                    coalesced.write_all(part).await.unwrap();
                    coalesced.flush().await.unwrap();
                    if yields {
                        tokio::task::yield_now().await;
                    }
                }
                coalesced.shutdown().await.unwrap();
            });
            driver.drive(connection).await;
            assert!(taken.lock().concat() == expected);
        }
    }

    #[tokio::test]
    async fn a_late_write_error_reaches_the_next_read() {
        let (mut sink, _) = Sink::new(usize::MAX);
        sink.fails = true;
        let (mut coalesced, driver) = coalesce_writes(sink);
        let connection = pin!(async move {
            coalesced.write_all(b"abc").await.unwrap(); // coalesced
            coalesced.read_u8().await.unwrap_err().kind()
        });
        assert_eq!(
            driver.drive(connection).await,
            io::ErrorKind::ConnectionReset
        );
    }

    #[tokio::test]
    async fn final_bytes_follow_earlier_writes_and_never_split_a_frame() {
        for blocked in [false, true] {
            let (near, mut far) = tokio::io::duplex(2 * LARGE_WRITE);
            let (mut coalesced, driver) = coalesce_writes(near);
            let mut written = vec![1; LARGE_WRITE];
            coalesced.write_all(&written).await.unwrap();
            let more = vec![2; 2 * LARGE_WRITE];
            if blocked {
                let mut writing = pin!(coalesced.write_all(&more));
                assert!(futures_util::poll!(&mut writing).is_pending());
                written.extend_from_slice(&more[..LARGE_WRITE]);
            } else {
                coalesced.write_all(&[3]).await.unwrap();
                written.push(3);
                written.extend_from_slice(b"last");
            }
            let mut read = Vec::new();
            let reading = async {
                far.write_all(&[4; 10]).await.unwrap(); // not read by anything
                far.read_to_end(&mut read).await.unwrap();
                far.shutdown().await.unwrap();
            };
            let closing = async {
                driver.close_write(b"last").await.unwrap();
                let mut unread = Vec::new();
                (&driver).read_to_end(&mut unread).await.unwrap();
                unread
            };
            let (unread, ()) = tokio::join!(closing, reading);
            assert_eq!(unread, [4; 10]);
            assert!(read == written, "{blocked}: {}", read.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_sent_too_little_in_time_is_reported() {
        const TIME: Duration = Duration::from_secs(10);
        for (said, is_silence) in [(0, true), (23, true), (24, false)] {
            let (near, mut far) = tokio::io::duplex(64);
            let (mut coalesced, driver) = coalesce_writes(near);
            far.write_all(&vec![0; said]).await.unwrap();
            let reading = pin!(async {
                let mut read = Vec::new();
                let _ = coalesced.read_to_end(&mut read).await; // never completes
            });
            let began = tokio::time::Instant::now();
            tokio::select! {
                () = driver.drive(reading) => panic!("the test did not close it"),
                () = driver.insufficient_read(24, TIME) => {
                    assert!(is_silence, "{said}");
                    assert_eq!(began.elapsed(), TIME);
                }
                () = tokio::time::sleep(100 * TIME) => assert!(!is_silence, "{said}"),
            }
        }
    }
}
