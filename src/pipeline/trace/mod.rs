//! What is noted about a request, and counted at its end.
//!
//! A [`Trace`] begins with the request and is told its outcome once; what becomes of it is written when it is dropped: with
//! the answer's last byte, or when the client goes away before. What is counted, and by which labels, is
//! [`RequestMetrics`]'.

pub mod audit_id;
pub(in crate::pipeline) mod label_allowlist;
pub(in crate::pipeline) mod outcome;
pub mod record;
pub(in crate::pipeline) mod request_metrics;
pub(in crate::pipeline) mod stage_metrics;
pub mod trace_context;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use http::HeaderMap;
use http::StatusCode;
use http::header;
use tracing::warn;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::flowcontrol::controller;
use crate::flowcontrol::controller::FlowControlDecision;
use crate::limits::Permit;
use crate::metrics::GaugeGuard;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::label_allowlist::handler_label;
use crate::pipeline::trace::outcome::HandlerReached;
use crate::pipeline::trace::record::RecordGuard;
use crate::pipeline::trace::request_metrics::RequestEnd;
use crate::pipeline::trace::request_metrics::RequestSeries;
use crate::pipeline::trace::request_metrics::Responder;
use crate::pipeline::trace::stage_metrics::RequestStage;
use crate::pipeline::trace::trace_context::TraceContext;

pub use crate::pipeline::trace::request_metrics::MetricSubject;
pub use crate::pipeline::trace::request_metrics::RequestMetrics;

/// What is known of one request, from its first byte to the last of its answer.
pub struct Trace {
    metrics: Arc<RequestMetrics>,
    arrived_at: Instant,
    times: StageTimes,
    /// The bytes of the answer that have gone out.
    sent_bytes: u64,
    state: TraceState,
    /// Told to those who look on when it is dropped.
    pub(super) record: Option<Box<RecordGuard>>,
}

/// When a request came to which step; as long as it has not, when it came to the one before.
#[derive(Clone, Copy, Debug)]
struct StageTimes {
    authenticated: Instant,
    /// Nothing but a place stands in its way any more.
    admission_started: Instant,
    admitted: Instant,
    responded: Option<Instant>,
    /// In a queue of fairness.
    queue_wait: Duration,
}

enum TraceState {
    /// No answer yet.
    Pending,
    /// Not to be counted: it is not known what is asked, or somebody else counts it.
    Unclassified,
    /// Answered with this code.
    Responded {
        series: Arc<RequestSeries>,
        code: StatusCode,
        counts: HandlerReached,
        /// A long-running request is open for as long as this is there.
        open: Option<GaugeGuard>,
    },
}

impl Trace {
    /// A request has arrived.
    #[must_use]
    pub fn start(metrics: Arc<RequestMetrics>, now: Instant) -> Self {
        Self {
            metrics,
            arrived_at: now,
            times: StageTimes {
                authenticated: now,
                admission_started: now,
                admitted: now,
                responded: None,
                queue_wait: Duration::ZERO,
            },
            sent_bytes: 0,
            state: TraceState::Unclassified,
            record: None,
        }
    }

    /// When it arrived.
    #[must_use]
    pub const fn arrived_at(&self) -> Instant {
        self.arrived_at
    }

    /// It is known what is asked: from here on it counts.
    pub(super) fn start_counting(&mut self, recorded: Option<Box<RecordGuard>>) {
        self.state = TraceState::Pending;
        self.record = recorded;
    }

    /// It is known who asks.
    pub(super) fn record_user(&mut self, user: &Arc<UserInfo>, now: Instant) {
        self.times = StageTimes {
            authenticated: now,
            admission_started: now,
            ..self.times
        };
        if let Some(recorded) = &mut self.record {
            recorded.record.user = Some(Arc::clone(user));
        }
    }

    pub(super) fn record_mut(&mut self) -> Option<&mut RecordGuard> {
        self.record.as_deref_mut()
    }

    fn trace_context_mut(&mut self) -> Option<&mut TraceContext> {
        self.record.as_mut()?.record.trace_context.as_deref_mut()
    }

    /// The moments by which the limits decide.
    pub(super) const fn admission_times(
        &self,
        deadline: Option<Instant>,
    ) -> controller::RequestTimes {
        controller::RequestTimes {
            now: self.times.admission_started,
            arrived: self.arrived_at(),
            deadline,
        }
    }

    /// It is known for whom it counts, or no rate stands in its way any more.
    pub(super) fn record_admission_start(&mut self, now: Instant) {
        self.times.admission_started = now;
    }

    /// What fairness decided about it, if that is known.
    pub(super) fn decision(&self) -> Option<&FlowControlDecision> {
        self.record.as_ref()?.record.decision.as_ref()
    }

    /// It may go on.
    pub(super) fn record_admitted(&mut self, permit: &Permit, now: Instant) {
        self.times.admitted = now;
        if let Some(traced) = self.trace_context_mut() {
            traced.forwarded_at = Some(now);
        }
        if let Some(queued) = permit.queue_wait() {
            self.times.queue_wait = queued;
            let took = now.saturating_duration_since(self.times.admission_started);
            self.metrics.stages.record_fairness(took);
        }
        if let Some(recorded) = &mut self.record {
            recorded.record.decision = permit.decision();
        }
    }

    /// So many more bytes of the answer have gone out.
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.sent_bytes += u64::try_from(bytes).unwrap_or_default();
    }

    /// Leaves what is noted to the value returned, which goes on with the answer's body.
    #[must_use]
    pub fn hand_over(&mut self) -> Self {
        let noted = std::mem::replace(&mut self.state, TraceState::Unclassified);
        Self {
            metrics: Arc::clone(&self.metrics),
            arrived_at: self.arrived_at,
            times: self.times,
            sent_bytes: self.sent_bytes,
            state: noted,
            record: self.record.take(),
        }
    }

    /// The upstream has begun to answer a request whose body has this many bytes, if that is known.
    /// Returns when that was.
    pub fn record_response(
        &mut self,
        subject: MetricSubject<'_>,
        code: StatusCode,
        body: Option<u64>,
    ) -> Instant {
        let subject = MetricSubject {
            labels: subject.labels.for_route(subject.info),
            ..subject
        };
        let now = Clock.now();
        self.times.responded = Some(now);
        if let Some(traced) = self.trace_context_mut() {
            traced.responded_at = Some(now);
        }
        self.metrics.record_upstream_response(code);
        let exists = code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS;
        let counts = HandlerReached::from_code(code);
        let reached = code != StatusCode::NOT_FOUND || handler_label(subject.info).is_some();
        let by = if counts == HandlerReached::Yes && reached {
            Responder::Handler { exists }
        } else {
            Responder::NoHandler
        };
        let series = self.metrics.series(subject, by);
        let open = (exists && subject.info.long_running())
            .then(|| self.metrics.track_long_running(&series, subject.info));
        if let Some(size) = body.filter(|_| by != Responder::NoHandler) {
            self.metrics.record_body_size(&series, subject.info, size);
        }
        self.state = TraceState::Responded {
            series,
            code,
            counts,
            open,
        };
        if let Some(recorded) = &mut self.record {
            recorded.record_response(code);
        }
        now
    }

    /// The answer has these headers: a 404 in plain text is that of a path that has no route.
    pub(super) fn record_response_headers(&mut self, headers: &HeaderMap) {
        if let TraceState::Responded {
            code: StatusCode::NOT_FOUND,
            counts,
            ..
        } = &mut self.state
            && let Some(content_type) = headers.get(header::CONTENT_TYPE)
            && content_type.as_bytes().starts_with(b"text/plain")
        {
            *counts = HandlerReached::No;
        }
    }

    /// A part of the answer's body has gone by.
    pub(super) fn inspect_body(&mut self, data: &[u8]) {
        if let TraceState::Responded { counts, .. } = &mut self.state {
            counts.inspect(data);
        }
    }

    /// A limit says no to a request with these headers; anything else that is refused has no more to be told than [`Self::refused`]
    /// tells.
    pub(super) fn record_limit_rejection(
        &mut self,
        refusal: &RequestRejection,
        headers: &HeaderMap,
    ) {
        if let Some(recorded) = &mut self.record {
            recorded.record_limit_rejection(refusal, headers);
        }
    }

    /// weir answers itself; not where the client ended the request, which gets no answer.
    pub(super) fn record_rejection(
        &mut self,
        subject: MetricSubject<'_>,
        refusal: &RequestRejection,
    ) {
        if refusal.is_client_abort() {
            return;
        }
        let code = refusal.code();
        if let Some(recorded) = &mut self.record {
            recorded.record_rejection(refusal);
        }
        if let Some(cause) = refusal.upstream_failure_cause() {
            self.metrics.record_upstream_failure(code, cause);
        }
        let by = match HandlerReached::from_code(code) {
            HandlerReached::Yes => Responder::Filter,
            HandlerReached::No | HandlerReached::UnlessAuthorizerDenied(_) => Responder::NoHandler,
        };
        let series = self.metrics.series(subject, by);
        if refusal.is_termination() {
            self.metrics.record_termination(&series, subject.info, code);
        }
        let denied = matches!(refusal, RequestRejection::Impersonation(_));
        self.state = TraceState::Responded {
            series,
            code,
            counts: match HandlerReached::from_code(code) {
                HandlerReached::No => HandlerReached::No,
                HandlerReached::UnlessAuthorizerDenied(_) if denied => HandlerReached::No,
                HandlerReached::UnlessAuthorizerDenied(_) | HandlerReached::Yes => {
                    HandlerReached::Yes
                }
            },
            open: None,
        };
    }

    /// The answer has broken off: its time was up, or the API server let go of it.
    pub(super) fn record_truncation(&self) {
        let TraceState::Responded { series, open, .. } = &self.state else {
            return;
        };
        self.metrics.record_truncation(series);
        // A watch or a tunnel ends like that whenever the API server does.
        if open.is_some() {
            return;
        }
        if let Some(more) = self.metrics.truncation_log_limiter.try_log(Clock.now()) {
            let record = self.record.as_deref().map(|recorded| &recorded.record);
            let user = record.and_then(|record| record.user.as_deref());
            warn!(
                method = record.map(|record| record.method.as_str()),
                URI = record.map(|record| record.target.as_str()),
                user = user.map(|user| &*user.name),
                client = record.map(|record| tracing::field::display(record.peer)),
                sent_bytes = self.sent_bytes,
                more,
                "an answer broke off after it had begun: its time was up, or the API server let go of it"
            );
        }
    }

    /// A watch that asked for it has sent what there was.
    pub(super) fn record_watch_list(&self, now: Instant) {
        if let TraceState::Responded { series, .. } = &self.state {
            let took = now.saturating_duration_since(self.arrived_at);
            self.metrics.record_watch_list(series, took);
        }
    }

    fn record_end(&self, series: &RequestSeries, open: bool) {
        let now = Clock.now();
        self.metrics.record_end(
            series,
            RequestEnd {
                duration: now.saturating_duration_since(self.arrived_at),
                queue_wait: self.times.queue_wait,
                sent_bytes: self.times.responded.map(|_| self.sent_bytes),
            },
        );
        self.record_stages(now, open);
    }

    fn record_stages(&self, now: Instant, open: bool) {
        let StageTimes {
            authenticated: known,
            admitted,
            responded: answered,
            ..
        } = self.times;
        let Some(answered) = answered else { return };
        let stage = |stage, from, to: Instant| {
            let took = to.saturating_duration_since(from);
            self.metrics.stages.record_stage(stage, took);
        };
        stage(RequestStage::Authentication, self.arrived_at, known);
        stage(RequestStage::Limits, known, admitted);
        stage(RequestStage::Upstream, admitted, answered);
        if !open {
            stage(RequestStage::Response, answered, now);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(recorded) = &mut self.record {
            recorded.record.sent_bytes = self.sent_bytes;
        }
        match &self.state {
            // The connection tells the client 500, once the stack is unwound.
            TraceState::Pending if std::thread::panicking() => {
                let recorded = self.record.as_deref();
                self.metrics
                    .record_panic(recorded.map(|recorded| &recorded.record));
            }
            TraceState::Pending => self.metrics.aborted.inc(),
            TraceState::Unclassified => {}
            TraceState::Responded { code, counts, .. } if !counts.reached() => {
                self.metrics.record_without_handler(*code);
                self.record_stages(Clock.now(), false);
            }
            TraceState::Responded {
                series, code, open, ..
            } => {
                self.metrics.record_request(series, *code);
                // Upstream observes no duration for what its filters refuse: the handlers behind them do that.
                if *code != StatusCode::TOO_MANY_REQUESTS {
                    self.record_end(series, open.is_some());
                }
            }
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match &self.state {
            TraceState::Pending | TraceState::Unclassified => None,
            TraceState::Responded { code, .. } => Some(code),
        };
        f.debug_struct("Trace")
            .field("code", &code)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
