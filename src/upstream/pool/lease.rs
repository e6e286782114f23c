//! The use of a connection for one request, whichever HTTP it speaks.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Response;

use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::pool::http1::http1_lease::Http1Lease;
use crate::upstream::pool::http2_lease::Http2Lease;
use crate::upstream::pool::stream_guard::{Cancellation, ResponseHeadError, StreamGuard};
use crate::upstream::servers::api_server::ServerRequest;

/// Exclusive use of a connection or of a stream for one request. Returned to the pool on drop.
pub(crate) enum Lease {
    Http1(Http1Lease),
    Http2(Http2Lease),
}

impl Lease {
    /// Keeps the count of the request on its server until the lease ends.
    pub(crate) fn count_on_server(&mut self, counted: Option<ServerRequest>) {
        match self {
            Self::Http1(lease) => lease.counted = counted,
            Self::Http2(lease) => lease.counted = counted,
        }
    }
}

impl StreamGuard for Lease {
    fn complete(&mut self) {
        match self {
            Self::Http1(lease) => lease.complete(),
            Self::Http2(_) => {}
        }
    }

    fn cancel(&mut self, grace: Duration) -> Option<Cancellation> {
        match self {
            Self::Http1(lease) => lease
                .cancel(grace)
                .map(|outcome| -> Cancellation { Box::pin(outcome) }),
            Self::Http2(lease) => Some(Box::pin(lease.cancel(grace))),
        }
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, ResponseHeadError>> {
        match self {
            Self::Http1(lease) => lease
                .poll_head(cx)
                .map_err(|error| ResponseHeadError::Http1(Box::new(error))),
            Self::Http2(lease) => {
                let Some(pending) = &mut lease.pending else {
                    return Poll::Pending;
                };
                let head = ready!(pending.poll_head(cx));
                lease.pending = None;
                Poll::Ready(head.map_err(ResponseHeadError::Http2))
            }
        }
    }
}
