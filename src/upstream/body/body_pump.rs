//! Sends a request body into an HTTP/2 stream, as fast as the peer takes it and no faster.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::{Reason, SendStream};
use http_body::{Body, Frame};
use tokio::task::JoinHandle;

use crate::upstream::body::request_body::RequestBody;
use weir_io::in_place;
use weir_io::written_first::WrittenFirst;

/// A request body that is being sent. Dropping it stops the task. The stream, if nothing else holds
/// it, is reset when the runtime next polls the task.
#[derive(Debug)]
pub(crate) struct BodyPump(JoinHandle<()>);

impl Drop for BodyPump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl BodyPump {
    /// Whether nothing more of it is sent: all has been, or it broke off and the stream was reset.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Sends what is available at once. A task sends the rest, because the response may arrive
    /// before its end.
    pub(crate) fn start(body: RequestBody, stream: SendStream<Bytes>) -> Option<Self> {
        let mut pump = in_place::pinned(|| send_body(body, stream));
        // No wake-up is needed: a body that has to wait is polled again as a task.
        let polled = pump.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        polled.is_pending().then(|| Self(tokio::spawn(pump)))
    }
}

/// Sends a body as it arrives, as fast as the peer takes it. Whatever keeps it from being sent in
/// full resets the stream, behind what was sent: the peer would wait for the rest. If the peer has
/// reset it, that changes nothing, and the response says why.
async fn send_body(mut body: impl Body<Data = Bytes> + Unpin, mut stream: SendStream<Bytes>) {
    if pump_frames(&mut body, &mut stream).await.is_err() {
        let (written, marker) = WrittenFirst::on_http2();
        if stream.send_data(marker, false).is_ok() {
            written.await;
        }
        stream.send_reset(Reason::CANCEL);
    }
}

/// The body was not sent in full: it broke off, the peer has reset the stream, or the library
/// refuses a frame.
struct Unsent;

impl From<h2::Error> for Unsent {
    fn from(_: h2::Error) -> Self {
        Self
    }
}

async fn pump_frames(
    body: &mut (impl Body<Data = Bytes> + Unpin),
    stream: &mut SendStream<Bytes>,
) -> Result<(), Unsent> {
    while let Some(frame) = next_frame(body, stream).await? {
        match frame.into_data() {
            Ok(mut data) => {
                let last = body.is_end_stream();
                while !data.is_empty() {
                    let capacity = send_capacity(stream, data.len()).await?;
                    let piece = data.split_to(capacity.min(data.len()));
                    stream.send_data(piece, last && data.is_empty())?;
                    if last && data.is_empty() {
                        return Ok(());
                    }
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    stream.send_trailers(trailers)?;
                    return Ok(());
                }
            }
        }
    }
    Ok(stream.send_data(Bytes::new(), true)?)
}

/// The next frame of the body, unless the peer has reset the stream.
async fn next_frame(
    body: &mut (impl Body<Data = Bytes> + Unpin),
    stream: &mut SendStream<Bytes>,
) -> Result<Option<Frame<Bytes>>, Unsent> {
    poll_fn(|cx| {
        if stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(Unsent));
        }
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        Poll::Ready(frame.transpose().map_err(|_| Unsent))
    })
    .await
}

/// Waits until the peer takes some of `wanted` bytes, and returns how many.
async fn send_capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, Unsent> {
    stream.reserve_capacity(wanted);
    loop {
        let capacity = stream.capacity();
        if capacity > 0 {
            return Ok(capacity);
        }
        poll_fn(|cx| stream.poll_capacity(cx))
            .await
            .ok_or(Unsent)??;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;

    use http::{HeaderMap, HeaderName, HeaderValue, Request};

    use super::*;

    /// Yields these frames. `None` is an error.
    struct Frames(VecDeque<Option<Frame<Bytes>>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            let next = self.0.pop_front();
            Poll::Ready(next.map(|frame| frame.ok_or_else(|| io::Error::other("broken"))))
        }
    }

    fn data() -> Option<Frame<Bytes>> {
        Some(Frame::data(Bytes::from_static(b"up")))
    }

    fn trailers(name: &'static str, value: &'static str) -> Option<Frame<Bytes>> {
        let field = (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        Some(Frame::trailers(HeaderMap::from_iter([field])))
    }

    /// Sends a body of these frames. Returns the number of bytes that its peer receives, and how it
    /// sees the body end: the reason of a reset.
    async fn send(
        frames: impl IntoIterator<Item = Option<Frame<Bytes>>>,
    ) -> (usize, Result<(), Reason>) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let peer = async {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (request, _respond) = connection.accept().await.unwrap().unwrap();
            let received = async move {
                let mut body = request.into_body();
                let mut bytes = 0;
                while let Some(piece) = body.data().await {
                    match piece {
                        Ok(piece) => bytes += piece.len(),
                        Err(why) => return (bytes, Err(why.reason().unwrap())),
                    }
                }
                let trailers = body.trailers().await;
                (
                    bytes,
                    trailers.map(drop).map_err(|why| why.reason().unwrap()),
                )
            };
            tokio::select! {
                received = received => received,
                _ = connection.accept() => unreachable!("there is one request"),
            }
        };
        let body = Frames(frames.into_iter().collect());
        let sent = async {
            let (sender, connection) = h2::client::handshake(near).await.unwrap();
            let stream = async {
                let request = Request::post("https://upstream/").body(()).unwrap();
                let mut sender = sender.ready().await.unwrap();
                // Held: dropping it would reset the stream as well.
                let (_response, stream) = sender.send_request(request, false).unwrap();
                send_body(body, stream).await;
                std::future::pending::<()>().await;
            };
            tokio::join!(connection, stream).0.unwrap();
        };
        tokio::select! {
            received = peer => received,
            () = sent => unreachable!("it waits"),
        }
    }

    #[tokio::test]
    async fn a_body_that_the_library_refuses_to_send_resets_its_stream() {
        assert_eq!(send([data(), trailers("x-sum", "1")]).await, (2, Ok(())));
        for (name, value) in [
            ("connection", "close"),
            ("keep-alive", "1"),
            ("proxy-connection", "close"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
        ] {
            let reset = send([data(), trailers(name, value)]).await;
            assert_eq!(reset, (2, Err(Reason::CANCEL)), "{name}");
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_resets_its_stream_behind_what_was_sent() {
        let broken = send([data(), data(), None]).await;
        assert_eq!(broken, (4, Err(Reason::CANCEL)));
    }
}
