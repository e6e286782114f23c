//! Sends one request to the upstream and hands back the head of its answer.
//!
//! A request is sent again only where the upstream cannot have executed it: it never left (the connection was closing),
//! or the upstream said so (`REFUSED_STREAM`, or a GOAWAY that names an earlier stream) and no byte of a body was sent.
//!
//! # Cancel safety
//! Dropping a future here resets the stream or closes the connection; the upstream sees its client gone.

pub mod api_server_client;
pub mod upgrade;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::poll_fn;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::header::CONNECTION;
use http::header::TRANSFER_ENCODING;
use http_body::Body;
use hyper::client::conn::TrySendError;

use crate::clock::Clock;
use crate::upstream::ForwardError;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::connection::http2;
use crate::upstream::headers::AuthMode;
use crate::upstream::headers::RequestHead;
use crate::upstream::pool::Http2Lease;
use crate::upstream::pool::Lease;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::http1_lease::Http1Lease;

/// Tries for one request; a second failure of this kind in a row happens when an upstream is being replaced, a third
/// one hardly does.
const MAX_ATTEMPTS: usize = 3;

/// Connections in a row that are closing when a request comes to them: all that a pool has, when an upstream goes away; more
/// than that is one that says GOAWAY to every connection.
const MAX_CLOSING_CONNECTIONS: usize = 64;

/// What ends with the answer's body: the connection's turn.
pub trait StreamGuard: Send + Sync {
    /// The body came to its end, and the connection can serve another request.
    fn complete(&mut self);

    /// The request was given up before that, and what was read of its answer has been dropped. What is returned comes when the API
    /// server is known to be done with it or to have seen its end; the turn is to be kept until then. `None` where that cannot be
    /// known.
    fn cancel(&mut self) -> Option<Cancellation>;

    /// The head of the answer, if this has the request.
    fn poll_head(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, ResponseHeadError>> {
        Poll::Pending
    }
}

/// Why there is no head of an answer.
pub enum ResponseHeadError {
    /// On an HTTP/1.1 connection; with the request, if it was not sent.
    Http1(Box<TrySendError<Request<RequestBody>>>),
    /// On an HTTP/2 connection.
    Http2(h2::Error),
}

/// For whom a request is sent, and where its turn on a connection is kept.
pub struct SendContext<'a> {
    /// Who takes a place with it, where places are shared out.
    pub requester: &'a Requester,
    /// Filled as soon as there is one.
    pub guard: &'a mut Option<Box<dyn StreamGuard>>,
    /// When the request was handed to a connection: from then on the API server may be working on it.
    pub sent_at: &'a mut Option<Instant>,
}

/// Comes when the API server is known to be done with a request that was given up, or its connection has ended.
pub type Cancellation = Pin<Box<dyn Future<Output = CancelOutcome> + Send>>;

/// How a request ended that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It was answered.
    Finished,
    /// Its stream was reset: the server may still be busy with it.
    Reset,
}

impl<W: AuthMode> StreamGuard for Lease<W> {
    fn complete(&mut self) {
        match self {
            Self::Http1(own) => own.complete(),
            Self::Http2(_) => {}
        }
    }

    fn cancel(&mut self) -> Option<Cancellation> {
        match self {
            // Where it is not let finish its connection is closed, of which there is no answer.
            Self::Http1(own) => own.cancel().map(|seen| -> Cancellation { Box::pin(seen) }),
            Self::Http2(own) => Some(Box::pin(own.cancel())),
        }
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, ResponseHeadError>> {
        match self {
            Self::Http1(own) => own
                .poll_head(cx)
                .map_err(|why| ResponseHeadError::Http1(Box::new(why))),
            Self::Http2(own) => {
                let Some(pending) = &mut own.pending else {
                    return Poll::Pending;
                };
                let head = ready!(pending.poll_head(cx));
                own.pending = None;
                Poll::Ready(head.map_err(ResponseHeadError::Http2))
            }
        }
    }
}

enum ExchangeError<W: AuthMode> {
    /// The connection was closing, and is not chosen any more: here it is again.
    ConnectionClosing(Box<(RequestHead<W>, RequestBody)>),
    /// It cannot have been executed: here it is again.
    NotExecuted(Box<(RequestHead<W>, RequestBody)>, ForwardError),
    Final(ForwardError),
}

impl<W: AuthMode> ExchangeError<W> {
    fn not_executed(head: RequestHead<W>, body: RequestBody, error: ForwardError) -> Self {
        Self::NotExecuted(Box::new((head, body)), error)
    }
}

impl<W: AuthMode> Pool<W> {
    /// Sends the request. Its turn on a connection is the caller's from the moment it has one: to be kept until the answer's
    /// body has ended, or, where the request is given up, as long as [`Turn::given_up`] says.
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    ///
    /// # Cancel safety
    /// Dropping the future gives the request up.
    pub async fn send(
        self: &Arc<Self>,
        mut head: RequestHead<W>,
        mut body: RequestBody,
        place: ConnectionClass,
        SendContext {
            requester,
            guard: turn,
            sent_at: sent,
        }: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        self.retry_budget().deposit();
        self.append_cdn_loop(&mut head);
        let (mut tries, mut left) = (1, 0);
        loop {
            let lease = self.lease(place, requester).await?;
            *sent = Some(Clock.now());
            let failed = match lease {
                Lease::Http1(own) => self.exchange_http1(own, head, body, (place, turn)).await,
                Lease::Http2(own) => self.exchange_http2(own, head, body, turn).await,
            };
            let failed = match failed {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            if !matches!(failed, ExchangeError::Final(_)) {
                *sent = None; // it cannot have been executed
            }
            match failed {
                // No try: it was not even begun.
                ExchangeError::ConnectionClosing(again) if left < MAX_CLOSING_CONNECTIONS => {
                    self.metrics().retries.inc();
                    left += 1;
                    (head, body) = *again;
                }
                ExchangeError::ConnectionClosing(_) => return Err(ForwardError::Closed),
                ExchangeError::NotExecuted(again, _)
                    if tries < MAX_ATTEMPTS && self.retry_budget().try_withdraw() =>
                {
                    self.metrics().retries.inc();
                    tries += 1;
                    (head, body) = *again;
                }
                ExchangeError::NotExecuted(_, error) | ExchangeError::Final(error) => {
                    return Err(error);
                }
            }
        }
    }

    async fn exchange_http1(
        &self,
        mut own: Http1Lease<W>,
        head: RequestHead<W>,
        body: RequestBody,
        (place, turn): (ConnectionClass, &mut Option<Box<dyn StreamGuard>>),
    ) -> Result<Response<ResponseBody>, ExchangeError<W>> {
        let may_finish = body.is_fully_received() && !place.is_long_running();
        let request = self.frame_http1(head, body);
        if let Err(request) = own.send_request(request, may_finish) {
            let (parts, body) = request.into_parts();
            let head = RequestHead::from_unsent(parts);
            return Err(ExchangeError::not_executed(
                head,
                body,
                ForwardError::Closed,
            ));
        }
        let leased = turn.insert(Box::new(Lease::Http1(own)));
        let failed = match poll_fn(|cx| leased.poll_head(cx)).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        *turn = None;
        let mut refused = match failed {
            ResponseHeadError::Http1(refused) => refused,
            ResponseHeadError::Http2(why) => {
                return Err(ExchangeError::Final(ForwardError::reset(why)));
            }
        };
        match refused.take_message() {
            Some(request) => {
                let (parts, body) = request.into_parts();
                Err(ExchangeError::not_executed(
                    RequestHead::from_unsent(parts),
                    body,
                    refused.into_error().into(),
                ))
            }
            None => Err(ExchangeError::Final(refused.into_error().into())),
        }
    }

    async fn exchange_http2(
        &self,
        mut own: Http2Lease<W>,
        head: RequestHead<W>,
        body: RequestBody,
        turn: &mut Option<Box<dyn StreamGuard>>,
    ) -> Result<Response<ResponseBody>, ExchangeError<W>> {
        // Without a body a refused stream can be opened again; what it takes is the head.
        let spare = body.is_end_stream().then(|| head.duplicate());
        let request = head.into_http2(body, self.connector().authority());
        let connection = own.connection();
        let sent = match http2::send_request(&connection, request).await {
            Ok(pending) => {
                own.pending = Some(pending);
                let turn = turn.insert(Box::new(Lease::Http2(own)));
                match poll_fn(|cx| turn.poll_head(cx)).await {
                    Ok(response) => Ok(response),
                    Err(ResponseHeadError::Http2(why)) => Err(http2::Http2SendError::Sent(why)),
                    Err(ResponseHeadError::Http1(why)) => {
                        return Err(ExchangeError::Final(why.into_error().into()));
                    }
                }
            }
            Err(failed) => Err(failed),
        };
        let failed = match sent {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        match failed {
            http2::Http2SendError::Unsent(request) => {
                connection.retire();
                *turn = None;
                let (parts, body) = request.into_parts();
                Err(ExchangeError::ConnectionClosing(Box::new((
                    RequestHead::from_unsent(parts),
                    body,
                ))))
            }
            http2::Http2SendError::Sent(why) if never_executed(&why) => {
                *turn = None;
                let refused = ForwardError::refused(why);
                Err(match spare {
                    Some(head) => ExchangeError::not_executed(head, RequestBody::empty(), refused),
                    None => ExchangeError::Final(refused), // some of its body is gone
                })
            }
            // The stream may have been reset from here: its turn stays with the caller.
            http2::Http2SendError::Sent(why) => Err(ExchangeError::Final(ForwardError::reset(why))),
        }
    }

    /// The request for an HTTP/1.1 connection. A body of unknown length is sent in chunks whatever the method: left to itself
    /// the library takes a GET without a length for one without a body.
    ///
    /// A body that is still to come costs the connection. Go's server waits for the rest of a small one before it sends an answer,
    /// though the answer does not need it (`net/http`, `cw.writeHeader`), unless the connection is to be closed: a client that does
    /// not end its body would keep the answer, and what waits for it, for as long.
    pub(super) fn frame_http1(
        &self,
        head: RequestHead<W>,
        body: RequestBody,
    ) -> Request<RequestBody> {
        let chunked = !body.is_end_stream() && body.size_hint().exact().is_none();
        let unfinished = !body.is_fully_received();
        let mut request = head.into_http1(body, &self.host_header());
        if unfinished {
            let close = HeaderValue::from_static("close");
            request.headers_mut().insert(CONNECTION, close);
        }
        if chunked {
            let chunks = HeaderValue::from_static("chunked");
            request.headers_mut().insert(TRANSFER_ENCODING, chunks);
        }
        request
    }

    fn host_header(&self) -> HeaderValue {
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
    // A GOAWAY is reported for a stream that is beyond the last one processed, whatever its reason (ENHANCE_YOUR_CALM, say).
    let gone_away = error.is_go_away() && error.is_remote();
    refused || gone_away
}
