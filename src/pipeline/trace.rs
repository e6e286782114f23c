//! What is noted about a request, and counted at its end.
//!
//! A [`Trace`] begins with the request and is told its outcome once; what becomes of it is written when it is dropped: with
//! the answer's last byte, or when the client goes away before. What is counted, and by which labels, is
//! [`RequestMetrics`]'.

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
use crate::flowcontrol::controller::Decision;
use crate::limits::Permit;
use crate::metrics::Counted;
use crate::pipeline::counted::Counts;
use crate::pipeline::filters::Stage;
use crate::pipeline::known::handled_path;
use crate::pipeline::record::Recorded;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_metrics::By;
use crate::pipeline::request_metrics::End;
use crate::pipeline::request_metrics::Series;
use crate::pipeline::traced::Traced;

pub use crate::pipeline::request_metrics::RequestMetrics;
pub use crate::pipeline::request_metrics::Subject;

/// What is known of one request, from its first byte to the last of its answer.
pub struct Trace {
    metrics: Arc<RequestMetrics>,
    started: Instant,
    times: Times,
    /// The bytes of the answer that have gone out.
    sent: u64,
    noted: Noted,
    /// Told to those who look on when it is dropped.
    pub(super) recorded: Option<Box<Recorded>>,
}

/// When a request came to which step; as long as it has not, when it came to the one before.
#[derive(Clone, Copy, Debug)]
struct Times {
    known: Instant,
    /// Nothing but a place stands in its way any more.
    counted: Instant,
    admitted: Instant,
    answered: Option<Instant>,
    /// In a queue of fairness.
    queued: Duration,
}

enum Noted {
    /// No answer yet.
    Nothing,
    /// Not to be counted: it is not known what is asked, or somebody else counts it.
    Unclassified,
    /// Answered with this code.
    Answered {
        series: Arc<Series>,
        code: StatusCode,
        counts: Counts,
        /// A long-running request is open for as long as this is there.
        open: Option<Counted>,
    },
}

impl Trace {
    /// A request has arrived.
    #[must_use]
    pub fn started(metrics: Arc<RequestMetrics>, now: Instant) -> Self {
        Self {
            metrics,
            started: now,
            times: Times {
                known: now,
                counted: now,
                admitted: now,
                answered: None,
                queued: Duration::ZERO,
            },
            sent: 0,
            noted: Noted::Unclassified,
            recorded: None,
        }
    }

    /// When it arrived.
    #[must_use]
    pub const fn arrived(&self) -> Instant {
        self.started
    }

    /// It is known what is asked: from here on it counts.
    pub(super) fn classified(&mut self, recorded: Option<Box<Recorded>>) {
        self.noted = Noted::Nothing;
        self.recorded = recorded;
    }

    /// It is known who asks.
    pub(super) fn known(&mut self, user: &Arc<UserInfo>, now: Instant) {
        self.times = Times {
            known: now,
            counted: now,
            ..self.times
        };
        if let Some(recorded) = &mut self.recorded {
            recorded.record.user = Some(Arc::clone(user));
        }
    }

    pub(super) fn recorded_mut(&mut self) -> Option<&mut Recorded> {
        self.recorded.as_deref_mut()
    }

    fn traced(&mut self) -> Option<&mut Traced> {
        self.recorded.as_mut()?.record.traced.as_deref_mut()
    }

    /// The moments by which the limits decide.
    pub(super) const fn moments(&self, deadline: Option<Instant>) -> controller::Times {
        controller::Times {
            now: self.times.counted,
            arrived: self.arrived(),
            deadline,
        }
    }

    /// It is known for whom it counts, or no rate stands in its way any more.
    pub(super) fn counted(&mut self, now: Instant) {
        self.times.counted = now;
    }

    /// What fairness decided about it, if that is known.
    pub(super) fn decision(&self) -> Option<&Decision> {
        self.recorded.as_ref()?.record.decision.as_ref()
    }

    /// It may go on.
    pub(super) fn admitted(&mut self, permit: &Permit, now: Instant) {
        self.times.admitted = now;
        if let Some(traced) = self.traced() {
            traced.forwarded = Some(now);
        }
        if let Some(queued) = permit.queue_wait() {
            self.times.queued = queued;
            let took = now.saturating_duration_since(self.times.counted);
            self.metrics.filters.passed_fairness(took);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.record.decision = permit.decision();
        }
    }

    /// So many more bytes of the answer have gone out.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.sent += u64::try_from(bytes).unwrap_or_default();
    }

    /// Leaves what is noted to the value returned, which goes on with the answer's body.
    #[must_use]
    pub fn hand_over(&mut self) -> Self {
        let noted = std::mem::replace(&mut self.noted, Noted::Unclassified);
        Self {
            metrics: Arc::clone(&self.metrics),
            started: self.started,
            times: self.times,
            sent: self.sent,
            noted,
            recorded: self.recorded.take(),
        }
    }

    /// The upstream has begun to answer a request whose body has this many bytes, if that is known.
    /// Returns when that was.
    pub fn answered(
        &mut self,
        subject: Subject<'_>,
        code: StatusCode,
        body: Option<u64>,
    ) -> Instant {
        let subject = Subject {
            labels: subject.labels.handled(subject.info),
            ..subject
        };
        let now = Clock.now();
        self.times.answered = Some(now);
        if let Some(traced) = self.traced() {
            traced.answered = Some(now);
        }
        self.metrics.upstream_answered(code);
        let exists = code.is_success() || code == StatusCode::SWITCHING_PROTOCOLS;
        let counts = Counts::of(code);
        let reached = code != StatusCode::NOT_FOUND || handled_path(subject.info).is_some();
        let by = if counts == Counts::Yes && reached {
            By::Handler { exists }
        } else {
            By::NoHandler
        };
        let series = self.metrics.series(subject, by);
        let open = (exists && subject.info.long_running())
            .then(|| self.metrics.open(&series, subject.info));
        if let Some(size) = body.filter(|_| by != By::NoHandler) {
            self.metrics.body_size(&series, subject.info, size);
        }
        self.noted = Noted::Answered {
            series,
            code,
            counts,
            open,
        };
        if let Some(recorded) = &mut self.recorded {
            recorded.answered(code);
        }
        now
    }

    /// The answer has these headers: a 404 in plain text is that of a path that has no route.
    pub(super) fn answered_with(&mut self, headers: &HeaderMap) {
        if let Noted::Answered {
            code: StatusCode::NOT_FOUND,
            counts,
            ..
        } = &mut self.noted
            && let Some(content_type) = headers.get(header::CONTENT_TYPE)
            && content_type.as_bytes().starts_with(b"text/plain")
        {
            *counts = Counts::No;
        }
    }

    /// A part of the answer's body has gone by.
    pub(super) fn look(&mut self, data: &[u8]) {
        if let Noted::Answered { counts, .. } = &mut self.noted {
            counts.look(data);
        }
    }

    /// A limit says no to a request with these headers; anything else that is refused has no more to be told than [`Self::refused`]
    /// tells.
    pub(super) fn rejected(&mut self, refusal: &Refusal, headers: &HeaderMap) {
        if let Some(recorded) = &mut self.recorded {
            recorded.rejected(refusal, headers);
        }
    }

    /// weir answers itself; not where the client ended the request, which gets no answer.
    pub(super) fn refused(&mut self, subject: Subject<'_>, refusal: &Refusal) {
        if refusal.is_abort() {
            return;
        }
        let code = refusal.code();
        if let Some(recorded) = &mut self.recorded {
            recorded.refused(refusal);
        }
        if let Some(cause) = refusal.in_place_of_the_server() {
            self.metrics.unanswered(code, cause);
        }
        let by = match Counts::of(code) {
            Counts::Yes => By::Filter,
            Counts::No | Counts::UnlessAuthorizer(_) => By::NoHandler,
        };
        let series = self.metrics.series(subject, by);
        if refusal.in_self_defense() {
            self.metrics.terminated(&series, subject.info, code);
        }
        let denied = matches!(refusal, Refusal::Impersonation(_));
        self.noted = Noted::Answered {
            series,
            code,
            counts: match Counts::of(code) {
                Counts::No => Counts::No,
                Counts::UnlessAuthorizer(_) if denied => Counts::No,
                Counts::UnlessAuthorizer(_) | Counts::Yes => Counts::Yes,
            },
            open: None,
        };
    }

    /// The answer has broken off: its time was up, or the API server let go of it.
    pub(super) fn cut_off(&self) {
        let Noted::Answered { series, open, .. } = &self.noted else {
            return;
        };
        self.metrics.cut_off(series);
        // A watch or a tunnel ends like that whenever the API server does.
        if open.is_some() {
            return;
        }
        if let Some(more) = self.metrics.cut_off_log.may_say(Clock.now()) {
            let record = self.recorded.as_deref().map(|recorded| &recorded.record);
            let user = record.and_then(|record| record.user.as_deref());
            warn!(
                method = record.map(|record| record.method.as_str()),
                URI = record.map(|record| record.target.as_str()),
                user = user.map(|user| &*user.name),
                client = record.map(|record| tracing::field::display(record.peer)),
                sent_bytes = self.sent,
                more,
                "an answer broke off after it had begun: its time was up, or the API server let go of it"
            );
        }
    }

    /// A watch that asked for it has sent what there was.
    pub(super) fn watch_listed(&self, now: Instant) {
        if let Noted::Answered { series, .. } = &self.noted {
            let took = now.saturating_duration_since(self.started);
            self.metrics.watch_listed(series, took);
        }
    }

    fn measure(&self, series: &Series, open: bool) {
        let now = Clock.now();
        self.metrics.measure(
            series,
            End {
                took: now.saturating_duration_since(self.started),
                queued: self.times.queued,
                sent: self.times.answered.map(|_| self.sent),
            },
        );
        self.stages(now, open);
    }

    fn stages(&self, now: Instant, open: bool) {
        let Times {
            known,
            admitted,
            answered,
            ..
        } = self.times;
        let Some(answered) = answered else { return };
        let stage = |stage, from, to: Instant| {
            let took = to.saturating_duration_since(from);
            self.metrics.filters.stage(stage, took);
        };
        stage(Stage::Authentication, self.started, known);
        stage(Stage::Limits, known, admitted);
        stage(Stage::Upstream, admitted, answered);
        if !open {
            stage(Stage::Answer, answered, now);
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(recorded) = &mut self.recorded {
            recorded.record.sent = self.sent;
        }
        match &self.noted {
            // The connection tells the client 500, once the stack is unwound.
            Noted::Nothing if std::thread::panicking() => {
                let recorded = self.recorded.as_deref();
                self.metrics
                    .panicked(recorded.map(|recorded| &recorded.record));
            }
            Noted::Nothing => self.metrics.aborted.inc(),
            Noted::Unclassified => {}
            Noted::Answered { code, counts, .. } if !counts.counts() => {
                self.metrics.without_handler(*code);
                self.stages(Clock.now(), false);
            }
            Noted::Answered {
                series, code, open, ..
            } => {
                self.metrics.count(series, *code);
                // Upstream observes no duration for what its filters refuse: the handlers behind them do that.
                if *code != StatusCode::TOO_MANY_REQUESTS {
                    self.measure(series, open.is_some());
                }
            }
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match &self.noted {
            Noted::Nothing | Noted::Unclassified => None,
            Noted::Answered { code, .. } => Some(code),
        };
        f.debug_struct("Trace")
            .field("code", &code)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
