//! Response bodies that keep their request in flight until they end.

use crate::serving::handler_scheduler::HandlerSlot;
use crate::serving::request_log::{RequestGuard, ServingClass};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// A response body.
pub(crate) type PlaygroundBody = UnsyncBoxBody<Bytes, Infallible>;

/// A response body that holds its request's guard until it ends or is dropped.
///
/// The guard is released when the last frame is returned, not when it has been sent: a client that
/// has read a response to its end must find the request no longer counted. The body of an ordinary
/// request that is dropped earlier is still encoded to its end, as by a Go handler.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: PlaygroundBody,
    guard: Option<RequestGuard>,
    /// On HTTP/2: the slot of the handler, which runs as long as the request is in flight.
    handler_slot: Option<HandlerSlot>,
    headers_only: bool,
}

impl TrackedBody {
    pub(crate) fn new(body: PlaygroundBody, guard: Option<RequestGuard>) -> Self {
        let guard = guard.filter(|_| !body.is_end_stream());
        Self {
            body,
            guard,
            handler_slot: None,
            headers_only: false,
        }
    }

    /// Adds the slot of the handler that the body is a part of.
    pub(crate) fn with_handler_slot(mut self, handler_slot: Option<HandlerSlot>) -> Self {
        self.handler_slot = handler_slot.filter(|_| !self.is_end_stream());
        self
    }

    /// Puts another body in the place of the one that is to be sent.
    pub(crate) fn map_body(mut self, map: impl FnOnce(PlaygroundBody) -> PlaygroundBody) -> Self {
        self.body = map(std::mem::replace(
            &mut self.body,
            Empty::new().boxed_unsync(),
        ));
        self
    }

    /// Stops counting the request although the body is still to be sent.
    pub(crate) fn release(&mut self) {
        self.guard = None;
    }

    /// Drops the content of the body. On HTTP/2 the library would send it even in response to HEAD,
    /// and clients treat such a stream as broken.
    pub(crate) fn into_headers_only(mut self) -> Self {
        self.guard = None;
        self.headers_only = true;
        self
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let Some(guard) = self
            .guard
            .take_if(|guard| guard.class == ServingClass::InFlight)
        else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let handler_slot = self.handler_slot.take();
        let abandoned = guard.log.track_abandoned();
        let mut body = std::mem::replace(&mut self.body, Empty::new().boxed_unsync());
        runtime.spawn(async move {
            while body.frame().await.is_some() {
                tokio::task::yield_now().await;
            }
            drop((guard, handler_slot, abandoned));
        });
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.headers_only {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.guard = None;
            self.handler_slot = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.headers_only || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::TrackedBody;
    use crate::serving::request_log::{RequestLog, ServingClass};
    use bytes::Bytes;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{BodyExt, Full, StreamBody};
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test]
    async fn a_request_is_released_with_its_last_frame() {
        let log = RequestLog::new(10);
        let guard = log.begin_request(ServingClass::InFlight, None);
        let body = Full::new(Bytes::from_static(b"x")).boxed_unsync();
        let mut body = TrackedBody::new(body, guard);
        assert_eq!(log.counters().in_flight, 1);
        assert!(body.frame().await.is_some());
        assert_eq!(log.counters().in_flight, 0);
    }

    #[tokio::test]
    async fn an_abandoned_list_is_encoded_to_its_end_and_a_watch_is_not() {
        let log = RequestLog::new(10);
        let (encoding, mut encoded) = mpsc::channel(1);
        let begin = |class| {
            let (gate, open) = oneshot::channel::<()>();
            let encoding = encoding.clone();
            let body = StreamBody::new(stream::once(async move {
                let _ = open.await;
                let _ = encoding.try_send(class);
                Ok(Frame::data(Bytes::from_static(b"x")))
            }));
            let guard = log.begin_request(class, None);
            (gate, TrackedBody::new(body.boxed_unsync(), guard))
        };
        let (list_gate, list) = begin(ServingClass::InFlight);
        let (_watch_gate, watch) = begin(ServingClass::LongRunning);
        drop((list, watch));
        let counters = log.counters();
        assert_eq!(
            (
                counters.in_flight,
                counters.long_running,
                counters.abandoned
            ),
            (1, 0, 1)
        );
        drop(list_gate);
        assert_eq!(encoded.recv().await, Some(ServingClass::InFlight));
        while log.counters().in_flight > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.counters().max_abandoned, 1);
    }
}
