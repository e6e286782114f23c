//! Sends one request to the upstream and returns the head of its response.
//!
//! A request is returned for another attempt only if the upstream cannot have executed it. Either it
//! never left (the connection was closing), or the upstream said so (`REFUSED_STREAM`, or a GOAWAY
//! that names an earlier stream) and its body is still in memory. [`ServerPools`] tries again. So it
//! does with a read without a body, if an idle HTTP/1.1 connection ended without a byte of a
//! response: the API server closed it as the request was sent. Go's client does the same
//! (`net/http`, `persistConn.shouldRetryRequest`). And a read is sent again, where more fields fit,
//! if its response has more of them than usual.
//!
//! [`ServerPools`]: crate::upstream::forward::server_pools::ServerPools
//!
//! # Cancel safety
//! Dropping a future here resets the stream or closes the connection. The upstream sees that its
//! client is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::poll_fn;
use http::header::{CONNECTION, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response};
use http_body::Body;
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::connection::http2;
use crate::upstream::headers::auth_mode::AuthMode;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::http1::http1_lease::Http1Lease;
use crate::upstream::pool::http2_lease::Http2Lease;
use crate::upstream::pool::lease::Lease;
use crate::upstream::pool::stream_guard::{ResponseHeadError, StreamGuard};
use crate::upstream::requester::Requester;
use crate::upstream::servers::api_server::ServerRequest;
use weir_base::clock::Clock;

/// The context of one request.
pub(crate) struct SendContext<'a> {
    /// The user and the network that its slot counts for.
    pub(crate) requester: &'a Requester,
    /// Set as soon as a connection or a stream is in use.
    pub(crate) guard: &'a mut Option<Box<dyn StreamGuard>>,
    /// When the request was handed to a connection. From then on the API server may be executing
    /// it.
    pub(crate) sent_at: &'a mut Option<Instant>,
}

/// A client's request, or one of weir's own.
pub(crate) struct Outgoing<M> {
    pub(crate) head: RequestHead<M>,
    pub(crate) body: RequestBody,
}

/// Why an attempt got no response.
pub(crate) enum AttemptError<M> {
    /// There is no connection for it. Returns the request.
    NoConnection(Box<Outgoing<M>>, ForwardError),
    /// The connection was closing, and is not chosen any more. Returns the request.
    ConnectionClosing(Box<Outgoing<M>>),
    /// The upstream cannot have executed the request. Returns it.
    NotExecuted(Box<Outgoing<M>>, ForwardError),
    /// The response to a read has more fields than its connection takes. Returns the request.
    ManyFields(Box<Outgoing<M>>, ForwardError),
    Final(ForwardError),
}

impl<M: AuthMode> AttemptError<M> {
    pub(super) fn not_executed(
        head: RequestHead<M>,
        body: RequestBody,
        error: ForwardError,
    ) -> Self {
        Self::NotExecuted(Box::new(Outgoing { head, body }), error)
    }

    /// The error of a request that is not sent again.
    pub(crate) fn into_error(self) -> ForwardError {
        match self {
            Self::ConnectionClosing(_) => ForwardError::Closed,
            Self::NoConnection(_, error)
            | Self::NotExecuted(_, error)
            | Self::ManyFields(_, error)
            | Self::Final(error) => error,
        }
    }
}

/// How an attempt is made.
pub(crate) struct SendAttempt {
    pub(crate) class: ConnectionClass,
    /// The most fields in the head of a response to a read. Other requests take many, since they are
    /// not sent again.
    pub(crate) max_fields: MaxFields,
    /// Counts the request as in flight on its server.
    pub(crate) counted: Option<ServerRequest>,
    /// Longest wait for a connection, where another server can be tried.
    pub(crate) patience: Option<Duration>,
}

impl<M: AuthMode> Pool<M> {
    /// Tries to send the request once. The caller gets the guard in `context` as soon as a
    /// connection is in use, and keeps it until the response body has ended. If the request is
    /// cancelled, the caller keeps it as long as [`StreamGuard::cancel`] says.
    ///
    /// # Errors
    /// The request got no response; the error says whether it can be sent again.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        Outgoing { head, body }: Outgoing<M>,
        SendAttempt {
            class,
            max_fields,
            counted,
            patience,
        }: SendAttempt,
        context: &mut SendContext<'_>,
    ) -> Result<Response<ResponseBody>, AttemptError<M>> {
        let is_read = is_safe(head.method()) && body.is_end_stream();
        let may_be_shared = matches!(
            class,
            ConnectionClass::Shared | ConnectionClass::SharedWatch
        );
        let max_fields = if is_read && may_be_shared {
            max_fields
        } else {
            MaxFields::Many
        };
        let lease = self.lease(class, max_fields, context.requester);
        let lease = match patience {
            None => lease.await,
            Some(patience) => timeout(patience, lease)
                .await
                .unwrap_or(Err(ForwardError::StreamTimeout(patience))),
        };
        let mut lease = match lease {
            Ok(lease) => lease,
            Err(error) => {
                let unsent = Box::new(Outgoing { head, body });
                return Err(if self.is_replaced() {
                    AttemptError::ConnectionClosing(unsent)
                } else {
                    AttemptError::NoConnection(unsent, error)
                });
            }
        };
        lease.count_on_server(counted);
        *context.sent_at = Some(Clock.now());
        let guard = &mut *context.guard;
        let result = match lease {
            Lease::Http1(lease) => self.exchange_http1(lease, head, body, class, guard).await,
            Lease::Http2(lease) => self.exchange_http2(lease, head, body, guard).await,
        };
        if let Err(
            AttemptError::ConnectionClosing(_)
            | AttemptError::NotExecuted(..)
            | AttemptError::ManyFields(..),
        ) = &result
        {
            *context.sent_at = None; // it was not executed, or changes nothing
        }
        result
    }

    async fn exchange_http1(
        &self,
        mut lease: Http1Lease,
        head: RequestHead<M>,
        body: RequestBody,
        class: ConnectionClass,
        guard: &mut Option<Box<dyn StreamGuard>>,
    ) -> Result<Response<ResponseBody>, AttemptError<M>> {
        let may_finish = body.is_fully_received() && !class.is_long_running();
        let (is_reused, max_fields) = (lease.is_reused(), lease.max_fields());
        let is_read = is_safe(head.method()) && body.is_end_stream();
        let may_repeat = is_read && (is_reused || max_fields == MaxFields::Usual);
        let spare = may_repeat.then(|| head.duplicate());
        let app_host = head.app_host();
        let request = self.frame_http1(head, body);
        if let Err(request) = lease.send_request(request, may_finish) {
            let (parts, body) = request.into_parts();
            let head = RequestHead::from_unsent(parts, app_host);
            return Err(AttemptError::not_executed(head, body, ForwardError::Closed));
        }
        let leased = guard.insert(Box::new(Lease::Http1(lease)));
        let failed = match poll_fn(|cx| leased.poll_head(cx)).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        *guard = None;
        let mut refused = match failed {
            ResponseHeadError::Http1(refused) => refused,
            ResponseHeadError::Http2(error) => {
                return Err(AttemptError::Final(ForwardError::reset(error)));
            }
        };
        match refused.take_message() {
            Some(request) => {
                let (parts, body) = request.into_parts();
                Err(AttemptError::not_executed(
                    RequestHead::from_unsent(parts, app_host),
                    body,
                    refused.into_error().into(),
                ))
            }
            None => {
                let error = refused.into_error();
                let closed = is_reused && (error.is_incomplete_message() || is_reset(&error));
                let many_fields = max_fields == MaxFields::Usual && error.is_parse_too_large();
                let body = RequestBody::empty();
                Err(match spare {
                    Some(head) if closed => AttemptError::not_executed(head, body, error.into()),
                    Some(head) if many_fields => {
                        AttemptError::ManyFields(Box::new(Outgoing { head, body }), error.into())
                    }
                    _ => AttemptError::Final(error.into()),
                })
            }
        }
    }

    async fn exchange_http2(
        &self,
        mut lease: Http2Lease,
        head: RequestHead<M>,
        body: RequestBody,
        guard: &mut Option<Box<dyn StreamGuard>>,
    ) -> Result<Response<ResponseBody>, AttemptError<M>> {
        // A refused stream can be opened again if its body is in memory; that takes a copy.
        let spare = body.duplicate().map(|body| (head.duplicate(), body));
        let app_host = head.app_host();
        let request = head.into_http2(body, self.connector().authority());
        let connection = lease.connection();
        let sent = match http2::send_request(&connection, request) {
            Ok(pending) => {
                lease.pending = Some(pending);
                let leased = guard.insert(Box::new(Lease::Http2(lease)));
                match poll_fn(|cx| leased.poll_head(cx)).await {
                    Ok(response) => Ok(response),
                    Err(ResponseHeadError::Http2(error)) => Err(http2::Http2SendError::Sent(error)),
                    Err(ResponseHeadError::Http1(error)) => {
                        return Err(AttemptError::Final(error.into_error().into()));
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
                *guard = None;
                let (parts, body) = request.into_parts();
                let head = RequestHead::from_unsent(parts, app_host);
                Err(AttemptError::ConnectionClosing(Box::new(Outgoing {
                    head,
                    body,
                })))
            }
            http2::Http2SendError::Sent(error) if never_executed(&error) => {
                *guard = None;
                let refused = ForwardError::refused(error);
                Err(match spare {
                    Some((head, body)) => AttemptError::not_executed(head, body, refused),
                    None => AttemptError::Final(refused), // a part of its body has been sent
                })
            }
            // The stream may have been reset by weir: the guard stays with the caller.
            http2::Http2SendError::Sent(error) => {
                Err(AttemptError::Final(ForwardError::reset(error)))
            }
        }
    }

    /// The request for an HTTP/1.1 connection. A body of unknown length is sent in chunks whatever
    /// the method: hyper takes a GET without a length for one without a body.
    ///
    /// A body that has not been received in full costs the connection. Go's server waits for the
    /// rest of a small body before it sends a response, though the response does not need it
    /// (`net/http`, `cw.writeHeader`), unless the connection is to be closed. A client that does
    /// not end its body would delay the response, and what waits for it, for as long.
    pub(super) fn frame_http1(
        &self,
        head: RequestHead<M>,
        body: RequestBody,
    ) -> Request<RequestBody> {
        let chunked = !body.is_end_stream() && body.size_hint().exact().is_none();
        let unfinished = !body.is_fully_received();
        let mut request = head.into_http1(body, self.connector().host());
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
}

/// Whether a request with this method changes nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// Whether the peer closed the connection.
fn is_reset(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|why| {
        matches!(
            why.kind(),
            std::io::ErrorKind::ConnectionReset
                | std::io::ErrorKind::BrokenPipe
                | std::io::ErrorKind::UnexpectedEof
        )
    })
}

/// Whether the peer says that it has not processed this stream.
fn never_executed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // h2 reports a GOAWAY for a stream beyond the last one processed, whatever its reason
    // (ENHANCE_YOUR_CALM, for example).
    let gone_away = error.is_go_away() && error.is_remote();
    refused || gone_away
}
