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
use crate::limits::service_times::ServiceTimes;
use crate::limits::service_times::Shape;
use crate::metrics::Counted;
use crate::metrics::Registry;
use crate::pipeline::riding::Held;
use crate::upstream::forward::End;
use crate::upstream::forward::Turn;

/// Longest that a stream's slot is kept for the sake of its reset: what may be let finish, and a PING's answer, take no longer.
const RESET_SEEN_WITHIN: Duration = Duration::from_secs(60);

/// Requests that were given up; one worker's.
#[derive(Debug)]
pub struct GivenUp {
    times: ServiceTimes,
    /// Those that still hold something.
    kept: IntGauge,
}

impl GivenUp {
    /// Of a worker whose gauge is `kept`.
    #[must_use]
    pub fn new(kept: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            times: ServiceTimes::default(),
            kept,
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
pub(super) struct InFlight {
    pub(super) turn: Option<Box<dyn Turn>>,
    /// When it was handed to a connection; nothing runs at the API server before.
    pub(super) sent: Option<Instant>,
    held: Option<Held>,
    charge: Charge,
    /// Neither the request nor its answer has more to come.
    complete: bool,
}

/// For how long a request is charged that is given up.
pub(super) struct Charge {
    pub(super) given_up: Arc<GivenUp>,
    /// What tells how long requests like this one take; nothing, once it was answered or where that is the client's to say.
    pub(super) shape: Option<Shape>,
    /// When it was admitted.
    pub(super) since: Instant,
    /// No longer than this, whatever the API server does.
    pub(super) deadline: Instant,
}

impl InFlight {
    /// Of a request that is about to be sent.
    pub(super) fn new(permit: Permit, charge: Charge) -> Self {
        Self {
            turn: None,
            sent: None,
            held: Some(Held::ToTheEnd { permit }),
            charge,
            complete: false,
        }
    }

    /// When it was admitted.
    pub(super) const fn since(&self) -> Instant {
        self.charge.since
    }

    /// What is held.
    pub(super) const fn held(&mut self) -> Option<&mut Held> {
        self.held.as_mut()
    }

    /// The API server has answered; the permit is held by what `change` makes of it. Only a good answer tells how long requests of
    /// its shape take: a client that may not list would shorten that for all by what it is refused.
    pub(super) fn answered(
        &mut self,
        (now, status): (Instant, StatusCode),
        change: impl FnOnce(Permit) -> Held,
    ) {
        if let Some(shape) = self.charge.shape.take().filter(|_| status.is_success()) {
            let took = now.saturating_duration_since(self.sent.unwrap_or(self.charge.since));
            self.charge.given_up.times.observe(shape, took);
        }
        self.held = match self.held.take() {
            Some(Held::ToTheEnd { permit }) => Some(change(permit)),
            other => other,
        };
    }

    /// The request has ended without an answer, by the API server or by its own body: nothing that takes time runs there.
    pub(super) fn failed(&mut self) {
        self.charge.shape = None;
    }

    /// The answer has come to its end; `all_sent` if the request's body has, too. What has not is reset.
    pub(super) fn complete(&mut self, all_sent: bool) {
        self.complete = all_sent;
        if let Some(turn) = &mut self.turn {
            turn.complete();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let (turn, held) = (self.turn.take(), self.held.take());
        if self.complete {
            return drop((turn, held));
        }
        give_up(turn, held, &self.charge, self.sent);
    }
}

/// Keeps what a request holds that was given up, for as long as it is charged.
fn give_up(
    mut turn: Option<Box<dyn Turn>>,
    held: Option<Held>,
    charge: &Charge,
    sent: Option<Instant>,
) {
    let (now, given_up) = (Clock.now(), &charge.given_up);
    let until = charge.shape.zip(sent).map_or(now, |(shape, sent)| {
        let took = now.saturating_duration_since(sent);
        given_up.times.observe_at_least(shape, took);
        sent + given_up.times.average(shape)
    });
    let until = until.min(charge.deadline);
    let seen = turn.as_mut().and_then(|turn| turn.given_up());
    let waits = until > now || seen.is_some();
    let Some(runtime) = Handle::try_current().ok().filter(|_| waits) else {
        return drop((turn, held));
    };
    // The slot of a shared connection has no other owner: it is kept until the reset was seen. A seat has its deadline.
    let (deadline, seen_by) = (charge.deadline, now + RESET_SEEN_WITHIN);
    let counted = Counted::one_more(given_up.kept.clone());
    runtime.spawn(async move {
        let (mut held, mut end) = (held, End::Reset);
        if let Some(seen) = seen {
            let mut seen = pin!(timeout_at(seen_by.into(), seen));
            end = tokio::select! {
                end = seen.as_mut() => end,
                () = sleep_until(deadline.into()) => {
                    held = None;
                    seen.await
                }
            }
            .unwrap_or(End::Reset);
        }
        drop(turn);
        if end == End::Reset && held.is_some() {
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
    use crate::flowcontrol::controller::Times;
    use crate::limits::Admission;
    use crate::limits::MaxInFlight;
    use crate::limits::RequestDigest;
    use crate::limits::max_in_flight;
    use crate::request_info::RequestInfo;
    use crate::upstream::forward::Seen;

    /// A stream whose reset is seen when the test says so.
    struct Stream(Option<oneshot::Receiver<()>>);

    impl Turn for Stream {
        fn complete(&mut self) {}

        fn given_up(&mut self) -> Option<Seen> {
            let seen = self.0.take()?;
            Some(Box::pin(async move {
                let _ = seen.await;
                End::Reset
            }))
        }
    }

    /// One seat, and what tells whether it is free.
    struct Seat {
        admission: Admission,
        given_up: Arc<GivenUp>,
    }

    impl Seat {
        fn new() -> Self {
            let registry = Registry::new();
            let config = max_in_flight::Config {
                read_only: 1.into(),
                mutating: 1.into(),
            };
            Self {
                admission: Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, &registry))),
                given_up: GivenUp::new(GivenUp::register(&registry)),
            }
        }

        async fn take(&self) -> Option<Permit> {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let user = UserInfo::anonymous();
            let digest = RequestDigest {
                info: &info,
                user: &user,
            };
            let times = Times::at(Clock.now());
            self.admission.admit(&digest, times).await.ok()
        }

        /// A request that is sent now, and what says that its reset was seen.
        async fn send(&self) -> (InFlight, oneshot::Sender<()>) {
            let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
            let charge = Charge {
                given_up: Arc::clone(&self.given_up),
                shape: Some(Shape::of(&info)),
                since: Clock.now(),
                deadline: Clock.now() + Duration::from_secs(60),
            };
            let mut in_flight = InFlight::new(self.take().await.unwrap(), charge);
            let (see, seen) = oneshot::channel();
            in_flight.turn = Some(Box::new(Stream(Some(seen))));
            in_flight.sent = Some(Clock.now());
            (in_flight, see)
        }

        async fn is_free(&self) -> bool {
            tokio::task::yield_now().await;
            self.take().await.is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_counts_for_what_its_shape_takes() {
        let seat = Seat::new();
        let (mut answered, _) = seat.send().await;
        tokio::time::advance(Duration::from_secs(5)).await;
        let good = (Clock.now(), StatusCode::OK);
        answered.answered(good, |permit| Held::ToTheEnd { permit });
        answered.complete(true);
        drop(answered);
        assert!(seat.is_free().await, "at its end");
        let (given_up, see) = seat.send().await;
        tokio::time::advance(Duration::from_millis(4)).await;
        drop(given_up);
        see.send(()).unwrap();
        tokio::time::advance(Duration::from_millis(4900)).await;
        assert!(!seat.is_free().await);
        assert_eq!(seat.given_up.kept.get(), 1);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(seat.is_free().await);
        assert_eq!(seat.given_up.kept.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_counts_until_its_reset_was_seen_and_not_beyond_its_deadline()
     {
        let seat = Seat::new();
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
    async fn what_was_not_sent_yet_is_free_at_once_and_tells_nothing_of_its_shape() {
        let seat = Seat::new();
        let (mut waiting, see) = seat.send().await;
        (waiting.turn, waiting.sent) = (None, None);
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
    async fn only_good_answers_tell_how_long_requests_take() {
        let seat = Seat::new();
        let info = RequestInfo::parse("GET", b"/api/v1/pods").unwrap();
        let average = || seat.given_up.times.average(Shape::of(&info)).as_millis();
        for (status, expected) in [(200, 5000), (403, 5000), (404, 5000), (201, 4375)] {
            let (mut answered, _) = seat.send().await;
            let took = if status == 200 { 5 } else { 0 };
            tokio::time::advance(Duration::from_secs(took)).await;
            let status = StatusCode::from_u16(status).unwrap();
            answered.answered((Clock.now(), status), |permit| Held::ToTheEnd { permit });
            answered.complete(true);
            assert_eq!(average(), expected, "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_at_the_server_is_charged_no_longer() {
        let seat = Seat::new();
        let (mut failed, see) = seat.send().await;
        drop(see);
        failed.failed();
        drop(failed);
        assert!(seat.is_free().await);
    }
}
