//! The audit log's thread: builds events from entries and writes them.
//!
//! All slow work is done here: the policy is evaluated, lines are serialized, the disk is waited
//! for.

use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec};
use tokio::sync::oneshot;
use tracing::warn;

use crate::observe::audit::event::AuditEntry;
use crate::observe::audit::output::AuditOutput;
use crate::observe::audit::policy::{AuditLevel, AuditPolicy};
use crate::observe::bounded_queue::BoundedQueue;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Lines are written when they reach this many bytes, or when the queue is empty.
const MAX_WRITE_BYTES: usize = 64 * 1024;

/// Metrics of the audit log.
#[derive(Clone, Debug)]
pub struct AuditMetrics {
    pub(super) dropped: IntCounter,
    events: IntCounter,
    errors: IntCounter,
    levels: [IntCounter; 2],
}

impl AuditMetrics {
    /// Registers the metrics.
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

    /// The events that were dropped or could not be written.
    #[must_use]
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.get() + self.errors.get()
    }

    fn record_level(&self, level: AuditLevel) {
        let [none, metadata] = &self.levels;
        match level {
            AuditLevel::None => none.inc(),
            AuditLevel::Metadata => metadata.inc(),
        }
    }
}

/// What the thread changes before its next batch.
#[derive(Debug)]
pub(super) enum WriterChange {
    /// The file at the path is opened again.
    Reopen,
    /// Policy and destination are replaced.
    Replace(AuditPolicy, AuditOutput),
}

/// The state of the thread.
pub(super) struct AuditWriter {
    pub(super) queue: Arc<BoundedQueue<AuditEntry>>,
    pub(super) policy: AuditPolicy,
    pub(super) output: AuditOutput,
    pub(super) change: Arc<Mutex<Option<WriterChange>>>,
    pub(super) metrics: AuditMetrics,
    /// Dropped when everything is written.
    pub(super) done: oneshot::Sender<()>,
}

/// Lines that are written together.
#[derive(Default)]
struct EventBatch {
    buffer: Vec<u8>,
    events: u64,
    /// Queue weight of their entries.
    entry_bytes: usize,
}

impl AuditWriter {
    /// Writes until the queue is closed and empty.
    pub(super) fn run(self) {
        let Self {
            queue,
            mut policy,
            mut output,
            change,
            metrics,
            done,
        } = self;
        let (mut entries, mut batch) = (Vec::new(), EventBatch::default());
        let (mut line, log_limiter) = (Vec::new(), LogLimiter::default());
        while queue.pop_all(&mut entries) {
            let change = change.lock().take();
            match change {
                Some(WriterChange::Reopen) => output.reopen(),
                Some(WriterChange::Replace(new_policy, new_output)) => {
                    policy = new_policy;
                    output.replace(new_output);
                    output.reopen();
                }
                None => {}
            }
            for (entry, weight) in entries.drain(..) {
                line.clear();
                let (events, level) = entry.append_events(&policy, &mut line);
                if entry.is_last() {
                    metrics.record_level(level);
                }
                metrics.events.inc_by(events);
                let total = batch.buffer.len() + line.len();
                if total > MAX_WRITE_BYTES
                    || u64::try_from(total).is_ok_and(|n| n > output.remaining_bytes())
                {
                    batch.flush(&mut output, &queue, &metrics, &log_limiter);
                }
                batch.buffer.append(&mut line);
                batch.events += events;
                batch.entry_bytes += weight;
            }
            batch.flush(&mut output, &queue, &metrics, &log_limiter);
        }
        drop(done);
    }
}

impl EventBatch {
    fn flush(
        &mut self,
        output: &mut AuditOutput,
        queue: &BoundedQueue<AuditEntry>,
        metrics: &AuditMetrics,
        log_limiter: &LogLimiter,
    ) {
        if !self.buffer.is_empty()
            && let Err(why) = output.write(&self.buffer)
        {
            metrics.errors.inc_by(self.events);
            if let Some(more) = log_limiter.try_log(Clock.now()) {
                warn!(%why, events = self.events, more, "the audit log cannot be written");
            }
        }
        self.buffer.clear();
        self.events = 0;
        queue.release(mem::take(&mut self.entry_bytes));
    }
}
