//! The audit log's own thread: makes events of notes, and writes them.
//!
//! Whatever takes time is done here: the policy is asked, lines are made, the disk is waited for.

use std::mem;
use std::sync::Arc;

use prometheus::IntCounter;
use prometheus::IntCounterVec;
use tokio::sync::oneshot;
use tracing::warn;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::observe::audit::event::AuditEntry;
use crate::observe::audit::output::AuditOutput;
use crate::observe::audit::policy::AuditLevel;
use crate::observe::audit::policy::AuditPolicy;
use crate::observe::bounded_queue::BoundedQueue;

/// Lines are written when there are so many bytes of them, or no more notes.
const MAX_WRITE_BYTES: usize = 64 * 1024;

/// What the audit log counts.
#[derive(Clone, Debug)]
pub struct AuditMetrics {
    pub(super) dropped: IntCounter,
    events: IntCounter,
    errors: IntCounter,
    levels: [IntCounter; 2],
}

impl AuditMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let levels: IntCounterVec = registry.counters(
            "apiserver_audit_level_total",
            "[ALPHA] Requests by the level that the audit policy has for them.",
            &["level"],
        );
        let errors = registry.counters(
            "apiserver_audit_error_total",
            "[ALPHA] Audit events that could not be written.",
            &["plugin"],
        );
        Self {
            dropped: registry.counter(
                "weir_audit_dropped_total",
                "Notes for the audit log that were dropped since what writes it did not keep up: one for a request, two for a long-running one.",
            ),
            events: registry.counter(
                "apiserver_audit_event_total",
                "[ALPHA] Audit events made.",
            ),
            errors: errors.with_label_values(&["log"]),
            levels: [AuditLevel::None, AuditLevel::Metadata]
                .map(|level| levels.with_label_values(&[level.name()])),
        }
    }

    fn record_level(&self, level: AuditLevel) {
        let [none, metadata] = &self.levels;
        match level {
            AuditLevel::None => none.inc(),
            AuditLevel::Metadata => metadata.inc(),
        }
    }
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct AuditWriter {
    pub(super) queue: Arc<BoundedQueue<AuditEntry>>,
    pub(super) policy: AuditPolicy,
    pub(super) output: AuditOutput,
    pub(super) metrics: AuditMetrics,
    /// Told by being dropped that everything is written.
    pub(super) done: oneshot::Sender<()>,
}

/// Lines that are to be written together.
#[derive(Default)]
struct EventBatch {
    buffer: Vec<u8>,
    events: u64,
    /// What their notes weigh.
    entry_bytes: usize,
}

impl AuditWriter {
    /// Writes until the buffer is closed and empty.
    pub(super) fn run(self) {
        let Self {
            queue: buffer,
            policy,
            mut output,
            metrics,
            done,
        } = self;
        let (mut notes, mut lines) = (Vec::new(), EventBatch::default());
        let (mut line, log) = (Vec::new(), LogLimiter::default());
        while buffer.pop_all(&mut notes) {
            for (note, weight) in notes.drain(..) {
                line.clear();
                let (events, level) = note.append_events(&policy, &mut line);
                if note.is_last() {
                    metrics.record_level(level);
                }
                metrics.events.inc_by(events);
                let together = lines.buffer.len() + line.len();
                if together > MAX_WRITE_BYTES
                    || u64::try_from(together).is_ok_and(|n| n > output.remaining_bytes())
                {
                    lines.flush(&mut output, &buffer, &metrics, &log);
                }
                lines.buffer.append(&mut line);
                lines.events += events;
                lines.entry_bytes += weight;
            }
            lines.flush(&mut output, &buffer, &metrics, &log);
        }
        drop(done);
    }
}

impl EventBatch {
    fn flush(
        &mut self,
        output: &mut AuditOutput,
        buffer: &BoundedQueue<AuditEntry>,
        metrics: &AuditMetrics,
        log: &LogLimiter,
    ) {
        if !self.buffer.is_empty()
            && let Err(why) = output.write(&self.buffer)
        {
            metrics.errors.inc_by(self.events);
            if let Some(more) = log.try_log(Clock.now()) {
                warn!(%why, events = self.events, more, "the audit log cannot be written");
            }
        }
        self.buffer.clear();
        self.events = 0;
        buffer.release(mem::take(&mut self.entry_bytes));
    }
}
