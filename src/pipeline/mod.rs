//! One request, start to end. Read `Pipeline::serve` first: it is the diagram of the README.
//!
//! A [`Pipeline`] has a file of functions for each of its [`steps`]; [`dependencies`] are what they
//! use. Values go from step to step, so that a wrong order does not compile. Each step either
//! continues or rejects the request. A rejected request never reaches the upstream. The body of the
//! response owns what an admitted request holds and releases it with the last byte, or as soon as the client
//! disconnects.
//!
//! It is one function and not a stack of layers, since the steps need each other's results: the
//! RequestInfo, the user, the permit.
//!
//! # Cancel safety
//! The futures here are dropped when the client disconnects. The drop releases what the request
//! holds: the upstream's stream is reset first, then the permit is released.

pub mod connection;
pub mod dependencies;
pub mod reject;
pub mod response;
pub mod steps;
pub mod trace;

pub use crate::pipeline::dependencies::Pipeline;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, Response, header, request};
use hyper::body::Incoming;

use crate::identity::client_certificate::ClientTrust;
use crate::identity::client_certificate::trust::TrustObserver;
use crate::pipeline::connection::peer::{Peer, ReceivedHead};
use crate::pipeline::connection::request_count::CloseConnection;
use crate::pipeline::reject::body_drain::{RejectionContext, RequestBodyState};
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::response::body::Body;
use crate::pipeline::steps::admission::PresentedCredential;
use crate::pipeline::steps::forward::AdmittedRequest;
use crate::pipeline::steps::rejection_response::DelayableRejection;
use crate::pipeline::steps::upgrade::take_upgrade;
use crate::pipeline::trace::{MetricSubject, Trace};
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::loop_detection;
use weir_base::clock::Clock;
use weir_io::in_place;
use weir_io::pauses::ServerLoad;
use weir_limits::AdmissionAttributes;
use weir_limits::RequestSource;
use weir_tokens::bearer::has_websocket_token;

impl Pipeline {
    /// Observes which client certificates are trusted, for a new connection.
    #[must_use]
    pub fn trust_observer(&self) -> TrustObserver<ClientTrust> {
        self.shared.authenticator.trust_observer()
    }

    /// Responds to a request. The head is boxed, since each step would otherwise move it and keep
    /// its memory long after.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<request::Parts>,
        body: Incoming,
    ) -> Response<Body> {
        let mut trace = self.start_trace();
        let context = RejectionContext::from_request(&head, &body);
        let is_probe = loop_detection::is_probe(&head);
        let mut body = RequestBodyState::Unread(ClientBody::new(body, head.version));
        // Boxed, so that a delayed rejection does not keep the memory of all steps.
        let served = in_place::pinned(|| self.serve(peer, head, &mut body, &mut trace));
        let rejected = match served.await {
            Ok(response) => return self.answer_probe(is_probe, response),
            Err(rejected) => rejected,
        };
        let rejection = self.respond(peer, context, body, &rejected, &mut trace);
        self.answer_probe(is_probe, rejection.await)
    }

    /// Runs the steps of a request.
    async fn serve(
        &self,
        peer: &Peer,
        mut head: Box<request::Parts>,
        body: &mut RequestBodyState,
        trace: &mut Trace,
    ) -> Result<Response<Body>, DelayableRejection> {
        let received = ReceivedHead { peer, head: &head };
        let target = self.request_target(received, trace)?;
        let info = self.parse_info(peer, &head.method, &target, trace)?;
        let subject = MetricSubject::from_head(&head, &info);
        let arrival = trace.arrival(self.wall());
        self.start_record(received, &target, &info, arrival, trace);
        let deadline = self.request_deadline(&info, arrival.at);
        let drain_guard = self.drain_guard(&info);

        let mut rejected_headers = HeaderMap::new();
        let response = async {
            let received = ReceivedHead { peer, head: &head };
            self.check_loop_and_readiness(received, &info)?;
            let deadline = deadline?;
            let asserted = self.asserted_user(received, arrival.wall);
            let upgrade = take_upgrade(&mut head, peer).filter(|upgrade| {
                info.is_resource_request() || has_websocket_token(&head.headers, &upgrade.protocol)
            });
            self.propagate_trace(&mut head.headers, trace);
            let received = ReceivedHead { peer, head: &head };
            let auth = self
                .authenticate(asserted, received, upgrade.as_ref(), arrival, trace)
                .await?;
            let effective = self.effective_user(&auth, received, trace).await?;
            let (info, user) = (&info, effective.for_limits(&auth));
            peer.record_user(user);
            let attributes = AdmissionAttributes { info, user };
            let credential = PresentedCredential {
                auth: &auth,
                upgrade: upgrade.as_ref(),
            };
            let seen = self.shared.levers.latest();
            let admitted = self
                .admit(&attributes, received, body, credential, deadline, trace)
                .await
                .inspect_err(|_| rejected_headers = std::mem::take(&mut head.headers))?;
            let user_agent = head.headers.get(header::USER_AGENT).cloned();
            let admitted = AdmittedRequest {
                observed_list: self.observed_list(info, &head),
                outgoing: self.build_request(info, head, peer, &auth, &effective)?,
                body: self.outgoing_body(admitted.body, body),
                upgrade,
                permit: admitted.permit,
                reader: self.reader(peer.requester(user), admitted.reserved),
                deadline,
                is_proven: self.shared.authenticator.is_proven(&auth),
                drain_guard,
            };
            // Boxed: a rejected request does not pay for the memory of forwarding.
            let forwarded = in_place::pinned(|| self.forward(subject, admitted, trace));
            let source = RequestSource {
                address: peer.address.ip(),
                user_agent: user_agent.as_ref().map_or(b"", HeaderValue::as_bytes),
            };
            tokio::select! {
                biased;
                // First: of a response that begins now nothing would know that it is to end.
                ended = self.ended_by_lever(&attributes, source, seen) => Err(ended),
                forwarded = forwarded => forwarded.map(|mut response| {
                    if self.is_disconnected(&attributes, source, peer) {
                        response.extensions_mut().insert(CloseConnection);
                    }
                    response
                }),
            }
        };
        response.await.map_err(|rejection| {
            trace.record_rejection(subject, &rejection.facts(), &rejected_headers);
            self.delayable(rejection, peer, &info, trace.effective_user())
        })
    }

    /// Wakes the worker's waiting requests whenever there is a new lever, and ends those in flight that
    /// it is aimed at. Ends with the process.
    pub(crate) fn announce_levers(&self) -> impl Future<Output = ()> + use<> {
        let levers = Arc::clone(&self.shared.levers);
        let mut announcements = levers.announcements();
        let waiting = Arc::clone(&self.worker.lever_pulled);
        let deadlines = Arc::clone(&self.worker.deadlines);
        async move {
            let mut seen = levers.latest();
            while announcements.changed().await.is_ok() {
                waiting.notify_waiters();
                let new;
                (new, seen) = levers.ending(seen);
                if !new.is_empty() {
                    deadlines.end_by(&new, Clock.now());
                }
            }
        }
    }

    /// The number of the latest lever.
    #[must_use]
    pub(crate) fn latest_lever(&self) -> u64 {
        self.shared.levers.latest()
    }

    /// Whether a lever that is newer than a connection has it end with this request.
    fn is_disconnected(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        peer: &Peer,
    ) -> bool {
        if self.shared.levers.latest() == peer.levers_at_start {
            return false;
        }
        let (levers, _) = self.shared.levers.ending(peer.levers_at_start);
        let (now, moment) = (Clock.now(), peer.disconnect_moment());
        levers
            .iter()
            .any(|lever| lever.disconnects(attributes, source, now, moment))
    }

    /// After how long a lever that is newer than a connection ends it, whether or not it has a request,
    /// by the user of its last one. `None` if none does.
    pub(crate) fn disconnect_after(&self, peer: &Peer) -> Option<Duration> {
        if self.shared.levers.latest() == peer.levers_at_start {
            return None;
        }
        let user = peer.last_user.lock().clone()?;
        let (levers, _) = self.shared.levers.ending(peer.levers_at_start);
        let (now, moment, address) = (Clock.now(), peer.disconnect_moment(), peer.address.ip());
        let mut waits = levers
            .iter()
            .filter_map(|lever| lever.disconnects_client_in(&user, address, now, moment));
        let first = waits.next()?;
        Some(waits.fold(first, Duration::min))
    }

    /// Completes when a lever that is newer than `seen` ends a request that has no response yet. Other
    /// levers end it when its response has begun.
    async fn ended_by_lever(
        &self,
        attributes: &AdmissionAttributes<'_>,
        source: RequestSource<'_>,
        mut seen: u64,
    ) -> RequestRejection {
        loop {
            let mut pulled = pin!(self.worker.lever_pulled.notified());
            // Before the look: a lever that is pulled in between wakes the request.
            pulled.as_mut().enable();
            let levers = &self.shared.levers;
            if levers.latest() != seen {
                let (new, latest) = levers.ending(seen);
                for lever in new {
                    let end = lever.ends_in(attributes, source, Clock.now(), 1.0);
                    if lever.spec.ends_in_flight && end.is_some() {
                        return RequestRejection::Ended(lever.spec.reason.as_str().into());
                    }
                }
                seen = latest;
            }
            pulled.await;
        }
    }

    /// Closes connections to the API server that have been idle for 45 s.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.worker.upstream.close_idle(now);
    }

    /// What the API servers have to do now.
    pub(crate) fn upstream_load(&self) -> ServerLoad {
        self.worker.upstream.load()
    }
}
