//! What a request holds while the API server works on it: its stream or connection there, and its permit.
//!
//! A request that comes to its end gives both back at once. One that is given up before keeps them until the API server is done
//! with it, as far as that can be known: until it has answered, if that is soon; else until it has seen the reset of the stream, and,
//! where it had not answered yet, as long as requests of this shape take. A client that opens and cancels requests would otherwise
//! have more of them run than there are seats. A request that was not handed to a connection yet gives all back at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntGauge;
use tokio::runtime::Handle;
use tokio::time::sleep_until;
use tokio::time::timeout_at;

use crate::clock::Clock;
use crate::limits::Permit;
use crate::limits::service_times::RequestShape;
use crate::limits::service_times::ServiceTimes;
use crate::metrics::GaugeGuard;
use crate::metrics::Registry;
use crate::pipeline::response::in_flight::PermitLifetime;
use crate::upstream::forward::CancelOutcome;
use crate::upstream::forward::StreamGuard;

/// Longest that a stream's slot is kept for the sake of its reset: what may be let finish, and a PING's answer, take no longer.
const RESET_ACK_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that were given up; one worker's.
#[derive(Debug)]
pub struct AbandonedRequests {
    service_times: ServiceTimes,
    /// Those that still hold something.
    retained: IntGauge,
}

impl AbandonedRequests {
    /// Of a worker whose gauge is `kept`.
    #[must_use]
    pub fn new(kept: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            service_times: ServiceTimes::default(),
            retained: kept,
        })
    }

    /// The gauge that all workers share.
    #[must_use]
    pub fn register(registry: &Registry) -> IntGauge {
        registry.gauge(
            "weir_abandoned_requests",
            "Requests whose clients gave them up and that still hold their seat or stream: the API server is not known to be done with them.",
        )
    }
}

/// Dropped in this order: the turn, and what was held.
pub(in crate::pipeline) struct InFlightRequest {
    pub(in crate::pipeline) stream_guard: Option<Box<dyn StreamGuard>>,
    /// When it was handed to a connection; nothing runs at the API server before.
    pub(in crate::pipeline) sent_at: Option<Instant>,
    permit: Option<PermitLifetime>,
    retention: AbandonedRetention,
    /// Neither the request nor its answer has more to come.
    complete: bool,
}

/// For how long a request is charged that is given up.
pub(in crate::pipeline) struct AbandonedRetention {
    pub(in crate::pipeline) abandoned: Arc<AbandonedRequests>,
    /// What tells how long requests like this one take; nothing, once it was answered or where that is the client's to say.
    pub(in crate::pipeline) shape: Option<RequestShape>,
    /// When it was admitted.
    pub(in crate::pipeline) admitted_at: Instant,
    /// No longer than this, whatever the API server does.
    pub(in crate::pipeline) deadline: Instant,
}

impl InFlightRequest {
    /// Of a request that is about to be sent.
    pub(in crate::pipeline) fn new(permit: Permit, charge: AbandonedRetention) -> Self {
        Self {
            stream_guard: None,
            sent_at: None,
            permit: Some(PermitLifetime::UntilEnd { permit }),
            retention: charge,
            complete: false,
        }
    }

    /// When it was admitted.
    pub(in crate::pipeline) const fn admitted_at(&self) -> Instant {
        self.retention.admitted_at
    }

    /// What is held.
    pub(in crate::pipeline) const fn permit_mut(&mut self) -> Option<&mut PermitLifetime> {
        self.permit.as_mut()
    }

    /// The API server has answered; the permit is held by what `change` makes of it. Only a good answer tells how long requests of
    /// its shape take: a client that may not list would shorten that for all by what it is refused.
    pub(in crate::pipeline) fn record_response(
        &mut self,
        (now, status): (Instant, StatusCode),
        change: impl FnOnce(Permit) -> PermitLifetime,
    ) {
        if let Some(shape) = self.retention.shape.take().filter(|_| status.is_success()) {
            let took =
                now.saturating_duration_since(self.sent_at.unwrap_or(self.retention.admitted_at));
            self.retention.abandoned.service_times.observe(shape, took);
        }
        self.permit = match self.permit.take() {
            Some(PermitLifetime::UntilEnd { permit }) => Some(change(permit)),
            other => other,
        };
    }

    /// The request has ended without an answer, by the API server or by its own body: nothing that takes time runs there.
    pub(in crate::pipeline) fn record_failure(&mut self) {
        self.retention.shape = None;
    }

    /// The answer has come to its end; `all_sent` if the request's body has, too. What has not is reset.
    pub(in crate::pipeline) fn complete(&mut self, all_sent: bool) {
        self.complete = all_sent;
        if let Some(turn) = &mut self.stream_guard {
            turn.complete();
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let (turn, held) = (self.stream_guard.take(), self.permit.take());
        if self.complete {
            return drop((turn, held));
        }
        abandon(turn, held, &self.retention, self.sent_at);
    }
}

/// Keeps what a request holds that was given up, for as long as it is charged.
fn abandon(
    mut turn: Option<Box<dyn StreamGuard>>,
    held: Option<PermitLifetime>,
    charge: &AbandonedRetention,
    sent: Option<Instant>,
) {
    let (now, given_up) = (Clock.now(), &charge.abandoned);
    let until = charge.shape.zip(sent).map_or(now, |(shape, sent)| {
        let took = now.saturating_duration_since(sent);
        given_up.service_times.observe_cancelled(shape, took);
        sent + given_up.service_times.average(shape)
    });
    let until = until.min(charge.deadline);
    let seen = turn.as_mut().and_then(|turn| turn.cancel());
    let waits = until > now || seen.is_some();
    let Some(runtime) = Handle::try_current().ok().filter(|_| waits) else {
        return drop((turn, held));
    };
    // The slot of a shared connection has no other owner: it is kept until the reset was seen. A seat has its deadline.
    let (deadline, seen_by) = (charge.deadline, now + RESET_ACK_TIMEOUT);
    let counted = GaugeGuard::new(given_up.retained.clone());
    runtime.spawn(async move {
        let (mut held, mut end) = (held, CancelOutcome::Reset);
        if let Some(seen) = seen {
            let mut seen = pin!(timeout_at(seen_by.into(), seen));
            end = tokio::select! {
                end = seen.as_mut() => end,
                () = sleep_until(deadline.into()) => {
                    held = None;
                    seen.await
                }
            }
            .unwrap_or(CancelOutcome::Reset);
        }
        drop(turn);
        if end == CancelOutcome::Reset && held.is_some() {
            sleep_until(until.into()).await;
        }
        drop((held, counted));
    });
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::api::UserInfo;
    use crate::flowcontrol::controller::RequestTimes;
    use crate::limits::Admission;
    use crate::limits::AdmissionAttributes;
    use crate::limits::MaxInFlight;
    use crate::limits::max_in_flight;
    use crate::request_info::RequestInfo;
    use crate::upstream::forward::Cancellation;

    /// A stream whose reset is seen when the test says so.
    struct FakeStream(Option<oneshot::Receiver<()>>);

    impl StreamGuard for FakeStream {
        fn complete(&mut self) {}

        fn cancel(&mut self) -> Option<Cancellation> {
            let seen = self.0.take()?;
            Some(Box::pin(async move {
                let _ = seen.await;
                CancelOutcome::Reset
            }))
        }
    }

    /// One seat, and what tells whether it is free.
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

        async fn acquire(&self) -> Option<Permit> {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let user = UserInfo::anonymous();
            let digest = AdmissionAttributes {
                info: &info,
                user: &user,
            };
            let times = RequestTimes::at(Clock.now());
            self.admission.admit(&digest, times).await.ok()
        }

        /// A request that is sent now, and what says that its reset was seen.
        async fn send(&self) -> (InFlightRequest, oneshot::Sender<()>) {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let charge = AbandonedRetention {
                abandoned: Arc::clone(&self.abandoned),
                shape: Some(RequestShape::from_request(&info)),
                admitted_at: Clock.now(),
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
        let good = (Clock.now(), StatusCode::OK);
        answered.record_response(good, |permit| PermitLifetime::UntilEnd { permit });
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
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(seat.is_free().await);
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
            answered.record_response((Clock.now(), status), |permit| PermitLifetime::UntilEnd {
                permit,
            });
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
