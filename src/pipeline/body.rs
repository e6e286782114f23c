//! What weir answers with: a few bytes of its own, or what the upstream sends, as it comes.

use std::pin::Pin;
use std::task::Context;
use std::task::Poll;

use bytes::Bytes;
use http_body::Frame;
use http_body::SizeHint;

use crate::pipeline::begun::Begun;
use crate::pipeline::begun::Unfinished;
use crate::pipeline::guarded::Broken;
use crate::pipeline::guarded::Guarded;
use crate::pipeline::riding::Riding;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::AnswerError;

/// The body of an answer.
pub struct Body(Inner, Unfinished);

enum Inner {
    Fixed(Bytes),
    Forwarded(Box<Guarded<AnswerBody, Riding>>),
}

impl Body {
    /// These bytes, at once.
    #[must_use]
    pub fn fixed(bytes: Bytes) -> Self {
        Self(Inner::Fixed(bytes), Unfinished::default())
    }

    /// The same, with which a request is over: with its last byte, or when its time is up, even if nobody reads on. One that is
    /// all here is over at once. If the body is dropped before its end, `unfinished` counts a reset.
    #[must_use]
    pub fn ending(mut self, begun: Begun, mut unfinished: Unfinished) -> Self {
        match &self.0 {
            Inner::Forwarded(body) if !http_body::Body::is_end_stream(body.as_ref()) => {
                body.with_guard(|riding| riding.begun = Some(begun));
                self.1 = unfinished;
            }
            Inner::Forwarded(_) | Inner::Fixed(_) => unfinished.finish(),
        }
        self
    }

    pub(super) fn forwarded(body: Guarded<AnswerBody, Riding>) -> Self {
        Self(Inner::Forwarded(Box::new(body)), Unfinished::default())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken<AnswerError>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            Inner::Fixed(bytes) if bytes.is_empty() => Poll::Ready(None),
            Inner::Fixed(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Inner::Forwarded(body) => {
                let polled = Pin::new(body.as_mut()).poll_frame(cx);
                let over = matches!(polled, Poll::Ready(None | Some(Err(_))));
                if over || http_body::Body::is_end_stream(body.as_ref()) {
                    self.1.finish();
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Fixed(bytes) => bytes.is_empty(),
            Inner::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Fixed(bytes) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Inner::Forwarded(body) => body.size_hint(),
        }
    }
}
