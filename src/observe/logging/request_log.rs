//! Log lines about requests: rejections by limit, also those of a dry run (`weir::rejections`), and on demand one line per
//! request (`--log-level weir::access=debug`).
//!
//! Rejections can come by the hundred thousand and must cost next to nothing: ten lines a second
//! are written for each reason, the others are counted and make one summary line. The fields of
//! `weir::access` are those of kube-apiserver's request log (`httplog`, 1.36).
//!
//! Of the others, every sixteenth is looked at for its user. The limit's rejection decides which
//! ones are logged, so only those cost an id, which their clients can receive.

use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::time::MissedTickBehavior;
use tracing::{Level, debug, enabled, warn};

use crate::limits::Rejection;
use crate::limits::rejection::POLICY;
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_kubernetes::encoding::client_text;
use weir_kubernetes::encoding::client_text::truncate;
use weir_kubernetes::request_info::MetricLabels;
use weir_limits::rate::top_keys::TopKeys;

/// Lines per interval for each reason: enough to see the cause, and no more than a disk takes.
const LINES_PER_INTERVAL: u32 = 10;

/// The interval of the line limit and of summaries.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most reasons with a sampler of their own. Reasons come from the configuration (limits, and
/// levels or rules); more of them share one sampler.
const MAX_REASONS: usize = 256;

/// The user is recorded for one of this many suppressed rejections, and for each of the first ones.
/// A user with most rejections also has most of a sample.
const SAMPLE_USER_EVERY: u64 = 16;
const SAMPLE_FIRST_USERS: u64 = 64;

/// Longest text of a client in a log line, in bytes.
const MAX_TEXT_BYTES: usize = 512;

/// Logs rejections by a limit.
#[derive(Debug)]
pub(crate) struct RejectionLog {
    /// Samplers are added and never removed.
    samplers: ArcSwap<Vec<Arc<ReasonSampler>>>,
    /// Locked while a sampler is added.
    insert_lock: Mutex<()>,
}

/// Samples the log lines of one reason: a limit and its scope.
#[derive(Debug)]
struct ReasonSampler {
    limit: &'static str,
    /// The priority level, the rule or the policy; empty if there is none.
    scope: Box<str>,
    /// Whether the limit only counts.
    is_dry_run: bool,
    /// Lines left in this interval. Relaxed, as is `suppressed`: they order nothing.
    remaining_lines: AtomicU32,
    /// Rejections without a line since the last summary.
    suppressed: AtomicU64,
    /// Users of the sampled suppressed rejections. A caller that finds it locked skips the sample.
    top_users: Mutex<TopKeys>,
}

impl Default for RejectionLog {
    fn default() -> Self {
        Self {
            samplers: ArcSwap::from_pointee(vec![ReasonSampler::new("other", "", false)]),
            insert_lock: Mutex::default(),
        }
    }
}

impl RejectionLog {
    /// Logs a summary of suppressed lines each second.
    ///
    /// # Cancel safety
    /// Only the next summary is lost.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut second = tokio::time::interval(INTERVAL);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.log_summaries();
        }
    }

    /// Logs a summary of the lines suppressed since the last call: each second, and at shutdown.
    pub(crate) fn log_summaries(&self) {
        for sampler in &**self.samplers.load() {
            sampler.log_summary();
        }
    }

    /// Calls `f` with the reason's sampler. The sampler is not cloned, since rejections can come by
    /// the hundred thousand.
    fn with_sampler<T>(
        &self,
        limit: &'static str,
        scope: &str,
        is_dry_run: bool,
        f: impl FnOnce(&ReasonSampler) -> T,
    ) -> T {
        let samplers = self.samplers.load();
        match samplers
            .iter()
            .find(|sampler| sampler.is_for(limit, scope, is_dry_run))
        {
            Some(sampler) => f(sampler),
            None => f(&self.add_sampler(limit, scope, is_dry_run)),
        }
    }

    fn add_sampler(
        &self,
        limit: &'static str,
        scope: &str,
        is_dry_run: bool,
    ) -> Arc<ReasonSampler> {
        let is_same = |sampler: &&Arc<ReasonSampler>| sampler.is_for(limit, scope, is_dry_run);
        let guard = self.insert_lock.lock();
        let mut samplers = Vec::clone(&self.samplers.load());
        let sampler = match (samplers.iter().find(is_same), samplers.first()) {
            (Some(sampler), _) => Arc::clone(sampler),
            (None, Some(other)) if samplers.len() > MAX_REASONS => Arc::clone(other),
            (None, _) => {
                let new = ReasonSampler::new(limit, scope, is_dry_run);
                samplers.push(Arc::clone(&new));
                self.samplers.store(Arc::new(samplers));
                new
            }
        };
        drop(guard);
        sampler
    }
}

/// Whether a rejection is logged is decided at the time of the rejection, so that only logged ones
/// cost an audit ID. The line is written when the request ends.
impl RequestObserver for RejectionLog {
    fn on_rejected(&self, record: &Record) -> bool {
        let RequestOutcome::Rejected(limit) = record.outcome else {
            return false;
        };
        if !enabled!(target: "weir::rejections", Level::WARN) {
            return false;
        }
        let level = record.decision.as_ref().map(|d| &*d.priority_level().name);
        let scope = level.or(record.rule.as_deref()).unwrap_or_default();
        self.with_sampler(limit, scope, false, |sampler| sampler.samples(record))
    }

    fn on_dry_run_rejection(&self, record: &Record, rejection: &Rejection) {
        if !enabled!(target: "weir::rejections", Level::WARN) {
            return;
        }
        let (limit, scope) = (rejection.limit_label(), rejection.flow_class());
        if self.with_sampler(limit, scope, true, |sampler| sampler.samples(record)) {
            log_rejection(
                record,
                limit,
                Some(scope),
                "would have been rejected: dry run",
            );
        }
    }

    fn on_ended(&self, record: &Record, _: Instant) {
        if let (RequestOutcome::Rejected(limit), true) = (record.outcome, record.is_logged) {
            return log_rejection(record, limit, record.rule.as_deref(), "rejected");
        }
        let policies = record.policies.as_ref();
        let denied_by = policies.and_then(|notes| notes.rejected_by.as_deref());
        if let (RequestOutcome::Failed(_), Some(policy)) = (record.outcome, denied_by)
            && enabled!(target: "weir::rejections", Level::WARN)
            && self.with_sampler(POLICY, policy, false, |sampler| sampler.samples(record))
        {
            log_rejection(record, POLICY, Some(policy), "denied");
        }
    }
}

impl ReasonSampler {
    fn new(limit: &'static str, scope: &str, is_dry_run: bool) -> Arc<Self> {
        Arc::new(Self {
            limit,
            scope: scope.into(),
            is_dry_run,
            remaining_lines: AtomicU32::new(LINES_PER_INTERVAL),
            suppressed: AtomicU64::new(0),
            top_users: Mutex::default(),
        })
    }

    fn is_for(&self, limit: &str, scope: &str, is_dry_run: bool) -> bool {
        (self.limit, &*self.scope, self.is_dry_run) == (limit, scope, is_dry_run)
    }

    /// Whether a line is to be logged for this rejection; else it is counted for the summary.
    fn samples(&self, record: &Record) -> bool {
        let is_logged = self.try_acquire_line();
        if !is_logged {
            self.record_suppressed(record);
        }
        is_logged
    }

    fn try_acquire_line(&self) -> bool {
        self.remaining_lines.load(Ordering::Relaxed) > 0
            && self
                .remaining_lines
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| {
                    remaining.checked_sub(1)
                })
                .is_ok()
    }

    fn record_suppressed(&self, record: &Record) {
        let count = self.suppressed.fetch_add(1, Ordering::Relaxed);
        if (count < SAMPLE_FIRST_USERS || count.is_multiple_of(SAMPLE_USER_EVERY))
            && let Some(user) = record.effective_user()
            && let Some(mut users) = self.top_users.try_lock()
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
        let users = std::mem::take(&mut *self.top_users.lock());
        let top_user = users.sorted().into_iter().next();
        let user = top_user.as_ref().map(|top| &*top.key);
        let Self {
            limit, scope: of, ..
        } = self;
        let rejections = match self.is_dry_run {
            true => "would-be rejections",
            false => "rejections",
        };
        warn!(
            target: "weir::rejections",
            reason = limit, of, more, user,
            "{more} more {rejections} by {limit}{} in the last second{}",
            ScopeSuffix(of),
            TopUserSuffix(user),
        );
    }
}

/// The part of the message that names a level or a rule.
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

/// The part of the message that names the user with most rejections.
struct TopUserSuffix<'a>(Option<&'a str>);

impl std::fmt::Display for TopUserSuffix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .map_or(Ok(()), |user| write!(f, ", most from user {user:?}"))
    }
}

fn log_rejection(record: &Record, limit: &str, rule: Option<&str>, what: &str) {
    let fields = LogFields::from_record(record);
    warn!(
        target: "weir::rejections",
        reason = limit,
        priority_level = fields.priority_level,
        flow_schema = fields.flow_schema,
        rule,
        queue_wait_seconds = fields.queue_wait,
        user = record.effective_user().map(|user| truncate(&user.name, MAX_TEXT_BYTES)),
        impersonator = fields.user.filter(|_| record.counted_as.is_some()),
        method = record.method.as_str(),
        uri = &*fields.target,
        user_agent = fields.user_agent.as_deref(),
        audit_id = fields.audit_id.as_deref(),
        client = %record.peer,
        "{what}"
    );
}

/// Logs one line per request.
#[derive(Debug)]
pub(crate) struct AccessLog;

impl RequestObserver for AccessLog {
    fn on_ended(&self, record: &Record, now: Instant) {
        if !enabled!(target: "weir::access", Level::DEBUG) {
            return;
        }
        let fields = LogFields::from_record(record);
        let info = record.info().ok();
        let verb =
            info.map(|info| MetricLabels::from_request(record.method.as_str(), &info, None).verb);
        let mut limit = None;
        if let RequestOutcome::Rejected(rejected_by) = record.outcome {
            limit = Some(rejected_by);
        }
        debug!(
            target: "weir::access",
            verb,
            URI = &*fields.target,
            latency_seconds = now.saturating_duration_since(record.arrived).as_secs_f64(),
            user = fields.user,
            userAgent = fields.user_agent.as_deref(),
            "audit-ID" = fields.audit_id.as_deref(),
            srcIP = %record.peer,
            apf_pl = fields.priority_level,
            apf_fs = fields.flow_schema,
            apf_seats = record.decision.as_ref().map(|decision| decision.seats()),
            apf_queue_wait_seconds = fields.queue_wait,
            rejection = limit,
            resp = record.outcome.code().map(|code| code.as_u16()),
            sent_bytes = record.sent_bytes,
            "HTTP"
        );
    }
}

/// The fields of both logs, truncated.
struct LogFields<'a> {
    /// Credentials in the query are redacted.
    target: Cow<'a, str>,
    /// The authenticated user.
    user: Option<&'a str>,
    user_agent: Option<Cow<'a, str>>,
    /// The audit ID. A rejection has one only if it is logged.
    audit_id: Option<Cow<'a, str>>,
    priority_level: Option<&'a str>,
    flow_schema: Option<&'a str>,
    queue_wait: Option<f64>,
}

impl<'a> LogFields<'a> {
    fn from_record(record: &'a Record) -> Self {
        let decision = record.decision.as_ref();
        let user = record.user.as_ref();
        let (user_agent, audit) = (record.user_agent.as_ref(), record.audit.as_ref());
        Self {
            target: match client_text::redact_target(truncate(
                record.target.as_str(),
                MAX_TEXT_BYTES,
            )) {
                Cow::Borrowed(text) => Cow::Borrowed(text),
                Cow::Owned(text) => Cow::Owned(truncate(&text, MAX_TEXT_BYTES).to_owned()),
            },
            user: user.map(|user| truncate(&user.name, MAX_TEXT_BYTES)),
            user_agent: user_agent
                .map(|agent| client_text::header_to_text(agent.as_bytes(), MAX_TEXT_BYTES)),
            audit_id: audit
                .map(|audit| client_text::header_to_text(audit.id.as_bytes(), MAX_TEXT_BYTES)),
            priority_level: decision.map(|decision| &*decision.priority_level().name),
            flow_schema: decision.map(|decision| &*decision.flow_schema().name),
            queue_wait: decision.map(|decision| decision.queue_wait.as_secs_f64()),
        }
    }
}

#[cfg(test)]
#[path = "request_log_tests.rs"]
mod tests;
