//! The audit log (`--audit-log-path`): who asked for what, what weir decided and how it ended, as events of `audit.k8s.io/v1`.
//!
//! In a request's way a [`Note`] is taken and put into a bounded buffer, which takes less than a microsecond. A thread of the
//! log's own does the rest: [`policy`] says what is written, [`event`] how it looks, [`output`] where it goes. A disk that is slow
//! stops that thread alone; once the buffer is full, notes are dropped and counted. No request ever waits for the log or fails
//! because of it (kube-apiserver's `--audit-log-mode=batch`).

mod event;
mod go_json;
pub mod output;
pub mod policy;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::observe::audit::event::AuditEntry;
use crate::observe::audit::event::AuditPhase;
use crate::observe::audit::output::AuditOutput;
use crate::observe::audit::output::LogFileConfig;
use crate::observe::audit::policy::AuditPolicy;
use crate::observe::audit::writer::AuditWriter;
use crate::observe::bounded_queue::BoundedQueue;
use crate::pipeline::trace::record::Record;
use crate::pipeline::trace::record::RequestObserver;

pub use writer::AuditMetrics;

/// Most memory that notes take until they are written: some 60,000 requests, several seconds of a busy API server.
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;

/// How long the end waits for what is not written yet: a healthy disk takes the whole buffer in this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// What is written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditConfig {
    /// `--audit-policy-file`, or everything.
    pub policy: AuditPolicy,
    /// `--audit-log-path`; `None` is the standard output.
    pub file: Option<LogFileConfig>,
}

/// Takes notes for the audit log.
#[derive(Debug)]
pub struct AuditLog {
    queue: Arc<BoundedQueue<AuditEntry>>,
    metrics: AuditMetrics,
    log_limiter: LogLimiter,
    /// Fails when everything is written.
    done: Mutex<Option<oneshot::Receiver<()>>>,
}

impl AuditLog {
    /// Opens the log and begins to write.
    ///
    /// # Errors
    /// The file or the thread cannot be had.
    pub fn start(config: AuditConfig, metrics: AuditMetrics) -> io::Result<Arc<Self>> {
        Self::with_capacity(config, metrics, MAX_QUEUED_BYTES)
    }

    fn with_capacity(
        config: AuditConfig,
        metrics: AuditMetrics,
        most: usize,
    ) -> io::Result<Arc<Self>> {
        let AuditConfig { policy, file } = config;
        let buffer = Arc::new(BoundedQueue::new(most));
        let (done, written) = oneshot::channel();
        let writer = AuditWriter {
            queue: Arc::clone(&buffer),
            policy,
            output: file.map_or(Ok(AuditOutput::Stdout), AuditOutput::open)?,
            metrics: metrics.clone(),
            done,
        };
        thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Arc::new(Self {
            queue: buffer,
            metrics,
            log_limiter: LogLimiter::default(),
            done: Mutex::new(Some(written)),
        }))
    }

    /// Takes no more notes, and waits until those that were taken are written, but not for long.
    ///
    /// # Cancel safety
    /// What is there goes on being written.
    pub async fn finish(&self) {
        self.queue.close();
        let done = self
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(done) = done
            && timeout(FLUSH_TIMEOUT, done).await.is_err()
        {
            warn!(
                "the audit log's last events are not written: what it is written to does not take them"
            );
        }
    }

    fn enqueue(&self, record: &Record, moment: AuditPhase, now: Instant) {
        let note = audit_entry(record, moment, now);
        let weight = note.size_bytes();
        if self.queue.try_push(note, weight) {
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

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn audit_entry(record: &Record, moment: AuditPhase, now: Instant) -> AuditEntry {
    let audited = record.audit.as_deref();
    AuditEntry {
        id: audited.map_or_else(Box::default, |audited| audited.id.as_bytes().into()),
        method: record.method.clone(),
        target: record.target.as_str().into(),
        user: record.user.clone(),
        impersonated: audited
            .and_then(|audited| audited.impersonated_user(record.outcome).cloned()),
        peer: record.peer.ip(),
        forwarded_for: event::truncate_forwarded_for(record.forwarded_for.as_ref()),
        user_agent: event::truncate_user_agent(record.user_agent.as_ref()),
        long_running: record.long_running,
        response_started: audited.is_some_and(|audited| audited.response_started),
        decision: record.decision.clone(),
        rule: record.rule.clone(),
        outcome: record.outcome,
        phase: moment,
        received_at: Timestamp::try_from(record.arrived_wall).unwrap_or_default(),
        elapsed: now.saturating_duration_since(record.arrived),
    }
}
