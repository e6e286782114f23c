//! What Go's HTTP/1.1 server does about the part of a request's body that the handler has not read.
//!
//! Follows `chunkWriter.writeHeader` in net/http: the head of a response waits until a small rest of the body has come, so
//! that the connection can be used again. There is no limit on how long that may take: kube-apiserver sets no read timeout
//! for bodies. On HTTP/2 nothing waits.

use http::HeaderMap;
use http::HeaderValue;
use http::Request;
use http::Version;
use http::header::CONNECTION;
use http::header::EXPECT;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Go's `maxPostHandlerReadBytes`: a rest as long as this is not waited for.
const LONGEST: u64 = 256 * 1024;

/// The `Content-Length` up to which Go's server has not begun to write when the handler returns (`bufferBeforeChunkingSize`):
/// what is longer waits within the handler.
pub(crate) const BUFFERED: u64 = 2048;

/// In a request's extensions: its body was read to the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadToEnd;

/// What is to be done before the response's head is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// Nothing: all was read, or the client wants the connection closed.
    Nothing,
    /// The rest is read and thrown away.
    Discard,
    /// The response goes at once, and closes the connection.
    Close,
}

/// What a request tells about its body, after the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    read_to_end: bool,
    /// Bytes of the `Content-Length` that are left; `None` for a chunked body.
    left: Option<u64>,
    /// `Connection: close`, or HTTP/1.0.
    closes: bool,
    /// `Expect: 100-continue`.
    expects_continue: bool,
}

impl Rest {
    fn of(request: &Request<Incoming>) -> Self {
        let headers = request.headers();
        Self {
            read_to_end: request.extensions().get::<ReadToEnd>().is_some()
                || request.body().is_end_stream(),
            left: request.body().size_hint().exact(),
            closes: request.version() < Version::HTTP_11
                || names(headers, CONNECTION.as_str(), "close"),
            expects_continue: names(headers, EXPECT.as_str(), "100-continue"),
        }
    }

    fn unread(self) -> Unread {
        if self.read_to_end || self.left == Some(0) || self.closes {
            Unread::Nothing
        } else if self.expects_continue || self.left.is_some_and(|left| left >= LONGEST) {
            Unread::Close
        } else {
            Unread::Discard
        }
    }
}

fn names(headers: &HeaderMap, header: &str, token: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// Reads a small rest of the body. What is to be said about the connection then, if anything.
///
/// Cancel safety: what was read is lost.
pub(crate) async fn settle(request: &mut Request<Incoming>) -> Option<HeaderValue> {
    let whole = match Rest::of(request).unread() {
        Unread::Nothing => true,
        Unread::Discard => discard(request.body_mut()).await,
        Unread::Close => false,
    };
    (!whole).then_some(HeaderValue::from_static("close"))
}

/// Whether the end came, after no more than is waited for.
async fn discard(body: &mut Incoming) -> bool {
    let mut passed = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return false;
        };
        let length = frame.data_ref().map_or(0, |data| data.len());
        passed += u64::try_from(length).unwrap_or(u64::MAX);
        if passed > LONGEST {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::LONGEST;
    use super::Rest;
    use super::Unread;

    #[test]
    fn a_small_rest_is_waited_for_and_a_large_one_closes() {
        let chunked = Rest {
            read_to_end: false,
            left: None,
            closes: false,
            expects_continue: false,
        };
        let left = |left| Rest {
            left: Some(left),
            ..chunked
        };
        assert_eq!(chunked.unread(), Unread::Discard);
        assert_eq!(left(1).unread(), Unread::Discard);
        assert_eq!(left(LONGEST - 1).unread(), Unread::Discard);
        assert_eq!(left(LONGEST).unread(), Unread::Close);
        assert_eq!(left(0).unread(), Unread::Nothing);
        for rest in [chunked, left(1), left(LONGEST)] {
            let read_to_end = Rest {
                read_to_end: true,
                ..rest
            };
            let closes = Rest {
                closes: true,
                expects_continue: true,
                ..rest
            };
            let expects_continue = Rest {
                expects_continue: true,
                ..rest
            };
            assert_eq!(read_to_end.unread(), Unread::Nothing);
            assert_eq!(closes.unread(), Unread::Nothing);
            assert_eq!(expects_continue.unread(), Unread::Close);
        }
    }
}
