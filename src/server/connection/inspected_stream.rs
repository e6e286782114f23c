//! The streams below the HTTP library: they inspect what is read, and write some responses
//! themselves.
//!
//! The library does not report a request with an incomplete head. If weir rejects such a request,
//! the stream writes the response (or the GOAWAY on HTTP/2) itself, and the library then reads the
//! end of the stream.
//!
//! The HTTP/1.1 library responds to a head that it cannot parse with a bare status line. The stream
//! suppresses that response. weir's own is written when the library has returned the reason as the
//! result of the connection. If the reason is that the head has more fields than usual, the library
//! reads it once more, with a larger table.
//!
//! hyper cannot send GOAWAY with a reason (`abrupt_shutdown` of h2 is not reachable through it).
//! The stream writes that frame behind what h2 has written, unless the client has stopped reading,
//! and closes.

use std::future::poll_fn;
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::pipeline::connection::head_budget::header_block_memory;
use crate::pipeline::connection::request_count::RequestCount;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::server::connection::connection_guard::ConnectionGuard;
use crate::server::connection::head_monitor::{HeadMonitor, IncompleteHeadError};
use crate::server::connection::write_progress::WriteProgress;
use weir_base::clock::Clock;
use weir_base::metrics::GaugeGuard;
use weir_io::frame_scanner::{FrameScanner, IncompleteBlock};
use weir_io::goaway::LastStreamId;
use weir_io::tcp::poll_read_at_most;
use weir_io::write_backpressure::UnwrittenBytes;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::throttling::read_pacing::{HEADER_BYTE_WORK, ReadPacing};

/// The empty line at the end of a head, with the line break before it.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The stream of an HTTP/1.1 connection. It inspects the bytes that are read, and tracks whether
/// bytes wait to be written.
pub(crate) struct InspectedStream<S, H = (ConnectionGuard, GaugeGuard)> {
    pub(crate) stream: S,
    pub(crate) requests: Arc<RequestCount>,
    pub(crate) head_monitor: Arc<HeadMonitor>,
    pub(crate) unwritten_bytes: Arc<UnwrittenBytes>,
    pub(crate) write_progress: WriteProgress,
    pub(crate) pacing: ReadPacing,
    /// What the library had read and not parsed; it reads it again.
    pub(crate) unparsed: Bytes,
    /// Whether a head may have more fields than usual.
    pub(crate) takes_many_fields: bool,
    /// The unwritten part of weir's response to a head that is incomplete or cannot be parsed.
    pub(crate) rejection_response: Option<Vec<u8>>,
    /// Whether the library's response to a head that it cannot parse was suppressed.
    pub(crate) response_suppressed: bool,
    /// Held by the stream, since the stream outlives HTTP after a protocol upgrade: a tunnel is an
    /// open connection, too.
    pub(crate) _guard: H,
}

impl<S, H> InspectedStream<S, H> {
    fn record_pending<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.requests.set_write_pending(polled.is_pending());
        polled
    }

    fn record_written(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.write_progress.record_write(&polled);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.unwritten_bytes.record_written(bytes);
        }
        self.record_pending(polled)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Unpin> InspectedStream<S, H> {
    /// Writes the response to a head for which the library's response was suppressed, and ends the
    /// connection.
    ///
    /// # Errors
    /// Always: the connection is over, whether the response was written or not.
    pub(crate) async fn reject(&mut self, rejection: &RequestRejection) -> io::Result<()> {
        self.rejection_response = Some(raw_response(rejection));
        poll_fn(|cx| self.poll_write_rejection(cx)).await
    }

    /// Rejects an incomplete head. The response is left out if the end of the previous response is
    /// not written, since it would become part of that one.
    fn poll_reject_incomplete(
        &mut self,
        cx: &mut Context<'_>,
        error: IncompleteHeadError,
    ) -> Poll<io::Result<()>> {
        if self.rejection_response.is_none() {
            if self.requests.write_pending() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let rejection = match error {
                IncompleteHeadError::Timeout => RequestRejection::HeadTimeout,
                IncompleteHeadError::BudgetExceeded => RequestRejection::HeadBudgetExhausted,
                IncompleteHeadError::TooManyFields => RequestRejection::HeadersTooLong,
            };
            self.rejection_response = Some(raw_response(&rejection));
        }
        self.poll_write_rejection(cx)
    }

    /// Writes the response, and shuts down the write half.
    fn poll_write_rejection(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let aborted = || Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        while let Some(remaining) = self
            .rejection_response
            .as_mut()
            .filter(|remaining| !remaining.is_empty())
        {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, remaining))?;
            if written == 0 {
                return aborted();
            }
            remaining.drain(..written);
        }
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        aborted()
    }
}

impl<S, H> InspectedStream<S, H> {
    /// Whether the client may still be sending when HTTP has ended: a body, or more than the head
    /// that was rejected.
    pub(crate) fn may_have_unread(&self) -> bool {
        self.rejection_response.is_some() || self.head_monitor.http1_has_body()
    }

    /// Whether a head that is too large may be parsed again, with more fields. Nothing was written of
    /// the library's response to it.
    pub(crate) fn may_reread(&self) -> bool {
        self.response_suppressed && !self.takes_many_fields && self.head_monitor.error().is_none()
    }

    /// Gives the library `head` once more, which may now have many fields.
    pub(crate) fn reread(&mut self, head: Bytes) {
        self.unparsed = head;
        self.takes_many_fields = true;
        self.response_suppressed = false;
    }

    /// Whether this is the library's response to a head that it cannot parse. While the library
    /// waits for a head and nothing is unwritten, it writes nothing else.
    fn suppress_response(&mut self, written: &[u8]) -> bool {
        self.response_suppressed = written.starts_with(b"HTTP/1.1 4")
            && written.ends_with(END_OF_HEAD)
            && !self.requests.write_pending()
            && self.head_monitor.http1_is_head_expected();
        self.response_suppressed
    }
}

impl<S: AsyncBufRead + Unpin, H> InspectedStream<S, H> {
    /// Completes when there is something to read: bytes, the end or an error.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn readable(&mut self) {
        if self.unparsed.is_empty() {
            let _ = poll_fn(|cx| Pin::new(&mut self.stream).poll_fill_buf(cx).map_ok(drop)).await;
        }
    }
}

/// A response that is written without the library. The connection ends after it.
fn raw_response(rejection: &RequestRejection) -> Vec<u8> {
    let code = rejection.code();
    let status = rejection.status();
    let retry_after = status.as_ref().ok().and_then(|s| s.retry_after_seconds);
    let (content_type, body) = match status {
        Ok(status) => ("application/json", status.to_json()),
        Err(text) => ("text/plain; charset=utf-8", text),
    };
    let retry_after =
        retry_after.map_or_else(String::new, |seconds| format!("Retry-After: {seconds}\r\n"));
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nCache-Control: no-cache, private\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n{retry_after}Content-Length: {}\r\n\r\n",
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
        if let Err(error) = self.head_monitor.http1_before_read() {
            return self.poll_reject_incomplete(cx, error);
        }
        if !self.unparsed.is_empty() {
            let length = self.unparsed.len().min(buffer.remaining());
            let again = self.unparsed.split_to(length);
            self.head_monitor.http1_record_read(&again);
            buffer.put_slice(&again);
            return Poll::Ready(Ok(()));
        }
        ready!(self.pacing.poll_ready(cx));
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = buffer.filled().get(before..).unwrap_or_default();
        if !read.is_empty() {
            let is_head = self.head_monitor.http1_record_read(read);
            let byte_work = if is_head { HEADER_BYTE_WORK } else { 1 };
            let work = saturating_u64(read.len()).saturating_mul(byte_work);
            self.pacing.record_read(work);
        }
        if polled.is_pending() {
            self.pacing.record_pending();
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
        self.write_progress.record_flush(&polled);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.unwritten_bytes.record_flush();
        }
        self.record_pending(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.response_suppressed {
            return Poll::Ready(Ok(())); // weir's response is written later
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The stream of an HTTP/2 connection. It scans the frames that are read.
#[derive(Debug)]
pub(crate) struct Http2InspectedStream<S> {
    stream: S,
    scanner: FrameScanner,
    head_monitor: Arc<HeadMonitor>,
    last_stream_id: Arc<LastStreamId>,
    write_progress: WriteProgress,
    pacing: ReadPacing,
    /// Called when a client that may pause takes nothing for the first time.
    on_pause: fn(&S),
}

impl<S> Http2InspectedStream<S> {
    /// The stream of a new connection.
    pub(crate) fn new(
        stream: S,
        head_monitor: &Arc<HeadMonitor>,
        last_stream_id: &Arc<LastStreamId>,
        write_progress: WriteProgress,
        pacing: ReadPacing,
        on_pause: fn(&S),
    ) -> Self {
        Self {
            write_progress,
            pacing,
            on_pause,
            stream,
            scanner: FrameScanner::default(),
            head_monitor: Arc::clone(head_monitor),
            last_stream_id: Arc::clone(last_stream_id),
        }
    }

    fn report_pause(&mut self) {
        if self.write_progress.begins_pause() {
            (self.on_pause)(&self.stream);
        }
    }

    fn scan(&mut self, read: &[u8]) {
        let (work, ineffective) = (self.scanner.work(), self.scanner.ineffective_frames());
        let before = self
            .scanner
            .incomplete()
            .map(|_| self.scanner.completed_units());
        self.scanner.feed(read);
        self.pacing.record_read(self.scanner.work() - work);
        let ineffective = self.scanner.ineffective_frames() - ineffective;
        if ineffective > 0 {
            self.pacing.record_ineffective(ineffective, Clock.now());
        }
        let last = self.scanner.last_stream_id();
        self.last_stream_id.record(last);
        // The same read may have started the next block, which has its own timeout.
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
        if self.scanner.exceeds_fields() {
            return Poll::Pending; // as below
        }
        ready!(self.pacing.poll_ready(cx));
        if let Some(IncompleteBlock {
            decoded_bytes: decoded,
            frame_length: frame,
        }) = self.scanner.incomplete()
        {
            // The library's buffer may have grown by doubling for the frame.
            let memory = header_block_memory(decoded).saturating_add(2 * frame);
            if self.head_monitor.record_incomplete(memory).is_err() {
                return Poll::Pending; // `wait_for_error` ends the connection
            }
        }
        let before = buffer.filled().len();
        let limit = self.scanner.read_limit();
        let polled = poll_read_at_most(limit, Pin::new(&mut self.stream), cx, buffer);
        if polled.is_pending() {
            self.pacing.record_pending();
        } else {
            self.scan(buffer.filled().get(before..).unwrap_or_default());
        }
        if self.scanner.exceeds_fields() {
            // The library would decode the frame.
            self.head_monitor.record_too_many_fields();
            return Poll::Pending;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Http2InspectedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.write_progress.record_write(&polled);
        self.report_pause();
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.write_progress.record_write(&polled);
        self.report_pause();
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.write_progress.record_flush(&polled);
        self.report_pause();
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "inspected_stream_tests.rs"]
mod tests;
