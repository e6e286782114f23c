//! HTTP/2 connections to the upstream, on `h2` directly.
//!
//! hyper's client puts a queue between a request and its connection. The queue hides which requests
//! a closing connection still has, how many streams the peer allows now, and when its SETTINGS have
//! arrived. Here a request becomes a stream in the caller's own task, or is returned.
//!
//! # Cancel safety
//! Dropping what [`send_request`] returns, or the response, resets the stream.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::client::ResponseFuture;
use h2::{PingPong, client};
use http::{Request, Response, header};
use http_body::Body;
use tokio::sync::watch;
use tokio::time::{Sleep, timeout};

use crate::upstream::body::body_pump::BodyPump;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::connection::connector::{TlsConnection, TlsIo};
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings::{self, MAX_STREAMS};
use crate::upstream::connection::reset_tracker::{FlushTrackedIo, ResetTracker};
use weir_base::clock::Clock;
use weir_io::ping_schedule::{PingAction, PingSchedule, PingTimeouts};

/// Longest wait for the peer's SETTINGS, which say how many streams it allows; they are the first
/// thing that it sends.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP/2 connection that requests share.
pub(crate) struct Http2Connection {
    sender: client::SendRequest<Bytes>,
    /// Streams that are in use or promised.
    pub(crate) active_streams: AtomicUsize,
    /// Most streams that the peer allows.
    max_streams: AtomicUsize,
    closed: AtomicBool,
    resets: Arc<ResetTracker>,
}

/// Reads and writes the bytes of a connection.
pub(crate) struct Driver {
    connection: client::Connection<Http2Io, Bytes>,
    /// Polled after each poll of the connection: fails once the peer has sent GOAWAY.
    goaway_probe: client::SendRequest<Bytes>,
    pings: Pinger,
}

type Http2Io = FlushTrackedIo<TlsIo>;

impl Http2Connection {
    /// Begins HTTP/2 on `connection` and waits for the peer's SETTINGS.
    ///
    /// # Errors
    /// The peer speaks another protocol, or sends nothing.
    pub(crate) async fn handshake(
        connection: TlsConnection,
    ) -> Result<(Arc<Self>, Driver), ForwardError> {
        let (io, unwritten) = FlushTrackedIo::new(connection.io.into_inner());
        let opened = async {
            let (sender, mut connection) = http_settings::http2_builder()
                .handshake::<_, Bytes>(io)
                .await
                .map_err(ForwardError::refused)?;
            let max_streams = wait_for_settings(&mut connection).await?;
            Ok((sender, connection, max_streams))
        };
        let (sender, mut connection, max_streams) = timeout(SETTINGS_TIMEOUT, opened)
            .await
            .unwrap_or(Err(ForwardError::ConnectTimeout(SETTINGS_TIMEOUT)))?;
        let probe = sender.clone();
        let (resets, acknowledge) = ResetTracker::new(unwritten);
        let shared = Arc::new(Self {
            sender,
            active_streams: AtomicUsize::new(0),
            max_streams: AtomicUsize::new(max_streams.min(MAX_STREAMS)),
            closed: AtomicBool::new(false),
            resets: Arc::clone(&resets),
        });
        let pings = Pinger::new(connection.ping_pong(), resets, acknowledge);
        let driver = Driver {
            connection,
            goaway_probe: probe,
            pings,
        };
        Ok((shared, driver))
    }

    pub(crate) fn max_streams(&self) -> usize {
        self.max_streams.load(Ordering::Acquire)
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Records that a stream has been reset. The future ends when the peer is known to have seen
    /// it, or the connection has ended.
    pub(crate) fn record_reset(&self) -> impl Future<Output = ()> + Send + use<> {
        self.resets.record_reset()
    }

    /// Takes no more requests; requests in flight continue.
    pub(crate) fn retire(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Ends the connection, if no request is in flight.
impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.resets.wake_driver();
    }
}

/// Waits until the peer has said how many streams it allows, at least one.
async fn wait_for_settings(
    connection: &mut client::Connection<Http2Io, Bytes>,
) -> Result<usize, ForwardError> {
    poll_fn(|cx| {
        let polled = Pin::new(&mut *connection).poll(cx);
        let max_streams = connection.max_concurrent_send_streams();
        match polled {
            _ if max_streams > 0 => Poll::Ready(Ok(max_streams)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(ForwardError::refused(error))),
            Poll::Ready(Ok(())) => Poll::Ready(Err(ForwardError::Closed)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl Driver {
    /// Drives the connection until it has ended. Calls `changed` when the peer allows another
    /// number of streams than before, or none any more. A peer that does not answer a PING is
    /// considered gone.
    pub(crate) async fn run(self, shared: Weak<Http2Connection>, changed: impl Fn()) {
        let Self {
            mut connection,
            goaway_probe: probe,
            mut pings,
        } = self;
        let mut allowed = connection.max_concurrent_send_streams();
        let mut probe = Some(probe);
        poll_fn(|cx| {
            loop {
                let before = pings.resets.sent();
                let polled = Pin::new(&mut connection).poll(cx);
                let now = connection.max_concurrent_send_streams();
                let going_away = probe
                    .as_mut()
                    .is_some_and(|probe| matches!(probe.poll_ready(cx), Poll::Ready(Err(_))));
                // A probe that outlives everything else would keep the connection open.
                if going_away || shared.strong_count() == 0 {
                    probe = None;
                }
                if (now != allowed || going_away)
                    && let Some(shared) = shared.upgrade()
                {
                    allowed = now;
                    let max_streams = now.min(MAX_STREAMS);
                    shared.max_streams.store(max_streams, Ordering::Release);
                    if going_away {
                        shared.retire();
                    }
                    changed();
                }
                if polled.is_ready() {
                    return Poll::Ready(()); // its requests get the error
                }
                match pings.poll(cx, before) {
                    Poll::Ready(PingEvent::Sent) => {} // the next poll of the connection writes it
                    Poll::Ready(PingEvent::PeerGone) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        drop(connection); // its streams end before it is marked as unusable
        if let Some(shared) = shared.upgrade() {
            shared.retire();
        }
    }
}

/// The PINGs of a connection, as [`PingSchedule`] decides.
struct Pinger {
    /// None if h2 has given it away already.
    frames: Option<PingPong>,
    schedule: PingSchedule,
    timer: Pin<Box<Sleep>>,
    resets: Arc<ResetTracker>,
    /// The number of resets that have been written in full.
    flushed_resets: u64,
    acknowledge: watch::Sender<u64>,
}

/// The result of polling the PINGs.
enum PingEvent {
    /// A PING is to be written.
    Sent,
    /// The peer does not answer.
    PeerGone,
}

impl Pinger {
    fn new(
        frames: Option<PingPong>,
        resets: Arc<ResetTracker>,
        acknowledge: watch::Sender<u64>,
    ) -> Self {
        let times = PingTimeouts {
            interval: http_settings::PING_INTERVAL,
            timeout: http_settings::PING_TIMEOUT,
        };
        Self {
            frames,
            schedule: PingSchedule::new(times, Clock.now()),
            timer: Box::pin(tokio::time::sleep(http_settings::PING_INTERVAL)),
            resets,
            flushed_resets: 0,
            acknowledge,
        }
    }

    /// Polled after each poll of the connection, before which `resets` streams had been reset. The
    /// clock is read only when an action is due.
    fn poll(&mut self, cx: &mut Context<'_>, resets: u64) -> Poll<PingEvent> {
        self.resets.set_driver(cx.waker());
        let Some(frames) = &mut self.frames else {
            return Poll::Pending;
        };
        if self.resets.is_flushed() {
            self.flushed_resets = resets;
        }
        if self.schedule.is_outstanding() {
            match frames.poll_pong(cx) {
                Poll::Ready(Ok(_)) => {
                    let seen = self.schedule.record_pong(Clock.now());
                    self.acknowledge.send_if_modified(|before| {
                        let more = *before < seen;
                        *before = seen;
                        more
                    });
                }
                Poll::Ready(Err(_)) => return Poll::Ready(PingEvent::PeerGone),
                Poll::Pending => {}
            }
        }
        while self.timer.as_mut().poll(cx).is_ready()
            || self.schedule.has_unacknowledged(self.flushed_resets)
        {
            match self.schedule.next_action(Clock.now(), self.flushed_resets) {
                PingAction::Send if frames.send_ping(h2::Ping::opaque()).is_ok() => {
                    self.timer
                        .as_mut()
                        .reset((Clock.now() + http_settings::PING_TIMEOUT).into());
                    return Poll::Ready(PingEvent::Sent);
                }
                PingAction::Send | PingAction::PeerGone => return Poll::Ready(PingEvent::PeerGone),
                PingAction::Wait(until) => self.timer.as_mut().reset(until.into()),
            }
        }
        Poll::Pending
    }
}

/// Why a request got no response.
pub(crate) enum Http2SendError {
    /// Nothing of it was sent. Returns the request.
    Unsent(Box<Request<RequestBody>>),
    /// It was sent, in full or in part.
    Sent(h2::Error),
}

/// A request that was sent and whose response has not begun. Dropping it resets the stream.
pub(crate) struct PendingHttp2 {
    response: ResponseFuture,
    /// The request body, if it has not been sent in full.
    body_pump: Option<BodyPump>,
}

/// Sends the request on a stream of its own.
///
/// # Errors
/// [`Http2SendError::Unsent`] if the connection takes no more requests.
pub(crate) fn send_request(
    shared: &Http2Connection,
    request: Request<RequestBody>,
) -> Result<PendingHttp2, Http2SendError> {
    let mut sender = shared.sender.clone();
    // A clone waits for no stream of its own: this only checks whether the connection still takes
    // requests.
    let open = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
    if !matches!(open, Poll::Ready(Ok(()))) {
        return Err(Http2SendError::Unsent(Box::new(request)));
    }
    let (head, body) = request.into_parts();
    let end = body.is_end_stream();
    let (answer, stream) = sender
        .send_request(Request::from_parts(head, ()), end)
        .map_err(Http2SendError::Sent)?;
    drop(sender); // a connection after GOAWAY closes when its last sender is dropped
    let body_pump = if end {
        None
    } else {
        BodyPump::start(body, stream)
    };
    Ok(PendingHttp2 {
        response: answer,
        body_pump,
    })
}

impl PendingHttp2 {
    /// Polls for the response head.
    pub(crate) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<ResponseBody>, h2::Error>> {
        let (head, stream) = ready!(Pin::new(&mut self.response).poll(cx))?.into_parts();
        let length = head
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let body = ResponseBody::from_http2(stream, length, self.body_pump.take());
        Poll::Ready(Ok(Response::from_parts(head, body)))
    }

    /// Lets a cancelled request finish: to the end of a short response if `has_end`, else to its
    /// head. Returns whether it has finished; otherwise the stream has been reset.
    pub(crate) async fn finish(mut self, has_end: bool) -> bool {
        if self
            .body_pump
            .as_ref()
            .is_some_and(|body_pump| !body_pump.has_ended())
        {
            return false; // the rest of its body will not arrive
        }
        match poll_fn(|cx| self.poll_head(cx)).await {
            Ok(response) => has_end && response.into_body().drain().await,
            // A reset of weir's own, as after a body that broke off, may be unread there.
            Err(error) => error.is_remote() || error.is_io(),
        }
    }
}

#[cfg(test)]
#[path = "http2_tests.rs"]
mod tests;
