//! Bodies on their way: a client's to the upstream, and the upstream's answer.
//!
//! Frames go on as they arrive; nothing is kept. A request's trailers that could pass for an identity are taken out here,
//! since they come after the headers were cleaned.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::RecvStream;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::upstream::body::body_pump::BodyPump;
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::body::client_body::ClientBodyError;
use crate::upstream::body::memory_budget::BufferedBody;
use crate::upstream::headers::IdentityHeaders;

/// How much is read, in bytes, of an answer that nothing waits for any more: as cheap as a reset.
const MAX_DRAIN_BYTES: usize = 64 << 10;

/// The body of a request to the upstream.
#[derive(Debug)]
pub struct RequestBody(RequestBodyKind);

#[derive(Debug)]
enum RequestBodyKind {
    Empty,
    /// A client's, as it comes.
    Streamed(StreamedBody),
    /// A client's that was read beforehand.
    Buffered(BufferedBody),
    /// One of weir's own, until it has gone.
    Internal(Bytes),
}

/// A client's body, as it comes, its trailers cleaned of what the names cover.
#[derive(Debug)]
struct StreamedBody {
    /// What was read of it beforehand.
    prefix: Option<BufferedBody>,
    incoming: ClientBody,
    identity_headers: Arc<IdentityHeaders>,
    progress: Arc<BodyProgress>,
}

impl RequestBody {
    /// A client's body, of which a part may have been read beforehand, its trailers cleaned of what `names` covers; how it goes on
    /// is told to `progress`.
    #[must_use]
    pub fn streamed(
        begun: Option<BufferedBody>,
        incoming: ClientBody,
        names: Arc<IdentityHeaders>,
        progress: Arc<BodyProgress>,
    ) -> Self {
        Self(RequestBodyKind::Streamed(StreamedBody {
            prefix: begun,
            incoming,
            identity_headers: names,
            progress,
        }))
    }

    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self(RequestBodyKind::Empty)
    }

    /// A client's that was read beforehand.
    #[must_use]
    pub fn buffered(read: BufferedBody) -> Self {
        Self(RequestBodyKind::Buffered(read))
    }

    /// A body of weir's own.
    #[must_use]
    pub fn internal(body: Bytes) -> Self {
        Self(RequestBodyKind::Internal(body))
    }

    /// Whether nothing of it is still to come from a client.
    #[must_use]
    pub fn is_fully_received(&self) -> bool {
        match &self.0 {
            RequestBodyKind::Empty
            | RequestBodyKind::Buffered(_)
            | RequestBodyKind::Internal(_) => true,
            RequestBodyKind::Streamed(body) => body.incoming.is_end_stream(),
        }
    }
}

/// How a client's body goes on: told by the body, read by what looks after it.
#[derive(Debug, Default)]
pub struct BodyProgress {
    /// Written by one task, as is `awaited`; read now and then. Relaxed: they stand for nothing but themselves.
    bytes: AtomicU64,
    awaiting_client: AtomicBool,
    state: AtomicU8,
    reader_waker: AtomicWaker,
}

/// What has become of a client's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyState {
    /// More of it is to come.
    Unfinished,
    /// It came to its end.
    Complete,
    /// Its client has gone away, or has reset the stream.
    Aborted,
    /// What came is no body (a chunk's size that is no number, say).
    Malformed,
    /// It was given up, because its client was too slow.
    Stalled,
}

impl BodyProgress {
    /// The bytes that came so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the client is waited for: the upstream would take more.
    #[must_use]
    pub fn is_awaiting_client(&self) -> bool {
        self.awaiting_client.load(Ordering::Relaxed)
    }

    /// What has become of it.
    #[must_use]
    pub fn state(&self) -> BodyState {
        match self.state.load(Ordering::Acquire) {
            COMPLETE => BodyState::Complete,
            ABORTED => BodyState::Aborted,
            MALFORMED => BodyState::Malformed,
            STALLED => BodyState::Stalled,
            _ => BodyState::Unfinished,
        }
    }

    /// Gives it up, unless it has ended: its next part is an error.
    pub fn stall(&self) {
        self.finish(STALLED);
        self.reader_waker.wake();
    }

    fn finish(&self, state: u8) {
        self.awaiting_client.store(false, Ordering::Relaxed);
        let _ = self
            .state
            .compare_exchange(UNFINISHED, state, Ordering::AcqRel, Ordering::Acquire);
    }

    fn record_bytes(&self, bytes: usize) {
        self.awaiting_client.store(false, Ordering::Relaxed);
        let bytes = u64::try_from(bytes).unwrap_or_default();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

const UNFINISHED: u8 = 0;
const COMPLETE: u8 = 1;
const ABORTED: u8 = 2;
const MALFORMED: u8 = 3;
const STALLED: u8 = 4;

/// Why a request's body broke off.
#[derive(Debug)]
pub enum RequestBodyError {
    /// It could not be read from the client.
    Client(ClientBodyError),
    /// It was given up: [`BodyProgress::stall`].
    Stalled,
}

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(why) => why.fmt(f),
            Self::Stalled => write!(f, "the client was too slow"),
        }
    }
}

impl std::error::Error for RequestBodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Client(why) => Some(why),
            Self::Stalled => None,
        }
    }
}

/// Whether a body that cannot be read has a client that went away, or one that sent what is none.
#[must_use]
pub fn classify_error(error: &ClientBodyError) -> BodyState {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            let malformed = [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData];
            return if malformed.contains(&io.kind()) {
                BodyState::Malformed
            } else {
                BodyState::Aborted
            };
        }
        if let Some(http2) = error.downcast_ref::<h2::Error>()
            && !http2.is_remote()
            && !http2.is_io()
        {
            return BodyState::Malformed; // of another length than it says, say
        }
        cause = error.source();
    }
    BodyState::Aborted
}

impl StreamedBody {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Some(frame) = self.prefix.as_mut().and_then(BufferedBody::next_frame) {
            return Poll::Ready(Some(Ok(frame)));
        }
        self.prefix = None;
        let progress = &*self.progress;
        progress.reader_waker.register(cx.waker());
        if progress.state() == BodyState::Stalled {
            return Poll::Ready(Some(Err(RequestBodyError::Stalled)));
        }
        let Poll::Ready(polled) = Pin::new(&mut self.incoming).poll_frame(cx) else {
            progress.awaiting_client.store(true, Ordering::Relaxed);
            return Poll::Pending;
        };
        Poll::Ready(match polled {
            Some(Ok(mut frame)) => {
                progress.record_bytes(frame.data_ref().map_or(0, Bytes::len));
                if let Some(trailers) = frame.trailers_mut() {
                    self.identity_headers.remove_from(trailers);
                }
                if self.incoming.is_end_stream() {
                    progress.finish(COMPLETE);
                }
                Some(Ok(frame))
            }
            Some(Err(why)) => {
                let malformed = classify_error(&why) == BodyState::Malformed;
                progress.finish(if malformed { MALFORMED } else { ABORTED });
                Some(Err(RequestBodyError::Client(why)))
            }
            None => {
                progress.finish(COMPLETE);
                None
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        let begun = self
            .prefix
            .as_ref()
            .map_or(0, |begun| begun.size_hint().lower());
        let rest = self.incoming.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(begun));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(begun));
        }
        hint
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        Poll::Ready(match &mut self.0 {
            RequestBodyKind::Empty => None,
            RequestBodyKind::Streamed(body) => return body.poll_frame(cx),
            RequestBodyKind::Buffered(read) => read.next_frame().map(Ok),
            RequestBodyKind::Internal(body) if body.is_empty() => None,
            RequestBodyKind::Internal(body) => Some(Ok(Frame::data(std::mem::take(body)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            RequestBodyKind::Empty => true,
            RequestBodyKind::Streamed(body) => {
                body.prefix.is_none() && body.incoming.is_end_stream()
            }
            RequestBodyKind::Buffered(read) => read.is_end_stream(),
            RequestBodyKind::Internal(body) => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RequestBodyKind::Empty => SizeHint::with_exact(0),
            RequestBodyKind::Streamed(body) => body.size_hint(),
            RequestBodyKind::Buffered(read) => read.size_hint(),
            RequestBodyKind::Internal(body) => {
                SizeHint::with_exact(u64::try_from(body.len()).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The body of the upstream's answer. Dropping it before its end resets the stream, or closes the connection.
#[derive(Debug)]
pub struct ResponseBody(ResponseBodyKind);

#[derive(Debug)]
enum ResponseBodyKind {
    Http1(Incoming),
    Http2(Http2Body),
}

#[derive(Debug)]
struct Http2Body {
    frames: RecvStream,
    /// What is still to come of it, where its length was told.
    remaining: Option<u64>,
    data_ended: bool,
    /// The request's body, if it is not all sent: an answer may come before that.
    _body_pump: Option<BodyPump>,
}

impl From<Incoming> for ResponseBody {
    fn from(incoming: Incoming) -> Self {
        Self(ResponseBodyKind::Http1(incoming))
    }
}

impl ResponseBody {
    pub(in crate::upstream) fn from_http2(
        frames: RecvStream,
        length: Option<u64>,
        upload: Option<BodyPump>,
    ) -> Self {
        Self(ResponseBodyKind::Http2(Http2Body {
            frames,
            remaining: length,
            data_ended: false,
            _body_pump: upload,
        }))
    }

    /// Reads an answer that nothing waits for any more to its end, if it is a short one, or breaks off. Whether it has ended.
    pub(in crate::upstream) async fn drain(mut self) -> bool {
        let mut left = MAX_DRAIN_BYTES;
        while let Some(frame) = self.frame().await {
            let Ok(frame) = frame else { return true };
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(bytes) else {
                return false;
            };
            left = rest;
        }
        true
    }
}

/// Why an answer broke off.
#[derive(Debug)]
pub enum ResponseBodyError {
    /// On an HTTP/1.1 connection.
    Http1(hyper::Error),
    /// On an HTTP/2 connection.
    Http2(h2::Error),
}

impl fmt::Display for ResponseBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(why) => why.fmt(f),
            Self::Http2(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for ResponseBodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http1(why) => Some(why),
            // Its reason is for weir: passed on to a client, NO_ERROR or CANCEL would be taken for the end.
            Self::Http2(_) => None,
        }
    }
}

impl Http2Body {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        while !self.data_ended {
            match ready!(self.frames.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    // Handed on only when the client takes it, so this is the back-pressure.
                    let released = self.frames.flow_control().release_capacity(data.len());
                    if let (Some(left), Ok(length)) =
                        (&mut self.remaining, u64::try_from(data.len()))
                    {
                        *left = left.saturating_sub(length);
                    }
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                Some(Err(why)) => return Poll::Ready(Some(Err(why))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.frames.poll_trailers(cx));
        Poll::Ready(trailers.transpose().map(|t| t.map(Frame::trailers)))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        match &mut self.0 {
            ResponseBodyKind::Http1(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map_err(ResponseBodyError::Http1),
            ResponseBodyKind::Http2(stream) => {
                stream.poll_frame(cx).map_err(ResponseBodyError::Http2)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            ResponseBodyKind::Http1(incoming) => incoming.is_end_stream(),
            ResponseBodyKind::Http2(stream) => stream.frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            ResponseBodyKind::Http1(incoming) => incoming.size_hint(),
            ResponseBodyKind::Http2(stream) => stream
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
