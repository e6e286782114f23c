//! A TCP connection that writes a single slice with `send`, and can read what has just arrived.
//!
//! TLS passes its records as a list of slices, nearly always one. For one slice `writev` costs 130
//! ns more than `send` (Linux 6.18): a seventieth of the cost of a rejection.
//!
//! The read before a request on an HTTP/1.1 connection to the API server also asks the kernel. hyper
//! closes a connection that has bytes which no request asked for. But the runtime's driver reports what
//! has arrived only between polls of tasks, so a busy worker would write the next request first.

use std::io;
use std::io::{IoSlice, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::has_budget_remaining;

/// The bytes that one poll reads from a connection with [`TcpIo::limit_reads`]. They may be
/// thousands of TLS records without data (2,400 key updates, at a microsecond each), which nothing
/// above TLS sees.
const MAX_READ_PER_POLL: usize = 64 << 10;

/// A TCP connection, and a value that is dropped when the connection is closed.
#[derive(Debug)]
pub struct TcpIo<K = ()> {
    tcp: TcpStream,
    /// The bytes that were read since the last poll ended; `None` without a limit.
    read_in_poll: Option<usize>,
    reads_ahead: ReadsAheadOfDriver,
    _guard: K,
}

/// Whether a read also finds bytes that the runtime's driver has not reported yet. Off at first.
///
/// A connection is read before a request is written to it: a response that is there already
/// belongs to none. The driver reports what has arrived only between polls of tasks, so a busy
/// worker would write the request first and take that response for its own. It costs a system
/// call for each read that finds nothing, so it is on only until the request is written.
#[derive(Clone, Debug, Default)]
pub struct ReadsAheadOfDriver(Arc<AtomicBool>);

impl ReadsAheadOfDriver {
    /// From now on reads find such bytes.
    pub fn enable(&self) {
        // Relaxed: it orders nothing else.
        self.0.store(true, Ordering::Relaxed);
    }

    fn disable(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_enabled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<K> TcpIo<K> {
    /// Wraps this connection.
    #[must_use]
    pub fn new(tcp: TcpStream, guard: K) -> Self {
        Self {
            tcp,
            read_in_poll: None,
            reads_ahead: ReadsAheadOfDriver::default(),
            _guard: guard,
        }
    }

    /// Lets other tasks run after each [`MAX_READ_PER_POLL`].
    #[must_use]
    pub fn limit_reads(mut self) -> Self {
        self.read_in_poll = Some(0);
        self
    }

    /// Reads as `reads_ahead` says.
    #[must_use]
    pub fn read_ahead_of_driver(mut self, reads_ahead: &ReadsAheadOfDriver) -> Self {
        self.reads_ahead = reads_ahead.clone();
        self
    }

    /// Reads what has arrived, whether or not the driver knows of it.
    fn read_arrived(&self, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut socket = &*SockRef::from(&self.tcp);
        match socket.read(buffer.initialize_unfilled()) {
            Ok(length) => {
                buffer.advance(length);
                Poll::Ready(Ok(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// The connection itself, for its options.
    #[must_use]
    pub const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }
}

impl<K: Unpin> AsyncRead for TcpIo<K> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(read) = &mut self.read_in_poll
            && *read >= MAX_READ_PER_POLL
        {
            *read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let mut polled = Pin::new(&mut self.tcp).poll_read(cx, buffer);
        // A poll that has spent its budget must end.
        if polled.is_pending() && self.reads_ahead.is_enabled() && has_budget_remaining() {
            polled = self.read_arrived(buffer);
        }
        if let Some(read) = &mut self.read_in_poll {
            *read = match polled {
                Poll::Ready(_) => *read + (buffer.filled().len() - before),
                Poll::Pending => 0,
            };
        }
        polled
    }
}

impl<K: Unpin> AsyncWrite for TcpIo<K> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.reads_ahead.disable();
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.reads_ahead.disable();
        match slices {
            [one] => Pin::new(&mut self.tcp).poll_write(cx, one),
            _ => Pin::new(&mut self.tcp).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Reads at most `limit` bytes, which is above 0.
///
/// # Errors
/// The stream fails.
pub fn poll_read_at_most<S: AsyncRead>(
    limit: usize,
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if buffer.remaining() <= limit {
        return stream.poll_read(cx, buffer);
    }
    let mut part = ReadBuf::new(buffer.initialize_unfilled_to(limit));
    ready!(stream.poll_read(cx, &mut part))?;
    let read = part.filled().len();
    buffer.advance(read);
    Poll::Ready(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_poll_reads_a_bounded_number_of_bytes() {
        const ALL: usize = 40 * MAX_READ_PER_POLL;
        const PART: usize = 4 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut far = listener.accept().await.unwrap().0;
        let writing = tokio::spawn(async move { far.write_all(&vec![7; ALL]).await });
        let mut near = TcpIo::new(tcp.unwrap(), ()).limit_reads();
        let mut all = 0;
        while all < ALL {
            // What is read until `poll_read` says that the poll is over.
            let in_poll = poll_fn(|cx| {
                let mut read = 0;
                let mut part = [0; PART];
                let mut buffer = ReadBuf::new(&mut part);
                while Pin::new(&mut near).poll_read(cx, &mut buffer).is_ready() {
                    read += buffer.filled().len();
                    buffer.clear();
                    if all + read == ALL {
                        return Poll::Ready(read);
                    }
                }
                if read > 0 {
                    return Poll::Ready(read);
                }
                Poll::Pending
            })
            .await;
            assert!(in_poll < MAX_READ_PER_POLL + PART, "{in_poll}");
            all += in_poll;
            tokio::task::yield_now().await;
        }
        writing.await.unwrap().unwrap();
        assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_read_finds_bytes_that_the_driver_has_not_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut far = listener.accept().unwrap().0;
        let reads_ahead = ReadsAheadOfDriver::default();
        let mut near = TcpIo::new(tcp.unwrap(), ()).read_ahead_of_driver(&reads_ahead);
        poll_fn(|cx| {
            let mut bytes = [0; 4];
            let mut buffer = ReadBuf::new(&mut bytes);
            assert!(Pin::new(&mut near).poll_read(cx, &mut buffer).is_pending());
            io::Write::write_all(&mut far, b"late").unwrap(); // the driver does not run meanwhile
            assert!(Pin::new(&mut near).poll_read(cx, &mut buffer).is_pending());
            reads_ahead.enable();
            assert!(Pin::new(&mut near).poll_read(cx, &mut buffer).is_ready());
            assert_eq!(buffer.filled(), b"late");
            buffer.clear();
            assert!(Pin::new(&mut near).poll_read(cx, &mut buffer).is_pending());
            assert!(Pin::new(&mut near).poll_write(cx, b"request").is_ready());
            io::Write::write_all(&mut far, b"response").unwrap();
            assert!(Pin::new(&mut near).poll_read(cx, &mut buffer).is_pending());
            Poll::Ready(())
        })
        .await;
    }
}
