//! Requests that change the protocol: exec, attach, port-forward, and watches over WebSocket.
//!
//! Each has an HTTP/1.1 connection of its own, which never serves another request, whatever the answer. Only after 101
//! are bytes passed, and then any bytes, of whatever protocol; an answer other than 101 is an ordinary answer, passed on
//! unchanged, so that a client's fall-back from WebSocket to SPDY works.

use std::io;
use std::pin::Pin;
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

use crate::upstream::ForwardError;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::forward::Turn;
use crate::upstream::headers::Outbound;
use crate::upstream::headers::Way;
use crate::upstream::pool::Pool;
use crate::upstream::room::Taken;
use crate::upstream::settings;

impl<W: Way> Pool<W> {
    /// Sends a request that asks for `protocol`, on a connection of its own; the turn must be kept until the answer's body, or the
    /// other protocol, has ended.
    ///
    /// # Errors
    /// What went wrong, and whose fault it is.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn send_upgrade(
        &self,
        head: Outbound<W>,
        body: RequestBody,
        protocol: HeaderValue,
    ) -> Result<(Response<AnswerBody>, Box<dyn Turn>), ForwardError> {
        let lasting = self.connector().last()?;
        let connection = self.connect_http1().await?;
        let (mut sender, driver) = settings::client_http1()
            .handshake(connection)
            .await
            .map_err(ForwardError::reset)?;
        let open = self.metrics().open(W::NAME);
        tokio::spawn(async move {
            let _ = driver.with_upgrades().await; // whoever waits for an answer on it is told by hyper
            drop(open);
        });
        let request = self.framed(head.switching_to(protocol), body);
        sender
            .send_request(request)
            .await
            .map(|response| -> (_, Box<dyn Turn>) {
                (response.map(AnswerBody::from), Box::new(Alone(lasting)))
            })
            .map_err(ForwardError::reset)
    }
}

/// The turn of a request whose connection serves no other: its place among those that last.
struct Alone(#[expect(dead_code, reason = "kept for its drop")] Option<Taken>);

impl Turn for Alone {
    fn complete(&mut self) {}
}

/// Passes bytes both ways until both sides have ended; a side that only stops sending leaves the other open. `passed` is
/// told how many bytes have gone to the client, each time.
///
/// # Cancel safety
/// Dropping the future closes both connections.
pub async fn tunnel(
    client: OnUpgrade,
    upstream: OnUpgrade,
    passed: impl FnMut(usize) + Send + Unpin,
) {
    let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else {
        return; // one of them went away before the change of protocol was complete
    };
    let mut client = Told {
        stream: TokioIo::new(client),
        passed,
    };
    let mut upstream = TokioIo::new(upstream);
    // An error is a connection that broke; both are closed by the drop, which is all that can be said to either.
    let _ = copy_bidirectional(&mut client, &mut upstream).await;
}

/// A stream that tells what is written to it.
struct Told<S, F> {
    stream: S,
    passed: F,
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for Told<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: FnMut(usize) + Unpin> AsyncWrite for Told<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        (self.passed)(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
