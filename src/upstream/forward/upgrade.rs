//! Requests that change the protocol: exec, attach, port-forward, and watches over WebSocket.
//!
//! Each has an HTTP/1.1 connection of its own, which never serves another request, whatever the answer. Only after 101
//! are bytes passed, and then any bytes, of whatever protocol; an answer other than 101 is an ordinary answer, passed on
//! unchanged, so that a client's fall-back from WebSocket to SPDY works.

use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use http::HeaderValue;
use http::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::io::copy_bidirectional;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::upstream::ForwardError;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connection_budget::RequestSlot;
use crate::upstream::connection::http_settings;
use crate::upstream::forward::Cancellation;
use crate::upstream::forward::SendContext;
use crate::upstream::forward::StreamGuard;
use crate::upstream::headers::AuthMode;
use crate::upstream::headers::RequestHead;
use crate::upstream::pool::Pool;

impl<W: AuthMode> Pool<W> {
    /// Sends a request that asks for `protocol`, on a connection of its own; its `turn` must be kept until the answer's body, or the
    /// other protocol, has ended.
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn send_upgrade(
        &self,
        mut head: RequestHead<W>,
        body: RequestBody,
        protocol: HeaderValue,
        SendContext {
            requester,
            guard: turn,
            sent_at: sent,
        }: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let room = self.connector().connection_budget();
        let share = room
            .map(|room| room.acquire_long_running(requester))
            .transpose()?;
        let connection = self.connect_http1().await?;
        let (mut sender, driver) = http_settings::http1_builder()
            .handshake(connection)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics().count_open(W::NAME);
        tokio::spawn(async move {
            let _ = driver.with_upgrades().await; // whoever waits for an answer on it is told by hyper
            drop(open);
        });
        self.append_cdn_loop(&mut head);
        let request = self.frame_http1(head.with_upgrade(protocol), body);
        *sent = Some(Clock.now());
        let response = sender.send_request(request).await;
        let response = response.map_err(ForwardError::reset)?;
        *turn = Some(Box::new(UpgradeGuard(share)));
        Ok(response.map(ResponseBody::from))
    }
}

/// The turn of a request whose connection serves no other: its place among those that last.
struct UpgradeGuard(#[expect(dead_code, reason = "kept for its drop")] Option<RequestSlot>);

impl StreamGuard for UpgradeGuard {
    fn complete(&mut self) {}

    fn cancel(&mut self) -> Option<Cancellation> {
        None // its connection is closed
    }
}

/// Passes bytes both ways until both sides have ended; a side that only stops sending leaves the other open. `passed` is
/// told how many bytes have gone to the client, each time; `progress`, whether the client takes them, and may end the tunnel.
///
/// # Cancel safety
/// Dropping the future closes both connections.
pub async fn run_tunnel(
    client: OnUpgrade,
    upstream: OnUpgrade,
    progress: &TunnelProgress,
    passed: impl FnMut(usize) + Send + Unpin,
) {
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else {
        return; // one of them went away before the change of protocol was complete
    };
    let mut client = MeteredStream {
        stream: TokioIo::new(client),
        progress,
        on_written: passed,
    };
    let mut upstream = TokioIo::new(upstream);
    // An error is a connection that broke; both are closed by the drop, which is all that can be said to either.
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut upstream) => {}
        () = progress.shutdown.notified() => {}
    }
}

/// How a tunnel goes on. A tunnel on which nothing is to be sent may be silent for as long as it likes; a client that does not take what
/// is sent to it may not.
#[derive(Debug, Default)]
pub struct TunnelProgress {
    /// Relaxed, both: they stand for nothing but themselves.
    bytes: AtomicU64,
    write_blocked: AtomicBool,
    shutdown: Notify,
}

impl TunnelProgress {
    /// The bytes that the client has taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether there are some that it does not take.
    #[must_use]
    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Ordering::Relaxed)
    }

    /// Ends the tunnel.
    pub fn shutdown(&self) {
        self.shutdown.notify_one();
    }
}

/// A stream that tells what is written to it.
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
