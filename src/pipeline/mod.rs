//! One request, start to end. Read `Pipeline::serve` first: it is the diagram of the README.
//!
//! A [`Pipeline`] has one struct for each of its [`steps`], and [`dependencies`] are what it is
//! built from. Values go from step to step, so that a wrong order does not compile. Each step either
//! continues or rejects the request. A rejected request never reaches the upstream. The body of the response
//! owns what an admitted request holds and releases it with the last byte, or as soon as the client
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

use std::time::Instant;

use http::{HeaderMap, Response, request};
use hyper::body::Incoming;

use crate::identity::bearer_token::has_websocket_token;
use crate::identity::client_certificate::ClientTrust;
use crate::identity::client_certificate::trust::TrustObserver;
use crate::in_place;
use crate::pipeline::connection::peer::{Peer, ReceivedHead};
use crate::pipeline::dependencies::{PipelineSettings, SharedDependencies, WorkerDependencies};
use crate::pipeline::reject::body_drain::{RejectionContext, RequestBodyState};
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::response::body::Body;
use crate::pipeline::steps::admission::AdmissionStep;
use crate::pipeline::steps::arrival::ArrivalStep;
use crate::pipeline::steps::authenticate::AuthenticationStep;
use crate::pipeline::steps::forward::{AdmittedRequest, ForwardingStep};
use crate::pipeline::steps::impersonation::ImpersonationStep;
use crate::pipeline::steps::rejection_response::{DelayableRejection, RejectionStep};
use crate::pipeline::steps::upgrade::take_upgrade;
use crate::pipeline::trace::{MetricSubject, Trace};
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::loop_detection;
use weir_limits::AdmissionAttributes;

/// The steps of a request, shared by all connections of a worker.
#[derive(Debug)]
pub struct Pipeline {
    arrival: ArrivalStep,
    authentication: AuthenticationStep,
    impersonation: ImpersonationStep,
    admission: AdmissionStep,
    forwarding: ForwardingStep,
    rejection: RejectionStep,
}

impl Pipeline {
    /// A pipeline of a worker. A later one of the same worker takes its place without losing
    /// anything if it is built from the same dependencies.
    #[must_use]
    pub fn new(
        shared: &SharedDependencies,
        worker: &WorkerDependencies,
        settings: PipelineSettings,
    ) -> Self {
        Self {
            arrival: ArrivalStep::new(shared, worker, settings),
            authentication: AuthenticationStep::new(shared, worker),
            impersonation: ImpersonationStep::new(shared, worker, settings),
            admission: AdmissionStep::new(shared, worker, settings),
            forwarding: ForwardingStep::new(shared, worker, settings),
            rejection: RejectionStep::new(shared, settings),
        }
    }

    /// Observes which client certificates are trusted, for a new connection.
    #[must_use]
    pub fn trust_observer(&self) -> TrustObserver<ClientTrust> {
        self.authentication.trust_observer()
    }

    /// Responds to a request. The head is boxed, since each step would otherwise move it and keep
    /// its memory long after.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<request::Parts>,
        body: Incoming,
    ) -> Response<Body> {
        let mut trace = self.arrival.start_trace();
        let context = RejectionContext::from_request(&head, &body);
        let is_probe = loop_detection::is_probe(&head);
        let mut body = RequestBodyState::Unread(ClientBody::new(body, head.version));
        // Boxed, so that a delayed rejection does not keep the memory of all steps.
        let served = in_place::pinned(|| self.serve(peer, head, &mut body, &mut trace));
        let rejected = match served.await {
            Ok(response) => return self.arrival.answer_probe(is_probe, response),
            Err(rejected) => rejected,
        };
        let rejection = self
            .rejection
            .respond(peer, context, body, &rejected, &mut trace);
        self.arrival.answer_probe(is_probe, rejection.await)
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
        let target = self.arrival.request_target(received, trace)?;
        let info = self
            .arrival
            .parse_info(peer, &head.method, &target, trace)?;
        let subject = MetricSubject::from_head(&head, &info);
        let arrival = trace.arrival(self.arrival.wall());
        self.arrival
            .start_record(received, &target, &info, arrival, trace);
        let deadline = self.arrival.request_deadline(&info, arrival.at);
        let drain_guard = self.arrival.drain_guard(&info);

        let mut rejected_headers = HeaderMap::new();
        let response = async {
            let received = ReceivedHead { peer, head: &head };
            self.arrival.check_loop_and_readiness(received, &info)?;
            let deadline = deadline?;
            let asserted = self.authentication.asserted_user(received, arrival.wall);
            let upgrade = take_upgrade(&mut head, peer).filter(|upgrade| {
                info.is_resource_request() || has_websocket_token(&head.headers, &upgrade.protocol)
            });
            self.arrival.propagate_trace(&mut head.headers, trace);
            let received = ReceivedHead { peer, head: &head };
            let auth = self
                .authentication
                .authenticate(asserted, received, upgrade.as_ref(), arrival, trace)
                .await?;
            let effective = self
                .impersonation
                .effective_user(&auth, received, trace)
                .await?;
            let (info, user) = (&info, effective.for_limits(&auth));
            let attributes = AdmissionAttributes { info, user };
            let upgrading = self
                .authentication
                .requested_upgrade(&auth, upgrade.as_ref());
            let admitted = self
                .admission
                .admit(&attributes, received, body, upgrading, deadline, trace)
                .await
                .inspect_err(|_| rejected_headers = std::mem::take(&mut head.headers))?;
            let forwarding = &self.forwarding;
            let admitted = AdmittedRequest {
                observed_list: forwarding.observed_list(info, &head),
                outgoing: forwarding.build_request(info, head, peer, &auth, &effective)?,
                body: forwarding.outgoing_body(admitted.body, body),
                upgrade,
                permit: admitted.permit,
                reader: forwarding.reader(peer.requester(user), admitted.reserved),
                deadline,
                is_proven: self.authentication.is_proven(&auth),
                drain_guard,
            };
            // Boxed: a rejected request does not pay for the memory of forwarding.
            in_place::pinned(|| forwarding.forward(subject, admitted, trace)).await
        };
        response.await.map_err(|rejection| {
            trace.record_rejection(subject, &rejection.facts(), &rejected_headers);
            self.rejection
                .delayable(rejection, peer, &info, trace.effective_user())
        })
    }

    /// Closes connections to the API server that have been idle for 45 s.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.forwarding.close_idle(now);
    }

    /// Rejects a request whose head the HTTP library could not parse, and counts it.
    pub(crate) fn reject_unparsed(&self, peer: &Peer, malformed: InvalidHead) -> RequestRejection {
        self.arrival.reject_unparsed(peer, malformed)
    }

    /// The response to a request that has ended in a panic.
    pub(crate) fn panic_response(&self) -> Response<Body> {
        self.rejection.panic_response()
    }
}
