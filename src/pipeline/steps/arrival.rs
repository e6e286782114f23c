//! The arrival of a request: resolves it, starts to record it, and checks what needs no user.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response};
use tracing::{Level, enabled};

use crate::pipeline::connection::peer::{Peer, ReceivedHead};
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::invalid_head::InvalidHead;
use crate::pipeline::reject::malformed;
use crate::pipeline::reject::malformed::MalformedRequest;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::record::{ArrivalTime, RecordGuard};
use crate::upstream::loop_detection::cdn_loop;
use weir_base::clock::Clock;
use weir_base::drain::DrainGuard;
use weir_kubernetes::request_info::{RequestInfo, Verb};

/// How long a request may take, and until when.
#[derive(Clone, Copy)]
pub(crate) struct RequestDeadline {
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

impl Pipeline {
    /// Starts the trace of a request that arrives now.
    pub(crate) fn start_trace(&self) -> Trace {
        Trace::start(Arc::clone(&self.shared.metrics), Clock.now())
    }

    /// The wall-clock time of a request that arrives now: exact if it is written down, and otherwise
    /// that of the last tick, which the dates of credentials are compared with.
    pub(crate) fn wall(&self) -> SystemTime {
        if self.shared.settings.has_audit_log || self.shared.settings.sampler.is_some() {
            Clock.wall()
        } else {
            Clock.coarse_wall()
        }
    }

    /// Adds this weir's ID to the answer to a probe of a weir, so that it does not take this one for
    /// an API server.
    pub(crate) fn answer_probe<B>(&self, is_probe: bool, mut response: Response<B>) -> Response<B> {
        if is_probe {
            let id = self.shared.loop_detector.instance_id().to_header_value();
            // Beside the ID of a weir behind this one, which finds its own there in a loop.
            response.headers_mut().append(cdn_loop::INSTANCE, id);
        }
        response
    }

    /// The request's target, byte for byte as the upstream will receive it.
    pub(crate) fn request_target(
        &self,
        received: ReceivedHead<'_>,
        trace: &Trace,
    ) -> Result<PathAndQuery, RequestRejection> {
        malformed::request_target(received.head)
            .map_err(|why| self.reject_malformed(received.peer, why, trace.arrived_at()))
    }

    /// The RequestInfo of the request.
    pub(crate) fn parse_info<'t>(
        &self,
        peer: &Peer,
        method: &Method,
        target: &'t PathAndQuery,
        trace: &Trace,
    ) -> Result<RequestInfo<'t>, RequestRejection> {
        malformed::parse_info(method, target)
            .map_err(|why| self.reject_malformed(peer, why, trace.arrived_at()))
    }

    /// Counts a request whose head the HTTP library could not parse, and returns its rejection.
    pub(crate) fn reject_unparsed(&self, peer: &Peer, malformed: InvalidHead) -> RequestRejection {
        self.reject_malformed(peer, MalformedRequest::InvalidHead(malformed), Clock.now())
    }

    fn reject_malformed(
        &self,
        peer: &Peer,
        malformed: MalformedRequest<'_>,
        now: Instant,
    ) -> RequestRejection {
        malformed::reject_malformed(&self.shared.metrics, peer, malformed, now)
    }

    /// Starts to count and record the request, which has a RequestInfo now.
    pub(crate) fn start_record(
        &self,
        received: ReceivedHead<'_>,
        target: &PathAndQuery,
        info: &RequestInfo<'_>,
        arrival: ArrivalTime,
        trace: &mut Trace,
    ) {
        let record = RecordGuard::new(&self.worker.observers, received, target, info, arrival);
        trace.start_counting(record);
        trace.start_audit(self.wants_audit_id(), &received.head.headers);
    }

    /// Whether an audit log or access log records each request, which then has an id.
    fn wants_audit_id(&self) -> bool {
        self.shared.settings.has_audit_log || enabled!(target: "weir::access", Level::DEBUG)
    }

    /// What shutdown waits for: requests, then watches. Other long-running requests are cut off, as
    /// in kube-apiserver.
    pub(crate) fn drain_guard(&self, info: &RequestInfo<'_>) -> Option<DrainGuard> {
        if *info.verb() == Verb::Watch {
            Some(self.shared.drain.track_watch())
        } else if info.long_running() {
            None
        } else {
            Some(self.shared.drain.track_request())
        }
    }

    /// How long the request may take from its arrival; `None` for a long-running request. An
    /// invalid timeout is rejected before everything else, as in kube-apiserver
    /// (`WithRequestDeadline`).
    pub(crate) fn request_deadline(
        &self,
        info: &RequestInfo<'_>,
        arrived: Instant,
    ) -> Result<Option<RequestDeadline>, RequestRejection> {
        if info.long_running() {
            return Ok(None);
        }
        let requested = info
            .timeout(self.shared.settings.request_timeout)
            .map_err(|why| RequestRejection::BadRequest(why.to_string()))?;
        let timeout = requested.unwrap_or(self.shared.settings.request_timeout);
        let deadline = arrived + timeout;
        Ok(Some(RequestDeadline { timeout, deadline }))
    }

    /// Rejections before authentication: a request that has passed weir before, since a loop would
    /// otherwise continue through authentication and limits, and `/readyz` during shutdown, so that
    /// a load balancer sees it on the client's port.
    pub(crate) fn check_loop_and_readiness(
        &self,
        received: ReceivedHead<'_>,
        info: &RequestInfo<'_>,
    ) -> Result<(), RequestRejection> {
        self.shared
            .loop_detector
            .check(received.head, received.peer.address)?;
        if info.path() == b"/readyz" && !self.shared.drain.is_ready() {
            return Err(RequestRejection::NotReady);
        }
        Ok(())
    }

    /// Writes the trace context and the audit id into the headers that are forwarded; the
    /// connection's own headers have been removed.
    pub(crate) fn propagate_trace(&self, headers: &mut HeaderMap, trace: &mut Trace) {
        trace.sample(self.shared.settings.sampler, headers);
        trace.propagate_audit_id(headers);
    }
}
