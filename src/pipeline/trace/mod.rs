//! What is recorded of a request, and counted at its end.
//!
//! A [`Trace`] starts with the request and records its outcome once. The outcome is published when
//! the trace is dropped: with the last byte of the response, or when the client disconnects before.
//! [`RequestMetrics`] defines what is counted, and by which labels.

pub(crate) mod audit_id;
pub(crate) mod label_allowlist;
pub(crate) mod lever_subject;
pub(crate) mod malformed_metrics;
pub mod outcome;
pub mod record;
pub(crate) mod request_metrics;
pub(crate) mod request_series;
pub(crate) mod stage_metrics;
pub(crate) mod trace_context;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode};
use tracing::warn;

use crate::flowcontrol::controller;
use crate::flowcontrol::level::FlowControlDecision;
use crate::limits::{AdmissionPermit, Rejection};
use crate::pipeline::trace::audit_id::AuditContext;
use crate::pipeline::trace::label_allowlist::handler_labels;
use crate::pipeline::trace::lever_subject::LeverSubject;
use crate::pipeline::trace::outcome::{HandlerReached, RejectionFacts, is_limit_rejection};
use crate::pipeline::trace::record::{ArrivalTime, RecordGuard, USUAL_LENGTH};
use crate::pipeline::trace::request_metrics::{MeasuredBody, RequestEnd};
use crate::pipeline::trace::request_series::{RequestSeries, Responder};
use crate::pipeline::trace::stage_metrics::RequestStage;
use crate::pipeline::trace::trace_context::{Sampler, TraceContext};
use weir_base::clock::Clock;
use weir_base::metrics::GaugeGuard;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::measures_response_size;
use weir_limits::rate::policies::enforcer::PolicyNotes;
use weir_limits::throttling::memory_budget::{MemoryBudget, MemoryReservation};

pub use crate::pipeline::trace::request_metrics::RequestMetrics;
pub use crate::pipeline::trace::request_series::MetricSubject;

/// What is known of one request, from its first byte to the last of its response.
pub struct Trace {
    metrics: Arc<RequestMetrics>,
    arrived_at: Instant,
    times: StageTimes,
    /// The bytes of the response body that were sent.
    sent_bytes: u64,
    state: TraceState,
    /// Passed to the observers on drop. `None` before the request counts, and when another trace has
    /// it.
    record: Option<Box<RecordGuard>>,
}

/// When a request reached each step; until it has, when it reached the step before.
#[derive(Clone, Copy, Debug)]
struct StageTimes {
    authenticated: Instant,
    /// Nothing but seats stands between the request and the upstream.
    admission_started: Instant,
    admitted: Instant,
    responded: Option<Instant>,
    /// In a queue of priority and fairness.
    queue_wait: Duration,
}

enum TraceState {
    /// No response yet.
    Pending,
    /// Not counted: the request has no RequestInfo yet, or another trace counts it.
    Unclassified,
    /// The response has this code.
    Responded {
        series: Arc<RequestSeries>,
        code: StatusCode,
        counts: HandlerReached,
        /// Counts a long-running request as open.
        open: Option<GaugeGuard>,
        body: Option<MeasuredBody>,
        /// Whether the size of the response is measured.
        measures_response: bool,
    },
}

impl Trace {
    /// Starts with the arrival of a request.
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

    /// When the request arrived.
    #[must_use]
    pub(crate) const fn arrived_at(&self) -> Instant {
        self.arrived_at
    }

    /// When the request arrived, with the wall-clock time.
    pub(super) const fn arrival(&self, wall: SystemTime) -> ArrivalTime {
        let at = self.arrived_at;
        ArrivalTime { at, wall }
    }

    /// The request has a RequestInfo: it counts from here on.
    pub(super) fn start_counting(&mut self, record: Box<RecordGuard>) {
        self.state = TraceState::Pending;
        self.record = Some(record);
    }

    /// The user that the limits see, once the request is authenticated.
    pub(super) fn effective_user(&self) -> Option<&UserInfo> {
        self.record.as_ref()?.record.effective_user()
    }

    /// What levers match of the request.
    pub(super) fn lever_subject(&self) -> Option<LeverSubject> {
        LeverSubject::of_record(&self.record.as_ref()?.record)
    }

    /// The request is authenticated.
    pub(super) fn record_user(&mut self, user: &Arc<UserInfo>, now: Instant) {
        self.times = StageTimes {
            authenticated: now,
            admission_started: now,
            ..self.times
        };
        if let Some(guard) = &mut self.record {
            guard.record.user = Some(Arc::clone(user));
        }
    }

    fn trace_context_mut(&mut self) -> Option<&mut TraceContext> {
        self.record.as_mut()?.record.trace_context.as_deref_mut()
    }

    /// The times by which the limits decide.
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

    /// The effective user is known, or no rate delays the request any more.
    pub(super) fn record_admission_start(&mut self, now: Instant) {
        self.times.admission_started = now;
    }

    /// Starts the audit context if it is `wanted`.
    pub(super) fn start_audit(&mut self, wanted: bool, headers: &HeaderMap) {
        if let (Some(guard), true) = (&mut self.record, wanted) {
            guard.record.audit = Some(Box::new(AuditContext::from_headers(headers)));
        }
    }

    /// Sets the audit id in the headers; the connection's own headers have been removed.
    pub(super) fn propagate_audit_id(&mut self, headers: &mut HeaderMap) {
        if let Some(audit) = self.audit_mut() {
            audit.propagate(headers);
        }
    }

    /// Records the effective user, and whether weir has authorized the impersonation
    /// (`authorized`).
    pub(super) fn record_effective_user(
        &mut self,
        counted_as: Option<&Arc<UserInfo>>,
        authorized: bool,
    ) {
        if let Some(audit) = self.audit_mut() {
            audit.impersonation_allowed = authorized;
        }
        if let Some(guard) = &mut self.record {
            guard.record.counted_as = counted_as.cloned();
        }
    }

    /// Records what policies say of the request.
    pub(super) fn record_policies(&mut self, notes: PolicyNotes) {
        if let Some(guard) = self.record.as_mut().filter(|_| !notes.is_empty()) {
            guard.record.policies = Some(Arc::new(notes));
        }
    }

    /// Records that a limit which only counts would have rejected the request.
    pub(super) fn record_dry_run_rejection(&mut self, rejection: Rejection) {
        if let Some(guard) = &mut self.record {
            guard.record_dry_run_rejection(rejection);
        }
    }

    /// Records what priority and fairness or max-in-flight would have done with an admitted request
    /// that a dry run lets pass, now or when its time in a queue is over.
    pub(super) fn record_dry_run(&mut self, permit: &mut AdmissionPermit) {
        if let Some(rejection) = permit.dry_run_rejection() {
            self.record_dry_run_rejection(rejection);
        }
        if let (Some(simulated), Some(guard)) = (permit.simulated_mut(), &mut self.record) {
            let record = guard.simulate();
            simulated.report_rejection_to(move |rejection| {
                record.record_rejection(Rejection::Fairness(rejection));
            });
        }
    }

    /// Sets the audit id in the response.
    pub(super) fn annotate_audit_id(&mut self, headers: &mut HeaderMap) {
        if let Some(audit) = self.audit_mut() {
            audit.annotate(headers);
        }
    }

    fn audit_mut(&mut self) -> Option<&mut AuditContext> {
        self.record.as_mut()?.record.audit.as_deref_mut()
    }

    /// Decides whether the request is traced, and writes that into the headers; the connection's
    /// own headers have been removed.
    pub(super) fn sample(&mut self, sampler: Option<Sampler>, headers: &mut HeaderMap) {
        let (Some(sampler), Some(guard)) = (sampler, self.record.as_deref_mut()) else {
            return;
        };
        let context = sampler.start(headers, || fastrand::u64(..));
        if let Some(context) = &context {
            context.propagate(headers);
        }
        guard.record.trace_context = context.map(Box::new);
    }

    /// Copies the record out of the connection's buffer, for a request that is delayed. The memory
    /// of a long record is reserved from `budget`. `None` if there is not enough.
    pub(super) fn detach_record(
        &mut self,
        budget: &Arc<MemoryBudget>,
    ) -> Option<MemoryReservation> {
        let mut reservation = budget.reserve();
        let Some(guard) = self.record.as_deref_mut() else {
            return Some(reservation);
        };
        let bytes = guard.record.client_controlled_bytes();
        if bytes > USUAL_LENGTH && !reservation.try_grow_to(bytes) {
            return None;
        }
        guard.record.detach_buffers();
        Some(reservation)
    }

    /// The decision of priority and fairness, if it is known.
    pub(super) fn decision(&self) -> Option<&FlowControlDecision> {
        self.record.as_ref()?.record.decision.as_ref()
    }

    /// The request is admitted.
    pub(super) fn record_admitted(&mut self, permit: &AdmissionPermit, now: Instant) {
        self.times.admitted = now;
        if let Some(context) = self.trace_context_mut() {
            context.forwarded_at = Some(now);
        }
        if let Some(decision) = permit.decision() {
            self.times.queue_wait = decision.queue_wait;
            let duration = now.saturating_duration_since(self.times.admission_started);
            self.metrics.stages.record_fairness(duration);
        }
        if let Some(guard) = &mut self.record {
            guard.record.decision = permit.decision().cloned();
        }
    }

    /// Counts these bytes of the response body.
    pub(super) fn record_sent(&mut self, bytes: usize) {
        self.sent_bytes += u64::try_from(bytes).unwrap_or_default();
    }

    /// Moves the record into the returned trace, which the response body takes.
    #[must_use]
    pub(crate) fn hand_over(&mut self) -> Self {
        let state = std::mem::replace(&mut self.state, TraceState::Unclassified);
        Self {
            metrics: Arc::clone(&self.metrics),
            arrived_at: self.arrived_at,
            times: self.times,
            sent_bytes: self.sent_bytes,
            state,
            record: self.record.take(),
        }
    }

    /// The upstream has started to respond with this code and these headers to a request whose body
    /// has this many bytes, if that is known. Returns the time.
    pub fn record_response(
        &mut self,
        subject: MetricSubject<'_>,
        code: StatusCode,
        headers: &HeaderMap,
        body: Option<u64>,
    ) -> Instant {
        let info = subject.info;
        let subject = MetricSubject {
            labels: subject.labels.for_route(info),
            info,
        };
        let now = Clock.now();
        self.times.responded = Some(now);
        if let Some(context) = self.trace_context_mut() {
            context.responded_at = Some(now);
        }
        self.metrics.record_upstream_response(code);
        if is_limit_rejection(info, code, headers) {
            self.metrics.upstream_limit_rejections.inc();
        }
        let exists = code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS;
        let labels = handler_labels(info, code, headers);
        let counts = HandlerReached::of_response(info, labels.is_some(), code, headers);
        let by = match counts {
            HandlerReached::No => Responder::NoHandler,
            // Shown to be a handler's only by its body.
            HandlerReached::UnlessFilterText(_) if code == StatusCode::FORBIDDEN => {
                Responder::NoHandler
            }
            HandlerReached::Yes | HandlerReached::UnlessFilterText(_) => {
                Responder::Handler { exists, labels }
            }
        };
        let series = self.metrics.series(subject, by);
        let is_open = exists && info.long_running() && by != Responder::NoHandler;
        self.state = TraceState::Responded {
            open: is_open.then(|| self.metrics.track_long_running(&series, info)),
            series,
            code,
            counts,
            body: body.and_then(|size| MeasuredBody::of_request(info, size)),
            measures_response: measures_response_size(subject.labels, info),
        };
        if let Some(guard) = &mut self.record {
            guard.record_response(code);
        }
        now
    }

    /// Inspects a part of the response body.
    pub(super) fn inspect_body(&mut self, data: &[u8]) {
        if let TraceState::Responded { counts, .. } = &mut self.state {
            counts.inspect(data);
        }
    }

    /// Records the rejection of a request; not if the client ended the request, which gets no
    /// response. `headers` are those of a request that a limit rejects: a logged rejection has the
    /// client's id.
    pub(super) fn record_rejection(
        &mut self,
        subject: MetricSubject<'_>,
        rejection: &RejectionFacts<'_>,
        headers: &HeaderMap,
    ) {
        if rejection.is_client_abort {
            return;
        }
        let code = rejection.code;
        if let Some(guard) = &mut self.record {
            guard.record_rejection(rejection, headers);
        }
        if let Some(cause) = rejection.upstream_failure_cause {
            self.metrics.record_upstream_failure(code, cause);
        }
        let counts = HandlerReached::of_rejection(rejection);
        let by = match counts {
            HandlerReached::Yes => Responder::Filter,
            HandlerReached::No | HandlerReached::UnlessFilterText(_) => Responder::NoHandler,
        };
        let series = self.metrics.series(subject, by);
        if rejection.is_termination {
            self.metrics.record_termination(&series, subject.info, code);
        }
        self.state = TraceState::Responded {
            series,
            code,
            counts,
            open: None,
            body: None,
            measures_response: false,
        };
    }

    /// The response broke off: at its deadline, or because the API server ended it.
    pub(super) fn record_truncation(&self) {
        let TraceState::Responded { series, open, .. } = &self.state else {
            return;
        };
        self.metrics.record_truncation(series);
        // A watch or a tunnel ends like that whenever the API server closes it.
        if open.is_some() {
            return;
        }
        if let Some(more) = self.metrics.truncation_log_limiter.try_log(Clock.now()) {
            let record = self.record.as_deref().map(|guard| &guard.record);
            let user = record.and_then(|record| record.user.as_deref());
            warn!(
                method = record.map(|record| record.method.as_str()),
                URI = record.map(|record| record.target.as_str()),
                user = user.map(|user| &*user.name),
                client = record.map(|record| tracing::field::display(record.peer)),
                sent_bytes = self.sent_bytes,
                more,
                "a response ended early: its deadline passed, or the API server closed it"
            );
        }
    }

    /// The client was too slow for the limit that `flag` sets, after `bytes`: its response or
    /// tunnel is cut off.
    pub(super) fn record_slow_transfer(&self, flag: &'static str, bytes: u64) {
        if let TraceState::Responded { series, .. } = &self.state {
            self.metrics.record_truncation(series);
        }
        if let Some(more) = self.metrics.slow_log_limiter.try_log(Clock.now()) {
            let record = self.record.as_deref().map(|guard| &guard.record);
            let user = record.and_then(|record| record.user.as_deref());
            warn!(
                method = record.map(|record| record.method.as_str()),
                path = record.map(|record| record.target.path()),
                user = user.map(|user| &*user.name),
                client = record.map(|record| tracing::field::display(record.peer)),
                bytes,
                flag,
                more,
                "a client is cut off that reads too slowly"
            );
        }
    }

    /// A watch that requested initial events has sent them.
    pub(super) fn record_watch_list(&self, now: Instant) {
        if let TraceState::Responded { series, .. } = &self.state {
            let duration = now.saturating_duration_since(self.arrived_at);
            self.metrics.record_watch_list(series, duration);
        }
    }

    fn record_end(
        &self,
        series: &RequestSeries,
        now: Instant,
        open: bool,
        measures_response: bool,
    ) {
        self.metrics.record_end(
            series,
            RequestEnd {
                duration: now.saturating_duration_since(self.arrived_at),
                queue_wait: self.times.queue_wait,
                sent_bytes: measures_response.then_some(self.sent_bytes),
            },
        );
        self.record_stages(now, open);
    }

    fn record_stages(&self, now: Instant, open: bool) {
        let StageTimes {
            authenticated,
            admitted,
            responded,
            ..
        } = self.times;
        let Some(responded) = responded else { return };
        let stage = |stage, from, to: Instant| {
            let duration = to.saturating_duration_since(from);
            self.metrics.stages.record_stage(stage, duration);
        };
        stage(RequestStage::Authentication, self.arrived_at, authenticated);
        stage(RequestStage::Limits, authenticated, admitted);
        stage(RequestStage::Upstream, admitted, responded);
        if !open {
            stage(RequestStage::Response, responded, now);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if matches!(self.state, TraceState::Unclassified) && self.record.is_none() {
            return; // another trace has taken over
        }
        let now = Clock.now();
        let mut panicked = None;
        if let Some(guard) = &mut self.record {
            guard.record.sent_bytes = self.sent_bytes;
            guard.ended_at = Some(now);
            panicked = std::thread::panicking().then_some(&guard.record);
        }
        match &self.state {
            TraceState::Pending => match panicked {
                // The connection responds 500 once the stack is unwound.
                Some(record) => self.metrics.record_panic(record),
                None => self.metrics.aborted.inc(),
            },
            TraceState::Unclassified => {}
            TraceState::Responded { code, counts, .. } if !counts.reached(*code) => {
                self.metrics.record_without_handler(*code);
                self.record_stages(now, false);
            }
            TraceState::Responded {
                series,
                code,
                open,
                body,
                measures_response,
                ..
            } => {
                self.metrics.record_request(series, *code);
                if let Some(body) = body {
                    self.metrics.record_body_size(series, *body);
                }
                // Upstream observes no duration of what its filters reject: the handlers behind
                // them do that.
                if *code != StatusCode::TOO_MANY_REQUESTS {
                    self.record_end(series, now, open.is_some(), *measures_response);
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
