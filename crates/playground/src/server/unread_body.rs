//! The behaviour of Go's HTTP/1.1 server if the handler has not read the whole request body.
//!
//! Follows `chunkWriter.writeHeader` in net/http: the head of a response waits until the small rest
//! of the body has arrived, so that the connection can be reused. The wait has no limit:
//! kube-apiserver sets no read timeout for bodies. On HTTP/2 nothing waits.

use crate::request::BodyReadToEnd;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Request, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Go's `maxPostHandlerReadBytes`: the server does not wait for a rest of this length or more.
const MAX_POST_HANDLER_READ: u64 = 256 * 1024;

/// The `Content-Length` up to which Go's server has not begun to write when the handler returns
/// (`bufferBeforeChunkingSize`); a longer response waits within the handler.
pub(crate) const BUFFERED_RESPONSE_LENGTH: u64 = 2048;

/// The action before the response's head is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadBodyAction {
    /// None: the body was read completely, or the client closes the connection.
    KeepAlive,
    /// Read the rest and discard it.
    Discard,
    /// Send the response at once and close the connection.
    Close,
}

/// The state of a request's body after the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnreadBody {
    read_to_end: bool,
    /// Unread bytes of the `Content-Length`; `None` for a chunked body.
    remaining: Option<u64>,
    /// `Connection: close`, or HTTP/1.0.
    closes: bool,
    /// `Expect: 100-continue`.
    expects_continue: bool,
}

impl UnreadBody {
    fn from_request(request: &Request<Incoming>) -> Self {
        let headers = request.headers();
        Self {
            read_to_end: request.extensions().get::<BodyReadToEnd>().is_some()
                || request.body().is_end_stream(),
            remaining: request.body().size_hint().exact(),
            closes: request.version() < Version::HTTP_11
                || has_token(headers, CONNECTION.as_str(), "close"),
            expects_continue: has_token(headers, EXPECT.as_str(), "100-continue"),
        }
    }

    fn action(self) -> UnreadBodyAction {
        if self.read_to_end || self.remaining == Some(0) || self.closes {
            UnreadBodyAction::KeepAlive
        } else if self.expects_continue
            || self
                .remaining
                .is_some_and(|left| left >= MAX_POST_HANDLER_READ)
        {
            UnreadBodyAction::Close
        } else {
            UnreadBodyAction::Discard
        }
    }
}

fn has_token(headers: &HeaderMap, header: &str, token: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// Reads a small rest of the body. Returns the value of the response's `Connection` header, if it
/// needs one.
///
/// Cancel safety: the bytes that were read are lost.
pub(crate) async fn drain(request: &mut Request<Incoming>) -> Option<HeaderValue> {
    let whole = match UnreadBody::from_request(request).action() {
        UnreadBodyAction::KeepAlive => true,
        UnreadBodyAction::Discard => discard(request.body_mut()).await,
        UnreadBodyAction::Close => false,
    };
    (!whole).then_some(HeaderValue::from_static("close"))
}

/// Reads the rest of the body. Returns whether it ended within the limit.
async fn discard(body: &mut Incoming) -> bool {
    let mut passed = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return false;
        };
        let length = frame.data_ref().map_or(0, |data| data.len());
        passed += u64::try_from(length).unwrap_or(u64::MAX);
        if passed > MAX_POST_HANDLER_READ {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{MAX_POST_HANDLER_READ, UnreadBody, UnreadBodyAction};

    #[test]
    fn a_small_unread_body_is_discarded_and_a_large_one_closes_the_connection() {
        let chunked = UnreadBody {
            read_to_end: false,
            remaining: None,
            closes: false,
            expects_continue: false,
        };
        let left = |left| UnreadBody {
            remaining: Some(left),
            ..chunked
        };
        assert_eq!(chunked.action(), UnreadBodyAction::Discard);
        assert_eq!(left(1).action(), UnreadBodyAction::Discard);
        assert_eq!(
            left(MAX_POST_HANDLER_READ - 1).action(),
            UnreadBodyAction::Discard
        );
        assert_eq!(
            left(MAX_POST_HANDLER_READ).action(),
            UnreadBodyAction::Close
        );
        assert_eq!(left(0).action(), UnreadBodyAction::KeepAlive);
        for rest in [chunked, left(1), left(MAX_POST_HANDLER_READ)] {
            let read_to_end = UnreadBody {
                read_to_end: true,
                ..rest
            };
            let closes = UnreadBody {
                closes: true,
                expects_continue: true,
                ..rest
            };
            let expects_continue = UnreadBody {
                expects_continue: true,
                ..rest
            };
            assert_eq!(read_to_end.action(), UnreadBodyAction::KeepAlive);
            assert_eq!(closes.action(), UnreadBodyAction::KeepAlive);
            assert_eq!(expects_continue.action(), UnreadBodyAction::Close);
        }
    }
}
