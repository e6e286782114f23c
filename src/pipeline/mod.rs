//! One request, start to end. Read `Pipeline::serve` first: it is the diagram of the README.
//!
//! Values go from step to step, so that a wrong order does not compile. Each step either continues
//! or rejects the request. A rejected request never reaches the upstream. The body of the response
//! owns what an admitted request holds and releases it with the last byte, or as soon as the client
//! disconnects.
//!
//! # Cancel safety
//! The futures here are dropped when the client disconnects. The drop releases what the request
//! holds: the upstream's stream is reset first, then the permit is released.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `connection` |
//! | 1 | `trace` |
//! | 2 | `response` |
//! | 3 | `reject` |
//! | 4 | `components` |
//! | 5 | `impersonation` `rejection_response` `request_body` `upgrade` |
//! | 6 | `authenticate` `rates` |

mod authenticate;
pub mod components;
pub mod connection;
mod impersonation;
pub mod rates;
pub mod reject;
mod rejection_response;
pub mod request_body;
pub mod response;
pub mod trace;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use http::HeaderMap;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::Version;
use http::request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tracing::Level;
use tracing::enabled;

use crate::clock::Clock;
use crate::drain::DrainGuard;
use crate::flowcontrol::controller::RequestTimes;
use crate::limits::Admission;
use crate::limits::AdmissionAttributes;
use crate::limits::Permit;
use crate::limits::service_times::RequestShape;
use crate::pipeline::authenticate::AuthFeedback;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::reject::body_drain::RejectionContext;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::malformed::MalformedRequest;
use crate::pipeline::reject::malformed::reject_malformed;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::rejection_response::DelayableRejection;
use crate::pipeline::request_body::BodyPrefix;
use crate::pipeline::request_body::OutgoingBody;
use crate::pipeline::response::abandoned::AbandonedRetention;
use crate::pipeline::response::abandoned::InFlightRequest;
use crate::pipeline::response::body::Body;
use crate::pipeline::response::guarded::BodyLifetime;
use crate::pipeline::response::guarded::GuardedBody;
use crate::pipeline::response::in_flight::MonitoredUpload;
use crate::pipeline::response::in_flight::ResponseGuard;
use crate::pipeline::response::list_observer::InitialEventsObserver;
use crate::pipeline::response::list_observer::ListObserver;
use crate::pipeline::response::list_observer::ObservedList;
use crate::pipeline::response::watch_init::PermitLifetime;
use crate::pipeline::trace::MetricSubject;
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::record::RecordGuard;
use crate::pipeline::upgrade::RequestedUpgrade;
use crate::pipeline::upgrade::start_tunnel;
use crate::pipeline::upgrade::take_upgrade;
use crate::pipeline::upgrade::tunnel_client;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;
use crate::upstream::ForwardError;
use crate::upstream::UpstreamRequest;
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::forward::send::SendContext;
use crate::upstream::headers;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::requester::Requester;

pub use crate::pipeline::components::Pipeline;

impl Pipeline {
    /// Responds to a request. The head is boxed, since each step would otherwise move it and keep
    /// its memory long after.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<request::Parts>,
        body: Incoming,
    ) -> Response<Body> {
        let mut trace = Trace::start(Arc::clone(&self.metrics), Clock.now());
        let context = RejectionContext::from_request(&head, &body);
        let mut body = RequestBodyState::Unread(ClientBody::new(body, head.version));
        // Boxed, so that a delayed rejection does not keep the memory of all steps.
        let rejected = match Box::pin(self.serve(peer, head, &mut body, &mut trace)).await {
            Ok(response) => return response,
            Err(rejected) => rejected,
        };
        let context = (context, body);
        let mut response = self
            .rejection_response(peer, context, &rejected, &mut trace)
            .await;
        trace.annotate_audit_id(response.headers_mut());
        if self.explain_responses {
            response::explain::set_explain_headers(response.headers_mut(), trace.decision());
        }
        response
    }

    /// Runs the steps of a request.
    async fn serve(
        &self,
        peer: &Peer,
        mut head: Box<request::Parts>,
        body: &mut RequestBodyState,
        trace: &mut Trace,
    ) -> Result<Response<Body>, DelayableRejection> {
        let reject = |why: MalformedRequest<'_>| {
            reject_malformed(&self.metrics, peer, why, trace.arrived_at())
        };
        let target = reject::malformed::request_target(peer, &head).map_err(reject)?;
        let info = reject::malformed::parse_info(&head.method, &target).map_err(reject)?;
        let subject = MetricSubject::from_head(&head, &info);
        let (parsed, now) = ((&target, &info), (trace.arrived_at(), Clock.wall()));
        let record = RecordGuard::new(&self.observers, (peer, &head), parsed, now);
        trace.start_counting(record);
        trace.start_audit(self.wants_audit_id(), &head.headers);
        let deadline = self.request_deadline(&info, trace.arrived_at());
        let drain_guard = self.drain_guard(&info);

        let mut current_user = None;
        let response = async {
            self.check_loop_and_readiness(peer, &head.headers, &info)?;
            let deadline = deadline?;
            let asserted = self.asserted_user(peer, &head.headers, now.1);
            let upgrade = take_upgrade(&mut head).filter(|_| info.is_resource_request());
            trace.sample(self.sampler, &mut head.headers);
            trace.propagate_audit_id(&mut head.headers);
            let client = (peer, upgrade.as_ref().map(|(protocol, _)| protocol));
            let auth = self
                .authenticate(asserted, client, &head.headers, now, trace)
                .await?;
            current_user = Some(Arc::clone(&auth.user));
            let effective = self
                .resolve_effective_user(&auth, peer, &head.headers, trace)
                .await?;
            let (info, user) = (&info, effective.for_limits(&auth));
            current_user = Some(Arc::clone(user));
            let attributes = AdmissionAttributes { info, user };
            let times = trace.admission_times(deadline.map(|limit| limit.deadline));
            let reading = (&mut *body, self.requested_upgrade(&auth, upgrade.as_ref()));
            let (permit, prefix) = self
                .admit(&attributes, (peer, &head), reading, times, trace)
                .await
                .inspect_err(|r| trace.record_limit_rejection(&r.facts(), &head.headers))?;
            let observed_list = self.observed_list(info, &head);
            headers::prepare_forwarding(&mut head.headers);
            let (request, feedback) =
                self.build_upstream_request(*head, peer, (&auth, &effective))?;
            let admitted = AdmittedRequest {
                request,
                body: self.outgoing_body(prefix, body),
                upgrade,
                feedback,
                permit,
                requester: peer.requester(user),
                deadline,
                observed_list,
                drain_guard,
            };
            // Boxed: a rejected request does not pay for the memory of forwarding.
            Box::pin(self.forward(subject, admitted, trace)).await
        };
        response.await.map_err(|rejection| {
            trace.record_rejection(subject, &rejection.facts());
            self.delayable_rejection(rejection, peer, &info, current_user.as_deref())
        })
    }

    /// Checks the limits: the rates first, then the seats, once enough of the body has arrived.
    /// Returns the permit and the part of the body that was read.
    async fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: (&Peer, &request::Parts),
        (body, upgrade): (&mut RequestBodyState, RequestedUpgrade),
        mut times: RequestTimes,
        trace: &mut Trace,
    ) -> Result<(Permit, Option<BodyPrefix>), RequestRejection> {
        let mut rates = self
            .check_rates(attributes, received, body, (times.arrived, times.deadline))
            .await?;
        if upgrade == RequestedUpgrade::Unverified {
            self.check_upgrade_rate(received.0, times.now)?;
        }
        if rates.body.is_none() {
            let upgrades = upgrade != RequestedUpgrade::NotRequested;
            let deadline = times.deadline;
            let deadline = deadline.unwrap_or_else(|| times.arrived + self.request_timeout);
            let read = self.buffer_body(attributes.info, received, body, upgrades, deadline);
            rates.body = read.await?;
        }
        let waited = rates.body.as_ref().is_some_and(|prefix| prefix.waited);
        let waited = self.wait_for_backlog(attributes, received.0).await? || waited;
        if self.rates.is_configured() || waited {
            times.now = Clock.now();
            trace.record_admission_start(times.now);
        }
        // The time that the client takes to send its body is not queue time.
        times.arrived = if waited { times.now } else { rates.queue_start };
        let permit = self
            .admission
            .admit(attributes, times)
            .await
            .map_err(RequestRejection::Limit)?
            .with_client_limits(rates.client_permit);
        trace.record_admitted(&permit, Clock.now());
        Ok((permit, rates.body))
    }

    /// Whether an audit log or access log records each request, which then has an id.
    fn wants_audit_id(&self) -> bool {
        self.has_audit_log || enabled!(target: "weir::access", Level::DEBUG)
    }

    /// Rejections before authentication: a request that has passed weir before, since a loop would
    /// otherwise continue through authentication and limits, and `/readyz` during shutdown, so that
    /// a load balancer sees it on the client's port.
    fn check_loop_and_readiness(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        info: &RequestInfo<'_>,
    ) -> Result<(), RequestRejection> {
        self.loop_detector.check(headers, peer.address)?;
        if info.path() == b"/readyz" && !self.drain.is_ready() {
            return Err(RequestRejection::NotReady);
        }
        Ok(())
    }

    async fn forward(
        &self,
        subject: MetricSubject<'_>,
        admitted: AdmittedRequest,
        trace: &mut Trace,
    ) -> Result<Response<Body>, RequestRejection> {
        let AdmittedRequest {
            request,
            body: OutgoingBody { body, progress },
            upgrade,
            feedback,
            permit,
            requester,
            deadline,
            mut observed_list,
            drain_guard,
        } = admitted;
        let from = (subject.info, &requester);
        let mut in_flight = self.start_in_flight(from, permit, deadline, progress.is_none());
        let head_limit =
            deadline.unwrap_or_else(|| self.response_head_deadline(in_flight.admitted_at()));
        let upload = progress.map(|progress| MonitoredUpload::new(progress, &self.deadlines));
        let size = body.size_hint().exact();
        let context = SendContext {
            requester: &requester,
            guard: &mut in_flight.stream_guard,
            sent_at: &mut in_flight.sent_at,
        };
        let sent = self.send(subject.info, request, body, upgrade.as_ref(), context);
        let sent = tokio::time::timeout_at(head_limit.deadline.into(), sent).await;
        let sent = sent.map_err(|_| RequestRejection::Timeout(head_limit.timeout))?;
        let mut response = sent.map_err(|why| {
            in_flight.record_failure();
            request_body::forward_rejection(why, upload.as_ref().map(|upload| &*upload.progress))
        })?;
        let switched = tunnel_client(response.status(), upgrade)?;
        let responded_at = trace.record_response(subject, response.status(), size);
        trace.record_response_headers(response.headers());
        self.record_feedback(response.status(), feedback);
        in_flight.record_response(responded_at, response.status(), |mut permit| {
            permit.record_response(response.status().as_u16());
            self.annotate(response.headers_mut(), &permit, trace);
            self.permit_lifetime(subject.info, &response, &mut observed_list, permit)
        });
        let list = self.list_observer(subject.info, observed_list, &response);
        let guard = ResponseGuard {
            trace: trace.hand_over(),
            in_flight,
            upload,
            list,
            active_request: None,
            _drain_guard: drain_guard.filter(|_| switched.is_none()), // no drain waits for tunnels
        };
        if let Some(client) = switched {
            return Ok(start_tunnel(response, client, guard, &self.deadlines));
        }
        let lifetime = self.body_lifetime(subject.info, deadline);
        let (mut head, body) = response.into_parts();
        headers::prepare_forwarding(&mut head.headers);
        head.version = Version::HTTP_11; // the client's connection has its own version
        Ok(Response::from_parts(
            head,
            Body::forwarded(GuardedBody::new(body, guard, lifetime, &self.deadlines)),
        ))
    }

    /// What a request holds while it is forwarded.
    fn start_in_flight(
        &self,
        (info, requester): (&RequestInfo<'_>, &Requester),
        mut permit: Permit,
        limit: Option<RequestDeadline>,
        is_here: bool,
    ) -> InFlightRequest {
        let admitted_at = Clock.now();
        permit.record_forwarding(admitted_at);
        let retention = AbandonedRetention {
            abandoned: Arc::clone(&self.abandoned_requests),
            // The client decides how long an upload takes, so its duration does not measure the
            // server.
            shape: limit
                .filter(|_| is_here)
                .map(|_| RequestShape::from_request(info)),
            backlog: permit
                .is_exempt()
                .then(|| requester.holder())
                .flatten()
                .map(|holder| (Arc::clone(&self.abandoned_backlog), holder)),
            admitted_at,
            deadline: limit
                .unwrap_or_else(|| self.response_head_deadline(admitted_at))
                .deadline,
        };
        InFlightRequest::new(permit, retention)
    }

    /// When a response body is cut off.
    fn body_lifetime(
        &self,
        info: &RequestInfo<'_>,
        deadline: Option<RequestDeadline>,
    ) -> BodyLifetime {
        match deadline {
            Some(deadline) => BodyLifetime::Deadline(deadline.deadline),
            None if *info.verb() == Verb::Watch => {
                BodyLifetime::UntilStopped(Box::pin(self.drain.watch_end_signal()))
            }
            None => BodyLifetime::Unlimited,
        }
    }

    /// The deadline for the head of a response whose body has none.
    fn response_head_deadline(&self, since: Instant) -> RequestDeadline {
        RequestDeadline {
            timeout: self.request_timeout,
            deadline: since + self.request_timeout,
        }
    }

    /// Adds the requested annotations to the response. The headers that name the flow schema are
    /// left to the API server: it sends none if it rejects a request before priority and fairness,
    /// and weir may have objects that exist in no cluster.
    fn annotate(&self, headers: &mut HeaderMap, permit: &Permit, trace: &mut Trace) {
        trace.annotate_audit_id(headers);
        if self.explain_responses {
            response::explain::set_explain_headers(headers, permit.decision().as_ref());
        }
    }

    /// How long the response holds the permit. A tunnel has no deadline and holds no seat: it runs
    /// as long as a long-running request, whatever the request was.
    fn permit_lifetime<B>(
        &self,
        info: &RequestInfo<'_>,
        response: &Response<B>,
        observed_list: &mut Option<ObservedList>,
        mut permit: Permit,
    ) -> PermitLifetime {
        let status = response.status();
        if *info.verb() == Verb::Watch {
            let observed_list = observed_list.take();
            let events = status
                .is_success()
                .then(|| InitialEventsObserver::for_response(response, observed_list));
            PermitLifetime::for_watch(info, events, permit, Clock.now(), &self.deadlines)
        } else {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                permit.release_concurrency();
            }
            PermitLifetime::UntilEnd { permit }
        }
    }

    /// The list that the response is counted as. `None` without priority and fairness, which
    /// estimates later lists by it.
    fn observed_list(&self, info: &RequestInfo<'_>, head: &request::Parts) -> Option<ObservedList> {
        let Admission::Fairness(controller) = &self.admission else {
            return None;
        };
        ObservedList::new(controller, info, head)
    }

    /// The observer of a list response. A resource that clients list becomes one that weir may
    /// count itself.
    fn list_observer<B>(
        &self,
        info: &RequestInfo<'_>,
        observed_list: Option<ObservedList>,
        response: &Response<B>,
    ) -> Option<Box<ListObserver>> {
        if let Admission::Fairness(controller) = &self.admission
            && response.status() == StatusCode::OK
        {
            controller.record_listed_resource(info);
        }
        observed_list?.observer_for(response)
    }

    /// Sends the request on the class of connection that it needs.
    async fn send(
        &self,
        info: &RequestInfo<'_>,
        request: UpstreamRequest,
        body: RequestBody,
        upgrade: Option<&(HeaderValue, OnUpgrade)>,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        if let Some((protocol, _)) = upgrade {
            let upstream = &self.upstream;
            let sent = upstream.send_upgrade(request, body, protocol.clone(), context);
            return Box::pin(sent).await;
        }
        let class = if *info.verb() == Verb::Watch {
            ConnectionClass::SharedWatch // watches are too many for a connection each
        } else if info.long_running() {
            ConnectionClass::DedicatedLongRunning
        } else {
            ConnectionClass::Shared
        };
        self.upstream.send(request, body, class, context).await
    }

    /// What shutdown waits for: requests, then watches. Other long-running requests are cut off, as
    /// in kube-apiserver.
    fn drain_guard(&self, info: &RequestInfo<'_>) -> Option<DrainGuard> {
        if *info.verb() == Verb::Watch {
            Some(self.drain.track_watch())
        } else if info.long_running() {
            None
        } else {
            Some(self.drain.track_request())
        }
    }

    /// How long the request may take from its arrival; `None` for a long-running request. An
    /// invalid timeout is rejected before everything else, as in kube-apiserver
    /// (`WithRequestDeadline`).
    fn request_deadline(
        &self,
        info: &RequestInfo<'_>,
        arrived: Instant,
    ) -> Result<Option<RequestDeadline>, RequestRejection> {
        if info.long_running() {
            return Ok(None);
        }
        let requested = info
            .timeout(self.request_timeout)
            .map_err(|why| RequestRejection::BadRequest(why.to_string()))?;
        let timeout = requested.unwrap_or(self.request_timeout);
        let deadline = arrived + timeout;
        Ok(Some(RequestDeadline { timeout, deadline }))
    }
}

/// How long a request may take, and until when.
#[derive(Clone, Copy)]
struct RequestDeadline {
    timeout: Duration,
    deadline: Instant,
}

/// An admitted request and what belongs to it.
struct AdmittedRequest {
    request: UpstreamRequest,
    body: OutgoingBody,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
    feedback: AuthFeedback,
    permit: Permit,
    requester: Requester,
    deadline: Option<RequestDeadline>,
    observed_list: Option<ObservedList>,
    drain_guard: Option<DrainGuard>,
}
