//! A client's request body on its way to the upstream.
//!
//! Frames go on as they arrive; nothing is kept. Trailers that could pass for an identity are taken out here, since
//! they come after the headers were cleaned.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use bytes::Bytes;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;
use hyper::body::Incoming;

use crate::upstream::headers::IdentityHeaders;

/// The body of a request that is being forwarded.
#[derive(Debug)]
pub struct RequestBody {
    incoming: Option<Incoming>,
    names: Option<Arc<IdentityHeaders>>,
}

impl RequestBody {
    /// A client's body, its trailers cleaned of what `names` covers.
    #[must_use]
    pub fn new(incoming: Incoming, names: Arc<IdentityHeaders>) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self {
            incoming: Some(incoming),
            names: Some(names),
        }
    }

    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            incoming: None,
            names: None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = self.incoming.as_mut() else {
            return Poll::Ready(None);
        };
        let mut frame = ready!(Pin::new(incoming).poll_frame(cx));
        if let (Some(Ok(frame)), Some(names)) = (&mut frame, &self.names)
            && let Some(trailers) = frame.trailers_mut()
        {
            names.remove_from(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
