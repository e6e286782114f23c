//! A client's body as hyper reads it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A client's body. An HTTP/2 stream that is reset before its end is an error, whatever the code:
/// hyper ends the body silently if the code is `NO_ERROR`, and the part that arrived would be
/// forwarded as the whole.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    http2: bool,
}

impl ClientBody {
    /// The body of a request of this HTTP version.
    #[must_use]
    pub(crate) fn new(incoming: Incoming, version: Version) -> Self {
        Self {
            incoming,
            http2: version >= Version::HTTP_2,
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        Poll::Ready(match frame {
            // HTTP/1.1 has no such end, and hyper does not report `is_end_stream` for it.
            None if self.http2 && !self.incoming.is_end_stream() => {
                Some(Err(ClientBodyError::Reset))
            }
            frame => frame.map(|frame| frame.map_err(ClientBodyError::Hyper)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Why a client's body is incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientBodyError {
    /// The error of hyper.
    #[error("{0}")]
    Hyper(#[source] hyper::Error),
    /// Its stream was reset with `NO_ERROR`.
    #[error("the client reset the stream")]
    Reset,
}
