//! What became of one request, for those who look on: the audit log, the top talkers, the log of refusals.
//!
//! A [`Record`] is made when it is known what is asked, if anybody looks on at all, and goes the request's way with it: it is
//! told who asks, what was decided, what was answered, and how much of it went out.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::StatusCode;
use http::header;
use http::request;
use http::uri::PathAndQuery;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::flowcontrol::controller::FlowControlDecision;
use crate::limits::Rejection;
use crate::pipeline::Peer;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;
use crate::pipeline::trace::audit_id::AuditContext;
use crate::pipeline::trace::trace_context::TraceContext;
use crate::request_info::RequestInfo;
use crate::request_info::TargetError;
use crate::upstream::body::memory_budget::MemoryBudget;
use crate::upstream::body::memory_budget::MemoryReservation;

/// Targets, user agents, the addresses of proxies, and users are no longer than this together as a rule, in bytes.
const USUAL_LENGTH: usize = 512;

/// One request, as far as it has come.
#[derive(Debug)]
pub struct Record {
    /// Its method.
    pub method: Method,
    /// Its target, byte for byte.
    pub target: PathAndQuery,
    /// Whether it runs for as long as it likes: a watch, a tunnel, a log that is followed.
    pub long_running: bool,
    /// Where the connection is from.
    pub peer: SocketAddr,
    /// What was said on the way of where it is from, if who said it is trusted.
    pub forwarded_for: Option<HeaderValue>,
    /// What the client calls itself.
    pub user_agent: Option<HeaderValue>,
    /// When it came.
    pub arrived: Instant,
    /// The same, by the calendar.
    pub arrived_wall: SystemTime,
    /// Who asks; `None` for who was turned away before that was known.
    pub user: Option<Arc<UserInfo>>,
    /// For whom it counts, if for somebody else (`--classify-impersonated`).
    pub counted_as: Option<Arc<UserInfo>>,
    /// What fairness decided, once it did.
    pub decision: Option<FlowControlDecision>,
    /// The rule of `clientLimits` that said no.
    pub rule: Option<Arc<str>>,
    /// The trace that it is part of, if it is traced.
    pub trace_context: Option<Box<TraceContext>>,
    /// What it was told.
    pub outcome: RequestOutcome,
    /// How much of the answer's body has gone out, in bytes; known at its end.
    pub sent_bytes: u64,
    /// What an audit log asks for, if there is one; the id also where a line tells of it.
    pub audit: Option<Box<AuditContext>>,
    /// Somebody is going to write down that it was rejected.
    pub is_logged: bool,
}

/// What a request was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Nothing: its client has gone away, or has not been answered yet.
    NoResponse,
    /// What the API server said.
    Responded(StatusCode),
    /// A limit said no, 429: see [`RequestRejection::limit`].
    Rejected(&'static str),
    /// weir said no for another reason.
    Failed(StatusCode),
    /// A defect of weir's.
    Panicked,
}

impl RequestOutcome {
    /// The code that the client got.
    #[must_use]
    pub const fn code(self) -> Option<StatusCode> {
        match self {
            Self::NoResponse => None,
            Self::Responded(code) | Self::Failed(code) => Some(code),
            Self::Rejected(_) => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Panicked => Some(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// Who looks on. Called in a request's way, on the workers: what takes time is to be done elsewhere.
pub trait RequestObserver: fmt::Debug + Send + Sync {
    /// A limit has said no, which is going to be told to the client. Whether this is going to be written down where somebody may look
    /// for it: it has an id then, which the client hears.
    fn on_rejected(&self, record: &Record) -> bool {
        let _ = record;
        false
    }

    /// The answer to a request that runs long has begun.
    fn on_response_started(&self, record: &Record) {
        let _ = record;
    }

    /// The last byte has gone, or the client has, at `now`.
    fn on_ended(&self, record: &Record, now: Instant);
}

/// All who look on.
pub type RequestObservers = Arc<[Arc<dyn RequestObserver>]>;

/// A record that is told to the witnesses when it is dropped.
#[derive(Debug)]
pub(in crate::pipeline) struct RecordGuard {
    observers: RequestObservers,
    pub(in crate::pipeline) record: Record,
}

impl Record {
    /// What is asked, parsed once more.
    ///
    /// # Errors
    /// None, as it was parsed before.
    pub fn info(&self) -> Result<RequestInfo<'_>, TargetError<'_>> {
        RequestInfo::parse(self.method.as_str(), self.target.as_str().as_bytes())
    }

    /// For whom it counts, as the limits see it.
    #[must_use]
    pub fn effective_user(&self) -> Option<&UserInfo> {
        self.counted_as.as_deref().or(self.user.as_deref())
    }
}

impl Record {
    /// The bytes of what is as long as the client likes.
    fn client_controlled_bytes(&self) -> usize {
        let texts = [&self.forwarded_for, &self.user_agent];
        let texts = texts.into_iter().flatten().map(HeaderValue::len);
        let wish = self
            .audit
            .as_ref()
            .map(|audited| &audited.impersonation_target);
        let users = [Some(&self.user), Some(&self.counted_as), wish];
        let users = users.into_iter().flatten().flatten();
        let users = users.map(|user| user.size_bytes());
        self.target.as_str().len() + texts.sum::<usize>() + users.sum::<usize>()
    }

    /// Copies what is a part of the connection's buffer, which would be kept as long as the record otherwise.
    fn detach_buffers(&mut self) {
        let target = Bytes::copy_from_slice(self.target.as_str().as_bytes());
        if let Ok(target) = PathAndQuery::from_maybe_shared(target) {
            self.target = target;
        }
        let id = self.audit.as_mut().map(|audited| &mut audited.id);
        let texts = [self.forwarded_for.as_mut(), self.user_agent.as_mut(), id];
        for text in texts.into_iter().flatten() {
            if let Ok(copied) = HeaderValue::from_bytes(text.as_bytes()) {
                *text = copied;
            }
        }
    }
}

impl Trace {
    /// Lets go of the connection's buffer, for a request that is to be held; what it keeps itself, if that is long, is taken
    /// from `room`. `None` if there is not enough.
    pub(in crate::pipeline) fn detach_record(
        &mut self,
        room: &Arc<MemoryBudget>,
    ) -> Option<MemoryReservation> {
        let mut reserved = room.reserve();
        let Some(recorded) = self.record_mut() else {
            return Some(reserved);
        };
        let length = recorded.record.client_controlled_bytes();
        if length > USUAL_LENGTH && !reserved.try_grow_to(length) {
            return None;
        }
        recorded.record.detach_buffers();
        Some(reserved)
    }
}

impl RecordGuard {
    /// Of a request of which no more is known than what it asks for; nothing where nobody looks on.
    pub(in crate::pipeline) fn new(
        witnesses: &RequestObservers,
        (peer, head): (&Peer, &request::Parts),
        (target, info): (&PathAndQuery, &RequestInfo<'_>),
        (arrived, arrived_wall): (Instant, SystemTime),
    ) -> Option<Box<Self>> {
        if witnesses.is_empty() {
            return None;
        }
        let forwarded_for = || head.headers.get("x-forwarded-for").cloned();
        Some(Box::new(Self {
            observers: Arc::clone(witnesses),
            record: Record {
                method: head.method.clone(),
                target: target.clone(),
                long_running: info.long_running(),
                peer: peer.address,
                forwarded_for: peer.trusted.then(forwarded_for).flatten(),
                user_agent: head.headers.get(header::USER_AGENT).cloned(),
                arrived,
                arrived_wall,
                user: None,
                counted_as: None,
                decision: None,
                rule: None,
                trace_context: None,
                outcome: RequestOutcome::NoResponse,
                sent_bytes: 0,
                audit: None,
                is_logged: false,
            },
        }))
    }

    pub(in crate::pipeline) fn record_response(&mut self, code: StatusCode) {
        self.record.outcome = RequestOutcome::Responded(code);
        if self.record.long_running {
            for witness in &*self.observers {
                witness.on_response_started(&self.record);
            }
            if let Some(audited) = &mut self.record.audit {
                audited.response_started = true;
            }
        }
    }

    pub(in crate::pipeline) fn record_rejection(&mut self, refusal: &RequestRejection) {
        let told = matches!(self.record.outcome, RequestOutcome::Rejected(_)); // by `rejected`
        if !told {
            self.record.outcome = RequestOutcome::Failed(refusal.code());
        }
    }

    /// A limit says no to a request with these headers. What is written down about it has an id: the client's own, or a new one.
    pub(in crate::pipeline) fn record_limit_rejection(
        &mut self,
        refusal: &RequestRejection,
        headers: &HeaderMap,
    ) {
        let Some(limit) = refusal.limit() else {
            return;
        };
        self.record.outcome = RequestOutcome::Rejected(limit);
        if let RequestRejection::Limit(rejection) = refusal {
            self.record.decision = rejection.decision();
            if let Rejection::ClientLimit(rejected) = rejection {
                self.record.rule = Some(Arc::clone(&rejected.rule));
            }
        }
        for witness in &*self.observers {
            self.record.is_logged |= witness.on_rejected(&self.record);
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
        let now = Clock.now();
        for witness in &*self.observers {
            witness.on_ended(&self.record, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::sync::Mutex;

    use super::*;
    use crate::pipeline::request_body::BodyReadError;
    use crate::request_info::RequestKind;

    /// Notes how requests ended, and whether their answers were told of when they began.
    #[derive(Debug, Default)]
    struct TestObserver(Mutex<Vec<(&'static str, RequestOutcome, u64)>>);

    impl RequestObserver for TestObserver {
        fn on_response_started(&self, record: &Record) {
            let note = ("answering", record.outcome, record.sent_bytes);
            self.0.lock().unwrap().push(note);
        }

        fn on_ended(&self, record: &Record, _: Instant) {
            let note = ("ended", record.outcome, record.sent_bytes);
            self.0.lock().unwrap().push(note);
        }
    }

    fn record_guard(onlooker: &Arc<TestObserver>, long_running: bool) -> RecordGuard {
        let witness: Arc<dyn RequestObserver> = Arc::<TestObserver>::clone(onlooker);
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
                trace_context: None,
                outcome: RequestOutcome::NoResponse,
                sent_bytes: 0,
                audit: None,
                is_logged: false,
            },
        }
    }

    #[test]
    fn observers_get_the_start_of_a_long_response_and_every_end() {
        let onlooker = Arc::new(TestObserver::default());
        for long_running in [true, false] {
            let mut recorded = record_guard(&onlooker, long_running);
            recorded.record_response(StatusCode::OK);
            recorded.record.sent_bytes += 7;
        }
        drop(record_guard(&onlooker, false)); // the client went away
        let ok = RequestOutcome::Responded(StatusCode::OK);
        let told = [
            ("answering", ok, 0),
            ("ended", ok, 7),
            ("ended", ok, 7),
            ("ended", RequestOutcome::NoResponse, 0),
        ];
        assert_eq!(*onlooker.0.lock().unwrap(), told);
    }

    #[test]
    fn a_rejection_is_recorded_by_its_limit() {
        let onlooker = Arc::new(TestObserver::default());
        let rejection = Rejection::MaxInFlight {
            kind: RequestKind::Mutating,
            limit: 1,
        };
        let refusal = RequestRejection::Limit(rejection);
        let mut recorded = record_guard(&onlooker, false);
        recorded.record_limit_rejection(&refusal, &HeaderMap::new());
        recorded.record_rejection(&refusal);
        assert!(recorded.record.audit.is_none(), "nobody writes it down");
        drop(recorded);
        let [(_, outcome, _)] = onlooker.0.lock().unwrap()[..] else {
            panic!("one request");
        };
        assert_eq!(outcome, RequestOutcome::Rejected("max-in-flight"));
        assert_eq!(outcome.code(), Some(StatusCode::TOO_MANY_REQUESTS));
    }

    /// Writes down what is rejected.
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
        let rejection = Rejection::MaxInFlight {
            kind: RequestKind::Mutating,
            limit: 1,
        };
        let refusal = RequestRejection::Limit(rejection);
        let id = |own: Option<&'static str>| {
            let mut recorded = record_guard(&Arc::default(), false);
            let clerk: Arc<dyn RequestObserver> = Arc::new(RejectionRecorder);
            recorded.observers = Arc::from([clerk]);
            let own = own.map(|own| ("audit-id".parse().unwrap(), HeaderValue::from_static(own)));
            recorded.record_limit_rejection(&refusal, &HeaderMap::from_iter(own));
            assert!(recorded.record.is_logged);
            recorded.record.audit.take().unwrap().id
        };
        assert_eq!(id(Some("mine")), "mine");
        assert_ne!(id(None), id(None));
    }

    #[test]
    fn an_event_over_the_body_budget_is_rejected_and_an_aborted_one_is_not() {
        let onlooker = Arc::new(TestObserver::default());
        for fault in [BodyReadError::BudgetExhausted, BodyReadError::Malformed] {
            let refusal = RequestRejection::Body(fault);
            let mut recorded = record_guard(&onlooker, false);
            recorded.record_limit_rejection(&refusal, &HeaderMap::new());
            recorded.record_rejection(&refusal);
        }
        let told = onlooker.0.lock().unwrap();
        let outcomes: Vec<_> = told.iter().map(|(_, outcome, _)| *outcome).collect();
        let broken = RequestOutcome::Failed(StatusCode::BAD_REQUEST);
        assert_eq!(outcomes, [RequestOutcome::Rejected("event-bodies"), broken]);
    }

    #[test]
    fn a_held_rejection_keeps_no_connection_buffer_and_long_users_within_the_budget() {
        let buffer = Bytes::from(vec![b'a'; 1 << 20]);
        let piece = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        let mut recorded = record_guard(&Arc::default(), false);
        let id = ("audit-id".parse().unwrap(), piece(0..36));
        let mut audited = AuditContext::from_headers(&HeaderMap::from_iter([id]));
        assert_eq!(audited.id.len(), 36);
        recorded.record.user_agent = Some(piece(36..100));
        let wish = UserInfo {
            name: "b".repeat(1000),
            ..UserInfo::anonymous()
        };
        audited.impersonation_target = Some(Arc::new(wish));
        recorded.record.audit = Some(Box::new(audited));
        let metrics =
            crate::pipeline::trace::RequestMetrics::register(&crate::metrics::Registry::new());
        let mut trace = Trace::start(metrics, Clock.now());
        trace.record = Some(Box::new(recorded));
        assert!(trace.detach_record(&MemoryBudget::new(1000)).is_none());
        let room = MemoryBudget::new(2000);
        let _reserved = trace.detach_record(&room).unwrap();
        assert!(room.used() > 1000);
        assert!(buffer.is_unique());
    }

    #[test]
    fn a_panic_is_recorded() {
        let onlooker = Arc::new(TestObserver::default());
        let recorded = record_guard(&onlooker, false);
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _recorded = recorded;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(onlooker.0.lock().unwrap()[0].1, RequestOutcome::Panicked);
    }
}
