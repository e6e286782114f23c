//! The audit log's thread: builds events from entries and writes them.
//!
//! All slow work is done here: the policy is evaluated, lines are serialized, the disk is waited
//! for.

use prometheus::{IntCounter, IntCounterVec};
use tracing::warn;

use crate::observe::audit::event::AuditEntry;
use crate::observe::audit::lever_event::LeverEvent;
use weir_audit::output::AuditOutput;
use weir_audit::policy::{AuditLevel, AuditPolicy};
use weir_base::background_writer::{WRITE_BYTES, WriterTask};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

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

/// What the thread takes from its queue.
#[derive(Debug)]
pub(super) enum AuditItem {
    Entry(AuditEntry),
    /// What an operator has done.
    Lever(Box<LeverEvent>),
    /// The file at the path is opened again.
    Reopen,
    /// Policy and destination are replaced.
    Replace(AuditPolicy, AuditOutput),
}

/// The state of the thread.
pub(super) struct AuditWriter {
    policy: AuditPolicy,
    output: AuditOutput,
    metrics: AuditMetrics,
    log_limiter: LogLimiter,
    /// Lines that are written together.
    buffer: Vec<u8>,
    /// The events in the buffer.
    events: u64,
}

impl AuditWriter {
    pub(super) fn new(policy: AuditPolicy, output: AuditOutput, metrics: AuditMetrics) -> Self {
        Self {
            policy,
            output,
            metrics,
            log_limiter: LogLimiter::default(),
            buffer: Vec::new(),
            events: 0,
        }
    }

    fn add_entry(&mut self, entry: &AuditEntry) {
        let before = self.buffer.len();
        let (events, level) = entry.append_events(&self.policy, &mut self.buffer);
        if entry.is_last() {
            self.metrics.record_level(level);
        }
        self.metrics.events.inc_by(events);
        if u64::try_from(self.buffer.len()).is_ok_and(|n| n > self.output.remaining_bytes()) {
            let lines = self.buffer.split_off(before); // they belong into the next file
            self.flush();
            self.buffer = lines;
        }
        self.events += events;
    }
}

impl WriterTask for AuditWriter {
    type Item = AuditItem;

    fn add(&mut self, item: AuditItem) -> bool {
        match item {
            AuditItem::Entry(entry) => self.add_entry(&entry),
            AuditItem::Lever(event) => {
                event.append(&mut self.buffer);
                self.metrics.events.inc();
                self.events += 1;
            }
            AuditItem::Reopen => {
                self.flush();
                self.output.reopen();
            }
            AuditItem::Replace(policy, output) => {
                self.flush();
                self.policy = policy;
                self.output.replace(output);
                self.output.reopen();
            }
        }
        self.buffer.len() >= WRITE_BYTES
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty()
            && let Err(why) = self.output.write(&self.buffer)
        {
            self.metrics.errors.inc_by(self.events);
            if let Some(more) = self.log_limiter.try_log(Clock.now()) {
                warn!(%why, events = self.events, more, "the audit log cannot be written");
            }
        }
        self.buffer.clear();
        self.events = 0;
    }
}
