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

use crate::limits::rate::top_keys::TopKeys;
use crate::observe::client_text;
use crate::observe::client_text::truncate;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::record::RequestObserver;
use crate::pipeline::trace::record::RequestOutcome;
use crate::request_info::MetricLabels;

/// Lines a second for each reason: enough to see what it is about, and no more than a disk takes.
const LINES_PER_INTERVAL: u32 = 10;

/// The time in which so many are written.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reasons that are told apart. They come from the configuration (limits, and levels or rules), so that more would be a
/// configuration that nobody can read; what is beyond counts for one.
const MAX_REASONS: usize = 256;

/// Of so many that are not written down the user is noted, and of each of the first: whoever is most of them is most of a
/// part of them.
const SAMPLE_USER_EVERY: u64 = 16;
const SAMPLE_FIRST_USERS: u64 = 64;

/// So much is written of what a client may make as long as it likes, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// Writes down who was refused by a limit.
#[derive(Debug)]
pub struct RejectionLog {
    /// Grows only.
    samplers: ArcSwap<Vec<Arc<ReasonSampler>>>,
    /// Held while it grows.
    insert_lock: Mutex<()>,
}

/// A limit, and what of it.
#[derive(Debug)]
struct ReasonSampler {
    limit: &'static str,
    /// The priority level or the rule; empty where there is neither.
    scope: Box<str>,
    /// Lines that may be written before the second is over. Relaxed, as the next one: they order nothing.
    remaining_lines: AtomicU32,
    /// What was not written since the last line about them.
    suppressed: AtomicU64,
    /// Of whom some of these were. Held for a look at it; who finds it taken goes on.
    top_users: Mutex<TopKeys>,
}

impl Default for RejectionLog {
    fn default() -> Self {
        Self {
            samplers: ArcSwap::from_pointee(vec![ReasonSampler::new("other", "")]),
            insert_lock: Mutex::default(),
        }
    }
}

impl RejectionLog {
    /// Says each second what was not written down.
    ///
    /// # Cancel safety
    /// Nothing is lost but that.
    pub async fn run(self: Arc<Self>) {
        let mut second = tokio::time::interval(INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.log_summaries();
        }
    }

    /// Says what was not written down since the last time: each second, and at weir's end.
    pub fn log_summaries(&self) {
        for reason in &**self.samplers.load() {
            reason.log_summary();
        }
    }

    /// Shows `look` the reason; nothing is cloned for it, since refusals come by the hundred thousand.
    fn with_sampler<T>(
        &self,
        limit: &'static str,
        of: &str,
        look: impl FnOnce(&ReasonSampler) -> T,
    ) -> T {
        let same = |reason: &&Arc<ReasonSampler>| reason.limit == limit && *reason.scope == *of;
        let known = self.samplers.load();
        match known.iter().find(same) {
            Some(reason) => look(reason),
            None => look(&self.add_sampler(limit, of)),
        }
    }

    fn add_sampler(&self, limit: &'static str, of: &str) -> Arc<ReasonSampler> {
        let same = |reason: &&Arc<ReasonSampler>| reason.limit == limit && *reason.scope == *of;
        let growing = self
            .insert_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut reasons = Vec::clone(&self.samplers.load());
        let reason = match (reasons.iter().find(same), reasons.first()) {
            (Some(reason), _) => Arc::clone(reason),
            (None, Some(other)) if reasons.len() > MAX_REASONS => Arc::clone(other),
            (None, _) => {
                let new = ReasonSampler::new(limit, of);
                reasons.push(Arc::clone(&new));
                self.samplers.store(Arc::new(reasons));
                new
            }
        };
        drop(growing);
        reason
    }
}

/// Whether there is to be a line is decided when the limit says no, so that only those that have one cost an id; it is written with the
/// others, at the end.
impl RequestObserver for RejectionLog {
    fn on_rejected(&self, record: &Record) -> bool {
        let RequestOutcome::Rejected(limit) = record.outcome else {
            return false;
        };
        if !enabled!(target: "weir::rejections", Level::WARN) {
            return false;
        }
        let level = record.decision.as_ref().map(|d| &*d.priority_level().name);
        let of = level.or(record.rule.as_deref()).unwrap_or_default();
        self.with_sampler(limit, of, |reason| {
            let written = reason.try_acquire_line();
            if !written {
                reason.record_suppressed(record);
            }
            written
        })
    }

    fn on_ended(&self, record: &Record, _: Instant) {
        if let (RequestOutcome::Rejected(limit), true) = (record.outcome, record.is_logged) {
            log_rejection(record, limit);
        }
    }
}

impl ReasonSampler {
    fn new(limit: &'static str, of: &str) -> Arc<Self> {
        Arc::new(Self {
            limit,
            scope: of.into(),
            remaining_lines: AtomicU32::new(LINES_PER_INTERVAL),
            suppressed: AtomicU64::new(0),
            top_users: Mutex::default(),
        })
    }

    fn try_acquire_line(&self) -> bool {
        self.remaining_lines.load(Ordering::Relaxed) > 0
            && self
                .remaining_lines
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    fn record_suppressed(&self, record: &Record) {
        let before = self.suppressed.fetch_add(1, Ordering::Relaxed);
        if (before < SAMPLE_FIRST_USERS || before.is_multiple_of(SAMPLE_USER_EVERY))
            && let Some(user) = record.effective_user()
            && let Ok(mut users) = self.top_users.try_lock()
        {
            users.add(user.name.as_bytes());
        }
    }

    fn log_summary(&self) {
        self.remaining_lines
            .store(LINES_PER_INTERVAL, Ordering::Relaxed);
        let more = self.suppressed.swap(0, Ordering::Relaxed);
        if more == 0 {
            return;
        }
        let users = std::mem::take(
            &mut *self
                .top_users
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let most = users.sorted().into_iter().next();
        let user = most.as_ref().map(|top| &*top.key);
        let Self {
            limit, scope: of, ..
        } = self;
        warn!(
            target: "weir::rejections",
            reason = limit, of, more, user,
            "{more} more rejections by {limit}{} in the last second{}",
            ScopeSuffix(of),
            TopUserSuffix(user),
        );
    }
}

/// The words for a level or a rule.
struct ScopeSuffix<'a>(&'a str);

impl std::fmt::Display for ScopeSuffix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " of {:?}", self.0)
        }
    }
}

/// The words for who it was.
struct TopUserSuffix<'a>(Option<&'a str>);

impl std::fmt::Display for TopUserSuffix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .map_or(Ok(()), |user| write!(f, ", most from user {user:?}"))
    }
}

fn log_rejection(record: &Record, limit: &str) {
    let said = LogFields::from_record(record);
    warn!(
        target: "weir::rejections",
        reason = limit,
        priority_level = said.priority_level,
        flow_schema = said.flow_schema,
        rule = record.rule.as_deref(),
        queue_wait_seconds = said.queue_wait,
        user = record.effective_user().map(|user| truncate(&user.name, MAX_TEXT_BYTES)),
        impersonator = said.user.filter(|_| record.counted_as.is_some()),
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

impl RequestObserver for AccessLog {
    fn on_ended(&self, record: &Record, now: Instant) {
        if !enabled!(target: "weir::access", Level::DEBUG) {
            return;
        }
        let said = LogFields::from_record(record);
        let info = record.info().ok();
        let verb =
            info.map(|info| MetricLabels::from_request(record.method.as_str(), &info, None).verb);
        let mut limit = None;
        if let RequestOutcome::Rejected(by) = record.outcome {
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
            apf_pl = said.priority_level,
            apf_fs = said.flow_schema,
            apf_seats = record.decision.as_ref().map(|decision| decision.seats),
            apf_queue_wait_seconds = said.queue_wait,
            rejection = limit,
            resp = record.outcome.code().map(|code| code.as_u16()),
            sent_bytes = record.sent_bytes,
            "HTTP"
        );
    }
}

/// What both logs say, no longer than it may be.
struct LogFields<'a> {
    /// Without the credentials in its query.
    target: Cow<'a, str>,
    /// Who asks.
    user: Option<&'a str>,
    user_agent: Option<Cow<'a, str>>,
    /// The request's id, which a rejection has only where it is written down.
    audit_id: Option<Cow<'a, str>>,
    priority_level: Option<&'a str>,
    flow_schema: Option<&'a str>,
    queue_wait: Option<f64>,
}

impl<'a> LogFields<'a> {
    fn from_record(record: &'a Record) -> Self {
        let decision = record.decision.as_ref();
        let user = record.user.as_ref();
        let (user_agent, audited) = (record.user_agent.as_ref(), record.audit.as_ref());
        Self {
            target: match client_text::redact_target(truncate(
                record.target.as_str(),
                MAX_TEXT_BYTES,
            )) {
                Cow::Borrowed(text) => Cow::Borrowed(text),
                Cow::Owned(text) => Cow::Owned(truncate(&text, MAX_TEXT_BYTES).to_owned()),
            },
            user: user.map(|user| truncate(&user.name, MAX_TEXT_BYTES)),
            user_agent: user_agent.map(|agent| client_text::header_to_text(agent, MAX_TEXT_BYTES)),
            audit_id: audited
                .map(|audited| client_text::header_to_text(&audited.id, MAX_TEXT_BYTES)),
            priority_level: decision.map(|decision| &*decision.priority_level().name),
            flow_schema: decision.map(|decision| &*decision.flow_schema().name),
            queue_wait: decision.map(|decision| decision.queue_wait.as_secs_f64()),
        }
    }
}

#[cfg(test)]
#[path = "request_log_tests.rs"]
mod tests;
