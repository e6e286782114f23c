//! Saying no to a request: when, how, and what becomes of its connection.

pub mod delay;
pub mod invalid_head;
pub(in crate::pipeline) mod malformed;
pub mod rejection;
pub mod response_cache;

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::Method;
use http::Response;
use http::Version;
use http::header;
use http::request;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prometheus::IntCounter;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::api::UserInfo;
use crate::api::user::ANONYMOUS;
use crate::clock::Clock;
use crate::identity::review_queue::fair_queue::source_network;
use crate::limits::AdmissionAttributes;
use crate::limits::Rejection;
use crate::limits::rejection_hold::HoldKey;
use crate::metrics::Registry;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::reject::rejection::StatusEncoding;
use crate::pipeline::response::body::Body;
use crate::pipeline::trace::Trace;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::body::memory_budget::MemoryReservation;

/// A refused request's body up to this size is skipped so that the connection can go on; Go's server does the same
/// (`net/http.maxPostHandlerReadBytes`). A larger one, or one that dawdles, costs the connection. On HTTP/2 it costs the stream
/// only, which is reset behind the answer; but some clients (curl 7.88 is one) then report the reset and not the answer.
const MAX_DRAINED_BODY: u64 = 256 << 10;

/// How long a refused request's body may take to come.
const BODY_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How many bodies of one HTTP/2 connection are waited for at once, so that streams that never end are no way to fill the memory.
pub const BODY_DRAINS_PER_CONNECTION: usize = 4;

/// How many bodies of refused requests are waited for in all: each may take what its client has sent of it (256 KiB at most) for a
/// second. A quarter of them for one source network.
pub const MAX_BODY_DRAINS: usize = 1024;

/// All refused requests whose bodies are waited for.
#[derive(Debug)]
pub struct BodyDrainBudget {
    slots: Arc<MemoryBudget>,
    rejected: IntCounter,
}

impl BodyDrainBudget {
    /// [`MAX_BODY_DRAINS`] places.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let places = MemoryBudget::new(MAX_BODY_DRAINS);
        let taken = Arc::clone(&places);
        registry.gauge_fn(
            "weir_skipped_bodies",
            "Rejected requests whose bodies are read to their end at the moment, so that their connections can go on.",
            move || taken.used(),
        );
        Arc::new(Self {
            slots: places,
            rejected: registry.counter(
                "weir_skipped_bodies_refused_total",
                "Rejected requests whose bodies were not read because as many are read already in all, from the client's address, or on the connection: on HTTP/1.1 the connection ends.",
            ),
        })
    }

    /// A place for a body from this source; `None` where there is none.
    fn try_acquire(&self, source: Option<IpAddr>) -> Option<MemoryReservation> {
        let mut place = self.slots.reserve_for(source);
        place.try_grow_to(1).then_some(place)
    }
}

/// The refused requests of a connection whose bodies are waited for.
#[derive(Debug)]
pub struct BodyDrainSlots(Semaphore);

impl Default for BodyDrainSlots {
    fn default() -> Self {
        Self(Semaphore::new(BODY_DRAINS_PER_CONNECTION))
    }
}

/// A refusal, and the flow whose retries are held; `None` for what is never held.
#[derive(Debug)]
pub(super) struct DelayableRejection {
    pub(super) rejection: RequestRejection,
    hold_key: Option<HoldKey>,
}

impl From<RequestRejection> for DelayableRejection {
    /// Of a request that could not be read: never held.
    fn from(refusal: RequestRejection) -> Self {
        let flow = None;
        Self {
            rejection: refusal,
            hold_key: flow,
        }
    }
}

impl Pipeline {
    /// Says no: at once, or when the time is over that the client was told to wait. Nothing of the request is kept till then but
    /// what is written down of it.
    pub(super) async fn rejection_response(
        &self,
        peer: &Peer,
        (asked, body): (RejectionContext, RequestBodyState),
        refused: &DelayableRejection,
        trace: &mut Trace,
    ) -> Response<Body> {
        let refusal = &refused.rejection;
        self.log_upstream_failure(refusal);
        let goes_on = if asked.is_http1 && refusal.closes_connection() {
            drop(body);
            false
        } else if !asked.has_body {
            drop(body);
            true
        } else {
            Box::pin(asked.drain_body(body, peer, &self.body_drain_budget)).await
        };
        // In a box: most refusals are not held.
        if let Some(held) = self.hold_rejection(peer, refused, trace).map(Box::pin) {
            held.await;
        }
        let mut response = self.rejection_responses.respond(refusal, asked.encoding);
        if !goes_on && asked.is_http1 {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if asked.is_head {
            response = without_body(response);
        }
        response
    }

    /// What waits for the time at which a client may get this answer that came back before its `Retry-After` was over.
    fn hold_rejection<'a>(
        &'a self,
        peer: &'a Peer,
        DelayableRejection {
            rejection: refusal,
            hold_key: flow,
        }: &DelayableRejection,
        trace: &mut Trace,
    ) -> Option<impl Future<Output = ()> + use<'a>> {
        let (flow, wait) = ((*flow)?, refusal.hold_policy()?);
        let mut room = None;
        let mut fits = |long: &_| {
            room = trace.detach_record(long);
            room.is_some()
        };
        let held =
            self.rejection_delay
                .hold(&peer.hold_state, flow, wait, &self.drain, &mut fits)?;
        // In a box, since what is moved into a future takes its room twice.
        let held = Box::pin(held);
        Some(async move {
            let _room = room;
            held.await;
        })
    }

    /// With the flow that the refusal belongs to, where it may be held: answers that carry `Retry-After`, but none to a
    /// long-running request (clients do not repeat those in a loop), to the write of a lease (a leader that gets it late could
    /// lose its office), or to a request that priority and fairness exempts. `user` is none as long as it is not known.
    pub(super) fn delayable_rejection(
        &self,
        refusal: RequestRejection,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> DelayableRejection {
        let flow = self.rejection_hold_key(&refusal, peer, info, user);
        DelayableRejection {
            rejection: refusal,
            hold_key: flow,
        }
    }

    fn rejection_hold_key(
        &self,
        refusal: &RequestRejection,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> Option<HoldKey> {
        refusal.retry_after()?;
        if info.long_running() || is_lease_write(info) {
            return None;
        }
        let code = refusal.code();
        let (limiter, class) = if let RequestRejection::Limit(rejection) = refusal {
            (rejection.limiter_label(), rejection.flow_class())
        } else {
            (code.as_str(), "")
        };
        // What the levels never reject may meet a rate, or an API server that is not there.
        let by_level = matches!(
            refusal,
            RequestRejection::Limit(Rejection::Fairness(_) | Rejection::MaxInFlight { .. })
        );
        let exempt = |user| {
            self.admission
                .is_exempt(&AdmissionAttributes { info, user })
        };
        if !by_level && user.is_some_and(exempt) {
            return None;
        }
        let who = user.map_or(ANONYMOUS, UserInfo::distinguisher);
        // Unauthenticated clients are told apart by where they are.
        let from = (who == ANONYMOUS).then(|| source_network(peer.address.ip()));
        // Behind a trusted proxy many clients share an address.
        let apart = from.is_none() || !peer.trusted;
        let owner = apart.then_some((who, from));
        self.rejection_delay
            .hold_key((who, from, limiter, class), owner)
    }

    /// An upstream that fails is for the operator to know; whatever else is refused, the client is told and it is counted.
    fn log_upstream_failure(&self, refusal: &RequestRejection) {
        if let RequestRejection::Forward(why) = refusal
            && let Some(more) = self.upstream_log_limiter.try_log(Clock.now())
        {
            warn!(reason = why.label(), %why, more, "no answer from the API server");
        }
    }
}

fn is_lease_write(info: &RequestInfo<'_>) -> bool {
    RequestKind::from_request_info(info) == RequestKind::Mutating
        && info.resource() == b"leases"
        && info.api_group() == b"coordination.k8s.io"
}

/// The answer to a HEAD: the length of a body, and no body. HTTP/2 has nobody but us to leave it out.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, Body::fixed(Bytes::new()))
}

/// What has become of a request's body.
pub(super) enum RequestBodyState {
    /// It may still come.
    Unread(ClientBody),
    /// All of it has been read.
    Consumed,
    /// It is on its way upstream.
    Forwarded,
}

impl RequestBodyState {
    /// Takes it for its way upstream, if it is there.
    pub(super) fn take(&mut self) -> Option<ClientBody> {
        match std::mem::replace(self, Self::Forwarded) {
            Self::Unread(body) => Some(body),
            Self::Consumed | Self::Forwarded => None,
        }
    }

    /// It, to be read.
    pub(super) const fn as_mut(&mut self) -> Option<&mut ClientBody> {
        match self {
            Self::Unread(body) => Some(body),
            Self::Consumed | Self::Forwarded => None,
        }
    }
}

/// What a refusal needs to know of a request that was taken apart: nothing that is a part of the connection's buffer.
#[derive(Clone, Copy)]
pub(super) struct RejectionContext {
    encoding: StatusEncoding,
    is_head: bool,
    is_http1: bool,
    /// Whether more than the head was to come.
    has_body: bool,
    expects_continue: bool,
}

impl RejectionContext {
    pub(super) fn from_request(head: &request::Parts, body: &Incoming) -> Self {
        Self {
            encoding: StatusEncoding::from_accept(head.headers.get(header::ACCEPT)),
            is_head: head.method == Method::HEAD,
            is_http1: head.version < Version::HTTP_2,
            has_body: !body.is_end_stream(),
            expects_continue: head.headers.contains_key(header::EXPECT),
        }
    }

    /// Reads what is left of a refused request's body, and says whether that was all: if it is small and comes soon, nothing stands
    /// in the way of the answer, nor of the next request on an HTTP/1.1 connection.
    async fn drain_body(
        self,
        body: RequestBodyState,
        peer: &Peer,
        skipped: &BodyDrainBudget,
    ) -> bool {
        let mut body = match body {
            RequestBodyState::Unread(body) => body,
            RequestBodyState::Consumed => return true,
            RequestBodyState::Forwarded => return false, // it is not looked after any more
        };
        if body.is_end_stream() {
            return true;
        }
        if self.expects_continue || body.size_hint().lower() > MAX_DRAINED_BODY {
            return false;
        }
        let of_connection = peer.body_drain_slots.0.try_acquire().ok();
        let place =
            of_connection.and_then(|own| Some((own, skipped.try_acquire(peer.source_network())?)));
        let Some(_place) = place else {
            skipped.rejected.inc();
            return false;
        };
        let skipped = async {
            let mut left = MAX_DRAINED_BODY;
            while let Some(frame) = body.frame().await {
                let bytes = frame.ok()?.data_ref().map_or(0, |data| data.len());
                left = left.checked_sub(u64::try_from(bytes).ok()?)?;
            }
            Some(())
        };
        matches!(
            tokio::time::timeout(BODY_DRAIN_TIMEOUT, skipped).await,
            Ok(Some(()))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;
    use crate::drain::DrainStage;
    use crate::limits::rejection_hold::HoldPolicy;
    use crate::pipeline::reject::delay::HoldState;
    use crate::pipeline::reject::delay::RejectionDelay;

    type HandleArgs = (
        &'static Pipeline,
        &'static Peer,
        Box<request::Parts>,
        Incoming,
    );

    #[test]
    fn one_address_may_use_a_quarter_of_the_body_drain_budget() {
        let skipped = BodyDrainBudget::new(&Registry::new());
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut places = Vec::new();
        for _ in 0..MAX_BODY_DRAINS / 4 {
            places.push(skipped.try_acquire(one).expect("there is one"));
        }
        assert!(skipped.try_acquire(one).is_none());
        assert!(skipped.try_acquire(other).is_some());
        while let Some(place) = skipped.try_acquire(None) {
            places.push(place);
        }
        assert_eq!(places.len(), MAX_BODY_DRAINS);
        assert!(skipped.try_acquire(other).is_none());
        drop(places);
        assert!(skipped.try_acquire(one).is_some());
    }

    fn size_of_future<T, F: Future>(_: impl Fn(T) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_some<T, F: Future>(_: impl Fn(T) -> Option<F>) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_futures_of_a_held_rejection_take_less_than_two_kibibytes() {
        type HoldArgs = (
            &'static RejectionDelay,
            &'static HoldState,
            HoldKey,
            HoldPolicy,
            &'static Drain,
        );
        let parts = [
            size_of_future(|(pipeline, peer, head, body): HandleArgs| {
                pipeline.handle(peer, head, body)
            }),
            size_of_some(
                |(pipeline, peer, refused, mut trace): (
                    &'static Pipeline,
                    &'static Peer,
                    DelayableRejection,
                    Trace,
                )| { pipeline.hold_rejection(peer, &refused, &mut trace) },
            ),
            size_of_some(|(holding, patience, flow, wait, drain): HoldArgs| {
                holding.hold(patience, flow, wait, drain, &mut |_| true)
            }),
            size_of_future(|drain: &'static Drain| drain.reached(DrainStage::Closing)),
        ];
        // Its entry in the table, and a timer, come to less than 256.
        assert!(parts.iter().sum::<usize>() + 256 < 2048, "{parts:?}");
    }
}
