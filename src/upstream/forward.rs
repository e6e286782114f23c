//! Sends one request to the upstream and hands back the head of its answer.
//!
//! A request is sent again only where the upstream cannot have executed it: it never left (the connection was closing),
//! or the upstream said so (`REFUSED_STREAM`, or a GOAWAY that names an earlier stream) and no byte of a body was sent.
//!
//! # Cancel safety
//! Dropping a future here resets the stream or closes the connection; the upstream sees its client gone.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::header::TRANSFER_ENCODING;
use http_body::Body;

use crate::upstream::ForwardError;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::headers::Outbound;
use crate::upstream::headers::Way;
use crate::upstream::http2;
use crate::upstream::lane::Place;
use crate::upstream::pool::Lease;
use crate::upstream::pool::Own1;
use crate::upstream::pool::Own2;
use crate::upstream::pool::Pool;

/// Tries for one request; a second failure of this kind in a row happens when an upstream is being replaced, a third
/// one hardly does.
const TRIES: usize = 3;

/// Connections in a row that are closing when a request comes to them: all that a pool has, when an upstream goes away; more
/// than that is one that says GOAWAY to every connection.
const MOST_LEAVING: usize = 64;

/// What ends with the answer's body: the connection's turn.
pub trait Turn: Send + Sync {
    /// The body came to its end, and the connection can serve another request.
    fn complete(&mut self);
}

impl<W: Way> Turn for Lease<W> {
    fn complete(&mut self) {
        match self {
            Self::Http1(own) => own.complete(),
            Self::Http2(_) => {}
        }
    }
}

enum Failed<W: Way> {
    /// The connection was closing, and is not chosen any more: here it is again.
    Leaving(Box<(Outbound<W>, RequestBody)>),
    /// It cannot have been executed: here it is again.
    Unsent(Box<(Outbound<W>, RequestBody)>, ForwardError),
    For(ForwardError),
}

impl<W: Way> Failed<W> {
    fn unsent(head: Outbound<W>, body: RequestBody, error: ForwardError) -> Self {
        Self::Unsent(Box::new((head, body)), error)
    }
}

impl<W: Way> Pool<W> {
    /// Sends the request; the turn must be kept until the answer's body has ended.
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    pub async fn send(
        self: &Arc<Self>,
        mut head: Outbound<W>,
        mut body: RequestBody,
        place: Place,
    ) -> Result<(Response<AnswerBody>, Box<dyn Turn>), ForwardError> {
        self.budget().earn();
        let (mut tries, mut left) = (1, 0);
        loop {
            let lease = self.lease(place).await?;
            let failed = match self.exchange(lease, head, body).await {
                Ok((response, lease)) => return Ok((response, Box::new(lease))),
                Err(failed) => failed,
            };
            match failed {
                // No try: it was not even begun.
                Failed::Leaving(again) if left < MOST_LEAVING => {
                    self.metrics().retries.inc();
                    left += 1;
                    (head, body) = *again;
                }
                Failed::Leaving(_) => return Err(ForwardError::Closed),
                Failed::Unsent(again, _) if tries < TRIES && self.budget().spend() => {
                    self.metrics().retries.inc();
                    tries += 1;
                    (head, body) = *again;
                }
                Failed::Unsent(_, error) | Failed::For(error) => return Err(error),
            }
        }
    }

    async fn exchange(
        &self,
        lease: Lease<W>,
        head: Outbound<W>,
        body: RequestBody,
    ) -> Result<(Response<AnswerBody>, Lease<W>), Failed<W>> {
        match lease {
            Lease::Http1(own) => self.exchange_http1(own, head, body).await,
            Lease::Http2(own) => self.exchange_http2(own, head, body).await,
        }
    }

    async fn exchange_http1(
        &self,
        mut own: Own1<W>,
        head: Outbound<W>,
        body: RequestBody,
    ) -> Result<(Response<AnswerBody>, Lease<W>), Failed<W>> {
        let Some(sender) = own.sender.as_mut() else {
            return Err(Failed::unsent(head, body, ForwardError::Closed));
        };
        let request = self.framed(head, body);
        match sender.try_send_request(request).await {
            Ok(response) => Ok((response.map(AnswerBody::from), Lease::Http1(own))),
            Err(mut refused) => match refused.take_message() {
                Some(request) => {
                    let (parts, body) = request.into_parts();
                    Err(Failed::unsent(
                        Outbound::returned(parts),
                        body,
                        refused.into_error().into(),
                    ))
                }
                None => Err(Failed::For(refused.into_error().into())),
            },
        }
    }

    async fn exchange_http2(
        &self,
        own: Own2<W>,
        head: Outbound<W>,
        body: RequestBody,
    ) -> Result<(Response<AnswerBody>, Lease<W>), Failed<W>> {
        // Without a body a refused stream can be opened again; what it takes is the head.
        let spare = body.is_end_stream().then(|| head.again());
        let request = head.into_http2(body, self.connector().authority());
        match http2::exchange(own.connection(), request).await {
            Ok(response) => Ok((response, Lease::Http2(own))),
            Err(http2::Failed::Unsent(request)) => {
                own.connection().leaving();
                let (parts, body) = request.into_parts();
                Err(Failed::Leaving(Box::new((Outbound::returned(parts), body))))
            }
            Err(http2::Failed::Sent(why)) if never_executed(&why) => {
                let refused = ForwardError::refused(why);
                Err(match spare {
                    Some(head) => Failed::unsent(head, RequestBody::empty(), refused),
                    None => Failed::For(refused), // some of its body is gone
                })
            }
            Err(http2::Failed::Sent(why)) => Err(Failed::For(ForwardError::reset(why))),
        }
    }

    /// The request for an HTTP/1.1 connection. A body of unknown length is sent in chunks whatever the method: left to itself
    /// the library takes a GET without a length for one without a body.
    pub(super) fn framed(&self, head: Outbound<W>, body: RequestBody) -> Request<RequestBody> {
        let chunked = !body.is_end_stream() && body.size_hint().exact().is_none();
        let mut request = head.into_http1(body, &self.host());
        if chunked {
            let chunks = HeaderValue::from_static("chunked");
            request.headers_mut().insert(TRANSFER_ENCODING, chunks);
        }
        request
    }

    fn host(&self) -> HeaderValue {
        // An authority is made of characters that a header's value may have.
        HeaderValue::from_maybe_shared(Bytes::copy_from_slice(
            self.connector().authority().as_str().as_bytes(),
        ))
        .unwrap_or_else(|_| HeaderValue::from_static("upstream"))
    }
}

/// Whether the peer said that it has not begun with this stream.
fn never_executed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // h2 reports a GOAWAY for a stream only if the stream's number is beyond the last one processed.
    let gone_away =
        error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
    refused || gone_away
}
