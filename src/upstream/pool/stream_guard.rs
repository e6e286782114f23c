//! What ends with a response body: the use of a connection or of a stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::client::conn::TrySendError;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;

/// Held until the response body has ended: the use of a connection or of a stream.
pub(crate) trait StreamGuard: Send + Sync {
    /// Records that the body has ended, and that the connection can serve another request.
    fn complete(&mut self);

    /// Cancels the request before its body has ended; what was read of the response has been
    /// dropped. It may finish within `grace`. The returned future ends when the API server is known
    /// to be done with the request, or to have seen the cancellation, or when the connection has been
    /// closed. Keep the guard until then. `None` if that cannot be known.
    fn cancel(&mut self, grace: Duration) -> Option<Cancellation>;

    /// Polls for the response head, if the guard holds the request.
    fn poll_head(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, ResponseHeadError>> {
        Poll::Pending
    }
}

/// Why there is no response head.
pub(crate) enum ResponseHeadError {
    /// On an HTTP/1.1 connection; with the request, if it was not sent.
    Http1(Box<TrySendError<Request<RequestBody>>>),
    /// On an HTTP/2 connection.
    Http2(h2::Error),
}

/// Ends when the API server is known to be done with a cancelled request, or when the connection
/// has ended.
pub(crate) type Cancellation = Pin<Box<dyn Future<Output = CancelOutcome> + Send>>;

/// How a cancelled request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelOutcome {
    /// The API server answered it.
    Finished,
    /// Its stream was reset. The server may still be executing it.
    Reset,
}

/// How long a cancelled request may continue before its stream is reset, or its connection closed.
/// Nearly all requests are answered within it, and a request that is not reset costs the API server
/// nothing more: Go's server closes a connection whose streams are reset faster than their handlers
/// end. A request that takes longer is a list that is better ended.
pub(crate) const CANCEL_GRACE_PERIOD: Duration = Duration::from_secs(1);
