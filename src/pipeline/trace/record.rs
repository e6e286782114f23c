//! The record of one request for its observers: the audit log, the top talkers, the log of
//! rejections.
//!
//! A [`Record`] is created with the RequestInfo. It follows the request and takes up its user, the
//! decision, the response and the bytes sent.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::Mutex;

use crate::flowcontrol::level::FlowControlDecision;
use crate::limits::Rejection;
use crate::pipeline::connection::peer::ReceivedHead;
use crate::pipeline::trace::audit_id::AuditContext;
use crate::pipeline::trace::outcome::{RejectionFacts, RequestOutcome};
use crate::pipeline::trace::trace_context::TraceContext;
use weir_base::clock::Clock;
use weir_io::in_place;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::{RequestInfo, TargetError};
use weir_limits::rate::policies::enforcer::PolicyNotes;

/// Targets, user agents, proxy addresses and users are usually no longer than this together, in
/// bytes.
pub(super) const USUAL_LENGTH: usize = 512;

/// One request, as far as it has proceeded.
#[derive(Debug)]
pub struct Record {
    /// The HTTP method.
    pub method: Method,
    /// The target, byte for byte.
    pub target: PathAndQuery,
    /// Whether the request is long-running: a watch, a tunnel, a log that is followed.
    pub long_running: bool,
    /// The address of the connection's client.
    pub peer: SocketAddr,
    /// `X-Forwarded-For`, if the connection is from a trusted proxy.
    pub forwarded_for: Option<HeaderValue>,
    /// `User-Agent`.
    pub user_agent: Option<HeaderValue>,
    /// When the request arrived.
    pub arrived: Instant,
    /// The wall-clock time of the arrival; a few milliseconds earlier if neither an audit log nor
    /// spans are written.
    pub arrived_wall: SystemTime,
    /// The authenticated user; `None` if the request was rejected before.
    pub user: Option<Arc<UserInfo>>,
    /// The user that the request counts for, if it is not `user` (`--classify-impersonated`).
    pub counted_as: Option<Arc<UserInfo>>,
    /// The decision of priority and fairness, once there is one.
    pub decision: Option<FlowControlDecision>,
    /// The rule of `clientLimits` that rejected the request.
    pub rule: Option<Arc<str>>,
    /// What policies say of the request, if any does.
    pub policies: Option<Arc<PolicyNotes>>,
    /// The limits that only count and would have rejected the request; `None` if there are none.
    pub dry_run: Option<Arc<DryRunRejections>>,
    /// The request's trace, if it is sampled.
    pub trace_context: Option<Box<TraceContext>>,
    /// The outcome of the request.
    pub outcome: RequestOutcome,
    /// The bytes of the response body that were sent; set at the end.
    pub sent_bytes: u64,
    /// What an audit log needs, if there is one; also set if a log line names the id.
    pub audit: Option<Box<AuditContext>>,
    /// An observer logs the rejection.
    pub is_logged: bool,
}

/// The rejections that dry runs have spared a request. One of a queue may come after the request's
/// end.
#[derive(Debug, Default)]
pub struct DryRunRejections(Mutex<Vec<Rejection>>);

impl DryRunRejections {
    /// By which limits, as `LIMITER/NAME` (of a flow schema, a policy, a rule), joined by commas.
    #[must_use]
    pub(crate) fn limits(&self) -> String {
        let limits: Vec<_> = self.0.lock().iter().map(limit_name).collect();
        limits.join(",")
    }
}

/// A limit, as `LIMITER/NAME`.
pub(crate) fn limit_name(rejection: &Rejection) -> String {
    format!("{}/{}", rejection.limiter_label(), rejection.flow_class())
}

/// When a request arrived.
#[derive(Clone, Copy)]
pub(crate) struct ArrivalTime {
    pub(crate) at: Instant,
    /// The wall-clock time, perhaps of the last tick.
    pub(crate) wall: SystemTime,
}

/// Observes requests. Called on the workers while a request is executing: slow work must be done
/// elsewhere.
pub trait RequestObserver: fmt::Debug + Send + Sync {
    /// A limit has rejected the request; the response is about to be sent. Returns whether the
    /// observer logs the rejection for later lookup: the response then carries an id.
    fn on_rejected(&self, record: &Record) -> bool {
        let _ = record;
        false
    }

    /// A limit that only counts would have rejected the request, which goes on or has ended.
    fn on_dry_run_rejection(&self, record: &Record, rejection: &Rejection) {
        let _ = (record, rejection);
    }

    /// The response to a long-running request has started.
    fn on_response_started(&self, record: &Record) {
        let _ = record;
    }

    /// The last byte was sent, or the client disconnected, at `now`.
    fn on_ended(&self, record: &Record, now: Instant);
}

/// All observers.
pub(crate) type RequestObservers = Arc<[Arc<dyn RequestObserver>]>;

/// A record that is passed to the observers on drop.
#[derive(Debug)]
pub(crate) struct RecordGuard {
    observers: RequestObservers,
    pub(crate) record: Record,
    /// When the request ended, if its trace has read the clock.
    pub(crate) ended_at: Option<Instant>,
}

impl Record {
    /// The RequestInfo, parsed once more.
    ///
    /// # Errors
    /// None, as it was parsed before.
    pub fn info(&self) -> Result<RequestInfo<'_>, TargetError<'_>> {
        RequestInfo::parse(self.method.as_str(), self.target.as_str().as_bytes())
    }

    /// The user that the limits see.
    #[must_use]
    pub(crate) fn effective_user(&self) -> Option<&UserInfo> {
        self.counted_as.as_deref().or(self.user.as_deref())
    }
}

impl Record {
    /// The bytes whose length the client determines.
    pub(super) fn client_controlled_bytes(&self) -> usize {
        let texts = [&self.forwarded_for, &self.user_agent];
        let texts = texts.into_iter().flatten().map(HeaderValue::len);
        let impersonated = self.audit.as_ref().map(|audit| &audit.impersonation_target);
        let users = [Some(&self.user), Some(&self.counted_as), impersonated];
        let users = users.into_iter().flatten().flatten();
        let users = users.map(|user| user.size_bytes());
        self.target.as_str().len() + texts.sum::<usize>() + users.sum::<usize>()
    }

    /// Copies what shares the connection's buffer, which would otherwise live as long as the
    /// record.
    pub(super) fn detach_buffers(&mut self) {
        let target = Bytes::copy_from_slice(self.target.as_str().as_bytes());
        if let Ok(target) = PathAndQuery::from_maybe_shared(target) {
            self.target = target;
        }
        let id = self.audit.as_mut().map(|audit| &mut audit.id);
        let texts = [self.forwarded_for.as_mut(), self.user_agent.as_mut(), id];
        for text in texts.into_iter().flatten() {
            if let Ok(copied) = HeaderValue::from_bytes(text.as_bytes()) {
                *text = copied;
            }
        }
    }
}

/// The record of a request that waits in the simulation of a dry run, beside the real one.
#[derive(Debug)]
pub(crate) struct SimulatedRecord {
    observers: RequestObservers,
    record: Box<Record>,
}

impl SimulatedRecord {
    /// The simulation rejects the request.
    pub(crate) fn record_rejection(&self, rejection: Rejection) {
        record_dry_run_rejection(&self.record, &self.observers, rejection);
    }
}

fn record_dry_run_rejection(record: &Record, observers: &RequestObservers, rejection: Rejection) {
    for observer in &**observers {
        observer.on_dry_run_rejection(record, &rejection);
    }
    if let Some(dry_run) = &record.dry_run {
        dry_run.0.lock().push(rejection);
    }
}

impl RecordGuard {
    /// A limit that only counts would have rejected the request.
    pub(crate) fn record_dry_run_rejection(&mut self, rejection: Rejection) {
        self.record.dry_run.get_or_insert_default();
        record_dry_run_rejection(&self.record, &self.observers, rejection);
    }

    /// A copy for the simulation of a dry run. What that records is in this record as well, until it
    /// has ended.
    pub(crate) fn simulate(&mut self) -> SimulatedRecord {
        let dry_run = Arc::clone(self.record.dry_run.get_or_insert_default());
        let Record {
            method,
            target,
            forwarded_for,
            user_agent,
            user,
            counted_as,
            decision,
            policies,
            ..
        } = &self.record;
        let mut record = Box::new(Record {
            method: method.clone(),
            target: target.clone(),
            forwarded_for: forwarded_for.clone(),
            user_agent: user_agent.clone(),
            user: user.clone(),
            counted_as: counted_as.clone(),
            decision: decision.clone(),
            rule: None,
            policies: policies.clone(),
            dry_run: Some(dry_run),
            trace_context: None,
            audit: None,
            ..self.record
        });
        record.detach_buffers();
        SimulatedRecord {
            observers: Arc::clone(&self.observers),
            record,
        }
    }

    /// The record of a request that has only a RequestInfo yet.
    pub(crate) fn new(
        observers: &RequestObservers,
        received: ReceivedHead<'_>,
        target: &PathAndQuery,
        info: &RequestInfo<'_>,
        arrival: ArrivalTime,
    ) -> Box<Self> {
        let ReceivedHead { peer, head } = received;
        let forwarded_for = || head.headers.get("x-forwarded-for").cloned();
        in_place::boxed(|| Self {
            observers: Arc::clone(observers),
            record: Record {
                method: head.method.clone(),
                target: target.clone(),
                long_running: info.long_running(),
                peer: peer.address,
                forwarded_for: peer.trusted.then(forwarded_for).flatten(),
                user_agent: head.headers.get(header::USER_AGENT).cloned(),
                arrived: arrival.at,
                arrived_wall: arrival.wall,
                user: None,
                counted_as: None,
                decision: None,
                rule: None,
                policies: None,
                dry_run: None,
                trace_context: None,
                outcome: RequestOutcome::NoResponse,
                sent_bytes: 0,
                audit: None,
                is_logged: false,
            },
            ended_at: None,
        })
    }

    pub(crate) fn record_response(&mut self, code: StatusCode) {
        self.record.outcome = RequestOutcome::Responded(code);
        if self.record.long_running {
            for observer in &*self.observers {
                observer.on_response_started(&self.record);
            }
            if let Some(audit) = &mut self.record.audit {
                audit.response_started = true;
            }
        }
    }

    /// Records the rejection of a request. If a limit rejects it, the observers may log it. A logged
    /// rejection has an id: the client's own in these `headers`, or a new one.
    pub(crate) fn record_rejection(&mut self, rejection: &RejectionFacts<'_>, headers: &HeaderMap) {
        let Some(limit) = rejection.limit else {
            self.record.outcome = RequestOutcome::Failed(rejection.code);
            return;
        };
        self.record.outcome = RequestOutcome::Rejected(limit);
        if let Some(limit_rejection) = rejection.limit_rejection {
            self.record.decision = limit_rejection.decision().cloned();
            if let Rejection::ClientLimit(rejected) = limit_rejection {
                self.record.rule = Some(Arc::clone(&rejected.rule));
            }
        }
        for observer in &*self.observers {
            self.record.is_logged |= observer.on_rejected(&self.record);
        }
        if self.record.is_logged {
            let id = || Box::new(AuditContext::from_headers(headers));
            self.record.audit.get_or_insert_with(id);
        }
    }
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.record.outcome = RequestOutcome::Panicked;
        }
        let now = self.ended_at.unwrap_or_else(|| Clock.now());
        for witness in &*self.observers {
            witness.on_ended(&self.record, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::pipeline::reject::rejection::{BodyReadError, RequestRejection};
    use crate::pipeline::trace::Trace;
    use weir_kubernetes::request_info::RequestKind;
    use weir_limits::throttling::memory_budget::MemoryBudget;

    /// Records how requests ended, and whether the start of their responses was observed.
    #[derive(Debug, Default)]
    struct TestObserver(Mutex<Vec<(&'static str, RequestOutcome, u64)>>);

    impl RequestObserver for TestObserver {
        fn on_response_started(&self, record: &Record) {
            let note = ("answering", record.outcome, record.sent_bytes);
            self.0.lock().push(note);
        }

        fn on_ended(&self, record: &Record, _: Instant) {
            let note = ("ended", record.outcome, record.sent_bytes);
            self.0.lock().push(note);
        }
    }

    fn record_guard(observer: &Arc<TestObserver>, long_running: bool) -> RecordGuard {
        let witness: Arc<dyn RequestObserver> = Arc::<TestObserver>::clone(observer);
        RecordGuard {
            observers: Arc::from([witness]),
            record: Record {
                method: Method::GET,
                target: PathAndQuery::from_static("/api/v1/pods"),
                long_running,
                peer: SocketAddr::from(([127, 0, 0, 1], 1)),
                forwarded_for: None,
                user_agent: None,
                arrived: Clock.now(),
                arrived_wall: Clock.wall(),
                user: None,
                counted_as: None,
                decision: None,
                rule: None,
                policies: None,
                dry_run: None,
                trace_context: None,
                outcome: RequestOutcome::NoResponse,
                sent_bytes: 0,
                audit: None,
                is_logged: false,
            },
            ended_at: None,
        }
    }

    #[test]
    fn observers_get_the_start_of_a_long_response_and_every_end() {
        let observer = Arc::new(TestObserver::default());
        for long_running in [true, false] {
            let mut guard = record_guard(&observer, long_running);
            guard.record_response(StatusCode::OK);
            guard.record.sent_bytes += 7;
        }
        drop(record_guard(&observer, false)); // the client disconnected
        let ok = RequestOutcome::Responded(StatusCode::OK);
        let events = [
            ("answering", ok, 0),
            ("ended", ok, 7),
            ("ended", ok, 7),
            ("ended", RequestOutcome::NoResponse, 0),
        ];
        assert_eq!(*observer.0.lock(), events);
    }

    /// Records by which limits requests would have been rejected, and whose they were.
    #[derive(Debug, Default)]
    struct DryRunObserver(Mutex<Vec<(String, String)>>);

    impl RequestObserver for DryRunObserver {
        fn on_dry_run_rejection(&self, record: &Record, rejection: &Rejection) {
            let target = record.target.as_str().to_owned();
            self.0.lock().push((limit_name(rejection), target));
        }

        fn on_ended(&self, _: &Record, _: Instant) {}
    }

    #[test]
    fn dry_run_rejections_are_observed_before_and_after_the_end_and_recorded_until_then() {
        let observer = Arc::new(DryRunObserver::default());
        let mut guard = record_guard(&Arc::default(), false);
        let witness: Arc<dyn RequestObserver> = Arc::<DryRunObserver>::clone(&observer);
        guard.observers = Arc::from([witness]);
        let rejection = |kind| {
            Rejection::MaxInFlight(weir_limits::max_in_flight::MaxInFlightRejection {
                kind,
                limit: 1,
            })
        };
        assert!(guard.record.dry_run.is_none());
        guard.record_dry_run_rejection(rejection(RequestKind::Mutating));
        let simulated = guard.simulate();
        simulated.record_rejection(rejection(RequestKind::ReadOnly));
        let limits = guard.record.dry_run.as_ref().unwrap().limits();
        assert_eq!(limits, "max-in-flight/mutating,max-in-flight/readOnly");
        drop(guard);
        simulated.record_rejection(rejection(RequestKind::ReadOnly));
        let seen: Vec<_> = observer
            .0
            .lock()
            .iter()
            .map(|(limit, _)| limit.clone())
            .collect();
        assert_eq!(
            seen,
            [
                "max-in-flight/mutating",
                "max-in-flight/readOnly",
                "max-in-flight/readOnly"
            ]
        );
        assert!(
            observer
                .0
                .lock()
                .iter()
                .all(|(_, target)| target == "/api/v1/pods")
        );
    }

    #[test]
    fn a_rejection_is_recorded_by_its_limit() {
        let observer = Arc::new(TestObserver::default());
        let rejection = Rejection::MaxInFlight(weir_limits::max_in_flight::MaxInFlightRejection {
            kind: RequestKind::Mutating,
            limit: 1,
        });
        let rejected = RequestRejection::Limit(rejection);
        let mut guard = record_guard(&observer, false);
        guard.record_rejection(&rejected.facts(), &HeaderMap::new());
        assert!(guard.record.audit.is_none(), "no observer records it");
        drop(guard);
        let [(_, outcome, _)] = observer.0.lock()[..] else {
            panic!("one request");
        };
        assert_eq!(outcome, RequestOutcome::Rejected("max-in-flight"));
        assert_eq!(outcome.code(), Some(StatusCode::TOO_MANY_REQUESTS));
    }

    /// Logs every rejection.
    #[derive(Debug)]
    struct RejectionRecorder;

    impl RequestObserver for RejectionRecorder {
        fn on_rejected(&self, _: &Record) -> bool {
            true
        }

        fn on_ended(&self, _: &Record, _: Instant) {}
    }

    #[test]
    fn a_logged_rejection_has_an_audit_id() {
        let rejection = Rejection::MaxInFlight(weir_limits::max_in_flight::MaxInFlightRejection {
            kind: RequestKind::Mutating,
            limit: 1,
        });
        let rejected = RequestRejection::Limit(rejection);
        let id = |own: Option<&'static str>| {
            let mut guard = record_guard(&Arc::default(), false);
            let recorder: Arc<dyn RequestObserver> = Arc::new(RejectionRecorder);
            guard.observers = Arc::from([recorder]);
            let own = own.map(|own| ("audit-id".parse().unwrap(), HeaderValue::from_static(own)));
            guard.record_rejection(&rejected.facts(), &HeaderMap::from_iter(own));
            assert!(guard.record.is_logged);
            guard.record.audit.take().unwrap().id
        };
        assert_eq!(id(Some("mine")), "mine");
        assert_ne!(id(None), id(None));
    }

    #[test]
    fn an_event_over_the_body_budget_is_rejected_and_an_aborted_one_is_not() {
        let observer = Arc::new(TestObserver::default());
        for fault in [BodyReadError::BudgetExhausted, BodyReadError::Malformed] {
            let rejected = RequestRejection::Body(fault);
            let mut guard = record_guard(&observer, false);
            guard.record_rejection(&rejected.facts(), &HeaderMap::new());
        }
        let events = observer.0.lock();
        let outcomes: Vec<_> = events.iter().map(|(_, outcome, _)| *outcome).collect();
        let broken = RequestOutcome::Failed(StatusCode::BAD_REQUEST);
        assert_eq!(outcomes, [RequestOutcome::Rejected("event-bodies"), broken]);
    }

    #[test]
    fn a_held_rejection_keeps_no_connection_buffer_and_long_users_within_the_budget() {
        let buffer = Bytes::from(vec![b'a'; 1 << 20]);
        let piece = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        let mut guard = record_guard(&Arc::default(), false);
        let id = ("audit-id".parse().unwrap(), piece(0..36));
        let mut audit = AuditContext::from_headers(&HeaderMap::from_iter([id]));
        assert_eq!(audit.id.len(), 36);
        guard.record.user_agent = Some(piece(36..100));
        let wish = UserInfo {
            name: "b".repeat(1000),
            ..UserInfo::anonymous()
        };
        audit.impersonation_target = Some(Arc::new(wish));
        guard.record.audit = Some(Box::new(audit));
        let metrics =
            crate::pipeline::trace::RequestMetrics::register(&weir_base::metrics::Registry::new());
        let mut trace = Trace::start(metrics, Clock.now());
        trace.record = Some(Box::new(guard));
        assert!(trace.detach_record(&MemoryBudget::new(1000)).is_none());
        let room = MemoryBudget::new(2000);
        let _reserved = trace.detach_record(&room).unwrap();
        assert!(room.used() > 1000);
        assert!(buffer.is_unique());
    }

    #[test]
    fn a_panic_is_recorded() {
        let observer = Arc::new(TestObserver::default());
        let guard = record_guard(&observer, false);
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(observer.0.lock()[0].1, RequestOutcome::Panicked);
    }
}
