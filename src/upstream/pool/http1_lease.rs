//! The use of an HTTP/1.1 connection to the upstream: one request at a time, spoken by hyper.
//!
//! # Cancel safety
//! Dropping an [`Http1Lease`] before its exchange has come to its end closes the connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Duration;

use http::Request;
use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::forward::CancelOutcome;
use crate::upstream::headers::AuthMode;
use crate::upstream::pool::CANCEL_GRACE_PERIOD;
use crate::upstream::pool::Pool;

/// How long the rest of an upload may take that goes on after its answer has ended; then it costs the connection.
const UPLOAD_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The sole use of an HTTP/1.1 connection. Only after [`Http1Lease::complete`] does it serve another request.
pub(in crate::upstream) struct Http1Lease<W: AuthMode> {
    sender: Option<http1::SendRequest<RequestBody>>,
    generation: u64,
    pool: Arc<Pool<W>>,
    /// What its request takes of the places for its kind.
    pub(in crate::upstream) slot: Option<RequestSlot>,
    /// Its request, until the answer begins.
    pending: Option<PendingHttp1>,
}

/// A request on an HTTP/1.1 connection whose answer has not begun. Dropping it closes the connection.
struct PendingHttp1 {
    /// Never locked: it is for the future, which nothing but its owner looks at, to be shared at all.
    head: Mutex<Http1ResponseFuture>,
    /// Whether it may come to its end though nothing waits for it any more.
    may_finish: bool,
}

type Http1ResponseFuture = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + Send>,
>;

impl<W: AuthMode> Http1Lease<W> {
    /// Of a connection of this generation.
    pub(in crate::upstream) const fn new(
        sender: http1::SendRequest<RequestBody>,
        generation: u64,
        pool: Arc<Pool<W>>,
    ) -> Self {
        Self {
            sender: Some(sender),
            generation,
            pool,
            slot: None,
            pending: None,
        }
    }

    /// Sends the request; whether it `may_finish` if it is given up.
    ///
    /// # Errors
    /// There is no connection any more: here it is again.
    pub(in crate::upstream) fn send_request(
        &mut self,
        request: Request<RequestBody>,
        may_finish: bool,
    ) -> Result<(), Box<Request<RequestBody>>> {
        let Some(sender) = self.sender.as_mut() else {
            return Err(Box::new(request));
        };
        let head: Http1ResponseFuture = Box::pin(sender.try_send_request(request));
        self.pending = Some(PendingHttp1 {
            head: Mutex::new(head),
            may_finish,
        });
        Ok(())
    }

    /// The head of the answer.
    pub(in crate::upstream) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, TrySendError<Request<RequestBody>>>> {
        let Some(pending) = &mut self.pending else {
            return Poll::Pending;
        };
        let head = pending.head.get_mut();
        let head = head.unwrap_or_else(PoisonError::into_inner).as_mut();
        let head = ready!(head.poll(cx));
        self.pending = None;
        Poll::Ready(head.map(|response| response.map(ResponseBody::from)))
    }

    /// The exchange has come to its end: the connection may serve another.
    pub(in crate::upstream) fn complete(&mut self) {
        self.slot = None;
        if let Some(sender) = self.sender.take() {
            return_connection(&self.pool, sender, self.generation);
        }
    }

    /// Gives its request up: lets it finish if it may and that is soon, so that the connection serves another. A client that asks and
    /// goes away, again and again, would otherwise cost the API server a TLS handshake each time.
    pub(in crate::upstream) fn cancel(
        &mut self,
    ) -> Option<impl Future<Output = CancelOutcome> + Send + use<W>> {
        let PendingHttp1 { head, may_finish } = self.pending.take()?;
        let sender = self.sender.take().filter(|_| may_finish)?;
        let (pool, generation) = (Arc::clone(&self.pool), self.generation);
        let head = head.into_inner().unwrap_or_else(PoisonError::into_inner);
        let finished = async move {
            match head.await {
                Ok(response) => ResponseBody::from(response.into_body()).drain().await,
                Err(_) => true, // the connection has ended
            }
        };
        Some(async move {
            if let Ok(true) = timeout(CANCEL_GRACE_PERIOD, finished).await {
                return_connection(&pool, sender, generation);
                CancelOutcome::Finished
            } else {
                CancelOutcome::Reset
            }
        })
    }
}

/// Takes back a connection whose exchange has come to its end, as soon as it is ready for another.
fn return_connection<W: AuthMode>(
    pool: &Arc<Pool<W>>,
    mut sender: http1::SendRequest<RequestBody>,
    generation: u64,
) {
    if sender.is_ready() {
        pool.return_idle(sender, generation);
    } else if !sender.is_closed() {
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            if let Ok(Ok(())) = timeout(UPLOAD_DRAIN_TIMEOUT, sender.ready()).await {
                pool.return_idle(sender, generation);
            }
        });
    }
}
