//! Sends a request body into an HTTP/2 stream, as fast as the peer takes it and no faster.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;
use std::task::ready;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::Reason;
use h2::SendStream;
use http_body::Body;
use http_body::Frame;
use tokio::task::JoinHandle;

use crate::in_place;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::headers;

/// A request body that is being sent. Dropping it stops the task. The stream, if nothing else holds
/// it, is reset when the runtime next polls the task.
#[derive(Debug)]
pub(in crate::upstream) struct BodyPump(JoinHandle<()>);

impl Drop for BodyPump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl BodyPump {
    /// Whether all of it has been sent.
    pub(in crate::upstream) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Sends what is available at once. A task sends the rest, because the response may arrive
    /// before its end.
    pub(in crate::upstream) fn start(body: RequestBody, stream: SendStream<Bytes>) -> Option<Self> {
        let mut pump = in_place::pinned(|| send_body(body, stream));
        // No wake-up is needed: a body that has to wait is polled again as a task.
        let polled = pump.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        polled.is_pending().then(|| Self(tokio::spawn(pump)))
    }
}

/// Sends a body as it arrives, as fast as the peer takes it. A body that ends with an error resets
/// the stream, and so does one with trailers that would cost other requests the connection. If the
/// peer resets the stream, the response says why.
async fn send_body(mut body: RequestBody, mut stream: SendStream<Bytes>) {
    if let Err(PumpStop::BodyError) = pump_frames(&mut body, &mut stream).await {
        stream.send_reset(Reason::CANCEL);
    }
}

enum PumpStop {
    BodyError,
    PeerReset,
}

impl From<h2::Error> for PumpStop {
    fn from(_: h2::Error) -> Self {
        Self::PeerReset
    }
}

async fn pump_frames(
    body: &mut RequestBody,
    stream: &mut SendStream<Bytes>,
) -> Result<(), PumpStop> {
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
                    headers::validate(&trailers, 0).map_err(|_| PumpStop::BodyError)?;
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
    body: &mut RequestBody,
    stream: &mut SendStream<Bytes>,
) -> Result<Option<Frame<Bytes>>, PumpStop> {
    poll_fn(|cx| {
        if stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(PumpStop::PeerReset));
        }
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        Poll::Ready(frame.transpose().map_err(|_| PumpStop::BodyError))
    })
    .await
}

/// Waits until the peer takes some of `wanted` bytes, and returns how many.
async fn send_capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, PumpStop> {
    stream.reserve_capacity(wanted);
    loop {
        let capacity = stream.capacity();
        if capacity > 0 {
            return Ok(capacity);
        }
        poll_fn(|cx| stream.poll_capacity(cx))
            .await
            .ok_or(PumpStop::PeerReset)??;
    }
}
