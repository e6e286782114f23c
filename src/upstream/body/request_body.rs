//! The body of a request to the upstream.
//!
//! Frames are forwarded as they arrive; nothing is buffered. Trailers are cleaned here, since they
//! arrive after the headers were.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::identity::request_header::IdentityHeaders;
use crate::upstream::body::buffered_body::BufferedBody;
use crate::upstream::body::client_body::{ClientBody, ClientBodyError};
use crate::upstream::body::progress::{ABORTED, BodyProgress, BodyState, COMPLETE, MALFORMED};
use crate::upstream::headers;
use crate::upstream::headers::InvalidHeaders;
use weir_io::in_place;
use weir_io::written_first::{FlushSignal, WrittenFirst};
use weir_kubernetes::numeric::saturating_u64;

/// The body of a request to the upstream.
#[derive(Debug)]
pub(crate) struct RequestBody(RequestBodyKind);

#[derive(Debug)]
enum RequestBodyKind {
    Empty,
    /// A client's body, streamed. Boxed: most requests have none.
    Streamed(Box<StreamedBody>),
    /// A client's that was read beforehand.
    Buffered(BufferedBody),
    /// A body of weir's own, until it has been sent.
    Internal(Bytes),
}

/// A client's body that is streamed.
#[derive(Debug)]
struct StreamedBody {
    /// The part that was read beforehand.
    prefix: Option<BufferedBody>,
    incoming: ClientBody,
    identity_headers: Arc<IdentityHeaders>,
    progress: Arc<BodyProgress>,
    /// The flushes of the HTTP/1.1 connection that it is sent on, as long as that is open.
    flushes: Weak<FlushSignal>,
    /// Its error, and when that counts.
    failed: Option<Box<(RequestBodyError, WrittenFirst)>>,
}

impl RequestBody {
    /// A client's body that is streamed after the part that was read beforehand, if any. The
    /// headers in `names` are removed from its trailers. `progress` follows it.
    #[must_use]
    pub(crate) fn streamed(
        prefix: Option<BufferedBody>,
        incoming: ClientBody,
        names: Arc<IdentityHeaders>,
        progress: Arc<BodyProgress>,
    ) -> Self {
        Self(RequestBodyKind::Streamed(in_place::boxed(|| {
            StreamedBody {
                prefix,
                incoming,
                identity_headers: names,
                progress,
                flushes: Weak::new(),
                failed: None,
            }
        })))
    }

    /// No body.
    #[must_use]
    pub(crate) fn empty() -> Self {
        Self(RequestBodyKind::Empty)
    }

    /// A client's that was read beforehand.
    #[must_use]
    pub(crate) fn buffered(read: BufferedBody) -> Self {
        Self(RequestBodyKind::Buffered(read))
    }

    /// A body of weir's own.
    #[must_use]
    pub(crate) fn internal(body: Bytes) -> Self {
        Self(RequestBodyKind::Internal(body))
    }

    /// It is sent on an HTTP/1.1 connection: its error follows what it has handed out.
    pub(crate) fn fail_after_flush(&mut self, flushes: &Arc<FlushSignal>) {
        if let RequestBodyKind::Streamed(body) = &mut self.0 {
            body.flushes = Arc::downgrade(flushes);
        }
    }

    /// A copy for another attempt, which shares its memory. `None` if it is not all in memory.
    #[must_use]
    pub(crate) fn duplicate(&self) -> Option<Self> {
        let copy = match &self.0 {
            RequestBodyKind::Empty => RequestBodyKind::Empty,
            RequestBodyKind::Buffered(read) => RequestBodyKind::Buffered(read.clone()),
            RequestBodyKind::Internal(body) => RequestBodyKind::Internal(body.clone()),
            RequestBodyKind::Streamed(_) => return None,
        };
        Some(Self(copy))
    }

    /// Whether all of it has been received from the client.
    #[must_use]
    pub(crate) fn is_fully_received(&self) -> bool {
        match &self.0 {
            RequestBodyKind::Empty
            | RequestBodyKind::Buffered(_)
            | RequestBodyKind::Internal(_) => true,
            RequestBodyKind::Streamed(body) => body.incoming.is_end_stream(),
        }
    }
}

/// Why a request body is incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestBodyError {
    /// The body could not be read from the client.
    #[error("{0}")]
    Client(#[source] ClientBodyError),
    /// The body was aborted: [`BodyProgress::stall`].
    #[error("the client was too slow")]
    Stalled,
    /// Its trailers cannot be forwarded.
    #[error("invalid trailers: {0}")]
    Trailers(#[source] InvalidHeaders),
}

/// Whether a body that cannot be read was aborted by its client or is malformed.
#[must_use]
pub(crate) fn classify_error(error: &ClientBodyError) -> BodyState {
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
            return BodyState::Malformed; // a body of another length than declared, for example
        }
        cause = error.source();
    }
    BodyState::Aborted
}

impl StreamedBody {
    /// [`poll_frame`](Self::poll_frame), with an error behind what was handed out.
    fn poll_ordered(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Some(failed) = &mut self.failed {
            ready!(Pin::new(&mut failed.1).poll(cx));
            return Poll::Ready(self.failed.take().map(|failed| Err(failed.0)));
        }
        match (ready!(self.poll_frame(cx)), self.flushes.upgrade()) {
            (Some(Err(error)), Some(flushes)) => {
                let written = WrittenFirst::on_http1(&flushes, cx.waker());
                self.failed = Some(Box::new((error, written)));
                Poll::Pending
            }
            (polled, _) => Poll::Ready(polled),
        }
    }

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
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    progress.record_bytes(data.len());
                    if self.incoming.is_end_stream() {
                        progress.finish(COMPLETE);
                    }
                    Some(Ok(Frame::data(data)))
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default(); // there is no other kind
                    let trailers = headers::request_trailers(trailers, &self.identity_headers);
                    progress.finish(trailers.as_ref().map_or(MALFORMED, |_| COMPLETE));
                    let trailers = trailers.map_err(RequestBodyError::Trailers).transpose();
                    trailers.map(|trailers| trailers.map(Frame::trailers))
                }
            },
            Some(Err(error)) => {
                let malformed = classify_error(&error) == BodyState::Malformed;
                progress.finish(if malformed { MALFORMED } else { ABORTED });
                Some(Err(RequestBodyError::Client(error)))
            }
            None => {
                progress.finish(COMPLETE);
                None
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        let prefix = self
            .prefix
            .as_ref()
            .map_or(0, |prefix| prefix.size_hint().lower());
        let rest = self.incoming.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(prefix));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(prefix));
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
            RequestBodyKind::Streamed(body) => return body.poll_ordered(cx),
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
            RequestBodyKind::Internal(body) => SizeHint::with_exact(saturating_u64(body.len())),
        }
    }
}
