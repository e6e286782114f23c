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
use crate::flowcontrol::controller::Decision;
use crate::limits::Rejection;
use crate::pipeline::Peer;
use crate::pipeline::audited::Audited;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::trace::Trace;
use crate::pipeline::traced::Traced;
use crate::request_info::RequestInfo;
use crate::request_info::TargetError;
use crate::upstream::read_body::Budget;
use crate::upstream::read_body::Reserved;

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
    pub counted: Option<Arc<UserInfo>>,
    /// What fairness decided, once it did.
    pub decision: Option<Decision>,
    /// The rule of `clientLimits` that said no.
    pub rule: Option<Arc<str>>,
    /// The trace that it is part of, if it is traced.
    pub traced: Option<Box<Traced>>,
    /// What it was told.
    pub outcome: Outcome,
    /// How much of the answer's body has gone out, in bytes; known at its end.
    pub sent: u64,
    /// What an audit log asks for, if there is one; the id also where a line tells of it.
    pub audited: Option<Box<Audited>>,
    /// Somebody is going to write down that it was rejected.
    pub written_down: bool,
}

/// What a request was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: its client has gone away, or has not been answered yet.
    Unanswered,
    /// What the API server said.
    Answered(StatusCode),
    /// A limit said no, 429: see [`Refusal::limit`].
    Rejected(&'static str),
    /// weir said no for another reason.
    Refused(StatusCode),
    /// A defect of weir's.
    Panicked,
}

impl Outcome {
    /// The code that the client got.
    #[must_use]
    pub const fn code(self) -> Option<StatusCode> {
        match self {
            Self::Unanswered => None,
            Self::Answered(code) | Self::Refused(code) => Some(code),
            Self::Rejected(_) => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::Panicked => Some(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// Who looks on. Called in a request's way, on the workers: what takes time is to be done elsewhere.
pub trait Witness: fmt::Debug + Send + Sync {
    /// A limit has said no, which is going to be told to the client. Whether this is going to be written down where somebody may look
    /// for it: it has an id then, which the client hears.
    fn rejected(&self, record: &Record) -> bool {
        let _ = record;
        false
    }

    /// The answer to a request that runs long has begun.
    fn answering(&self, record: &Record) {
        let _ = record;
    }

    /// The last byte has gone, or the client has, at `now`.
    fn ended(&self, record: &Record, now: Instant);
}

/// All who look on.
pub type Witnesses = Arc<[Arc<dyn Witness>]>;

/// A record that is told to the witnesses when it is dropped.
#[derive(Debug)]
pub(super) struct Recorded {
    witnesses: Witnesses,
    pub(super) record: Record,
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
    pub fn counts_for(&self) -> Option<&UserInfo> {
        self.counted.as_deref().or(self.user.as_deref())
    }
}

impl Record {
    /// The bytes of what is as long as the client likes.
    fn length(&self) -> usize {
        let texts = [&self.forwarded_for, &self.user_agent];
        let texts = texts.into_iter().flatten().map(HeaderValue::len);
        let wish = self.audited.as_ref().map(|audited| &audited.wish);
        let users = [Some(&self.user), Some(&self.counted), wish];
        let users = users.into_iter().flatten().flatten();
        let users = users.map(|user| user.length());
        self.target.as_str().len() + texts.sum::<usize>() + users.sum::<usize>()
    }

    /// Copies what is a part of the connection's buffer, which would be kept as long as the record otherwise.
    fn detach(&mut self) {
        let target = Bytes::copy_from_slice(self.target.as_str().as_bytes());
        if let Ok(target) = PathAndQuery::from_maybe_shared(target) {
            self.target = target;
        }
        let id = self.audited.as_mut().map(|audited| &mut audited.id);
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
    pub(super) fn keeps_to_itself(&mut self, room: &Arc<Budget>) -> Option<Reserved> {
        let mut reserved = room.reserve();
        let Some(recorded) = self.recorded_mut() else {
            return Some(reserved);
        };
        let length = recorded.record.length();
        if length > USUAL_LENGTH && !reserved.grow_to(length) {
            return None;
        }
        recorded.record.detach();
        Some(reserved)
    }
}

impl Recorded {
    /// Of a request of which no more is known than what it asks for; nothing where nobody looks on.
    pub(super) fn of(
        witnesses: &Witnesses,
        (peer, head): (&Peer, &request::Parts),
        (target, info): (&PathAndQuery, &RequestInfo<'_>),
        (arrived, arrived_wall): (Instant, SystemTime),
    ) -> Option<Box<Self>> {
        if witnesses.is_empty() {
            return None;
        }
        let forwarded_for = || head.headers.get("x-forwarded-for").cloned();
        Some(Box::new(Self {
            witnesses: Arc::clone(witnesses),
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
                counted: None,
                decision: None,
                rule: None,
                traced: None,
                outcome: Outcome::Unanswered,
                sent: 0,
                audited: None,
                written_down: false,
            },
        }))
    }

    pub(super) fn answered(&mut self, code: StatusCode) {
        self.record.outcome = Outcome::Answered(code);
        if self.record.long_running {
            for witness in &*self.witnesses {
                witness.answering(&self.record);
            }
            if let Some(audited) = &mut self.record.audited {
                audited.began = true;
            }
        }
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        let told = matches!(self.record.outcome, Outcome::Rejected(_)); // by `rejected`
        if !told {
            self.record.outcome = Outcome::Refused(refusal.code());
        }
    }

    /// A limit says no to a request with these headers. What is written down about it has an id: the client's own, or a new one.
    pub(super) fn rejected(&mut self, refusal: &Refusal, headers: &HeaderMap) {
        let Some(limit) = refusal.limit() else {
            return;
        };
        self.record.outcome = Outcome::Rejected(limit);
        if let Refusal::Rejected(rejection) = refusal {
            self.record.decision = rejection.decision();
            if let Rejection::Clients(rejected) = rejection {
                self.record.rule = Some(Arc::clone(&rejected.rule));
            }
        }
        for witness in &*self.witnesses {
            self.record.written_down |= witness.rejected(&self.record);
        }
        if self.record.written_down {
            let id = || Box::new(Audited::begin(headers));
            self.record.audited.get_or_insert_with(id);
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.record.outcome = Outcome::Panicked;
        }
        let now = Clock.now();
        for witness in &*self.witnesses {
            witness.ended(&self.record, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::sync::Mutex;

    use super::*;
    use crate::pipeline::request_body::BodyFault;
    use crate::request_info::RequestKind;

    /// Notes how requests ended, and whether their answers were told of when they began.
    #[derive(Debug, Default)]
    struct Onlooker(Mutex<Vec<(&'static str, Outcome, u64)>>);

    impl Witness for Onlooker {
        fn answering(&self, record: &Record) {
            let note = ("answering", record.outcome, record.sent);
            self.0.lock().unwrap().push(note);
        }

        fn ended(&self, record: &Record, _: Instant) {
            let note = ("ended", record.outcome, record.sent);
            self.0.lock().unwrap().push(note);
        }
    }

    fn recorded(onlooker: &Arc<Onlooker>, long_running: bool) -> Recorded {
        let witness: Arc<dyn Witness> = Arc::<Onlooker>::clone(onlooker);
        Recorded {
            witnesses: Arc::from([witness]),
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
                counted: None,
                decision: None,
                rule: None,
                traced: None,
                outcome: Outcome::Unanswered,
                sent: 0,
                audited: None,
                written_down: false,
            },
        }
    }

    #[test]
    fn those_who_look_on_are_told_the_beginning_of_a_long_answer_and_every_end() {
        let onlooker = Arc::new(Onlooker::default());
        for long_running in [true, false] {
            let mut recorded = recorded(&onlooker, long_running);
            recorded.answered(StatusCode::OK);
            recorded.record.sent += 7;
        }
        drop(recorded(&onlooker, false)); // the client went away
        let ok = Outcome::Answered(StatusCode::OK);
        let told = [
            ("answering", ok, 0),
            ("ended", ok, 7),
            ("ended", ok, 7),
            ("ended", Outcome::Unanswered, 0),
        ];
        assert_eq!(*onlooker.0.lock().unwrap(), told);
    }

    #[test]
    fn a_rejection_is_told_by_its_limit() {
        let onlooker = Arc::new(Onlooker::default());
        let rejection = Rejection::MaxInFlight {
            kind: RequestKind::Mutating,
            limit: 1,
        };
        let refusal = Refusal::Rejected(rejection);
        let mut recorded = recorded(&onlooker, false);
        recorded.rejected(&refusal, &HeaderMap::new());
        recorded.refused(&refusal);
        assert!(recorded.record.audited.is_none(), "nobody writes it down");
        drop(recorded);
        let [(_, outcome, _)] = onlooker.0.lock().unwrap()[..] else {
            panic!("one request");
        };
        assert_eq!(outcome, Outcome::Rejected("max-in-flight"));
        assert_eq!(outcome.code(), Some(StatusCode::TOO_MANY_REQUESTS));
    }

    /// Writes down what is rejected.
    #[derive(Debug)]
    struct Clerk;

    impl Witness for Clerk {
        fn rejected(&self, _: &Record) -> bool {
            true
        }

        fn ended(&self, _: &Record, _: Instant) {}
    }

    #[test]
    fn a_rejection_that_is_written_down_has_an_id() {
        let rejection = Rejection::MaxInFlight {
            kind: RequestKind::Mutating,
            limit: 1,
        };
        let refusal = Refusal::Rejected(rejection);
        let id = |own: Option<&'static str>| {
            let mut recorded = recorded(&Arc::default(), false);
            let clerk: Arc<dyn Witness> = Arc::new(Clerk);
            recorded.witnesses = Arc::from([clerk]);
            let own = own.map(|own| ("audit-id".parse().unwrap(), HeaderValue::from_static(own)));
            recorded.rejected(&refusal, &HeaderMap::from_iter(own));
            assert!(recorded.record.written_down);
            recorded.record.audited.take().unwrap().id
        };
        assert_eq!(id(Some("mine")), "mine");
        assert_ne!(id(None), id(None));
    }

    #[test]
    fn an_event_for_whose_body_there_is_no_room_is_rejected_and_one_that_breaks_off_is_not() {
        let onlooker = Arc::new(Onlooker::default());
        for fault in [BodyFault::NoRoom, BodyFault::Malformed] {
            let refusal = Refusal::Body(fault);
            let mut recorded = recorded(&onlooker, false);
            recorded.rejected(&refusal, &HeaderMap::new());
            recorded.refused(&refusal);
        }
        let told = onlooker.0.lock().unwrap();
        let outcomes: Vec<_> = told.iter().map(|(_, outcome, _)| *outcome).collect();
        let broken = Outcome::Refused(StatusCode::BAD_REQUEST);
        assert_eq!(outcomes, [Outcome::Rejected("event-bodies"), broken]);
    }

    #[test]
    fn what_is_held_keeps_nothing_of_the_connection_s_buffer_and_of_users_what_there_is_room_for() {
        let buffer = Bytes::from(vec![b'a'; 1 << 20]);
        let piece = |range| HeaderValue::from_maybe_shared(buffer.slice(range)).unwrap();
        let mut recorded = recorded(&Arc::default(), false);
        let id = ("audit-id".parse().unwrap(), piece(0..36));
        let mut audited = Audited::begin(&HeaderMap::from_iter([id]));
        assert_eq!(audited.id.len(), 36);
        recorded.record.user_agent = Some(piece(36..100));
        let wish = UserInfo {
            name: "b".repeat(1000),
            ..UserInfo::anonymous()
        };
        audited.wish = Some(Arc::new(wish));
        recorded.record.audited = Some(Box::new(audited));
        let metrics =
            crate::pipeline::trace::RequestMetrics::register(&crate::metrics::Registry::new());
        let mut trace = Trace::started(metrics, Clock.now());
        trace.recorded = Some(Box::new(recorded));
        assert!(trace.keeps_to_itself(&Budget::new(1000)).is_none());
        let room = Budget::new(2000);
        let _reserved = trace.keeps_to_itself(&room).unwrap();
        assert!(room.taken() > 1000);
        assert!(buffer.is_unique());
    }

    #[test]
    fn a_panic_is_told_as_one() {
        let onlooker = Arc::new(Onlooker::default());
        let recorded = recorded(&onlooker, false);
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _recorded = recorded;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(onlooker.0.lock().unwrap()[0].1, Outcome::Panicked);
    }
}
