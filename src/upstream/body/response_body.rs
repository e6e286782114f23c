//! The body of the upstream's response. Frames are forwarded as they arrive; nothing is buffered.
//!
//! A client may leave in the middle of a response. On HTTP/1.1 the connection would be lost with it,
//! and the next request would cost the API server a TLS handshake. The rest of a short response is
//! therefore read, if its request allows that.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::upstream::body::body_pump::BodyPump;
use crate::upstream::headers;
use weir_kubernetes::numeric::saturating_u64;

/// Most bytes that are read of a response that is not needed any more: as cheap as a reset.
const MAX_DRAIN_BYTES: usize = 64 << 10;

/// The body of the upstream's response. Dropping it before its end resets the stream or closes the
/// connection.
#[derive(Debug)]
pub(crate) struct ResponseBody(ResponseBodyKind);

#[derive(Debug)]
enum ResponseBodyKind {
    Http1(Http1Body),
    Http2(Http2Body),
}

#[derive(Debug)]
struct Http1Body {
    /// `None` only while it is dropped.
    incoming: Option<Incoming>,
    /// How long the rest is read after the body was dropped before its end.
    drain_timeout: Option<Duration>,
}

impl Drop for Http1Body {
    /// Reads the rest in a task of its own.
    fn drop(&mut self) {
        let (incoming, drain_timeout) = (self.incoming.take(), self.drain_timeout);
        if let Some(incoming) = incoming.filter(is_short)
            && let Some(drain_timeout) = drain_timeout
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                // If it does not end in time, dropping it closes the connection.
                let _ = timeout(drain_timeout, ResponseBody::from(incoming).drain()).await;
            });
        }
    }
}

/// Whether the body has not ended and may have so few bytes left that they are worth reading.
fn is_short(incoming: &Incoming) -> bool {
    let most = saturating_u64(MAX_DRAIN_BYTES);
    !incoming.is_end_stream() && incoming.size_hint().lower() <= most
}

#[derive(Debug)]
struct Http2Body {
    frames: RecvStream,
    /// The bytes still expected, if the length was declared.
    remaining: Option<u64>,
    data_ended: bool,
    /// The request body, if it has not been sent in full: a response may arrive before that.
    _body_pump: Option<BodyPump>,
}

impl From<Incoming> for ResponseBody {
    fn from(incoming: Incoming) -> Self {
        Self::from_http1(incoming, None)
    }
}

impl ResponseBody {
    /// The body of an HTTP/1.1 response. If it is dropped before its end, its rest is read for
    /// `drain_timeout`, if that is a time.
    pub(crate) const fn from_http1(incoming: Incoming, drain_timeout: Option<Duration>) -> Self {
        Self(ResponseBodyKind::Http1(Http1Body {
            incoming: Some(incoming),
            drain_timeout,
        }))
    }

    pub(crate) fn from_http2(
        frames: RecvStream,
        length: Option<u64>,
        body_pump: Option<BodyPump>,
    ) -> Self {
        Self(ResponseBodyKind::Http2(Http2Body {
            frames,
            remaining: length,
            data_ended: false,
            _body_pump: body_pump,
        }))
    }

    /// Reads a response that is not needed any more to its end if it is short, or stops. Returns
    /// whether it has ended.
    pub(crate) async fn drain(mut self) -> bool {
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

/// Why a response is incomplete.
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
            Self::Http1(error) => error.fmt(f),
            Self::Http2(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResponseBodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http1(error) => Some(error),
            // The source is hidden: hyper would pass its reason on to the client, which would take
            // NO_ERROR or CANCEL for the end.
            Self::Http2(_) => None,
        }
    }
}

impl Http1Body {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let polled = ready!(Pin::new(incoming).poll_frame(cx));
        if !matches!(polled, Some(Ok(_))) {
            self.drain_timeout = None; // nothing is left
        }
        Poll::Ready(polled)
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
                    // The frame is polled only when the client takes it, so releasing capacity here
                    // applies back-pressure.
                    let released = self.frames.flow_control().release_capacity(data.len());
                    if let (Some(left), Ok(length)) =
                        (&mut self.remaining, u64::try_from(data.len()))
                    {
                        *left = left.saturating_sub(length);
                    }
                    return Poll::Ready(Some(released.map(|()| Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
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
        loop {
            let polled = ready!(match &mut self.0 {
                ResponseBodyKind::Http1(body) =>
                    body.poll_frame(cx).map_err(ResponseBodyError::Http1),
                ResponseBodyKind::Http2(stream) => {
                    stream.poll_frame(cx).map_err(ResponseBodyError::Http2)
                }
            });
            let frame = match polled {
                Some(Ok(frame)) if frame.is_trailers() => frame,
                other => return Poll::Ready(other),
            };
            let trailers = frame.into_trailers().ok();
            if let Some(trailers) = trailers.and_then(headers::forwarded_trailers) {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            ResponseBodyKind::Http1(body) => body.incoming.as_ref().is_none_or(Body::is_end_stream),
            ResponseBodyKind::Http2(stream) => stream.frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            ResponseBodyKind::Http1(body) => {
                let incoming = body.incoming.as_ref();
                incoming.map_or_else(SizeHint::default, Body::size_hint)
            }
            ResponseBodyKind::Http2(stream) => stream
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
