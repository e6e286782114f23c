//! A response body whose error follows what it has handed out.
//!
//! A response that the API server breaks off ends at the client where it ended here
//! ([`written_first`](weir_io::written_first)). One that weir cuts off (its time is up, its client too
//! slow) ends at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::pipeline::response::guarded::GuardedBodyError;
use weir_io::written_first::{FlushSignal, WrittenFirst};

/// The connection that a body is sent on.
#[derive(Clone, Debug)]
pub(crate) enum ResponseConnection {
    /// HTTP/1.1, and its flushes.
    Http1(Arc<FlushSignal>),
    /// HTTP/2.
    Http2,
}

/// A body whose error follows what it has handed out.
pub(crate) struct OrderedErrorBody<B, E> {
    body: B,
    connection: ResponseConnection,
    /// The error, and when it counts.
    failed: Option<Box<(GuardedBodyError<E>, WrittenFirst)>>,
}

impl<B, E> OrderedErrorBody<B, E> {
    /// Wraps `body`, which is sent on `connection`.
    pub(crate) const fn new(body: B, connection: ResponseConnection) -> Self {
        Self {
            body,
            connection,
            failed: None,
        }
    }
}

impl<B, E> Body for OrderedErrorBody<B, E>
where
    B: Body<Data = Bytes, Error = GuardedBodyError<E>> + Unpin,
    E: Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(failed) = &mut self.failed {
            ready!(Pin::new(&mut failed.1).poll(cx));
            return Poll::Ready(self.failed.take().map(|failed| Err(failed.0)));
        }
        let error = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Err(error @ GuardedBodyError::Source(_))) => error,
            polled => return Poll::Ready(polled),
        };
        let (written, marker) = match &self.connection {
            ResponseConnection::Http1(flushes) => {
                (WrittenFirst::on_http1(flushes, cx.waker()), None)
            }
            ResponseConnection::Http2 => {
                let (written, marker) = WrittenFirst::on_http2();
                (written, Some(marker))
            }
        };
        self.failed = Some(Box::new((error, written)));
        marker.map_or(Poll::Pending, |marker| {
            Poll::Ready(Some(Ok(Frame::data(marker))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.failed.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
