//! Saying no to a request: when, how, and what becomes of its connection.

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
use crate::identity::tokens::turns::network;
use crate::limits::Rejection;
use crate::limits::RequestDigest;
use crate::limits::hold::OwnedFlow;
use crate::metrics::Registry;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::body::Body;
use crate::pipeline::refusal::Encoding;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_body::source;
use crate::pipeline::trace::Trace;
use crate::request_info::RequestInfo;
use crate::request_info::RequestKind;
use crate::upstream::client_body::ClientBody;
use crate::upstream::read_body::Budget;
use crate::upstream::read_body::Reserved;

/// A refused request's body up to this size is skipped so that the connection can go on; Go's server does the same
/// (`net/http.maxPostHandlerReadBytes`). A larger one, or one that dawdles, costs the connection. On HTTP/2 it costs the stream
/// only, which is reset behind the answer; but some clients (curl 7.88 is one) then report the reset and not the answer.
const SKIP_AT_MOST: u64 = 256 << 10;

/// How long a refused request's body may take to come.
const SKIP_WITHIN: Duration = Duration::from_secs(1);

/// How many bodies of one HTTP/2 connection are waited for at once, so that streams that never end are no way to fill the memory.
pub const SKIPS_AT_ONCE: usize = 4;

/// How many bodies of refused requests are waited for in all: each may take what its client has sent of it (256 KiB at most) for a
/// second. A quarter of them for one source network.
pub const SKIPPED_IN_ALL: usize = 1024;

/// All refused requests whose bodies are waited for.
#[derive(Debug)]
pub struct SkippedBodies {
    places: Arc<Budget>,
    no_place: IntCounter,
}

impl SkippedBodies {
    /// [`SKIPPED_IN_ALL`] places.
    #[must_use]
    pub fn new(registry: &Registry) -> Arc<Self> {
        let places = Budget::new(SKIPPED_IN_ALL);
        let taken = Arc::clone(&places);
        registry.gauge_of(
            "weir_skipped_bodies",
            "Rejected requests whose bodies are read to their end at the moment, so that their connections can go on.",
            move || taken.taken(),
        );
        Arc::new(Self {
            places,
            no_place: registry.counter(
                "weir_skipped_bodies_refused_total",
                "Rejected requests whose bodies were not read because as many are read already in all, from the client's address, or on the connection: on HTTP/1.1 the connection ends.",
            ),
        })
    }

    /// A place for a body from this source; `None` where there is none.
    fn place(&self, source: Option<IpAddr>) -> Option<Reserved> {
        let mut place = self.places.reserve_for(source);
        place.grow_to(1).then_some(place)
    }
}

/// The refused requests of a connection whose bodies are waited for.
#[derive(Debug)]
pub struct Skips(Semaphore);

impl Default for Skips {
    fn default() -> Self {
        Self(Semaphore::new(SKIPS_AT_ONCE))
    }
}

/// A refusal, and the flow whose retries are held; `None` for what is never held.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    flow: Option<OwnedFlow>,
}

impl From<Refusal> for Refused {
    /// Of a request that could not be read: never held.
    fn from(refusal: Refusal) -> Self {
        let flow = None;
        Self { refusal, flow }
    }
}

impl Pipeline {
    /// Says no: at once, or when the time is over that the client was told to wait. Nothing of the request is kept till then but
    /// what is written down of it.
    pub(super) async fn refuse(
        &self,
        peer: &Peer,
        (asked, body): (Asked, Unread),
        refused: &Refused,
        trace: &mut Trace,
    ) -> Response<Body> {
        let refusal = &refused.refusal;
        self.log(refusal);
        let goes_on = if asked.http1 && refusal.ends_connection() {
            drop(body);
            false
        } else if !asked.body {
            drop(body);
            true
        } else {
            Box::pin(asked.skip(body, peer, &self.skipped_bodies)).await
        };
        // In a box: most refusals are not held.
        if let Some(held) = self.held_back(peer, refused, trace).map(Box::pin) {
            held.await;
        }
        let mut response = self.refusals.respond(refusal, asked.encoding);
        if !goes_on && asked.http1 {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if asked.head {
            response = without_body(response);
        }
        response
    }

    /// What waits for the time at which a client may get this answer that came back before its `Retry-After` was over.
    fn held_back<'a>(
        &'a self,
        peer: &'a Peer,
        Refused { refusal, flow }: &Refused,
        trace: &mut Trace,
    ) -> Option<impl Future<Output = ()> + use<'a>> {
        let (flow, wait) = ((*flow)?, refusal.wait()?);
        let mut room = None;
        let mut fits = |long: &_| {
            room = trace.keeps_to_itself(long);
            room.is_some()
        };
        let held = self
            .holding
            .hold(&peer.patience, flow, wait, &self.drain, &mut fits)?;
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
    pub(super) fn refused(
        &self,
        refusal: Refusal,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> Refused {
        let flow = self.flow(&refusal, peer, info, user);
        Refused { refusal, flow }
    }

    fn flow(
        &self,
        refusal: &Refusal,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> Option<OwnedFlow> {
        refusal.retry_after()?;
        if info.long_running() || is_lease_write(info) {
            return None;
        }
        let code = refusal.code();
        let (limiter, class) = if let Refusal::Rejected(rejection) = refusal {
            (rejection.limiter(), rejection.class())
        } else {
            (code.as_str(), "")
        };
        // What the levels never reject may meet a rate, or an API server that is not there.
        let by_level = matches!(
            refusal,
            Refusal::Rejected(Rejection::Fairness(_) | Rejection::MaxInFlight { .. })
        );
        let exempt = |user| self.admission.exempts(&RequestDigest { info, user });
        if !by_level && user.is_some_and(exempt) {
            return None;
        }
        let who = user.map_or(ANONYMOUS, UserInfo::distinguisher);
        // Unauthenticated clients are told apart by where they are.
        let from = (who == ANONYMOUS).then(|| network(peer.address.ip()));
        // Behind a trusted proxy many clients share an address.
        let apart = from.is_none() || !peer.trusted;
        let owner = apart.then_some((who, from));
        self.holding.flow((who, from, limiter, class), owner)
    }

    /// An upstream that fails is for the operator to know; whatever else is refused, the client is told and it is counted.
    fn log(&self, refusal: &Refusal) {
        if let Refusal::Forward(why) = refusal
            && let Some(more) = self.upstream_log.may_say(Clock.now())
        {
            warn!(reason = why.label(), %why, more, "no answer from the API server");
        }
    }
}

fn is_lease_write(info: &RequestInfo<'_>) -> bool {
    RequestKind::of(info) == RequestKind::Mutating
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
pub(super) enum Unread {
    /// It may still come.
    Left(ClientBody),
    /// All of it has been read.
    Nothing,
    /// It is on its way upstream.
    Gone,
}

impl Unread {
    /// Takes it for its way upstream, if it is there.
    pub(super) fn take(&mut self) -> Option<ClientBody> {
        match std::mem::replace(self, Self::Gone) {
            Self::Left(body) => Some(body),
            Self::Nothing | Self::Gone => None,
        }
    }

    /// It, to be read.
    pub(super) const fn as_mut(&mut self) -> Option<&mut ClientBody> {
        match self {
            Self::Left(body) => Some(body),
            Self::Nothing | Self::Gone => None,
        }
    }
}

/// What a refusal needs to know of a request that was taken apart: nothing that is a part of the connection's buffer.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    encoding: Encoding,
    head: bool,
    http1: bool,
    /// Whether more than the head was to come.
    body: bool,
    expects_continue: bool,
}

impl Asked {
    pub(super) fn of(head: &request::Parts, body: &Incoming) -> Self {
        Self {
            encoding: Encoding::accepted(head.headers.get(header::ACCEPT)),
            head: head.method == Method::HEAD,
            http1: head.version < Version::HTTP_2,
            body: !body.is_end_stream(),
            expects_continue: head.headers.contains_key(header::EXPECT),
        }
    }

    /// Reads what is left of a refused request's body, and says whether that was all: if it is small and comes soon, nothing stands
    /// in the way of the answer, nor of the next request on an HTTP/1.1 connection.
    async fn skip(self, body: Unread, peer: &Peer, skipped: &SkippedBodies) -> bool {
        let mut body = match body {
            Unread::Left(body) => body,
            Unread::Nothing => return true,
            Unread::Gone => return false, // it is not looked after any more
        };
        if body.is_end_stream() {
            return true;
        }
        if self.expects_continue || body.size_hint().lower() > SKIP_AT_MOST {
            return false;
        }
        let of_connection = peer.skips.0.try_acquire().ok();
        let place = of_connection.and_then(|own| Some((own, skipped.place(source(peer))?)));
        let Some(_place) = place else {
            skipped.no_place.inc();
            return false;
        };
        let skipped = async {
            let mut left = SKIP_AT_MOST;
            while let Some(frame) = body.frame().await {
                let bytes = frame.ok()?.data_ref().map_or(0, |data| data.len());
                left = left.checked_sub(u64::try_from(bytes).ok()?)?;
            }
            Some(())
        };
        matches!(
            tokio::time::timeout(SKIP_WITHIN, skipped).await,
            Ok(Some(()))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;
    use crate::drain::Stage;
    use crate::limits::hold::Wait;
    use crate::pipeline::holding::Holding;
    use crate::pipeline::holding::Patience;

    type Handled = (
        &'static Pipeline,
        &'static Peer,
        Box<request::Parts>,
        Incoming,
    );

    #[test]
    fn one_address_has_a_quarter_of_the_places_for_skipped_bodies() {
        let skipped = SkippedBodies::new(&Registry::new());
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut places = Vec::new();
        for _ in 0..SKIPPED_IN_ALL / 4 {
            places.push(skipped.place(one).expect("there is one"));
        }
        assert!(skipped.place(one).is_none());
        assert!(skipped.place(other).is_some());
        while let Some(place) = skipped.place(None) {
            places.push(place);
        }
        assert_eq!(places.len(), SKIPPED_IN_ALL);
        assert!(skipped.place(other).is_none());
        drop(places);
        assert!(skipped.place(one).is_some());
    }

    fn size_of_future<T, F: Future>(_: impl Fn(T) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_some<T, F: Future>(_: impl Fn(T) -> Option<F>) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_futures_of_a_refusal_that_is_held_take_less_than_two_kibibytes() {
        type Told = (
            &'static Holding,
            &'static Patience,
            OwnedFlow,
            Wait,
            &'static Drain,
        );
        let parts = [
            size_of_future(|(pipeline, peer, head, body): Handled| {
                pipeline.handle(peer, head, body)
            }),
            size_of_some(
                |(pipeline, peer, refused, mut trace): (
                    &'static Pipeline,
                    &'static Peer,
                    Refused,
                    Trace,
                )| { pipeline.held_back(peer, &refused, &mut trace) },
            ),
            size_of_some(|(holding, patience, flow, wait, drain): Told| {
                holding.hold(patience, flow, wait, drain, &mut |_| true)
            }),
            size_of_future(|drain: &'static Drain| drain.reached(Stage::Closing)),
        ];
        // Its entry in the table, and a timer, come to less than 256.
        assert!(parts.iter().sum::<usize>() + 256 < 2048, "{parts:?}");
    }
}
