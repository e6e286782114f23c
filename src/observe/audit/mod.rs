//! The audit log (`--audit-log-path`): the requests, weir's decisions and the outcomes, as events
//! of `audit.k8s.io/v1`.
//!
//! On the request path an `AuditEntry` is made and put into a bounded queue, which takes less
//! than a microsecond. A thread of the log does the rest: [`policy`](weir_audit::policy) selects the events, `event`
//! builds them, [`output`](weir_audit::output) writes them. A slow disk blocks that thread only. When the queue is
//! full, entries are dropped and counted. No request waits for the log or fails because of it
//! (kube-apiserver's `--audit-log-mode=batch`).
//!
//! An entry copies its texts: a header is a part of its connection's buffer and would keep all of
//! it. The user and the decision are shared handles. The thread takes all entries every 50 ms, so
//! that in a storm it is not woken for each. Rotation is own code, since names and rules must be
//! lumberjack's, which tools that collect kube-apiserver's logs know.

mod event;
pub(crate) mod lever_event;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::warn;

use crate::observe::audit::event::{AuditEntry, AuditPhase};
use crate::observe::audit::lever_event::LeverEvent;
use crate::observe::audit::writer::{AuditItem, AuditWriter};
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_audit::output::AuditOutput;
use weir_audit::policy::AuditPolicy;
use weir_audit::rotation::LogFileConfig;
use weir_base::background_writer::BackgroundWriter;
use weir_base::clock::Clock;
use weir_limits::throttling::log_limiter::LogLimiter;

pub use writer::AuditMetrics;

/// Most memory of entries that are not written yet, in bytes: some 60,000 requests, several seconds
/// of a busy API server.
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;

/// Longest wait for unwritten entries at shutdown. A healthy disk takes the whole queue in this
/// time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The policy and the destination of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// `--audit-policy-file`; without the flag, all requests are logged.
    pub policy: AuditPolicy,
    /// `--audit-log-path`; `None` is the standard output.
    pub file: Option<LogFileConfig>,
}

/// The policy, and the destination, which is open.
#[derive(Debug)]
pub(crate) struct PreparedAudit {
    policy: AuditPolicy,
    output: AuditOutput,
}

impl PreparedAudit {
    /// Opens the destination.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(config: AuditConfig) -> io::Result<Self> {
        let AuditConfig { policy, file } = config;
        Ok(Self {
            policy,
            output: file.map_or(Ok(AuditOutput::Stdout), AuditOutput::open)?,
        })
    }
}

/// Queues entries for the audit log.
#[derive(Debug)]
pub(crate) struct AuditLog {
    writer: BackgroundWriter<AuditItem>,
    metrics: AuditMetrics,
    log_limiter: LogLimiter,
}

impl AuditLog {
    /// Starts the thread of the log.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(prepared: PreparedAudit, metrics: AuditMetrics) -> io::Result<Arc<Self>> {
        Self::with_capacity(prepared, metrics, MAX_QUEUED_BYTES)
    }

    /// Replaces policy and destination. Entries from now on go by the new ones; none is lost.
    pub(crate) fn replace(&self, prepared: PreparedAudit) {
        let PreparedAudit { policy, output } = prepared;
        self.writer.try_push(AuditItem::Replace(policy, output), 0);
    }

    /// Opens the file at the path again, which another program may have moved.
    pub(crate) fn reopen(&self) {
        self.writer.try_push(AuditItem::Reopen, 0);
    }

    fn with_capacity(
        prepared: PreparedAudit,
        metrics: AuditMetrics,
        max_bytes: usize,
    ) -> io::Result<Arc<Self>> {
        let PreparedAudit { policy, output } = prepared;
        let writer = BackgroundWriter::new(max_bytes);
        writer.start(
            "audit-log",
            AuditWriter::new(policy, output, metrics.clone()),
        )?;
        Ok(Arc::new(Self {
            writer,
            metrics,
            log_limiter: LogLimiter::default(),
        }))
    }

    /// Waits until the queued entries are written, but at most `FLUSH_TIMEOUT`. Later ones are
    /// dropped.
    ///
    /// # Cancel safety
    /// The thread goes on writing queued entries.
    pub(crate) async fn finish(&self) {
        if !self.writer.finish(FLUSH_TIMEOUT).await {
            warn!(
                "the audit log's last events are not written: what it is written to does not take them"
            );
        }
    }

    /// Writes what an operator has done.
    pub(crate) fn record_lever(&self, event: LeverEvent, now: Instant) {
        let weight = event.size_bytes();
        self.push(AuditItem::Lever(Box::new(event)), weight, now);
    }

    fn enqueue(&self, record: &Record, phase: AuditPhase, now: Instant) {
        let entry = audit_entry(record, phase, now);
        let weight = entry.size_bytes();
        self.push(AuditItem::Entry(entry), weight, now);
    }

    fn push(&self, item: AuditItem, weight: usize, now: Instant) {
        if self.writer.try_push(item, weight) {
            return;
        }
        self.metrics.dropped.inc();
        if let Some(more) = self.log_limiter.try_log(now) {
            warn!(more, "the audit log does not keep up: events are dropped");
        }
    }
}

impl RequestObserver for AuditLog {
    fn on_response_started(&self, record: &Record) {
        self.enqueue(record, AuditPhase::ResponseStarted, Clock.now());
    }

    fn on_ended(&self, record: &Record, now: Instant) {
        self.enqueue(record, AuditPhase::RequestEnded, now);
    }
}

fn audit_entry(record: &Record, phase: AuditPhase, now: Instant) -> AuditEntry {
    let audit = record.audit.as_deref();
    let dry_run = record.dry_run.as_ref().map(|spared| spared.limits());
    AuditEntry {
        id: audit.map_or_else(Box::default, |audit| audit.id.as_bytes().into()),
        method: record.method.clone(),
        target: record.target.as_str().into(),
        user: record.user.clone(),
        impersonated: audit.and_then(|audit| audit.impersonated_user(record.outcome).cloned()),
        peer: record.peer.ip(),
        forwarded_for: event::truncate_forwarded_for(record.forwarded_for.as_ref()),
        user_agent: event::truncate_user_agent(record.user_agent.as_ref()),
        long_running: record.long_running,
        response_started: audit.is_some_and(|audit| audit.response_started),
        decision: record.decision.clone(),
        rule: record.rule.clone(),
        policies: record.policies.clone(),
        dry_run: dry_run.filter(|limits| !limits.is_empty()),
        outcome: record.outcome,
        phase,
        received_at: Timestamp::try_from(record.arrived_wall).unwrap_or_default(),
        elapsed: now.saturating_duration_since(record.arrived),
    }
}
