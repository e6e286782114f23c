//! Forwarding: sends an admitted request and hands what it holds to the body of the response.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Response, StatusCode, Version, request};
use http_body::Body as _;
use tokio::time::timeout_at;

use crate::limits::AdmissionPermit;
use crate::limits::abandoned_backlog::backlog_holder;
use crate::limits::memory_limit::unread_responses::ReservedResponse;
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::response::abandoned::{AbandonedRetention, InFlightRequest};
use crate::pipeline::response::body::Body;
use crate::pipeline::response::deadlines::SlowReader;
use crate::pipeline::response::explain::set_explain_headers;
use crate::pipeline::response::guarded::{BodyLifetime, GuardedBody};
use crate::pipeline::response::in_flight::{MonitoredUpload, ResponseGuard};
use crate::pipeline::response::list_length::{ListLength, ObservedList, is_gzip};
use crate::pipeline::response::response_reader::ResponseReader;
use crate::pipeline::response::watch_init::{INITIALIZATION_TIMEOUT, WatchInitialization};
use crate::pipeline::steps::arrival::RequestDeadline;
use crate::pipeline::steps::request_body::{BodyPrefix, OutgoingBody, forward_rejection};
use crate::pipeline::steps::upgrade::{UpgradeRequest, start_tunnel, tunnel_client};
use crate::pipeline::steps::upstream_request::OutgoingRequest;
use crate::pipeline::trace::{MetricSubject, Trace};
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::forward::send::SendContext;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::requester::Requester;
use crate::upstream::{ForwardError, UpstreamRequest, headers};
use weir_base::clock::Clock;
use weir_base::drain::DrainGuard;
use weir_io::in_place;
use weir_kubernetes::request_info::{RequestInfo, Verb};
use weir_limits::service_times::RequestShape;

/// An admitted request and what belongs to it.
pub(crate) struct AdmittedRequest {
    pub(crate) outgoing: OutgoingRequest,
    pub(crate) body: OutgoingBody,
    pub(crate) upgrade: Option<UpgradeRequest>,
    pub(crate) permit: AdmissionPermit,
    pub(crate) reader: ResponseReader,
    pub(crate) deadline: Option<RequestDeadline>,
    /// Whether its user is known for certain.
    pub(crate) is_proven: bool,
    pub(crate) observed_list: Option<ObservedList>,
    pub(crate) drain_guard: Option<DrainGuard>,
}

impl Pipeline {
    /// The list that the response is counted as. `None` without priority and fairness.
    pub(crate) fn observed_list(
        &self,
        info: &RequestInfo<'_>,
        head: &request::Parts,
    ) -> Option<ObservedList> {
        ObservedList::new(self.shared.admission.controller()?, info, head)
    }

    /// The body of the request to the API server.
    pub(crate) fn outgoing_body(
        &self,
        prefix: Option<BodyPrefix>,
        body: &mut RequestBodyState,
    ) -> OutgoingBody {
        OutgoingBody::new(prefix, body, &self.shared.identity_headers)
    }

    /// The client that reads the response, and what its request counts for already.
    pub(crate) fn reader(
        &self,
        requester: Requester,
        reserved: Option<ReservedResponse>,
    ) -> ResponseReader {
        ResponseReader::new(requester, &self.memory_limit, reserved)
    }

    /// Sends the request and returns the response of the API server.
    pub(crate) async fn forward(
        &self,
        subject: MetricSubject<'_>,
        admitted: AdmittedRequest,
        trace: &mut Trace,
    ) -> Result<Response<Body>, RequestRejection> {
        let AdmittedRequest {
            outgoing: OutgoingRequest { request, feedback },
            body: OutgoingBody { body, progress },
            upgrade,
            permit,
            reader,
            deadline,
            is_proven,
            mut observed_list,
            drain_guard,
        } = admitted;
        let is_sent = progress.is_none();
        let mut in_flight =
            self.start_in_flight(subject.info, &reader.requester, permit, deadline, is_sent);
        let head_limit =
            deadline.unwrap_or_else(|| self.response_head_deadline(in_flight.admitted_at()));
        // What is long-running holds a place and no seat: a known user's has a share of them.
        let may_pause = is_proven && deadline.is_none();
        let upload = progress
            .map(|progress| MonitoredUpload::new(progress, may_pause, &self.worker.deadlines));
        let size = body.size_hint().exact();
        let (context, permit) = in_flight.send_context(&reader.requester);
        let sent = {
            // Pinned, since moving such a large future into the timeout takes time.
            let mut sent = pin!(self.send(subject.info, request, body, upgrade.as_ref(), context));
            match timeout_at(head_limit.deadline.into(), sent.as_mut()).await {
                Ok(sent) => sent,
                // It holds a place, of which its user has a share, and from now on no seat.
                Err(_) if may_pause => {
                    if let Some(permit) = permit {
                        permit.release_watch_seats();
                    }
                    sent.await
                }
                Err(_) => return Err(RequestRejection::Timeout(head_limit.timeout)),
            }
        };
        let mut response = sent.map_err(|why| {
            in_flight.record_failure();
            forward_rejection(why, upload.as_ref().map(|upload| &*upload.progress))
        })?;
        let switched = tunnel_client(response.status(), upgrade)?;
        let responded_at =
            trace.record_response(subject, response.status(), response.headers(), size);
        self.record_feedback(response.status(), feedback);
        in_flight.record_response(responded_at, response.status());
        let mut watch = None;
        let head_took = responded_at.saturating_duration_since(in_flight.admitted_at());
        if let Some(permit) = in_flight.permit_mut() {
            permit.record_response(response.status().as_u16());
            if let Some(list) = permit.list_mut()
                && response.status() == StatusCode::OK
                && let Some(is_gzip) = is_gzip(response.headers())
            {
                list.measure(is_gzip);
            }
            self.annotate(response.headers_mut(), permit, trace);
            let list = observed_list.take_if(|_| *subject.info.verb() == Verb::Watch);
            watch = release_at_response(subject.info, &response, list, head_took, permit);
        }
        let holds_seats = watch.as_ref().is_some_and(|watch| watch.holds_seats());
        let seats_until = holds_seats.then(|| Clock.now() + INITIALIZATION_TIMEOUT);
        in_flight.keep_watch_seats_until(seats_until);
        let list = self.list_length(subject.info, observed_list, &response);
        let slow_reader = SlowReader::new(is_proven, deadline.is_none());
        let read_ahead = slow_reader == SlowReader::ReadAhead;
        let guard = in_place::boxed(|| ResponseGuard {
            trace: trace.hand_over(),
            in_flight: Some(in_flight),
            read_ahead: read_ahead.then(|| Arc::clone(&self.memory_limit)),
            watch,
            upload,
            list,
            active_request: None,
            _drain_guard: drain_guard.filter(|_| switched.is_none()), // no drain waits for tunnels
        });
        if let Some(client) = switched {
            return Ok(start_tunnel(
                response,
                client,
                guard,
                is_proven,
                &self.worker.deadlines,
            ));
        }
        let lifetime = self.body_lifetime(subject.info, deadline);
        Ok(self.guarded_response(response, guard, lifetime, seats_until, reader, slow_reader))
    }

    /// The response whose body has this guard. The seats of a watch that is not initialized are
    /// released at `seats_until`. Its bytes count for `reader`, which may be slow as `slow_reader` says.
    fn guarded_response(
        &self,
        response: Response<ResponseBody>,
        guard: Box<ResponseGuard>,
        lifetime: BodyLifetime,
        seats_until: Option<Instant>,
        reader: ResponseReader,
        slow_reader: SlowReader,
    ) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        headers::prepare_forwarding(&mut head.headers);
        head.version = Version::HTTP_11; // the client's connection has its own version
        let body = GuardedBody::new(body, guard, lifetime, slow_reader, &self.worker.deadlines);
        if let Some(deadline) = seats_until {
            ResponseGuard::limit_initialization(&body, deadline, &self.worker.deadlines);
        }
        Response::from_parts(head, Body::forwarded(body, reader))
    }

    /// What a request holds while it is forwarded.
    fn start_in_flight(
        &self,
        info: &RequestInfo<'_>,
        requester: &Requester,
        permit: AdmissionPermit,
        limit: Option<RequestDeadline>,
        is_here: bool,
    ) -> InFlightRequest {
        let admitted_at = permit.forwarded_at().unwrap_or_else(|| Clock.now());
        let retention = AbandonedRetention {
            abandoned: Arc::clone(&self.worker.abandoned_requests),
            // The client decides how long an upload takes, so its duration does not measure the
            // server.
            shape: limit
                .filter(|_| is_here)
                .map(|_| RequestShape::from_request(info)),
            backlog: requester
                .user
                .as_ref()
                .filter(|_| {
                    permit
                        .decision()
                        .is_some_and(|decision| decision.is_exempt())
                })
                .and_then(|user| backlog_holder(user, requester.network))
                .map(|holder| (Arc::clone(&self.shared.abandoned_backlog), holder)),
            admitted_at,
            watch_seats_until: None,
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
                BodyLifetime::UntilStopped(Box::pin(self.shared.drain.watch_end_signal()))
            }
            None => BodyLifetime::Unlimited,
        }
    }

    /// The deadline for the head of a response whose body has none.
    fn response_head_deadline(&self, since: Instant) -> RequestDeadline {
        RequestDeadline {
            timeout: self.shared.settings.request_timeout,
            deadline: since + self.shared.settings.request_timeout,
        }
    }

    /// Adds the requested annotations to the response. The headers that name the flow schema are
    /// left to the API server: it sends none if it rejects a request before priority and fairness,
    /// and weir may have objects that exist in no cluster.
    fn annotate(&self, headers: &mut HeaderMap, permit: &AdmissionPermit, trace: &mut Trace) {
        trace.annotate_audit_id(headers);
        if self.shared.settings.explain_responses {
            set_explain_headers(headers, permit.decision());
        }
    }

    /// The length of a list response. A resource that clients list becomes one that weir may count
    /// itself.
    fn list_length<B>(
        &self,
        info: &RequestInfo<'_>,
        observed_list: Option<ObservedList>,
        response: &Response<B>,
    ) -> Option<Box<ListLength>> {
        if let Some(controller) = self.shared.admission.controller()
            && response.status() == StatusCode::OK
        {
            controller.record_listed_resource(info);
        }
        observed_list?.length_of(response)
    }

    /// Sends the request on the class of connection that it needs.
    async fn send(
        &self,
        info: &RequestInfo<'_>,
        request: UpstreamRequest,
        body: RequestBody,
        upgrade: Option<&UpgradeRequest>,
        context: SendContext<'_>,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        if let Some(upgrade) = upgrade {
            let (upstream, protocol) = (&self.worker.upstream, upgrade.protocol.clone());
            let sent = upstream.send_upgrade(request, body, protocol, context);
            return Box::pin(sent).await;
        }
        let class = if *info.verb() == Verb::Watch {
            ConnectionClass::SharedWatch // watches are too many for a connection each
        } else if info.long_running() {
            ConnectionClass::DedicatedLongRunning
        } else {
            ConnectionClass::Shared
        };
        self.worker
            .upstream
            .send(request, body, class, context)
            .await
    }
}

/// Releases what the permit holds no longer once the response has started. A tunnel has no deadline
/// and holds no seat: it runs as long as a long-running request, whatever the request was. A watch
/// holds its seats until it is initialized: as long as what is returned says.
fn release_at_response<B>(
    info: &RequestInfo<'_>,
    response: &Response<B>,
    observed_list: Option<ObservedList>,
    head_took: Duration,
    permit: &mut AdmissionPermit,
) -> Option<Box<WatchInitialization>> {
    let status = response.status();
    if *info.verb() != Verb::Watch {
        if status == StatusCode::SWITCHING_PROTOCOLS {
            permit.release_concurrency();
        }
        return None;
    }
    let initialization = if status.is_success() {
        let holds_concurrency = permit.holds_concurrency();
        WatchInitialization::start(info, response, observed_list, head_took, holds_concurrency)
    } else {
        None
    };
    if !initialization
        .as_ref()
        .is_some_and(|watch| watch.holds_seats())
    {
        permit.release_watch_seats();
    }
    initialization
}
