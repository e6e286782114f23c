//! The streams below the HTTP libraries: what is read is looked over, and some of it is answered without them.
//!
//! A request of which the head is not complete is nothing to the library. Where weir ends it, the answer (or on HTTP/2 the reason)
//! is written here, below the library, which then finds the stream at its end.
//!
//! The HTTP/1.1 library answers a head that it cannot parse with a bare status line. That answer is swallowed here, and weir's own is
//! written when the library has said what is wrong, as the connection's result.

use std::future::poll_fn;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;

use crate::metrics::GaugeGuard;
use crate::pipeline::connection::head_budget::header_block_memory;
use crate::pipeline::connection::request_count::RequestCount;
use crate::pipeline::connection::target_fragments::TargetFragments;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::server::connection::frame_scanner::FrameScanner;
use crate::server::connection::frame_scanner::IncompleteBlock;
use crate::server::connection::head_monitor::HeadMonitor;
use crate::server::connection::head_monitor::IncompleteHeadError;
use crate::server::connection::write_backpressure::UnwrittenBytes;
use crate::server::worker::ConnectionGuard;

/// What is read at a time of what nobody wants any more.
const DISCARD_BUFFER: usize = 4 << 10;

/// An empty line, and the line break before it.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// HTTP/2's GOAWAY (RFC 9113, 6.8) and its reason for who is too much: ENHANCE_YOUR_CALM.
const GOAWAY: u8 = 7;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// A connection whose bytes are looked over as they are read, and of which it is known whether some wait to be written.
pub(in crate::server) struct InspectedStream<S, H = (ConnectionGuard, GaugeGuard)> {
    pub(in crate::server) stream: S,
    pub(in crate::server) target_fragments: Arc<TargetFragments>,
    pub(in crate::server) requests: Arc<RequestCount>,
    pub(in crate::server) head_monitor: Arc<HeadMonitor>,
    pub(in crate::server) unwritten_bytes: Arc<UnwrittenBytes>,
    /// What is left to write of weir's answer to a head that is incomplete or cannot be parsed.
    pub(in crate::server) rejection_response: Option<Vec<u8>>,
    /// Whether the library's answer to a head that it cannot parse was swallowed.
    pub(in crate::server) response_suppressed: bool,
    /// Here, because the stream outlives HTTP where the protocol changes: a tunnel is an open connection, too.
    pub(in crate::server) _guard: H,
}

impl<S, H> InspectedStream<S, H> {
    fn record_pending<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.requests.set_write_pending(polled.is_pending());
        polled
    }

    fn record_written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = polled {
            self.unwritten_bytes.record_written(bytes);
        }
        self.record_pending(polled)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Unpin> InspectedStream<S, H> {
    /// Answers a head of which the library's answer was swallowed, and ends the connection.
    ///
    /// # Errors
    /// The connection is over, as it is afterwards in any case.
    pub(in crate::server) async fn reject(&mut self, refusal: &RequestRejection) -> io::Result<()> {
        self.rejection_response = Some(raw_response(refusal));
        poll_fn(|cx| self.poll_write_rejection(cx)).await
    }

    /// Answers a head that is not complete. Where the end of an answer before is not written, this one is left out: it would stand
    /// within that.
    fn poll_reject_incomplete(
        &mut self,
        cx: &mut Context<'_>,
        fault: IncompleteHeadError,
    ) -> Poll<io::Result<()>> {
        if self.rejection_response.is_none() {
            if self.requests.write_pending() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let refusal = match fault {
                IncompleteHeadError::Timeout => RequestRejection::HeadTimeout,
                IncompleteHeadError::BudgetExceeded => RequestRejection::HeadBudgetExhausted,
            };
            self.rejection_response = Some(raw_response(&refusal));
        }
        self.poll_write_rejection(cx)
    }

    /// Writes the answer, ends this direction, and passes over what still comes: a connection that is closed before all of it was
    /// read is reset, and its client might not see the answer.
    fn poll_write_rejection(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let over = || Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        while let Some(left) = self
            .rejection_response
            .as_mut()
            .filter(|left| !left.is_empty())
        {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, left))?;
            if written == 0 {
                return over();
            }
            left.drain(..written);
        }
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        loop {
            let mut passed_over = [0; DISCARD_BUFFER];
            let mut buffer = ReadBuf::new(&mut passed_over);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return over();
            }
        }
    }
}

impl<S, H> InspectedStream<S, H> {
    /// Whether this is the library's answer to a head that it cannot parse. It is the only thing that the library writes while it
    /// waits for a head and nothing before is unwritten.
    fn suppress_response(&mut self, written: &[u8]) -> bool {
        self.response_suppressed = written.starts_with(b"HTTP/1.1 4")
            && written.ends_with(END_OF_HEAD)
            && !self.requests.write_pending()
            && self.head_monitor.http1_is_head_expected();
        self.response_suppressed
    }
}

/// An answer that is written without the library, after which the connection ends.
fn raw_response(refusal: &RequestRejection) -> Vec<u8> {
    let code = refusal.code();
    let status = refusal.status();
    let again = status.as_ref().ok().and_then(|s| s.retry_after_seconds);
    let (content_type, body) = match status {
        Ok(status) => ("application/json", status.to_json()),
        Err(text) => ("text/plain; charset=utf-8", text),
    };
    let again = again.map_or_else(String::new, |seconds| format!("Retry-After: {seconds}\r\n"));
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nCache-Control: no-cache, private\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n{again}Content-Length: {}\r\n\r\n",
        code.as_str(),
        code.canonical_reason().unwrap_or_default(),
        body.len(),
    );
    [head.as_bytes(), &body].concat()
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Unpin> AsyncRead for InspectedStream<S, H> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Err(fault) = self.head_monitor.http1_before_read() {
            return self.poll_reject_incomplete(cx, fault);
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = buffer.filled().get(before..).unwrap_or_default();
        if !read.is_empty() {
            self.target_fragments.scan(read);
            self.head_monitor.http1_record_read(read);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin, H: Unpin> AsyncWrite for InspectedStream<S, H> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.suppress_response(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [bytes] = slices
            && self.suppress_response(bytes)
        {
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.record_written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.record_pending(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.response_suppressed {
            return Poll::Ready(Ok(())); // weir's answer is still to come
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The stream of an HTTP/2 connection, whose frames are looked over as they are read.
#[derive(Debug)]
pub(in crate::server) struct Http2InspectedStream<S> {
    stream: S,
    scanner: FrameScanner,
    head_monitor: Arc<HeadMonitor>,
    last_stream_id: Arc<LastStreamId>,
}

/// The last stream of an HTTP/2 connection whose header block is complete.
#[derive(Debug, Default)]
pub(in crate::server) struct LastStreamId(AtomicU32);

impl LastStreamId {
    /// The frame that tells a client to go away because it is too much: streams after the last one were not looked at.
    pub(in crate::server) fn goaway_frame(&self) -> Vec<u8> {
        let last = self.0.load(Ordering::Relaxed).to_be_bytes();
        let payload = [last, ENHANCE_YOUR_CALM.to_be_bytes()].concat();
        let header = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
        [&header[..], &payload].concat()
    }
}

impl<S> Http2InspectedStream<S> {
    /// Of a connection on which nothing has been read.
    pub(in crate::server) fn new(
        stream: S,
        heads: &Arc<HeadMonitor>,
        last_stream: &Arc<LastStreamId>,
    ) -> Self {
        Self {
            stream,
            scanner: FrameScanner::new(),
            head_monitor: Arc::clone(heads),
            last_stream_id: Arc::clone(last_stream),
        }
    }

    fn scan(&mut self, read: &[u8]) {
        let complete = self.scanner.completed_block_bytes();
        let before = self
            .scanner
            .incomplete()
            .map(|_| self.scanner.completed_units());
        self.scanner.feed(read);
        self.head_monitor
            .record_decoded(self.scanner.completed_block_bytes() - complete);
        let last = self.scanner.last_stream_id();
        self.last_stream_id.0.store(last, Ordering::Relaxed);
        // The next one may have begun with the same read: it has a time of its own.
        let is_same =
            self.scanner.incomplete().is_some() && before == Some(self.scanner.completed_units());
        if before.is_some() && !is_same {
            self.head_monitor.record_complete();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Http2InspectedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.head_monitor.block_limit_reached() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(IncompleteBlock {
            decoded_bytes: decoded,
            frame_length: frame,
        }) = self.scanner.incomplete()
        {
            // The library's buffer may have grown by doubling for the frame.
            let memory = header_block_memory(decoded).saturating_add(2 * frame);
            if self.head_monitor.record_incomplete(memory).is_err() {
                return Poll::Pending; // who waits for the fault ends the connection
            }
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.scan(buffer.filled().get(before..).unwrap_or_default());
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http2InspectedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Registry;
    use crate::pipeline::connection::head_budget::HeadBudget;
    use crate::server::connection::frame_scanner::PREFACE_LENGTH;

    #[tokio::test]
    async fn a_poll_decodes_a_bounded_number_of_header_blocks() {
        const HEADS: usize = 40;
        const BLOCK: usize = 4 << 10;
        let (near, mut far) = tokio::io::duplex(HEADS * (BLOCK + 9) + PREFACE_LENGTH);
        far.write_all(&[0; PREFACE_LENGTH]).await.unwrap();
        for _ in 0..HEADS {
            far.write_all(&[0, 0x10, 0, 1, 4, 0, 0, 0, 1])
                .await
                .unwrap();
            far.write_all(&[0; BLOCK]).await.unwrap();
        }
        let heads = HeadMonitor::new(Duration::ZERO, &HeadBudget::new(&Registry::new()), None);
        let mut stream = Http2InspectedStream::new(near, &heads, &Arc::default());
        let whole = PREFACE_LENGTH + HEADS * (BLOCK + 9);
        let reads = AtomicU32::new(0);
        let mut reading = pin!(heads.with_block_limit(async {
            let mut all = 0;
            while all < whole {
                all += stream.read(&mut [0; BLOCK]).await.unwrap();
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let mut polls = 1;
        poll_fn(|cx| {
            let polled = reading.as_mut().poll(cx);
            polls += u32::from(polled.is_pending());
            polled
        })
        .await;
        let reads = reads.load(Ordering::Relaxed);
        assert!((8..=11).contains(&polls), "{polls}: 16 KiB and a read each");
        assert!(reads > polls, "{reads} in {polls} polls");
    }

    /// A HEADERS frame with END_HEADERS, cut in two.
    fn halves(stream: u8) -> ([u8; 14], [u8; 5]) {
        let mut head = [0; 14];
        head[2] = 10; // its length
        head[3] = 1; // HEADERS
        head[4] = 4; // END_HEADERS
        head[8] = stream;
        (head, [0; 5])
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_begins_in_the_same_read_as_the_end_of_another_has_its_own_timeout() {
        const TIME: Duration = Duration::from_secs(10);
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let heads = HeadMonitor::new(TIME, &HeadBudget::new(&Registry::new()), None);
        let mut scanned = Http2InspectedStream::new(near, &heads, &Arc::default());
        let reading = async { while !matches!(scanned.read(&mut [0; 100]).await, Ok(0)) {} };
        let sending = async {
            let ((first, rest), (next, _)) = (halves(1), halves(3));
            far.write_all(&[&[b'P'; 24][..], &first].concat())
                .await
                .unwrap();
            tokio::time::sleep(TIME / 2).await;
            far.write_all(&[&rest[..], &next].concat()).await.unwrap();
            let second_began = Clock.now();
            assert_eq!(heads.wait_for_error().await, IncompleteHeadError::Timeout);
            assert_eq!(Clock.now() - second_began, TIME);
        };
        tokio::select! {
            () = reading => panic!("the connection goes on"),
            () = sending => {}
        }
    }

    #[tokio::test]
    async fn unwritten_bytes_are_recorded() {
        let (near, mut far) = tokio::io::duplex(8);
        let requests = Arc::<RequestCount>::default();
        let mut stream = InspectedStream {
            stream: near,
            target_fragments: Arc::default(),
            requests: Arc::clone(&requests),
            head_monitor: HeadMonitor::new(
                Duration::ZERO,
                &HeadBudget::new(&Registry::new()),
                None,
            ),
            unwritten_bytes: Arc::default(),
            rejection_response: None,
            response_suppressed: false,
            _guard: (),
        };
        let mut written = pin!(async { stream.write_all(&[7; 20]).await });
        assert!(written.as_mut().now_or_never().is_none());
        assert!(requests.write_pending());
        let mut read = [0; 20];
        let (written, read) = tokio::join!(written, far.read_exact(&mut read));
        assert!(written.is_ok() && read.is_ok());
        assert!(!requests.write_pending());
    }
}
