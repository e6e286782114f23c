//! One request, start to end. [`Pipeline::serve`] is the function to read first: it is the diagram of the README.
//!
//! Values go from step to step, so that a wrong order does not compile. Each step either hands on or refuses; a refusal
//! never reaches the upstream. What an admitted request holds rides on its answer's body and is given back with the last
//! byte, or as soon as the client goes away.
//!
//! # Cancel safety
//! The futures here are dropped when the client goes away. Whatever was held is given back by that: the upstream's stream
//! is reset first, then the permit goes.

mod authenticate;
pub mod connection;
pub mod impersonation;
pub mod rates;
pub mod reject;
pub mod request_body;
pub mod response;
pub mod trace;
mod upgrade;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;
use std::time::Instant;

use http::HeaderMap;
use http::HeaderName;
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

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::drain::Drain;
use crate::drain::DrainGuard;
use crate::flowcontrol::controller::RequestTimes;
use crate::flowcontrol::level::ObjectId;
use crate::identity::PeerCertificate;
use crate::identity::RequestAuthenticator;
use crate::limits::Admission;
use crate::limits::AdmissionAttributes;
use crate::limits::Permit;
use crate::limits::rate::RateLimits;
use crate::limits::service_times::RequestShape;
use crate::limits::upgrade_rate::UpgradeRateLimit;
use crate::log_limiter::LogLimiter;
use crate::pipeline::authenticate::AuthFeedback;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::connection::target_fragments::TargetFragments;
use crate::pipeline::impersonation::Impersonation;
use crate::pipeline::reject::BodyDrainBudget;
use crate::pipeline::reject::BodyDrainSlots;
use crate::pipeline::reject::DelayableRejection;
use crate::pipeline::reject::RejectionContext;
use crate::pipeline::reject::RequestBodyState;
use crate::pipeline::reject::delay::HoldState;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::reject::malformed::MalformedRequest;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::reject::response_cache::RejectionResponseCache;
use crate::pipeline::request_body::BodyPrefix;
use crate::pipeline::request_body::OutgoingBody;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::abandoned::AbandonedRetention;
use crate::pipeline::response::abandoned::InFlightRequest;
use crate::pipeline::response::body::Body;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::guarded::BodyLifetime;
use crate::pipeline::response::guarded::GuardedBody;
use crate::pipeline::response::in_flight::MonitoredUpload;
use crate::pipeline::response::in_flight::PermitLifetime;
use crate::pipeline::response::in_flight::ResponseGuard;
use crate::pipeline::response::list_observer::InitialEventsObserver;
use crate::pipeline::response::list_observer::ListObserver;
use crate::pipeline::response::list_observer::ObservedList;
use crate::pipeline::trace::MetricSubject;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::record::RecordGuard;
use crate::pipeline::trace::record::RequestObservers;
use crate::pipeline::trace::trace_context::Sampler;
use crate::pipeline::upgrade::RequestedUpgrade;
use crate::pipeline::upgrade::start_tunnel;
use crate::pipeline::upgrade::take_upgrade;
use crate::pipeline::upgrade::tunnel_client;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;
use crate::upstream::ForwardError;
use crate::upstream::Upstream;
use crate::upstream::UpstreamRequest;
use crate::upstream::body::client_body::ClientBody;
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::request_body::ResponseBody;
use crate::upstream::connection::connection_budget::Requester;
use crate::upstream::forward::SendContext;
use crate::upstream::headers;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::loop_detection::LoopDetector;
use crate::upstream::pool::connection_class::ConnectionClass;

/// The `metadata.uid` of what decided (`flowcontrol.apiserver.k8s.io`).
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What a request needs to know of the connection that it came by.
#[derive(Debug)]
pub struct Peer {
    /// Where the client is.
    pub address: SocketAddr,
    /// Which connection it is: told apart from others by chance, which is enough.
    pub connection_id: u64,
    /// Whether it is one of `--trusted-proxies`.
    pub trusted: bool,
    /// What it presented in the handshake.
    pub certificate: Option<PeerCertificate>,
    /// The user of its requests whose tokens nothing verifies, made with the first of them.
    pub unverified_user: OnceLock<Arc<UserInfo>>,
    /// Which of its HTTP/1.1 request targets were cut.
    pub target_fragments: Arc<TargetFragments>,
    /// Who was told on it to come back later.
    pub hold_state: HoldState,
    /// Whose bodies are waited for though they were refused.
    pub body_drain_slots: BodyDrainSlots,
}

/// Every step of a request, put together once and shared by all connections of a worker.
#[derive(Debug)]
pub struct Pipeline {
    /// Who asks.
    pub authenticator: Arc<RequestAuthenticator>,
    /// What is done about those who want to be taken for somebody else.
    pub impersonation: Impersonation,
    /// The names by which an identity travels in headers.
    pub identity_headers: Arc<IdentityHeaders>,
    /// How many requests at all.
    pub rates: Arc<RateLimits>,
    /// What bodies may take that are read before their requests go on.
    pub request_body_budget: Arc<MemoryBudget>,
    /// `--request-body-buffer`, in bytes: how much of a body is awaited before its request takes a seat.
    pub body_buffer: usize,
    /// What requests hold that were given up.
    pub abandoned_requests: Arc<AbandonedRequests>,
    /// How often requests without a proven credential may ask for another protocol.
    pub upgrade_rate: Arc<UpgradeRateLimit>,
    /// What request heads may take until it is known whose they are.
    pub head_budget: Arc<HeadBudget>,
    /// How many bodies of refused requests may be skipped at a time.
    pub body_drain_budget: Arc<BodyDrainBudget>,
    /// Whether a request may go on.
    pub admission: Admission,
    /// Whether it was here before.
    pub loop_detector: Arc<LoopDetector>,
    /// Where it goes.
    pub upstream: Upstream,
    /// `--request-timeout`, for what is not long-running.
    pub request_timeout: Duration,
    /// The answers to those who are refused.
    pub rejection_responses: Arc<RejectionResponseCache>,
    /// Refusals that wait for their time.
    pub rejection_delay: Arc<RejectionDelay>,
    /// Whether weir is going away.
    pub drain: Arc<Drain>,
    /// Who has a deadline.
    pub deadlines: Arc<Deadlines>,
    /// What is counted.
    pub metrics: Arc<RequestMetrics>,
    /// Who looks on.
    pub observers: RequestObservers,
    /// Which requests are traced, if any are.
    pub sampler: Option<Sampler>,
    /// Whether there is an audit log, which asks for requests' ids.
    pub has_audit_log: bool,
    /// `--explain-responses`.
    pub explain_responses: bool,
    /// What is said of an upstream that fails.
    pub upstream_log_limiter: Arc<LogLimiter>,
}

impl Pipeline {
    /// Answers a request, whose head comes in a box: each step would move it otherwise, and keep its place long after.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<request::Parts>,
        body: Incoming,
    ) -> Response<Body> {
        let mut trace = Trace::start(Arc::clone(&self.metrics), Clock.now());
        let asked = RejectionContext::from_request(&head, &body);
        let mut body = RequestBodyState::Unread(ClientBody::new(body, head.version));
        // In a box of its own, so that a refusal that is held does not hold the memory of all the steps.
        let refused = match Box::pin(self.serve(peer, head, &mut body, &mut trace)).await {
            Ok(response) => return response,
            Err(refused) => refused,
        };
        let asked = (asked, body);
        let mut response = self
            .rejection_response(peer, asked, &refused, &mut trace)
            .await;
        trace.annotate_audit_id(response.headers_mut());
        if self.explain_responses {
            response::explain::set_explain_headers(response.headers_mut(), trace.decision());
        }
        response
    }

    /// The way of a request.
    async fn serve(
        &self,
        peer: &Peer,
        mut head: Box<request::Parts>,
        body: &mut RequestBodyState,
        trace: &mut Trace,
    ) -> Result<Response<Body>, DelayableRejection> {
        let no = |why: MalformedRequest<'_>| {
            self.metrics.malformed.reject(peer, why, trace.arrived_at())
        };
        let target = reject::malformed::request_target(peer, &head).map_err(no)?;
        let info = reject::malformed::parse_info(&head.method, &target).map_err(no)?;
        let subject = MetricSubject::from_head(&head, &info);
        let (asked, now) = ((&target, &info), (trace.arrived_at(), Clock.wall()));
        trace.start_counting(RecordGuard::new(&self.observers, (peer, &head), asked, now));
        trace.start_audit(self.wants_audit_id(), &head.headers);
        let deadline = self.request_deadline(&info, trace.arrived_at());
        let drain_guard = self.drain_guard(&info);

        let mut asker = None;
        let answered = async {
            self.check_loop_and_readiness((peer, &head.headers), &info)?;
            let deadline = deadline?;
            let asserted = self.asserted_user(peer, &head.headers, now.1);
            let upgrade = take_upgrade(&mut head).filter(|_| info.is_resource_request());
            trace.sample(self.sampler, &mut head.headers);
            trace.propagate_audit_id(&mut head.headers);
            let asking = (peer, upgrade.as_ref().map(|(protocol, _)| protocol));
            let known = self
                .authenticate(asserted, asking, &head.headers, now, trace)
                .await?;
            asker = Some(Arc::clone(&known.user));
            let name = self
                .resolve_effective_user(&known, peer, &head.headers, trace)
                .await?;
            let (info, user) = (&info, name.for_limits(&known));
            asker = Some(Arc::clone(user));
            let digest = AdmissionAttributes { info, user };
            let times = trace.admission_times(deadline.map(|limit| limit.deadline));
            let reading = (&mut *body, self.requested_upgrade(&known, upgrade.as_ref()));
            let (permit, ahead) = self
                .admit(&digest, (peer, &head), reading, times, trace)
                .await
                .inspect_err(|no| trace.record_limit_rejection(no, &head.headers))?;
            let requester = peer.requester(user);
            let observed_list = self.observed_list(info, &head);
            headers::prepare_forwarding(&mut head.headers);
            let (request, feedback) = self.build_upstream_request(*head, peer, (&known, &name))?;
            let passage = AdmittedRequest {
                request,
                body: self.outgoing_body(ahead, body),
                upgrade,
                feedback,
                permit,
                requester,
                deadline,
                observed_list,
                drain_guard,
            };
            // In a box as well: a refusal does not pay for the room that forwarding needs.
            Box::pin(self.forward(subject, passage, trace)).await
        };
        answered.await.map_err(|refusal| {
            trace.record_rejection(subject, &refusal);
            self.delayable_rejection(refusal, peer, &info, asker.as_deref())
        })
    }

    /// Asks the limits: how many at all, then whether there is room, once the body is here as far as it has to be. With the permit
    /// comes what was read of it.
    async fn admit(
        &self,
        digest: &AdmissionAttributes<'_>,
        from: (&Peer, &request::Parts),
        (body, upgrade): (&mut RequestBodyState, RequestedUpgrade),
        mut times: RequestTimes,
        trace: &mut Trace,
    ) -> Result<(Permit, Option<BodyPrefix>), RequestRejection> {
        let mut passed = self
            .check_rates(digest, from, body, (times.arrived, times.deadline))
            .await?;
        if upgrade == RequestedUpgrade::Unverified {
            self.check_upgrade_rate(from.0, times.now)?;
        }
        if passed.body.is_none() {
            let upgrades = upgrade != RequestedUpgrade::NotRequested;
            let deadline = times.deadline;
            let deadline = deadline.unwrap_or_else(|| times.arrived + self.request_timeout);
            let read = self.buffer_body(digest.info, from, body, upgrades, deadline);
            passed.body = read.await?;
        }
        let waited = passed.body.as_ref().is_some_and(|ahead| ahead.waited);
        if self.rates.is_configured() || waited {
            times.now = Clock.now();
            trace.record_admission_start(times.now);
        }
        // What the client took to send its body is not the queue's.
        times.arrived = if waited {
            times.now
        } else {
            passed.queue_start
        };
        let permit = self
            .admission
            .admit(digest, times)
            .await
            .map_err(RequestRejection::Limit)?
            .with_client_limits(passed.client_permit);
        trace.record_admitted(&permit, Clock.now());
        Ok((permit, passed.body))
    }

    /// Whether somebody writes each request down, which has an id then.
    fn wants_audit_id(&self) -> bool {
        self.has_audit_log || enabled!(target: "weir::access", Level::DEBUG)
    }

    /// What weir answers before it asks who sends a request: one that was here before, or else a loop would go on through its
    /// authentication and its limits; and, once told to go, its own readiness, so that a load balancer on the client's port sees it.
    fn check_loop_and_readiness(
        &self,
        (peer, headers): (&Peer, &HeaderMap),
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
        passage: AdmittedRequest,
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
        } = passage;
        let mut in_flight =
            self.start_in_flight(subject.info, permit, deadline, progress.is_none());
        let head_limit =
            deadline.unwrap_or_else(|| self.response_head_deadline(in_flight.admitted_at()));
        let upload = progress.map(|progress| MonitoredUpload::new(progress, &self.deadlines));
        let size = body.size_hint().exact();
        let errand = SendContext {
            requester: &requester,
            guard: &mut in_flight.stream_guard,
            sent_at: &mut in_flight.sent_at,
        };
        let sent = self.send(subject.info, request, body, upgrade.as_ref(), errand);
        let sent = tokio::time::timeout_at(head_limit.deadline.into(), sent).await;
        let progress = upload.as_ref().map(|upload| &*upload.progress);
        let sent = sent.map_err(|_| RequestRejection::Timeout(head_limit.timeout))?;
        let mut response = sent.map_err(|why| {
            in_flight.record_failure();
            request_body::forward_rejection(why, progress)
        })?;
        let switched = tunnel_client(response.status(), upgrade)?;
        let answered = trace.record_response(subject, response.status(), size);
        trace.record_response_headers(response.headers());
        self.record_feedback(response.status(), feedback);
        in_flight.record_response((answered, response.status()), |mut permit| {
            permit.record_response(response.status().as_u16());
            self.annotate(response.headers_mut(), &permit, trace);
            self.permit_lifetime(subject.info, &response, &mut observed_list, permit)
        });
        let list = self.list_observer(subject.info, observed_list, &response);
        let riding = ResponseGuard {
            trace: trace.hand_over(),
            in_flight,
            upload,
            list,
            active_request: None,
            _drain_guard: drain_guard.filter(|_| switched.is_none()), // tunnels are not waited for
        };
        if let Some(client) = switched {
            return Ok(start_tunnel(response, client, riding, &self.deadlines));
        }
        let until = self.body_lifetime(subject.info, deadline);
        let (mut head, body) = response.into_parts();
        headers::prepare_forwarding(&mut head.headers);
        head.version = Version::HTTP_11; // the connection to the client says its own
        Ok(Response::from_parts(
            head,
            Body::forwarded(GuardedBody::new(body, riding, until, &self.deadlines)),
        ))
    }

    /// What a request holds that is about to be sent.
    fn start_in_flight(
        &self,
        info: &RequestInfo<'_>,
        mut permit: Permit,
        limit: Option<RequestDeadline>,
        is_here: bool,
    ) -> InFlightRequest {
        let since = Clock.now();
        permit.record_forwarding(since);
        let charge = AbandonedRetention {
            abandoned: Arc::clone(&self.abandoned_requests),
            // How long an upload takes is the client's to say, and tells nothing of the server.
            shape: limit
                .filter(|_| is_here)
                .map(|_| RequestShape::from_request(info)),
            admitted_at: since,
            deadline: limit
                .unwrap_or_else(|| self.response_head_deadline(since))
                .deadline,
        };
        InFlightRequest::new(permit, charge)
    }

    /// When an answer's body is cut short.
    fn body_lifetime(
        &self,
        info: &RequestInfo<'_>,
        limit: Option<RequestDeadline>,
    ) -> BodyLifetime {
        match limit {
            Some(limit) => BodyLifetime::Deadline(limit.deadline),
            None if *info.verb() == Verb::Watch => {
                BodyLifetime::UntilStopped(Box::pin(self.drain.watch_end_signal()))
            }
            None => BodyLifetime::Unlimited,
        }
    }

    /// The deadline for the head of an answer whose body has none.
    fn response_head_deadline(&self, since: Instant) -> RequestDeadline {
        RequestDeadline {
            timeout: self.request_timeout,
            deadline: since + self.request_timeout,
        }
    }

    /// The answer says what was decided about its request, as far as that is wanted. Which flow schema decided is the API server's to
    /// say: it sends no such headers where it refused before fairness, and weir may know objects that stand in no cluster.
    fn annotate(&self, headers: &mut HeaderMap, permit: &Permit, trace: &mut Trace) {
        trace.annotate_audit_id(headers);
        if self.explain_responses {
            response::explain::set_explain_headers(headers, permit.decision().as_ref());
        }
    }

    /// How long the answer holds what the request was admitted with. A tunnel has no deadline, so it holds no seat: whatever the
    /// request was, it runs as long as those that are known to.
    fn permit_lifetime<B>(
        &self,
        info: &RequestInfo<'_>,
        response: &Response<B>,
        listing: &mut Option<ObservedList>,
        mut permit: Permit,
    ) -> PermitLifetime {
        let status = response.status();
        if *info.verb() == Verb::Watch {
            let listing = listing.take();
            let events = status
                .is_success()
                .then(|| InitialEventsObserver::for_response(response, listing));
            PermitLifetime::for_watch(info, events, permit, Clock.now(), &self.deadlines)
        } else {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                permit.release_concurrency();
            }
            PermitLifetime::UntilEnd { permit }
        }
    }

    /// Lists are counted as they go by, where fairness estimates the next ones by that.
    fn observed_list(&self, info: &RequestInfo<'_>, head: &request::Parts) -> Option<ObservedList> {
        let Admission::Fairness(controller) = &self.admission else {
            return None;
        };
        ObservedList::new(controller, info, head)
    }

    /// What reads the answer to a list as it goes by. A resource that was listed may be counted by weir itself.
    fn list_observer<B>(
        &self,
        info: &RequestInfo<'_>,
        listing: Option<ObservedList>,
        response: &Response<B>,
    ) -> Option<Box<ListObserver>> {
        if let Admission::Fairness(controller) = &self.admission
            && response.status() == StatusCode::OK
        {
            controller.record_listed_resource(info);
        }
        listing?.observer_for(response)
    }

    /// Sends the request, by the kind of connection that it needs.
    async fn send(
        &self,
        info: &RequestInfo<'_>,
        request: UpstreamRequest,
        body: RequestBody,
        upgrade: Option<&(HeaderValue, OnUpgrade)>,
        errand: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        if let Some((protocol, _)) = upgrade {
            let upstream = &self.upstream;
            let sent = upstream.send_upgrade(request, body, protocol.clone(), errand);
            return Box::pin(sent).await;
        }
        let place = if *info.verb() == Verb::Watch {
            ConnectionClass::SharedWatch // there are too many of them for a connection each
        } else if info.long_running() {
            ConnectionClass::DedicatedLongRunning
        } else {
            ConnectionClass::Shared
        };
        self.upstream.send(request, body, place, errand).await
    }

    /// What weir's end waits for: requests, then watches; other long-running ones are cut off, as upstream does.
    fn drain_guard(&self, info: &RequestInfo<'_>) -> Option<DrainGuard> {
        if *info.verb() == Verb::Watch {
            Some(self.drain.track_watch())
        } else if info.long_running() {
            None
        } else {
            Some(self.drain.track_request())
        }
    }

    /// How long the request may take from its arrival; long-running ones as long as they like.
    /// One that cannot be read is refused before anything else is asked, as in kube-apiserver (`WithRequestDeadline`).
    fn request_deadline(
        &self,
        info: &RequestInfo<'_>,
        arrived: Instant,
    ) -> Result<Option<RequestDeadline>, RequestRejection> {
        if info.long_running() {
            return Ok(None);
        }
        let wished = info
            .timeout(self.request_timeout)
            .map_err(|why| RequestRejection::BadRequest(why.to_string()))?;
        let time = wished.unwrap_or(self.request_timeout);
        let until = arrived + time;
        Ok(Some(RequestDeadline {
            timeout: time,
            deadline: until,
        }))
    }
}

/// How long a request may take.
#[derive(Clone, Copy)]
struct RequestDeadline {
    timeout: Duration,
    deadline: Instant,
}

/// A request that was admitted, and what goes with it.
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

/// Which flow schema and which level rejected a request, as kube-apiserver names them.
fn set_decision_headers(
    headers: &mut HeaderMap,
    flow_schema: &ObjectId,
    priority_level: &ObjectId,
) {
    for (name, of) in [
        (FLOW_SCHEMA_UID, flow_schema),
        (PRIORITY_LEVEL_UID, priority_level),
    ] {
        headers.insert(name, of.uid.clone());
    }
}
