//! The body of weir's responses: a few bytes of its own, or what the upstream sends, as it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as _;
use http_body::{Frame, SizeHint};

use crate::limits::memory_limit::unread_responses::PausableResponse;
use crate::pipeline::connection::request_count::{ActiveRequest, ResetGuard};
use crate::pipeline::response::guarded::{GuardedBody, GuardedBodyError};
use crate::pipeline::response::in_flight::ResponseGuard;
use crate::pipeline::response::response_reader::ResponseReader;
use crate::upstream::body::response_body::{ResponseBody, ResponseBodyError};
use weir_io::in_place;
use weir_kubernetes::numeric::saturating_u64;

/// The body of a response.
pub struct Body(BodyKind);

enum BodyKind {
    Fixed(Bytes),
    Forwarded(Box<ForwardedBody>),
}

struct ForwardedBody {
    body: GuardedBody<ResponseBody, Box<ResponseGuard>>,
    reader: ResponseReader,
    reset_guard: ResetGuard,
    /// Present while the client may pause.
    pausable: Option<PausableResponse>,
}

impl Body {
    /// A body of these bytes.
    #[must_use]
    pub fn fixed(bytes: Bytes) -> Self {
        Self(BodyKind::Fixed(bytes))
    }

    /// Adds the guard that records the request's end: with the last byte, or at the deadline, even
    /// without a reader. A complete body ends at once. A body that is dropped before its end counts
    /// a reset.
    #[must_use]
    pub(crate) fn with_end_guard(mut self, mut active_request: ActiveRequest) -> Self {
        match &mut self.0 {
            BodyKind::Forwarded(forwarded) if !forwarded.body.is_end_stream() => {
                let connection = active_request.unread();
                forwarded.reader.connection = Some(Arc::clone(connection));
                let body = &forwarded.body;
                let pausable = || connection.begin_pausable(!body.may_be_stopped());
                forwarded.pausable = body.may_pause().then(pausable);
                forwarded.reset_guard = active_request.take_reset_guard();
                let body = &forwarded.body;
                body.with_guard(|guard| guard.active_request = Some(active_request));
            }
            BodyKind::Forwarded(_) | BodyKind::Fixed(_) => active_request.complete(),
        }
        self
    }

    /// Whether this is a body of the API server.
    pub(crate) const fn is_forwarded(&self) -> bool {
        matches!(self.0, BodyKind::Forwarded(_))
    }

    /// A body of the API server, whose bytes count for `reader` until they are written.
    pub(crate) fn forwarded(
        body: GuardedBody<ResponseBody, Box<ResponseGuard>>,
        reader: ResponseReader,
    ) -> Self {
        Self(BodyKind::Forwarded(in_place::boxed(|| ForwardedBody {
            body,
            reader,
            reset_guard: ResetGuard::default(),
            pausable: None,
        })))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = GuardedBodyError<ResponseBodyError>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            BodyKind::Fixed(bytes) if bytes.is_empty() => Poll::Ready(None),
            BodyKind::Fixed(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            BodyKind::Forwarded(forwarded) => {
                let ForwardedBody {
                    body,
                    reader,
                    reset_guard,
                    pausable,
                } = forwarded.as_mut();
                let polled = reader.count(Pin::new(&mut *body).poll_frame(cx));
                let over = matches!(polled, Poll::Ready(None | Some(Err(_))));
                if over || body.is_end_stream() {
                    reader.end();
                    reset_guard.disarm();
                    *pausable = None;
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Fixed(bytes) => bytes.is_empty(),
            BodyKind::Forwarded(forwarded) => forwarded.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Fixed(bytes) => SizeHint::with_exact(saturating_u64(bytes.len())),
            BodyKind::Forwarded(forwarded) => forwarded.body.size_hint(),
        }
    }
}
