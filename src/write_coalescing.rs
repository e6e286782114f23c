//! Small writes of an HTTP/2 connection, gathered until it has no more to write for now.
//!
//! `h2` writes and flushes each DATA frame that it does not copy by itself: a TLS record, a system call and a packet for each,
//! although sixteen answers may be ready. Here they wait while the connection is polled, and go out together when that is
//! done, in the same poll: nothing is delayed. It is told that there are no vectored writes, since it copies frames of up to a
//! KiB then (instead of 256 bytes): of a storm's refusals nothing is written one by one.
//!
//! # Cancel safety
//! The futures here hold nothing: what is gathered stays with the connection.

use std::future::Future;
use std::future::poll_fn;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Duration;

use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;

/// As much as a TLS record holds: more would not make fewer of them.
const BUFFER_SIZE: usize = 16 << 10;

/// What is not gathered: copying it would cost more than the system call that it saves.
const LARGE_WRITE: usize = 4 << 10;

/// What is read at a time of what nobody wants any more.
const DISCARD_BUFFER_SIZE: usize = 4 << 10;

/// The side of a stream that is given to HTTP/2.
#[derive(Debug)]
pub struct CoalescingIo<S>(Arc<Mutex<CoalescingState<S>>>);

/// The side that lets it out.
#[derive(Debug)]
pub struct CoalescingDriver<S>(Arc<Mutex<CoalescingState<S>>>);

#[derive(Debug)]
struct CoalescingState<S> {
    stream: S,
    /// Taken, and not given to `stream` yet: from `gone` on.
    buffer: Vec<u8>,
    written: usize,
    /// Whether `stream` may keep something back.
    unflushed: bool,
    /// The bytes that have been read.
    bytes_read: u64,
    /// The last write was not taken: it may be a part of a frame.
    write_blocked: bool,
    /// It failed while nobody asked: whoever asks next is told.
    error: Option<io::ErrorKind>,
}

/// Both sides of `stream`.
pub fn coalesce_writes<S>(stream: S) -> (CoalescingIo<S>, CoalescingDriver<S>) {
    let gathering = Arc::new(Mutex::new(CoalescingState {
        stream,
        buffer: Vec::new(),
        written: 0,
        unflushed: false,
        bytes_read: 0,
        write_blocked: false,
        error: None,
    }));
    (
        CoalescingIo(Arc::clone(&gathering)),
        CoalescingDriver(gathering),
    )
}

impl<S: AsyncRead + AsyncWrite + Unpin> CoalescingDriver<S> {
    /// Runs what speaks on the other side to its end, and lets out what it writes.
    pub async fn drive<F: Future>(&self, mut speaking: Pin<&mut F>) -> F::Output {
        poll_fn(|cx| {
            let polled = speaking.as_mut().poll(cx);
            if polled.is_pending() && self.flush_or_fail(cx) {
                return speaking.as_mut().poll(cx); // it meets the failure itself
            }
            polled
        })
        .await
    }

    /// Comes if less than `bytes` have been read when this `time` is over.
    pub async fn insufficient_read(&self, bytes: u64, time: Duration) {
        tokio::time::sleep(time).await;
        if lock(&self.0).bytes_read >= bytes {
            std::future::pending::<()>().await;
        }
    }

    /// Writes `last` behind what was written, closes, and passes over what still comes until the other side closes as well: a
    /// connection that is closed before all of it was read is reset, and what was written last may be lost. Nothing may be
    /// written on the other side any more. Where its last write was not taken, `last` is left out: it would stand within a frame.
    ///
    /// # Errors
    /// The stream fails.
    ///
    /// # Cancel safety
    /// None: `last` may have been written in part.
    pub async fn finish(&self, last: &[u8]) -> io::Result<()> {
        {
            let mut gathering = lock(&self.0);
            if !gathering.write_blocked {
                gathering.buffer.extend_from_slice(last);
            }
        }
        poll_fn(|cx| {
            let mut gathering = lock(&self.0);
            gathering.check_error()?;
            ready!(gathering.poll_flush_all(cx))?;
            Pin::new(&mut gathering.stream).poll_shutdown(cx)
        })
        .await?;
        poll_fn(|cx| {
            let mut gathering = lock(&self.0);
            loop {
                let mut passed_over = [0; DISCARD_BUFFER_SIZE];
                let mut buffer = ReadBuf::new(&mut passed_over);
                ready!(Pin::new(&mut gathering.stream).poll_read(cx, &mut buffer))?;
                if buffer.filled().is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
        })
        .await
    }

    /// Whether that has failed.
    fn flush_or_fail(&self, cx: &mut Context<'_>) -> bool {
        let mut gathering = lock(&self.0);
        let Poll::Ready(Err(why)) = gathering.poll_flush_all(cx) else {
            return false;
        };
        gathering.error = Some(why.kind());
        true
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CoalescingState<S> {
    fn check_error(&self) -> io::Result<()> {
        self.error.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Writes what waits.
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
        self.buffer = Vec::new(); // a quiet connection keeps no memory for it
        self.written = 0;
    }

    /// Writes what waits, to the last byte.
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

    /// Writes these behind what waits: at once, since what waits may be no more than their frame's head.
    fn poll_write_through(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unflushed = true;
        while let Some(rest) = self.buffer.get(self.written..).filter(|r| !r.is_empty()) {
            let waited = rest.len();
            let both = [IoSlice::new(rest), IoSlice::new(bytes)];
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &both))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written.min(waited);
            if written > waited {
                self.clear_buffer();
                return Poll::Ready(Ok(written - waited));
            }
        }
        self.clear_buffer();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CoalescingIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut gathering = lock(&self.0);
        gathering.check_error()?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut gathering.stream).poll_read(cx, buffer);
        let read = buffer.filled().len().saturating_sub(before);
        gathering.bytes_read += u64::try_from(read).unwrap_or_default();
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CoalescingIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut gathering = lock(&self.0);
        let polled = gathering.poll_write(cx, bytes);
        gathering.write_blocked = polled.is_pending();
        polled
    }

    /// Nothing: [`CoalescingDriver::drive`] does it when all is written, and what fails then is met by reading.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathering = lock(&self.0);
        gathering.check_error()?;
        ready!(gathering.poll_flush_all(cx))?;
        Pin::new(&mut gathering.stream).poll_shutdown(cx)
    }
}

/// Held for one poll of one task: what it guards is whole between any two.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Notes what it is given, write by write; takes no more than a number of bytes at a time, and nothing every other time.
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
            self.writes.lock().unwrap().push(bytes.to_vec());
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
        let (mut corked, cork) = coalesce_writes(sink);
        let (wake, mut woken) = tokio::io::duplex(1);
        let speaking = pin!(async move {
            for byte in 0..16 {
                corked.write_all(&[byte; 400]).await.unwrap();
                corked.flush().await.unwrap();
            }
            woken.read_u8().await.unwrap(); // no more for now
            corked.write_all(&[16; 400]).await.unwrap();
            corked.write_all(&[17; LARGE_WRITE]).await.unwrap();
            corked.shutdown().await.unwrap();
        });
        let driven = pin!(cork.drive(speaking));
        let looking_on = async {
            while taken.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let first: Vec<_> = taken.lock().unwrap().iter().map(Vec::len).collect();
            let mut wake = wake;
            wake.write_u8(1).await.unwrap();
            first
        };
        let ((), first) = tokio::join!(driven, looking_on);
        assert_eq!(first, [16 * 400]);
        let all: Vec<_> = taken.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(all, [16 * 400, 400 + LARGE_WRITE]);
    }

    #[tokio::test]
    async fn partial_writes_lose_and_reorder_nothing() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..50 {
            let (sink, taken) = Sink::new(random.usize(1..3000));
            let (mut corked, cork) = coalesce_writes(sink);
            let parts: Vec<Vec<u8>> = (0..random.usize(1..40))
                .map(|_| {
                    let most = if random.bool() { 300 } else { 3 * BUFFER_SIZE };
                    (0..random.usize(1..most)).map(|_| random.u8(..)).collect()
                })
                .collect();
            let expected = parts.concat();
            let yields: Vec<bool> = parts.iter().map(|_| random.bool()).collect();
            let speaking = pin!(async move {
                for (part, yields) in parts.iter().zip(yields) {
                    corked.write_all(part).await.unwrap();
                    corked.flush().await.unwrap();
                    if yields {
                        tokio::task::yield_now().await;
                    }
                }
                corked.shutdown().await.unwrap();
            });
            cork.drive(speaking).await;
            assert!(taken.lock().unwrap().concat() == expected);
        }
    }

    #[tokio::test]
    async fn a_late_write_error_reaches_the_next_read() {
        let (mut sink, _) = Sink::new(usize::MAX);
        sink.fails = true;
        let (mut corked, cork) = coalesce_writes(sink);
        let speaking = pin!(async move {
            corked.write_all(b"abc").await.unwrap(); // gathered
            corked.read_u8().await.unwrap_err().kind()
        });
        assert_eq!(cork.drive(speaking).await, io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn final_bytes_follow_earlier_writes_and_never_split_a_frame() {
        for blocked in [false, true] {
            let (near, mut far) = tokio::io::duplex(2 * LARGE_WRITE);
            let (mut corked, cork) = coalesce_writes(near);
            let mut written = vec![1; LARGE_WRITE];
            corked.write_all(&written).await.unwrap();
            let more = vec![2; 2 * LARGE_WRITE];
            if blocked {
                let mut writing = pin!(corked.write_all(&more));
                assert!(futures_util::poll!(&mut writing).is_pending());
                written.extend_from_slice(&more[..LARGE_WRITE]);
            } else {
                corked.write_all(&[3]).await.unwrap();
                written.push(3);
                written.extend_from_slice(b"last");
            }
            let mut read = Vec::new();
            let reading = async {
                far.write_all(&[4; 10]).await.unwrap(); // nobody wants it
                far.read_to_end(&mut read).await.unwrap();
                far.shutdown().await.unwrap();
            };
            let (finished, ()) = tokio::join!(cork.finish(b"last"), reading);
            finished.unwrap();
            assert!(read == written, "{blocked}: {}", read.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_sent_too_little_in_time_is_reported() {
        const TIME: Duration = Duration::from_secs(10);
        for (said, is_silence) in [(0, true), (23, true), (24, false)] {
            let (near, mut far) = tokio::io::duplex(64);
            let (mut corked, cork) = coalesce_writes(near);
            far.write_all(&vec![0; said]).await.unwrap();
            let reading = pin!(async {
                let mut read = Vec::new();
                let _ = corked.read_to_end(&mut read).await; // never comes to it
            });
            let began = tokio::time::Instant::now();
            tokio::select! {
                () = cork.drive(reading) => panic!("nobody closed it"),
                () = cork.insufficient_read(24, TIME) => {
                    assert!(is_silence, "{said}");
                    assert_eq!(began.elapsed(), TIME);
                }
                () = tokio::time::sleep(100 * TIME) => assert!(!is_silence, "{said}"),
            }
        }
    }
}
