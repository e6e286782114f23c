//! What the server was asked and what it did, for tests and for the curious: the last requests, and
//! counters.
//!
//! Requests are kept in memory with all their headers, credentials included, and never logged.

use crate::playground::auth::authentication::ApiUser;
use crate::playground::serving::fairness::SeatGuard;
use crate::playground::serving::handler_scheduler::HandlerSlot;
use bytes::Bytes;
use http::HeaderMap;
use http::Method;
use http::Uri;
use http_body::Body;
use http_body::Frame;
use http_body::SizeHint;
use http_body_util::BodyExt;
use http_body_util::Empty;
use http_body_util::combinators::UnsyncBoxBody;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use tokio::runtime::Handle;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// The method.
    pub method: Method,
    /// The path and query, as sent.
    pub uri: Uri,
    /// The protocol version.
    pub version: http::Version,
    /// Who was taken to have sent it (before impersonation); `None` was refused with 401.
    pub user: Option<ApiUser>,
    /// All headers, as sent.
    pub headers: HeaderMap,
}

/// A review that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewRecord {
    /// `TokenReview`, `SubjectAccessReview` or one of their relatives.
    pub kind: &'static str,
    /// The `spec` that was sent, tokens included.
    pub spec: serde_json::Value,
}

/// What the server has counted since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections whose handshake succeeded.
    pub connections: u64,
    /// Requests of any kind that arrived.
    pub requests: u64,
    /// Ordinary requests being served now, to the end of their answers, also when their clients are gone.
    pub in_flight: usize,
    /// The most of them there have been at once.
    pub max_in_flight: usize,
    /// Watches, logs and tunnels that are open now.
    pub long_running: usize,
    /// Handlers that run although their streams were reset or their connections are gone.
    pub abandoned: usize,
    /// The most of them there have been at once.
    pub max_abandoned: usize,
    /// HTTP/2 connections that were ended with ENHANCE_YOUR_CALM: too many handlers ran or waited for streams that were
    /// reset, or too many streams were reset before they were accepted.
    pub too_many_early_resets: u64,
    /// Requests refused by the server's own limit on requests in flight, or by its priority and fairness.
    pub rejected: u64,
    /// Answers by their code.
    pub by_code: BTreeMap<u16, u64>,
    /// Writes that were accepted, by verb and resource (`("create", "events")`).
    pub accepted_writes: BTreeMap<(&'static str, &'static str), u64>,
}

/// Remembers and counts.
#[derive(Debug)]
pub(crate) struct RequestLog {
    /// How many requests are remembered.
    max_records: usize,
    /// Nothing is awaited under this lock.
    state: Mutex<RequestLogState>,
}

#[derive(Debug, Default)]
struct RequestLogState {
    counters: ServerCounters,
    requests: VecDeque<RequestRecord>,
    reviews: VecDeque<ReviewRecord>,
}

/// What a request occupies while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServingClass {
    /// Nothing that is counted: what reads the counters, and a health check, which kube-apiserver's flow schema `probes` exempts.
    Exempt,
    InFlight,
    LongRunning,
}

/// A request that is being served, until dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    log: Arc<RequestLog>,
    class: ServingClass,
    /// Of priority and fairness.
    pub(crate) seat: Option<SeatGuard>,
}

/// A handler that runs although its client is gone, until dropped.
#[derive(Debug)]
pub(crate) struct AbandonedGuard {
    log: Arc<RequestLog>,
}

impl Drop for AbandonedGuard {
    fn drop(&mut self) {
        let counters = &mut self.log.state().counters;
        counters.abandoned = counters.abandoned.saturating_sub(1);
    }
}

impl RequestLog {
    pub(crate) fn new(memory: usize) -> Arc<Self> {
        Arc::new(Self {
            max_records: memory,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, RequestLogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record_request(&self, record: RequestRecord) {
        let mut state = self.state();
        state.counters.requests += 1;
        state.requests.push_back(record);
        if state.requests.len() > self.max_records {
            state.requests.pop_front();
        }
    }

    pub(crate) fn record_review(&self, kind: &'static str, spec: serde_json::Value) {
        let mut state = self.state();
        state.reviews.push_back(ReviewRecord { kind, spec });
        if state.reviews.len() > self.max_records {
            state.reviews.pop_front();
        }
    }

    pub(crate) fn reviews(&self) -> Vec<ReviewRecord> {
        self.state().reviews.iter().cloned().collect()
    }

    pub(crate) fn record_response(&self, code: u16) {
        *self.state().counters.by_code.entry(code).or_default() += 1;
    }

    pub(crate) fn record_write(&self, verb: &'static str, resource: &'static str) {
        *self
            .state()
            .counters
            .accepted_writes
            .entry((verb, resource))
            .or_default() += 1;
    }

    /// Begins to serve a request, unless it is an ordinary one and `limit` are being served.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        occupied: ServingClass,
        limit: Option<usize>,
    ) -> Option<RequestGuard> {
        let counters = &mut self.state().counters;
        match occupied {
            ServingClass::InFlight => {
                if limit.is_some_and(|limit| counters.in_flight >= limit) {
                    return None;
                }
                counters.in_flight += 1;
                counters.max_in_flight = counters.max_in_flight.max(counters.in_flight);
            }
            ServingClass::Exempt => {}
            ServingClass::LongRunning => counters.long_running += 1,
        }
        Some(RequestGuard {
            log: Arc::clone(self),
            class: occupied,
            seat: None,
        })
    }

    /// A request is refused by a limit of the server's.
    pub(crate) fn record_rejection(&self) {
        self.state().counters.rejected += 1;
    }

    /// A connection's handshake succeeded.
    pub(crate) fn record_connection(&self) {
        self.state().counters.connections += 1;
    }

    /// The client of a handler that runs is gone.
    pub(crate) fn track_abandoned(self: &Arc<Self>) -> AbandonedGuard {
        let counters = &mut self.state().counters;
        counters.abandoned += 1;
        counters.max_abandoned = counters.max_abandoned.max(counters.abandoned);
        AbandonedGuard {
            log: Arc::clone(self),
        }
    }

    /// A connection is ended because of the streams that were reset on it.
    pub(crate) fn record_too_many_early_resets(&self) {
        self.state().counters.too_many_early_resets += 1;
    }

    pub(crate) fn requests(&self) -> Vec<RequestRecord> {
        self.state().requests.iter().cloned().collect()
    }

    pub(crate) fn counters(&self) -> ServerCounters {
        self.state().counters.clone()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let counters = &mut self.log.state().counters;
        let count = match self.class {
            ServingClass::Exempt => return,
            ServingClass::InFlight => &mut counters.in_flight,
            ServingClass::LongRunning => &mut counters.long_running,
        };
        *count = count.saturating_sub(1);
    }
}

/// A response body.
pub(crate) type PlaygroundBody = UnsyncBoxBody<Bytes, Infallible>;

/// A response body that keeps its request's place until it ends or is dropped.
///
/// The place is given back when the last frame is handed out, not when it has been sent: whoever has
/// read an answer to its end must find that it is no longer counted. An ordinary request's that is dropped
/// before is encoded to its end all the same, as a Go handler does.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: PlaygroundBody,
    guard: Option<RequestGuard>,
    /// On HTTP/2: the handler, which runs as long as the place is taken.
    handler_slot: Option<HandlerSlot>,
    headers_only: bool,
}

impl TrackedBody {
    pub(crate) fn new(body: PlaygroundBody, place: Option<RequestGuard>) -> Self {
        let place = place.filter(|_| !body.is_end_stream());
        Self {
            body,
            guard: place,
            handler_slot: None,
            headers_only: false,
        }
    }

    /// With the handler that it is a part of.
    pub(crate) fn with_handler_slot(mut self, running: Option<HandlerSlot>) -> Self {
        self.handler_slot = running.filter(|_| !self.is_end_stream());
        self
    }

    /// The request is no longer counted, although the body is still to be sent.
    pub(crate) fn release(&mut self) {
        self.guard = None;
    }

    /// Nothing of the body is sent. For HTTP/2, where the library sends what it is given even to HEAD, and a client
    /// takes the stream for broken then.
    pub(crate) fn into_headers_only(mut self) -> Self {
        self.guard = None;
        self.headers_only = true;
        self
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let Some(place) = self
            .guard
            .take_if(|place| place.class == ServingClass::InFlight)
        else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let running = self.handler_slot.take();
        let abandoned = place.log.track_abandoned();
        let mut body = std::mem::replace(&mut self.body, Empty::new().boxed_unsync());
        runtime.spawn(async move {
            while body.frame().await.is_some() {
                tokio::task::yield_now().await;
            }
            drop((place, running, abandoned));
        });
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.headers_only {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.guard = None;
            self.handler_slot = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.headers_only || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::RequestLog;
    use super::ServingClass;
    use super::TrackedBody;
    use bytes::Bytes;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::BodyExt;
    use http_body_util::Full;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;
    use tokio::sync::oneshot;

    #[test]
    fn the_limit_applies_to_ordinary_requests() {
        let journal = RequestLog::new(10);
        let first = journal.begin_request(ServingClass::InFlight, Some(1));
        assert!(first.is_some());
        assert!(
            journal
                .begin_request(ServingClass::InFlight, Some(1))
                .is_none()
        );
        journal.record_rejection();
        let watch = journal.begin_request(ServingClass::LongRunning, Some(1));
        assert!(watch.is_some());
        let counters = journal.counters();
        assert_eq!(
            (counters.in_flight, counters.long_running, counters.rejected),
            (1, 1, 1)
        );
        drop((first, watch));
        let counters = journal.counters();
        assert_eq!(
            (
                counters.in_flight,
                counters.max_in_flight,
                counters.long_running
            ),
            (0, 1, 0)
        );
    }

    #[tokio::test]
    async fn a_request_is_released_with_its_last_frame() {
        let journal = RequestLog::new(10);
        let place = journal.begin_request(ServingClass::InFlight, None);
        let body = Full::new(Bytes::from_static(b"x")).boxed_unsync();
        let mut body = TrackedBody::new(body, place);
        assert_eq!(journal.counters().in_flight, 1);
        assert!(body.frame().await.is_some());
        assert_eq!(journal.counters().in_flight, 0);
    }

    #[tokio::test]
    async fn an_abandoned_list_is_encoded_to_its_end_and_a_watch_is_not() {
        let journal = RequestLog::new(10);
        let (encoding, mut encoded) = mpsc::channel(1);
        let begin = |occupied| {
            let (gate, open) = oneshot::channel::<()>();
            let encoding = encoding.clone();
            let body = StreamBody::new(stream::once(async move {
                let _ = open.await;
                let _ = encoding.try_send(occupied);
                Ok(Frame::data(Bytes::from_static(b"x")))
            }));
            let place = journal.begin_request(occupied, None);
            (gate, TrackedBody::new(body.boxed_unsync(), place))
        };
        let (list_gate, list) = begin(ServingClass::InFlight);
        let (_watch_gate, watch) = begin(ServingClass::LongRunning);
        drop((list, watch));
        let counters = journal.counters();
        assert_eq!(
            (
                counters.in_flight,
                counters.long_running,
                counters.abandoned
            ),
            (1, 0, 1)
        );
        drop(list_gate);
        assert_eq!(encoded.recv().await, Some(ServingClass::InFlight));
        while journal.counters().in_flight > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(journal.counters().max_abandoned, 1);
    }
}
