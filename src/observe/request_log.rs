//! What the log says of requests: who was refused by which limit, and, for who wants it (`--log-level weir::access=debug`), a
//! line for each.
//!
//! Refusals come by the hundred thousand when they come, and are to cost next to nothing: of each reason ten a second are
//! written down, the others are counted and make one more line. The names in `weir::access` are those of kube-apiserver's
//! own log of requests (`httplog`, 1.36).

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;
use tokio::time::MissedTickBehavior;
use tracing::Level;
use tracing::debug;
use tracing::enabled;
use tracing::warn;

use crate::limits::top_keys::TopKeys;
use crate::observe::texts;
use crate::observe::texts::clipped;
use crate::pipeline::record::Outcome;
use crate::pipeline::record::Record;
use crate::pipeline::record::Witness;
use crate::request_info::MetricLabels;

/// Lines a second for each reason: enough to see what it is about, and no more than a disk takes.
const LINES: u32 = 10;

/// The time in which so many are written.
const EVERY: Duration = Duration::from_secs(1);

/// Reasons that are told apart. They come from the configuration (limits, and levels or rules), so that more would be a
/// configuration that nobody can read; what is beyond counts for one.
const MOST_REASONS: usize = 256;

/// Of so many that are not written down the user is noted, and of each of the first: whoever is most of them is most of a
/// part of them.
const NOTED_OF: u64 = 16;
const NOTED_FIRST: u64 = 64;

/// So much is written of what a client may make as long as it likes, in bytes.
const LONGEST: usize = 512;

/// Writes down who was refused by a limit.
#[derive(Debug)]
pub struct RejectionLog {
    /// Grows only.
    reasons: ArcSwap<Vec<Arc<Reason>>>,
    /// Held while it grows.
    growing: Mutex<()>,
}

/// A limit, and what of it.
#[derive(Debug)]
struct Reason {
    limit: &'static str,
    /// The priority level or the rule; empty where there is neither.
    of: Box<str>,
    /// Lines that may be written before the second is over. Relaxed, as the next one: they order nothing.
    left: AtomicU32,
    /// What was not written since the last line about them.
    more: AtomicU64,
    /// Of whom some of these were. Held for a look at it; who finds it taken goes on.
    users: Mutex<TopKeys>,
}

impl Default for RejectionLog {
    fn default() -> Self {
        Self {
            reasons: ArcSwap::from_pointee(vec![Reason::new("other", "")]),
            growing: Mutex::default(),
        }
    }
}

impl RejectionLog {
    /// Says each second what was not written down.
    ///
    /// # Cancel safety
    /// Nothing is lost but that.
    pub async fn run(self: Arc<Self>) {
        let mut second = tokio::time::interval(EVERY);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.sum_up();
        }
    }

    /// Says what was not written down since the last time: each second, and at weir's end.
    pub fn sum_up(&self) {
        for reason in &**self.reasons.load() {
            reason.sum_up();
        }
    }

    /// Shows `look` the reason; nothing is cloned for it, since refusals come by the hundred thousand.
    fn with_reason<T>(&self, limit: &'static str, of: &str, look: impl FnOnce(&Reason) -> T) -> T {
        let same = |reason: &&Arc<Reason>| reason.limit == limit && *reason.of == *of;
        let known = self.reasons.load();
        match known.iter().find(same) {
            Some(reason) => look(reason),
            None => look(&self.new_reason(limit, of)),
        }
    }

    fn new_reason(&self, limit: &'static str, of: &str) -> Arc<Reason> {
        let same = |reason: &&Arc<Reason>| reason.limit == limit && *reason.of == *of;
        let growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reasons = Vec::clone(&self.reasons.load());
        let reason = match (reasons.iter().find(same), reasons.first()) {
            (Some(reason), _) => Arc::clone(reason),
            (None, Some(other)) if reasons.len() > MOST_REASONS => Arc::clone(other),
            (None, _) => {
                let new = Reason::new(limit, of);
                reasons.push(Arc::clone(&new));
                self.reasons.store(Arc::new(reasons));
                new
            }
        };
        drop(growing);
        reason
    }
}

/// Whether there is to be a line is decided when the limit says no, so that only those that have one cost an id; it is written with the
/// others, at the end.
impl Witness for RejectionLog {
    fn rejected(&self, record: &Record) -> bool {
        let Outcome::Rejected(limit) = record.outcome else {
            return false;
        };
        if !enabled!(target: "weir::rejections", Level::WARN) {
            return false;
        }
        let level = record.decision.as_ref().map(|d| &*d.priority_level().name);
        let of = level.or(record.rule.as_deref()).unwrap_or_default();
        self.with_reason(limit, of, |reason| {
            let written = reason.may_be_written();
            if !written {
                reason.one_more(record);
            }
            written
        })
    }

    fn ended(&self, record: &Record, _: Instant) {
        if let (Outcome::Rejected(limit), true) = (record.outcome, record.written_down) {
            write_rejection(record, limit);
        }
    }
}

impl Reason {
    fn new(limit: &'static str, of: &str) -> Arc<Self> {
        Arc::new(Self {
            limit,
            of: of.into(),
            left: AtomicU32::new(LINES),
            more: AtomicU64::new(0),
            users: Mutex::default(),
        })
    }

    fn may_be_written(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    fn one_more(&self, record: &Record) {
        let before = self.more.fetch_add(1, Ordering::Relaxed);
        if (before < NOTED_FIRST || before.is_multiple_of(NOTED_OF))
            && let Some(user) = record.counts_for()
            && let Ok(mut users) = self.users.try_lock()
        {
            users.add(user.name.as_bytes());
        }
    }

    fn sum_up(&self) {
        self.left.store(LINES, Ordering::Relaxed);
        let more = self.more.swap(0, Ordering::Relaxed);
        if more == 0 {
            return;
        }
        let users = std::mem::take(&mut *self.users.lock().unwrap_or_else(PoisonError::into_inner));
        let most = users.sorted().into_iter().next();
        let user = most.as_ref().map(|top| &*top.key);
        let Self { limit, of, .. } = self;
        warn!(
            target: "weir::rejections",
            reason = limit, of, more, user,
            "{more} more rejections by {limit}{} in the last second{}",
            Of(of),
            MostFrom(user),
        );
    }
}

/// The words for a level or a rule.
struct Of<'a>(&'a str);

impl std::fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " of {:?}", self.0)
        }
    }
}

/// The words for who it was.
struct MostFrom<'a>(Option<&'a str>);

impl std::fmt::Display for MostFrom<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .map_or(Ok(()), |user| write!(f, ", most from user {user:?}"))
    }
}

fn write_rejection(record: &Record, limit: &str) {
    let said = Said::of(record);
    warn!(
        target: "weir::rejections",
        reason = limit,
        priority_level = said.level,
        flow_schema = said.schema,
        rule = record.rule.as_deref(),
        queue_wait_seconds = said.queue_wait,
        user = record.counts_for().map(|user| clipped(&user.name, LONGEST)),
        impersonator = said.user.filter(|_| record.counted.is_some()),
        method = record.method.as_str(),
        uri = &*said.target,
        user_agent = said.user_agent.as_deref(),
        audit_id = said.audit_id.as_deref(),
        client = %record.peer,
        "rejected"
    );
}

/// A line for each request.
#[derive(Debug)]
pub struct AccessLog;

impl Witness for AccessLog {
    fn ended(&self, record: &Record, now: Instant) {
        if !enabled!(target: "weir::access", Level::DEBUG) {
            return;
        }
        let said = Said::of(record);
        let info = record.info().ok();
        let verb = info.map(|info| MetricLabels::of(record.method.as_str(), &info, None).verb);
        let mut limit = None;
        if let Outcome::Rejected(by) = record.outcome {
            limit = Some(by);
        }
        debug!(
            target: "weir::access",
            verb,
            URI = &*said.target,
            latency_seconds = now.saturating_duration_since(record.arrived).as_secs_f64(),
            user = said.user,
            userAgent = said.user_agent.as_deref(),
            "audit-ID" = said.audit_id.as_deref(),
            srcIP = %record.peer,
            apf_pl = said.level,
            apf_fs = said.schema,
            apf_seats = record.decision.as_ref().map(|decision| decision.seats),
            apf_queue_wait_seconds = said.queue_wait,
            rejection = limit,
            resp = record.outcome.code().map(|code| code.as_u16()),
            sent_bytes = record.sent,
            "HTTP"
        );
    }
}

/// What both logs say, no longer than it may be.
struct Said<'a> {
    /// Without the credentials in its query.
    target: Cow<'a, str>,
    /// Who asks.
    user: Option<&'a str>,
    user_agent: Option<Cow<'a, str>>,
    /// The request's id, which a rejection has only where it is written down.
    audit_id: Option<Cow<'a, str>>,
    level: Option<&'a str>,
    schema: Option<&'a str>,
    queue_wait: Option<f64>,
}

impl<'a> Said<'a> {
    fn of(record: &'a Record) -> Self {
        let decision = record.decision.as_ref();
        let user = record.user.as_ref();
        let (user_agent, audited) = (record.user_agent.as_ref(), record.audited.as_ref());
        Self {
            target: match texts::redacted(clipped(record.target.as_str(), LONGEST)) {
                Cow::Borrowed(text) => Cow::Borrowed(text),
                Cow::Owned(text) => Cow::Owned(clipped(&text, LONGEST).to_owned()),
            },
            user: user.map(|user| clipped(&user.name, LONGEST)),
            user_agent: user_agent.map(|agent| texts::shown(agent, LONGEST)),
            audit_id: audited.map(|audited| texts::shown(&audited.id, LONGEST)),
            level: decision.map(|decision| &*decision.priority_level().name),
            schema: decision.map(|decision| &*decision.flow_schema().name),
            queue_wait: decision.map(|decision| decision.queue_wait.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use http::HeaderValue;
    use http::Method;
    use http::StatusCode;
    use http::uri::PathAndQuery;
    use tracing_subscriber::EnvFilter;

    use super::*;
    use crate::api::UserInfo;
    use crate::clock::Clock;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are logged of what is done, each an object.
    fn logged(filter: &str, done: impl FnOnce()) -> Vec<serde_json::Value> {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, done);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn record(user: &str, outcome: Outcome) -> Record {
        Record {
            method: Method::GET,
            target: PathAndQuery::from_static("/api/v1/pods?limit=5"),
            long_running: false,
            peer: SocketAddr::from(([127, 0, 0, 1], 7)),
            forwarded_for: None,
            user_agent: Some(HeaderValue::from_static("flood/1.0")),
            arrived: Clock.now(),
            arrived_wall: Clock.wall(),
            user: Some(Arc::new(UserInfo {
                name: user.to_owned(),
                ..UserInfo::anonymous()
            })),
            counted: None,
            decision: None,
            rule: None,
            traced: None,
            audited: None,
            written_down: false,
            outcome,
            sent: 42,
        }
    }

    /// What becomes of a request that a limit refuses.
    fn refused(log: &RejectionLog, mut record: Record) {
        record.written_down = log.rejected(&record);
        log.ended(&record, Clock.now());
    }

    #[test]
    fn ten_rejections_a_second_are_written_and_the_others_are_one_line() {
        let log = RejectionLog::default();
        let lines = logged("info", || {
            for n in 0..1000 {
                let user = if n % 3 == 0 { "bob" } else { "alice" };
                refused(&log, record(user, Outcome::Rejected("max-in-flight")));
            }
            refused(&log, record("carol", Outcome::Rejected("queue-full")));
            log.ended(
                &record("dave", Outcome::Answered(StatusCode::OK)),
                Clock.now(),
            );
            log.sum_up();
            log.sum_up();
            refused(&log, record("bob", Outcome::Rejected("max-in-flight")));
        });
        assert_eq!(lines.len(), 13, "{lines:#?}");
        assert_eq!(lines[0]["message"], "rejected");
        assert_eq!(lines[0]["user"], "bob");
        assert_eq!(lines[0]["reason"], "max-in-flight");
        assert_eq!(lines[0]["uri"], "/api/v1/pods?limit=5");
        assert_eq!(lines[10]["user"], "carol", "each reason has its own ten");
        assert_eq!(
            lines[11]["message"],
            "990 more rejections by max-in-flight in the last second, most from user \"alice\""
        );
        assert_eq!(lines[11]["more"], 990);
        assert_eq!(lines[12]["user"], "bob", "the next second has lines again");
    }

    #[test]
    fn reasons_are_bounded_and_no_rejection_is_lost() {
        let log = RejectionLog::default();
        let lines = logged("info", || {
            for n in 0..2 * MOST_REASONS {
                let rule: Arc<str> = format!("rule-{n}").into();
                let record = Record {
                    rule: Some(rule),
                    ..record("alice", Outcome::Rejected("client-limit"))
                };
                refused(&log, record);
            }
            log.sum_up();
        });
        assert_eq!(log.reasons.load().len(), MOST_REASONS + 1);
        let more: u64 = lines.iter().filter_map(|line| line["more"].as_u64()).sum();
        let written = lines.iter().filter(|line| line["message"] == "rejected");
        let written = u64::try_from(written.count()).unwrap();
        assert_eq!(written + more, 2 * u64::try_from(MOST_REASONS).unwrap());
        assert_eq!(
            written,
            u64::try_from(MOST_REASONS).unwrap() + u64::from(LINES)
        );
    }

    #[test]
    fn what_a_client_calls_itself_cannot_make_a_line_of_its_own_or_a_long_one() {
        let log = RejectionLog::default();
        let name = format!("eve\n{{\"level\":\"INFO\"}}{}", "é".repeat(4000));
        let lines = logged("info", || {
            refused(&log, record(&name, Outcome::Rejected("queue-full")));
        });
        assert_eq!(lines.len(), 1);
        let user = lines[0]["user"].as_str().unwrap();
        assert!(user.len() <= LONGEST && name.starts_with(user), "{user}");
    }

    #[test]
    fn a_rejection_is_whose_request_the_limit_counted() {
        let log = RejectionLog::default();
        let lines = logged("info", || {
            for _ in 0..=LINES {
                let mut record = record("alice", Outcome::Rejected("queue-full"));
                record.counted = Some(Arc::new(UserInfo {
                    name: "bob".to_owned(),
                    ..UserInfo::default()
                }));
                refused(&log, record);
            }
            log.sum_up();
            refused(&log, record("alice", Outcome::Rejected("queue-full")));
        });
        let [line, .., sum, own] = &lines[..] else {
            panic!("{lines:#?}");
        };
        assert_eq!(
            (&line["user"], &line["impersonator"]),
            (&"bob".into(), &"alice".into())
        );
        assert_eq!(sum["user"], "bob");
        assert_eq!(
            (&own["user"], own.get("impersonator")),
            (&"alice".into(), None)
        );
    }

    #[test]
    fn neither_log_has_a_credential_of_a_query() {
        let log = RejectionLog::default();
        let with = |outcome| Record {
            target: PathAndQuery::from_static("/api/v1/pods?access_token=abc&limit=5"),
            ..record("alice", outcome)
        };
        let lines = logged("info,weir::access=debug", || {
            refused(&log, with(Outcome::Rejected("queue-full")));
            AccessLog.ended(&with(Outcome::Answered(StatusCode::OK)), Clock.now());
        });
        let shown = "/api/v1/pods?access_token=redacted&limit=5";
        assert_eq!(
            (&lines[0]["uri"], &lines[1]["URI"]),
            (&shown.into(), &shown.into())
        );
        let short = |n| Record {
            target: format!("/api?{}token=", "token=&".repeat(n))
                .parse()
                .unwrap(),
            ..record("alice", Outcome::Rejected("queue-full"))
        };
        let lines = logged("info", || {
            refused(&log, short(2 * LONGEST / "token=&".len()))
        });
        assert!(lines[0]["uri"].as_str().unwrap().len() <= LONGEST);
    }

    #[test]
    fn what_is_no_text_in_a_user_agent_does_not_hide_it() {
        let log = RejectionLog::default();
        let odd = || HeaderValue::from_bytes(b"fl\xffod/1.0").unwrap();
        let with = |outcome| Record {
            user_agent: Some(odd()),
            ..record("alice", outcome)
        };
        let lines = logged("info,weir::access=debug", || {
            refused(&log, with(Outcome::Rejected("queue-full")));
            AccessLog.ended(&with(Outcome::Answered(StatusCode::OK)), Clock.now());
        });
        assert_eq!(lines[0]["user_agent"], "fl\u{fffd}od/1.0");
        assert_eq!(lines[1]["userAgent"], "fl\u{fffd}od/1.0");
    }

    #[test]
    fn a_line_for_each_request_is_written_for_who_wants_it() {
        let now = Clock.now();
        let done = || AccessLog.ended(&record("alice", Outcome::Answered(StatusCode::OK)), now);
        assert!(logged("info", done).is_empty());
        let lines = logged("info,weir::access=debug", done);
        assert_eq!(lines.len(), 1);
        for (key, value) in [
            ("message", "HTTP"),
            ("verb", "LIST"),
            ("URI", "/api/v1/pods?limit=5"),
            ("user", "alice"),
            ("userAgent", "flood/1.0"),
            ("srcIP", "127.0.0.1:7"),
        ] {
            assert_eq!(lines[0][key], value, "{key}");
        }
        assert_eq!(
            (&lines[0]["resp"], &lines[0]["sent_bytes"]),
            (&200.into(), &42.into())
        );
    }
}
