//! Bodies on their way: a client's to the upstream, and the upstream's answer.
//!
//! Frames go on as they arrive; nothing is kept. A request's trailers that could pass for an identity are taken out here,
//! since they come after the headers were cleaned.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use bytes::Bytes;
use h2::RecvStream;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;
use hyper::body::Incoming;

use crate::upstream::headers::IdentityHeaders;
use crate::upstream::read_body::ReadBody;
use crate::upstream::upload::Upload;

/// The body of a request to the upstream.
#[derive(Debug)]
pub struct RequestBody(Request);

#[derive(Debug)]
enum Request {
    Empty,
    /// A client's, as it comes, its trailers cleaned of what the names cover.
    Client(Incoming, Arc<IdentityHeaders>),
    /// A client's that was read beforehand.
    Read(ReadBody),
    /// One of weir's own, until it has gone.
    Own(Bytes),
}

impl RequestBody {
    /// A client's body, its trailers cleaned of what `names` covers.
    #[must_use]
    pub fn new(incoming: Incoming, names: Arc<IdentityHeaders>) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self(Request::Client(incoming, names))
    }

    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self(Request::Empty)
    }

    /// A client's that was read beforehand.
    #[must_use]
    pub fn read(read: ReadBody) -> Self {
        Self(Request::Read(read))
    }

    /// A body of weir's own.
    #[must_use]
    pub fn own(body: Bytes) -> Self {
        Self(Request::Own(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Poll::Ready(match &mut self.0 {
            Request::Empty => None,
            Request::Client(incoming, names) => {
                let mut frame = ready!(Pin::new(incoming).poll_frame(cx));
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    names.remove_from(trailers);
                }
                frame
            }
            Request::Read(read) => read.frame().map(Ok),
            Request::Own(body) if body.is_empty() => None,
            Request::Own(body) => Some(Ok(Frame::data(std::mem::take(body)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Request::Empty => true,
            Request::Client(incoming, _) => incoming.is_end_stream(),
            Request::Read(read) => read.is_over(),
            Request::Own(body) => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Request::Empty => SizeHint::with_exact(0),
            Request::Client(incoming, _) => incoming.size_hint(),
            Request::Read(read) => SizeHint::with_exact(read.left()),
            Request::Own(body) => {
                SizeHint::with_exact(u64::try_from(body.len()).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The body of the upstream's answer. Dropping it before its end resets the stream, or closes the connection.
#[derive(Debug)]
pub struct AnswerBody(Inner);

#[derive(Debug)]
enum Inner {
    Http1(Incoming),
    Http2(Stream),
}

#[derive(Debug)]
struct Stream {
    frames: RecvStream,
    /// What is still to come of it, where its length was told.
    left: Option<u64>,
    data_ended: bool,
    /// The request's body, if it is not all sent: an answer may come before that.
    _upload: Option<Upload>,
}

impl From<Incoming> for AnswerBody {
    fn from(incoming: Incoming) -> Self {
        Self(Inner::Http1(incoming))
    }
}

impl AnswerBody {
    pub(super) fn http2(frames: RecvStream, length: Option<u64>, upload: Option<Upload>) -> Self {
        Self(Inner::Http2(Stream {
            frames,
            left: length,
            data_ended: false,
            _upload: upload,
        }))
    }
}

/// Why an answer broke off.
#[derive(Debug)]
pub enum AnswerError {
    /// On an HTTP/1.1 connection.
    Http1(hyper::Error),
    /// On an HTTP/2 connection.
    Http2(h2::Error),
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http1(why) => why.fmt(f),
            Self::Http2(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for AnswerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Http1(why) => Some(why),
            // Its reason is for weir: passed on to a client, NO_ERROR or CANCEL would be taken for the end.
            Self::Http2(_) => None,
        }
    }
}

impl Stream {
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
                    if let (Some(left), Ok(length)) = (&mut self.left, u64::try_from(data.len())) {
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

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match &mut self.0 {
            Inner::Http1(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map_err(AnswerError::Http1),
            Inner::Http2(stream) => stream.poll_frame(cx).map_err(AnswerError::Http2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Http1(incoming) => incoming.is_end_stream(),
            Inner::Http2(stream) => stream.frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Http1(incoming) => incoming.size_hint(),
            Inner::Http2(stream) => stream
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
