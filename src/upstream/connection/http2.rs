//! HTTP/2 connections to the upstream, spoken through `h2` itself.
//!
//! hyper's client stands between a request and its connection with a queue: what a connection that goes away has in it,
//! what streams the peer allows at this moment, and when its SETTINGS have come cannot be seen through it. Here a request
//! becomes a stream in the caller's own task, or comes back.
//!
//! # Cancel safety
//! Dropping what [`begin`] returns, or the answer, resets the stream.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::PingPong;
use h2::client;
use h2::client::ResponseFuture;
use http::Request;
use http::Response;
use http::header;
use http_body::Body;
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::clock::Clock;
use crate::upstream::ForwardError;
use crate::upstream::body::body_pump::BodyPump;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connector;
use crate::upstream::connection::connector::TlsConnection;
use crate::upstream::connection::http_settings;
use crate::upstream::connection::http_settings::MAX_STREAMS;
use crate::upstream::connection::ping_schedule;
use crate::upstream::connection::ping_schedule::PingAction;
use crate::upstream::connection::ping_schedule::PingSchedule;
use crate::upstream::connection::reset_tracker::FlushTrackedIo;
use crate::upstream::connection::reset_tracker::ResetTracker;

/// Longest that a peer may take to say how many streams it allows; it is the first thing that it sends.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP/2 connection that requests share.
pub(in crate::upstream) struct Http2Connection {
    sender: client::SendRequest<Bytes>,
    /// Streams that are in use or promised.
    pub(in crate::upstream) active_streams: AtomicUsize,
    /// What the peer allows.
    max_streams: AtomicUsize,
    closed: AtomicBool,
    resets: Arc<ResetTracker>,
}

/// What moves a connection's bytes.
pub(in crate::upstream) struct Driver {
    connection: client::Connection<Http2Io, Bytes>,
    /// Asked after every look at the connection whether the peer has said GOAWAY.
    goaway_probe: client::SendRequest<Bytes>,
    pings: Pinger,
}

type Http2Io = FlushTrackedIo<TlsStream<Box<dyn connector::IoStream>>>;

impl Http2Connection {
    /// Speaks HTTP/2 on `connection` and waits for the peer's SETTINGS.
    ///
    /// # Errors
    /// The peer speaks something else, or nothing.
    pub(in crate::upstream) async fn handshake(
        connection: TlsConnection,
    ) -> Result<(Arc<Self>, Driver), ForwardError> {
        let (io, unwritten) = FlushTrackedIo::new(connection.into_inner());
        let opened = async {
            let (sender, mut connection) = http_settings::http2_builder()
                .handshake::<_, Bytes>(io)
                .await
                .map_err(ForwardError::refused)?;
            let most = wait_for_settings(&mut connection).await?;
            Ok((sender, connection, most))
        };
        let (sender, mut connection, most) = timeout(SETTINGS_TIMEOUT, opened)
            .await
            .unwrap_or(Err(ForwardError::ConnectTimeout(SETTINGS_TIMEOUT)))?;
        let probe = sender.clone();
        let (resets, acknowledge) = ResetTracker::new(unwritten);
        let shared = Arc::new(Self {
            sender,
            active_streams: AtomicUsize::new(0),
            max_streams: AtomicUsize::new(most.min(MAX_STREAMS)),
            closed: AtomicBool::new(false),
            resets: Arc::clone(&resets),
        });
        let pings = Pinger::new(connection.ping_pong(), (resets, acknowledge));
        let driver = Driver {
            connection,
            goaway_probe: probe,
            pings,
        };
        Ok((shared, driver))
    }

    pub(in crate::upstream) fn max_streams(&self) -> usize {
        self.max_streams.load(Ordering::Acquire)
    }

    pub(in crate::upstream) fn is_usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// A stream has been reset. What is returned comes when the peer is known to have seen it, or the connection has ended.
    pub(in crate::upstream) fn record_reset(&self) -> impl Future<Output = ()> + Send + use<> {
        self.resets.record_reset()
    }

    /// The connection takes no more requests; what is under way goes on.
    pub(in crate::upstream) fn retire(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Waits until the peer has said how many streams it allows, at least one.
async fn wait_for_settings(
    connection: &mut client::Connection<Http2Io, Bytes>,
) -> Result<usize, ForwardError> {
    poll_fn(|cx| {
        let polled = Pin::new(&mut *connection).poll(cx);
        let most = connection.max_concurrent_send_streams();
        match polled {
            _ if most > 0 => Poll::Ready(Ok(most)),
            Poll::Ready(Err(why)) => Poll::Ready(Err(ForwardError::refused(why))),
            Poll::Ready(Ok(())) => Poll::Ready(Err(ForwardError::Closed)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

impl Driver {
    /// Moves bytes until the connection has ended, and calls `changed` when the peer allows another number of streams than
    /// before, or none any more. A peer that does not answer a PING is taken for gone.
    pub(in crate::upstream) async fn run(self, shared: Weak<Http2Connection>, changed: impl Fn()) {
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
                let told_to_go = probe
                    .as_mut()
                    .is_some_and(|probe| matches!(probe.poll_ready(cx), Poll::Ready(Err(_))));
                // A probe that stays when everything else has gone would keep the connection open.
                if told_to_go || shared.strong_count() == 0 {
                    probe = None;
                }
                if (now != allowed || told_to_go)
                    && let Some(shared) = shared.upgrade()
                {
                    allowed = now;
                    let most = now.min(MAX_STREAMS);
                    shared.max_streams.store(most, Ordering::Release);
                    if told_to_go {
                        shared.retire();
                    }
                    changed();
                }
                if polled.is_ready() {
                    return Poll::Ready(()); // the requests on it get its error
                }
                match pings.poll(cx, before) {
                    Poll::Ready(PingEvent::Sent) => {} // it is written by another look at the connection
                    Poll::Ready(PingEvent::PeerGone) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        drop(connection); // ends its streams, before it is looked at whether it is usable
        if let Some(shared) = shared.upgrade() {
            shared.retire();
        }
    }
}

/// The PINGs of a connection: [`PingSchedule`] decides.
struct Pinger {
    /// Nothing where the library has none to give.
    frames: Option<PingPong>,
    schedule: PingSchedule,
    timer: Pin<Box<Sleep>>,
    resets: Arc<ResetTracker>,
    /// How many resets have been written to the last byte.
    flushed_resets: u64,
    acknowledge: watch::Sender<u64>,
}

/// What has become of the PINGs.
enum PingEvent {
    /// One is to be written.
    Sent,
    /// The peer does not answer.
    PeerGone,
}

impl Pinger {
    fn new(
        frames: Option<PingPong>,
        (resets, acknowledge): (Arc<ResetTracker>, watch::Sender<u64>),
    ) -> Self {
        let times = ping_schedule::PingTimeouts {
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

    /// After a look at the connection, before which so many streams had been reset. The clock is read only when there is
    /// something to do.
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

/// Why a request has no answer.
pub(in crate::upstream) enum Http2SendError {
    /// Nothing of it was sent: here it is again.
    Unsent(Box<Request<RequestBody>>),
    /// It was sent, all or in part.
    Sent(h2::Error),
}

/// A request that was sent, and whose answer has not begun. Dropping it resets the stream.
pub(in crate::upstream) struct PendingHttp2 {
    response: ResponseFuture,
    /// The request's body, if it is not all sent.
    body_pump: Option<BodyPump>,
}

/// Sends the request as a stream of its own.
///
/// # Errors
/// [`Failed::Unsent`] if the connection takes no more requests.
pub(in crate::upstream) async fn send_request(
    shared: &Http2Connection,
    request: Request<RequestBody>,
) -> Result<PendingHttp2, Http2SendError> {
    let mut sender = shared.sender.clone();
    // A clone has no stream of its own that it waits for: this only asks whether the connection still takes requests.
    let open =
        poll_fn(|cx| Poll::Ready(matches!(sender.poll_ready(cx), Poll::Ready(Ok(()))))).await;
    if !open {
        return Err(Http2SendError::Unsent(Box::new(request)));
    }
    let (head, body) = request.into_parts();
    let end = body.is_end_stream();
    let (answer, stream) = sender
        .send_request(Request::from_parts(head, ()), end)
        .map_err(Http2SendError::Sent)?;
    drop(sender); // a connection that is told to go closes when nobody holds it
    let upload = if end {
        None
    } else {
        BodyPump::start(body, stream).await
    };
    Ok(PendingHttp2 {
        response: answer,
        body_pump: upload,
    })
}

impl PendingHttp2 {
    /// The head of the answer.
    pub(in crate::upstream) fn poll_head(
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

    /// Lets a request finish that was given up: to the end of a short answer, if it has one, or to its head. Whether it came to
    /// its end; otherwise the stream has been reset.
    pub(in crate::upstream) async fn finish(mut self, has_end: bool) -> bool {
        if self
            .body_pump
            .as_ref()
            .is_some_and(|upload| !upload.is_finished())
        {
            return false; // its body will not come
        }
        let Ok(response) = poll_fn(|cx| self.poll_head(cx)).await else {
            return true;
        };
        has_end && response.into_body().drain().await
    }
}
