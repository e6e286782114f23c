//! What a request holds while the API server executes it: its stream or connection there, and its
//! permit.
//!
//! A completed request releases both at once. An abandoned request keeps them until the API server
//! is done with it, as far as that can be known: until it has responded, if that is soon; else
//! until it has acknowledged the stream's reset, and, if it had not responded yet, as long as
//! requests of this shape take. Otherwise a client that opens and cancels requests would have more
//! of them executing than there are seats. A request that was not yet handed to a connection
//! releases everything at once.
//!
//! The average is of requests of the same shape (100 ms where nothing is known), and never reaches
//! beyond the request's deadline. A short request first gets a second to finish, on both versions
//! of HTTP: to close its connection or to reset its stream costs more than its end. On HTTP/1.1
//! this includes a response that has begun, if 64 KiB or less of it are left
//! (`upstream::body::response_body`).

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use prometheus::IntGauge;
use tokio::runtime::Handle;
use tokio::time::{sleep_until, timeout_at};

use crate::limits::AdmissionPermit;
use crate::limits::abandoned_backlog::AbandonedBacklog;
use crate::upstream::forward::send::SendContext;
use crate::upstream::pool::stream_guard::{CANCEL_GRACE_PERIOD, CancelOutcome, StreamGuard};
use crate::upstream::requester::{Requester, SlotHolder};
use weir_base::clock::Clock;
use weir_base::metrics::{GaugeGuard, Registry};
use weir_limits::service_times::{RequestShape, ServiceTimes};

/// How long a stream's slot is kept at most for the acknowledgement of its reset. Neither a
/// response that may finish nor the reply to a PING takes longer.
const RESET_ACK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a seat is kept beyond its deadline at most, for the acknowledgement of the reset that
/// the deadline causes: without it, every seat before a server that hangs would be given out again
/// before the server knows.
const OVERDUE_ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// The abandoned requests of one worker.
#[derive(Debug)]
pub struct AbandonedRequests {
    service_times: ServiceTimes,
    /// Abandoned requests that still hold something.
    retained: IntGauge,
}

impl AbandonedRequests {
    /// The abandoned requests of a worker with the gauge `retained`.
    #[must_use]
    pub fn new(retained: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            service_times: ServiceTimes::default(),
            retained,
        })
    }

    /// The service times, from which the seats of abandoned requests follow.
    #[must_use]
    pub(crate) const fn service_times(&self) -> &ServiceTimes {
        &self.service_times
    }

    /// The gauge that all workers share.
    #[must_use]
    pub fn register(registry: &Registry) -> IntGauge {
        registry.gauge(
            "weir_abandoned_requests",
            "Requests that their clients abandoned and that still hold a seat or stream: the API server may still execute them.",
        )
    }
}

/// Fields are released in this order: the stream, then the permit.
pub(crate) struct InFlightRequest {
    stream_guard: Option<Box<dyn StreamGuard>>,
    /// When the request was handed to a connection; before that the API server executes nothing.
    sent_at: Option<Instant>,
    /// `None` only while it is dropped.
    permit: Option<AdmissionPermit>,
    retention: AbandonedRetention,
    /// Both request and response are complete.
    complete: bool,
}

/// How long an abandoned request is charged.
pub(crate) struct AbandonedRetention {
    pub(crate) abandoned: Arc<AbandonedRequests>,
    /// The shape that predicts how long such requests take; `None` after the response, or if the
    /// client determines the duration.
    pub(crate) shape: Option<RequestShape>,
    /// When the request was admitted.
    pub(crate) admitted_at: Instant,
    /// The requester that an exempt request without a seat counts for.
    pub(crate) backlog: Option<(Arc<AbandonedBacklog>, SlotHolder)>,
    /// When the seats of a watch are released at the latest, if the watch may not be initialized.
    pub(crate) watch_seats_until: Option<Instant>,
    /// The end of the charge at the latest, whatever the API server does.
    pub(crate) deadline: Instant,
}

impl InFlightRequest {
    /// Of a request that is about to be sent.
    pub(crate) fn new(permit: AdmissionPermit, retention: AbandonedRetention) -> Self {
        Self {
            stream_guard: None,
            sent_at: None,
            permit: Some(permit),
            retention,
            complete: false,
        }
    }

    /// What sending the request fills in, and the permit, until it is released.
    pub(crate) const fn send_context<'a>(
        &'a mut self,
        requester: &'a Requester,
    ) -> (SendContext<'a>, Option<&'a mut AdmissionPermit>) {
        let context = SendContext {
            requester,
            guard: &mut self.stream_guard,
            sent_at: &mut self.sent_at,
        };
        (context, self.permit.as_mut())
    }

    /// When the request was admitted.
    pub(crate) const fn admitted_at(&self) -> Instant {
        self.retention.admitted_at
    }

    /// The permit, until it is released.
    pub(crate) const fn permit_mut(&mut self) -> Option<&mut AdmissionPermit> {
        self.permit.as_mut()
    }

    /// Sets when the seats of a watch that is not initialized are released at the latest.
    pub(crate) const fn keep_watch_seats_until(&mut self, deadline: Option<Instant>) {
        self.retention.watch_seats_until = deadline;
    }

    /// A watch is initialized, or has taken too long for it.
    pub(crate) fn release_watch_seats(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.release_watch_seats();
        }
    }

    /// Records the API server's response. Only a successful response measures the duration of its
    /// shape: otherwise the rejections of a client without permission to list would shorten it for
    /// all.
    pub(crate) fn record_response(&mut self, now: Instant, status: StatusCode) {
        if let Some(shape) = self.retention.shape.take().filter(|_| status.is_success()) {
            let duration =
                now.saturating_duration_since(self.sent_at.unwrap_or(self.retention.admitted_at));
            self.retention
                .abandoned
                .service_times
                .observe(shape, duration);
        }
    }

    /// Records that the request ended without a response, by the API server or by its own body:
    /// nothing slow executes there.
    pub(crate) fn record_failure(&mut self) {
        self.retention.shape = None;
    }

    /// Records the end of the response; `all_sent` if the request body has ended, too. An
    /// unfinished request body is reset.
    pub(crate) fn complete(&mut self, all_sent: bool) {
        self.complete = all_sent;
        if let Some(stream) = &mut self.stream_guard {
            stream.complete();
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let (stream, permit) = (self.stream_guard.take(), self.permit.take());
        if self.complete {
            return drop((stream, permit));
        }
        abandon(stream, permit, &self.retention, self.sent_at);
    }
}

/// Keeps what an abandoned request holds for as long as it is charged.
fn abandon(
    mut stream: Option<Box<dyn StreamGuard>>,
    permit: Option<AdmissionPermit>,
    retention: &AbandonedRetention,
    sent_at: Option<Instant>,
) {
    let (now, abandoned) = (Clock.now(), &retention.abandoned);
    let until = retention
        .shape
        .zip(sent_at)
        .map_or(now, |(shape, sent_at)| {
            let elapsed = now.saturating_duration_since(sent_at);
            abandoned.service_times.observe_cancelled(shape, elapsed);
            sent_at + abandoned.service_times.average(shape)
        });
    let until = until.min(retention.deadline);
    let grace = match now < retention.deadline {
        true => CANCEL_GRACE_PERIOD,
        false => Duration::ZERO,
    };
    let reset_acknowledged = stream.as_mut().and_then(|stream| stream.cancel(grace));
    let is_charged = until > now || reset_acknowledged.is_some();
    let Some(runtime) = Handle::try_current().ok().filter(|_| is_charged) else {
        return drop((stream, permit));
    };
    // The slot of a shared connection has no other owner, so it is kept until the reset is
    // acknowledged. A seat has its deadline.
    let acknowledged_by = now + RESET_ACK_TIMEOUT;
    let deadline = retention.deadline + OVERDUE_ACK_TIMEOUT;
    let seats_until = retention.watch_seats_until;
    let backlog = retention.backlog.as_ref();
    let charge = backlog.map(|(backlog, requester)| backlog.charge(requester.clone()));
    let retained = (GaugeGuard::new(abandoned.retained.clone()), charge);
    runtime.spawn(async move {
        let (mut permit, mut end) = (permit, CancelOutcome::Reset);
        if let Some(reset_acknowledged) = reset_acknowledged {
            let mut reset_acknowledged =
                pin!(timeout_at(acknowledged_by.into(), reset_acknowledged));
            end = tokio::select! {
                end = reset_acknowledged.as_mut() => end,
                () = release_at_deadlines(&mut permit, seats_until, deadline) => {
                    reset_acknowledged.await
                }
            }
            .unwrap_or(CancelOutcome::Reset);
        }
        drop(stream);
        if end == CancelOutcome::Reset && permit.is_some() {
            sleep_until(until.into()).await;
        }
        drop((permit, retained));
    });
}

/// Releases the seats of a watch at `seats_until`, if that is a time, and all else at `deadline`.
async fn release_at_deadlines(
    permit: &mut Option<AdmissionPermit>,
    seats_until: Option<Instant>,
    deadline: Instant,
) {
    if let Some(seats_until) = seats_until {
        sleep_until(seats_until.min(deadline).into()).await;
        if let Some(permit) = permit {
            permit.release_watch_seats();
        }
    }
    sleep_until(deadline.into()).await;
    *permit = None;
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::flowcontrol::controller::RequestTimes;
    use crate::flowcontrol::controller::tests::{one_level, reject};
    use crate::limits::Admission;
    use crate::upstream::pool::stream_guard::Cancellation;
    use weir_kubernetes::api::UserInfo;
    use weir_kubernetes::request_info::RequestInfo;
    use weir_limits::max_in_flight;
    use weir_limits::{AdmissionAttributes, MaxInFlight};

    /// A stream whose reset the test acknowledges.
    struct FakeStream(Option<oneshot::Receiver<()>>);

    impl StreamGuard for FakeStream {
        fn complete(&mut self) {}

        fn cancel(&mut self, _: Duration) -> Option<Cancellation> {
            let seen = self.0.take()?;
            Some(Box::pin(async move {
                let _ = seen.await;
                CancelOutcome::Reset
            }))
        }
    }

    /// One seat, and the means to see whether it is free.
    struct SeatFixture {
        admission: Admission,
        abandoned: Arc<AbandonedRequests>,
    }

    impl SeatFixture {
        fn new() -> Self {
            let registry = Registry::new();
            let config = max_in_flight::MaxInFlightConfig {
                read_only: 1.into(),
                mutating: 1.into(),
            };
            Self {
                admission: Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, &registry))),
                abandoned: AbandonedRequests::new(AbandonedRequests::register(&registry)),
            }
        }

        async fn acquire(&self) -> Option<AdmissionPermit> {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let user = UserInfo::anonymous();
            let digest = AdmissionAttributes {
                info: &info,
                user: &user,
            };
            let times = RequestTimes::at(Clock.now());
            self.admission.admit(&digest, times).await.ok()
        }

        /// A request that is sent now, and the sender that acknowledges its reset.
        async fn send(&self) -> (InFlightRequest, oneshot::Sender<()>) {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let charge = AbandonedRetention {
                abandoned: Arc::clone(&self.abandoned),
                backlog: None,
                shape: Some(RequestShape::from_request(&info)),
                admitted_at: Clock.now(),
                watch_seats_until: None,
                deadline: Clock.now() + Duration::from_secs(60),
            };
            let mut in_flight = InFlightRequest::new(self.acquire().await.unwrap(), charge);
            let (see, seen) = oneshot::channel();
            in_flight.stream_guard = Some(Box::new(FakeStream(Some(seen))));
            in_flight.sent_at = Some(Clock.now());
            (in_flight, see)
        }

        async fn is_free(&self) -> bool {
            tokio::task::yield_now().await;
            self.acquire().await.is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_keeps_its_seat_for_the_average_of_its_shape() {
        let seat = SeatFixture::new();
        let (mut answered, _) = seat.send().await;
        tokio::time::advance(Duration::from_secs(5)).await;
        answered.record_response(Clock.now(), StatusCode::OK);
        answered.complete(true);
        drop(answered);
        assert!(seat.is_free().await, "at its end");
        let (given_up, see) = seat.send().await;
        tokio::time::advance(Duration::from_millis(4)).await;
        drop(given_up);
        see.send(()).unwrap();
        tokio::time::advance(Duration::from_millis(4900)).await;
        assert!(!seat.is_free().await);
        assert_eq!(seat.abandoned.retained.get(), 1);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(seat.is_free().await);
        assert_eq!(seat.abandoned.retained.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_keeps_its_seat_until_its_reset_is_acknowledged_or_its_deadline() {
        let seat = SeatFixture::new();
        let (given_up, see) = seat.send().await;
        drop(given_up);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(!seat.is_free().await, "the server may not know of it");
        see.send(()).unwrap();
        assert!(seat.is_free().await);
        let (given_up, _never) = seat.send().await;
        drop(given_up);
        tokio::time::advance(Duration::from_secs(63)).await;
        assert!(seat.is_free().await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_watch_keeps_its_seats_no_longer_than_its_initialization_may_take() {
        let fairness = one_level(1, reject());
        let seat = SeatFixture {
            admission: Admission::Fairness(Arc::clone(&fairness.controller)),
            ..SeatFixture::new()
        };
        let (mut watch, _never) = seat.send().await;
        watch.record_response(Clock.now(), StatusCode::OK);
        watch.keep_watch_seats_until(Some(Clock.now() + Duration::from_secs(10)));
        drop(watch);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(!seat.is_free().await, "the server may not know of it");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(seat.is_free().await);
        assert_eq!(seat.abandoned.retained.get(), 1, "its stream is not reset");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unsent_request_frees_its_seat_at_once_and_is_not_measured() {
        let seat = SeatFixture::new();
        let (mut waiting, see) = seat.send().await;
        (waiting.stream_guard, waiting.sent_at) = (None, None);
        drop(see);
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(waiting);
        assert!(seat.is_free().await);
        let (given_up, see) = seat.send().await;
        drop((given_up, see));
        tokio::time::advance(Duration::from_millis(101)).await;
        assert!(seat.is_free().await, "what is assumed, not 30 s");
    }

    #[tokio::test(start_paused = true)]
    async fn only_successful_responses_are_measured() {
        let seat = SeatFixture::new();
        let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
        let average = || {
            seat.abandoned
                .service_times
                .average(RequestShape::from_request(&info))
                .as_millis()
        };
        for (status, expected) in [(200, 5000), (403, 5000), (404, 5000), (201, 4375)] {
            let (mut answered, _) = seat.send().await;
            let took = if status == 200 { 5 } else { 0 };
            tokio::time::advance(Duration::from_secs(took)).await;
            let status = StatusCode::from_u16(status).unwrap();
            answered.record_response(Clock.now(), status);
            answered.complete(true);
            assert_eq!(average(), expected, "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_request_frees_its_seat_at_once() {
        let seat = SeatFixture::new();
        let (mut failed, see) = seat.send().await;
        drop(see);
        failed.record_failure();
        drop(failed);
        assert!(seat.is_free().await);
    }
}
