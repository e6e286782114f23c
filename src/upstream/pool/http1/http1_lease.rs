//! An HTTP/1.1 connection to the upstream, leased to one request at a time and driven by hyper.
//!
//! # Cancel safety
//! Dropping an [`Http1Lease`] before [`Http1Lease::complete`] closes the connection.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::pool::http1::idle_connections::{Http1Sender, IdleConnections};
use crate::upstream::pool::stream_guard::{CANCEL_GRACE_PERIOD, CancelOutcome};
use crate::upstream::servers::api_server::ServerRequest;
use weir_io::in_place;

/// How long a request body may continue after the response has ended. Then the connection is
/// closed.
const UPLOAD_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Exclusive use of an HTTP/1.1 connection. It serves another request only after
/// [`Http1Lease::complete`].
pub(crate) struct Http1Lease {
    sender: Option<Http1Sender>,
    idle: Arc<IdleConnections>,
    /// The slot of the request.
    pub(crate) slot: Option<RequestSlot>,
    /// Counts the request as in flight on its server.
    pub(crate) counted: Option<ServerRequest>,
    /// The request, until its response begins.
    pending: Option<PendingHttp1>,
    /// Whether the response has begun and may finish although the request was cancelled.
    may_finish_response: bool,
}

/// A request on an HTTP/1.1 connection whose response has not begun. Dropping it closes the
/// connection.
struct PendingHttp1 {
    /// Never locked: the mutex makes the future `Sync`, and only its owner accesses it.
    head: Mutex<Http1ResponseFuture>,
    /// Whether the exchange may finish although the request was cancelled.
    may_finish: bool,
}

type Http1ResponseFuture = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>> + Send>,
>;

impl Http1Lease {
    /// Leases a connection that goes to `idle` afterwards.
    pub(crate) const fn new(sender: Http1Sender, idle: Arc<IdleConnections>) -> Self {
        Self {
            sender: Some(sender),
            idle,
            slot: None,
            counted: None,
            pending: None,
            may_finish_response: false,
        }
    }

    /// Whether the connection was idle before: the server may close it while a request is sent.
    pub(crate) fn is_reused(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.was_idle)
    }

    /// The most fields in the head of the response.
    pub(crate) fn max_fields(&self) -> MaxFields {
        self.sender
            .as_ref()
            .map_or(MaxFields::Many, |sender| sender.max_fields)
    }

    /// Sends the request. `may_finish` says whether the exchange may finish after a cancellation.
    ///
    /// # Errors
    /// The connection is closed. Returns the request.
    pub(crate) fn send_request(
        &mut self,
        mut request: Request<RequestBody>,
        may_finish: bool,
    ) -> Result<(), Box<Request<RequestBody>>> {
        let Some(sender) = self.sender.as_mut() else {
            return Err(Box::new(request));
        };
        request.body_mut().fail_after_flush(&sender.flushes);
        sender.reads_ahead.enable(); // it does not follow bytes that are there already
        let head: Http1ResponseFuture =
            in_place::pinned(|| sender.requests.try_send_request(request));
        self.pending = Some(PendingHttp1 {
            head: Mutex::new(head),
            may_finish,
        });
        Ok(())
    }

    /// Polls for the response head.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, TrySendError<Request<RequestBody>>>> {
        let Some(pending) = &mut self.pending else {
            return Poll::Pending;
        };
        let head = pending.head.get_mut();
        let head = head.as_mut();
        let head = ready!(head.poll(cx));
        self.may_finish_response = head.is_ok() && pending.may_finish;
        self.pending = None;
        let drain_timeout = self.may_finish_response.then_some(CANCEL_GRACE_PERIOD);
        let body = |incoming| ResponseBody::from_http1(incoming, drain_timeout);
        Poll::Ready(head.map(|response| response.map(body)))
    }

    /// Records that the exchange has ended: the connection may serve another request.
    pub(crate) fn complete(&mut self) {
        self.slot = None;
        self.counted = None;
        if let Some(sender) = self.sender.take() {
            return_connection(&self.idle, sender);
        }
    }

    /// Cancels the request. The exchange finishes if it may, within `grace`, so that the connection
    /// can serve another. Without this, a client that sends requests and goes away would cost the API
    /// server a TLS handshake each time. Otherwise the future ends once the connection is closed.
    pub(crate) fn cancel(
        &mut self,
        grace: Duration,
    ) -> Option<impl Future<Output = CancelOutcome> + Send + use<>> {
        let mut sender = self.sender.take()?;
        let pending = self.pending.take();
        let may_finish = pending
            .as_ref()
            .map_or(self.may_finish_response, |pending| pending.may_finish);
        let idle = Arc::clone(&self.idle);
        let head = pending.map(|pending| pending.head.into_inner());
        Some(async move {
            let finished = async {
                match head {
                    _ if !may_finish => false,
                    Some(head) => match head.await {
                        Ok(response) => ResponseBody::from(response.into_body()).drain().await,
                        Err(_) => true, // the connection has ended
                    },
                    // The body that was dropped reads its rest itself.
                    None => sender.requests.ready().await.is_ok(),
                }
            };
            if let Ok(true) = timeout(grace, finished).await {
                return_connection(&idle, sender);
                CancelOutcome::Finished
            } else {
                sender.close().await;
                CancelOutcome::Reset
            }
        })
    }
}

/// Returns a connection to the idle ones after an exchange, as soon as it is ready for another.
fn return_connection(idle: &Arc<IdleConnections>, mut sender: Http1Sender) {
    sender.was_idle = true;
    if sender.requests.is_ready() {
        idle.put(sender);
    } else if !sender.requests.is_closed() {
        let idle = Arc::clone(idle);
        tokio::spawn(async move {
            if let Ok(Ok(())) = timeout(UPLOAD_DRAIN_TIMEOUT, sender.requests.ready()).await {
                idle.put(sender);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;

    use hyper_util::rt::TokioIo;
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;
    use crate::upstream::connection::http_settings;
    use weir_base::clock::Clock;
    use weir_io::tcp::{ReadsAheadOfDriver, TcpIo};

    #[tokio::test]
    async fn a_request_does_not_follow_a_response_that_is_there_already() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let mut far = listener.accept().unwrap().0;
        let reads_ahead = ReadsAheadOfDriver::default();
        let io = TcpIo::new(tcp.unwrap(), ()).read_ahead_of_driver(&reads_ahead);
        let (requests, driver) = http_settings::http1_builder(MaxFields::Usual)
            .handshake(TokioIo::new(io))
            .await
            .unwrap();
        tokio::spawn(driver);
        let ended = oneshot::channel().1;
        let mut sender = Http1Sender::new(
            requests,
            MaxFields::Usual,
            Arc::default(),
            reads_ahead,
            ended,
            0,
            Clock.now(),
        );
        sender.requests.ready().await.unwrap();
        // The runtime reports nothing until all tasks wait.
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
        let mut lease = Http1Lease::new(sender, Arc::default());
        let request = Request::new(RequestBody::empty());
        assert!(lease.send_request(request, true).is_ok());
        let failed = poll_fn(|cx| lease.poll_head(cx)).await;
        assert!(failed.is_err_and(|failed| failed.message().is_some()));
    }
}
