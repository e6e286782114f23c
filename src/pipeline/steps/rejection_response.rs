//! The response to a rejected request: immediate or delayed, and what happens to its connection.

use std::future::Future;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::Body as _;
use tracing::warn;

use crate::limits::Rejection;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::body_drain::{RejectionContext, RequestBodyState};
use crate::pipeline::reject::rejection::{RequestRejection, StatusEncoding};
use crate::pipeline::response::body::Body;
use crate::pipeline::response::explain::set_explain_headers;
use crate::pipeline::trace::Trace;
use weir_base::clock::Clock;
use weir_base::source_network::source_network;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::ANONYMOUS;
use weir_kubernetes::request_info::{RequestInfo, RequestKind};
use weir_limits::AdmissionAttributes;
use weir_limits::rejection_hold::HoldKey;
use weir_limits::throttling::retry_pacing::RejectionCost;

/// A rejection and the key under which its retries are delayed; `None` for a rejection that is
/// never delayed.
#[derive(Debug)]
pub(crate) struct DelayableRejection {
    pub(crate) rejection: RequestRejection,
    hold_key: Option<HoldKey>,
}

impl From<RequestRejection> for DelayableRejection {
    /// Of a malformed request: never delayed.
    fn from(rejection: RequestRejection) -> Self {
        let hold_key = None;
        Self {
            rejection,
            hold_key,
        }
    }
}

impl Pipeline {
    /// The response to a request that has ended in a panic.
    pub(crate) fn panic_response(&self) -> Response<Body> {
        self.shared
            .rejection_responses
            .respond(&RequestRejection::Panic, StatusEncoding::Json)
    }

    /// The response to a rejected request. A client that retries before its `Retry-After` has
    /// passed gets it only when it has. Until then weir keeps nothing of the request but its
    /// record.
    pub(crate) async fn respond(
        &self,
        peer: &Peer,
        context: RejectionContext,
        body: RequestBodyState,
        rejected: &DelayableRejection,
        trace: &mut Trace,
    ) -> Response<Body> {
        let rejection = &rejected.rejection;
        self.log_upstream_failure(rejection);
        let keeps_connection = if context.is_http1 && rejection.closes_connection() {
            drop(body);
            false
        } else if !context.has_body {
            drop(body);
            true
        } else {
            Box::pin(context.drain_body(body, peer, &self.shared.body_drain_budget)).await
        };
        // Boxed: most rejections are not delayed.
        if let Some(delay) = self.hold_rejection(peer, rejected, trace).map(Box::pin) {
            delay.await;
        }
        let paced = self.paced_retry_after(peer, rejected, context.is_http1);
        let encoding = context.encoding;
        let mut response = self
            .shared
            .rejection_responses
            .respond_after(rejection, encoding, paced);
        if !keeps_connection && context.is_http1 {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if context.is_head {
            response = without_body(response);
        }
        trace.annotate_audit_id(response.headers_mut());
        if self.shared.settings.explain_responses {
            set_explain_headers(response.headers_mut(), trace.decision());
        }
        response
    }

    /// The delay of a rejection whose client retried before its `Retry-After` had passed; `None` if
    /// there is none.
    fn hold_rejection<'a>(
        &'a self,
        peer: &'a Peer,
        DelayableRejection {
            rejection,
            hold_key,
        }: &DelayableRejection,
        trace: &mut Trace,
    ) -> Option<impl Future<Output = ()> + use<'a>> {
        let (hold_key, mut policy) = ((*hold_key)?, rejection.hold_policy()?);
        if rejection.is_seat_rejection() {
            policy.pacing_backlog = self.shared.rejection_delay.pacing_backlog();
        }
        let mut reservation = None;
        let mut fits = |budget: &_| {
            reservation = trace.detach_record(budget);
            reservation.is_some()
        };
        let delay = self.shared.rejection_delay.hold(
            &peer.hold_state,
            hold_key,
            policy,
            &self.shared.drain,
            &mut fits,
        )?;
        // Boxed, since a value that is moved into a future takes its size twice.
        let delay = Box::pin(delay);
        Some(async move {
            let _reservation = reservation;
            delay.await;
        })
    }

    /// The `Retry-After` of a rejection for lack of a seat that is sent now; `None` for others and
    /// for those that are never delayed.
    fn paced_retry_after(
        &self,
        peer: &Peer,
        rejected: &DelayableRejection,
        is_http1: bool,
    ) -> Option<u32> {
        if !rejected.rejection.is_seat_rejection() {
            return None;
        }
        let retry_after = rejected.rejection.retry_after()?;
        let cost = if is_http1 {
            RejectionCost::Http1
        } else {
            RejectionCost::Http2
        };
        let paced = self.shared.rejection_delay.pace(
            &peer.hold_state,
            rejected.hold_key?,
            retry_after,
            cost,
        );
        Some(paced)
    }

    /// Adds the hold key to a rejection that may be delayed. These are responses with
    /// `Retry-After`, except to long-running requests (clients do not repeat them in a loop), to
    /// writes of a lease (a leader that gets its response late could lose its lease), to requests
    /// that waited when a lever was pulled, and to those that priority and fairness exempts. `user` is `None` before authentication.
    pub(crate) fn delayable(
        &self,
        rejection: RequestRejection,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> DelayableRejection {
        let hold_key = self.rejection_hold_key(&rejection, peer, info, user);
        DelayableRejection {
            rejection,
            hold_key,
        }
    }

    fn rejection_hold_key(
        &self,
        rejection: &RequestRejection,
        peer: &Peer,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> Option<HoldKey> {
        rejection.retry_after()?;
        let waited = matches!(
            rejection,
            RequestRejection::Limit(Rejection::Lever { waited: true, .. })
        );
        if waited || info.long_running() || is_lease_write(info) {
            return None;
        }
        let code = rejection.code();
        let (limiter, class) = if let RequestRejection::Limit(rejection) = rejection {
            (rejection.limiter_label(), rejection.flow_class())
        } else {
            (code.as_str(), "")
        };
        // A request that the levels never reject may still be rejected by a rate or by an
        // unavailable API server.
        let exempt = |user| {
            self.shared
                .admission
                .is_exempt(&AdmissionAttributes { info, user })
        };
        if !rejection.is_seat_rejection() && user.is_some_and(exempt) {
            return None;
        }
        let user_key = user.map_or(ANONYMOUS, UserInfo::distinguisher);
        // Unauthenticated clients are distinguished by their network.
        let network = (user_key == ANONYMOUS).then(|| source_network(peer.address.ip()));
        // Behind a trusted proxy many clients share an address.
        let has_owner = network.is_none() || !peer.trusted;
        let owner = has_owner.then_some((user_key, network));
        self.shared
            .rejection_delay
            .hold_key((user_key, network, limiter, class), owner)
    }

    /// Logs upstream failures, which concern the operator. Other rejections are only counted.
    fn log_upstream_failure(&self, rejection: &RequestRejection) {
        if let RequestRejection::Forward(why) = rejection
            && let Some(more) = self.shared.upstream_log_limiter.try_log(Clock.now())
        {
            warn!(reason = why.label(), %why, more, "no response from the API server");
        }
    }
}

fn is_lease_write(info: &RequestInfo<'_>) -> bool {
    RequestKind::from_request_info(info) == RequestKind::Mutating
        && info.resource() == b"leases"
        && info.api_group() == b"coordination.k8s.io"
}

/// The response to a HEAD: the length of a body, and no body. On HTTP/2 the library does not remove
/// it.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, Body::fixed(Bytes::new()))
}

#[cfg(test)]
mod tests {
    use http::request;
    use hyper::body::Incoming;

    use super::*;
    use crate::pipeline::connection::peer::HoldState;
    use crate::pipeline::reject::delay::RejectionDelay;
    use weir_base::drain::{Drain, DrainStage};
    use weir_limits::rejection_hold::HoldPolicy;

    type HandleArgs = (
        &'static Pipeline,
        &'static Peer,
        Box<request::Parts>,
        Incoming,
    );

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
        // Its entry in the table and a timer take less than 256 bytes.
        assert!(parts.iter().sum::<usize>() + 256 < 2048, "{parts:?}");
    }
}
