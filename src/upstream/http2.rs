//! HTTP/2 connections to the upstream, spoken through `h2` itself.
//!
//! hyper's client stands between a request and its connection with a queue: what a connection that goes away has in it,
//! what streams the peer allows at this moment, and when its SETTINGS have come cannot be seen through it. Here a request
//! becomes a stream in the caller's own task, or comes back.
//!
//! # Cancel safety
//! Dropping what [`exchange`] returns, or its future, resets the stream.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use h2::PingPong;
use h2::client;
use http::Request;
use http::Response;
use http::header;
use http_body::Body;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::upstream::ForwardError;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::connector;
use crate::upstream::connector::Connection;
use crate::upstream::settings;
use crate::upstream::settings::MOST_STREAMS;
use crate::upstream::upload::Upload;

/// Longest that a peer may take to say how many streams it allows; it is the first thing that it sends.
const SETTINGS_WITHIN: Duration = Duration::from_secs(10);

/// An HTTP/2 connection that requests share.
pub(super) struct Shared {
    sender: client::SendRequest<Bytes>,
    /// Streams that are in use or promised.
    pub(super) streams: AtomicUsize,
    /// What the peer allows.
    most_streams: AtomicUsize,
    closed: AtomicBool,
}

/// What moves a connection's bytes.
pub(super) struct Driver {
    connection: client::Connection<Io, Bytes>,
    /// Asked after every look at the connection whether the peer has said GOAWAY.
    probe: client::SendRequest<Bytes>,
    pings: Option<PingPong>,
}

type Io = TlsStream<Box<dyn connector::Stream>>;

impl Shared {
    /// Speaks HTTP/2 on `connection` and waits for the peer's SETTINGS.
    ///
    /// # Errors
    /// The peer speaks something else, or nothing.
    pub(super) async fn open(connection: Connection) -> Result<(Arc<Self>, Driver), ForwardError> {
        let opened = async {
            let (sender, mut connection) = settings::client_http2()
                .handshake::<_, Bytes>(connection.into_inner())
                .await
                .map_err(ForwardError::refused)?;
            let most = settled(&mut connection).await?;
            Ok((sender, connection, most))
        };
        let (sender, mut connection, most) = timeout(SETTINGS_WITHIN, opened)
            .await
            .unwrap_or(Err(ForwardError::ConnectTimeout(SETTINGS_WITHIN)))?;
        let probe = sender.clone();
        let shared = Arc::new(Self {
            sender,
            streams: AtomicUsize::new(0),
            most_streams: AtomicUsize::new(most.min(MOST_STREAMS)),
            closed: AtomicBool::new(false),
        });
        let pings = connection.ping_pong();
        let driver = Driver {
            connection,
            probe,
            pings,
        };
        Ok((shared, driver))
    }

    pub(super) fn most_streams(&self) -> usize {
        self.most_streams.load(Ordering::Acquire)
    }

    pub(super) fn usable(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// The connection takes no more requests; what is under way goes on.
    pub(super) fn leaving(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Waits until the peer has said how many streams it allows, at least one.
async fn settled(connection: &mut client::Connection<Io, Bytes>) -> Result<usize, ForwardError> {
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
    pub(super) async fn run(self, shared: Weak<Shared>, changed: impl Fn()) {
        let Self {
            mut connection,
            probe,
            pings,
        } = self;
        let mut allowed = connection.max_concurrent_send_streams();
        let mut probe = Some(probe);
        let driven = poll_fn(|cx| {
            let polled = Pin::new(&mut connection).poll(cx);
            let now = connection.max_concurrent_send_streams();
            let told_to_go = probe
                .as_mut()
                .is_some_and(|probe| matches!(probe.poll_ready(cx), Poll::Ready(Err(_))));
            // A probe that stays when everybody else has gone would keep the connection open.
            if told_to_go || shared.strong_count() == 0 {
                probe = None;
            }
            if (now != allowed || told_to_go)
                && let Some(shared) = shared.upgrade()
            {
                allowed = now;
                let most = now.min(MOST_STREAMS);
                shared.most_streams.store(most, Ordering::Release);
                if told_to_go {
                    shared.leaving();
                }
                changed();
            }
            polled.map(|_| ()) // whoever waits for an answer on it is told
        });
        tokio::select! {
            () = driven => {}
            () = unanswered(pings) => {}
        }
        drop(connection); // ends its streams, before anybody looks whether it is usable
        if let Some(shared) = shared.upgrade() {
            shared.leaving();
        }
    }
}

/// Ends when a PING has had no answer in time.
async fn unanswered(pings: Option<PingPong>) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(settings::PING_EVERY).await;
        let pong = pings.ping(h2::Ping::opaque());
        if !matches!(timeout(settings::PING_ANSWER, pong).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Why a request has no answer.
pub(super) enum Failed {
    /// Nothing of it was sent: here it is again.
    Unsent(Box<Request<RequestBody>>),
    /// It was sent, all or in part.
    Sent(h2::Error),
}

/// Sends the request as a stream of its own, and waits for the head of the answer.
///
/// # Errors
/// [`Failed::Unsent`] if the connection takes no more requests.
pub(super) async fn exchange(
    shared: &Shared,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, Failed> {
    let mut sender = shared.sender.clone();
    // A clone has no stream of its own that it waits for: this only asks whether the connection still takes requests.
    let open =
        poll_fn(|cx| Poll::Ready(matches!(sender.poll_ready(cx), Poll::Ready(Ok(()))))).await;
    if !open {
        return Err(Failed::Unsent(Box::new(request)));
    }
    let (head, body) = request.into_parts();
    let end = body.is_end_stream();
    let (answer, stream) = sender
        .send_request(Request::from_parts(head, ()), end)
        .map_err(Failed::Sent)?;
    drop(sender); // a connection that is told to go closes when nobody holds it
    let upload = if end {
        None
    } else {
        Upload::start(body, stream).await
    };
    let (head, stream) = answer.await.map_err(Failed::Sent)?.into_parts();
    let length = head
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    let body = AnswerBody::http2(stream, length, upload);
    Ok(Response::from_parts(head, body))
}
