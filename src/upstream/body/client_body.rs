//! A client's body as the HTTP library reads it.

use std::fmt;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use bytes::Bytes;
use http::Version;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;
use hyper::body::Incoming;

/// A client's body. One whose HTTP/2 stream is reset before its end is an error, whatever the code: the library ends it in silence if
/// the code is `NO_ERROR`, and what was sent of it would go on as the whole.
#[derive(Debug)]
pub struct ClientBody {
    incoming: Incoming,
    http2: bool,
}

impl ClientBody {
    /// The body of a request of this version.
    #[must_use]
    pub fn new(incoming: Incoming, version: Version) -> Self {
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
            // Of HTTP/1.1 the library does not tell it, and has no such end.
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

/// Why a client's body broke off.
#[derive(Debug)]
pub enum ClientBodyError {
    /// What the HTTP library says.
    Hyper(hyper::Error),
    /// Its stream was reset with `NO_ERROR`.
    Reset,
}

impl fmt::Display for ClientBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hyper(why) => why.fmt(f),
            Self::Reset => write!(f, "the client reset the stream"),
        }
    }
}

impl std::error::Error for ClientBodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Hyper(why) => Some(why),
            Self::Reset => None,
        }
    }
}
