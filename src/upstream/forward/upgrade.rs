//! Requests that upgrade the protocol: exec, attach, port-forward, and watches over WebSocket.
//!
//! Each has an HTTP/1.1 connection of its own, which never serves another request, whatever the
//! response. A request that never left, because its connection was closing, is sent again as any
//! other. Bytes are forwarded only after 101, and then any bytes of any protocol. A response
//! other than 101 is forwarded unchanged, so that a client's fall-back from WebSocket to SPDY
//! works.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::{Either, select};
use http::Response;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink, split};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::connection::connector::Http1Purpose;
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::{self, MaxFields};
use crate::upstream::forward::send::{AttemptError, Outgoing, SendContext};
use crate::upstream::headers::auth_mode::AuthMode;
use crate::upstream::headers::request_head::RequestHead;
use crate::upstream::pool::Pool;
use crate::upstream::pool::stream_guard::{Cancellation, StreamGuard};
use crate::upstream::requester::Requester;
use crate::upstream::servers::api_server::ServerRequest;
use weir_base::clock::Clock;

/// A connection for one request that upgrades the protocol.
struct UpgradeConnection {
    sender: http1::SendRequest<RequestBody>,
    guard: UpgradeGuard,
}

impl<M: AuthMode> Pool<M> {
    /// Tries to send a request for an upgrade once, on a connection that is opened for it within
    /// `patience`, if that is a time. `counted` counts the request as in flight on its server. The
    /// caller keeps the guard until the response body, or the other protocol, has ended.
    ///
    /// # Errors
    /// The request got no response; the error says whether it can be sent again. It can if it never
    /// left, because the connection was closing.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn attempt_upgrade(
        &self,
        Outgoing { head, body }: Outgoing<M>,
        counted: ServerRequest,
        patience: Option<Duration>,
        context: &mut SendContext<'_>,
    ) -> Result<Response<ResponseBody>, AttemptError<M>> {
        let opening = self.open_upgrade(context.requester, counted);
        let opened = match patience {
            None => opening.await,
            Some(patience) => timeout(patience, opening)
                .await
                .unwrap_or(Err(ForwardError::ConnectTimeout(patience))),
        };
        let mut connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                let unsent = Box::new(Outgoing { head, body });
                return Err(AttemptError::NoConnection(unsent, error));
            }
        };
        let app_host = head.app_host();
        let request = self.frame_http1(head, body);
        *context.sent_at = Some(Clock.now());
        let mut failed = match connection.sender.try_send_request(request).await {
            Ok(response) => {
                *context.guard = Some(Box::new(connection.guard));
                return Ok(response.map(ResponseBody::from));
            }
            Err(failed) => failed,
        };
        let Some(unsent) = failed.take_message() else {
            return Err(AttemptError::Final(ForwardError::reset(
                failed.into_error(),
            )));
        };
        *context.sent_at = None;
        let (parts, body) = unsent.into_parts();
        let head = RequestHead::from_unsent(parts, app_host);
        let error = failed.into_error().into();
        Err(AttemptError::not_executed(head, body, error))
    }

    /// Opens a connection for an upgrade.
    async fn open_upgrade(
        &self,
        requester: &Requester,
        counted: ServerRequest,
    ) -> Result<UpgradeConnection, ForwardError> {
        let budget = self.connector().connection_budget();
        let slot = budget
            .map(|budget| budget.acquire_long_running(requester))
            .transpose()?;
        let connection = self.connect_http1(requester, Http1Purpose::Tunnel).await?;
        let (sender, driver) = http_settings::http1_builder(MaxFields::Many)
            .handshake(connection.io)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics().count_open(M::NAME);
        tokio::spawn(async move {
            let _ = driver.with_upgrades().await; // hyper reports the error to the request on it
            drop(open);
        });
        let guard = UpgradeGuard(slot, counted);
        Ok(UpgradeConnection { sender, guard })
    }
}

/// The guard of a request on a connection of its own: its long-running slot, and its count on the
/// server.
struct UpgradeGuard(
    #[expect(dead_code, reason = "kept for its drop")] Option<RequestSlot>,
    #[expect(dead_code, reason = "kept for its drop")] ServerRequest,
);

impl StreamGuard for UpgradeGuard {
    fn complete(&mut self) {}

    fn cancel(&mut self, _: Duration) -> Option<Cancellation> {
        None // dropping it closes the connection
    }
}

/// How long what a client still sends is read after its tunnel has broken: closing a connection
/// with unread bytes would discard what has been written to it.
const CLIENT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Forwards bytes both ways until both sides have ended. A side that only stops sending leaves the
/// other direction open. What was received from a side whose connection breaks is forwarded first.
/// `on_written` gets the number of bytes of each write to the client. `progress` shows whether the
/// client reads, and can end the tunnel.
///
/// # Cancel safety
/// Dropping the future closes both connections.
pub(crate) async fn run_tunnel(
    client: OnUpgrade,
    upstream: OnUpgrade,
    progress: &TunnelProgress,
    on_written: impl FnMut(usize) + Send + Unpin,
) {
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else {
        return; // one side closed before the upgrade was complete
    };
    let client = MeteredStream {
        stream: TokioIo::new(client),
        progress,
        on_written,
    };
    tokio::select! {
        () = forward_both_ways(client, TokioIo::new(upstream)) => {}
        () = progress.shutdown.notified() => {}
    }
}

async fn forward_both_ways(
    client: impl AsyncRead + AsyncWrite,
    upstream: impl AsyncRead + AsyncWrite,
) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_upstream, mut to_upstream) = split(upstream);
    let first = {
        let up = pin!(forward(&mut from_client, &mut to_upstream));
        let down = pin!(forward(&mut from_upstream, &mut to_client));
        match select(up, down).await {
            // To a side that has broken nothing can be sent any more.
            Either::Left((SourceEnd::Broken, _)) => return,
            Either::Right((SourceEnd::Broken, _)) => SourceEnd::Broken,
            Either::Left((SourceEnd::Finished, down)) => down.await,
            Either::Right((SourceEnd::Finished, up)) => {
                up.await;
                SourceEnd::Finished
            }
        }
    };
    if first == SourceEnd::Broken {
        let rest = async { copy(&mut from_client, &mut sink()).await };
        let _ = timeout(CLIENT_DRAIN_TIMEOUT, rest).await;
    }
}

/// How one direction of a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceEnd {
    /// The source has ended, or the target takes no more.
    Finished,
    /// The connection of the source is broken.
    Broken,
}

/// Forwards what `source` sends until its end, and then ends `target`.
async fn forward(
    source: &mut (impl AsyncRead + Unpin),
    target: &mut (impl AsyncWrite + Unpin),
) -> SourceEnd {
    let mut source = EndOnError {
        source,
        end: SourceEnd::Finished,
    };
    // An error is the target's, which takes no more. What it sends is forwarded to its end.
    let _ = copy(&mut source, target).await;
    let _ = target.shutdown().await;
    source.end
}

/// A stream whose error is its end: what was read before is still written.
struct EndOnError<R> {
    source: R,
    end: SourceEnd,
}

impl<R: AsyncRead + Unpin> AsyncRead for EndOnError<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if ready!(Pin::new(&mut self.source).poll_read(cx, buffer)).is_err() {
            self.end = SourceEnd::Broken;
        }
        Poll::Ready(Ok(()))
    }
}

/// The progress of a tunnel. A tunnel with nothing to send may be silent for any time; a client
/// that does not read what is sent to it may not.
#[derive(Debug, Default)]
pub(crate) struct TunnelProgress {
    /// Both are relaxed: they order nothing else.
    bytes: AtomicU64,
    write_blocked: AtomicBool,
    shutdown: Notify,
}

impl TunnelProgress {
    /// The bytes that were written to the client.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a write to the client is blocked.
    #[must_use]
    pub(crate) fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Ordering::Relaxed)
    }

    /// Ends the tunnel.
    pub(crate) fn shutdown(&self) {
        self.shutdown.notify_one();
    }
}

/// A stream that counts what is written to it.
struct MeteredStream<'a, S, F> {
    stream: S,
    progress: &'a TunnelProgress,
    on_written: F,
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for MeteredStream<'_, S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: FnMut(usize) + Unpin> AsyncWrite for MeteredStream<'_, S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.progress
            .write_blocked
            .store(polled.is_pending(), Ordering::Relaxed);
        let written = ready!(polled)?;
        let bytes = u64::try_from(written).unwrap_or_default();
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.on_written)(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
